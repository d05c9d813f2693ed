"""Consuming a backlog: a push consumer with its default settings first, then with those that a row
names; a pull consumer's polls; against the Java push consumer.

Every body is read: message by message, or as a column. A rate is the median of rounds, each by a
new group over the same backlog, behind a round that warms up.
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
from benchmarks.scene import PATIENCE_S, Scene, median_of_rounds
from rmq_ray.actors.cluster_clients import ClusterClients

POLL_MESSAGES = 4_096
SMALL_ARROW_PER_S = 500_000.0
DEFAULT = "default settings"
PUSHED: tuple[tuple[dict[str, Any], str, dict[int, float]], ...] = (
    ({}, "", {100: 1.0, 1_024: 1.0}),
    ({"batch_size": 32}, "_32", {100: 2.0, 1_024: 2.0}),
    ({"batch": "arrow"}, "_32", {100: 6.0}),
    ({"batch": "arrow", "batch_size": 32}, "_32", {}),
)
"""Settings, the Java peer beside them, and the ratio to reach by bytes of a body."""
JAVA = {"": "Java, default settings", "_32": "Java, consumeMessageBatchMaxSize=32"}


def run(scene: Scene) -> None:
    """100 B and 1 KB."""
    queue_rate = floors.queue_get_per_s()
    tell = scene.report.rate
    with scene.cluster() as mq:
        for label, size, messages, batch, peer in (
            ("100 B", 100, scene.count(1_500_000), 1_000, "consume"),
            ("1 KB", 1_024, scene.count(500_000), 400, "consume_1k"),
        ):
            topic = f"batch-{size}"
            batched_rate(mq, topic, messages, size, batch)
            rates: dict[str, float] = {}
            for settings, other, goals in PUSHED:
                what = f"push consume {label}, {said(settings)}"
                rates[said(settings)] = push_rate(mq, topic, messages, settings)
                java = scene.peer(peer + other, "per_second")
                tell(what, rates[said(settings)], JAVA[other], java, goals.get(size))
            what = f"push consume {label}, {DEFAULT}"
            tell(what, rates[DEFAULT], "ray.util.queue.Queue.get", queue_rate)
            pushed = ("push consume, batch_size=32", rates["batch_size=32"])
            if size == 100:
                small = said({"batch": "arrow", "batch_size": 32})
                what = f"push consume {label}, {small}"
                tell(what, rates[small], "limit", SMALL_ARROW_PER_S, 1.0)
                settings = {"orderly": True, "batch_size": 32}
                rate = push_rate(mq, topic, messages, settings)
                tell(f"push consume {label}, {said(settings)}", rate, *pushed, 0.7)
            rate = median_of_rounds(lambda n, t=topic, m=messages: simple_rate(mq, t, m, n))
            tell(f"simple consume {label}, 2 workers", rate, *pushed, 0.5)
            java = scene.peer(peer, "per_second")
            for way, read in (("as messages", bodies_of_messages), ("to_arrow", bodies_of_columns)):
                rate = median_of_rounds(
                    lambda n, t=topic, m=messages, r=read: pull_rate(mq, t, m, r, n)
                )
                tell(f"poll({POLL_MESSAGES}) {label}, {way}", rate, JAVA[""], java)
            for wait in (True, False):
                rate = median_of_rounds(
                    lambda n, t=topic, m=messages, w=wait: pull_rate(
                        mq, t, m, bodies_of_columns, n, {"wait": w}
                    )
                )
                name = f"poll({POLL_MESSAGES}) {label}, commit(batch, wait={wait}) each"
                scene.report.tell(name, rate, "msg/s")


def said(settings: dict[str, Any]) -> str:
    """As they are written in the call."""
    written = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return written.replace("'", '"') or DEFAULT


def push_rate(mq: rmq.Cluster, topic: str, messages: int, settings: dict[str, Any]) -> float:
    """Messages a second from the first delivery to the last."""
    return median_of_rounds(lambda number: pushed_rate(mq, topic, messages, settings, number))


def pushed_rate(
    mq: ClusterClients, topic: str, messages: int, settings: dict[str, Any], number: int
) -> float:
    """The same of one round, by a new group."""
    counter = Counter(messages, arrow_bodies if "batch" in settings else bodies_of_messages)
    with mq.push_consumer(
        f"{topic}-{'-'.join(map(str, settings.values()))}-{number}",
        listener=counter,
        subscriptions={topic: "*"},
        start_from="first",
        **settings,
    ):
        if not counter.complete.wait(PATIENCE_S):
            raise RuntimeError(f"only {counter.count} of {messages} messages came")
    return counter.count / (counter.ended - counter.began)


def pull_rate(
    mq: ClusterClients,
    topic: str,
    messages: int,
    read: Callable[[Any], int],
    number: int,
    commit: dict[str, bool] | None = None,
) -> float:
    """Messages a second of one polling thread, from its first batch to its last. ``commit``: of
    each batch, so; None = as polls do it by themselves.
    """
    how = "" if commit is None else f"-{commit['wait']}"
    with mq.pull_consumer(
        f"{topic}-{read.__name__}-{number}{how}",
        start_from="first",
        auto_commit=commit is None,
    ) as pc:
        pc.assign(pc.fetch_message_queues(topic))
        count = len(pc.poll(POLL_MESSAGES, timeout=10.0))
        began, first, deadline = time.perf_counter(), count, time.perf_counter() + PATIENCE_S
        while count < messages:
            batch = pc.poll(POLL_MESSAGES, timeout=10.0)
            read(batch)
            if commit is not None:
                pc.commit(batch, **commit)
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


def arrow_bodies(batch: Any) -> int:
    """The same of an Arrow batch with all columns."""
    return int(batch.column("body").nbytes)


class Counter:
    """Listener. ``read``: bytes of what it gets."""

    def __init__(self, wanted: int, read: Callable[[Any], int]) -> None:
        self.count = self.bytes = 0
        self.began = self.ended = 0.0
        self._wanted = wanted
        self._read = read
        self._lock = threading.Lock()
        self.complete = threading.Event()

    def __call__(self, batch: Any, ctx: Any) -> None:
        """Read every body, count."""
        with self._lock:
            if not self.began:
                self.began = time.perf_counter()
        size = self._read(batch)
        with self._lock:
            self.count += batch.num_rows if hasattr(batch, "num_rows") else len(batch)
            self.bytes += size
            if self.count >= self._wanted:
                self.ended = time.perf_counter()
                self.complete.set()
