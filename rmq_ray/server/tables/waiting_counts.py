"""How many messages wait in the broker's own queues, by the topic that each is for: at a delay
level, until a time, as halves for their producer's word.

    queue   | ended |            waits, some of it has ended            |
            0               counted              cursor   read when asked   end

Each record is read once, by the first question behind it; what ends below the cursor is taken off
by who ends it. Nothing is written down: after a start, on a promoted slave, and when a topic was
deleted, the next questions count anew, so many records each that none of them takes long, one
question after the other; until they are through the number is unknown, and never 0. A question that
comes meanwhile reads only what is short, a second time; else it is told that nobody knows.

Decides only that. Which offsets still wait is told by who owns the queue (``Waiting``). What waits
for a topic that is gone is dropped when it is due: it is not counted.

Invariants: a look is taken, and an end told, in the broker's loop; reading runs beside it and
changes nothing but its own ``_Reading``. An answer is exact for the moment of its look.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from rmq_ray.codec.record import record_parts
from rmq_ray.errors import RmqError
from rmq_ray.model.message import REAL_TOPIC, RETRY_TOPIC, decode_properties
from rmq_ray.remoting.wire.overview import DELAYED, UNCOMMITTED
from rmq_ray.server.base.identity import Identity
from rmq_ray.store.front.message_store import MessageStore

READ_MAX = 50_000
"""Records that one question reads, of all queues: about 0.2 s."""
SHORT = 1_024
"""Records that two questions may read at a time: some ms."""
PAGE_RECORDS, PAGE_BYTES = 1_024, 1 << 20
PASSED_MAX = 16
"""Looks after which a reading that did not end is given up: it never began."""
Waits = Callable[[int, int], Container[int]]
"""Of queue offsets [low, high) those that waited when the look was taken; runs beside the loop."""
Waiting = Callable[[int], Waits]
"""In the loop: notes what waits from this queue offset on."""
Look = Callable[[], Counter[str] | None]
"""Runs in any thread: topic -> messages, None = not known yet. Raises the store's errors."""


@dataclass(slots=True)
class Budget:
    """Records that the looks of one question may read yet."""

    left: int


@dataclass(slots=True)
class _Reading:
    """Offsets from ``at`` to ``end``; what was ``found`` below ``at``."""

    at: int
    end: int
    found: Counter[str] = field(default_factory=Counter)
    done: bool = False


class WaitingCounts:
    """Of one queue. ``is_gone(topic, log offset)``: whether the topic of a record there was deleted
    since. ``by_origin``: that of the topic that a retry came from counts, too.
    """

    def __init__(
        self,
        topic: str,
        queue_id: int,
        is_gone: Callable[[str, int], bool],
        *,
        by_origin: bool = False,
    ) -> None:
        self._topic = topic
        self._queue_id = queue_id
        self._is_gone = is_gone
        self._by_origin = by_origin
        self._changes = 0  # of lives, when counting began
        self.reset()

    def reset(self) -> None:
        """What waits is not known any more: the next look begins anew."""
        self._counts: Counter[str] = Counter()
        self._cursor = self._read_to = 0
        self._reading: _Reading | None = None
        self._left: list[tuple[int, str]] = []  # while it was read
        self._passed = 0

    def left(self, offset: int, topic: str | None, log_offset: int = -1) -> None:
        """The message at ``offset`` for ``topic`` waits no more; None = its record cannot be read.
        ``log_offset``: of its record, where its topic may be gone, and it was not counted then.
        """
        if offset >= self._read_to:
            return
        if topic is None:
            self.reset()
        elif log_offset >= 0 and self._is_gone(topic, log_offset):
            return
        elif offset < self._cursor:
            self._counts[topic] -= 1
        else:
            self._left.append((offset, topic))

    def look(self, store: MessageStore, low: int, waiting: Waiting, budget: Budget) -> Look:
        """``low``: nothing below waits. Raises the store's errors."""
        if store.lives.changes != self._changes:
            self._changes = store.lives.changes
            self.reset()
        self._take()
        first, high = store.bounds(self._topic, self._queue_id)
        begin = max(self._cursor, low, first)
        counted = self._counts.copy()
        if begin >= high:
            return lambda: +counted
        count = min(high - begin, budget.left)
        if not count or (self._reading is not None and count > SHORT):
            return lambda: None
        budget.left -= count
        reading, waits = _Reading(begin, begin + count), waiting(begin)
        if self._reading is None:
            self._reading, self._read_to = reading, reading.end

        def read() -> Counter[str] | None:
            try:
                self._read(store, reading, waits)
            finally:
                reading.done = True
            return counted + reading.found if reading.at >= high else None

        return read

    def _take(self) -> None:
        """What was read is counted, less what has ended meanwhile."""
        reading = self._reading
        if reading is None:
            return
        self._passed += 1
        if not reading.done and self._passed < PASSED_MAX:
            return
        if reading.done:
            self._counts.update(reading.found)
            self._counts.subtract(topic for offset, topic in self._left if offset < reading.at)
            self._cursor = reading.at
        self._read_to = self._cursor
        self._reading = None
        self._left.clear()
        self._passed = 0

    def _read(self, store: MessageStore, reading: _Reading, waits: Waits) -> None:
        while reading.at < reading.end:
            page = store.get_messages(
                self._topic, self._queue_id, reading.at, PAGE_RECORDS, PAGE_BYTES, None
            )
            behind = min(page.next_offset, reading.end)
            if behind <= reading.at:
                return
            waiting = waits(reading.at, behind)
            data, at, found = b"".join(page.parts), 0, []
            for size in page.sizes.tolist():
                record = record_parts(data[at : at + size])
                at += size
                if record.queue_offset < behind and record.queue_offset in waiting:
                    topic = self._topic_of(record.text, record.log_offset)
                    found += [] if topic is None else [topic]
            reading.found.update(found)
            reading.at = behind

    def _topic_of(self, text: bytes, log_offset: int) -> str | None:
        """None where it, or what it came from, is gone."""
        properties = decode_properties(str(text, "utf-8", "replace"))
        topic = properties.get(REAL_TOPIC, "")
        origin = properties.get(RETRY_TOPIC, topic) if self._by_origin else topic
        gone = self._is_gone(topic, log_offset) or self._is_gone(origin, log_offset)
        return None if gone else topic


def together(looks: list[Look]) -> Look:
    """Their sum, None where one is not known."""

    def read() -> Counter[str] | None:
        total: Counter[str] | None = Counter()
        for look in looks:  # all of them: each reads its part
            found = look()
            total = None if total is None or found is None else total + found
        return total

    return read


class WaitingMessages:
    """All that waits at one broker. ``levels``, ``times`` and ``halves`` take a look each."""

    def __init__(
        self,
        identity: Identity,
        levels: Callable[[MessageStore, Budget], Look],
        times: Callable[[MessageStore, Budget], Look],
        halves: Callable[[MessageStore, Budget], Look],
    ) -> None:
        self._identity = identity
        self._levels = levels
        self._times = times
        self._halves = halves

    def look(self, store: MessageStore | None) -> Callable[[], dict[str, Counter[str]]]:
        """In the loop; the returned work runs beside it: ``delayed`` and ``uncommitted``, each by
        topic, and each missing where it is not known, as on a slave.
        """
        looks: dict[str, Look] = {}
        budget = Budget(READ_MAX)
        if store is not None and not self._identity.is_slave:
            # A store that fails or closes meanwhile is unknown, not empty.
            with contextlib.suppress(RmqError):
                looks[UNCOMMITTED] = self._halves(store, budget)
                looks[DELAYED] = together([self._times(store, budget), self._levels(store, budget)])

        def read() -> dict[str, Counter[str]]:
            found: dict[str, Counter[str]] = {}
            for name, look in looks.items():
                with contextlib.suppress(RmqError):
                    counts = look()
                    if counts is not None:
                        counts.pop("", None)  # records that name no topic are dropped when due
                        found[name] = counts
            return found

        return read
