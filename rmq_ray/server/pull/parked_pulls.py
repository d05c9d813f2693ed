"""Where a pull is parked that found nothing: the broker's half of long polling (protocol-behaviour
11; design contract 3).

    pull ──park──> ParkedPulls   token -> connection and request
                       └──────> Hold: LocalHold | HoldLink ──> HoldTable   token -> queue, offset,
    answer <──rerun── wake <─────────────────────────────────┘             deadline, tag codes

Decides: who may be parked (limits), and that every parked pull is answered: when the hold wakes it,
or by the broker itself one second after its deadline when the hold is dead or hangs. Does not
decide which pull an arrival wakes (``protocol.hold_table``).

Invariants: a parked pull is one small entry here and one in the hold's table; both go when it is
answered or its connection closes; it is answered at most once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rmq_ray.clock import Clock, seconds_to
from rmq_ray.errors import TooManyRequests
from rmq_ray.ports import Peer
from rmq_ray.protocol.hold_table import HoldTable

GRACE_MS = 1_000  # the broker answers this much after the deadline on its own
PARKED_PER_PEER_MAX = 4_096
TOKENS = "parked"


OnWake = Callable[[int], None]
"""A parked pull must run again (once, without parking): token. On the loop; the token is no longer
known to the hold.
"""
MaxOffset = Callable[[str, int], int]
"""Greatest visible offset + 1 of (topic, queue id), 0 for an unknown queue; quick, without disk."""

R = TypeVar("R")


class Hold(Protocol):
    """Where a broker keeps its parked pulls: ``HoldLink`` (with a process of its own, for
    fan-out and deadlines) or ``LocalHold`` (on the broker's loop).

    ``on_wake`` is never called from within these methods, always in a later turn of the loop.
    """

    @property
    def alive(self) -> bool:
        """False while nobody fires deadlines."""
        ...

    @property
    def parked(self) -> int:
        """Pulls parked now."""
        ...

    def start(self) -> None:
        """Begin, on the running event loop."""
        ...

    async def close(self) -> None:
        """End; parked pulls are forgotten."""
        ...

    def park(
        self,
        token: int,
        topic: str,
        queue_id: int,
        from_offset: int,
        deadline_ms: float,
        codes: frozenset[int] | None,
    ) -> None:
        """Hold a pull that found nothing; one that is behind already is woken soon.

        ``deadline_ms`` is on ``Clock.now_ms``'s scale; ``codes`` None = every tag.
        ``TooManyRequests`` at the limit.
        """
        ...

    def forget(self, token: int) -> None:
        """The pull was answered or its connection closed; unknown tokens do nothing."""
        ...

    def overdue(self, late_ms: float) -> list[int]:
        """Pulls whose deadline was ``late_ms`` ago and that nobody woke; they are not parked any
        more.
        """
        ...

    def arrived(
        self, topic: str, queue_id: int, max_offset: int, codes: Sequence[int] | None
    ) -> None:
        """Messages below ``max_offset`` became visible; ``codes``: tag codes of all of them, None =
        unknown.
        """
        ...


@dataclass(slots=True)
class _Parked(Generic[R]):
    peer: Peer
    request: R


MakeHold = Callable[[OnWake, MaxOffset], Hold]


class ParkedPulls(Generic[R]):
    """All parked pulls of one broker. ``rerun(request, peer)`` answers one for good (second pass,
    never parked again).

    ``make_hold(on_wake, max_offset)`` builds the hold, not yet started.
    """

    def __init__(
        self,
        rerun: Callable[[R, Peer], None],
        make_hold: MakeHold,
        max_offset: MaxOffset,
        parked_max: int,
    ) -> None:
        self._rerun = rerun
        self._parked_max = parked_max
        self._parked: dict[int, _Parked[R]] = {}
        self._next_token = 0
        self.hold = make_hold(self.wake, max_offset)
        self.late = 0
        """Pulls that the hold did not answer in time."""

    def park(
        self,
        request: R,
        peer: Peer,
        queue: tuple[str, int],
        from_offset: int,
        deadline_ms: int,
        codes: frozenset[int] | None,
    ) -> None:
        """Hold ``request`` until ``deadline_ms`` (wall clock). Raises ``TooManyRequests`` at a
        limit.
        """
        tokens: set[int] = peer.attributes.setdefault(TOKENS, set())
        if len(self._parked) >= self._parked_max or len(tokens) >= PARKED_PER_PEER_MAX:
            raise TooManyRequests(
                f"{len(self._parked)} pulls are parked ({len(tokens)} of this connection); "
                f"pull again later"
            )
        self._next_token += 1
        token = self._next_token
        self._parked[token] = _Parked(peer, request)
        tokens.add(token)
        try:
            self.hold.park(token, queue[0], queue[1], from_offset, deadline_ms, codes)
        except TooManyRequests:
            self._take(token)
            raise

    def arrived(
        self, topic: str, queue_id: int, max_offset: int, codes: Sequence[int] | None
    ) -> None:
        """Messages were added to a queue; costs little where nobody waits."""
        if self._parked:
            self.hold.arrived(topic, queue_id, max_offset, codes)

    def wake(self, token: int) -> None:
        """Answer one parked pull now; unknown tokens (answered meanwhile) do nothing."""
        parked = self._take(token)
        if parked is not None:
            self._rerun(parked.request, parked.peer)

    def tick(self) -> None:
        """Answer what the hold should have answered."""
        for token in self.hold.overdue(GRACE_MS):
            self.late += 1
            self.wake(token)

    def closed(self, peer: Peer) -> None:
        """The connection is gone: its pulls are dropped."""
        for token in list(peer.attributes.get(TOKENS, ())):
            self._take(token)
            self.hold.forget(token)

    def wake_all(self) -> None:
        """Answer everything now (the broker stops)."""
        for token in list(self._parked):
            self.hold.forget(token)
            self.wake(token)

    def __len__(self) -> int:
        return len(self._parked)

    def _take(self, token: int) -> _Parked[R] | None:
        parked = self._parked.pop(token, None)
        if parked is not None:
            parked.peer.attributes[TOKENS].discard(token)
        return parked


class LocalHold:
    """The hold inside the broker: the table on the broker's own loop, for brokers that run without
    a hold service. See ``Hold``.
    """

    def __init__(
        self,
        on_wake: OnWake,
        max_offset: MaxOffset,
        clock: Clock,
        *,
        scan_ms: int = 5_000,
        parked_max: int = 100_000,
    ) -> None:
        self._on_wake = on_wake
        self._max_offset = max_offset
        self._clock = clock
        self._scan_ms = scan_ms
        self._table = HoldTable(parked_max)
        self._timer: asyncio.TimerHandle | None = None
        self._scan_timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0.0

    @property
    def alive(self) -> bool:
        """It lives as long as the broker."""
        return True

    @property
    def parked(self) -> int:
        """Pulls parked now."""
        return len(self._table)

    def start(self) -> None:
        """See ``Hold.start``."""
        if self._scan_timer is None:
            self._scan_timer = asyncio.get_running_loop().call_later(
                self._scan_ms / 1000, self._scan
            )

    async def close(self) -> None:
        """See ``Hold.close``."""
        for timer in (self._timer, self._scan_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._scan_timer = None
        self._table = HoldTable(0)

    def park(
        self,
        token: int,
        topic: str,
        queue_id: int,
        from_offset: int,
        deadline_ms: float,
        codes: frozenset[int] | None,
    ) -> None:
        """See ``Hold.park``."""
        # A wall clock that is set must not keep a pull asleep.
        deadline_ms += self._clock.monotonic_ms() - self._clock.now_ms()
        self._wake(
            self._table.park(
                token,
                (topic, queue_id),
                from_offset,
                deadline_ms,
                codes,
                self._max_offset(topic, queue_id),
            )
        )
        self._set_timer()

    def forget(self, token: int) -> None:
        """See ``Hold.forget``."""
        self._table.forget(token)

    def overdue(self, late_ms: float) -> list[int]:
        """See ``Hold.overdue``."""
        return self._table.expired(self._clock.monotonic_ms() - late_ms)

    def arrived(
        self, topic: str, queue_id: int, max_offset: int, codes: Sequence[int] | None
    ) -> None:
        """See ``Hold.arrived``."""
        if self._table.parked_on((topic, queue_id)):
            self._wake(
                self._table.arrived(
                    (topic, queue_id),
                    max_offset,
                    None if codes is None else {int(code) for code in codes},
                )
            )

    def _wake(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            asyncio.get_running_loop().call_soon(self._on_wake, token)

    def _set_timer(self) -> None:
        deadline_ms = self._table.next_deadline_ms()
        if deadline_ms is None:
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = asyncio.get_running_loop().call_later(
            seconds_to(self._clock, deadline_ms), self._deadline
        )

    def _deadline(self) -> None:
        self._timer = None
        self._wake(self._table.expired(self._clock.monotonic_ms()))
        self._set_timer()

    def _scan(self) -> None:
        self._scan_timer = asyncio.get_running_loop().call_later(self._scan_ms / 1000, self._scan)
        self._wake(
            self._table.scan([(queue, self._max_offset(*queue)) for queue in self._table.queues()])
        )
