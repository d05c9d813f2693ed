"""Where a pull is parked that found nothing: the broker's half of long polling (protocol-behaviour
11; design contract 3).

    pull ──park──> HoldTable   token -> queue, offset, deadline, tag codes
                       │  └──> HoldLink ──> the hold service, where the broker has one
    answer <──rerun── an arrival, a deadline or the scan wakes it: from here or from there

Decides: who may be parked (limits), who wakes a pull, and that every parked pull is answered. The
hold service wakes while it answers: at deadlines, by its scan, and where an arrival finds more than
``WAKE_HERE_MAX`` pulls on its queue. Everything else is woken from here, and all of it where there
is no service, or one that is dead or hangs. Does not decide which pull an arrival wakes
(``protocol.hold_table``), how the service is spoken to (``hold_link``).

Invariants: a parked pull is answered at most once, and leaves ``_parked`` before that; that of a
closed connection leaves without an answer. ``rerun`` is never called from within ``park`` or
``arrived``, but in a later turn of the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from rmq_ray.clock import Clock
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import TooManyRequests
from rmq_ray.ports import Peer
from rmq_ray.protocol.hold_table import HoldTable
from rmq_ray.server.base.offload import Offload
from rmq_ray.server.pull.hold_link import HoldLink, MaxOffset

log = logging.getLogger("rmq_ray.hold")

GRACE_MS = 1_000
"""A service that answers has this long to fire a deadline before the broker does."""
WAKE_HERE_MAX = 64
"""Pulls parked on a queue of which an arrival is not told to the service (decision 10)."""
PARKED_PER_PEER_MAX = 4_096
TOKENS = "parked"

R = TypeVar("R")


class ParkedPulls(Generic[R]):
    """All parked pulls of one broker. ``rerun(request, peer)`` answers one for good (or parks
    it again, where its filter lets nothing pass). ``tick`` must be called some times a second.
    """

    def __init__(
        self,
        rerun: Callable[[R, Peer], None],
        max_offset: MaxOffset,
        clock: Clock,
        offload: Offload,
        config: BrokerConfig,
        wake_here_max: int = WAKE_HERE_MAX,
    ) -> None:
        self._rerun = rerun
        self._max_offset = max_offset
        self._clock = clock
        self._soon = offload.soon
        self._wake_here_max = wake_here_max
        self._scan_ms = config.hold_check_ms
        self._scanned_ms = clock.monotonic_ms()
        self._table = HoldTable(config.parked_pulls_max)
        self._parked: dict[int, tuple[R, Peer]] = {}
        self._next_token = 0
        self._link = (
            None
            if config.hold_link is None
            else HoldLink(
                config.hold_link,
                config.broker_name,
                self._table,
                max_offset,
                self._woken,
                clock,
                self._scan_ms,
            )
        )
        self._over = False
        self.late = 0
        """Pulls whose deadline passed without a wake from their hold service."""

    def start(self) -> None:
        """Begin to speak to the hold service, on the running event loop."""
        if self._link is not None:
            self._link.start()

    async def close(self) -> None:
        """Speak to it no more."""
        if self._link is not None:
            await self._link.close()

    @property
    def alive(self) -> bool:
        """Whether the hold service answers; True where there is none."""
        return self._link is None or self._link.alive

    @property
    def _served(self) -> bool:
        return self._link is not None and self._link.alive

    def __len__(self) -> int:
        return len(self._parked)

    def park(
        self,
        request: R,
        peer: Peer,
        queue: tuple[str, int],
        from_offset: int,
        deadline_ms: float,
        codes: frozenset[int] | None,
    ) -> None:
        """Hold ``request`` until ``deadline_ms`` (wall clock); one that is behind already is woken
        soon. ``codes`` None = every tag. Raises ``TooManyRequests`` at a limit, and behind
        ``wake_all``.
        """
        if self._over:
            raise TooManyRequests("the broker stops: pull again, it or another one will answer")
        tokens: set[int] = peer.attributes.setdefault(TOKENS, set())
        if len(tokens) >= PARKED_PER_PEER_MAX:
            raise TooManyRequests(
                f"{len(tokens)} pulls of this connection are parked; pull again later"
            )
        # A wall clock that is set must not keep a pull asleep.
        deadline_ms += self._clock.monotonic_ms() - self._clock.now_ms()
        token = self._next_token + 1
        max_offset = int(self._max_offset(*queue))
        behind = self._table.park(token, queue, int(from_offset), deadline_ms, codes, max_offset)
        self._next_token = token
        self._parked[token] = (request, peer)
        tokens.add(token)
        if behind:
            self._wake_soon(behind)
        elif self._link is not None:
            self._link.park(token, max_offset)

    def arrived(
        self, topic: str, queue_id: int, max_offset: int, codes: Sequence[int] | None
    ) -> None:
        """Messages below ``max_offset`` became visible; ``codes``: tag codes of all of them, None =
        unknown. Costs one look-up where nobody waits.

        A few pulls are woken from here: the way to the service and back would be most of what a
        lone message takes.
        """
        queue = (topic, queue_id)
        parked = self._table.parked_on(queue)
        if not parked:
            return
        distinct = None if codes is None else {int(code) for code in codes}
        if self._link is None or (parked <= self._wake_here_max and self._link.alive):
            self._wake_soon(self._table.arrived(queue, max_offset, distinct))
        elif self._link.alive:
            self._link.arrived(queue, int(max_offset), distinct)
        else:  # what was told to a service that died may be lost: wake whatever is behind
            self._wake_soon(self._table.arrived(queue, max_offset, None))

    def tick(self) -> None:
        """Time has passed: deadlines, and the scan that finds what no arrival was told of."""
        now_ms = self._clock.monotonic_ms()
        tokens = self._table.expired(now_ms - GRACE_MS if self._served else now_ms)
        if tokens:
            self.late += len(tokens) if self._link is not None else 0
            self._wake(tokens)
        if now_ms - self._scanned_ms >= self._scan_ms:
            self._scanned_ms = now_ms
            if not self._served:
                table = self._table
                self._wake_soon(
                    table.scan([(queue, self._max_offset(*queue)) for queue in table.queues()])
                )

    def closed(self, peer: Peer) -> None:
        """The connection is gone: its pulls are dropped."""
        tokens = list(peer.attributes.get(TOKENS, ()))
        for token in tokens:
            self._take(token)
            self._table.forget(token)
        self._tell_forgotten(tokens)

    def wake_all(self) -> None:
        """Answer everything now, and park nothing from now on (the broker stops)."""
        self._over = True
        for token in list(self._parked):
            self._table.forget(token)
            self._answer(token)

    def _woken(self, tokens: Iterable[int]) -> None:
        """The service says so; what was woken or forgotten meanwhile is passed over."""
        for token in tokens:
            if self._table.forget(token):
                self._answer(token)

    def _wake_soon(self, tokens: Sequence[int]) -> None:
        if tokens:
            self._soon(lambda: self._wake(tokens))

    def _wake(self, tokens: Sequence[int]) -> None:
        """The answers leave before the service hears of it."""
        for token in tokens:
            self._answer(token)
        self._tell_forgotten(tokens)

    def _answer(self, token: int) -> None:
        parked = self._take(token)
        if parked is None:  # its connection has closed
            return
        try:
            self._rerun(*parked)
        except Exception:
            log.exception("running held pull %d again failed", token)

    def _take(self, token: int) -> tuple[R, Peer] | None:
        parked = self._parked.pop(token, None)
        if parked is not None:
            parked[1].attributes[TOKENS].discard(token)
        return parked

    def _tell_forgotten(self, tokens: Sequence[int]) -> None:
        if self._link is not None:
            self._link.forget(tokens)
