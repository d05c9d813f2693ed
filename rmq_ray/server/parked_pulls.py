"""Pulls that found nothing and wait for a message: the broker's half of long polling (protocol-behaviour 11; design contract 3).

Decides: who may be parked (limits), and that every parked pull is answered: when the hold wakes it, or by the broker itself one second
after its deadline when the hold is dead or hangs. Does not decide which pull an arrival wakes: that is the hold's (``HoldTable``), which
lives in its own process behind a link, or here.

Invariants: a parked pull is one small entry; it goes when it is answered or its connection closes; it is answered at most once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rmq_ray.errors import TooManyRequests
from rmq_ray.ports import Peer
from rmq_ray.protocol.hold_table import HoldTable

GRACE_MS = 1_000  # the broker answers this much after the deadline on its own
PARKED_PER_PEER_MAX = 4_096
TOKENS = "parked"

R = TypeVar("R")


class Hold(Protocol):
    """Keeps the wake-up conditions of parked pulls."""

    def park(self, token: int, topic: str, queue_id: int, from_offset: int, deadline_ms: int, codes: frozenset[int] | None) -> None:
        """Remember; wakes at once what is behind already."""
        ...

    def forget(self, token: int) -> None:
        """The pull was answered or its connection closed."""
        ...

    def arrived(self, topic: str, queue_id: int, max_offset: int, codes: Sequence[int] | None) -> None:
        """Messages were added to a queue."""
        ...


class LocalHold:
    """The hold inside the broker: the same table, no link. ``on_wake(token)`` is called from within ``park``, ``arrived`` and ``tick``."""

    def __init__(self, on_wake: Callable[[int], None], parked_max: int) -> None:
        self._table = HoldTable(parked_max)
        self._on_wake = on_wake

    def park(self, token: int, topic: str, queue_id: int, from_offset: int, deadline_ms: int, codes: frozenset[int] | None) -> None:
        """See ``Hold``. The caller runs in the loop and has just read the queue, so nothing can have arrived in between."""
        for woken in self._table.park(token, (topic, queue_id), from_offset, deadline_ms, codes, from_offset):
            self._on_wake(woken)

    def forget(self, token: int) -> None:
        """See ``Hold``."""
        self._table.forget(token)

    def arrived(self, topic: str, queue_id: int, max_offset: int, codes: Sequence[int] | None) -> None:
        """See ``Hold``."""
        for woken in self._table.arrived((topic, queue_id), max_offset, codes):
            self._on_wake(woken)

    def tick(self, now_ms: int) -> None:
        """Wake what has reached its deadline."""
        for woken in self._table.expired(now_ms):
            self._on_wake(woken)


@dataclass(slots=True)
class _Parked(Generic[R]):
    peer: Peer
    request: R
    queue: tuple[str, int]


class ParkedPulls(Generic[R]):
    """All parked pulls of one broker. ``rerun(request, peer)`` answers one for good (second pass, never parked again)."""

    def __init__(self, rerun: Callable[[R, Peer], None], parked_max: int) -> None:
        self._rerun = rerun
        self._parked_max = parked_max
        self._parked: dict[int, _Parked[R]] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._queues: dict[tuple[str, int], int] = {}
        self._next_token = 0
        self._hold: Hold = LocalHold(self.wake, parked_max)
        self.late = 0
        """Pulls that the hold did not answer in time."""

    def use(self, hold: Hold) -> None:
        """Take another hold than the one inside the broker; before anything is parked."""
        assert not self._parked
        self._hold = hold

    def park(self, request: R, peer: Peer, queue: tuple[str, int], from_offset: int, deadline_ms: int, codes: frozenset[int] | None) -> None:
        """Hold ``request`` until ``deadline_ms`` (wall clock). Raises ``TooManyRequests`` at a limit."""
        tokens: set[int] = peer.attributes.setdefault(TOKENS, set())
        if len(self._parked) >= self._parked_max or len(tokens) >= PARKED_PER_PEER_MAX:
            raise TooManyRequests(f"{len(self._parked)} pulls are parked ({len(tokens)} of this connection); pull again later")
        self._next_token += 1
        token = self._next_token
        self._parked[token] = _Parked(peer, request, queue)
        self._queues[queue] = self._queues.get(queue, 0) + 1
        tokens.add(token)
        heapq.heappush(self._deadlines, (deadline_ms + GRACE_MS, token))
        self._hold.park(token, queue[0], queue[1], from_offset, deadline_ms, codes)

    def arrived(self, topic: str, queue_id: int, max_offset: int, codes: Sequence[int] | None) -> None:
        """Tell the hold of messages in a queue that has parked pulls; others cost one look-up."""
        if (topic, queue_id) in self._queues:
            self._hold.arrived(topic, queue_id, max_offset, codes)

    def wake(self, token: int) -> None:
        """Answer one parked pull now; unknown tokens (answered meanwhile) do nothing."""
        parked = self._take(token)
        if parked is not None:
            self._rerun(parked.request, parked.peer)

    def tick(self, now_ms: int) -> None:
        """Answer what the hold should have answered; ``now_ms`` is the wall clock."""
        if isinstance(self._hold, LocalHold):
            self._hold.tick(now_ms)
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            _, token = heapq.heappop(deadlines)
            parked = self._take(token)
            if parked is not None:
                self.late += 1
                self._hold.forget(token)
                self._rerun(parked.request, parked.peer)

    def closed(self, peer: Peer) -> None:
        """The connection is gone: its pulls are dropped."""
        for token in list(peer.attributes.get(TOKENS, ())):
            self._take(token)
            self._hold.forget(token)

    def wake_all(self) -> None:
        """Answer everything now (the broker stops)."""
        for token in list(self._parked):
            self._hold.forget(token)
            self.wake(token)

    def __len__(self) -> int:
        return len(self._parked)

    def _take(self, token: int) -> _Parked[R] | None:
        parked = self._parked.pop(token, None)
        if parked is None:
            return None
        parked.peer.attributes[TOKENS].discard(token)
        left = self._queues[parked.queue] - 1
        if left:
            self._queues[parked.queue] = left
        else:
            del self._queues[parked.queue]
        if len(self._deadlines) > 2 * len(self._parked) + 1_000:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._parked]
            heapq.heapify(self._deadlines)
        return parked
