"""How a busy server waits for its next frame: it looks again and again, for a millisecond at most,
instead of letting its core fall asleep.

    serving for less than a fifth of 20 ms: asleep between frames  more: ─served─> look, give way,
                                                                   look, ... ─1 ms without a frame─>
                                                                   asleep

A core that sleeps is slow to rouse (a virtual one: through the hypervisor, 20 to 60 us), and each
frame of a client that waits for its answer finds it asleep. And the kernel wakes a thread on an
idle core if there is one: threads of a client on this machine, who need one interpreter lock, are
torn apart by that.

Decides when the loop polls. Called by ``peer`` for each piece of input. Invariants: between two
looks every other thread of the machine may run (``sched_yield``) and every other event of the loop
is served; a server that is idle, or nearly so, sleeps.
"""

from __future__ import annotations

import asyncio
import os

from rmq_ray.clock import Clock

WINDOW_MS = 20.0
BUSY_SHARE = 0.2
"""Of a window, spent on serving: with more the next frame is near, and polling costs five times the
work at most.
"""


class BusyPoll:
    """Of one event loop. ``patience_us``: without a frame for so long, the loop sleeps."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, patience_us: int) -> None:
        self.now_ms = clock.monotonic_ms
        self._loop = loop
        self._patience_ms = patience_us / 1000
        self._busy_ms = self._since_ms = self._until_ms = 0.0
        self._dense = self._polling = False

    def served(self, begun_ms: float, ended_ms: float) -> None:
        """Input was served from ``begun_ms`` to ``ended_ms`` (of ``now_ms``)."""
        self._busy_ms += ended_ms - begun_ms
        if ended_ms - self._since_ms >= WINDOW_MS:
            self._dense = self._busy_ms > BUSY_SHARE * (ended_ms - self._since_ms)
            self._busy_ms, self._since_ms = 0.0, ended_ms
        if self._dense:
            self._until_ms = ended_ms + self._patience_ms
            if not self._polling:
                self._polling = True
                self._loop.call_soon(self._look)

    def _look(self) -> None:
        """While a callback is planned, the loop looks for input without sleeping."""
        if self.now_ms() < self._until_ms:
            os.sched_yield()
            self._loop.call_soon(self._look)
        else:
            self._polling = False


def of_use() -> bool:
    """Whether this process has cores to poll on, and can give way."""
    return hasattr(os, "sched_yield") and len(os.sched_getaffinity(0)) > 1
