"""The only place that reads a clock or sleeps. Everything else takes a ``Clock`` or a ``now_ms``
argument.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time as a parameter: wall time for timestamps in records, monotonic time for intervals."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds of a clock that never goes back; only differences mean anything."""
        ...

    def sleep_ms(self, duration_ms: float) -> None:
        """Block the calling thread."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        """Milliseconds of a clock that never goes back."""
        return time.monotonic_ns() / 1_000_000

    def sleep_ms(self, duration_ms: float) -> None:
        """Block the calling thread."""
        time.sleep(duration_ms / 1000)


class ManualClock:
    """A clock that moves only when told to; ``sleep_ms`` advances it. For tests and simulations."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms: float = now_ms
        self._monotonic_ms: float = 0.0

    def now_ms(self) -> int:
        """The time it was set to."""
        return int(self._now_ms)

    def monotonic_ms(self) -> float:
        """Milliseconds that it was advanced by."""
        return self._monotonic_ms

    def sleep_ms(self, duration_ms: float) -> None:
        """Advance at once."""
        self.advance_ms(duration_ms)

    def advance_ms(self, duration_ms: float) -> None:
        """Move both clocks forward."""
        self._now_ms += duration_ms
        self._monotonic_ms += duration_ms

    def jump_ms(self, duration_ms: float) -> None:
        """Move the time of day alone, forward or back, as an operator or NTP does."""
        self._now_ms += duration_ms


SYSTEM_CLOCK = SystemClock()


def local_month_ms(at_ms: int) -> tuple[int, int]:
    """Begin and end of the calendar month, in the machine's zone, that holds ``at_ms`` (reads no
    clock).
    """
    local = time.localtime(at_ms / 1000)
    following = (local.tm_year + 1, 1) if local.tm_mon == 12 else (local.tm_year, local.tm_mon + 1)
    begin = time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    end = time.mktime((*following, 1, 0, 0, 0, 0, 0, -1))
    return int(begin) * 1000, int(end) * 1000


def local_time(at_ms: int) -> str:
    """A moment as people here read it, to the second: ``2026-01-31 23:59:59``."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))


def left_ms(clock: Clock, timeout_ms: float, started_ms: float) -> float:
    """What is left of a time-out that began then (monotonic); not below 0."""
    return max(0.0, timeout_ms - (clock.monotonic_ms() - started_ms))


def seconds_to(clock: Clock, until_ms: float) -> float:
    """What is left until then (monotonic); not below 0."""
    return max(0.0, until_ms - clock.monotonic_ms()) / 1000


def local_day(at_ms: int) -> int:
    """A number of the calendar day, in the machine's zone, that holds ``at_ms``; the next day has a
    higher one (reads no clock).
    """
    local = time.localtime(at_ms / 1000)
    return local.tm_year * 1_000 + local.tm_yday
