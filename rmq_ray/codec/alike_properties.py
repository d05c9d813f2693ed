"""Property strings that differ in their values only, read by columns: rows of one table, or
messages of one program.

    KEYS 0x01 o-17 0x02 TAGS 0x01 eu 0x02 region 0x01 r3 0x02  the names in their order are a row's
                                                               shape
    KEYS 0x01 o-18 0x02 TAGS 0x01 us 0x02 region 0x01 r5 0x02  one look at the names for all rows of
                                                               a shape

Decides which rows are so plain that no rule needs to look at them one by one: well formed, ASCII,
no reserved name but KEYS (one key) and TAGS. All others are left to ``record_properties``, which
judges. Called by it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.codec.record_batch import KeyHashes
from rmq_ray.codec.text_hashes import hash_texts_at
from rmq_ray.model.message import KEYS, RESERVED_PROPERTIES, TAGS, UNIQUE_KEY

ROWS_MIN = 64  # rows that must have one shape before it is worth numpy's calls
_SHAPES_MAX = 8
_LENGTHS_MAX = 32  # different lengths of strings; beyond, they are put together one by one
_UNUSUAL = RESERVED_PROPERTIES - {KEYS, TAGS}
_BLANK = 0x20


class Alike(NamedTuple):
    """Of rows of one shape. ``rows``: which they are. ``tag_codes``: None without tags;
    ``unique``, ``keys``: None without such a property, else of these rows.
    """

    rows: Array
    tag_codes: Array | None
    unique: KeyHashes | None
    keys: KeyHashes | None


def alike_facts(
    view: memoryview, begins: Array, ends: Array, unusual: frozenset[str] = _UNUSUAL
) -> Iterator[Alike]:
    """Shape by shape; strings that come in none, or hold a name that is ``unusual``, are for
    somebody else. The strings lie at bytes [begins, ends) of ``view``, a 0x02 behind each.
    """
    joined, order = _join(view, begins, ends)
    pairs = _Pairs.read(joined, (ends - begins)[order])
    if pairs is None:
        return
    rest = np.arange(len(order))
    for _ in range(_SHAPES_MAX):
        if len(rest) < ROWS_MIN:
            return
        names, same = pairs.shape_of(int(rest[len(rest) // 2]), rest)
        if len(same) < ROWS_MIN:
            return
        if len(set(names)) == len(names) and unusual.isdisjoint(names):
            found = pairs.facts(names, same, order)
            if found is not None:
                yield found
        left = np.ones(len(order), np.bool_)
        left[same] = False
        rest = rest[left[rest]]


def _join(view: memoryview, begins: Array, ends: Array) -> tuple[bytes, Array]:
    """(the strings back to back, each with the 0x02 behind it; which string is where). Those of one
    length are copied together.
    """
    lengths = ends - begins + 1
    kinds = np.flatnonzero(np.bincount(lengths))
    if len(kinds) > _LENGTHS_MAX:
        strings = [
            view[begin : end + 1] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        ]
        return b"".join(strings), np.arange(len(begins))
    parts, orders = [], []
    for length in kinds.tolist():
        rows = np.flatnonzero(lengths == length)
        orders.append(rows)
        parts.append(
            np.ndarray((len(view) - length + 1,), f"V{length}", view, 0, (1,))[
                begins[rows]
            ].tobytes()
        )
    return b"".join(parts), np.concatenate(orders)


class _Pairs:
    """All names and values of the strings: byte positions in ``data``. ``first``: the first pair of
    each string, ``counts``: how many it has.
    """

    def __init__(self, data: Array, begins: Array, ones: Array, twos: Array, counts: Array) -> None:
        self.data = data
        self.begins = begins
        self.ones = ones
        self.twos = twos
        self.counts = counts
        self.first = np.cumsum(counts) - counts

    @classmethod
    def read(cls, joined: bytes, lengths: Array) -> _Pairs | None:
        """None when a string is malformed, or holds other characters than ASCII, or a zero."""
        if not joined.isascii():
            return None
        data = np.frombuffer(joined, np.uint8)
        ones, twos = np.flatnonzero(data == 1), np.flatnonzero(data == 2)
        if len(ones) != len(twos) or not data.all():
            return None
        begins = np.empty_like(twos)
        begins[0], begins[1:] = 0, twos[:-1] + 1
        if not ((begins < ones) & (ones + 1 < twos)).all():
            return None
        return cls(
            data,
            begins,
            ones,
            twos,
            np.diff(np.searchsorted(twos, np.cumsum(lengths + 1) - 1), prepend=-1),
        )

    def shape_of(self, row: int, rest: Array) -> tuple[list[str], Array]:
        """(the names of ``row``, which of the rows ``rest`` have the same ones in the same
        order).
        """
        same = rest[self.counts[rest] == self.counts[row]]
        names = []
        for number in range(int(self.counts[row])):
            pair = int(self.first[row]) + number
            name = self.data[self.begins[pair] : self.ones[pair]]
            names.append(name.tobytes().decode())
            others = self.first[same] + number
            same = same[self.ones[others] - self.begins[others] == len(name)]
            at = self.begins[self.first[same] + number]
            found = np.ndarray(
                (len(self.data) - len(name) + 1,), f"V{len(name)}", self.data, 0, (1,)
            )[at]
            same = same[(found.view(np.uint8).reshape(len(same), len(name)) == name).all(axis=1)]
        return names, same

    def facts(self, names: list[str], rows: Array, order: Array) -> Alike | None:
        """Of rows that all have these names, by their place in ``order``; None when a value must be
        looked at.
        """
        codes, unique, keys = None, None, None
        if TAGS in names:
            codes = (
                hash_texts_at(self.data, *self._values(rows, names.index(TAGS)))
                .view(np.int32)
                .astype(np.int64)
            )
        if UNIQUE_KEY in names:
            begins, ends = self._values(rows, names.index(UNIQUE_KEY))
            unique = KeyHashes(order[rows], hash_texts_at(self.data, begins, ends), ends - begins)
        if KEYS in names:
            begins, ends = self._values(rows, names.index(KEYS))
            blanks = np.flatnonzero(self.data == _BLANK)
            if (
                len(blanks)
                and (np.searchsorted(blanks, begins) != np.searchsorted(blanks, ends)).any()
            ):  # several keys
                return None
            keys = KeyHashes(order[rows], hash_texts_at(self.data, begins, ends), ends - begins)
        return Alike(order[rows], codes, unique, keys)

    def _values(self, rows: Array, number: int) -> tuple[Array, Array]:
        pairs = self.first[rows] + number
        return self.ones[pairs] + 1, self.twos[pairs]
