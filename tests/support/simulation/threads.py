"""``threading`` and ``queue.SimpleQueue`` for code under a ``Scheduler``: the same names, the same
meaning, simulated time.

``simulated(scheduler)`` puts them in place of the real ones in every module of ``rmq_ray.client``
that is loaded, so that unchanged product code runs. Locks are handed on in the order of asking.
Time-outs are seconds, as in the real ones.
"""

from __future__ import annotations

import gc
import logging
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any

from rmq_ray.client.instance import at_exit, broker_link, client_instance, timers
from tests.support.simulation.scheduler import Scheduler, Task

TIMES = (
    # threads that look now and then look less often: they are woken anyway
    (timers, "IDLE_WAIT_MS", 10_000.0),
    (client_instance, "ROUTE_REFRESH_MS", 8_000),  # a topic that grew is known soon
)


class Waiters:
    """Threads that wait for one thing, in order."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: deque[Task] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, timeout_s: float | None) -> bool:
        task = self._scheduler.current
        assert task is not None, "only threads may wait"
        self._waiting.append(task)
        try:
            woken = self._scheduler.block(None if timeout_s is None else timeout_s * 1000)
        except BaseException:
            self._forget(task)
            raise
        if not woken:
            self._forget(task)
        return woken

    def wake(self) -> bool:
        if not self._waiting:
            return False
        self._scheduler.wake(self._waiting.popleft())
        return True

    def _forget(self, task: Task) -> None:
        if task in self._waiting:
            self._waiting.remove(task)


class Primitives:
    """What stands in for the module ``threading``."""

    TIMEOUT_MAX = threading.TIMEOUT_MAX

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._outside = SimThread(scheduler, name="outside")
        self.local = (
            threading.local
        )  # one real thread: what is kept in it is everybody's, which only caches allow

    def Lock(self) -> SimLock:  # noqa: N802
        return SimLock(self.scheduler)

    def RLock(self) -> SimRLock:  # noqa: N802
        return SimRLock(self.scheduler)

    def Condition(self, lock: SimLock | None = None) -> SimCondition:  # noqa: N802
        return SimCondition(self.scheduler, lock)

    def Event(self) -> SimEvent:  # noqa: N802
        return SimEvent(self.scheduler)

    def Semaphore(self, value: int = 1) -> SimSemaphore:  # noqa: N802
        return SimSemaphore(self.scheduler, value)

    BoundedSemaphore = Semaphore

    def Thread(
        self,
        target: Callable[..., object],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str = "",
        daemon: bool = True,
    ) -> SimThread:
        return SimThread(self.scheduler, lambda: target(*args, **(kwargs or {})), name)

    def current_thread(self) -> SimThread:
        task = self.scheduler.current
        return task.thread if task is not None and task.thread is not None else self._outside

    def get_ident(self) -> int:
        return id(self.current_thread())


class SimThread:
    def __init__(
        self, scheduler: Scheduler, run: Callable[[], object] = lambda: None, name: str = ""
    ) -> None:
        self.name = name
        self.daemon = True
        self.ident: int | None = None
        self._scheduler = scheduler
        self._run = run
        self._task: Task | None = None
        self._joining = Waiters(scheduler)

    def start(self) -> None:
        assert self._scheduler.current is not None, "a thread belongs to the process that starts it"
        self.ident = id(self)
        self._task = self._scheduler.spawn(self._scheduler.current.process, self._main, self)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.ended

    def join(self, timeout: float | None = None) -> None:
        if self.is_alive():
            self._joining.wait(timeout)

    def _main(self) -> None:
        try:
            self._run()
        finally:
            if self._task is not None:
                self._task.ended = True
            while self._joining.wake():
                pass


class SimLock:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held = False
        self._waiters = Waiters(scheduler)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._scheduler.perhaps_yield()
        if not self._held:
            self._held = True
            return True
        if not blocking or timeout == 0:
            return False
        return self._waiters.wait(None if timeout < 0 else timeout)

    def release(self) -> None:
        assert self._held, "a lock that nobody holds was released"
        self._held = self._waiters.wake()

    def locked(self) -> bool:
        return self._held

    __enter__ = acquire

    def __exit__(self, *_error: object) -> None:
        self.release()


class SimRLock:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = SimLock(scheduler)
        self._owner: Task | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._depth and self._owner is self._scheduler.current:
            self._depth += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner, self._depth = self._scheduler.current, 1
        return True

    def release(self) -> None:
        assert self._depth and self._owner is self._scheduler.current, (
            "a lock was released by one that does not hold it"
        )
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()


class SimCondition:
    def __init__(self, scheduler: Scheduler, lock: SimLock | None = None) -> None:
        self._lock = lock or SimLock(scheduler)
        self._waiters = Waiters(scheduler)
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def wait(self, timeout: float | None = None) -> bool:
        self._lock.release()
        try:
            return self._waiters.wait(timeout)
        finally:
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        while not predicate():
            if not self.wait(timeout):
                return predicate()
        return True

    def notify(self, n: int = 1) -> None:
        for _ in range(n):
            self._waiters.wake()

    def notify_all(self) -> None:
        self.notify(len(self._waiters))

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()


class SimEvent:
    def __init__(self, scheduler: Scheduler) -> None:
        self._set = False
        self._waiters = Waiters(scheduler)

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        while self._waiters.wake():
            pass

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._set or self._waiters.wait(timeout) or self._set


class SimSemaphore:
    def __init__(self, scheduler: Scheduler, value: int) -> None:
        self._value = value
        self._waiters = Waiters(scheduler)

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if self._value:
            self._value -= 1
            return True
        return blocking and self._waiters.wait(timeout)

    def release(self, n: int = 1) -> None:
        for _ in range(n):
            if not self._waiters.wake():
                self._value += 1

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()


class SimSimpleQueue:
    def __init__(self, scheduler: Scheduler) -> None:
        self._items: deque[Any] = deque()
        self._waiters = Waiters(scheduler)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        self._waiters.wake()

    put_nowait = put

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while not self._items:
            if not block or not self._waiters.wait(timeout):
                if self._items:
                    break
                raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items


@lru_cache(1)
def _users_of(
    reals: tuple[tuple[str, Any], ...], _modules: int
) -> list[tuple[ModuleType, str, Any]]:
    """Modules of clients that use these, and under which name; as long as no module is loaded. The
    thread that waits for the end of this process is no part of a simulation.
    """
    return [
        (module, name, real)
        for path, module in list(sys.modules.items())
        if path.startswith("rmq_ray.client.") and module is not at_exit
        for name, real in reals
        if vars(module).get(name) is real
    ]


@contextmanager
def quiet() -> Iterator[None]:
    """No log below CRITICAL. Around many histories it is quicker than in each: a logger's new level
    costs what a dozen messages do.
    """
    logger = logging.getLogger("rmq_ray")
    level = logger.level
    if level > logging.CRITICAL:
        yield
        return
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def simulated(scheduler: Scheduler, pool: Callable[..., Any]) -> Iterator[None]:
    """While it lasts, clients use simulated threads, and ``pool`` in place of the connection pool.
    Quiet: no log below CRITICAL.
    """
    stand_ins: dict[str, tuple[Any, Any]] = {
        "threading": (threading, Primitives(scheduler)),
        "SimpleQueue": (queue.SimpleQueue, lambda: SimSimpleQueue(scheduler)),
        "ConnectionPool": (broker_link.ConnectionPool, pool),
    }
    reals = {name: real for name, (real, _) in stand_ins.items()}
    replaced = [*_users_of(tuple(reals.items()), len(sys.modules))]
    for module, name, _ in replaced:
        setattr(module, name, stand_ins[name][1])
    for module, name, value in TIMES:
        replaced.append((module, name, getattr(module, name)))
        setattr(module, name, value)
    gc.disable()  # a history is short; its garbage is collected after it
    try:
        with quiet():
            yield
    finally:
        gc.enable()
        for module, name, value in replaced:
            setattr(module, name, value)
        client_instance._registry.instances.clear()
