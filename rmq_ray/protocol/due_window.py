"""The waiting messages that are due soon, in the order in which they are due: due time, then queue
offset.

    |---- delivered ----|------ window ------|------ only on disk, found by the next scan ------>
                     progress             end_ms

Decides: order, and what leaves the window when it is full: the latest go, ``end_ms`` comes nearer,
and a scan finds them again. Does not decide when to look. Pure; numpy arrays of 24 bytes a message,
and a small heap for what came last.

Invariants: every waiting message below ``end_ms`` that was handed in is inside; ``take`` returns
rising (due, offset); at most ``limit`` messages are kept, more only when all of them are due in one
millisecond.
"""

from __future__ import annotations

import heapq

import rmq_ray.arrays as np
from rmq_ray.arrays import Array

Due = tuple[int, int, int]
"""(due ms, queue offset, log offset)."""
HEAP_MAX = 20_000
SET_BACK_MS = 1_000
"""A clock that goes back by more was set; less is waited for: a message may be a second late."""


class DueWindow:
    """``limit``: messages kept."""

    def __init__(self, limit: int) -> None:
        self.end_ms = 0
        self._limit = limit
        self._rows = np.empty((0, 3), np.int64)  # sorted by due, offset
        self._head = 0
        self._heap: list[Due] = []

    def __len__(self) -> int:
        return len(self._rows) - self._head + len(self._heap)

    def add(self, rows: Array) -> None:
        """Messages that came (int64 of shape n, 3: due, offset, log offset; offsets greater than
        all before); those behind the end are left out.
        """
        near = rows[rows[:, 0] < self.end_ms]
        if len(near) > HEAP_MAX:
            self._merge(near)
        else:
            for row in near.tolist():
                heapq.heappush(self._heap, (row[0], row[1], row[2]))
        if len(self._heap) > HEAP_MAX:
            self._merge(np.empty((0, 3), np.int64))

    def extend(self, rows: Array, end_ms: int) -> None:
        """All messages from the old end up to ``end_ms``, as a scan found them."""
        self.end_ms = end_ms
        self._merge(rows)

    def take(self, until_ms: int) -> Due | None:
        """The first message, if it is due by ``until_ms``; it stays until ``drop``."""
        first = self._first()
        return first if first is not None and first[0] <= until_ms else None

    def drop(self) -> None:
        """The message that ``take`` returned is done with."""
        if self._heap and (self._head >= len(self._rows) or self._heap[0] < self._row()):
            heapq.heappop(self._heap)
        else:
            self._head += 1

    def _first(self) -> Due | None:
        if self._head >= len(self._rows):
            return self._heap[0] if self._heap else None
        row = self._row()
        return self._heap[0] if self._heap and self._heap[0] < row else row

    def _row(self) -> Due:
        due, offset, log_offset = self._rows[self._head].tolist()
        return due, offset, log_offset

    def _merge(self, rows: Array) -> None:
        fresh = np.array(self._heap, np.int64).reshape(-1, 3)
        self._heap.clear()
        more = np.concatenate((fresh, rows)) if len(fresh) else rows
        more = more[np.lexsort((more[:, 1], more[:, 0]))]
        kept = self._rows[self._head :]
        self._head = 0
        if len(kept) and len(more):
            self._rows = np.insert(
                kept, np.searchsorted(kept[:, 0], more[:, 0], side="right"), more, axis=0
            )
        else:
            self._rows = more.copy() if len(more) else kept.copy()
        if len(self._rows) > self._limit:
            self._cut()

    def _cut(self) -> None:
        dues = self._rows[:, 0]
        end_ms = max(int(dues[self._limit]), int(dues[0]) + 1)
        self._rows = self._rows[: int(np.searchsorted(dues, end_ms))].copy()
        self.end_ms = min(self.end_ms, end_ms)


class OffsetSet:
    """Offsets of messages that wait no more, asked for one at a time, and as an array: a sorted one
    that nobody changes, so that a thread may keep it. Only what is new is sorted into it; what was
    discarded may stay in it until it is half of it.
    """

    def __init__(self) -> None:
        self._offsets: set[int] = set()
        self._sorted: Array = np.empty(0, np.int64)
        self._new: list[int] = []

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, offset: int) -> bool:
        return offset in self._offsets

    def add(self, offset: int) -> None:
        """It waits no more."""
        if offset not in self._offsets:
            self._offsets.add(offset)
            self._new.append(offset)

    def discard(self, offset: int) -> None:
        """It need not be remembered."""
        self._offsets.discard(offset)

    def array(self, begin: int = 0) -> Array:
        """Those from ``begin`` on, rising."""
        if len(self._sorted) + len(self._new) > 2 * len(self._offsets):
            self._sorted = np.sort(np.fromiter(self._offsets, np.int64, len(self._offsets)))
        elif self._new:
            more = np.array(self._new, np.int64)
            self._sorted = np.sort(np.concatenate((self._sorted, more)), kind="stable")
        self._new.clear()
        return self._sorted[np.searchsorted(self._sorted, begin) :]


def nearest(rows: Array, limit: int) -> tuple[Array, int | None]:
    """The ``limit`` messages due first, and the due time from which on messages are missing then
    (None = none is).
    """
    if len(rows) <= limit:
        return rows, None
    end_ms = max(int(np.partition(rows[:, 0], limit)[limit]), int(rows[:, 0].min()) + 1)
    return rows[rows[:, 0] < end_ms], end_ms
