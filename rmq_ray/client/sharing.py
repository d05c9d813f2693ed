"""Threads that ask at once share frames: who finds enough frames out joins a group, and the group leaves with the next answer.

    thread 1, 2   alone: one item, one frame each, written by the calling thread
    thread 3..n   join the open group and sleep ── an answer comes ──> its threads wake one another; the last one ships the group, and so on

One thread's request is one round trip, as ever; the more threads, the more items a frame. A group leaves when one of the frames out is answered and that
one's threads are awake, at most 2 ms later: those who ask again at once share the next frame. Decides who goes alone, who joins, who wakes whom and
when a group leaves. Does not decide what an item is or how a group travels: ``combining`` (messages), ``half_sending``, ``ending``.

Waking in a chain is what makes this cheap: threads that are woken together queue for the interpreter lock and are switched to twice each.

Invariants: while a key has an open group, a frame of that key is out, whose end ships the group; a thread waits on a
lock of its own, which is released once per group, by the thread before it; each frame out belongs to exactly one ``leave``.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from rmq_ray.clock import Clock

FRAMES_ALONE_MAX = 2
"""Frames of a key out before threads share. Measured with 64 threads that send: 1 and 2 give 34,000 messages a second, 4 gives
23,000, 8 gives 22,000, no sharing 17,000; with 2 the next frame is on its way while one is answered."""
SHIP_WITHIN_MS = 2.0  # of an answer, however long its threads take to wake
WAIT_SLICE_S = 0.5  # cancellation reaches a thread between waits only

Item = TypeVar("Item")


class Group(Generic[Item]):
    """Items of several threads that will be one frame. Guarded by the sharing's lock until it leaves."""

    __slots__ = ("bytes", "clock", "done", "ended_ms", "items", "key", "left", "locks")

    def __init__(self, key: Any, clock: Clock) -> None:
        self.key = key
        self.clock = clock
        self.ended_ms = 0.0
        self.done = False
        self.items: list[Item] = []
        self.locks: list[threading.Lock | None] = []
        """Of the threads, in the order in which they wake; None for one that does not wait any more."""
        self.bytes = 0
        self.left = False

    def ended(self) -> None:
        """The frame is answered or given up, and what it came to is written down: wake the first thread."""
        self.ended_ms = self.clock.monotonic_ms()
        self.done = True
        self.wake_from(0)

    def wake_from(self, index: int) -> bool:
        """Wake the next thread that waits; False when there is none."""
        for at in range(index, len(self.locks)):
            lock = self.locks[at]
            if lock is not None:
                lock.release()
                return True
        return False


G = TypeVar("G", bound=Group[Any])


class _Mine(threading.local):
    lock: threading.Lock | None = None


class Sharing(ABC, Generic[Item, G]):
    """See the module. Thread-safe. ``items_max``, ``bytes_max``: of a group; ``alone_max``: frames of a key out before threads share."""

    alone_max: ClassVar[int] = FRAMES_ALONE_MAX

    def __init__(self, clock: Clock, items_max: int, bytes_max: int) -> None:
        self._clock = clock
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._mine = _Mine()
        self._out: dict[Any, int] = {}
        self._open: dict[Any, G] = {}

    @abstractmethod
    def _ship(self, group: G) -> None:
        """Send the group off without waiting; ``group.ended`` is called once, when it is answered or given up."""

    def join(self, key: Any, item: Item, size: int, make: Callable[[], G]) -> tuple[G, int] | None:
        """A place in a group of ``key``; None = go alone, and call ``left`` afterwards whatever happens. ``make``: a new group."""
        with self._lock:
            out = self._out.get(key, 0)
            group = self._open.get(key)
            full = group is not None and (group.bytes + size > self._bytes_max or len(group.items) >= self._items_max)
            if out < self.alone_max or full:
                self._out[key] = out + 1
                return None
            if group is None:
                group = self._open[key] = make()
            group.items.append(item)
            group.locks.append(self._own_lock())
            group.bytes += size
            return group, len(group.items) - 1

    def left(self, key: Any) -> None:
        """A frame of ``key`` is answered: the open group takes its place, if there is one."""
        with self._lock:
            group = self._open.pop(key, None)
            if group is None:
                out = self._out.get(key, 0) - 1
                if out > 0:
                    self._out[key] = out
                else:
                    self._out.pop(key, None)
        if group is not None:
            self._ship(group)

    def sleep(self, group: G, index: int, patience_ms: float) -> bool:
        """Until the group is done; then the next thread wakes, or the next group leaves. False: not done within ``patience_ms``."""
        lock = self._own_lock()
        woken = False
        deadline = self._clock.monotonic_ms() + patience_ms
        try:
            while (left := deadline - self._clock.monotonic_ms()) > 0:
                woken = lock.acquire(timeout=min(WAIT_SLICE_S, left / 1000))
                if group.done:
                    break
                self._rescue(group)
        finally:
            if not woken:
                self._mine.lock = None  # it may still be released for this group
            self._go(group, index)
        return group.done

    def _go(self, group: G, index: int) -> None:
        """This thread waits no more: the group's next one wakes; after the last one, or when that takes long, the next group is shipped."""
        if group.done:
            last = not group.wake_from(index + 1) or self._clock.monotonic_ms() - group.ended_ms > SHIP_WITHIN_MS
        else:  # interrupted, or out of time
            group.locks[index] = None
            last = not any(group.locks)
        if last and not group.left and self._first_to_leave(group):
            self.left(group.key)

    def _first_to_leave(self, group: G) -> bool:
        with self._lock:
            first, group.left = not group.left, True
            return first

    def _rescue(self, group: G) -> None:
        """Nothing was answered for long: ship an open group anyway. Whoever should have (an interrupted thread) is counted out."""
        with self._lock:
            if self._open.get(group.key) is not group:
                return
            del self._open[group.key]
            self._out[group.key] = 1
        self._ship(group)

    def _own_lock(self) -> threading.Lock:
        lock = self._mine.lock
        if lock is None:
            lock = self._mine.lock = threading.Lock()
            lock.acquire()
        return lock
