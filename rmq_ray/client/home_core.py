"""Where a thread wakes that slept for others: on the core of those who run, not on an idle one (Linux), as long as that is faster.

    asleep    mask {core} ──whoever runs on the core wakes it──> queued there, no other core is roused
    awake     its own mask again, before the caller's code runs

The kernel wakes a thread on an idle core if it finds one, and an idle core is slow to rouse (a virtual one: through the hypervisor); a thread that needs the
interpreter lock gains nothing there, as the waker has that lock. So a thread that sleeps in a crowd may narrow its own affinity to the crowd's core until it
goes on. Whether that is faster depends on what else the machine does: on a busy one threads stay together by themselves, and changing masks only costs. So it
is tried, 100 ms of each two seconds, and kept while it gives a tenth more.

    Phase    KEEP ──1.8 s──> BASE: as it is, counted ──100 ms──> TRIAL: the other way, counted ──100 ms──> KEEP, the better way

Decides when and where threads are narrowed. Does not decide who is a crowd (``client.sharing``).
Invariants: a thread has its former mask again when ``on_core`` returns or raises; only the mask of the calling thread is touched, read anew each time; the
main thread is never narrowed, since signal handlers run in it. A mask set from outside (``taskset``) while a thread sleeps narrowed is undone by its waking.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

log = logging.getLogger("rmq_ray.client")

KEEP_MS = 1_800.0
TRIAL_MS = 100.0
"""2,000 messages of a crowd or more; after half of that the threads have not gathered yet, and the gain does not show."""
GAIN_MIN = 1.1
COUNT_MIN = 200
"""Messages of a phase: few slow frames say nothing."""

T = TypeVar("T")


def _cpu_reader() -> Callable[[], int] | None:
    """``sched_getcpu``, which keeps the interpreter lock (0.1 us); None where threads cannot be placed."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        read: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu
        os.sched_setaffinity(0, os.sched_getaffinity(0))  # changes nothing; some sandboxes refuse it
        return read if read() >= 0 else None
    except (AttributeError, OSError):
        return None


_current_cpu = _cpu_reader()


def home() -> int | None:
    """The core that the calling thread runs on, for others to wake on; None where threads cannot be placed or have one core only."""
    return None if _current_cpu is None or len(os.sched_getaffinity(0)) < 2 else _current_cpu()


def on_core(core: int | None, work: Callable[[], T]) -> T:
    """``work()`` with the calling thread's affinity narrowed to ``core``; as it is for None, in the main thread, and if the thread may not run there."""
    if core is None:
        return work()
    former = os.sched_getaffinity(0)
    if core not in former or threading.get_ident() == threading.main_thread().ident:
        return work()
    try:
        with contextlib.suppress(OSError):  # the process may not run there any more
            os.sched_setaffinity(0, (core,))
        return work()
    finally:
        try:  # no function of Python's before the call: an exception from outside would strike at its start
            os.sched_setaffinity(0, former)
        except OSError as error:
            log.debug("cores %s were taken from the process: %s", former, error)


class Phase(Enum):
    """See the drawing."""

    KEEP = 1
    BASE = 2
    TRIAL = 3


class Trials:
    """Which way is faster: narrowed or not. Not thread-safe; begins with not."""

    def __init__(self) -> None:
        self._phase = Phase.KEEP
        self._narrow = False
        self._base_rate = 0.0
        self._count = 0
        self._begun_ms = self._ends_ms = 0.0

    def count(self, messages: int) -> None:
        """So many were sent."""
        self._count += messages

    def narrows(self, now_ms: float) -> bool:
        """Whether the threads of a group that opens now sleep narrowed."""
        if now_ms >= self._ends_ms:
            self._turn(now_ms)
        return self._narrow is not (self._phase is Phase.TRIAL)

    def _turn(self, now_ms: float) -> None:
        rate = self._count / (now_ms - self._begun_ms) if now_ms > self._begun_ms else 0.0
        doubtful = self._count < COUNT_MIN or now_ms - self._ends_ms > TRIAL_MS  # too little was sent, or nothing for long
        if self._phase is Phase.KEEP:
            self._phase = Phase.BASE
        elif self._phase is Phase.BASE:
            self._base_rate = rate
            self._phase = Phase.KEEP if doubtful else Phase.TRIAL
        else:
            if not doubtful and rate > GAIN_MIN * self._base_rate:
                self._narrow = not self._narrow
            self._phase = Phase.KEEP
        self._count, self._begun_ms = 0, now_ms
        self._ends_ms = now_ms + (KEEP_MS if self._phase is Phase.KEEP else TRIAL_MS)
