"""What waits for a consuming thread, and which sleeping thread gets it: the one that fell asleep
last.

    put ──> [item item item]                      get: the oldest item; none: asleep, on top of the others
        └─> asleep: [thread thread thread] ──top──> woken; it wakes the next one while items are left

Decides who is woken, and how many: for a lone item one thread, mostly the same one again, whose
stack and caches are warm. (``queue.SimpleQueue`` wakes a second one each time, which finds nothing,
and takes turns through all of them.) Does not decide what an item is. Called by
``consuming_threads``.

Invariants: an item is taken once, in the order of ``put``. No lost wake-up: whoever falls asleep is
seen asleep first and then looks for items again; whoever puts, puts first and then looks for
sleepers. Each of these is one atomic step of a deque or a list, so there is no lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from queue import Empty
from typing import Generic, TypeVar

T = TypeVar("T")

HAND_OVER_S = 5.0


class _Mine(threading.local):
    sleeper: threading.Lock | None = None


class ReadyQueue(Generic[T]):
    """Any thread puts and gets; the names are those of ``queue.SimpleQueue``."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._asleep: list[threading.Lock] = []
        self._waking = False
        """A woken thread has not looked yet. It wakes the next one if there is more than it takes,
        so nobody else is woken for that.
        """
        self._mine = _Mine()

    def empty(self) -> bool:
        """Nothing waits at this moment."""
        return not self._items

    def put(self, item: T) -> None:
        """Behind everything that waits."""
        self._items.append(item)
        if self._asleep and not self._waking:
            self._wake()

    def put_all(self, items: Iterable[T]) -> None:
        """Behind everything that waits, in this order."""
        self._items.extend(items)
        if self._asleep and not self._waking:
            self._wake()

    def get(self, timeout: float) -> T:
        """The oldest item; ``queue.Empty`` when ``timeout`` seconds went by in which nobody woke
        this thread.
        """
        while True:  # ends: an item, or the time is over
            try:
                return self.get_nowait()
            except Empty:
                if not self._sleep(timeout):
                    raise

    def get_nowait(self) -> T:
        """The oldest item; ``queue.Empty`` when there is none."""
        try:
            item = self._items.popleft()
        except IndexError:
            raise Empty from None
        if self._items and self._asleep and not self._waking:
            self._wake()
        return item

    def _wake(self) -> None:
        try:
            sleeper = self._asleep.pop()
        except (
            IndexError
        ):  # somebody else has just woken the last one: it looks, as does whoever falls asleep
            return
        self._waking = True
        sleeper.release()

    def _sleep(self, timeout: float) -> bool:
        """False when nobody woke this thread for ``timeout`` seconds and nothing waits."""
        me = self._mine.sleeper
        if me is None:
            me = self._mine.sleeper = threading.Lock()
            me.acquire()
        self._asleep.append(me)
        in_time = True
        if self._items or not (in_time := me.acquire(timeout=timeout)):
            try:
                self._asleep.remove(me)
                self._waking = (
                    self._waking and in_time
                )  # for so long nobody wakes: it was said after the one to be woken had given up
                return in_time or bool(self._items)
            except ValueError:  # somebody has it in hand and is about to release it
                if not me.acquire(timeout=HAND_OVER_S):
                    self._mine.sleeper = (
                        None  # never again: a late release must not wake another sleep
                    )
        self._waking = False
        return True
