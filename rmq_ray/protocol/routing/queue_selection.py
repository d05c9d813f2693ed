"""Which queue a message goes to (protocol-behaviour 7.1 to 7.3).

Decides the position in a list of queues. Does not make the list (``publish_info``). Pure: the turn
is a counter that the caller owns, chance and hash codes are passed in.

Invariants: a retry leaves the broker that failed, if the list has another; the same hash code on
the same list is the same queue.

``LatencyFaults`` says which brokers a producer keeps away from, judged by how long their last sends
took and how they ended:

    a send took      < 550 ms   >= 550 ms   >= 1 s   >= 2 s    >= 3 s    >= 15 s
    kept away for    0          30 s        60 s     120 s     180 s     600 s

A broker whose connection failed, or that refused as a whole, counts as one that took 30 s: it is
isolated for 600 s, or until a probe reaches it. A choice takes the next queue whose broker is not
kept away; when all are, one of the better half.

It measures and probes nothing (``client.outgoing.queue_choice`` does). ``now_ms`` is monotonic and
an argument. Items are replaced as a whole, so that threads may share one table.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from rmq_ray.errors import ClientError
from rmq_ray.model.hashing import java_hash
from rmq_ray.model.ids import MessageQueue
from rmq_ray.value import Value

NextIndex = Callable[[], int]
"""Gives the next turn: rises by one each call from a random start
(``itertools.count(start).__next__``).
"""


LATENCY_MAX_MS = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
NOT_AVAILABLE_MS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
ISOLATION_LATENCY_MS = 30_000.0
"""What an isolated broker is said to have taken."""


def position(index: int, size: int) -> int:
    """``abs(index) mod size`` of a 32-bit counter as Java has it: the one value whose abs is
    negative gives 0.

    >>> position(7, 4), position(-7, 4), position(-(1 << 31), 4), position(1 << 32, 4)
    (3, 3, 0, 0)
    """
    if 0 <= index < 1 << 31:
        return index % size
    wrapped = (index + (1 << 31)) % (1 << 32) - (1 << 31)
    return 0 if wrapped == -(1 << 31) else abs(wrapped) % size


def select_queue(
    queues: Sequence[MessageQueue], next_index: NextIndex, last_broker: str | None = None
) -> MessageQueue:
    """Round robin. After a failure on ``last_broker``: the next queue of any other broker, and
    plainly the next when there is no other.
    """
    size = len(queues)
    if last_broker is not None:
        for _ in range(size):
            queue = queues[position(next_index(), size)]
            if queue.broker_name != last_broker:
                return queue
    return queues[position(next_index(), size)]


def select_by_hash(queues: Sequence[MessageQueue], hash_code: int) -> MessageQueue:
    """RocketMQ's SelectMessageQueueByHash: ``abs(hash % n)`` with the remainder's sign as in Java,
    ``hash_code`` 32-bit signed.

    >>> queues = [MessageQueue("T", "b", n) for n in range(4)]
    >>> select_by_hash(queues, -7).queue_id
    3
    """
    return queues[abs(hash_code) % len(queues)]


def select_by_group(queues: Sequence[MessageQueue], message_group: str) -> MessageQueue:
    """The queue of a message group: by the hash of its name, so that every producer of the topic
    agrees.
    """
    return select_by_hash(queues, java_hash(message_group))


def select_by_random(queues: Sequence[MessageQueue], chance: int) -> MessageQueue:
    """RocketMQ's SelectMessageQueueByRandom; ``chance`` is any number."""
    return queues[chance % len(queues)]


def checked_choice(chosen: object, topic: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """What a user's selector returned, if it is one of the queues that it was given; else
    ``ClientError`` (a selector is never asked twice).
    """
    if isinstance(chosen, MessageQueue) and chosen in queues:
        return chosen
    raise ClientError(
        f"the selector returned {chosen!r} for topic {topic!r}; it must return one of the "
        f"{len(queues)} queues that it was given",
        topic,
    )


def not_available_ms(latency_ms: float) -> int:
    """How long a broker is kept away from after a send of that latency: the largest level that was
    reached.

    >>> not_available_ms(549), not_available_ms(550), not_available_ms(30_000)
    (0, 30000, 600000)
    """
    for level, duration in zip(reversed(LATENCY_MAX_MS), reversed(NOT_AVAILABLE_MS), strict=True):
        if latency_ms >= level:
            return duration
    return 0


class FaultItem(Value, frozen=True):
    """What is known of one broker name. ``available_from_ms``: monotonic. ``isolated``: worth a
    probe.
    """

    broker_name: str
    latency_ms: float
    available_from_ms: float
    isolated: bool = False

    def available(self, now_ms: float) -> bool:
        """True when it may be chosen."""
        return now_ms >= self.available_from_ms


class LatencyFaults:
    """The table of one producer; see the module."""

    def __init__(self) -> None:
        self._items: dict[str, FaultItem] = {}
        self._worst = itertools.count().__next__

    def update(self, broker_name: str, latency_ms: float, isolation: bool, now_ms: float) -> None:
        """A send ended after ``latency_ms``; ``isolation``: it failed in a way that is the
        broker's.
        """
        latency = ISOLATION_LATENCY_MS if isolation else latency_ms
        self._items[broker_name] = FaultItem(
            broker_name, latency, now_ms + not_available_ms(latency), isolation
        )

    def reached(self, broker_name: str, latency_ms: float, now_ms: float) -> None:
        """A probe of an isolated broker was answered: its isolation ends, unless the answer was
        slow.
        """
        found = self._items.get(broker_name)
        if found is not None and found.isolated:
            self.update(broker_name, latency_ms, False, now_ms)

    def available(self, broker_name: str, now_ms: float) -> bool:
        """True for brokers that nothing is known of."""
        found = self._items.get(broker_name)
        return found is None or found.available(now_ms)

    def isolated(self, now_ms: float) -> list[str]:
        """Names that a probe should ask."""
        return [
            item.broker_name
            for item in list(self._items.values())
            if item.isolated and not item.available(now_ms)
        ]

    def remove(self, broker_name: str) -> None:
        """Forget it."""
        self._items.pop(broker_name, None)

    def items(self) -> list[FaultItem]:
        """A copy of what is known."""
        return list(self._items.values())

    def select(
        self,
        queues: Sequence[MessageQueue],
        next_index: NextIndex,
        now_ms: float,
        last_broker: str | None = None,
    ) -> MessageQueue:
        """The next queue whose broker is available; else one of the least bad; else plain rotation,
        which leaves ``last_broker``.
        """
        size = len(queues)
        for _ in range(size):
            queue = queues[position(next_index(), size)]
            if self.available(queue.broker_name, now_ms):
                return queue
        name = self.pick_one_at_least(now_ms)
        if name is not None:
            writable = [queue for queue in queues if queue.broker_name == name]
            if writable:
                return writable[position(next_index(), len(writable))]
            self.remove(name)
        return select_queue(queues, next_index, last_broker)

    def pick_one_at_least(self, now_ms: float) -> str | None:
        """A broker of the better half, by a turn of its own: available first, then lower latency,
        then free earlier; None when nothing is known.
        """
        items = sorted(
            self._items.values(),
            key=lambda item: (not item.available(now_ms), item.latency_ms, item.available_from_ms),
        )
        if not items:
            return None
        half = len(items) // 2
        return items[position(self._worst(), half)].broker_name if half else items[0].broker_name
