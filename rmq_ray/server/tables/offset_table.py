"""Consumed offsets of all groups, and whose word counts when an offset is to go back
(protocol-behaviour 18; promises: offsets).

Decides: whether a commit is taken. Does not decide when the table is saved.

Rules: a higher commit is taken from anyone that the queue's lock does not exclude. A lower one only
from the client of the group's latest pull of that queue, or from an administrator; it is counted.
A queue that is locked for ordered consumption takes commits from the lock's holder (or an
administrator) only. A commit beyond what the reader can have seen (it comes from before a cut of
the log) is refused: later messages would count as consumed. Invariant: offsets are >= 0.

Who did not mean to go back is asked for first (``is_behind``): after an election two members may
hold a queue for a moment, and the one that is behind must not take back what the other consumed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from enum import Enum
from heapq import nlargest

from rmq_ray.clock import Clock
from rmq_ray.model.pulling import GetMessageStatus
from rmq_ray.protocol.rebalance import LONG_AGO_MS
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.reading.log_reader import GetResult, last_log_offset

ENTRIES_MAX = 200_000  # of (topic, group), in each table here
WENT_THROUGH = (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE)
LOGGED_EVERY = 100  # a client that goes back in a loop must not fill the log

log = logging.getLogger("rmq_ray.server.offsets")

Tables = dict[tuple[str, str], dict[int, int]]
"""(topic, group) -> queue id -> next offset to consume."""


class Commit(Enum):
    """What became of a commit."""

    STORED = "stored"
    LOWERED = "lowered"
    REFUSED = "refused"


class OffsetTable:
    """Offsets of one broker, memory first; ``dirty`` says that the file is behind. ``begun``:
    called when a group has its first position in a queue.
    """

    def __init__(self, clock: Clock, begun: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._begun = begun
        self._offsets: Tables = {}
        self._committed_ms: dict[tuple[str, str], dict[int, float]] = {}
        self._pullers: dict[tuple[str, str], dict[int, Hashable]] = {}
        self._born_ms: dict[tuple[str, str], float] = {}
        self.behind = FallBehind()
        """How far from the log's end the groups read; kept as long as their offsets are."""
        self.dirty = False
        self.changes = 0
        """How often an offset changed, counted on for as long as this table lives."""
        self._latest: dict[tuple[str, str], int] = {}
        self._whole = 0
        self.lowered = 0
        self.refused = 0
        self.fenced = 0
        self.clamped = 0

    def load(self, offsets: Mapping[tuple[str, str], Mapping[int, int]]) -> None:
        """Replace the table by what the file says."""
        self._offsets = {
            key: {queue_id: max(0, offset) for queue_id, offset in queues.items()}
            for key, queues in offsets.items()
        }
        self._born_ms.clear()
        self._changed_as_a_whole()
        self.dirty = False

    def merge(self, offsets: Mapping[tuple[str, str], Mapping[int, int]]) -> None:
        """Take these over; all others stay."""
        for key, queues in offsets.items():
            self._offsets[key] = {queue_id: max(0, offset) for queue_id, offset in queues.items()}
            self._changed(key)

    def since(self, change: int) -> Tables | None:
        """What changed behind that many ``changes``; None = more than commits: take ``tables``."""
        if not self._whole <= change <= self.changes:
            return None
        found = {}
        for key, latest in reversed(self._latest.items()):
            if latest <= change:
                break
            found[key] = dict(self._offsets[key])
        return found

    def clamp(self, maximum: Callable[[str, int], int]) -> int:
        """Lower offsets beyond ``maximum(topic, queue_id)`` to it: what they pointed to was lost
        with the log's tail. How many.
        """
        clamped = 0
        for (topic, _), queues in self._offsets.items():
            for queue_id, offset in queues.items():
                highest = maximum(topic, queue_id)
                if offset > highest:
                    queues[queue_id] = highest
                    clamped += 1
        self.clamped += clamped
        if clamped:
            self._changed_as_a_whole()
        return clamped

    def query(self, topic: str, group: str, queue_id: int) -> int | None:
        """The stored offset, ``None`` when the group has none for this queue."""
        queues = self._offsets.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def known_ms(self, topic: str, group: str) -> int | None:
        """For how long the group has had a position in any queue of the topic; None where it has
        none, ``LONG_AGO_MS`` where it had one before the broker began.
        """
        if (topic, group) not in self._offsets:
            return None
        born_ms = self._born_ms.get((topic, group))
        return LONG_AGO_MS if born_ms is None else round(self._clock.monotonic_ms() - born_ms)

    def is_behind(self, topic: str, group: str, queue_id: int, offset: int) -> bool:
        """Whether a higher offset is stored, so that this one is not to be taken; it is counted."""
        stored = self.query(topic, group, queue_id)
        behind = stored is not None and offset < stored
        self.refused += behind
        return behind

    def committed_age_ms(self, topic: str, group: str, queue_id: int) -> int | None:
        """How long ago the stored offset was committed last, be it unchanged; None where nobody has
        committed it since the broker began.
        """
        at_ms = self._committed_ms.get((topic, group), {}).get(queue_id)
        return None if at_ms is None else max(0, round(self._clock.monotonic_ms() - at_ms))

    def pulled(self, topic: str, group: str, queue_id: int, client: Hashable) -> None:
        """Note whose pull of the queue is the latest."""
        pullers = self._pullers.get((topic, group))
        if pullers is None:
            if len(self._pullers) >= ENTRIES_MAX:
                return
            pullers = self._pullers[topic, group] = {}
        pullers[queue_id] = client

    def commit(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offset: int,
        client: Hashable,
        holder: Hashable | None = None,
        administrator: bool = False,
        highest: int | None = None,
    ) -> Commit:
        """Take or refuse ``offset``. ``holder``: client that holds the queue's lock, ``None``
        without a lock. ``highest``: the greatest offset that this client can have reached, ``None``
        where nobody knows now.
        """
        queues = self._offsets.get((topic, group))
        stored = None if queues is None else queues.get(queue_id)
        if offset == stored:
            self._note_time(topic, group, queue_id)
            return Commit.STORED
        fault = None
        if offset < 0 or (queues is None and len(self._offsets) >= ENTRIES_MAX):
            fault = "no offset" if offset < 0 else f"{ENTRIES_MAX} offset tables are kept already"
        elif not administrator:
            if highest is not None and offset > highest:
                fault = f"the queue ends at {highest}"
            elif holder is not None and holder != client:
                fault = f"{holder} holds the queue"
            elif (
                stored is not None
                and offset < stored
                and holder is None
                and self._pullers.get((topic, group), {}).get(queue_id) != client
            ):
                fault = f"{stored} is stored, and another client pulls"
        if fault is not None:
            return self._refuse(f"{offset} of {topic} queue {queue_id} from {client}", group, fault)
        if queues is None:
            queues = {}
            self._born_ms[topic, group] = self._clock.monotonic_ms()
        queues[queue_id] = offset
        self._offsets[topic, group] = queues
        self._note_time(topic, group, queue_id)
        self._changed((topic, group))
        if stored is None:
            self._begun()
        elif offset < stored:
            self.lowered += 1
            if self.lowered % LOGGED_EVERY == 1:
                log.warning(
                    "group %s goes back in %s queue %d from offset %d to %d: its messages "
                    "come again",
                    group,
                    topic,
                    queue_id,
                    stored,
                    offset,
                )
            return Commit.LOWERED
        return Commit.STORED

    def fence(self) -> None:
        """Count a commit of a client whose lock of the queue is over (``protocol.queue_locks``)."""
        self.fenced += 1
        self.refused += 1

    def of_group(self, group: str) -> dict[str, dict[int, int]]:
        """Topic -> queue id -> offset of one group."""
        return {
            topic: dict(queues) for (topic, name), queues in self._offsets.items() if name == group
        }

    def of_queues(
        self, queues: Mapping[str, Collection[int]]
    ) -> Iterator[tuple[str, str, int, int]]:
        """(topic, group, queue id, next offset) of these queues of each topic, of every group that
        has a position in the topic: 0 in a queue that is new to it. The table must not change
        meanwhile.
        """
        for (topic, group), offsets in self._offsets.items():
            for queue_id in queues.get(topic, ()):
                yield topic, group, queue_id, offsets.get(queue_id, 0)

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have committed offsets of the topic."""
        return [group for (name, group) in self._offsets if name == topic]

    def forget_group(self, group: str) -> None:
        """Drop everything of a deleted group."""
        self._forget(lambda _, name: name == group)

    def forget_topic(self, topic: str) -> None:
        """Drop everything of a deleted topic."""
        self._forget(lambda name, _: name == topic)

    def tables(self) -> Tables:
        """A copy of everything."""
        return {key: dict(queues) for key, queues in self._offsets.items()}

    def snapshot(self) -> Tables:
        """A copy that a thread may keep; the table counts as saved from here on."""
        self.dirty = False
        return self.tables()

    def _forget(self, matches: Callable[[str, str], bool]) -> None:
        self.behind.forget(matches)
        for table in (self._offsets, self._pullers, self._committed_ms, self._born_ms):
            for key in [key for key in table if matches(*key)]:
                del table[key]
                self._changed_as_a_whole()

    def _changed(self, key: tuple[str, str]) -> None:
        self.changes += 1
        self._latest.pop(key, None)  # so that the latest are at the end
        self._latest[key] = self.changes
        self.dirty = True

    def _changed_as_a_whole(self) -> None:
        self.changes += 1
        self._whole = self.changes
        self._latest.clear()
        self.dirty = True

    def _note_time(self, topic: str, group: str, queue_id: int) -> None:
        times = self._committed_ms.setdefault((topic, group), {})
        times[queue_id] = self._clock.monotonic_ms()

    def _refuse(self, what: str, group: str, fault: str) -> Commit:
        self.refused += 1
        if self.refused % LOGGED_EVERY == 1:
            log.warning("group %s: offset %s is not taken: %s", group, what, fault)
        return Commit.REFUSED


class FallBehind:
    """How far behind the end of the log each group reads, in bytes (RocketMQ's
    GROUP_GET_FALL_SIZE).

        log:   ... | last record that the group got | ................ | end
                   '<──────────────── distance ───────────────────────>'

    Says, unlike a count of messages, how much of the disk a group still has to read, other topics'
    messages included: a group beyond what memory holds reads from the disk. Recorded at each answer
    that went through messages, as RocketMQ does; a group that reads no more keeps its last
    distance, while the log goes on. At most ``ENTRIES_MAX`` pairs of topic and group.
    """

    def __init__(self) -> None:
        self._bytes: dict[tuple[str, str], dict[int, int]] = {}

    def note(
        self, group: str, topic: str, queue_id: int, result: GetResult, store: MessageStore
    ) -> None:
        """``group`` was handed ``result`` of a queue."""
        if result.status not in WENT_THROUGH:
            return
        reached = (
            last_log_offset(result.parts[-1], result.sizes)
            if result.count
            else store.log_offset_of(topic, queue_id, result.next_offset - 1)
        )
        self.reached(group, topic, queue_id, reached, store.visible_offset)

    def reached(self, group: str, topic: str, queue_id: int, log_offset: int, end: int) -> None:
        """The last record that ``group`` was handed begins at ``log_offset`` (-1: nobody knows);
        the log is visible up to ``end``.
        """
        queues = self._bytes.get((topic, group))
        if queues is None:
            if log_offset < 0 or len(self._bytes) >= ENTRIES_MAX:
                return
            queues = self._bytes[topic, group] = {}
        if log_offset >= 0:
            queues[queue_id] = max(0, end - log_offset)

    def of(self, group: str, topic: str) -> dict[int, int]:
        """Queue id -> bytes, of what the group has read since the broker began."""
        return dict(self._bytes.get((topic, group), {}))

    def worst(self, limit: int) -> list[dict[str, object]]:
        """The groups and topics that are furthest behind: ``group, topic, bytes`` (of the worst
        queue), ``queues`` (id -> bytes).
        """
        found = nlargest(
            limit, self._bytes.items(), key=lambda item: max(item[1].values(), default=0)
        )
        return [
            {
                "group": group,
                "topic": topic,
                "bytes": max(queues.values(), default=0),
                "queues": {str(number): queues[number] for number in sorted(queues)},
            }
            for (topic, group), queues in found
        ]

    def forget(self, matches: Callable[[str, str], bool]) -> None:
        """Drop the entries of which ``matches(topic, group)`` is true."""
        for key in [key for key in self._bytes if matches(*key)]:
            del self._bytes[key]


def cut_offset(
    store: MessageStore, topic: str, queue_id: int, offset: int, epoch: int
) -> int | None:
    """Where a reader of ``epoch`` at queue offset ``offset`` must go back to; ``None`` when it may
    go on. ``epoch`` 0 = not known. Costs nothing when the epochs agree (design contract 11).

    A later epoch began where the log was cut: offsets from before may now stand for other messages.
    A reader that went beyond the cut goes on at the first message of that queue that it cannot have
    seen.
    """
    if epoch <= 0 or epoch >= store.epoch:
        return None
    cut = next((start for number, start in store.epochs if number > epoch), None)
    if cut is None:
        return None
    low, high = store.bounds(topic, queue_id)
    first = _first_behind(store, topic, queue_id, low, min(offset, high), cut)
    return first if first < offset else None


def _first_behind(
    store: MessageStore, topic: str, queue_id: int, low: int, high: int, cut: int
) -> int:
    """The first queue offset in [low, high] whose message lies at or behind log offset ``cut``;
    ``high`` when none does.
    """
    while low < high:  # ends: the range halves
        middle = (low + high) // 2
        if store.log_offset_of(topic, queue_id, middle) < cut:
            low = middle + 1
        else:
            high = middle
    return low
