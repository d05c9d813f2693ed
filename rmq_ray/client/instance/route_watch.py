"""Looks at a topic's route again and again while sends to it fail: a broker that is promoted
elsewhere is found within 50 ms of its registration.

Decides when to look. Does not fetch (``ClientInstance``) and does not send. Called by every retry
of a send. Invariant: one look at a time for each topic, and none once no send has failed for a
second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rmq_ray.client.instance.timers import Timers
from rmq_ray.clock import Clock

EVERY_MS = 50.0
LASTING_MS = 1_000.0


class RouteWatch:
    """Of one client instance. ``refresh(topic)`` fetches one route, in the timers' thread."""

    def __init__(self, timers: Timers, clock: Clock, refresh: Callable[[str], None]) -> None:
        self._timers = timers
        self._clock = clock
        self._refresh = refresh
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}

    def look(self, topic: str) -> None:
        """A send to the topic failed and will be tried again: look now, and go on looking. Any
        thread; returns at once.
        """
        with self._lock:
            watched = topic in self._until
            self._until[topic] = self._clock.monotonic_ms() + LASTING_MS
        if not watched:
            self._timers.soon(f"watch of {topic}", lambda: self._go_on(topic))

    def _go_on(self, topic: str) -> None:
        with self._lock:
            if self._clock.monotonic_ms() > self._until.get(topic, 0.0):
                self._until.pop(topic, None)
                return
        try:
            self._refresh(topic)
        finally:
            self._timers.after(EVERY_MS, lambda: self._go_on(topic))
