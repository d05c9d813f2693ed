"""A listener of columns: one pyarrow.RecordBatch a call, no Python object per message.

    python -m examples.arrow_listener

200,000 orders; the listener counts them and their bytes by region, with Arrow's own functions. A
batch that it refuses once comes again.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pyarrow.compute as pc
import ray

import rmq_ray as rmq

TOPIC = "orders-in-columns"
ORDERS, FRAME = 200_000, 1_000
REGIONS = ("eu", "us", "asia")


class Totals:
    """The listener."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.orders: Counter[str] = Counter()
        self.bytes = self.batches = self.refused = 0
        self.complete = threading.Event()

    def __call__(self, batch: Any, ctx: rmq.ConsumeContext) -> rmq.ConsumeResult:
        """``batch``: the columns tag and body of one queue's messages."""
        with self.lock:
            if self.batches == 3 and not self.refused:
                self.refused = batch.num_rows
                ctx.delay_level_when_next_consume = 1  # in a second
                return rmq.RECONSUME_LATER  # every row comes again
            self.batches += 1
            for pair in pc.value_counts(batch["tag"]).to_pylist():
                self.orders[pair["values"]] += pair["counts"]
            self.bytes += pc.sum(pc.binary_length(batch["body"])).as_py()
            if self.orders.total() >= ORDERS:
                self.complete.set()
            return rmq.SUCCESS


def main(cluster: str = "default") -> Counter[str]:
    """Run it on a cluster that is up; returns the orders by region."""
    rmq.connect(cluster).admin.create_topic(TOPIC, queues=4)
    with rmq.Producer(cluster=cluster) as producer:
        for start in range(0, ORDERS, FRAME):
            producer.send_batch(
                [
                    rmq.Message(TOPIC, b"order %d" % i, tag=REGIONS[i % 3])
                    for i in range(start, start + FRAME)
                ]
            )
    totals = Totals()
    began = time.perf_counter()
    with rmq.PushConsumer(
        "lake",
        listener=totals,
        subscriptions={TOPIC: "*"},
        start_from="first",
        batch="arrow",
        columns=["tag", "body"],
        batch_size=2_000,
        cluster=cluster,
    ) as consumer:
        totals.complete.wait(60)
        took = time.perf_counter() - began
        sent_back = consumer.stats()["sent_back"]
    print(
        f"{totals.orders.total()} orders, {totals.bytes} bytes in {totals.batches} batches, "
        f"{took:.1f} s: {dict(totals.orders)}"
    )
    print(f"one batch of {totals.refused} rows was refused and came again ({sent_back} sent back)")
    return totals.orders


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    rmq.start(store_path="rmq-data")
    main()
