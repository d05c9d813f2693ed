"""Kills a driver with signal 9 at each step of a batch and counts what its sinks have: the table of
docs/spark.md.

    python -m tests.spark.kill_steps

A driver (Spark in local mode, no Ray) runs both ways over one topic: ``foreach_batch``, and
``dataframe()`` with ``writeStream``; each way once for each step. Each batch goes to four sinks: a
folder of Parquet named by the batch's number, a topic under the batch's name (``once``), an SQLite
table whose transaction has the number, a file that is appended to. When every stream has reached
its step, the whole driver is killed, the JVM too; whoever asked goes on with all of them in a
session of its own, to the end. Beside them runs a query into Spark's own Parquet sink, killed
wherever it is.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as pads
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from rmq_ray import spark as mqs
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.scan import stream_checkpoint
from rmq_ray.client.scan.scan_plan import open_reader, plan_scan
from rmq_ray.codec.record import decode_record
from rmq_ray.model.message import Message
from rmq_ray.spark.session import WORKERS
from rmq_ray.spark.source import TopicSource
from tests.support.brokers.live_cluster import CLUSTER, ROOT, SECRET, LiveCluster

STEPS = (
    "before the plan is written",
    "after the plan",
    "in the middle of the writes",
    "after the sinks wrote",
    "after the batch is marked",
)
WAYS = ("foreach_batch", "dataframe")
SINKS = (
    "Parquet by batch number",
    "topic, once",
    "SQLite, number in the transaction",
    "file, appended",
)
OWN = "Spark's own Parquet sink"
ROWS, BATCH_ROWS, OWN_ROWS = 900, 300, 150
CHILD_S = 240


@dataclass(frozen=True)
class Stream:
    """One of the driver's, which is at ``step`` when it is killed."""

    way: str
    step: str

    @property
    def name(self) -> str:
        """Of its directories, its group, its topic."""
        return f"{self.way}-{STEPS.index(self.step)}"


@dataclass
class Counted:
    """What a sink has."""

    rows: int
    distinct: int


def run(
    directory: Path, session: Any, steps: Sequence[str] = STEPS, rows: int = ROWS
) -> dict[tuple[str, str, str], tuple[int, int]]:
    """(way, sink, step) -> (rows lost, rows repeated), under ("", OWN, "") of Spark's own sink.
    ``session``: of Spark, goes on where the driver was killed.
    """
    streams = [Stream(way, step) for way in WAYS for step in steps]
    with LiveCluster(directory / "cluster", brokers=2, segment_bytes=1 << 22) as cluster:
        with closing(Admin(cluster)) as admin:
            for topic in ("rows", *(f"copies-{stream.name}" for stream in streams)):
                admin.create_topic(topic, queues=2)
            with Producer("p", discovery=cluster) as producer:
                for low in range(0, rows, 100):
                    producer.send_batch(
                        [Message("rows", b"row %06d" % n) for n in range(low, low + 100)]
                    )
            kill(directory, cluster, steps)
            Driver(directory, cluster.lookup().name_servers[0], session, Killer()).end(streams)
            groups = [f"group-{stream.name}" for stream in streams]
            lags = {row["lag"] for group in groups for row in admin.group_lag(group)}
            assert lags == {0}, lags
        bodies = {
            (stream.way, sink, stream.step): bodies_of(directory, cluster, stream, sink)
            for stream in streams
            for sink in SINKS
        }
        bodies["", OWN, ""] = own_bodies(directory / "own")
    has = {key: Counted(len(found), len(set(found))) for key, found in bodies.items()}
    return {key: (rows - one.distinct, one.rows - one.distinct) for key, one in has.items()}


def kill(directory: Path, cluster: LiveCluster, steps: Sequence[str]) -> None:
    """The life of a driver that is killed where its streams are at these steps."""
    command = [
        sys.executable,
        "-m",
        "tests.spark.kill_steps",
        str(directory),
        cluster.lookup().name_servers[0],
        *steps,
    ]
    child = subprocess.run(
        command,
        cwd=ROOT,
        timeout=CHILD_S,
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, (
        f"{child.returncode}\n{child.stdout[-3000:]}\n{child.stderr[-6000:]}"
    )


def bodies_of(directory: Path, cluster: LiveCluster, stream: Stream, sink: str) -> list[bytes]:
    """The rows of a sink."""
    folder = directory / stream.name
    if sink == SINKS[0]:
        found = pads.dataset(folder / "parquet", format="parquet").to_table()["body"].to_pylist()
    elif sink == SINKS[1]:
        found = topic_bodies(cluster, f"copies-{stream.name}")
    elif sink == SINKS[2]:
        with closing(sqlite3.connect(folder / "rows.db")) as table:
            found = [row[0] for row in table.execute("select body from rows")]
    else:
        found = (folder / "appended").read_bytes().splitlines()
    return list(found)


def own_bodies(folder: Path) -> list[bytes]:
    """Of the files that Spark's sink has committed, as its own reader would find them."""
    logs = [
        path.read_text().splitlines()[1:]
        for path in sorted((folder / "_spark_metadata").iterdir())
        if path.name.isdecimal()
    ]
    files = [json.loads(line)["path"].removeprefix("file://") for lines in logs for line in lines]
    return [body for file in files for body in pq.read_table(file)["body"].to_pylist()]


def topic_bodies(cluster: LiveCluster, topic: str) -> list[bytes]:
    """Of all messages."""
    plan = plan_scan(cluster, topic, "earliest", "latest", 1)
    reader = open_reader(plan)
    bodies = []
    for split in plan.splits:
        for records, sizes in reader.read(split, 1 << 20):
            at = 0
            for size in sizes.tolist():
                bodies.append(decode_record(bytes(records[at : at + size])).body)
                at += size
    reader.close()
    return bodies


# --- the driver -----------------------------------------------------------------------------------


class Killer:
    """Kills the process group when each of ``streams`` is at its step: before the first plan not in
    the first batch, so that all kills hit one in the middle. Without any it kills nobody.
    """

    def __init__(self, streams: Sequence[Stream] = ()) -> None:
        self._streams = streams
        self._all = threading.Barrier(len(streams) or 1)
        self._passed: Counter[Stream] = Counter()

    def reached(self, stream: Stream, step: str) -> None:
        """Called at each step of each stream."""
        if not self.hits(stream, step):
            return
        self._passed[stream] += 1
        if self._passed[stream] >= (2 if step == STEPS[0] else 1):
            self._all.wait(CHILD_S)
            os.killpg(0, signal.SIGKILL)

    def hits(self, stream: Stream, step: str) -> bool:
        """Whether the next time at this step is the last."""
        return stream in self._streams and step == stream.step


class Driver:
    """Streams of one session, with what they know of their last life in ``directory``."""

    def __init__(self, directory: Path, name_server: str, session: Any, killer: Killer) -> None:
        self._directory = directory
        self._session = session
        self._killer = killer
        self._where: dict[str, Any] = {
            "cluster": CLUSTER,
            "name_servers": [name_server],
            "secret": SECRET,
        }

    def begin(self, streams: Iterable[Stream]) -> None:
        """Begin what goes on until the kill."""
        self._start(streams, available_now=False)

    def end(self, streams: Iterable[Stream]) -> None:
        """Run all of them to the end of the topic."""
        queries, loops = self._start(streams, available_now=True)
        assert all(query.awaitTermination(CHILD_S) for query in queries)
        assert all(loop.await_termination(CHILD_S) for loop in loops)

    def _start(
        self, streams: Iterable[Stream], available_now: bool
    ) -> tuple[list[StreamingQuery], list[mqs.BatchQuery]]:
        queries, loops = [], []
        own = self._read("own", OWN_ROWS).dataframe().writeStream.format("parquet")
        writers = [own.option("path", str(self._directory / "own")).option(*self._kept("own"))]
        for stream in streams:
            (self._directory / stream.name).mkdir(exist_ok=True)
            if stream.way == WAYS[0]:
                loop = self._read(stream.name).foreach_batch(
                    self._sinks(stream),
                    checkpoint=self._kept(stream.name)[1],
                    trigger_seconds=0,
                    available_now=available_now,
                )
                loops.append(loop)
            else:
                writer = self._read(stream.name).dataframe().writeStream
                writers.append(
                    writer.foreachBatch(self._sinks(stream)).option(*self._kept(stream.name))
                )
        for writer in writers:
            asked = writer.trigger(availableNow=True) if available_now else writer
            queries.append(asked.start())
        return queries, loops

    def _kept(self, name: str) -> tuple[str, str]:
        return "checkpointLocation", str(self._directory / "checkpoints" / name)

    def _read(self, name: str, rows: int = BATCH_ROWS) -> mqs.TopicStream:
        return mqs.read_stream(
            self._session,
            "rows",
            group=f"group-{name}",
            columns=["body"],
            max_rows_per_trigger=rows,
            splits=2,
            **self._where,
        )

    def _sinks(self, stream: Stream) -> Any:
        folder, killer = self._directory / stream.name, self._killer

        def write(df: DataFrame, number: int) -> None:
            killer.reached(stream, STEPS[1])
            bodies = [bytes(row[0]) for row in df.collect()]
            half = bodies[: len(bodies) // 2] if killer.hits(stream, STEPS[2]) else bodies
            (df.limit(len(half)) if half != bodies else df).write.mode("overwrite").parquet(
                str(folder / "parquet" / f"batch-{number}")
            )
            once = mqs.Once(f"{stream.name}/{number}", partitions=1)
            mqs.write_topic(df, f"copies-{stream.name}", once=once, **self._where)
            with closing(sqlite3.connect(folder / "rows.db")) as table:
                table.executescript(
                    "create table if not exists batches (number primary key); create table if "
                    "not exists rows (body)"
                )
                known = table.execute("select 1 from batches where number = ?", (number,))
                if not known.fetchall():
                    table.execute("insert into batches values (?)", (number,))
                    table.executemany("insert into rows values (?)", [(body,) for body in half])
                with (folder / "appended").open("ab") as file:
                    file.write(b"".join(body + b"\n" for body in half))
                killer.reached(stream, STEPS[2])
                table.commit()
            killer.reached(stream, STEPS[3])

        return write


def local_session() -> Any:
    """Of a Spark in this process, with two cores."""
    options = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
        ),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.pollingDelay": "100ms",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": WORKERS,
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder
    for name, value in options.items():
        builder = builder.config(name, value)
    session = builder.master("local[2]").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def killed_driver(directory: Path, name_server: str, steps: Sequence[str]) -> None:
    """Both ways for each step, until the kill."""
    streams = [Stream(way, step) for way in WAYS for step in steps]
    killer = Killer(streams)
    _watch_loop(killer, {stream.name: stream for stream in streams}, stream_checkpoint.Checkpoint)
    _watch_source(killer, {f"group-{stream.name}": stream for stream in streams}, TopicSource)
    Driver(directory, name_server, local_session(), killer).begin(streams)
    threading.Event().wait(CHILD_S)


def _watch_loop(killer: Killer, streams: dict[str, Stream], kind: Any) -> None:
    """``streams``: by the name of the directory that they were given."""
    plan, done = kind.plan, kind.done

    def planned(self: Any, end: Any) -> Any:
        killer.reached(streams[Path(str(self._directory)).parent.name], STEPS[0])
        return plan(self, end)

    def marked(self: Any, batch: Any) -> None:
        done(self, batch)
        killer.reached(streams[Path(str(self._directory)).parent.name], STEPS[4])

    kind.plan, kind.done = planned, marked


def _watch_source(killer: Killer, streams: dict[str, Stream], kind: Any) -> None:
    """``streams``: by their group."""
    latest = kind.latestOffset

    def next_one(self: Any, start: Any, limit: Any) -> Any:
        stream = streams.get(self._batches.reading.group)
        if stream is None:
            return latest(self, start, limit)
        if getattr(
            self, "seen", False
        ):  # Spark asks for the next batch when the one before is marked
            killer.reached(stream, STEPS[4])
        self.seen = True
        found = latest(self, start, limit)
        killer.reached(stream, STEPS[0])
        return found

    kind.latestOffset = next_one


def table(found: dict[tuple[str, str, str], tuple[int, int]]) -> str:
    """As docs/spark.md has it."""
    lines = [
        f"| way | driver killed | {' | '.join(SINKS)} |",
        "| --- | --- |" + " --- |" * len(SINKS),
    ]
    for way in WAYS:
        for step in STEPS:
            cells = (
                f"{found[way, sink, step][0]} lost, {found[way, sink, step][1]} repeated"
                for sink in SINKS
            )
            lines.append(f"| `{way}` | {step} | {' | '.join(cells)} |")
    lines.append(
        f"\n{OWN}, after the kill: {found['', OWN, ''][0]} lost, {found['', OWN, ''][1]} repeated"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        killed_driver(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            here = local_session()
            print(table(run(Path(temporary), here)))
            here.stop()
