"""Where a thread wakes that slept for others: on the core of those who run, not on an idle one (Linux).

    asleep    mask {home} ──whoever runs on home wakes it──> queued on home, no other core is roused
    awake     its own mask again, before the caller's code runs

The kernel wakes a thread on an idle core if it finds one, and an idle core is slow to rouse (a virtual one: through the hypervisor); a thread that needs the
interpreter lock gains nothing there, as the waker has that lock. So a thread that sleeps in a crowd narrows its own affinity to the crowd's core for as long
as it sleeps. Decides when that pays: a thread is narrowed after it was seen to wake elsewhere, for ``NARROWED_SLEEPS`` sleeps, then looked at again; where
the kernel leaves threads together by itself, as on a busy machine, nothing is changed. Does not decide who is a crowd (``client.sharing``).

Invariants: a thread has its former mask again when ``wait`` returns or raises; only the mask of the calling thread is touched, read anew each time; the
main thread is never narrowed, since signal handlers run in it. A mask set from outside (``taskset``) while a thread sleeps narrowed is undone by its waking.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
from collections.abc import Callable

log = logging.getLogger("rmq_ray.client")

NARROWED_SLEEPS = 32
"""A look at where the kernel wakes a thread costs a move to another core and back, 50 to 90 us, where it does that."""


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


class Bed:
    """Of one thread: how it sleeps in crowds."""

    __slots__ = ("_narrowed_left",)

    def __init__(self) -> None:
        self._narrowed_left = 0

    def wait(self, lock: threading.Lock, timeout_s: float, core: int) -> bool:
        """``lock.acquire``, to be woken on ``core``, a value of ``home``."""
        assert _current_cpu is not None
        if self._narrowed_left > 0:
            self._narrowed_left -= 1
            return acquire_on(core, lock, timeout_s)
        woken = lock.acquire(timeout=timeout_s)
        if _current_cpu() != core and threading.current_thread() is not threading.main_thread():
            self._narrowed_left = NARROWED_SLEEPS
        return woken


def acquire_on(core: int, lock: threading.Lock, timeout_s: float) -> bool:
    """``lock.acquire`` with the calling thread's affinity narrowed to ``core`` meanwhile; as it is if the thread may not run there."""
    former = os.sched_getaffinity(0)
    try:
        if core in former:
            with contextlib.suppress(OSError):  # the process may not run there any more
                os.sched_setaffinity(0, (core,))
        return lock.acquire(timeout=timeout_s)
    finally:
        try:  # no function of Python's before the call: an exception from outside would strike at its start
            os.sched_setaffinity(0, former)
        except OSError as error:
            log.debug("cores %s were taken from the process: %s", former, error)
