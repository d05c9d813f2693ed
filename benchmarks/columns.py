"""``send_arrow``: columns of body, key and tag, one producer actor; against Apache Kafka's
librdkafka producer (value and key).
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import ray

import rmq_ray as rmq
from benchmarks.scene import PATIENCE_S, ROUNDS, Scene, producer_actor
from benchmarks.settle import settle

ROWS = 100_000


def run(scene: Scene, mq: rmq.Cluster) -> None:
    """100 B and 1 KB; medians of the rounds."""
    for label, size, peer, target in (
        ("100 B", 100, "kafka_100", 1.0),
        ("1 KB", 1_024, "kafka_1k", 1.0),
    ):
        topic = f"columns-{size}"
        count = scene.count(2_000_000 if size == 100 else 500_000)
        with producer_actor(mq, topic) as producer:
            rates = ray.get(
                producer.run.remote(send_columns, topic, count, size), timeout=PATIENCE_S
            )
        kafka = scene.peer(peer, "per_second")
        rate = statistics.median(rates)
        scene.report.rate(f"send_arrow, {label}, key and tag", rate, "Kafka", kafka, target)


def send_columns(producer: rmq.Producer, topic: str, messages: int, size: int) -> list[float]:
    """Runs in the producer actor: messages a second of each round."""
    rows = min(ROWS, messages)
    table = table_of(rows, size)
    rates = []
    times = max(1, messages // rows)
    for _ in range(ROUNDS + 1):  # the first one warms up
        settle()
        begin = time.perf_counter()
        for _ in range(times):
            producer.send_arrow(topic, table, body="body", key="id", tag="origin")
        rates.append(times * rows / (time.perf_counter() - begin))
    return rates[1:]


def table_of(rows: int, size: int) -> Any:
    """Columns of body, id and origin; the bodies are random bytes."""
    import pyarrow as pa

    bodies: Any = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(size), rows, [None, pa.py_buffer(os.urandom(rows * size))]
    )
    return pa.table(
        {
            "body": bodies.cast(pa.binary()),
            "id": [f"o-{n}" for n in range(rows)],
            "origin": ["eu" if n % 2 else "us" for n in range(rows)],
        }
    )
