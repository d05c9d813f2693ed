"""Pages of queues, read and checked once, for readers that take 32 records at a time: Apache
RocketMQ's consumers.

    page    | record | record | ........ up to 800 records, 256 KiB ........ |
    pulls   |<--- 32 --->|<--- 32 --->| ...

Decides how long a page stays: until others take its place, or the log is cut or a topic goes
(``forget``). Does not decide which offsets may be read: its user looks at the queue first. Any
thread. Invariant: a page that was read before a cut is not kept behind it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from rmq_ray.arrays import Array

PAGE_RECORDS_MAX = 800
PAGE_BYTES_MAX = 256 << 10
PAGES_MAX = 32


@dataclass(frozen=True, slots=True)
class CachedPage:
    """Records of one queue that stand back to back in ``data``. ``offset``: queue offset of the
    first one; ``ends``: where each ends in ``data``, 0 before them; ``log_offset``: of the first
    one.
    """

    offset: int
    log_offset: int
    sizes: Array
    ends: list[int]
    data: memoryview

    def cut(self, offset: int, max_count: int, max_bytes: int) -> tuple[Array, Any] | None:
        """(sizes, buffer) of the records from queue offset ``offset`` on, one at least; None when
        the page does not hold that many.
        """
        begin = offset - self.offset
        end = begin + max_count
        ends = self.ends
        if begin < 0 or end >= len(ends):
            return None
        start = ends[begin]
        while end > begin + 1 and ends[end] - start > max_bytes:  # ends: one less each round
            end -= 1
        return self.sizes[begin:end], self.data[start : ends[end]]


class PageCache:
    """Of one store: the last page of each queue, of the queues that were read last."""

    def __init__(self) -> None:
        self._pages: dict[tuple[str, int], CachedPage] = {}
        self._lock = threading.Lock()
        self.life = 0
        """Rises when everything is forgotten."""

    def find(self, place: tuple[str, int]) -> CachedPage | None:
        """The page of a topic's queue."""
        return self._pages.get(place)

    def keep(self, place: tuple[str, int], page: CachedPage, life: int) -> None:
        """From now on this is the queue's page. ``life``: as it was before the page was read."""
        with self._lock:
            if life != self.life:
                return
            self._pages.pop(place, None)
            while len(self._pages) >= PAGES_MAX:  # ends: one less each round
                del self._pages[next(iter(self._pages))]
            self._pages[place] = page

    def forget(self) -> None:
        """What queue offsets stand for may change: no page is good any more."""
        with self._lock:
            self.life += 1
            self._pages.clear()
