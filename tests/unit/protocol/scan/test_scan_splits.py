"""Which offsets a bulk read covers, and how they are cut: every row once, in order; wrong requests
are told.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.errors import ClientError, OffsetOutOfRange
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.scan.scan_splits import bundled, cut, resolve, rows_per_split

A, B, C = (MessageQueue("t", "broker-a", n) for n in range(3))
BOUNDS = {B: (0, 7), A: (5, 12), C: (3, 3)}


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("earliest", "latest", {A: (5, 12), B: (0, 7)}),
        ("latest", "latest", {}),
        ("earliest", "earliest", {}),
        ({A: 6}, "latest", {A: (6, 12), B: (0, 7)}),
        ("earliest", {A: 6, B: 0}, {A: (5, 6)}),
        ({A: 12, B: 7, C: 3}, "latest", {}),
        ({A: 7}, {A: np.int64(9), B: 2}, {A: (7, 9), B: (0, 2)}),
    ],
)
def test_positions_become_ranges_and_queues_without_rows_are_left_out(
    start: Any, end: Any, expected: dict
) -> None:
    found = resolve(start, end, BOUNDS)
    assert found == expected and list(found) == sorted(found)
    assert all(type(offset) is int for span in found.values() for offset in span)


@pytest.mark.parametrize(
    ("offset", "side"), [(4, "start"), (13, "start"), (-1, "end"), (13, "end")]
)
def test_an_offset_outside_of_the_queue_is_told_with_its_bounds(offset: int, side: str) -> None:
    start, end = ({A: offset}, "latest") if side == "start" else ("earliest", {A: offset})
    with pytest.raises(OffsetOutOfRange, match=r"outside of \[5, 12\]") as caught:
        resolve(start, end, BOUNDS)
    assert caught.value.args[1:] == (offset, 5, 12)


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        ("first", "latest", "'first' must be 'earliest', 'latest' or a mapping"),
        ("earliest", "", "must be"),
        (
            {MessageQueue("t", "broker-b", 0): 1},
            "latest",
            "no queue of this topic; it has .*broker-a",
        ),
        ({A: "6"}, "latest", "must be an integer"),
        ({A: True}, "latest", "must be an integer"),
        ({A: 9}, {A: 8}, "behind its end 8"),
        ("latest", "earliest", "behind its end"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(start: Any, end: Any, message: str) -> None:
    with pytest.raises(ClientError, match=message):
        resolve(start, end, BOUNDS)


@given(
    st.dictionaries(
        st.integers(0, 9), st.tuples(st.integers(0, 1000), st.integers(0, 3000)), max_size=10
    ),
    st.integers(1, 50),
    st.integers(1, 500),
)
def test_the_splits_of_a_queue_cover_its_range_once_and_in_order(
    spans: dict[int, tuple[int, int]], wanted: int, rows_max: int
) -> None:
    ranges = {
        MessageQueue("t", "b", queue_id): (low, low + count)
        for queue_id, (low, count) in spans.items()
        if count
    }
    rows = rows_per_split(ranges, wanted, rows_max)
    splits = list(cut(ranges, rows))
    assert [split[0] for split in splits] == sorted(split[0] for split in splits)
    for queue, (low, high) in ranges.items():
        own = [(start, end) for name, start, end in splits if name == queue]
        assert [offset for start, end in own for offset in (start, end)][:: 2 * len(own) - 1] == [
            low,
            high,
        ]
        assert all(before[1] == after[0] for before, after in zip(own, own[1:], strict=False))
    assert all(0 < end - start <= min(rows, rows_max) for _, start, end in splits)
    total = sum(high - low for low, high in ranges.values())
    assert len(splits) <= max(wanted, -(-total // rows_max)) + len(ranges)


def test_at_least_one_split_must_be_wanted() -> None:
    with pytest.raises(ClientError, match="at least 1 split, not 0"):
        rows_per_split({A: (0, 5)}, 0)


@given(st.lists(st.integers(1, 1_000), max_size=60), st.integers(1, 40), st.integers(1, 2_000))
def test_bundles_hold_every_split_once_in_order_and_no_more_rows_than_allowed(
    sizes: list[int], wanted: int, rows_max: int
) -> None:
    found = bundled(sizes, wanted, rows_max)
    assert [number for bundle in found for number in bundle] == list(range(len(sizes)))
    for bundle in found:
        rows = sum(sizes[number] for number in bundle)
        assert len(bundle) == 1 or (
            rows <= rows_max and rows * wanted * 4 < sum(sizes) * 5 + 4 * wanted
        )


def test_small_queues_and_leftovers_share_a_task() -> None:
    assert len(bundled([10] * 64, 4)) == 4
    assert bundled([250_000, 320, 249_680, 249_040, 250_960], 4) == [[0, 1], [2], [3], [4]]
    assert bundled([], 4) == []
