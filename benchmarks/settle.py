"""Before each round, ours or a peer's: the machine as if nothing had run before.

    python settle.py       the same for programs in other languages

What the round before left to the disk is written, and 2 GiB of memory are touched and given back.
A virtual machine may have returned memory to its host, and the first touch of such a page costs 10
us: a round that fills the page cache would run at a third of its speed or not, by chance.
"""

from __future__ import annotations

import mmap
import os

TOUCHED_BYTES = 2 << 30


def settle(touched_bytes: int = TOUCHED_BYTES) -> None:
    """Write what waits for the disk, and have memory at hand."""
    os.sync()
    with mmap.mmap(-1, touched_bytes) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, touched_bytes, mmap.PAGESIZE):
            memory[page] = 1


if __name__ == "__main__":
    settle()
