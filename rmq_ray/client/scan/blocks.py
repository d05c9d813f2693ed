"""Memory for records that are handed out, used again once nobody refers to it.

    take ──a block that nobody refers to, not much longer than it must be──> again
      └──none──> a fresh one, kept as long as it is among the newest ``KEPT_BYTES``

Fresh pages cost more than all else of a read: reading fills pages that are there many times as fast
as the kernel hands out new ones. Decides which memory is free, by what refers to it, and how much
is kept. Invariant: no two takers have the same memory while anything that was made of it is alive;
what is handed out without a reference to it (a bare address) is its user's to keep alive.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import numpy as np

from rmq_ray.arrays import Array

KEPT_BYTES = 256 << 20
"""Of one owner, in use or not."""
SHORT_BYTES = 1 << 20
"""Shorter blocks are not kept: the heap does."""
SPARE = 1.25
"""Fresh blocks are so much longer, for the next one is not just as long."""
WASTE = 1.5
"""A block that is longer than that serves another one: what is made of it keeps all of it alive."""


class Blocks:
    """Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[Array] = []
        """The one that was taken last is last."""

    def take(self, size: int) -> Array:
        """At least ``size`` bytes that are the caller's as long as anything refers to them."""
        if size < SHORT_BYTES:
            return np.empty(size, np.uint8)
        with self._lock:
            kept, unused = self._kept, _references([object()], 0)
            free = [n for n in range(len(kept)) if _references(kept, n) == unused]
            fitting = [n for n in free if size <= len(kept[n]) <= WASTE * size]
            if fitting:
                block = kept.pop(min(fitting, key=lambda n: len(kept[n])))
            else:
                block = np.empty(int(SPARE * size), np.uint8)
            kept.append(block)
            while sum(map(len, kept)) > KEPT_BYTES:  # ends: at none
                del kept[0]
        return block

    def clear(self) -> None:
        """Keep none any more; those in use are their users'."""
        with self._lock:
            self._kept.clear()


def address(array: Array) -> int:
    """Where in memory its first element lies."""
    return int(array.__array_interface__["data"][0])


def _references(blocks: Sequence[object], number: int) -> int:
    return sys.getrefcount(blocks[number])
