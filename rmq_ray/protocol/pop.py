"""Popping: which messages of a queue are out at a worker, until when, and how far the group has got
(protocol-behaviour 26, POP).

A worker that pops takes a *lease* on some messages: until its deadline nobody else gets them. What
is acknowledged is done; what is not by then is moved: a copy goes to the group's retry or
dead-letter topic, and the original is done as well.

    queue   0 ─────────── commit ───[lease 7: 1101]──[lease 8: 0010]── next ──────── end
                            │        a bit per message, 1 = not done     └ never handed out
                            └ all below is done

    a message  free ─grant─> open ──ack──> done    later acks: taken again, nothing happens
                             │  └──change──> open, other deadline
                             └──expired──> moving ──copy durable──> moved = done
                                              │                     acks from here on: stale
                                              └──copy failed──> open

Decides: whether a receipt (lease id, bit) still counts, what is due, what the commit offset is.
Does not decide where copies go (``protocol.redelivery``) or what is on disk: every change is also
an ``Event`` that, replayed in order, gives the same state. Called by the broker's ``PopLedger``.

Invariants: offsets are granted once and rising, so leases are in order; the commit offset never
passes an open or moving message; memory is bounded by the messages that are open (a lease without
any is forgotten but for its id).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

Key = tuple[str, str, int]
"""(group, topic, queue id)."""
Event = tuple[Any, ...]
"""(kind, group, topic, queue id, ...): see ``EventKind`` for what follows. Plain values."""

FINISHED_MAX = 1_024
"""Finished leases of a queue whose late or repeated acks are still answered exactly."""
LEASE_MESSAGES_MAX = 65_536
# entries of finished leases are swept out when there are twice as many as after the last time
DEADLINES_MIN = 1_000


class EventKind(IntEnum):
    """What happened to a queue; the arguments behind the key."""

    RESET = 1
    """next offset: leases are void."""
    GRANT = 2
    """lease id, deadline ms, retries max, first offset or list of offsets, count, next offset,
    attempt.
    """
    ACK = 3
    """lease id, mask."""
    CHANGE = 4
    """lease id, mask, deadline ms, 1 = to the dead letters then."""
    MOVED = 5
    """lease id, mask: their copies are durable."""
    FINISHED = 6
    """lease id, mask of what was moved: a lease that is over, in a snapshot."""
    FORGET = 7
    """Nothing: the queue's state is dropped."""


@dataclass(slots=True)
class Lease:
    """Messages that one pop took. Bit ``i`` of a mask stands for ``offsets[i]``; ``retries_max`` <
    0 = the group's setting.

    ``attempt``: the pop's own number, by which a worker that missed the answer gets the same
    messages again; 0 = none.
    """

    id: int
    offsets: Sequence[int]
    open: int
    deadline_ms: int
    retries_max: int
    attempt: int = 0
    moving: int = 0
    moved: int = 0
    rejected: int = 0
    own_deadlines: dict[int, int] = field(default_factory=dict)

    def deadline_of(self, index: int) -> int:
        """When message ``index`` comes again."""
        return self.own_deadlines.get(index, self.deadline_ms)

    @property
    def untouched(self) -> bool:
        """Everything in it is still out."""
        return not self.moving and self.open == (1 << len(self.offsets)) - 1

    def next_deadline(self) -> int | None:
        """The earliest one of what is open and not moving; None when there is nothing left to
        expire.
        """
        waiting = self.open & ~self.moving
        if not waiting:
            return None
        if not self.own_deadlines:
            return self.deadline_ms
        return min(self.deadline_of(index) for index in bits(waiting))

    def due(self, now_ms: int) -> int:
        """Mask of what has expired."""
        waiting = self.open & ~self.moving
        if not self.own_deadlines:
            return waiting if self.deadline_ms <= now_ms else 0
        return sum(1 << index for index in bits(waiting) if self.deadline_of(index) <= now_ms)


@dataclass(frozen=True, slots=True)
class Expired:
    """One message whose time is over; it is *moving* until ``moved`` or ``not_moved`` is told."""

    key: Key
    lease_id: int
    index: int
    offset: int
    retries_max: int
    rejected: bool


class PopQueue:
    """One queue of one group. ``committed``: the commit offset that was last written down."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.committed = next_offset
        self.in_flight = 0
        self.reading = False
        """A read of this queue is under way beside the loop: nobody else may take from
        ``next_offset``.
        """
        self.used_ms = 0
        self._leases: OrderedDict[int, Lease] = OrderedDict()
        self._finished: OrderedDict[int, int] = OrderedDict()

    @property
    def commit_offset(self) -> int:
        """All below is done."""
        for lease in self._leases.values():
            return lease.offsets[(lease.open & -lease.open).bit_length() - 1]
        return self.next_offset

    @property
    def idle(self) -> bool:
        """Nothing is out: the state says no more than the commit offset."""
        return not self._leases and not self.reading

    def lease(self, lease_id: int) -> Lease | None:
        """An unfinished lease."""
        return self._leases.get(lease_id)

    def leases(self) -> Iterator[Lease]:
        """Unfinished leases, by offset."""
        return iter(self._leases.values())

    def taken_by(self, attempt: int) -> Lease | None:
        """The lease that this attempt took, as long as nothing became of its messages."""
        return (
            next(
                (
                    lease
                    for lease in self._leases.values()
                    if lease.attempt == attempt and lease.untouched
                ),
                None,
            )
            if attempt
            else None
        )

    def finished(self) -> Iterator[tuple[int, int]]:
        """(id, mask of what was moved) of the newest finished ones."""
        return iter(self._finished.items())

    def stale(self, lease_id: int, mask: int) -> int:
        """Which of these receipts do not count any more: redelivered, or never known. What was
        acknowledged before is not stale.
        """
        lease = self._leases.get(lease_id)
        if lease is None:
            return mask & self._finished.get(lease_id, -1)
        return mask & (lease.moving | lease.moved | -1 << len(lease.offsets))

    def openable(self, lease_id: int, mask: int) -> int:
        """Which of these messages an ack or a change would touch: open and not moving."""
        lease = self._leases.get(lease_id)
        return 0 if lease is None else mask & lease.open & ~lease.moving

    # --- events -----------------------------------------------------------------------------------

    def reset(self, next_offset: int) -> None:
        """Begin at ``next_offset``; every lease is void."""
        self._leases.clear()
        self._finished.clear()
        self.next_offset, self.in_flight = next_offset, 0

    def grant(self, lease: Lease, next_offset: int) -> None:
        """``lease`` takes messages from ``next_offset`` on; the next one begins at the new
        ``next_offset``.
        """
        if not self.next_offset <= lease.offsets[0] <= lease.offsets[-1] < next_offset:
            raise ValueError(
                f"lease of {lease.offsets[0]} to {lease.offsets[-1]} between "
                f"{self.next_offset} and {next_offset}"
            )
        self._leases[lease.id] = lease
        self.next_offset = next_offset
        self.in_flight += lease.open.bit_count()

    def skip(self, next_offset: int) -> None:
        """Nothing for this group lies below ``next_offset``."""
        self.next_offset = max(self.next_offset, next_offset)

    def ack(self, lease_id: int, mask: int) -> None:
        """These are done; what is not open any more is passed over."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            self._close(lease, mask & lease.open & ~lease.moving)

    def change(self, lease_id: int, mask: int, deadline_ms: int, rejected: bool) -> None:
        """These come again at ``deadline_ms``."""
        lease = self._leases.get(lease_id)
        mask = self.openable(lease_id, mask)
        if lease is None or not mask:
            return
        lease.rejected = lease.rejected | mask if rejected else lease.rejected & ~mask
        if mask == lease.open:
            lease.deadline_ms = deadline_ms
            lease.own_deadlines.clear()
        else:
            lease.own_deadlines.update(dict.fromkeys(bits(mask), deadline_ms))

    def moved(self, lease_id: int, mask: int) -> None:
        """The copies of these are durable: they are done."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            mask &= lease.open
            lease.moving &= ~mask
            lease.moved |= mask
            self._close(lease, mask)

    def remember(self, lease_id: int, moved: int) -> None:
        """A lease that is over: its receipts are answered by this."""
        self._finished[lease_id] = moved
        while len(self._finished) > FINISHED_MAX:
            self._finished.popitem(last=False)

    def cut(self, end: int) -> None:
        """The log ends at ``end`` now: what was granted from there on is no more, other messages
        may come under these offsets.
        """
        for lease in list(self._leases.values()):
            kept = bisect_left(lease.offsets, end)
            lease.offsets, below = lease.offsets[:kept], (1 << kept) - 1
            lease.moving &= below
            lease.moved &= below
            self._close(lease, lease.open & ~below)
        self.next_offset = min(self.next_offset, end)

    def _close(self, lease: Lease, mask: int) -> None:
        lease.open &= ~mask
        self.in_flight -= mask.bit_count()
        if not lease.open and self._leases.pop(lease.id, None) is not None:
            self.remember(lease.id, lease.moved)


class PopTable:
    """All queues that are popped on one broker, and when their leases end."""

    def __init__(self) -> None:
        self.queues: dict[Key, PopQueue] = {}
        self._deadlines: list[tuple[int, int, Key]] = []
        self._tidy_at = DEADLINES_MIN

    def apply(self, event: Event) -> None:
        """Do what ``event`` says. Raises ``ValueError`` for one that no table writes (a damaged
        journal).
        """
        try:
            kind, key, arguments = (
                EventKind(event[0]),
                (str(event[1]), str(event[2]), int(event[3])),
                event[4:],
            )
            self._apply(kind, key, arguments)
        except (IndexError, TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{event!r:.120} is no event of a popped queue: {error}") from error

    def expired(self, now_ms: int, limit: int) -> list[Expired]:
        """At most ``limit`` messages whose time is over, the oldest deadlines first. They are
        moving from here on.
        """
        found: list[Expired] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms and len(found) < limit:
            _, lease_id, key = heapq.heappop(self._deadlines)
            queue = self.queues.get(key)
            lease = None if queue is None else queue.lease(lease_id)
            if lease is None:
                continue
            for index in list(bits(lease.due(now_ms)))[: limit - len(found)]:
                lease.moving |= 1 << index
                found.append(
                    Expired(
                        key,
                        lease_id,
                        index,
                        lease.offsets[index],
                        lease.retries_max,
                        bool(lease.rejected >> index & 1),
                    )
                )
            self._plan(key, lease)
        return found

    def not_moved(self, key: Key, lease_id: int, mask: int, again_ms: int) -> None:
        """No copy of these could be made: they are open again, and due at ``again_ms``."""
        queue = self.queues.get(key)
        lease = None if queue is None else queue.lease(lease_id)
        if lease is not None:
            lease.moving &= ~mask
            heapq.heappush(self._deadlines, (again_ms, lease_id, key))

    def next_deadline(self) -> int | None:
        """When to look again; may be too early."""
        return self._deadlines[0][0] if self._deadlines else None

    def snapshot(self) -> Iterator[Event]:
        """Events that give this state on an empty table."""
        for key, queue in self.queues.items():
            yield (
                EventKind.RESET,
                *key,
                next((lease.offsets[0] for lease in queue.leases()), queue.next_offset),
            )
            for lease_id, moved in queue.finished():
                yield (EventKind.FINISHED, *key, lease_id, mask_bytes(moved))
            leases = list(queue.leases())
            behind = [*(lease.offsets[0] for lease in leases[1:]), queue.next_offset]
            for lease, next_offset in zip(leases, behind, strict=False):
                yield from _lease_events(key, lease, next_offset)

    def _apply(self, kind: EventKind, key: Key, arguments: Event) -> None:
        if kind is EventKind.FORGET:
            self.queues.pop(key, None)
            return
        if kind is EventKind.RESET:
            queue = self.queues.setdefault(key, PopQueue(arguments[0]))
            queue.reset(int(arguments[0]))
            return
        queue, lease_id = self.queues[key], int(arguments[0])
        if kind is EventKind.GRANT:
            lease = _granted(arguments)
            queue.grant(lease, int(arguments[5]))
            self._plan(key, lease)
            return
        mask = mask_of(arguments[1])
        if kind is EventKind.ACK:
            queue.ack(lease_id, mask)
        elif kind is EventKind.CHANGE:
            queue.change(lease_id, mask, int(arguments[2]), bool(arguments[3]))
            changed = queue.lease(lease_id)
            if changed is not None:
                self._plan(key, changed)
        elif kind is EventKind.MOVED:
            queue.moved(lease_id, mask)
        else:
            queue.remember(lease_id, mask)

    def _plan(self, key: Key, lease: Lease) -> None:
        deadline = lease.next_deadline()
        if deadline is not None:
            heapq.heappush(self._deadlines, (deadline, lease.id, key))
        if len(self._deadlines) > self._tidy_at:
            self._tidy()
            self._tidy_at = max(DEADLINES_MIN, 2 * len(self._deadlines))

    def _tidy(self) -> None:
        """Drop entries of leases that are over or were changed."""
        self._deadlines = [
            (deadline, lease.id, key)
            for key, queue in self.queues.items()
            for lease in queue.leases()
            if (deadline := lease.next_deadline()) is not None
        ]
        heapq.heapify(self._deadlines)


def bits(mask: int) -> Iterator[int]:
    """The set bits, lowest first.

    >>> list(bits(0b1011))
    [0, 1, 3]
    """
    while mask:  # ends: every round clears a bit
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_bytes(mask: int) -> bytes:
    """A mask as it travels: little-endian, no longer than needed.

    >>> mask_bytes(0b1_0000_0001), mask_of(bytes([1, 1]))
    (b'\\x01\\x01', 257)
    """
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def mask_of(data: bytes) -> int:
    """Reads what ``mask_bytes`` wrote."""
    return int.from_bytes(data, "little")


def grant_event(
    key: Key,
    lease_id: int,
    deadline_ms: int,
    retries_max: int,
    offsets: Sequence[int],
    next_offset: int,
    attempt: int = 0,
) -> Event:
    """The event of a new lease; a dense range is written as its first offset."""
    dense = offsets[-1] - offsets[0] + 1 == len(offsets)
    return (
        EventKind.GRANT,
        *key,
        lease_id,
        deadline_ms,
        retries_max,
        offsets[0] if dense else list(offsets),
        len(offsets),
        next_offset,
        attempt,
    )


def _granted(arguments: Event) -> Lease:
    lease_id, deadline_ms, retries_max, first, count = arguments[:5]
    if not 0 < count <= LEASE_MESSAGES_MAX:
        raise ValueError(f"a lease of {count} messages")
    offsets: Sequence[int] = range(first, first + count) if isinstance(first, int) else tuple(first)
    if len(offsets) != count:
        raise ValueError(f"a lease of {count} messages with {len(offsets)} offsets")
    return Lease(lease_id, offsets, (1 << count) - 1, deadline_ms, retries_max, int(arguments[6]))


def _lease_events(key: Key, lease: Lease, next_offset: int) -> Iterator[Event]:
    """An unfinished lease, and where what was handed out behind it ends; what is moving counts as
    open, its copy may not be durable.
    """
    everything = (1 << len(lease.offsets)) - 1
    yield grant_event(
        key,
        lease.id,
        lease.deadline_ms,
        lease.retries_max,
        lease.offsets,
        next_offset,
        lease.attempt,
    )
    acknowledged = everything & ~lease.open & ~lease.moved
    if lease.moved:
        yield (EventKind.MOVED, *key, lease.id, mask_bytes(lease.moved))
    if acknowledged:
        yield (EventKind.ACK, *key, lease.id, mask_bytes(acknowledged))
    by_deadline: dict[tuple[int, bool], int] = {}
    for index in bits(lease.open if lease.own_deadlines or lease.rejected else 0):
        which = (lease.deadline_of(index), bool(lease.rejected >> index & 1))
        by_deadline[which] = by_deadline.get(which, 0) | 1 << index
    for (deadline_ms, rejected), mask in by_deadline.items():
        yield (EventKind.CHANGE, *key, lease.id, mask_bytes(mask), deadline_ms, int(rejected))
