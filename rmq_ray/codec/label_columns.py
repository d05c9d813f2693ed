"""Property strings of one layout: names and separators stand in the same columns of all of them, so
that the strings are a matrix.

    KEYS 0x01 o-17 0x02 TAGS 0x01 eu 0x02
    KEYS 0x01 o-18 0x02 TAGS 0x01 us 0x02  two rows, read by their columns: 0x02 .. 0x7E where
                                           values are, elsewhere all equal

The quickest way to read strings that differ, and the commonest: rows of one table, whose keys are
of one length. Decides which strings are so plain that no rule needs to look at them one by one, as
``alike_properties`` does for strings of several lengths: well formed, ASCII, no reserved name but
KEYS (one key) and TAGS. Called by ``uniform_frames`` and ``record_properties``, which judge what is
left. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.codec.record_batch import KeyHashes
from rmq_ray.codec.text_hashes import powers
from rmq_ray.model.message import KEYS, RESERVED_PROPERTIES, TAGS

_UNUSUAL = frozenset(name.encode() for name in RESERVED_PROPERTIES - {KEYS, TAGS})
_KEYS, _TAGS = KEYS.encode(), TAGS.encode()
_SEPARATORS_MAX, _BLANK, _VISIBLE_MAX = 0x02, 0x20, 0x7E


class Labels(NamedTuple):
    """Of all rows. ``tag_codes``: int64, None without tags; ``key_hashes``: uint32, of keys of
    ``key_length`` characters, None without keys.
    """

    tag_codes: Array | None
    key_hashes: Array | None
    key_length: int

    def keys_of(self, rows: Array) -> list[KeyHashes]:
        """The keys, given the numbers of the rows."""
        return (
            []
            if self.key_hashes is None
            else [KeyHashes(rows, self.key_hashes, np.full(len(rows), self.key_length))]
        )


def read_labels(texts: Array) -> Labels | None:
    """``texts``: uint8[rows, length], property strings with the 0x02 behind each. None when they
    are not of this kind.
    """
    names = read_columns(texts)
    if names is None or not _UNUSUAL.isdisjoint(names):
        return None
    tags, keys = names.get(_TAGS), names.get(_KEYS)
    if keys is not None and holds_blanks(texts, *keys):
        return None
    codes = None if tags is None else hash_columns(texts, *tags).view(np.int32).astype(np.int64)
    return Labels(
        codes, *((None, 0) if keys is None else (hash_columns(texts, *keys), keys[1] - keys[0]))
    )


def read_columns(texts: Array) -> dict[bytes, tuple[int, int]] | None:
    """In which columns the value of each name stands; None when the strings are not of one layout,
    or not plain. ``texts`` as for ``read_labels``.
    """
    separators = texts[[0, len(texts) // 2, -1]] <= _SEPARATORS_MAX
    if (separators != separators[0]).any():
        return None
    low, high = texts.min(axis=0).tobytes(), texts.max(axis=0).tobytes()
    if max(high) > _VISIBLE_MAX or low[-1] != _SEPARATORS_MAX:
        return None
    names: dict[bytes, tuple[int, int]] = {}
    at = 0
    for pair in texts[0].tobytes()[:-1].split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        begin, end = at + len(name) + 1, at + len(pair)
        if not name or not value or name in names:
            return None
        if (
            low[at:begin] != high[at:begin]
            or min(low[begin:end]) <= _SEPARATORS_MAX
            or not low[end] == high[end] == _SEPARATORS_MAX
        ):
            return None
        names[name] = begin, end
        at = end + 1
    return names


def holds_blanks(texts: Array, begin: int, end: int) -> bool:
    """Whether a value in these columns may be several keys."""
    return bool(texts[:, begin:end].min() <= _BLANK)


def hash_columns(texts: Array, begin: int, end: int) -> Array:
    """Java's string hash of these columns: uint32[rows]."""
    hashes: Array = texts[:, begin:end].astype(np.uint32) @ powers(end - begin)
    return hashes
