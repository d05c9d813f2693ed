"""Who follows a master's log, how far each is, which of them are in sync, and what may be acknowledged (promises: modes; design contract 12).

    joined ──> FOLLOWING ──its copy reaches what is confirmed──> IN SYNC ──behind for longer than lag_ms, or gone──> FOLLOWING, forgotten

Decides: the in-sync set, and the log offset up to which every member has the log: written, or on its disk where the master promises that.
Does not decide: what is sent to whom, what a client is told. Pure: log offsets and times come in. Called by: the master's side of replication.

Invariants: ``confirmed`` never falls; it rises only while at least ``copies_min`` copies (the master's counts) are in sync, and never beyond
the copy of a member. A follower enters the set only with everything that was confirmed before.
"""

from __future__ import annotations

from dataclasses import dataclass

LEASE_MS = 2_000
"""A slave that polls is not promoted for so long since it sent the poll; a master serves while that holds for every slave that could be elected."""


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


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a follower is behind: bytes, and how long ago it had the whole log (0 = it has it now)."""

    bytes: int
    ms: int


class Followers:
    """Of one master. ``flush_counts``: a copy counts as far as it is on the slave's disk. ``copies_min`` counts the master."""

    def __init__(self, copies_min: int, lag_ms: int, *, flush_counts: bool) -> None:
        self._copies_min = copies_min
        self._lag_ms = lag_ms
        self._flush_counts = flush_counts
        self._followers: dict[int, Follower] = {}
        self.confirmed = 0
        """Log offset up to which every copy in sync has the log."""

    def begin(self, log_offset: int) -> None:
        """The master serves (again): nobody follows, all of the log so far counts as confirmed."""
        self._followers.clear()
        self.confirmed = log_offset

    def joined(self, broker_id: int, address: str, written: int, now_ms: float) -> Follower:
        """A slave that holds a prefix of the log begins (again) to follow."""
        follower = self._followers[broker_id] = Follower(broker_id, address, written, 0, reported_ms=now_ms, caught_up_ms=now_ms)
        return follower

    def reported(self, broker_id: int, written: int, flushed: int, end: int, now_ms: float) -> bool:
        """Positions of a follower, as acknowledgement; ``end``: of the master's log now. True when something changed for those who wait."""
        follower = self._followers.get(broker_id)
        if follower is None:
            return False
        follower.written, follower.flushed = max(follower.written, min(written, end)), max(follower.flushed, min(flushed, end))
        held = self._held(follower)
        if held >= end:
            follower.caught_up_ms = now_ms
        elif held >= follower.seen_end > 0:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.reported_ms)
        follower.seen_end, follower.reported_ms = end, now_ms
        entered = not follower.in_sync and held >= self.confirmed
        follower.in_sync = follower.in_sync or entered
        return self._raise() or entered

    def left(self, broker_id: int) -> bool:
        """Its connection ended. True when it was in sync: those who wait may have to wait for fewer, or nobody may be enough any more."""
        follower = self._followers.pop(broker_id, None)
        return follower is not None and follower.in_sync and (self._raise() or True)

    def expire(self, end: int, now_ms: float) -> bool:
        """Put those out of the set that lack bytes for longer than ``lag_ms``. True when the set changed."""
        late = [f for f in self._followers.values() if f.in_sync and self._held(f) < end and now_ms - max(f.caught_up_ms, 0.0) > self._lag_ms]
        for follower in late:
            follower.in_sync = False
        if late:
            self._raise()
        return bool(late)

    @property
    def in_sync(self) -> tuple[int, ...]:
        """Broker ids of the set without the master, sorted."""
        return tuple(sorted(f.broker_id for f in self._followers.values() if f.in_sync))

    @property
    def enough(self) -> bool:
        """Whether as many copies are in sync as an acknowledgement needs."""
        return 1 + sum(f.in_sync for f in self._followers.values()) >= self._copies_min

    def all(self) -> list[Follower]:
        """Every follower, by broker id."""
        return [self._followers[broker_id] for broker_id in sorted(self._followers)]

    def lag(self, follower: Follower, end: int, now_ms: float) -> Lag:
        """See ``Lag``."""
        behind = max(0, end - follower.written)
        return Lag(behind, int(now_ms - follower.caught_up_ms) if behind else 0)

    def _held(self, follower: Follower) -> int:
        return follower.flushed if self._flush_counts else follower.written

    def _raise(self) -> bool:
        """Confirm what every member has; True when that is more than before."""
        held = [self._held(f) for f in self._followers.values() if f.in_sync]
        if not held or not self.enough or min(held) <= self.confirmed:
            return False
        self.confirmed = min(held)
        return True
