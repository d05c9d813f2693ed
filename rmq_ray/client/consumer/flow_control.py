"""When a queue may be pulled (protocol-behaviour 10.1, steps 5-7).

Decides what holds a pull back: messages, bytes of bodies, and how far the commit offset lags behind
the last pulled message; RocketMQ looks again after 50 ms, here the queue is also looked at when a
batch is finished, so that a fast listener never waits for the clock. The third limit is for
concurrent consumption only. What is paused is not pulled until it is resumed. Does not stop pulls:
the puller asks before each one, under the queue's lock.

Invariants: a limit is exceeded by at most one pull's answer. Reading what is paused takes no lock;
the set is replaced as a whole.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from rmq_ray.config import MIB, ConsumerConfig
from rmq_ray.errors import ClientError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.process_queue import ProcessQueue
from rmq_ray.protocol.rebalance import divided_threshold

Pausable = str | MessageQueue
"""A topic (all its queues, also those that come later) or one queue."""


class Pressure(Enum):
    """Which limit holds a queue back."""

    MESSAGES = "messages"
    BYTES = "bytes"
    SPAN = "span"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits of one queue: pulling stops above them."""

    messages: int
    body_bytes: int
    span: float


class FlowControl:
    """The thresholds in force, and how often each held a pull back."""

    def __init__(self, config: ConsumerConfig, span_max: float | None = None) -> None:
        self._config = config
        self._span_max = config.max_span if span_max is None else span_max
        self._queues: dict[str, int] = {}
        self._by_topic: dict[str, Thresholds] = {}
        self._default = Thresholds(
            config.threshold_messages, config.threshold_mib * MIB, self._span_max
        )
        self.held_back: Counter[Pressure] = Counter()

    def divide(self, topic: str, queues: int) -> None:
        """This consumer now holds ``queues`` queues of ``topic``: a threshold given for the topic,
        or the group, is divided among them.
        """
        self._queues[topic] = queues
        self._by_topic = {name: self._divided(count) for name, count in self._queues.items()}

    def adjust(self, config: ConsumerConfig) -> None:
        """Other thresholds from now on, for queues held now and later."""
        if self._span_max == self._config.max_span:
            self._span_max = config.max_span
        self._config = config
        self._default = Thresholds(
            config.threshold_messages, config.threshold_mib * MIB, self._span_max
        )
        self._by_topic = {name: self._divided(count) for name, count in self._queues.items()}

    def _divided(self, queues: int) -> Thresholds:
        config, all_queues = self._config, sum(self._queues.values())
        messages = divided_threshold(
            config.threshold_messages_topic, queues, config.threshold_messages
        )
        mib = divided_threshold(config.threshold_mib_topic, queues, config.threshold_mib)
        return Thresholds(
            min(messages, divided_threshold(config.threshold_messages_group, all_queues, messages)),
            min(mib, divided_threshold(config.threshold_mib_group, all_queues, mib)) * MIB,
            self._span_max,
        )

    def thresholds(self, topic: str) -> Thresholds:
        """Those of one queue of ``topic``."""
        return self._by_topic.get(topic, self._default)

    def pressure(self, topic: str, process: ProcessQueue) -> Pressure | None:
        """The limit that is exceeded, None when the queue may be pulled."""
        limits = self._by_topic.get(topic, self._default)
        if process.count > limits.messages:
            return Pressure.MESSAGES
        if process.body_bytes > limits.body_bytes:
            return Pressure.BYTES
        if process.span > limits.span:
            return Pressure.SPAN
        return None


class PauseTable:
    """Paused topics and queues of one consumer. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paused: frozenset[Pausable] = frozenset()

    def covers(self, queue: MessageQueue) -> bool:
        """True when the queue or its topic is paused."""
        paused = self._paused
        return bool(paused) and (queue in paused or queue.topic in paused)

    def add(self, what: Iterable[Pausable]) -> None:
        """Pause these. ``ClientError`` for what is neither a topic nor a queue."""
        wanted = _checked(what)
        with self._lock:
            self._paused |= wanted

    def remove(self, what: Iterable[Pausable]) -> None:
        """Resume these; a topic resumes its queues too, also those that were paused one by one."""
        wanted = _checked(what)
        with self._lock:
            self._paused = frozenset(
                item
                for item in self._paused - wanted
                if not (isinstance(item, MessageQueue) and item.topic in wanted)
            )

    def clear(self) -> None:
        """Resume everything."""
        with self._lock:
            self._paused = frozenset()

    def all(self) -> list[Pausable]:
        """What is paused, in the order of names."""
        return sorted(self._paused, key=str)


def _checked(what: Iterable[Pausable]) -> frozenset[Pausable]:
    found = [what] if isinstance(what, str | MessageQueue) else list(what)
    for item in found:
        if not isinstance(item, str | MessageQueue):
            raise ClientError(
                f"{item!r:.80} cannot be paused; give topics (str) or queues (MessageQueue)",
                repr(item)[:80],
            )
    return frozenset(found)
