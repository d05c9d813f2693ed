"""Where a value lies, as text that travels in TransferQueue's metadata, and sets of offsets.

    broker-a:3:128-129;broker-a:0:77      pieces 1 and 2 at offsets 128 and 129 of queue 3,
                                          the last one at offset 77 of queue 0

Pure. Invariant: a place is written once and never another value's: offsets of a topic do not come
again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from rmq_ray.errors import ClientError


class Part(NamedTuple):
    """``size`` messages of one queue in a row, from ``first`` on."""

    broker: str
    queue_id: int
    first: int
    size: int = 1


def place_text(parts: Iterable[Part]) -> str:
    """Neighbours are written as one.

    >>> place_text([Part("a", 0, 5), Part("a", 0, 6), Part("a", 1, 9)])
    'a:0:5-6;a:1:9'
    """
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last and last[:2] == part[:2] and last.first + last.size == part.first:
            joined[-1] = last._replace(size=last.size + part.size)
        else:
            joined.append(part)
    return ";".join(
        f"{part.broker}:{part.queue_id}:{part.first}"
        + (f"-{part.first + part.size - 1}" if part.size > 1 else "")
        for part in joined
    )


def parts_of(place: object) -> list[Part]:
    """Of what ``place_text`` wrote. ``ClientError`` for anything else.

    >>> parts_of("a:0:5-6;a:1:9")
    [Part(broker='a', queue_id=0, first=5, size=2), Part(broker='a', queue_id=1, first=9, size=1)]
    """
    try:
        return [_part(text) for text in place.split(";")]  # type: ignore[attr-defined]
    except (AttributeError, ValueError) as error:
        raise ClientError(
            f"{place!r:.80} is no place of a value: give the metadata that put returned",
            repr(place)[:80],
        ) from error


def _part(text: str) -> Part:
    broker, queue_id, offsets = text.rsplit(":", 2)
    first, _, last = offsets.partition("-")
    part = Part(broker, int(queue_id), int(first), int(last or first) - int(first) + 1)
    if not broker or part.queue_id < 0 or part.first < 0 or part.size < 1:
        raise ValueError(text)
    return part


class OffsetRanges:
    """A set of offsets of one queue as ranges that do not touch, so that what was cleared from the
    first to the last is one pair of numbers.
    """

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, first: int, count: int) -> None:
        """[first, first + count)."""
        end = first + count
        low = bisect_right(self._begins, first)
        if low and self._ends[low - 1] >= first:
            low -= 1
            first = self._begins[low]
        high = bisect_right(self._begins, end)
        if high > low:
            end = max(end, self._ends[high - 1])
        self._begins[low:high] = [first]
        self._ends[low:high] = [end]

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._begins, offset)
        return at > 0 and offset < self._ends[at - 1]

    def __len__(self) -> int:
        """How many ranges."""
        return len(self._begins)
