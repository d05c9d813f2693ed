"""Topics that may hold only so much for their consumers: the sender waits, nothing is dropped.

    waiting = sum over the queues of (next offset - acknowledged offset of the group)
    a frame of n messages:  waiting + n <= slots  ──> stored
                            else                  ──> TopicFull; the producer asks again, 10 to
                                                      200 ms apart, until its time-out

Decides: whether a send fits. Does not decide what an acknowledgement is: that is the group's
position. Messages that come into the topic another way (a transaction that is committed, a delayed
message that is due) are not refused, and count. A frame that has more messages than the topic has
slots is taken when nothing waits. Loop only. Invariant: nothing that fits is refused for more than
``STALE_MS``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rmq_ray.clock import Clock
from rmq_ray.codec.store_files import BLANK_SIZE
from rmq_ray.errors import TopicFull
from rmq_ray.model.topics import TopicBound
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.store.front.message_store import MessageStore

STALE_MS = 5.0
"""Between two counts for refused sends: a count looks at every group of the broker."""
RECOUNTED_MS = 10_000.0
"""A group that comes later is behind at once: what is known is then too little."""
COUNTED_MAX = 1_000_000  # entries of queues whose bytes are added up in one count


@dataclass(slots=True)
class _Waiting:
    """What waited when it was counted, and what was stored since."""

    bound: TopicBound
    counted_ms: float
    count: int
    size: int


class SlotGate:
    """Of one broker."""

    def __init__(self, storage: BrokerStorage, clock: Clock) -> None:
        tables = storage.tables
        self._keeper, self._topics, self._offsets = storage.keeper, tables.topics, tables.offsets
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}

    def admit(self, topic: str, count: int, size: int) -> None:
        """``count`` messages of ``size`` bytes are stored next. Raises ``TopicFull``."""
        config = self._topics.get(topic)
        if config is None or config.bound is None:
            return
        now_ms, known = self._clock.monotonic_ms(), self._waiting.get(topic)
        if known is not None:
            enough_ms = RECOUNTED_MS if _fits(known, count, size) else STALE_MS
            if known.bound is not config.bound or now_ms - known.counted_ms > enough_ms:
                known = None
        if known is None:
            queues = max(config.read_queues, config.write_queues)
            known = self._waiting[topic] = self._counted(topic, config.bound, queues, now_ms)
        if not _fits(known, count, size):
            bound = config.bound
            whose = f"group {bound.group!r}" if bound.group else "its slowest group"
            raise TopicFull(
                f"topic {topic} is full: {known.count} messages of {known.size} bytes wait for "
                f"{whose}, of {bound.slots or 'any number of'} messages and "
                f"{bound.slot_bytes or 'any number of'} bytes that may",
                topic,
            )
        known.count += count
        known.size += size

    def _counted(self, topic: str, bound: TopicBound, queues: int, now_ms: float) -> _Waiting:
        store = self._keeper.store
        if store is None:
            return _Waiting(bound, now_ms, 0, 0)
        groups = [bound.group] if bound.group else self._offsets.groups_of(topic)
        count = size = 0
        for queue_id in range(queues):
            low, high = store.bounds(topic, queue_id)
            told = [self._offsets.query(topic, group, queue_id) for group in groups]
            done = min((low if at is None else at for at in told), default=low)
            first = min(max(low, done), high)
            count += high - first
            if bound.slot_bytes:
                size += _bytes(store, topic, queue_id, first, high)
        return _Waiting(bound, now_ms, count, size)


def _fits(known: _Waiting, count: int, size: int) -> bool:
    bound = known.bound
    if not known.count:
        return True
    return (not bound.slots or known.count + count <= bound.slots) and (
        not bound.slot_bytes or known.size + size <= bound.slot_bytes
    )


def _bytes(store: MessageStore, topic: str, queue_id: int, first: int, last: int) -> int:
    entries = store.entries(topic, queue_id, first, min(last - first, COUNTED_MAX))
    sizes = entries["size"].astype(np.int64)
    return int(sizes[sizes != BLANK_SIZE].sum())
