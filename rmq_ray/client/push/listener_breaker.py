"""Consuming threads while nothing but failures could come of a call: what the listener needs, a
database or a service, is gone.

    thread ── has an item ──> closed: on it goes
                          └─> open:   in line ── first, and its time has come ──> on it goes

Decides who waits and who tries while the breaker is open (``protocol.breaker`` says when that is),
and tells of it in the log. Does not decide what becomes of an item whose call failed: both kinds of
consumption do. As long as it is open they count no failure and put the item behind the others, so
that one message that fails for its own sake keeps nobody else.

Invariants: whoever waits has called nothing yet, and looks at its queue anew afterwards. Nobody
waits longer than a slice for what is over: a queue that was given away, a consumer that stops.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from rmq_ray.clock import Clock
from rmq_ray.guard import WHY_CHARS_MAX
from rmq_ray.protocol.breaker import Breaker, BreakerState

SLICE_MS = 250.0

log = logging.getLogger("rmq_ray.client.consume")


class ListenerBreaker:
    """Of one consumer. Any thread."""

    def __init__(self, settings: Breaker, group: str, clock: Clock) -> None:
        self._settings = settings
        self._group = group
        self._clock = clock
        self._state = BreakerState(settings)
        self._changed = threading.Condition()
        self._line: deque[object] = deque()
        self._closed = False

    @property
    def open(self) -> bool:
        """Whether threads wait."""
        return self._state.open

    @property
    def _goes_on(self) -> bool:
        return self._closed or not self._state.open

    def close(self) -> None:
        """The consumer stops: nobody waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self, over: Callable[[], bool]) -> None:
        """Until a call may be made, or there is none to be made: ``over()``, or ``close``."""
        if not self._state.open:
            return
        me = object()
        with self._changed:
            self._line.append(me)
            try:
                while not (self._goes_on or over()):  # ends: see the module
                    wait_ms = SLICE_MS
                    if self._line[0] is me:
                        wait_ms = self._state.wait_ms(self._clock.monotonic_ms())
                    if not wait_ms:
                        return
                    self._changed.wait(min(wait_ms, SLICE_MS) / 1000)
            finally:
                self._line.remove(me)
                self._changed.notify_all()  # another one is the first now

    def wait_ms(self) -> float:
        """How long one that does not stand in line has to wait; 0 = a call may be made now."""
        with self._changed:
            return self._state.wait_ms(self._clock.monotonic_ms())

    def succeeded(self) -> None:
        """A call is done with its messages."""
        with self._changed:
            if self._state.succeeded():
                log.warning("listener of group %s succeeds again: it goes on", self._group)
                self._changed.notify_all()

    def failed(self, why: str) -> bool:
        """A call has failed. True: so do most, and the messages have no part in it."""
        with self._changed:
            if self._state.failed(self._clock.monotonic_ms()):
                log.error(
                    "listener of group %s fails again and again, lastly with %s: it pauses, and is "
                    "tried every %g s with one call; no message loses a try meanwhile",
                    self._group,
                    why[:WHY_CHARS_MAX],
                    self._settings.pause,
                )
            return self._state.open
