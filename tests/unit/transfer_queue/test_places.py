"""Places as text, and sets of offsets."""

from __future__ import annotations

import random

import pytest

from rmq_ray.errors import ClientError
from rmq_ray.transfer_queue.places import OffsetRanges, Part, parts_of, place_text


@pytest.mark.parametrize(
    "parts",
    [
        [Part("broker-a", 3, 0)],
        [Part("broker-a", 3, 128, 2), Part("broker-b", 0, 7)],
        [Part("a:b", 0, 1), Part("a:b", 0, 3)],
    ],
)
def test_a_place_is_read_back_as_it_was_written(parts: list[Part]) -> None:
    assert parts_of(place_text(parts)) == parts


@pytest.mark.parametrize("given", [None, 7, "", "a", "a:1", "a:1:x", ":0:1", "a:0:5-4", "a:-1:5"])
def test_what_is_no_place_is_refused_and_named(given: object) -> None:
    with pytest.raises(ClientError, match="is no place of a value"):
        parts_of(given)


def test_offsets_are_in_the_ranges_as_in_a_set() -> None:
    chance = random.Random(7)
    for _ in range(200):
        ranges, offsets = OffsetRanges(), set[int]()
        for _ in range(chance.randrange(1, 30)):
            first, count = chance.randrange(60), chance.randrange(1, 9)
            ranges.add(first, count)
            offsets.update(range(first, first + count))
        assert [offset for offset in range(80) if offset in ranges] == sorted(offsets)
        gaps = sum(offset - 1 not in offsets for offset in offsets)
        assert len(ranges) == gaps
