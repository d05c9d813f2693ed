"""A topic as a table: bytes of bodies a second of CPU that become Parquet, what that does to the
sends of a busy producer, how old a message is when it is in the table, what memory a long backfill
takes, and how fast a Spark reads the table that has nothing of this project.

Bodies are JSON of about 1 KB, half of it text that does not compress well. CPU is this process's
own, reading, encoding, compressing and committing included, so that other work on the machine
counts little; the archivist of the other parts is an actor, as in use.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

import rmq_ray as rmq
from benchmarks.dataframe import PIECE, send, sums_by_tag
from benchmarks.report import Figure
from benchmarks.scan import paced
from benchmarks.scene import Scene
from rmq_ray.actors import gateway, names
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.table.archivist import Archivist
from rmq_ray.table.manifest import ManifestTable
from rmq_ray.table.rules import TableSpec
from rmq_ray.table.source import TopicSource
from rmq_ray.table.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZE, BATCH = 1_024, 200
MB_GOAL, P99_GOAL, FRESH_S_OVER_LAG = 150.0, 1.3, 5.0
LAG_S = 10.0
RATE = 20_000.0
ROUNDS = 3
SMALL_BYTES = 100
SPARK_GOAL, SPARK_TURNS = 0.9, 5
MEMORY_GOAL = 1.25
LONG_S = 3_600.0


def run(scene: Scene) -> None:
    """Four queues, one broker."""
    with scene.cluster() as mq:
        count = scene.count(400_000, 20_000)
        fill(mq, "archived", count)
        speed = max(megabytes_per_cpu_s(mq, "archived", count) for _ in range(ROUNDS))
        what = "bodies of 1 KB into a table, one core"
        scene.report.add(Figure(what, speed, "MB/s", "goal", MB_GOAL, 1.0))
        scene.settle()
        beside_sends(scene, mq)
    backfill(scene)
    in_spark(scene)


def fill(mq: rmq.Cluster, topic: str, count: int) -> None:
    """``count`` bodies, each its own, that compress to about a quarter."""
    chance = random.Random(1)
    mq.admin.create_topic(topic, queues=4)
    text = b"text " * SIZE
    with mq.producer() as producer:
        for _ in range(count // BATCH):
            bodies = [chance.randbytes(SIZE // 4).hex().encode() for _ in range(BATCH)]
            producer.send_batch(topic, [(body + text)[:SIZE] for body in bodies])


def megabytes_per_cpu_s(mq: rmq.Cluster, topic: str, count: int) -> float:
    """Bytes of bodies for each second of this process's CPU time, all threads."""
    folder = Path(tempfile.mkdtemp(prefix="rmq-ray-table-"))
    source = TopicSource(mq.discovery, topic)
    try:
        target = ManifestTable(Storage(str(folder)), topic, "bench")
        archivist = Archivist(TableSpec(topic, str(folder)), source, target, SYSTEM_CLOCK)
        archivist.opened()
        begin = time.process_time()
        while archivist.turn(force=True):
            pass
        used = time.process_time() - begin
        assert archivist.opened().rows == count
        return count * SIZE / used / 1e6
    finally:
        source.close()
        shutil.rmtree(folder)


def beside_sends(scene: Scene, mq: rmq.Cluster) -> None:
    """p99 of paced batches with a table and without, in turns; freshness behind it."""
    mq.admin.create_topic("paced", queues=4)
    producer: Any = rmq.ProducerActor.options(num_cpus=0).remote(
        "paced", cluster=mq.name, send_timeout_ms=30_000
    )
    seconds = max(2.0, 10.0 * scene.scale)
    ray.get(producer.run.remote(paced, RATE, 0.5))
    folder = Path(tempfile.mkdtemp(prefix="rmq-ray-table-"))
    try:
        mq.tables.create("paced", str(folder), max_lag_s=LAG_S)
        found: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(ROUNDS):
            for with_table in (False, True):
                (mq.tables.resume if with_table else mq.tables.pause)("paced")
                found[with_table].append(ray.get(producer.run.remote(paced, RATE, seconds)))
        without, beside = (sorted(found[key])[ROUNDS // 2] for key in (False, True))
        what = "send of 100 x 1 KB, 20,000/s, beside its table, p99"
        scene.report.add(Figure(what, beside, "ms", "without it", without, P99_GOAL, True))
        mq.tables.flush("paced")
        what = f"age of a message when it is in its table, max lag {LAG_S:.0f} s"
        most = LAG_S + FRESH_S_OVER_LAG
        scene.report.add(Figure(what, freshness_s(mq), "s", "goal", most, 1.0, True))
        mq.tables.drop("paced")
    finally:
        shutil.rmtree(folder)


def freshness_s(mq: rmq.Cluster) -> float:
    """From the send of one message to the commit that has it."""
    before = mq.tables.describe("paced")["rows"]
    with mq.producer() as producer:
        producer.send("paced", b"one")
    begin = time.monotonic()
    while mq.tables.describe("paced")["rows"] == before and time.monotonic() - begin < 6 * LAG_S:
        time.sleep(0.1)
    return time.monotonic() - begin


def backfill(scene: Scene) -> None:
    """50 M small messages that were there before: rows a second, and whether the archivist's memory
    grows with them.
    """
    count = scene.count(50_000_000, 10 * PIECE) // PIECE * PIECE
    with scene.cluster() as mq:
        send(mq, "old", SMALL_BYTES, count)
        folder, begin = scene.directory / "old", time.monotonic()
        mq.tables.create("old", str(folder))
        pid = int(gateway.call(gateway.find(names.archivist(mq.name, "old")), "pid"))
        with sampled(pid) as megabytes:
            mq.tables.flush("old", timeout_s=LONG_S)
        rate = count / (time.monotonic() - begin)
        assert mq.tables.describe("old")["rows"] == count
        mq.tables.drop("old", delete_files=True)
    scene.report.tell(f"backfill of a table, {count:,} messages of 100 B", rate, "rows/s")
    quarter = len(megabytes) // 4
    early, late = max(megabytes[: quarter + 1]), max(megabytes[-quarter - 1 :])
    what = "memory of its archivist, the most of the last quarter"
    scene.report.add(Figure(what, late, "MB", "of the first", early, MEMORY_GOAL, True))


@contextmanager
def sampled(pid: int) -> Iterator[list[float]]:
    """Resident MB of a process, twice a second while the block runs."""
    found: list[float] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.5):
            status = Path(f"/proc/{pid}/status").read_text()
            found.append(int(status.partition("VmRSS:")[2].split()[0]) / 1024)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def in_spark(scene: Scene) -> None:
    """A sum over every body by tag, from the table's files and from the same rows as Spark writes
    them, as it comes (snappy) and with the table's codec, turn by turn; the brokers have ended.
    """
    from pyspark.sql import SparkSession

    count = scene.count(10_000_000, 2 * PIECE) // PIECE * PIECE
    table = scene.directory / "rows"
    with scene.cluster() as mq:
        send(mq, "rows", SMALL_BYTES, count)
        mq.tables.create("rows", str(table))
        mq.tables.flush("rows", timeout_s=LONG_S)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", "2g").getOrCreate()
    try:
        files = json.loads((table / "_rmq" / "offsets.json").read_text())["files"]
        ours = spark.read.parquet(*(f"{table}/{row[0]}" for row in files))
        frames: dict[str, DataFrame] = {"ours": ours}
        for codec in ("snappy", "zstd"):
            copy = str(scene.directory / f"rows.{codec}")
            ours.write.option("compression", codec).parquet(copy)
            frames[codec] = spark.read.parquet(copy)
        seconds: dict[str, float] = {}
        sums = []
        for turn in range(SPARK_TURNS + 1):  # the first one warms up
            for name, frame in frames.items():
                begin = time.monotonic()
                sums.append(sums_by_tag(frame))
                taken = time.monotonic() - begin
                seconds[name] = min(taken, seconds.get(name, taken)) if turn else taken
        assert all(one == sums[0] for one in sums)
    finally:
        spark.stop()
    what = f"sum over a table of {count:,} rows by a Spark without our code"
    rates = {name: count / taken for name, taken in seconds.items()}
    for codec, against in (
        ("snappy", "the same as Parquet that Spark wrote, its codec (snappy)"),
        ("zstd", "the same with the table's codec (zstd)"),
    ):
        scene.report.add(Figure(what, rates["ours"], "rows/s", against, rates[codec], SPARK_GOAL))
