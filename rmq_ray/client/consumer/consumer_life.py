"""Start and stop of a consumer, from any thread and in any order, inside of a signal handler, too.

    start ──turn──> connect ──> begin ──> RUNNING
                                  └── a stop was wanted, or it raised ──> end
    stop ──wanted──turn, within its time──> end

Decides who begins and who ends. Does not decide what that is: the consumers say so, which are made
of it.

A signal handler runs in the midst of its thread's work. A stop in there cannot wait for the start,
or the stop, that it interrupts: it says what is wanted, and what it interrupted does it. The lock
is reentrant for that, and each step is right when a handler runs before or after it.

Invariants: ``end`` is called after ``connect`` only, in one thread at a time, and not again once it
returned True. After a stop that returned True nothing that began goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rmq_ray.client.instance.managed import ServiceState
from rmq_ray.clock import Clock
from rmq_ray.errors import ClientError


class ConsumerLife:
    """Of one consumer. ``name``: as errors call it; ``end(timeout_ms)``: false when something still
    ran after that time.
    """

    def __init__(self, name: str, group: str, clock: Clock, end: Callable[[int], bool]) -> None:
        self.state = ServiceState.CREATE_JUST
        self._name = name
        self._group = group
        self._clock = clock
        self._end = end
        self._turn = threading.RLock()
        self._busy = 0  # the thread that begins or ends
        self._wanted_ms: int | None = None  # a stop was called; the time of the first one
        self._ended = True  # nothing that began goes on

    def start(self, connect: Callable[[], None], begin: Callable[[], None]) -> None:
        """``connect`` sets the state once a failure is final, and leaves nothing behind when it
        raises. ``ClientError`` when it was started or stopped before, or is stopped meanwhile:
        nothing of it goes on then.
        """
        try:
            with self._turn:
                self._start(connect, begin)
        finally:
            stopped = self._wanted_ms is not None
            if stopped:
                self.stop(self._wanted_ms or 0)
        if stopped:
            raise ClientError(
                f"{self._name} of group {self._group!r} was stopped while it started; make a "
                f"new one",
                self._group,
            )

    def stop(self, timeout_ms: int) -> bool:
        """False when not everything ended within ``timeout_ms``, and in a signal handler that
        interrupted the start or a stop: that one ends it.
        """
        if self._wanted_ms is None:
            self._wanted_ms = timeout_ms
        if self._busy == threading.get_ident():
            return False
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        if not self._turn.acquire(timeout=min(max(0, timeout_ms) / 1000, threading.TIMEOUT_MAX)):
            return False
        try:
            return self._stop(max(0, round(deadline_ms - self._clock.monotonic_ms())))
        finally:
            self._turn.release()

    # --- inside, in turn --------------------------------------------------------------------------

    def _start(self, connect: Callable[[], None], begin: Callable[[], None]) -> None:
        if self.state is not ServiceState.CREATE_JUST or self._busy == threading.get_ident():
            raise ClientError(
                f"{self._name} of group {self._group!r} cannot start: {self.state.value}; "
                f"make a new one",
                self._group,
            )
        self._busy = threading.get_ident()
        try:
            connect()
            self._ended, self.state = False, ServiceState.RUNNING
            if self._wanted_ms is None:
                begin()
        except BaseException:
            if self.state is ServiceState.RUNNING:
                self._stop(0)
                self.state = ServiceState.START_FAILED
            raise
        finally:
            self._busy = 0

    def _stop(self, timeout_ms: int) -> bool:
        self._busy = threading.get_ident()
        try:
            self.state = ServiceState.SHUTDOWN_ALREADY
            if not self._ended:
                self._ended = self._end(timeout_ms)
            return self._ended
        finally:
            self._busy = 0
