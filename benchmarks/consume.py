"""Consuming a backlog: a push consumer's batches of 32, single messages and Arrow batches, a pull
consumer's polls; against the Java push consumer.

Every body is read: message by message, or as a column.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import rmq_ray as rmq
from benchmarks import floors
from benchmarks.popping import simple_rate
from benchmarks.produce import batched_rate
from benchmarks.report import Figure
from benchmarks.scene import Scene

PATIENCE_S = 120.0
POLL_MESSAGES = 4_096


def run(scene: Scene) -> None:
    """100 B and 1 KB in batches of 32 and as Arrow batches; 100 B one by one, and polled."""
    queue = Teller(scene, "ray.util.queue.Queue.get", floors.queue_get_per_s())
    with scene.cluster() as mq:
        for label, size, messages, batch, peer in (
            ("100 B", 100, scene.count(1_000_000), 1_000, "consume"),
            ("1 KB", 1_024, scene.count(400_000), 400, "consume_1k"),
        ):
            topic = f"batch-{size}"
            batched_rate(mq, topic, messages, size, batch)
            java = scene.peer(peer, "per_second")
            tell = Teller(scene, "Java push", java)
            pushed = consume_rate(mq, topic, messages)
            tell(f"push consume {label}, listener batch 32", pushed, 1.5)
            queue(f"push consume {label}, listener batch 32", pushed, None)
            Teller(scene, "push consume", pushed)(
                f"simple consume {label}, 2 workers", simple_rate(mq, topic, messages), 0.5
            )
            tell(
                f"push consume {label}, Arrow batches",
                arrow_rate(mq, topic, messages),
                6.0 if size == 100 else None,
            )
            tell(
                f"poll {label}, messages", pull_rate(mq, topic, messages, bodies_of_messages), None
            )
            tell(f"poll {label}, to_arrow", pull_rate(mq, topic, messages, bodies_of_columns), None)
            if size == 100:
                Teller(scene, "push consume", pushed)(
                    "push consume 100 B in order, listener batch 32",
                    ordered_rate(mq, topic, messages),
                    0.7,
                )
                tell = Teller(scene, "Java push, batch 1", scene.peer("consume_one", "per_second"))
                tell(
                    "push consume 100 B, listener batch 1",
                    consume_rate(mq, topic, messages, batch_size=1),
                    0.5,
                )


class Teller:
    """Adds figures against one peer; without the peer they are told only."""

    def __init__(self, scene: Scene, name: str, value: float | None) -> None:
        self._report = scene.report
        self._name = name
        self._value = value

    def __call__(self, what: str, rate: float, target: float | None) -> None:
        """``target``: the ratio to reach."""
        self._report.add(
            Figure(
                what,
                rate,
                "msg/s",
                self._name,
                self._value,
                None if self._value is None else target,
            )
        )


def consume_rate(mq: rmq.Cluster, topic: str, messages: int, batch_size: int = 32) -> float:
    """Messages a second from the first delivery to the last, as a list of messages."""
    return _rate(
        mq,
        topic,
        Counter(messages, lambda batch: (len(batch), bodies_of_messages(batch))),
        batch_size=batch_size,
    )


def ordered_rate(mq: rmq.Cluster, topic: str, messages: int) -> float:
    """The same in the order of each queue, one batch of a queue at a time."""
    return _rate(
        mq,
        topic,
        Counter(messages, lambda batch: (len(batch), bodies_of_messages(batch))),
        batch_size=32,
        orderly=True,
    )


def arrow_rate(mq: rmq.Cluster, topic: str, messages: int) -> float:
    """The same as Arrow batches with all columns."""
    return _rate(
        mq,
        topic,
        Counter(messages, lambda batch: (batch.num_rows, batch.column("body").nbytes)),
        batch="arrow",
    )


def pull_rate(mq: rmq.Cluster, topic: str, messages: int, read: Callable[[Any], int]) -> float:
    """Messages a second of one polling thread, from its first batch to its last."""
    with rmq.PullConsumer(
        f"{topic}-reader-{read.__name__}", cluster=mq.name, start_from="first"
    ) as pc:
        pc.assign(pc.fetch_message_queues(topic))
        count = len(pc.poll(POLL_MESSAGES, timeout=10.0))
        began, first, deadline = time.perf_counter(), count, time.perf_counter() + PATIENCE_S
        while count < messages:
            batch = pc.poll(POLL_MESSAGES, timeout=10.0)
            read(batch)
            count += len(batch)
            if time.perf_counter() > deadline:
                raise RuntimeError(f"only {count} of {messages} messages came")
        return (count - first) / (time.perf_counter() - began)


def bodies_of_messages(batch: Any) -> int:
    """Bytes of all bodies, one by one."""
    return sum(len(message.body) for message in batch)


def bodies_of_columns(batch: Any) -> int:
    """The same by columns."""
    return int(batch.to_arrow().column("body").nbytes)


def _rate(mq: rmq.Cluster, topic: str, counter: Counter, **options: Any) -> float:
    batch = options.get("batch", options.get("batch_size"))
    group = f"{topic}-{batch}{'-ordered' * options.get('orderly', False)}"
    with rmq.PushConsumer(
        group,
        listener=counter,
        subscriptions={topic: "*"},
        start_from="first",
        cluster=mq.name,
        **options,
    ):
        if not counter.complete.wait(PATIENCE_S):
            raise RuntimeError(f"only {counter.count} messages came")
    return counter.count / (counter.ended - counter.began)


class Counter:
    """Listener. ``read``: (messages, bytes) of what it gets."""

    def __init__(self, wanted: int, read: Callable[[Any], tuple[int, int]]) -> None:
        self.count = self.bytes = 0
        self.began = self.ended = 0.0
        self._wanted = wanted
        self._read = read
        self._lock = threading.Lock()
        self.complete = threading.Event()

    def __call__(self, batch: Any, ctx: Any) -> None:
        """Read every body, count."""
        count, size = self._read(batch)
        with self._lock:
            if not self.began:
                self.began = time.perf_counter()
            self.count += count
            self.bytes += size
            if self.count >= self._wanted:
                self.ended = time.perf_counter()
                self.complete.set()
