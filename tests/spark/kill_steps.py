"""Kills a driver with signal 9 at each step of a batch and counts what its sinks have: the table of
docs/spark.md.

    python -m tests.spark.kill_steps

A driver (Spark in local mode, no Ray) runs both ways over one topic: ``foreach_batch``, and
``dataframe()`` with ``writeStream``. Each batch goes to four sinks: a folder of Parquet named by
the batch's number, a topic under the batch's name (``once``), an SQLite table whose transaction has
the number, a file that is appended to. When both ways have reached the step, the whole driver is
killed, the JVM too; the next driver goes on and is killed at the next step, the last one ends.
Beside them runs a query into Spark's own Parquet sink, killed wherever it is.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as pads
import pyarrow.parquet as pq

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.scan.scan_plan import open_reader, plan_scan
from rmq_ray.codec.record import decode_record
from rmq_ray.model.message import Message
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


@dataclass
class Counted:
    """What a sink has."""

    rows: int
    distinct: int


def run(
    directory: Path, steps: Sequence[str] = STEPS, rows: int = ROWS
) -> dict[tuple[str, str, str], tuple[int, int]]:
    """(way, sink, step) -> (rows lost, rows repeated); rows lost are known at the end only and
    stand at the last step. Under ("", OWN, "") at the end.
    """
    with LiveCluster(directory / "cluster", brokers=2, segment_bytes=1 << 22) as cluster:
        admin = Admin(cluster)
        for topic in ("rows", *(f"copies-{way}" for way in WAYS)):
            admin.create_topic(topic, queues=2)
        with Producer("p", discovery=cluster) as producer:
            for low in range(0, rows, 100):
                producer.send_batch(
                    [Message("rows", b"row %06d" % n) for n in range(low, low + 100)]
                )
        found = {}
        repeated: Counter[tuple[str, str]] = Counter()
        for step, then in zip(steps, (*steps[1:], ""), strict=True):
            if step == steps[0]:
                drive(directory, cluster, step)
            drive(directory, cluster, then)
            for way in WAYS:
                for sink in SINKS:
                    has = counted(directory, cluster, way, sink)
                    lost = rows - has.distinct if not then else 0
                    found[way, sink, step] = (lost, has.rows - has.distinct - repeated[way, sink])
                    repeated[way, sink] = has.rows - has.distinct
        has = counted(directory, cluster, "", OWN)
        found["", OWN, ""] = (rows - has.distinct, has.rows - has.distinct)
        lags = {row["lag"] for group in WAYS for row in admin.group_lag(f"group-{group}")}
        assert lags == {0}, lags
        admin.close()
        return found


def drive(directory: Path, cluster: LiveCluster, step: str) -> None:
    """One life of the driver; ``step``: where it is killed, "" = it ends."""
    command = [
        sys.executable,
        "-m",
        "tests.spark.kill_steps",
        str(directory),
        cluster.lookup().name_servers[0],
        step,
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
    assert child.returncode == (-signal.SIGKILL if step else 0), (
        f"step {step!r}: {child.returncode}\n{child.stdout[-3000:]}\n{child.stderr[-6000:]}"
    )


def counted(directory: Path, cluster: LiveCluster, way: str, sink: str) -> Counted:
    """Rows and distinct rows of a sink."""
    folder = directory / way
    if sink == SINKS[0]:
        bodies = (
            pads.dataset(folder / "parquet", format="parquet").to_table()["body"].to_pylist()
            if (folder / "parquet").exists()
            else []
        )
    elif sink == SINKS[1]:
        bodies = topic_bodies(cluster, f"copies-{way}")
    elif sink == SINKS[2]:
        with sqlite3.connect(folder / "rows.db") as table:
            bodies = [row[0] for row in table.execute("select body from rows")]
        table.close()
    elif sink == OWN:
        bodies = own_bodies(directory / "own")
    else:
        bodies = (
            (folder / "appended").read_bytes().splitlines()
            if (folder / "appended").exists()
            else []
        )
    return Counted(len(bodies), len(set(bodies)))


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
    """Kills the process group when both ways are at the step: before the first plan not in the
    first batch, so that all kills hit one in the middle.
    """

    def __init__(self, step: str) -> None:
        self._step = step
        self._both = threading.Barrier(len(WAYS))
        self._passed: Counter[str] = Counter()

    def reached(self, way: str, step: str) -> None:
        """Called at each step of each way."""
        if step != self._step:
            return
        self._passed[way] += 1
        if self._passed[way] >= (2 if step == STEPS[0] else 1):
            self._both.wait(CHILD_S)
            os.killpg(0, signal.SIGKILL)

    def hits(self, step: str) -> bool:
        """Whether the next time at this step is the last."""
        return step == self._step


def driver(directory: Path, name_server: str, step: str) -> None:
    """Both ways, until the kill or the end."""
    from pyspark.sql import DataFrame, SparkSession

    from rmq_ray import spark as mqs
    from rmq_ray.client.scan import stream_checkpoint
    from rmq_ray.spark import source
    from rmq_ray.spark.session import WORKERS

    os.environ["PYSPARK_PYTHON"] = sys.executable
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
    builder: Any = SparkSession.builder
    for name, value in options.items():
        builder = builder.config(name, value)
    session = builder.master("local[2]").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    killer = Killer(step)
    _watch_loop(killer, stream_checkpoint.Checkpoint)
    _watch_source(killer, source.TopicSource)
    where = {"cluster": CLUSTER, "name_servers": [name_server], "secret": SECRET}

    def sinks(way: str) -> Any:
        folder = directory / way
        folder.mkdir(exist_ok=True)
        table = sqlite3.connect(folder / "rows.db", check_same_thread=False)
        table.executescript(
            "create table if not exists batches (number primary key); create table if not "
            "exists rows (body)"
        )

        def write(df: DataFrame, number: int) -> None:
            killer.reached(way, STEPS[1])
            bodies = [bytes(row[0]) for row in df.collect()]
            half = bodies[: len(bodies) // 2] if killer.hits(STEPS[2]) else bodies
            (df.limit(len(half)) if half != bodies else df).write.mode("overwrite").parquet(
                str(folder / "parquet" / f"batch-{number}")
            )
            mqs.write_topic(
                df, f"copies-{way}", once=mqs.Once(f"{way}/{number}", partitions=1), **where
            )
            if not table.execute("select 1 from batches where number = ?", (number,)).fetchall():
                table.execute("insert into batches values (?)", (number,))
                table.executemany("insert into rows values (?)", [(body,) for body in half])
            with (folder / "appended").open("ab") as file:
                file.write(b"".join(body + b"\n" for body in half))
            killer.reached(way, STEPS[2])
            table.commit()
            killer.reached(way, STEPS[3])

        return write

    def stream(way: str, rows: int = BATCH_ROWS) -> mqs.TopicStream:
        return mqs.read_stream(
            session,
            "rows",
            group=f"group-{way}",
            columns=["body"],
            max_rows_per_trigger=rows,
            splits=2,
            **where,
        )

    loop = stream(WAYS[0]).foreach_batch(
        sinks(WAYS[0]),
        checkpoint=str(directory / "loop"),
        trigger_seconds=0,
        available_now=not step,
    )
    writer = (
        stream(WAYS[1])
        .dataframe()
        .writeStream.foreachBatch(sinks(WAYS[1]))
        .option("checkpointLocation", str(directory / "frame"))
    )
    own = (
        stream("own", OWN_ROWS)
        .dataframe()
        .writeStream.format("parquet")
        .option("path", str(directory / "own"))
    )
    own = own.option("checkpointLocation", str(directory / "own-checkpoint"))
    query, beside = (
        w.trigger(availableNow=True).start() if not step else w.start() for w in (writer, own)
    )
    assert (
        query.awaitTermination(CHILD_S)
        and beside.awaitTermination(CHILD_S)
        and loop.await_termination(CHILD_S)
    ), "the queries did not end"
    session.stop()


def _watch_loop(killer: Killer, kind: Any) -> None:
    plan, done = kind.plan, kind.done

    def planned(self: Any, end: Any) -> Any:
        killer.reached(WAYS[0], STEPS[0])
        return plan(self, end)

    def marked(self: Any, batch: Any) -> None:
        done(self, batch)
        killer.reached(WAYS[0], STEPS[4])

    kind.plan, kind.done = planned, marked


def _watch_source(killer: Killer, kind: Any) -> None:
    latest = kind.latestOffset

    def next_one(self: Any, start: Any, limit: Any) -> Any:
        if self._batches.reading.group != f"group-{WAYS[1]}":
            return latest(self, start, limit)
        if getattr(
            self, "seen", False
        ):  # Spark asks for the next batch when the one before is marked
            killer.reached(WAYS[1], STEPS[4])
        self.seen = True
        found = latest(self, start, limit)
        killer.reached(WAYS[1], STEPS[0])
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
        f"\n{OWN}, after all kills: {found['', OWN, ''][0]} lost, {found['', OWN, ''][1]} repeated"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        driver(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            print(table(run(Path(temporary))))
