"""Users' callbacks of a producer's futures: where they run, and what they must not wait for.

    reader thread ── a future has ended ──> line ── worker thread: one callback after the other
                                              └── the closing thread, once the worker has ended

Decides nothing about what futures hold. Invariants: a callback runs once; it ends nothing but
itself, whatever it raises (``guard``). Futures end, and callbacks run, by the thread that runs this
one: so a callback never waits for an end there, it gets a ``ClientError`` at once.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from rmq_ray.client.instance.timers import ClientTimers
from rmq_ray.errors import ClientError
from rmq_ray.guard import guarded, guarded_in_caller

T = TypeVar("T")
KIND, THEN = "a callback of a future", "the others are called"
Callback = Callable[[Any], object]
Wanted = Mapping[Any, Sequence[Callback]]
"""Future -> what is called with it."""

log = logging.getLogger("rmq_ray.client")


class Callbacks:
    """Of one producer; ``worker``: its timers. Any thread."""

    def __init__(self, worker: ClientTimers) -> None:
        self._worker = worker
        self._line: deque[Wanted] = deque()
        self._running: set[int] = set()
        """Threads that run callbacks now."""

    def run(self, wanted: Wanted) -> None:
        """Call them soon; their futures have ended."""
        self._line.append(wanted)
        if self._worker.closed:
            self.run_all()
        else:  # what the worker forgets when it closes now, the closing thread finds
            self._worker.after(0.0, self.run_all)

    def run_all(self) -> None:
        """Those that wait, in the calling thread."""
        me = threading.get_ident()
        if me in self._running:
            return  # a callback that ends a future; its own comes behind it
        self._running.add(me)
        try:
            while self._line:  # ends: each round takes one
                try:
                    wanted = self._line.popleft()
                except IndexError:  # somebody else took it
                    break
                call_all(wanted)
        finally:
            self._running.discard(me)

    def wait_through(self, timeout_ms: float) -> None:
        """Until those that wait now have run, before the worker closes; a callback that closes the
        producer does not wait for itself.
        """
        if not self._worker.is_current_thread:
            through = threading.Event()
            self._worker.after(0.0, through.set)
            through.wait(timeout_ms / 1000)

    @property
    def outstanding(self) -> int:
        """How many wait, or threads run some."""
        return len(self._line) + len(self._running)

    def check_may_wait(self, what: str) -> None:
        """``ClientError`` in a callback."""
        if threading.get_ident() in self._running:
            raise ClientError(
                f"a callback of this producer cannot wait for {what}: what it waits for comes "
                f"about behind it, in its own thread. Add a callback to that instead, or wait in "
                f"a thread of your own",
                what,
            )


class OwnFuture(Future[T]):
    """A future that a producer ends. ``runs``: who calls its callbacks; None = who ends it."""

    def __init__(self, runs: Callbacks | None) -> None:
        self._waiting: list[Any] = []
        self._done_callbacks: list[Callback]  # as the base makes it
        self._runs = runs
        super().__init__()
        self.set_running_or_notify_cancel()  # cancel() is False: what it stands for is on its way

    def result(self, timeout: float | None = None) -> T:
        """As of any future; ``ClientError`` in a callback of the same producer."""
        self._check_may_wait()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The same."""
        self._check_may_wait()
        return super().exception(timeout)

    def orphan(self, error: Exception) -> None:
        """In a forked child only: locks may be held by threads that do not exist here."""
        self._condition, self._runs = threading.Condition(), None
        self.set_exception(error)

    def _check_may_wait(self) -> None:
        if self._runs is not None and not self.done():
            self._runs.check_may_wait("one of its replies")

    @property
    def _waiters(self) -> list[Any]:
        self._check_may_wait()
        return self._waiting

    @_waiters.setter
    def _waiters(self, waiters: list[Any]) -> None:
        self._waiting = waiters

    def _invoke_callbacks(self) -> None:
        callbacks = self._done_callbacks
        if callbacks:
            (call_all if self._runs is None else self._runs.run)({self: callbacks})

    def add_done_callback(self, fn: Callback) -> None:
        """As of any future: see ``SendFuture``."""
        with self._condition:
            if not self.done():
                self._done_callbacks.append(fn)
                return
        call_now(self, fn)


def call_all(wanted: Wanted) -> None:
    """One after the other; in a thread of ours."""
    for future, callbacks in wanted.items():
        for callback in callbacks:
            guarded(log, KIND, callback, future, then=THEN, about=callback)


def call_now(future: Future[Any], callback: Callback) -> None:
    """The same in the thread of who adds it, since the future has ended."""
    guarded_in_caller(log, KIND, callback, future, then=THEN, about=callback)
