"""What the parts of one consumer share: who it is, its settings, and the tables that several of
them read.

Decides nothing but what a subscription's version is. A value object: the parts get it instead of
one another, so that none of them points back at the consumer.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from rmq_ray.client.consumer.assigned_queue import AssignedQueue, QueueCounters
from rmq_ray.client.consumer.flow_control import FlowControl
from rmq_ray.client.consumer.offset_store import OffsetStore
from rmq_ray.client.consumer.pausing import PauseTable
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.delayed import DelayedCalls
from rmq_ray.clock import Clock
from rmq_ray.config import ConsumerConfig
from rmq_ray.model.filters import Expression
from rmq_ray.model.groups import Subscription
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import RETRY_PREFIX
from rmq_ray.protocol.filters.subscriptions import parse_subscription

DEFAULT_RETRIES = 16


class SubscriptionTable:
    """The topics of one consumer and their filters, the group's retry topic among them. Any
    thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: dict[str, Subscription] = {}

    def put(self, topic: str, expression: Expression, now_ms: int) -> None:
        """Subscribe, or change the filter. ``SubscriptionInvalid`` when the expression means
        nothing.
        """
        with self._lock:
            self._table[topic] = parse_subscription(topic, expression, now_ms)

    def remove(self, topic: str) -> bool:
        """Unsubscribe; False when the topic was not subscribed."""
        with self._lock:
            return self._table.pop(topic, None) is not None

    def get(self, topic: str) -> Subscription | None:
        """The topic's filter."""
        return self._table.get(topic)

    def touch(self, topic: str, now_ms: int) -> None:
        """The queues of ``topic`` changed: its subscription counts as newer (protocol-behaviour
        13).
        """
        with self._lock:
            known = self._table.get(topic)
            if known is not None:
                self._table[topic] = replace(known, version=max(now_ms, known.version + 1))

    def all(self) -> tuple[Subscription, ...]:
        """Every subscription, by topic."""
        with self._lock:
            return tuple(self._table[topic] for topic in sorted(self._table))

    def topics(self) -> frozenset[str]:
        """Every subscribed topic."""
        return frozenset(self._table.copy())


class AssignedQueues:
    """The queues that a consumer holds. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: dict[MessageQueue, AssignedQueue] = {}
        self._left: Counter[str] = Counter()

    def put(self, work: AssignedQueue) -> bool:
        """Take a queue in; False when it is held already."""
        with self._lock:
            return self._table.setdefault(work.queue, work) is work

    def remove(self, work: AssignedQueue) -> None:
        """Let go of it, unless the queue was taken anew meanwhile. Its counters stay in
        ``total``.
        """
        with self._lock:
            if self._table.get(work.queue) is work:
                del self._table[work.queue]
                self._left.update(asdict(work.counters))

    def get(self, queue: MessageQueue) -> AssignedQueue | None:
        """The work on a held queue."""
        return self._table.get(queue)

    def snapshot(self) -> Mapping[MessageQueue, AssignedQueue]:
        """A copy of the table."""
        with self._lock:
            return dict(self._table)

    def total(self) -> dict[str, int]:
        """Counters of all queues, those that were given up included; results that came after that
        are not counted.
        """
        with self._lock:
            found = Counter({field.name: 0 for field in fields(QueueCounters)}) + self._left
            for work in self._table.values():
                found.update(asdict(work.counters))
            return {field.name: found[field.name] for field in fields(QueueCounters)}

    def of_broker(self, broker_name: str) -> list[AssignedQueue]:
        """The held queues of one broker name."""
        return [work for queue, work in self.snapshot().items() if queue.broker_name == broker_name]


@dataclass(frozen=True, slots=True)
class ConsumerParts:
    """See the module."""

    group: str
    config: ConsumerConfig
    clock: Clock
    client: ClientInstance
    offsets: OffsetStore
    delayed: DelayedCalls
    flow: FlowControl
    subscriptions: SubscriptionTable
    assigned: AssignedQueues
    pauses: PauseTable = field(default_factory=PauseTable)

    @property
    def retries_max(self) -> int:
        """How often a failed message is tried again before it goes to the dead-letter topic."""
        configured = self.config.max_reconsume_times
        return DEFAULT_RETRIES if configured == -1 else configured


def is_retry_topic(topic: str) -> bool:
    """Warnings about retry topics are not worth a line: they come and go."""
    return topic.startswith(RETRY_PREFIX)
