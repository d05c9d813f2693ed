"""What of a topic's log retention keeps for its table: renewed by the clock, whatever becomes of
commits.

    what is committed ─know──┐
                             ├─renew, every HOLD_EVERY_MS─> source.hold ─> held_bytes
    hold_bytes ──────────────┘                                  └ more than hold_bytes: an alarm

Decides when the hold is renewed, and when it is told that there is none. Does not decide what a
hold is (``source``). While it is paused, or bucket, catalog or disk are away, a table is behind,
and no more than that: the hold ends at ``hold_bytes``, with ``close``, or an hour after the last
renewal. Invariant: brokers forget holds when they start or change their role, and then delete
nothing by themselves for ``server.core.upkeep.FIRST_CLEAN_MS`` (60 s); a renewal comes before that,
as long as fewer than ten copies of logs are silent and cost ``source.HOLD_TIMEOUT_MS`` each.
``renew`` may be called in any thread.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from rmq_ray.clock import Clock
from rmq_ray.table.rules import Offsets

log = logging.getLogger("rmq_ray.table")
HOLD_EVERY_MS = 10_000
ALARM_EVERY_MS = 600_000
NEVER_MS = -1e18


class Holder(Protocol):
    """``source.TopicSource``."""

    def hold(self, committed: Offsets | None, hold_bytes: int) -> int: ...  # noqa: D102
    def let_go(self) -> None: ...  # noqa: D102


class RetentionHold:
    """Of one table. ``hold_bytes`` may be changed at any time."""

    def __init__(self, source: Holder, topic: str, hold_bytes: int, clock: Clock) -> None:
        self.hold_bytes = hold_bytes
        self.held_bytes = 0
        """As the last renewal found it; more than ``hold_bytes``: retention does not wait."""
        self._source, self._topic, self._clock = source, topic, clock
        self._committed: Offsets | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._renewed_ms = self._told_ms = NEVER_MS

    @property
    def holding(self) -> bool:
        """Whether retention waits for the table; not once it is closed."""
        return not self._closed and self.held_bytes <= self.hold_bytes

    def know(self, committed: Offsets) -> None:
        """How far the table is; the next renewal goes by it, at once where nothing was known."""
        if self._committed is None:
            self._renewed_ms = NEVER_MS
        self._committed = dict(committed)

    def renew_when_due(self) -> None:
        """Where the last renewal is ``HOLD_EVERY_MS`` ago."""
        if self._clock.monotonic_ms() - self._renewed_ms >= HOLD_EVERY_MS:
            self.renew()

    def renew(self) -> None:
        """On return every copy of the log that answers keeps what the table lacks for an hour, or
        it is told that it does not.
        """
        with self._lock:
            if self._closed:
                return
            self._renewed_ms = self._clock.monotonic_ms()
            self.held_bytes = self._source.hold(self._committed, self.hold_bytes)
            self._tell()

    def close(self) -> None:
        """Retention waits for this table no more."""
        with self._lock:
            self._closed, self.held_bytes = True, 0
            self._source.let_go()

    def _tell(self) -> None:
        now = self._clock.monotonic_ms()
        if self.holding:
            if self._told_ms != NEVER_MS:
                log.info("retention waits for the table of %s again", self._topic)
            self._told_ms = NEVER_MS
        elif now - self._told_ms >= ALARM_EVERY_MS:
            self._told_ms = now
            log.error(
                "the table of %s lags by %d bytes of the log, more than hold_bytes=%d: retention "
                "no longer waits for it",
                self._topic,
                self.held_bytes,
                self.hold_bytes,
            )
