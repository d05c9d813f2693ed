"""Where a thread wakes that slept for others: on the core of those who run, not on an idle one
(Linux).

    asleep    mask {core}, or its own if that does  ──whoever runs on the core wakes it──> queued there, no other core is roused
    awake     its own mask again, before the caller's code runs

The kernel wakes a thread on an idle core if it finds one, and an idle core is slow to rouse (a
virtual one: through the hypervisor). A thread that needs the interpreter lock gains nothing there:
the waker has that lock, and what it will touch is in the cache of the waker's core. So a thread
that sleeps in a crowd may narrow its own affinity to the crowd's core until it goes on. Two changes
of a mask cost as much as a switch of threads, so a thread that woke at home without them sleeps
without them, until it wakes elsewhere.

Decides where threads sleep. Does not decide who is a crowd, and when it has a home
(``client.sending.group_commit``, ``client.sending.trials``); the reader threads of connections
follow. Invariants: a thread has its former mask again when ``on_core`` returns or raises; only the
mask of the calling thread is touched, read anew each time; the main thread is never narrowed, since
signal handlers run in it. A mask set from outside (``taskset``) while a thread sleeps narrowed is
undone by its waking.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger("rmq_ray.remoting")

STAY_MS = 1_000.0
"""A core is the crowd's for so long; then it is that of whoever asks, since the kernel may have
moved the crowd.
"""
FOLLOW_MS = 100.0
"""Readers follow a crowd that asked so recently."""
NARROW_MAX = 256
"""Sleeps of a thread with a narrow mask before it tries its own again."""

FREE_ENOUGH = 32
"""Sleeps with its own mask, each of which ended at home, that halve the number of narrow ones after
the next that does not.
"""

T = TypeVar("T")


def _cpu_reader() -> Callable[[], int] | None:
    """``sched_getcpu``, which keeps the interpreter lock (0.1 us); None where threads cannot be
    placed.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        read: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu
        os.sched_setaffinity(
            0, os.sched_getaffinity(0)
        )  # changes nothing; some sandboxes refuse it
        return read if read() >= 0 else None
    except (AttributeError, OSError):
        return None


_current_cpu = _cpu_reader()


class HomeCore:
    """Of one process, since it has one interpreter lock. Threads may ask at once: they may get
    different cores, which does no harm.
    """

    def __init__(self) -> None:
        self._core: int | None = None
        self._taken_ms = self._asked_ms = float("-inf")

    def of_crowd(self, now_ms: float) -> int | None:
        """For a crowd to wake on: the core that was the crowd's, or that of the calling thread.
        None where threads cannot be placed or have one core.
        """
        if _current_cpu is None:
            return None
        if now_ms - self._taken_ms > STAY_MS:
            self._core = _current_cpu() if len(os.sched_getaffinity(0)) > 1 else None
            self._taken_ms = now_ms
        self._asked_ms = now_ms
        return self._core

    def move(self, now_ms: float) -> int | None:
        """The crowd goes to another core of the process: the next one. Returns the one that it
        leaves.
        """
        left = self._core
        cores = sorted(os.sched_getaffinity(0)) if left is not None else []
        if len(cores) > 1:
            self._core = next(
                (core for core in cores if left is not None and core > left), cores[0]
            )
            self._taken_ms = now_ms
        return left

    def move_back(self, core: int | None, now_ms: float) -> None:
        """To the core that ``move`` left."""
        self._core, self._taken_ms = core, now_ms

    def leave(self) -> None:
        """The crowd sleeps anywhere: its readers, too."""
        self._asked_ms = float("-inf")

    def of_reader(self, now_ms: float) -> int | None:
        """For a thread that reads for the crowd; None while there is none."""
        return self._core if now_ms - self._asked_ms < FOLLOW_MS else None


HOME = HomeCore()


class Sleeper:
    """How one thread sleeps: with a narrow mask, or with its own as long as it wakes at home all
    the same.
    """

    __slots__ = ("_free", "_narrow_left", "_narrow_next")

    def __init__(self) -> None:
        self._free = 0
        """Sleeps with the thread's own mask in a row."""
        self._narrow_left = 0
        self._narrow_next = 1

    def narrows(self, core: int) -> bool:
        """Asked by the thread before each sleep."""
        assert _current_cpu is not None
        if _current_cpu() != core:
            self._narrow_left = self._narrow_next
            if self._free:
                self._narrow_next = min(2 * self._narrow_next, NARROW_MAX)
                self._free = 0
        if self._narrow_left:
            self._narrow_left -= 1
            return True
        self._free += 1
        if self._free >= FREE_ENOUGH:
            self._free, self._narrow_next = 1, max(self._narrow_next // 2, 1)
        return False


def on_core(core: int | None, sleeper: Sleeper, sleep: Callable[[], T]) -> T:
    """``sleep()``, with the calling thread's affinity narrowed to ``core`` if need be; as it is for
    None, in the main thread, and if it may not run there.
    """
    if core is None or not sleeper.narrows(core):
        return sleep()
    former = os.sched_getaffinity(0)
    if core not in former or threading.get_ident() == threading.main_thread().ident:
        return sleep()
    try:
        with contextlib.suppress(OSError):  # the process may not run there any more
            os.sched_setaffinity(0, (core,))
        return sleep()
    finally:
        # no function of Python's before the call: an exception from outside would strike at its
        # start
        try:
            os.sched_setaffinity(0, former)
        except OSError as error:
            log.debug("cores %s were taken from the process: %s", former, error)
