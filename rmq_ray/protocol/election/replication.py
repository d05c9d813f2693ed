"""Who follows a master's log, how far each is, which of them are in sync, and what may be
acknowledged (docs/reliability.md).

    joined ─> FOLLOWING ─its copy reaches what is confirmed─> IN SYNC
        ─behind for longer than lag_ms, or gone─> FOLLOWING, forgotten

With ``copies_min=1`` a master for whom nobody is waited is *alone*: what it has is confirmed. A
follower that keeps up with it is *awaited*: from then on nothing is confirmed that it lacks, so
that it can reach what is confirmed while the log grows.

Under a controller there are two sets: the one above, which changes at once, and the *approved* one,
which the controller has on its disk and elects from. The first is proposed for the second. Who was
proposed may have been approved without a word of it having come back: a copy is waited for, and its
promise needed, while it is approved or asked for.

    lease  poll ─sent─> answer ─sent─> poll  the second poll's promise began after the answer was
                                             sent: the master counts from there, LEASE_MS less a
                                             margin, and leads while that holds for every approved
                                             slave

Decides: both sets, the lease, and the log offset up to which every member has the log: written, or
on its disk where the master promises that. Does not decide: what is sent to whom, what a client is
told. Pure: log offsets and times come in. Called by: the master's side of replication.

Invariants: ``confirmed`` never falls; it rises only while at least ``copies_min`` copies (the
master's counts) are in the set, under a controller in the approved one, and never beyond the copy
of a member of either. A follower enters the set only with everything that was confirmed before, in
this epoch or an earlier one. Nobody ceases to be waited for before the controller can elect him no
more. A master is alone while nobody is in the set, approved, asked for, or awaited.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

LEASE_MS = 2_000
"""A slave that polls is not promoted for so long since it sent the poll; a master serves while that
holds for every slave that could be elected.
"""
LEASE_MARGIN_MS = 200
"""Taken off by the master: clocks of two hosts differ by less in two seconds, and an answer leaves
a little after the lease was looked at.
"""
JOIN_MS = 1_000
"""How long a new master waits for an approved slave to join before it has it taken out of the
set.
"""
SILENT_MS = 1_500
"""A slave in sync polls every 500 ms at the latest."""
ASK_AGAIN_MS = 1_000
"""The same proposal is repeated after that, until it is answered."""


@dataclass(slots=True)
class Follower:
    """One slave as it last reported. Positions are log offsets, times monotonic ms."""

    broker_id: int
    address: str
    written: int = 0
    flushed: int = 0
    in_sync: bool = False
    reported_ms: float = 0.0
    caught_up_ms: float = 0.0
    """When its copy last had the whole log."""
    seen_end: int = 0
    """The log's end at its last report: reaching that later means that it was caught up then."""
    connected: bool = True
    caught_up: bool = False
    """Whether it ever had the whole log since it joined."""
    awaited: bool = False
    """A master that was alone confirms nothing more that this one lacks."""
    answered_ms: float = -inf
    """When the last answer was sent to it."""
    renewed_ms: float = -inf
    """Its last poll followed an answer that was sent then: it is not promoted for ``LEASE_MS`` from
    there.
    """


@dataclass(frozen=True, slots=True)
class ReplicaLag:
    """How far a follower is behind: bytes, and how long ago it had the whole log (0 = it has it
    now).
    """

    bytes: int
    ms: int


class Followers:
    """Of one master. ``flush_counts``: a copy counts as far as it is on the slave's disk.
    ``copies_min`` counts the master. ``waits``: an acknowledgement waits for the set (SYNC_MASTER);
    else a slave is in sync while it lacks nothing for longer than ``lag_ms``.
    """

    def __init__(
        self, copies_min: int, lag_ms: int, *, flush_counts: bool, waits: bool = True
    ) -> None:
        self._copies_min = copies_min
        self._lag_ms = lag_ms
        self._flush_counts = flush_counts
        self._waits = waits
        self._followers: dict[int, Follower] = {}
        self._approved: frozenset[int] | None = None
        self._asked: frozenset[int] = frozenset()
        self._proposed: tuple[frozenset[int], float] | None = None
        self._began = (0, 0.0)
        self.confirmed = 0
        """Log offset up to which every copy in sync has the log."""

    def begin(self, log_offset: int) -> None:
        """The master serves (again): nobody follows. All of the log so far counts as confirmed
        where nobody is waited for, or one copy is enough; else as soon as copies have it.
        """
        self._followers.clear()
        self._began = (log_offset, 0.0)
        self._approved, self._asked, self._proposed = None, frozenset(), None
        self.confirmed = 0 if self._waits and self._copies_min > 1 else log_offset

    def lead(self, log_offset: int, approved: Iterable[int], now_ms: float) -> None:
        """The master was elected: ``approved`` slaves can be elected after it. What the log has so
        far is confirmed once they have it.
        """
        self._followers.clear()
        self._began, self._approved = (log_offset, now_ms), frozenset(approved)
        self._asked, self._proposed = frozenset(), None
        self.confirmed = 0 if self._approved else log_offset

    def approve(self, approved: Iterable[int]) -> bool:
        """The controller keeps these now, and takes no proposal that was made before. True when
        something changed for those who wait.
        """
        self._approved = frozenset(approved)
        self._asked, self._proposed = frozenset(), None
        for broker_id in [
            f.broker_id
            for f in self._followers.values()
            if not f.connected and f.broker_id not in self._electable
        ]:
            del self._followers[broker_id]
        return self._raise() or self.alone

    def joined(self, broker_id: int, address: str, written: int, now_ms: float) -> Follower:
        """A slave that holds a prefix of the log begins (again) to follow."""
        before = self._followers.get(broker_id)
        follower = self._followers[broker_id] = Follower(
            broker_id, address, written, 0, reported_ms=now_ms, caught_up_ms=now_ms
        )
        if before is not None and before.address == address:
            follower.renewed_ms = before.renewed_ms
        return follower

    def answered(self, broker_id: int, now_ms: float) -> None:
        """An answer is being sent to it."""
        follower = self._followers.get(broker_id)
        if follower is not None:
            follower.answered_ms = now_ms

    def reported(self, broker_id: int, written: int, flushed: int, end: int, now_ms: float) -> bool:
        """Positions of a follower, as acknowledgement; ``end``: of the master's log now. True when
        something changed for those who wait.
        """
        follower = self._followers.get(broker_id)
        if follower is None:
            return False
        follower.renewed_ms = max(follower.renewed_ms, follower.answered_ms)
        follower.written, follower.flushed = (
            max(follower.written, min(written, end)),
            max(follower.flushed, min(flushed, end)),
        )
        held = self._held(follower)
        if held >= end:
            follower.caught_up_ms, follower.caught_up = now_ms, True
        elif held >= follower.seen_end > 0:
            follower.caught_up_ms, follower.caught_up = (
                max(follower.caught_up_ms, follower.reported_ms),
                True,
            )
        follower.seen_end, follower.reported_ms = end, now_ms
        begins = self.alone and follower.caught_up and self._is_on_time(follower, now_ms)
        if self.alone:
            self.confirmed = max(self.confirmed, end)
        follower.awaited = follower.awaited or begins
        entered = not follower.in_sync and self._may_enter(follower, now_ms)
        follower.in_sync = follower.in_sync or entered
        follower.awaited = follower.awaited and not follower.in_sync
        return self._raise() or entered or begins

    def left(self, broker_id: int) -> bool:
        """Its connection ended. True when it was waited for: those who wait may have to wait for
        fewer, or nobody may be enough any more.
        """
        follower = self._followers.get(broker_id)
        if follower is None:
            return False
        counted = follower.in_sync or follower.awaited
        follower.in_sync = follower.awaited = follower.connected = False
        if broker_id not in self._electable:
            del self._followers[broker_id]
        return counted and (self._raise() or True)

    def expire(self, end: int, now_ms: float) -> bool:
        """Put those out of the set that lack bytes for longer than ``lag_ms``, and under a
        controller those that were silent for so long that their promise is about to end: without it
        nothing would be written that they could lack. True when the set changed.
        """
        counted = [f for f in self._followers.values() if f.in_sync or f.awaited]
        late = [
            f
            for f in counted
            if self._held(f) < end and now_ms - max(f.caught_up_ms, 0.0) > self._lag_ms
        ]
        if self._approved is not None:
            late += [f for f in counted if now_ms - f.reported_ms > SILENT_MS]
        for follower in late:
            follower.in_sync = follower.awaited = False
        if late:
            self._raise()
        return bool(late)

    # --- what follows -----------------------------------------------------------------------------

    @property
    def in_sync(self) -> tuple[int, ...]:
        """Broker ids of the set without the master, sorted."""
        return tuple(sorted(f.broker_id for f in self._followers.values() if f.in_sync))

    @property
    def enough(self) -> bool:
        """Whether as many copies are in sync as an acknowledgement needs."""
        return 1 + sum(f.in_sync for f in self._followers.values()) >= self._copies_min

    @property
    def alone(self) -> bool:
        """Nobody is waited for and one copy is enough: what the master has is confirmed, whatever
        ``confirmed`` says.
        """
        return self._waits and self._copies_min == 1 and not self._copies()

    @property
    def has_begun(self) -> bool:
        """Whether everything that the log had when this master began may be shown."""
        return not self._waits or self.confirmed >= self._began[0] or self.alone

    @property
    def lease_until_ms(self) -> float:
        """Until when every slave that may be elected has promised not to be promoted: infinite
        without a controller, and for a set of the master alone.
        """
        if not self._electable:
            return inf
        renewed = (
            self._followers[broker_id].renewed_ms if broker_id in self._followers else -inf
            for broker_id in self._electable
        )
        return min(renewed) + LEASE_MS - LEASE_MARGIN_MS

    def covered(self, log_offset: int) -> int:
        """``log_offset``, or less: as far as whoever is elected next has the log."""
        if self._approved is None:
            return log_offset
        return min([log_offset, *self._copies()])

    def proposal(self, now_ms: float) -> tuple[int, ...] | None:
        """The slaves that the controller is to be asked to approve now, sorted; None when it keeps
        them, or was asked a moment ago.
        """
        if self._approved is None:
            return None
        wanted = set(self.in_sync)
        if now_ms - self._began[1] < JOIN_MS:
            wanted |= {
                broker_id
                for broker_id in self._approved
                if broker_id not in self._followers or self._followers[broker_id].connected
            }
        if wanted == self._approved and not self._asked and self._proposed is None:
            return None
        if (
            self._proposed is not None
            and self._proposed[0] == wanted
            and now_ms - self._proposed[1] < ASK_AGAIN_MS
        ):
            return None
        self._proposed = (frozenset(wanted), now_ms)
        self._asked |= wanted
        return tuple(sorted(wanted))

    def all(self) -> list[Follower]:
        """Every follower, by broker id."""
        return [self._followers[broker_id] for broker_id in sorted(self._followers)]

    def lag(self, follower: Follower, end: int, now_ms: float) -> ReplicaLag:
        """See ``ReplicaLag``."""
        behind = max(0, end - follower.written)
        return ReplicaLag(behind, int(now_ms - follower.caught_up_ms) if behind else 0)

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _electable(self) -> frozenset[int]:
        return self._asked if self._approved is None else self._asked | self._approved

    def _may_enter(self, follower: Follower, now_ms: float) -> bool:
        """Under a controller the set would change twice for a slave that comes back as far behind
        as it left; and what the log had when the master was elected may have been acknowledged
        before, so who is not electable yet must have that, too.
        """
        if self._approved is None:
            return self._held(follower) >= max(self.confirmed, self._began[0])
        on_time = self._is_on_time(follower, now_ms)
        needed = (
            self.confirmed
            if follower.broker_id in self._approved
            else max(self.confirmed, self._began[0])
        )
        return on_time and (self._held(follower) >= needed if self._waits else follower.caught_up)

    def _is_on_time(self, follower: Follower, now_ms: float) -> bool:
        return now_ms - follower.caught_up_ms <= self._lag_ms

    def _held(self, follower: Follower) -> int:
        return follower.flushed if self._flush_counts else follower.written

    def _copies(self) -> list[int]:
        """How far everybody is who is waited for; 0 for one who is approved and has not joined."""
        needed = {
            f.broker_id for f in self._followers.values() if f.in_sync or f.awaited
        } | self._electable
        return [
            self._held(self._followers[broker_id]) if broker_id in self._followers else 0
            for broker_id in needed
        ]

    def _raise(self) -> bool:
        """Confirm what every member has; True when that is more than before. What an elected master
        found needs no more copies than can be elected.
        """
        copies, began = self._copies(), self._began[0] if self._approved is not None else 0
        before = self.confirmed
        counted = len(copies) if self._approved is None else len(self._approved)
        if copies and 1 + counted >= self._copies_min:
            self.confirmed = max(self.confirmed, min(copies))
        elif self._approved is not None:
            self.confirmed = max(self.confirmed, min([began, *copies]))
        return self.confirmed > before
