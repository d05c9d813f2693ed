"""Replay: what was stored in a span of time, read again into a new table and sent once more to a new topic. No consumer group moves.

    python -m examples.replay

An hour of trades went through a bug. The messages are still in the log: the span is read by time, beside the log's files, put right, written as Parquet,
and sent to a topic of its own, by columns. Readers of the old topic notice nothing. With Spark the same is ``mqs.read_topic(session, topic, start=...,
end=...)`` and ``df.write.parquet(...)``.
"""

from __future__ import annotations

import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import ray

import rmq_ray as rmq

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


def put_right(trades: pa.Table) -> pa.Table:
    """A column a fact, as a table should have."""
    cents = pc.cast(pc.cast(trades["body"], pa.string()), pa.int64())
    ids = pc.list_element(trades["keys"], 0)
    return pa.table({"id": ids, "side": trades["tag"], "price": pc.divide(cents, 100), "stored": trades["store_ts"]})


def main(cluster: str = "default") -> tuple[int, int, int]:
    """Run it on a cluster that is up; returns rows in the table, messages sent again, and the sum of their prices."""
    mq = rmq.connect(cluster)
    for topic in (TOPIC, AGAIN):
        mq.admin.create_topic(topic, queues=4)
    began, ended = send(cluster)
    span = mq.admin.to_arrow(TOPIC, start=began, end=ended, columns=["keys", "tag", "body", "store_ts"])
    fixed = put_right(span)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trades.parquet"
        pq.write_table(fixed, path)
        rows = pq.read_table(path).num_rows
    outgoing = fixed.set_column(2, "price", pc.cast(fixed["price"], pa.string()))
    with rmq.Producer(cluster=cluster) as producer:
        producer.send_arrow(AGAIN, outgoing, body="price", key="id", tag="side")
    replayed = mq.admin.to_arrow(AGAIN, columns=["body"])["body"]
    total = pc.sum(pc.cast(pc.cast(replayed, pa.string()), pa.int64())).as_py()
    print(f"{rows} trades between {began:%H:%M:%S.%f} and {ended:%H:%M:%S.%f} put right, {len(replayed)} sent again, prices add up to {total}")
    return rows, len(replayed), total


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    rmq.start(store_path="rmq-data")
    main()
