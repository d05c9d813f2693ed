"""Pulls that found nothing and wait for a message: the broker's half of long polling
(protocol-behaviour 11; design contract 3).

Decides: who may be parked (limits), and that every parked pull is answered: when the hold wakes it,
or by the broker itself one second after its deadline when the hold is dead or hangs. Does not
decide which pull an arrival wakes: that is the hold's (``hold_link.Hold``).

Invariants: a parked pull is one small entry; it goes when it is answered or its connection closes;
it is answered at most once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rmq_ray.errors import TooManyRequests
from rmq_ray.ports import Peer
from rmq_ray.server.pull.hold_link import Hold, OnWake

GRACE_MS = 1_000  # the broker answers this much after the deadline on its own
PARKED_PER_PEER_MAX = 4_096
TOKENS = "parked"

R = TypeVar("R")


@dataclass(slots=True)
class _Parked(Generic[R]):
    peer: Peer
    request: R


class ParkedPulls(Generic[R]):
    """All parked pulls of one broker. ``rerun(request, peer)`` answers one for good (second pass,
    never parked again).

    ``make_hold(on_wake)`` builds the hold, not yet started.
    """

    def __init__(
        self, rerun: Callable[[R, Peer], None], make_hold: Callable[[OnWake], Hold], parked_max: int
    ) -> None:
        self._rerun = rerun
        self._parked_max = parked_max
        self._parked: dict[int, _Parked[R]] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._next_token = 0
        self.hold = make_hold(self.wake)
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
        heapq.heappush(self._deadlines, (deadline_ms + GRACE_MS, token))
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

    def tick(self, now_ms: int) -> None:
        """Answer what the hold should have answered; ``now_ms`` is the wall clock."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            _, token = heapq.heappop(deadlines)
            parked = self._take(token)
            if parked is not None:
                self.late += 1
                self.hold.forget(token)
                self._rerun(parked.request, parked.peer)

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
        if parked is None:
            return None
        parked.peer.attributes[TOKENS].discard(token)
        if len(self._deadlines) > 2 * len(self._parked) + 1_000:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._parked]
            heapq.heapify(self._deadlines)
        return parked
