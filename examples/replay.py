"""Replay: what was stored in a span of time, read again into a new table and sent once more to a
new topic. No consumer group moves.

    python -m examples.replay

Yesterday an hour of trades went through a bug (here: a moment ago, for some of them). The messages
are still in the log: Spark reads the span by time, beside the log's files, puts it right, writes it
as a Parquet table, and sends it to a topic of its own from its executors. Readers of the old topic
notice nothing. ``once`` names the replay: a second run within ten minutes stores nothing twice.
Without Spark: ``mq.admin.to_arrow(topic, start=..., end=...)`` and ``Producer.send_arrow``.
"""

from __future__ import annotations

import tempfile
import time
from datetime import UTC, datetime
from typing import Any

import ray

import rmq_ray as rmq
from rmq_ray import spark as mqs

TOPIC, AGAIN = "trades", "trades-replayed"
TRADES, BAD = 3_000, range(1_000, 2_000)


def trade(number: int) -> rmq.Message:
    """The price was sent in cents during the bad span."""
    price = number * 100 if number in BAD else number
    return rmq.Message(TOPIC, b"%d" % price, tag=("buy", "sell")[number % 2], keys=[f"t-{number}"])


def send(cluster: str) -> tuple[datetime, datetime]:
    """All trades; returns when the bad span began and ended, by the brokers' clocks."""
    moments = []
    with rmq.Producer(cluster=cluster) as producer:
        for first in range(0, TRADES, 500):
            if first in (BAD.start, BAD.stop):
                time.sleep(0.05)
                moments.append(datetime.now(UTC))
                time.sleep(0.05)
            producer.send_batch([trade(number) for number in range(first, first + 500)])
    return moments[0], moments[1]


def put_right(trades: Any) -> Any:
    """A column a fact, as a table should have."""
    return trades.selectExpr(
        "keys[0] as id",
        "tag as side",
        "cast(string(body) as bigint) div 100 as price",
        "store_ts as stored",
    )


def main(cluster: str = "default", session: Any = None) -> tuple[int, int, int]:
    """Run it on a cluster that is up; returns rows in the table, messages sent again, and the sum
    of their prices. ``session``: a Spark session to use.
    """
    mq = rmq.connect(cluster)
    for topic in (TOPIC, AGAIN):
        mq.admin.create_topic(topic, queues=4)
    began, ended = send(cluster)
    spark = session or mqs.session("replay", quick_start=True)
    with tempfile.TemporaryDirectory() as directory:
        span = mqs.read_topic(
            spark,
            TOPIC,
            start=began,
            end=ended,
            columns=["keys", "tag", "body", "store_ts"],
            cluster=cluster,
        )
        put_right(span).write.parquet(f"{directory}/trades")
        table = spark.read.parquet(f"{directory}/trades")
        rows = table.count()
        outgoing = table.selectExpr("id", "side", "string(price) as body")
        mqs.write_topic(
            outgoing, AGAIN, key="id", tag="side", once="trades/replay-1", cluster=cluster
        )
    replayed = mqs.read_topic(spark, AGAIN, columns=["body"], cluster=cluster).selectExpr(
        "count(*)", "sum(int(string(body)))"
    )
    again, total = replayed.first()
    if session is None:
        mqs.stop()
    print(
        f"{rows} trades between {began:%H:%M:%S.%f} and {ended:%H:%M:%S.%f} put right, "
        f"{again} sent again, prices add up to {total}"
    )
    return rows, again, total


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    rmq.start(store_path="rmq-data")
    main()
