"""Work that must not stop the event loop: fsync, recovery, cold reads, key queries, deletion of
files.

Decides: how much such work may wait (a limit, then ``BrokerBusy``) and that results come back in
the loop. Does not decide what is slow: handlers do. Handlers see the small ``Offload`` protocol, so
that tests run the same code at once, without threads.

Invariant: ``done``, and what ``post`` and ``soon`` are given, run in the loop; an exception out of
them is fatal (reported to ``on_fatal``), never lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from rmq_ray.errors import BrokerBusy

T = TypeVar("T")
Done = Callable[[T | Exception], None]
IDLE_CHECK_S = 1.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """Pieces of work, how long the first of them has waited (ms), and how many may wait."""

    count: int
    first_ms: int
    count_max: int


class Offload(Protocol):
    """Runs work beside the loop."""

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        """Run ``work`` in a thread, then ``done(result or exception)`` in the loop. Raises
        ``BrokerBusy`` when too much waits.
        """
        ...

    def post(self, call: Callable[[], None]) -> None:
        """Run ``call`` in the loop soon; callable from any thread."""
        ...

    def soon(self, call: Callable[[], None]) -> None:
        """The same from within the loop, where it costs no system call."""
        ...

    def waiting(self) -> Waiting:
        """What no thread has begun yet."""
        ...


class ThreadOffload:
    """A few daemon threads with a bounded queue. Built in the loop; closed with ``close``."""

    def __init__(
        self,
        name: str,
        on_fatal: Callable[[object], None],
        threads: int = 3,
        waiting_max: int = 256,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_fatal = on_fatal
        self._closed = False
        self._work: queue.Queue[tuple[Callable[[], Any], Done[Any], float] | None] = queue.Queue(
            waiting_max
        )
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-offload-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        """See ``Offload.submit``."""
        try:
            self._work.put_nowait((work, done, self._loop.time()))
        except queue.Full:
            raise BrokerBusy(
                f"{self._work.maxsize} slow requests wait already; try again"
            ) from None

    def post(self, call: Callable[[], None]) -> None:
        """See ``Offload.post``; nothing happens once the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(self._guarded, call)
        except RuntimeError:
            if not self._loop.is_closed():  # asked first, it could be closed a moment later
                raise

    def soon(self, call: Callable[[], None]) -> None:
        """See ``Offload.soon``."""
        self._loop.call_soon(self._guarded, call)

    def waiting(self) -> Waiting:
        """See ``Offload.waiting``."""
        with self._work.mutex:
            first = self._work.queue[0] if self._work.queue else None
            count = len(self._work.queue)
        waited_s = 0.0 if first is None else self._loop.time() - first[2]
        return Waiting(count, int(waited_s * 1_000), self._work.maxsize)

    async def run(self, work: Callable[[], T]) -> T:
        """Await ``work`` done in a thread; its exception is raised here. ``BrokerBusy`` behind
        ``close``, too: nobody would do it.
        """
        if self._closed:
            raise BrokerBusy("the threads of this broker have ended; send again")
        future: asyncio.Future[T] = self._loop.create_future()

        def done(outcome: T | Exception) -> None:
            if not future.done():
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)

        self.submit(work, done)
        return await future

    def close(self, timeout_s: float = 5.0) -> None:
        """Let what waits run to its end, at most ``timeout_s`` for each thread."""
        self._closed = True
        for _ in self._threads:
            with contextlib.suppress(queue.Full):  # busy threads see the flag
                self._work.put_nowait(None)
        for thread in self._threads:
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            try:
                task = self._work.get(timeout=0.01 if self._closed else IDLE_CHECK_S)
            except queue.Empty:
                if self._closed:
                    return
                continue
            if task is None:  # all that was given before ``close`` has been taken
                return
            work, done, _ = task
            outcome: Any
            try:
                outcome = work()
            except Exception as error:  # noqa: BLE001 - handed on as the outcome
                outcome = error
            self.post(lambda done=done, outcome=outcome: done(outcome))  # type: ignore[misc]

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001
            self._on_fatal(error)
