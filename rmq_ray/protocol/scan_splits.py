"""Cuts a bulk read into splits: pure arithmetic on queue offsets.

Decides how many rows a split has. Does not decide what is read (the caller gives the ranges) nor where (the caller fills
in each broker's store). Invariant: the splits of a queue cover its range once, in order, without gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rmq_ray.model.ids import MessageQueue

ROWS_PER_SPLIT_MAX = 500_000


def rows_per_split(ranges: Mapping[MessageQueue, tuple[int, int]], splits_wanted: int, rows_max: int = ROWS_PER_SPLIT_MAX) -> int:
    """Rows a split should have so that about ``splits_wanted`` come out, each at most ``rows_max``.

    >>> rows_per_split({MessageQueue("t", "b", 0): (0, 100)}, 4)
    25
    """
    rows = sum(end - start for start, end in ranges.values())
    return max(1, min(rows_max, -(-rows // max(1, splits_wanted))))


def cut(ranges: Mapping[MessageQueue, tuple[int, int]], rows: int) -> Iterator[tuple[MessageQueue, int, int]]:
    """(queue, start, end) of every split, queues in order.

    >>> list(cut({MessageQueue("t", "b", 0): (5, 12)}, 3))[-1][1:]
    (11, 12)
    """
    for queue in sorted(ranges):
        start, end = ranges[queue]
        for low in range(start, end, rows):
            yield queue, low, min(end, low + rows)
