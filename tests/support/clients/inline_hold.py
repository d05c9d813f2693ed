"""A hold that wakes within the call, without a loop: ``HoldTable`` and nothing else. For unit tests
of the broker.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmq_ray.clock import Clock
from rmq_ray.protocol.hold_table import HoldTable
from rmq_ray.server.pull.parked_pulls import OnWake


class InlineHold:
    """See ``parked_pulls.Hold``. Tests call ``tick`` where the product has timers."""

    def __init__(self, on_wake: OnWake, clock: Clock | None = None) -> None:
        self._table = HoldTable()
        self._on_wake = on_wake
        self._clock = clock
        self.alive = True

    def start(self) -> None:
        self.alive = True

    async def close(self) -> None:
        self.alive = False

    def park(
        self,
        token: int,
        topic: str,
        queue_id: int,
        from_offset: int,
        deadline_ms: float,
        codes: frozenset[int] | None,
    ) -> None:
        for woken in self._table.park(
            token, (topic, queue_id), from_offset, deadline_ms, codes, from_offset
        ):
            self._on_wake(woken)

    def forget(self, token: int) -> None:
        self._table.forget(token)

    def arrived(
        self, topic: str, queue_id: int, max_offset: int, codes: Sequence[int] | None
    ) -> None:
        for woken in self._table.arrived(
            (topic, queue_id), max_offset, None if codes is None else list(codes)
        ):
            self._on_wake(woken)

    def overdue(self, late_ms: float) -> list[int]:
        return [] if self._clock is None else self._table.expired(self._clock.now_ms() - late_ms)

    def tick(self, now_ms: float) -> None:
        for woken in self._table.expired(now_ms):
            self._on_wake(woken)
