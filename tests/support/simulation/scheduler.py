"""Many processes with threads, in one real thread and in simulated time: events in a heap, threads
as greenlets that switch only where they wait.

    events:  (time, number) ─> a delivery, a timer, a thread's wake-up;
             the earliest runs, the clock stands at its time
    Process  paused: its events wait until it goes on │ dead: they never run, and its threads end
             where they wait
    Task     one thread; runs until it waits for something, then the next event runs

The same seed gives the same history: nothing here looks at a real clock, at ``hash`` or at ``id``.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from greenlet import getcurrent, greenlet

from rmq_ray.clock import ManualClock

EVENTS_MAX = 400_000  # of one history; more is a loop


class Killed(BaseException):
    """Ends a thread of a process that was killed."""


class Process:
    """What is paused and killed as a whole."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.paused_until_ms = 0.0
        self.resumed_ms = 0.0
        self.tasks: dict[Task, None] = {}
        self.connections: dict[Any, None] = {}


class Task:
    """One simulated thread. ``thread``: the object that stands for it in the code under test."""

    def __init__(
        self, process: Process, run: Callable[[], object], hub: greenlet, thread: Any = None
    ) -> None:
        self.process = process
        self.thread = thread
        self.ticket = 0
        self.ended = False
        self._run = run
        self.greenlet = greenlet(self._main, parent=hub)

    def _main(self, *_start: object) -> None:
        try:
            self._run()
        except Killed:
            pass
        finally:
            self.ended = True
            self.process.tasks.pop(self, None)


class Scheduler:
    """See the module. ``preempt``: how often taking a free lock lets others run first."""

    def __init__(self, seed: object, preempt: float = 0.02) -> None:
        self.clock = ManualClock()
        self.now_ms = self.clock.monotonic_ms()
        """Simulated time; only ``run_until`` moves it, and the clock with it."""
        self.chance = random.Random(f"{seed}")
        self.preempt = preempt
        self.current: Task | None = None
        self._events: list[tuple[float, int, Process | None, Callable[[], object]]] = []
        self.count = 0
        self._hub = getcurrent()

    # --- events -----------------------------------------------------------------------------------

    def after(
        self, delay_ms: float, call: Callable[[], object], process: Process | None = None
    ) -> None:
        """Run ``call`` later; not before ``process`` goes on, and never when it is dead."""
        self.count += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self.count, process, call))

    def run_until(self, end_ms: float) -> None:
        """Run events up to that time."""
        assert getcurrent() is self._hub
        while self._events and self._events[0][0] <= end_ms:
            at_ms, number, process, call = heapq.heappop(self._events)
            if process is not None:
                if process.dead:
                    continue
                if process.paused_until_ms > at_ms:
                    heapq.heappush(self._events, (process.paused_until_ms, number, process, call))
                    continue
            self._advance_to(at_ms)
            call()
            assert self.count < EVENTS_MAX, "the history does not come to rest"
        self._advance_to(end_ms)

    def _advance_to(self, at_ms: float) -> None:
        if at_ms > self.now_ms:
            self.clock.advance_ms(at_ms - self.now_ms)
            self.now_ms = self.clock.monotonic_ms()

    # --- processes and threads --------------------------------------------------------------------

    def spawn(self, process: Process, run: Callable[[], object], thread: Any = None) -> Task:
        """A thread that begins with the next event."""
        task = Task(process, run, self._hub, thread)
        process.tasks[task] = None
        self.after(0, partial(self._switch, task, None), process)
        return task

    def pause(self, process: Process, duration_ms: float) -> None:
        """SIGSTOP, then SIGCONT."""
        process.paused_until_ms = max(process.paused_until_ms, self.now_ms + duration_ms)
        process.resumed_ms = process.paused_until_ms

    def kill(self, process: Process) -> None:
        """kill -9: no thread of it does anything any more."""
        process.dead = True
        for task in list(process.tasks):
            if not task.ended and task.greenlet:
                self._switch(task, Killed(), throw=True)
            process.tasks.pop(task, None)

    def block(self, timeout_ms: float | None = None) -> bool:
        """The running thread waits: True when ``wake`` ended it, False when the time was over."""
        task = self.current
        assert task is not None, "only threads may wait"
        if task.process.dead:
            raise Killed
        task.ticket += 1
        if timeout_ms is not None:
            self.after(
                max(0.0, timeout_ms), partial(self._resume, task, task.ticket, False), task.process
            )
        return bool(self._hub.switch())

    def wake(self, task: Task) -> None:
        """End the wait of a thread, with the next event. Its time-out counts no more: what it was
        woken with is its own.
        """
        task.ticket += 1
        self.after(0, partial(self._resume, task, task.ticket, True), task.process)

    def sleep(self, duration_ms: float) -> None:
        """The running thread does nothing for a while."""
        self.block(duration_ms)

    def perhaps_yield(self) -> None:
        """Now and then let others run."""
        if (
            self.current is not None
            and not self.current.process.dead
            and self.chance.random() < self.preempt
        ):
            self.sleep(0)

    def _resume(self, task: Task, ticket: int, woken: bool) -> None:
        if not task.ended and task.ticket == ticket:
            task.ticket += 1
            self._switch(task, woken)

    def _switch(self, task: Task, value: object, throw: bool = False) -> None:
        before, self.current = self.current, task
        try:
            if throw:
                task.greenlet.throw(value)
            else:
                task.greenlet.switch(value)
        finally:
            self.current = before
