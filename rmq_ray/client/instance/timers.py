"""Repeated actions of one client instance or producer, and calls that happen later, once: each kind
run by one daemon thread.

``ClientTimers`` decides which action is due. Knows nothing of what the actions do. An action that
raises is logged and runs again at its next time: a timer must not die of one bad broker.

Invariants: actions of one instance never run at the same time as one another; a late action is not
repeated for the turns it missed.

``DelayedCalls`` is a heap, for pulls that are tried again and messages kept for another try. It
decides nothing. What is called must be quick or talk to one broker only; it runs one after the
other. A call that raises is logged, the others go on.

Invariant: calls due at the same time run in the order in which they were asked for; after ``close``
none starts.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable

from rmq_ray.clock import Clock
from rmq_ray.errors import ClientError
from rmq_ray.guard import guarded

IDLE_WAIT_MS = 500.0
"""The longest that the thread sleeps at once, and a time that changes meanwhile is missed."""
CALLS_WAIT_MS = 1_000.0  # the same, of calls that happen once
CALLS_MAX = 1_000_000  # that wait; more are refused

log = logging.getLogger("rmq_ray.client.instance.timers")


class ClientTimers:
    """A table of repeated actions and the thread that runs them. ``run_due`` may be called without
    the thread (tests).
    """

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name
        self._due: dict[
            str, tuple[float, int, Callable[[], None]]
        ] = {}  # name -> (next time, period, action)
        self._soon: dict[str, Callable[[], None]] = {}
        self._later: list[
            tuple[float, int, Callable[[], None]]
        ] = []  # heap: time, order of arrival, action
        self._arrivals = itertools.count()
        self._wake = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def closed(self) -> bool:
        """True when nothing starts any more."""
        return self._closed

    @property
    def is_current_thread(self) -> bool:
        """True in an action: what it waits for must not need these timers."""
        return threading.current_thread() is self._thread

    def every(
        self, name: str, period_ms: int, action: Callable[[], None], first_ms: int | None = None
    ) -> None:
        """Run ``action`` after ``first_ms`` (None = a period), then each ``period_ms``. The same
        name replaces.
        """
        due = self._clock.monotonic_ms() + (period_ms if first_ms is None else first_ms)
        with self._wake:
            self._due[name] = (due, period_ms, action)
            self._wake.notify()

    def soon(self, name: str, action: Callable[[], None]) -> None:
        """Run ``action`` once, as soon as the thread is free. A name that already waits is not
        queued twice.
        """
        with self._wake:
            self._soon.setdefault(name, action)
            self._wake.notify()

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Run ``action`` once, ``delay_ms`` from now at the earliest. What still waits when the
        timers close is not run.
        """
        entry = (self._clock.monotonic_ms() + delay_ms, next(self._arrivals), action)
        with self._wake:
            heapq.heappush(self._later, entry)
            if self._later[0] is entry:
                self._wake.notify()

    def cancel(self, name: str) -> None:
        """Forget an action; it may be running right now."""
        with self._wake:
            self._due.pop(name, None)
            self._soon.pop(name, None)

    def start(self) -> None:
        """Start the thread (daemon: it never keeps a process alive)."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def close(self, timeout_ms: int = 3_000) -> None:
        """No action starts after this; waits for a running one, unless called by it."""
        with self._wake:
            self._closed = True
            self._due.clear()
            self._soon.clear()
            self._later.clear()
            self._wake.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_ms / 1000)

    def run_due(self) -> None:
        """Run everything that is due now, each once, in the order of its time."""
        for name, action in self._take_due():
            guarded(log, f"{self._name}: {name}", action, then="the others go on")

    def _take_due(self) -> list[tuple[str, Callable[[], None]]]:
        now = self._clock.monotonic_ms()
        with self._wake:
            taken = list(self._soon.items())
            self._soon.clear()
            while self._later and self._later[0][0] <= now:
                taken.append(("a delayed action", heapq.heappop(self._later)[2]))
            for name, (due, period, action) in sorted(
                self._due.items(), key=lambda item: item[1][0]
            ):
                if due <= now:
                    taken.append((name, action))
                    self._due[name] = (max(due + period, now), period, action)
            return taken

    def _run(self) -> None:
        while not self.closed:
            self.run_due()
            with self._wake:
                if self._soon or self.closed:
                    continue
                next_due = min((due for due, _, _ in self._due.values()), default=float("inf"))
                if self._later:
                    next_due = min(next_due, self._later[0][0])
                wait_ms = min(IDLE_WAIT_MS, next_due - self._clock.monotonic_ms())
                if wait_ms > 0:
                    self._wake.wait(wait_ms / 1000)


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
            guarded(log, f"{self._name}: a delayed call", call, then="the others go on")
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
                min(CALLS_WAIT_MS, self._heap[0][0] - self._clock.monotonic_ms())
                if self._heap
                else CALLS_WAIT_MS
            )
            if wait_ms > 0 and not self._closed:
                self._wake.wait(wait_ms / 1000)
            return not self._closed
