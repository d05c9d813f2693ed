"""How long something took, without the time in which the machine did something else.

A promise like "within 2 s" is about what our code does. A virtual machine may be stopped for
seconds at any point, or give a process a tenth of a core; a ``Stopwatch`` counts time in small
ticks of a thread and only so much of each as a tick is long: a process that does not run gets no
older. Code of ours that waits, sleeps, blocks its event loop or computes in Python lets the ticks
go on, so what it takes is counted in full.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

TICK_S = 0.01
COUNTED_MAX_S = (
    0.05  # of a tick: threads wait for the interpreter lock and for one another that long
)
HANGS_S = 30.0  # by the wall: it will never end

T = TypeVar("T")


class LivedTime:
    """The sum of the ticks, each counted up to ``COUNTED_MAX_S``."""

    def __init__(self, now_s: float) -> None:
        self.seconds = 0.0
        self._last_s = now_s

    def tick(self, now_s: float) -> None:
        """It is ``now_s``, monotonic."""
        self.seconds += min(now_s - self._last_s, COUNTED_MAX_S)
        self._last_s = now_s


class _Ticking:
    """One thread for all stopwatches, from the first one on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lived: LivedTime | None = None

    def seconds(self) -> float:
        """Lived so far; what was lived since the last tick is in it."""
        with self._lock:
            if self._lived is None:
                self._lived = LivedTime(time.monotonic())
                threading.Thread(target=self._run, name="stopwatch", daemon=True).start()
            self._lived.tick(time.monotonic())
            return self._lived.seconds

    def _run(self) -> None:
        while True:
            time.sleep(TICK_S)
            self.seconds()


_ticking = _Ticking()


class Stopwatch:
    """Begins when it is made. ``lived_s``: for upper limits; ``passed_s``: by the wall, for lower
    ones.
    """

    def __init__(
        self,
        lived: Callable[[], float] = _ticking.seconds,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lived, self._now = lived, now
        self._began_lived_s, self._began_s = lived(), now()

    @property
    def lived_s(self) -> float:
        """Seconds in which this process ran."""
        return self._lived() - self._began_lived_s

    @property
    def stopped_s(self) -> float:
        """Seconds in which it did not: so much later may come what has its time on the wall."""
        return max(0.0, self.passed_s - self.lived_s)

    @property
    def passed_s(self) -> float:
        """Seconds on the wall."""
        return self._now() - self._began_s


async def within(limit_s: float, work: Awaitable[T]) -> T:
    """What ``work`` comes to, or its error; ``AssertionError`` when it took longer, in time
    lived.
    """
    watch = Stopwatch()
    try:
        async with asyncio.timeout(HANGS_S):
            return await work
    finally:
        lived_s = watch.lived_s
        assert lived_s < limit_s, f"it took {lived_s:.2f} s, the limit is {limit_s} s"
