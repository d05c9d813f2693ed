"""Property strings of many records as Arrow columns, without a Python object per record (store-format 2.4).

    name 0x01 value 0x02 name 0x01 value ...      parts without 0x01, shorter than 3 or with an empty value are skipped;
                                                  of equal names in one string the last counts

Decides: what is a key, the tag, a unique key, a user's property. Does not decide where strings lie (``arrow_reader``).
Called by: ``arrow_reader``. Pure. How: separators are found over all strings at once; names are few, so they are looked up
by dictionary; equal strings are parsed once. Text that is not UTF-8 gets replacement characters, as in Java.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_ray.model.message import KEYS, RESERVED_PROPERTIES, TAGS, UNIQUE_KEY, decode_properties
from rmq_ray.store.record_batch import Array

_USER, _KEYS, _TAG, _UNIQUE, _HIDDEN = range(5)
_KINDS = {KEYS: _KEYS, TAGS: _TAG, UNIQUE_KEY: _UNIQUE}
_PART_MIN = 3
_FEW = 48  # distinct strings up to which parsing one by one is faster than numpy's and Arrow's fixed costs (0.3 ms)
_LIST, _MAP = pa.list_(pa.string()), pa.map_(pa.string(), pa.string())
_COUNTED_MAX = 1 << 24  # cells of the table that finds repeated names; above, sorting takes its place


@dataclass(frozen=True, slots=True)
class PropertyColumns:
    """One element a record: list<string>, string or null, map<string, string>, string or null."""

    keys: Any
    tag: Any
    properties: Any
    unique: Any


def spans(buffer: Any, begins: Array, ends: Array) -> Any:
    """binary[n]: bytes [begins, ends) of one buffer, which rise. One array over the whole buffer, every second element of which
    is wanted: the gaps between are left out by ``take``.
    """
    count = len(begins)
    if not count:
        return pa.array([], pa.binary())
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = begins
    offsets[1::2] = ends
    whole = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), buffer])
    return whole.take(pa.array(np.arange(0, 2 * count, 2)))


def as_text(values: Any) -> Any:
    """binary -> string."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()], pa.string())


def property_columns(strings: Any) -> PropertyColumns:
    """``strings``: binary[n], one property string a record."""
    encoded = strings.dictionary_encode()
    few = len(encoded.dictionary) <= _FEW
    columns = _parse_few(encoded.dictionary.to_pylist()) if few else _parse(encoded.dictionary)
    if len(encoded.dictionary) == len(strings):
        return columns
    rows = encoded.indices
    return PropertyColumns(columns.keys.take(rows), columns.tag.take(rows), columns.properties.take(rows), columns.unique.take(rows))


def _parse_few(strings: list[bytes]) -> PropertyColumns:
    facts = [_facts(string) for string in strings]
    keys, tags, properties, uniques = zip(*facts, strict=True)
    return PropertyColumns(pa.array(keys, _LIST), pa.array(tags, pa.string()), pa.array(properties, _MAP), pa.array(uniques, pa.string()))


@lru_cache(maxsize=8192)
def _facts(string: bytes) -> tuple[list[str], str | None, list[tuple[str, str]], str | None]:
    found = decode_properties(string.decode("utf-8", "replace"))
    keys = [key for key in found.get(KEYS, "").split(" ") if key]
    return keys, found.get(TAGS), [item for item in found.items() if item[0] not in RESERVED_PROPERTIES], found.get(UNIQUE_KEY)


def _parse(strings: Any) -> PropertyColumns:
    count = len(strings)
    bounds = np.frombuffer(strings.buffers()[1], np.int32)[strings.offset : strings.offset + count + 1].astype(np.int64)
    buffer = strings.buffers()[2] or pa.py_buffer(b"")
    data = np.frombuffer(buffer, np.uint8)[: bounds[-1]]
    rows, begins, middles, ends = _parts(data, bounds)
    names = spans(buffer, begins, middles).dictionary_encode()
    kinds = _kinds(names.dictionary)[names.indices.to_numpy()] if len(begins) else np.zeros(0, np.int64)
    keep = _last_of_equals(rows, names, count)
    if keep is not None:
        rows, middles, ends, kinds = rows[keep], middles[keep], ends[keep], kinds[keep]
        names = names.take(pa.array(keep))

    def values(chosen: Array) -> Any:
        return as_text(spans(buffer, middles[chosen] + 1, ends[chosen]))

    def one_each(kind: int) -> Any:
        chosen = np.flatnonzero(kinds == kind)
        at = np.full(count, -1, np.int64)
        at[rows[chosen]] = np.arange(len(chosen))
        return values(chosen).take(pa.array(at, mask=at < 0))

    user = np.flatnonzero(kinds == _USER)
    user_names = as_text(names.dictionary).take(names.indices.take(pa.array(user)))
    properties = pa.MapArray.from_arrays(pa.array(_offsets(rows[user], count)), user_names, values(user))
    keyed = np.flatnonzero(kinds == _KEYS)
    return PropertyColumns(_split_keys(values(keyed), rows[keyed], count), one_each(_TAG), properties, one_each(_UNIQUE))


def _parts(data: Array, bounds: Array) -> tuple[Array, Array, Array, Array]:
    """(row, begin, place of 0x01, end) of every well-formed part of all strings; ``bounds``: where rows begin, and the end."""
    separators = np.flatnonzero(data == 2)
    after = separators + 1
    inner = after[after < bounds[np.searchsorted(bounds, separators, "right")]]
    begins = np.sort(np.concatenate((bounds[:-1][bounds[1:] > bounds[:-1]], inner)))
    rows = np.searchsorted(bounds, begins, "right") - 1
    ends = np.minimum(np.append(separators, len(data))[np.searchsorted(separators, begins)], bounds[rows + 1])
    marks = np.flatnonzero(data == 1)
    middles = np.append(marks, len(data))[np.searchsorted(marks, begins)]
    good = (middles < ends - 1) & (ends - begins >= _PART_MIN)
    return (rows, begins, middles, ends) if good.all() else (rows[good], begins[good], middles[good], ends[good])


def _kinds(names: Any) -> Array:
    known = [str(name, "utf-8", "replace") for name in names.to_pylist()]
    return np.array([_KINDS.get(name, _HIDDEN if name in RESERVED_PROPERTIES else _USER) for name in known], np.int64)


def _last_of_equals(rows: Array, names: Any, count: int) -> Array | None:
    """Which parts stay when one string names something twice; None = all."""
    width = max(1, len(names.dictionary))
    cells = rows * width + names.indices.to_numpy() if len(rows) else rows
    if not len(cells) or (count * width <= _COUNTED_MAX and np.bincount(cells).max() <= 1):
        return None
    _, last = np.unique(cells[::-1], return_index=True)
    return np.sort(len(cells) - 1 - last)


def _offsets(rows: Array, count: int) -> Array:
    """Offsets of a list column whose elements belong to ``rows``."""
    return np.concatenate((np.zeros(1, np.int32), np.cumsum(np.bincount(rows, minlength=count), dtype=np.int32)))


def _split_keys(values: Any, rows: Array, count: int) -> Any:
    """KEYS holds keys separated by blanks."""
    if not pc.any(pc.match_substring(values, " ")).as_py():
        return pa.ListArray.from_arrays(pa.array(_offsets(rows, count)), values)
    lists = pc.split_pattern(values, " ")
    keys, owners = lists.flatten(), pc.list_parent_indices(lists).to_numpy()
    filled = pc.greater(pc.binary_length(keys), 0)
    owners = owners[filled.to_numpy(zero_copy_only=False)]
    return pa.ListArray.from_arrays(pa.array(_offsets(rows[owners], count)), keys.filter(filled))
