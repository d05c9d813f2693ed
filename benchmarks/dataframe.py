"""A topic into a Spark DataFrame: count, and a sum over every body, against the same rows as Parquet."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.produce import batched_rate
from benchmarks.report import Figure
from benchmarks.scene import Scene


def run(scene: Scene) -> None:
    """1 KB rows."""
    from pyspark.sql import functions as f

    from rmq_ray import spark as mqs

    rows = scene.count(500_000)
    with scene.cluster() as mq:
        batched_rate(mq, "rows", rows, 1_024, 400)
        session = mqs.session(num_executors=1)
        try:
            session.range(0, 4, 1, 4).mapInArrow(lambda batches: batches, "id long").count()  # the first job starts the workers
            df = mqs.read_topic(session, "rows", cluster=mq.name)
            parquet = str(scene.directory / "rows.parquet")
            df.select("body", "queue_id").write.parquet(parquet)
            stored = session.read.parquet(parquet)
            total = f.sum(f.crc32("body"))
            ours = timed(lambda: df.select("body", "queue_id").groupBy("queue_id").agg(total).collect())
            theirs = timed(lambda: stored.groupBy("queue_id").agg(total).collect())
            scene.report.add(Figure("topic to DataFrame, sum of crc32(body) by queue", rows / ours, "rows/s", "Parquet", rows / theirs))
            scene.report.tell("topic to DataFrame, count", rows / timed(df.count), "rows/s")
        finally:
            mqs.stop()


def timed(work: Any) -> float:
    """Seconds of the better of two runs."""
    best = float("inf")
    for _ in range(2):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return best
