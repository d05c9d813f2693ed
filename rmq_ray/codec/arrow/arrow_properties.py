"""Property strings of many records as Arrow columns, without a Python object per record
(store-format 2.4).

    name 0x01 value 0x02 name 0x01 value ...  parts without 0x01, shorter than 3 or with an empty
                                              value are skipped; of equal names in one string the
                                              last counts

Decides: what is a key, the tag, a unique key, a user's property. Does not decide where strings lie
(``arrow_reader``). Called by: ``arrow_reader``. Pure. How: separators are found over all strings at
once; names are few, so they are looked up by dictionary; equal strings are parsed once; a column is
cut out when it is first asked for. Text that is not UTF-8 gets replacement characters, as in Java.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_ray.arrays import Array
from rmq_ray.model.message import KEYS, RESERVED_PROPERTIES, TAGS, UNIQUE_KEY, decode_properties

_USER, _KEYS, _TAG, _UNIQUE, _HIDDEN = range(5)
_KINDS = {KEYS: _KEYS, TAGS: _TAG, UNIQUE_KEY: _UNIQUE}
_PART_MIN = 3
# distinct strings up to which parsing one by one is faster than numpy's and Arrow's fixed costs
# (0.3 ms)
_FEW = 48
_LONG = 128  # bytes; below, there is no difference
_LIST, _MAP = pa.list_(pa.string()), pa.map_(pa.string(), pa.string())
_COUNTED_MAX = (
    1 << 24
)  # cells of the table that finds repeated names; above, sorting takes its place


class _Parsed(Protocol):
    """Property strings taken apart: each column when it is asked for, one element a string."""

    def keys(self) -> Any:
        """list<string>."""

    def tag(self) -> Any:
        """string or null."""

    def properties(self) -> Any:
        """map<string, string>."""

    def unique(self) -> Any:
        """string or null."""


class PropertyColumns:
    """One element a record: list<string>, string or null, map<string, string>, string or null."""

    def __init__(self, parsed: _Parsed, rows: Any = None) -> None:
        self._parsed = parsed
        self._rows = rows
        """Which string each record has; None: each its own."""

    @cached_property
    def keys(self) -> Any:
        """The parts of KEYS."""
        return self._of_rows(self._parsed.keys())

    @cached_property
    def tag(self) -> Any:
        """TAGS."""
        return self._of_rows(self._parsed.tag())

    @cached_property
    def properties(self) -> Any:
        """What is the user's own."""
        return self._of_rows(self._parsed.properties())

    @cached_property
    def unique(self) -> Any:
        """UNIQ_KEY."""
        return self._of_rows(self._parsed.unique())

    def _of_rows(self, column: Any) -> Any:
        return column if self._rows is None else column.take(self._rows)


def spans(buffer: Any, begins: Array, ends: Array) -> Any:
    """binary[n]: bytes [begins, ends) of one buffer, which rise; copies. One array over the whole
    buffer, every second element of which is wanted: the gaps between are left out by ``take``. Long
    parts of one length are cut out by one numpy call, in two thirds of the time.
    """
    count = len(begins)
    if not count:
        return pa.array([], pa.binary())
    width = int(ends[0] - begins[0])
    if width >= _LONG and bool((ends - begins == width).all()):
        cut = np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, 0, (1,))[begins]
        bounds = (np.arange(count + 1) * width).astype(np.int32)
        return pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(cut)]
        )
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = begins
    offsets[1::2] = ends
    parts = [None, pa.py_buffer(offsets), pa.py_buffer(buffer)]
    whole = pa.Array.from_buffers(pa.binary(), 2 * count - 1, parts)
    return whole.take(pa.array(np.arange(0, 2 * count, 2)))


def as_text(values: Any) -> Any:
    """binary -> string."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [
                None if value is None else value.decode("utf-8", "replace")
                for value in values.to_pylist()
            ],
            pa.string(),
        )


def property_columns(strings: Any) -> PropertyColumns:
    """``strings``: binary[n], one property string a record."""
    encoded = strings.dictionary_encode()
    few = len(encoded.dictionary) <= _FEW
    parsed: _Parsed = (
        _Few([_facts(string) for string in encoded.dictionary.to_pylist()])
        if few
        else _Many(encoded.dictionary)
    )
    return PropertyColumns(
        parsed, None if len(encoded.dictionary) == len(strings) else encoded.indices
    )


@dataclass(frozen=True, slots=True)
class _Few:
    """Parsed one by one."""

    facts: list[tuple[list[str], str | None, list[tuple[str, str]], str | None]]

    def keys(self) -> Any:
        return pa.array([fact[0] for fact in self.facts], _LIST)

    def tag(self) -> Any:
        return pa.array([fact[1] for fact in self.facts], pa.string())

    def properties(self) -> Any:
        return pa.array([fact[2] for fact in self.facts], _MAP)

    def unique(self) -> Any:
        return pa.array([fact[3] for fact in self.facts], pa.string())


@lru_cache(maxsize=8192)
def _facts(string: bytes) -> tuple[list[str], str | None, list[tuple[str, str]], str | None]:
    found = decode_properties(string.decode("utf-8", "replace"))
    keys = [key for key in found.get(KEYS, "").split(" ") if key]
    return (
        keys,
        found.get(TAGS),
        [item for item in found.items() if item[0] not in RESERVED_PROPERTIES],
        found.get(UNIQUE_KEY),
    )


class _Many:
    """Parsed all at once."""

    def __init__(self, strings: Any) -> None:
        self._count = len(strings)
        bounds = np.frombuffer(strings.buffers()[1], np.int32)[
            strings.offset : strings.offset + self._count + 1
        ].astype(np.int64)
        self._buffer = strings.buffers()[2] or pa.py_buffer(b"")
        data = np.frombuffer(self._buffer, np.uint8)[: bounds[-1]]
        rows, begins, middles, ends = _parts(data, bounds)
        names = spans(self._buffer, begins, middles).dictionary_encode()
        kinds = (
            _kinds(names.dictionary)[names.indices.to_numpy()]
            if len(begins)
            else np.zeros(0, np.int64)
        )
        keep = _last_of_equals(rows, names, self._count)
        if keep is not None:
            rows, middles, ends, kinds = rows[keep], middles[keep], ends[keep], kinds[keep]
            names = names.take(pa.array(keep))
        self._rows, self._middles, self._ends, self._kinds, self._names = (
            rows,
            middles,
            ends,
            kinds,
            names,
        )

    def keys(self) -> Any:
        chosen = np.flatnonzero(self._kinds == _KEYS)
        return _split_keys(self._values(chosen), self._rows[chosen], self._count)

    def tag(self) -> Any:
        return self._one_each(_TAG)

    def properties(self) -> Any:
        chosen = np.flatnonzero(self._kinds == _USER)
        names = as_text(self._names.dictionary).take(self._names.indices.take(pa.array(chosen)))
        return pa.MapArray.from_arrays(
            pa.array(_offsets(self._rows[chosen], self._count)), names, self._values(chosen)
        )

    def unique(self) -> Any:
        return self._one_each(_UNIQUE)

    def _values(self, chosen: Array) -> Any:
        return as_text(spans(self._buffer, self._middles[chosen] + 1, self._ends[chosen]))

    def _one_each(self, kind: int) -> Any:
        chosen = np.flatnonzero(self._kinds == kind)
        if len(chosen) == self._count:
            return self._values(chosen)  # rows rise, and none has two
        at = np.full(self._count, -1, np.int64)
        at[self._rows[chosen]] = np.arange(len(chosen))
        return self._values(chosen).take(pa.array(at, mask=at < 0))


def _parts(data: Array, bounds: Array) -> tuple[Array, Array, Array, Array]:
    """(row, begin, place of 0x01, end) of every well-formed part of all strings; ``bounds``: where
    rows begin, and the end.
    """
    separators = np.flatnonzero(data == 2)
    after = separators + 1
    inner = after[after < bounds[np.searchsorted(bounds, separators, "right")]]
    begins = np.sort(np.concatenate((bounds[:-1][bounds[1:] > bounds[:-1]], inner)))
    rows = np.searchsorted(bounds, begins, "right") - 1
    ends = np.minimum(
        np.append(separators, len(data))[np.searchsorted(separators, begins)], bounds[rows + 1]
    )
    marks = np.flatnonzero(data == 1)
    middles = np.append(marks, len(data))[np.searchsorted(marks, begins)]
    good = (middles < ends - 1) & (ends - begins >= _PART_MIN)
    return (
        (rows, begins, middles, ends)
        if good.all()
        else (rows[good], begins[good], middles[good], ends[good])
    )


def _kinds(names: Any) -> Array:
    known = [str(name, "utf-8", "replace") for name in names.to_pylist()]
    return np.array(
        [_KINDS.get(name, _HIDDEN if name in RESERVED_PROPERTIES else _USER) for name in known],
        np.int64,
    )


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
    return np.concatenate(
        (np.zeros(1, np.int32), np.cumsum(np.bincount(rows, minlength=count), dtype=np.int32))
    )


def _split_keys(values: Any, rows: Array, count: int) -> Any:
    """KEYS holds keys separated by blanks."""
    if not pc.any(pc.match_substring(values, " ")).as_py():
        return pa.ListArray.from_arrays(pa.array(_offsets(rows, count)), values)
    lists = pc.split_pattern(values, " ")
    keys, owners = lists.flatten(), pc.list_parent_indices(lists).to_numpy()
    filled = pc.greater(pc.binary_length(keys), 0)
    owners = owners[filled.to_numpy(zero_copy_only=False)]
    return pa.ListArray.from_arrays(pa.array(_offsets(rows[owners], count)), keys.filter(filled))
