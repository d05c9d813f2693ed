"""Calls that happen later, once: one daemon thread and a heap. For pulls that are tried again and
messages kept for another try.

Decides nothing. What is called must be quick or talk to one broker only; it runs one after the
other. A call that raises is logged, the others go on.

Invariant: calls due at the same time run in the order in which they were asked for; after ``close``
none starts.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable

from rmq_ray.clock import Clock
from rmq_ray.errors import ClientError

IDLE_WAIT_MS = 1_000.0
CALLS_MAX = 1_000_000

log = logging.getLogger("rmq_ray.client.instance.delayed")


class DelayedCalls:
    """``after(ms, call)`` from any thread. ``run_due`` may be used without the thread (tests)."""

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._wake = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def after(self, delay_ms: float, call: Callable[[], None]) -> None:
        """Run ``call`` in ``delay_ms``; nothing when closed. ``ClientError`` when a million calls
        wait already.
        """
        with self._wake:
            if self._closed:
                return
            if len(self._heap) >= CALLS_MAX:
                raise ClientError(
                    f"{self._name}: {CALLS_MAX} delayed calls wait already; the listener or "
                    f"its broker is far too slow",
                    CALLS_MAX,
                )
            self._count += 1
            entry = (self._clock.monotonic_ms() + delay_ms, self._count, call)
            heapq.heappush(self._heap, entry)
            if self._heap[0] is entry:
                self._wake.notify()

    def run_due(self) -> int:
        """Run what is due; returns how many calls that were."""
        done = 0
        while (call := self._take()) is not None:
            done += 1
            try:
                call()
            except Exception as error:  # noqa: BLE001 - one failing call must not end the others
                log.warning("%s: a delayed call failed: %r", self._name, error)
        return done

    def close(self, timeout_ms: int = 3_000) -> None:
        """Forget what waits; wait for the running call, unless called by it."""
        with self._wake:
            self._closed = True
            self._heap.clear()
            self._wake.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_ms / 1000)

    def _take(self) -> Callable[[], None] | None:
        with self._wake:
            if self._heap and self._heap[0][0] <= self._clock.monotonic_ms():
                return heapq.heappop(self._heap)[2]
            return None

    def _run(self) -> None:
        while self._wait_for_next():
            self.run_due()

    def _wait_for_next(self) -> bool:
        """Sleeps until the next call is due or one is added; False when closed."""
        with self._wake:
            wait_ms = (
                min(IDLE_WAIT_MS, self._heap[0][0] - self._clock.monotonic_ms())
                if self._heap
                else IDLE_WAIT_MS
            )
            if wait_ms > 0 and not self._closed:
                self._wake.wait(wait_ms / 1000)
            return not self._closed
