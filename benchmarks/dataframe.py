"""A topic into Spark: a sum over every body by tag, against the same rows as JSON lines, as Parquet
and in Apache Kafka.

The same session, the same query, one executor with two cores for all of them, turn by turn; the
quickest turn of each counts. The results must be equal. ``CPU``: of this process and all that it
started (Ray, broker, JVMs, Python workers), which other work on the machine does not change.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

import rmq_ray as rmq
from benchmarks import kafka_peer
from benchmarks.report import Figure
from benchmarks.scene import Scene

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BODY_BYTES = 1_024
TAGS = 7
PIECE = 50_000
"""Rows that are made once and sent again and again."""
# JVMs compile what runs often: the way through Python, with its many classes of Arrow, gets quicker
# for eight turns or so
TURNS = 9
TICKS_S = os.sysconf("SC_CLK_TCK")
TARGETS = {"JSON lines": 1.0, "Parquet": 0.5, "Spark's Kafka source": 1.5}

Sums = dict[str, int]


def run(scene: Scene) -> None:
    """1 M x 1 KB from each; Kafka with ``--peers``."""
    from rmq_ray import spark as mqs

    rows = scene.count(1_000_000, PIECE) // PIECE * PIECE
    with scene.cluster() as mq, ExitStack() as ends:
        send(mq, "rows", BODY_BYTES, rows)
        ways: dict[str, Callable[[], DataFrame]] = {}
        jars = ""
        if scene.with_peers:
            address = ends.enter_context(in_kafka(scene.directory / "kafka", rows))
            jars = kafka_peer.class_path(kafka_peer.SPARK_PROJECT).replace(":", ",")
        session = mqs.session(
            executor_cores=2, executor_memory="1GB", configs={"spark.jars": jars} if jars else None
        )
        ends.callback(mqs.stop)
        ways["topic"] = lambda: mqs.read_topic(
            session, "rows", columns=["tag", "body"], cluster=mq.name
        )
        ways |= in_files(session, ways["topic"](), scene.directory)
        if jars:
            ways["Spark's Kafka source"] = lambda: from_kafka(session, address)
        scene.settle()
        compare(scene, ways, rows)


def compare(scene: Scene, ways: dict[str, Callable[[], DataFrame]], rows: int) -> None:
    """Turn by turn, so that a busy minute of the machine meets all of them."""
    seconds: dict[str, float] = {}
    cpu: dict[str, float] = {}
    wanted: Sums | None = None
    for turn in range(TURNS + 1):  # the first one warms up: workers are forked and the JVM compiles
        for name, frame in ways.items():
            before, begin = tree_cpu(os.getpid()), time.perf_counter()
            sums = sums_by_tag(frame())
            taken, used = time.perf_counter() - begin, cpu_s(before, tree_cpu(os.getpid()))
            wanted = wanted or sums
            assert sums == wanted and len(sums) == TAGS, f"{name} gave {sums}, the topic {wanted}"
            if turn:
                seconds[name], cpu[name] = (
                    min(taken, seconds.get(name, taken)),
                    min(used, cpu.get(name, used)),
                )
    for name in ways:
        if name != "topic":
            scene.report.add(
                Figure(
                    "sum of crc32(body) by tag",
                    rows / seconds["topic"],
                    "rows/s",
                    name,
                    rows / seconds[name],
                    TARGETS[name],
                )
            )
            scene.report.add(
                Figure(
                    "the same, CPU of all processes",
                    cpu["topic"] / rows * 1e6,
                    "us/row",
                    name,
                    cpu[name] / rows * 1e6,
                )
            )


def sums_by_tag(df: DataFrame) -> Sums:
    """The query."""
    from pyspark.sql import functions as f

    return {
        row["tag"]: row["total"]
        for row in df.groupBy("tag").agg(f.sum(f.crc32("body")).alias("total")).collect()
    }


def piece(size: int) -> Any:
    """Rows of a tag and a body of printable text, so that JSON holds it as it is."""
    import pyarrow as pa

    text = base64.b64encode(os.urandom(PIECE * size * 3 // 4 + 3))[: PIECE * size]
    bodies: Any = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(size), PIECE, [None, pa.py_buffer(text)]
    )
    return pa.table(
        {"body": bodies.cast(pa.binary()), "tag": [f"t{n % TAGS}" for n in range(PIECE)]}
    )


def send(mq: rmq.Cluster, topic: str, size: int, rows: int) -> None:
    """By columns, from one producer actor; the piece stays in Ray's object store for Kafka's
    producer.
    """
    mq.admin.create_topic(topic, queues=4)
    producer: Any = rmq.ProducerActor.options(num_cpus=0).remote(
        topic, cluster=mq.name, send_timeout_ms=30_000
    )
    table = pieces.setdefault(size, piece(size))
    ray.get(producer.run.remote(send_pieces, topic, table, rows // PIECE))
    ray.get(producer.close.remote())
    ray.kill(producer)


pieces: dict[int, Any] = {}


def send_pieces(producer: rmq.Producer, topic: str, table: Any, times: int) -> None:
    """Runs in the producer actor."""
    for _ in range(times):
        producer.send_arrow(topic, table, body="body", tag="tag")


def in_files(
    session: SparkSession, df: DataFrame, directory: Path
) -> dict[str, Callable[[], DataFrame]]:
    """The rows as JSON lines and as Parquet (snappy), and how Spark reads them back: with their
    schema, so that JSON is read once.
    """
    lines, parquet = str(directory / "rows.json"), str(directory / "rows.parquet")
    df.selectExpr("tag", "cast(body as string) as body").write.json(lines)
    df.write.parquet(parquet)
    return {
        "JSON lines": lambda: session.read.schema("tag string, body string").json(lines),
        "Parquet": lambda: session.read.parquet(parquet),
    }


@contextmanager
def in_kafka(directory: Path, rows: int) -> Iterator[str]:
    """A broker of Apache Kafka with the rows in 4 partitions (key = tag) until the block
    ends; its address.
    """
    from confluent_kafka import Producer

    directory.mkdir()
    with kafka_peer.broker(directory) as address:
        producer = Producer(
            {
                "bootstrap.servers": address,
                "queue.buffering.max.messages": 2_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
            }
        )
        messages = [
            {"value": row["body"], "partition": n % 4, "key": row["tag"].encode()}
            for n, row in enumerate(pieces[BODY_BYTES].to_pylist())
        ]
        for _ in range(rows // PIECE):
            for first in range(0, PIECE, kafka_peer.PIECE):
                part = messages[first : first + kafka_peer.PIECE]
                assert producer.produce_batch("rows", part) == len(part)
            assert producer.flush(60) == 0, "Kafka did not acknowledge every row"
        yield address


def from_kafka(session: SparkSession, address: str) -> DataFrame:
    """Spark's own source, as its documentation shows it."""
    frame = (
        session.read.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", "rows")
        .option("startingOffsets", "earliest")
        .load()
    )
    return frame.selectExpr("cast(key as string) as tag", "value as body")


def tree_cpu(pid: int) -> dict[int, int]:
    """Clock ticks that a process and its descendants have used, by process id."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue  # it ended meanwhile
            parents[int(entry.name)], used[int(entry.name)] = (
                int(fields[1]),
                int(fields[11]) + int(fields[12]),
            )
    found = {}
    for each in parents:
        above = each
        while above not in (pid, 0):  # ends: at the root of the tree
            above = parents.get(above, 0)
        if above == pid:
            found[each] = used[each]
    return found


def cpu_s(before: dict[int, int], after: dict[int, int]) -> float:
    """CPU seconds between two looks, without those of processes that ended in between."""
    return sum(ticks - before.get(pid, 0) for pid, ticks in after.items()) / TICKS_S
