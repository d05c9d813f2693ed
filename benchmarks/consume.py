"""Consuming a backlog with a push consumer: listener batches of 32, bodies read; against the Java push consumer."""

from __future__ import annotations

import threading
import time
from typing import Any

import rmq_ray as rmq
from benchmarks.produce import batched_rate
from benchmarks.report import Figure
from benchmarks.scene import Scene

PATIENCE_S = 120.0


def run(scene: Scene) -> None:
    """100 B and 1 KB."""
    with scene.cluster() as mq:
        for label, size, messages, batch, peer in (
            ("100 B", 100, scene.count(1_000_000), 1_000, "consume"),
            ("1 KB", 1_024, scene.count(400_000), 400, "consume_1k"),
        ):
            topic = f"batch-{size}"
            batched_rate(mq, topic, messages, size, batch)
            rate = consume_rate(mq, topic, messages)
            java = scene.peer(peer, "per_second")
            scene.report.add(Figure(f"push consume {label}, listener batch 32", rate, "msg/s", "Java push", java, None if java is None else 1.2))


def consume_rate(mq: rmq.Cluster, topic: str, messages: int) -> float:
    """Messages a second from the first delivery to the last; every body is read."""
    counter = Counter(messages)
    with rmq.PushConsumer(f"{topic}-group", listener=counter, subscriptions={topic: "*"}, start_from="first", batch_size=32, cluster=mq.name):
        if not counter.complete.wait(PATIENCE_S):
            raise RuntimeError(f"only {counter.count} of {messages} messages came")
    return counter.count / (counter.ended - counter.began)


class Counter:
    """Listener."""

    def __init__(self, wanted: int) -> None:
        self.count = self.bytes = 0
        self.began = self.ended = 0.0
        self._wanted = wanted
        self._lock = threading.Lock()
        self.complete = threading.Event()

    def __call__(self, messages: list[Any], ctx: Any) -> None:
        """Read every body, count."""
        size = 0
        for message in messages:
            size += len(message.body)
        with self._lock:
            if not self.began:
                self.began = time.perf_counter()
            self.count += len(messages)
            self.bytes += size
            if self.count >= self._wanted:
                self.ended = time.perf_counter()
                self.complete.set()
