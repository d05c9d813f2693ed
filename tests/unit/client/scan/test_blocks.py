"""Memory that is used again once nobody refers to it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from rmq_ray.client.scan import blocks as module
from rmq_ray.client.scan.blocks import SHORT_BYTES, Blocks, address

LONG = 2 * SHORT_BYTES


@pytest.mark.parametrize(
    "made",
    [
        lambda block: block,
        lambda block: block[100:200],
        memoryview,
        lambda block: memoryview(block)[5:6].toreadonly(),
        lambda block: np.frombuffer(memoryview(block)[64:128], np.int64).reshape(2, 4),
    ],
)
def test_nobody_gets_memory_that_anything_refers_to(made: Callable[[Any], Any]) -> None:
    blocks = Blocks()
    first = blocks.take(LONG)
    where, there = address(first), weakref.ref(first)
    kept = [made(first)]
    del first
    assert address(blocks.take(LONG)) != where
    assert there() is not None
    kept.clear()
    others = [blocks.take(LONG) for _ in range(2)]
    assert where in map(address, others)


def test_a_block_serves_again_where_it_is_not_much_longer_than_it_must_be() -> None:
    blocks = Blocks()
    where = address(blocks.take(LONG))
    for size in (LONG * 6 // 5, LONG, LONG * 7 // 8):
        assert address(blocks.take(size)) == where
    others = [address(blocks.take(size)) for size in (LONG * 13 // 10, LONG * 3 // 4)]
    assert where not in others


def test_short_blocks_are_as_long_as_asked_for_and_are_not_kept() -> None:
    blocks = Blocks()
    short = blocks.take(SHORT_BYTES - 1)
    gone = weakref.ref(short)
    assert len(short) == SHORT_BYTES - 1
    del short
    assert gone() is None


def test_no_more_is_kept_than_the_newest_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 4 * LONG)
    blocks = Blocks()
    taken = [blocks.take(LONG) for _ in range(5)]
    there = [weakref.ref(block) for block in taken]
    taken[0][:] = 7
    assert (taken[0] == 7).all(), "who has it keeps it, kept or not"
    taken.clear()
    assert [ref() is not None for ref in there] == [False, False, True, True, True]
    long = weakref.ref(blocks.take(100 * LONG))
    assert long() is None


def test_what_is_cleared_stays_with_who_has_it() -> None:
    blocks = Blocks()
    mine, gone = blocks.take(LONG), weakref.ref(blocks.take(LONG))
    blocks.clear()
    mine[:] = 7
    assert gone() is None and (mine == 7).all()


def test_threads_never_share() -> None:
    blocks, threads = Blocks(), 8
    both = threading.Barrier(threads)

    def write(number: int) -> bool:
        for _ in range(50):
            mine = blocks.take(LONG)[:: LONG // 16]
            mine[:] = number
            both.wait(30)  # all have theirs
            if not (mine == number).all():
                return False
            both.wait(30)
        return True

    with ThreadPoolExecutor(threads) as pool:
        assert all(pool.map(write, range(threads)))
    assert len(blocks._kept) <= 2 * threads, "they were used again"
