"""From a topic through Spark into a topic, each row once, though the driver is killed in the
middle.

    python -m examples.spark_round_trip

Payments in cents go to "payments". A Structured Streaming query turns them into euros in "euros",
batch by batch, in a process of its own. When the first batch is stored the process is killed with
signal 9; this one goes on from its checkpoint and ends when it has caught up. Batches are written
under their names (``write_stream_topic``), so that one which comes again is stored once. The Java
errors that are printed in between are the killed driver's JVM, which misses it and ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray

import rmq_ray as rmq
from rmq_ray import spark as mqs

RAW, CLEAN, GROUP = "payments", "euros", "cents-to-euros"
ROWS, BATCHES = 3_000, 6
PATIENCE_S = 300


def euros(number: int) -> str:
    """What payment ``number`` is to become: 7 cents each."""
    return f"{number * 7 // 100}.{number * 7 % 100:02d}"


def send(cluster: str) -> None:
    """A JSON message for each payment, key = its number."""
    numbers = range(ROWS)
    table = pa.table(
        {
            "id": [str(number) for number in numbers],
            "body": [json.dumps({"cents": 7 * number}) for number in numbers],
        }
    )
    with rmq.Producer("till", cluster=cluster) as producer:
        producer.send_arrow(RAW, table, key="id")


def drive(session: Any, cluster: str, checkpoint: str, *, to_the_end: bool) -> None:
    """The query: a batch each second for ever, or all that is there as fast as it goes."""
    from pyspark.sql import functions as f

    raw = mqs.read_stream(
        session,
        RAW,
        group=GROUP,
        columns=["keys", "body"],
        max_rows_per_trigger=ROWS // BATCHES,
        cluster=cluster,
    ).dataframe()
    cents = f.from_json(f.col("body").cast("string"), "cents bigint")["cents"]
    clean = raw.select(f.col("keys")[0].alias("id"), cents.alias("cents")).selectExpr(
        "id", "format_string('%d.%02d', cents div 100, cents % 100) as body"
    )
    query = mqs.write_stream_topic(
        clean,
        CLEAN,
        key="id",
        checkpoint=checkpoint,
        trigger_seconds=0.0 if to_the_end else 1.0,
        available_now=to_the_end,
        partitions=2,
        cluster=cluster,
    )
    query.awaitTermination()


def driver(cluster: str, checkpoint: str) -> subprocess.Popen[bytes]:
    """``drive`` for ever in a process of its own, on the same Ray cluster."""
    address = ray.get_runtime_context().gcs_address
    return subprocess.Popen(
        [sys.executable, "-m", "examples.spark_round_trip", cluster, address, checkpoint],
        cwd=Path(__file__).parents[1],
    )


def stored(mq: rmq.Cluster) -> int:
    """Messages of the target."""
    return sum(row["messages"] for row in mq.admin.describe_topic(CLEAN))


def kill_in_the_middle(mq: rmq.Cluster, checkpoint: str) -> int:
    """Start the driver, kill it with signal 9 once it has stored something; how much that was."""
    process = driver(mq.name, checkpoint)
    deadline = time.monotonic() + PATIENCE_S
    try:
        while not stored(mq):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the driver stored nothing: see what it says above")
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    return stored(mq)


def main(cluster: str = "default", session: Any = None) -> tuple[int, list[tuple[str, str]]]:
    """Run it on a cluster that is up; how many rows were stored when the driver was killed, and
    (key, body) of all that are stored in the end. ``session``: a Spark session to go on with.
    """
    mq = rmq.connect(cluster)
    for topic in (RAW, CLEAN):
        mq.admin.create_topic(topic, queues=2)
    send(cluster)
    with tempfile.TemporaryDirectory() as checkpoint:
        killed_at = kill_in_the_middle(mq, checkpoint)
        print(f"killed when {killed_at} of {ROWS} rows were stored")
        spark = session or mqs.session("round-trip", quick_start=True)
        drive(spark, cluster, checkpoint, to_the_end=True)
        if session is None:
            mqs.stop()
    table = mq.admin.to_arrow(CLEAN)
    keys, bodies = table["keys"].to_pylist(), table["body"].to_pylist()
    found = sorted((key, body.decode()) for (key,), body in zip(keys, bodies, strict=True))
    assert found == sorted((str(number), euros(number)) for number in range(ROWS))
    print(f"{len(found)} rows are stored in the end, each once")
    return killed_at, found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _, name, address, checkpoint = sys.argv
        ray.init(address=address, log_to_driver=False)
        own = mqs.session("round-trip", quick_start=True)
        drive(own, name, checkpoint, to_the_end=False)
    else:
        ray.init(include_dashboard=False, log_to_driver=False)
        queue = rmq.start(store_path="rmq-data")
        main()
        queue.stop()
