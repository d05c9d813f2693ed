"""The hold inside the broker: the same table on the broker's own loop, for brokers that run without
a hold service.

Decides: nothing beyond ``protocol.hold_table``. Called by the broker's pull code through
``server.pull.hold_link.Hold``; used where no ``hold_link`` is configured (a broker outside Ray,
tests).

Invariant: ``on_wake`` is never called from within ``park`` or ``arrived``, always in a later turn
of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rmq_ray.clock import Clock
from rmq_ray.protocol.hold_table import HoldTable
from rmq_ray.server.pull.hold_link import MaxOffset, OnWake


class LocalHold:
    """See ``hold_link.Hold``."""

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
        deadline_ms += (
            self._clock.monotonic_ms() - self._clock.now_ms()
        )  # a wall clock that is set must not keep a pull asleep
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

    def arrived(
        self, topic: str, queue_id: int, max_offset: int, codes: Sequence[int] | None
    ) -> None:
        """See ``Hold.arrived``."""
        if self._table.has_parked((topic, queue_id)):
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
            max(0.0, deadline_ms - self._clock.monotonic_ms()) / 1000, self._deadline
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
