"""Sends are refused rather than queued when the disk cannot keep up: Apache RocketMQ's
BrokerFastFailure (protocol-behaviour 9).

    an append took long ──> what gathered meanwhile has waited as long:  > 200 ms  ──> SYSTEM_BUSY, nothing written
    SYNC_FLUSH: the oldest unanswered send waits for its fdatasync > 1 s            ──> SYSTEM_BUSY, nothing written

Requests wait in sockets, not in a queue of ours, while the loop is held up by a write; so the time
that slow writes took since the turn before is the age of what is read now. It counts until the loop
has been through once more. What else held the loop up is not counted: a refusal would make nothing
faster.

Decides whether a send is taken now; called by the send handlers around each append. Invariant: a
refused send wrote nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from rmq_ray.clock import Clock
from rmq_ray.errors import BrokerBusy

SLOW_MS = 20.0
"""An append below this is not slow: it takes 0.05 ms for a frame of 1 MiB in the page cache."""

Soon = Callable[[Callable[[], None]], None]
"""Run a call in the loop's next turn."""


class FastFailure:
    """Of one broker; loop only. ``stale_ms``: waitTimeMillsInSendQueue; ``disk_busy_ms``:
    osPageCacheBusyTimeOutMills; 0 = off.
    """

    def __init__(self, clock: Clock, soon: Soon, stale_ms: int, disk_busy_ms: int) -> None:
        self.now: Callable[[], float] = clock.monotonic_ms
        self._soon = soon
        self._stale_ms = stale_ms
        self._disk_busy_ms = disk_busy_ms
        self._lost_ms = 0.0
        self._turns_left = 0

    def admit(self, oldest_wait_ms: float = 0.0) -> None:
        """Raises ``BrokerBusy`` when sends are to be refused now. ``oldest_wait_ms``: how long the
        oldest send waits for its flush.
        """
        if self._lost_ms > self._stale_ms > 0:
            raise BrokerBusy(
                f"[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period "
                f"in queue: {self._lost_ms:.0f}ms: the disk holds up writes"
            )
        if oldest_wait_ms > self._disk_busy_ms > 0:
            raise BrokerBusy(
                f"[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in "
                f"queue: {oldest_wait_ms:.0f}ms: the disk holds up flushes"
            )

    def ended(self, began_ms: float) -> None:
        """An append ended that began at ``now()`` then, whether it worked or not."""
        took = self.now() - began_ms
        if took > SLOW_MS:
            self._lost_ms += took
            if not self._turns_left:
                self._soon(self._turned)
            self._turns_left = 2

    def _turned(self) -> None:
        """The loop begins another turn: what it reads now came while the writes lasted, what it
        reads in the next did not.
        """
        self._turns_left -= 1
        if self._turns_left:
            self._soon(self._turned)
        else:
            self._lost_ms = 0.0
