"""Tasks of a replica that wait for their keys, where there are limits for each key.

    ready ── its key is free? ─┬─ yes ──> a thread runs it ── ended, or given up ──┐
                               └─ no: it waits here                                │
    ready <── the next of that key, behind whatever is ready <── or its time has come

Decides what the key of a task is, how many tasks may wait, and when it is looked again for those
whose key has a rate. Which task is the next one ``client.consumer.key_limits`` decides. Runs,
extends and settles nothing. Not safe for threads: the worker's lock is held by who calls.

Invariants: no thread waits for a key. What was withdrawn is handed out by nobody.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from math import inf
from typing import Generic, TypeVar

from rmq_ray.client.consumer.key_limits import KEYS, KeyLimits, KeyTable
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.clock import Clock
from rmq_ray.guard import attempt
from rmq_ray.serve.task_codec import called

WAITING_MAX = 256
"""So many tasks wait at most; while they do, a replica takes no other ones."""

T = TypeVar("T")


class TaskLimiter(Generic[T]):
    """Of one replica. ``free``: gets those that may go on, which count as begun."""

    def __init__(
        self, limits: KeyLimits, clock: Clock, free: Callable[[Sequence[T]], None]
    ) -> None:
        self._by = limits.by
        self._clock = clock
        self._free = free
        self._table: KeyTable[T] = KeyTable(limits, lambda task: task not in self._waiting)
        self._waiting: set[T] = set()
        self._begun: dict[T, str] = {}
        """Those that run, or are ready and their keys keep a place for them; and their keys."""
        self._due: list[tuple[float, str]] = []

    @property
    def waiting(self) -> int:
        """Tasks that wait for their keys."""
        return len(self._waiting)

    @property
    def room(self) -> int:
        """How many more may wait."""
        return max(0, WAITING_MAX - len(self._waiting))

    def key(self, message: MessageExt) -> str | None:
        """Of the task that it brings: the name of its handler, or the property that is meant. None:
        it is not limited.
        """
        if self._by == KEYS:
            name: str | None
            name, _ = attempt(lambda: called(message.body))  # some cannot be uncompressed
            return name
        return message.all_properties.get(self._by) or None

    def begins(self, key: str, task: T) -> bool:
        """True: it runs now, and ``end`` follows. False: it waits here."""
        if task in self._begun:
            return True
        if self._table.begin(key, task, self._clock.monotonic_ms()):
            self._begun[task] = key
            return True
        self._waiting.add(task)
        self._go_on(key)
        return False

    def end(self, task: T) -> None:
        """It has ended, or is waited for no longer; may be said twice, and of others."""
        key = self._begun.pop(task, None)
        if key is not None:
            self._table.end(key)
            self._go_on(key)

    def look(self) -> None:
        """Free those whose time has come."""
        now_ms = self._clock.monotonic_ms()
        while self._due and self._due[0][0] <= now_ms:
            _, key = heapq.heappop(self._due)
            self._table.asking(key)
            self._go_on(key)

    def next_s(self) -> float:
        """In how many seconds to look; infinite where only an ``end`` frees any."""
        if not self._due:
            return inf
        return max(0.0, self._due[0][0] - self._clock.monotonic_ms()) / 1_000

    def withdraw(self, task: T) -> bool:
        """Whether it waited here: it is the caller's from now on."""
        waited = task in self._waiting
        self._waiting.discard(task)
        return waited

    def withdraw_all(self) -> list[T]:
        """The same, of all that wait."""
        found = list(self._waiting)
        self._waiting.clear()
        return found

    def _go_on(self, key: str) -> None:
        now_ms = self._clock.monotonic_ms()
        found, again_ms = self._table.ready(key, now_ms)
        for task in found:
            self._waiting.discard(task)
            self._begun[task] = key
        if found:
            self._free(found)
        if again_ms is not None:
            heapq.heappush(self._due, (now_ms + again_ms, key))
