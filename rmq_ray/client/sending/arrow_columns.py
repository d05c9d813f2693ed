"""From a table to messages: which columns are what, the checks of every value, and the property
strings, built by columns.

    body  binary, string             key   string or list<string>       tag   string
    properties   a map column, or names of string columns (a null is left out)

A string may be large, a view, behind a dictionary or runs; a list large or of a fixed size. A
column in which nothing is has the type null: that is none in every row, wherever a null is none.

Decides what a column may be and which values are illegal; errors name the column and the row, and
come before anything is sent. Does not encode records (``codec.arrow.arrow_encoder``) or cut frames
(``client.sending.arrow_sending``). Pure. Called by ``client.sending.arrow_sending``.

Invariant: what passes here would pass ``protocol.validators`` value by value, and gives the same
property string.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_ray.codec.arrow.arrow_encoder import offsets_of
from rmq_ray.errors import ClientError, MessageIllegal, MessageTooLarge
from rmq_ray.model.message import KEYS, RESERVED_PROPERTIES, TAGS
from rmq_ray.protocol.validators import USER_PROPERTIES_BYTES_MAX

WINDOW_ROWS = 65_536
"""CheckedRows that are looked at together."""
_SMALL_CHUNK = 4_096  # chunks shorter than this are put together first: a frame lies in one chunk
_SHOWN = 10  # column names in an error
_BINARY = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
)
_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_null,
)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
"""Not views of lists: their cast to lists loses values (pyarrow 26)."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of columns. ``properties``: one name of a map column, or names of string columns, which
    become the properties' names.
    """

    body: str
    key: str | None = None
    tag: str | None = None
    properties: str | Sequence[str] = ()

    @classmethod
    def kept(
        cls, body: str, key: str | None, tag: str | None, properties: str | Sequence[str]
    ) -> Columns:
        """The same for a later write: what the caller does to its list does not change it."""
        return cls(body, key, tag, properties if isinstance(properties, str) else tuple(properties))

    def checked(self) -> Columns:
        """The same with properties that can be looked at again and again, each column once.
        ``ClientError`` for what is no name.
        """
        properties = (
            self.properties if isinstance(self.properties, str) else _listed(self.properties)
        )
        given: list[tuple[str, object]] = [
            ("body", self.body),
            *(
                ("properties", each)
                for each in ([properties] if isinstance(properties, str) else properties)
            ),
        ]
        given += [
            (argument, name)
            for argument, name in (("key", self.key), ("tag", self.tag))
            if name is not None
        ]
        for argument, name in given:
            if not isinstance(name, str) or not _is_encodable(name):
                raise ClientError(
                    f"{argument} is {name!r:.80}, which names no column; give a string"
                )
        return replace(
            self,
            properties=properties
            if isinstance(properties, str)
            else tuple(dict.fromkeys(properties)),
        )

    def names(self) -> list[str]:
        """Each column once."""
        properties = [self.properties] if isinstance(self.properties, str) else self.properties
        return list(
            dict.fromkeys(
                name for name in (self.body, self.key, self.tag, *properties) if name is not None
            )
        )


@dataclass(slots=True)
class CheckedRows:
    """CheckedRows from number ``first`` on that lie together. ``texts``: property strings as
    ``property_text`` makes them, None = all empty.
    """

    first: int
    bodies: Any
    texts: Any


def read_rows(data: object, columns: Columns, body_bytes_max: int) -> list[CheckedRows]:
    """Every row of a ``pyarrow.Table`` or ``RecordBatch``, checked. Buffers are shared, not copied,
    where the types allow.

    Raises ``ClientError`` (what is no table, missing columns, wrong types), ``MessageIllegal``
    (null and empty bodies, bad keys, tags, properties), ``MessageTooLarge``.
    """
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if not isinstance(data, pa.Table):
        raise ClientError(
            f"send_arrow takes a pyarrow.Table or RecordBatch, not {type(data).__name__}; "
            f"convert it first (pyarrow.Table.from_pandas, ...)"
        )
    columns = columns.checked()
    for name in columns.names():
        _check_column(data, name)
    for name in () if isinstance(columns.properties, str) else columns.properties:
        _check_name(name, f"column {name!r} cannot be a property: its name")
    return list(_windows(data, columns, body_bytes_max))


def _windows(table: Any, columns: Columns, body_bytes_max: int) -> Iterator[CheckedRows]:
    table = table.select(columns.names())
    if any(column.num_chunks > 1 + table.num_rows // _SMALL_CHUNK for column in table.columns):
        table = table.combine_chunks()
    first = 0
    for batch in table.to_batches(max_chunksize=WINDOW_ROWS):
        if batch.num_rows:
            yield CheckedRows(
                first,
                _bodies(batch[columns.body], columns.body, first, body_bytes_max),
                _texts(batch, columns, first),
            )
            first += batch.num_rows


def _check_column(table: Any, name: object) -> None:
    found = table.schema.get_all_field_indices(name) if isinstance(name, str) else []
    if len(found) != 1:
        names = ", ".join(repr(column) for column in table.column_names[:_SHOWN])
        raise ClientError(
            f"the table has {len(found) or 'no'} columns named {name!r}; it has "
            f"{names}{', ...' * (table.num_columns > _SHOWN)}",
            name,
        )


# --- bodies ---------------------------------------------------------------------------------------


def _bodies(values: Any, name: str, first: int, body_bytes_max: int) -> Any:
    kind = _plain_type(values.type)
    if not (_is_text(kind) or any(is_kind(kind) for is_kind in _BINARY)):
        raise _wrong_type(name, values.type, "binary or string")
    bodies = _cast(values, pa.binary(), name)
    if bodies.null_count:
        raise _illegal(name, first + _first(pc.is_null(bodies)), "is null; a message needs a body")
    lengths = np.diff(offsets_of(bodies))
    if not lengths.all():
        raise _illegal(
            name,
            first + int((lengths == 0).argmax()),
            "is empty; a message needs at least one byte",
        )
    longest = int(lengths.argmax())
    if lengths[longest] > body_bytes_max:
        raise _too_large(name, first + longest, int(lengths[longest]), body_bytes_max)
    return bodies


# --- property strings -----------------------------------------------------------------------------


def _texts(batch: Any, columns: Columns, first: int) -> Any:
    """Property strings of the batch's rows; None without any label column."""
    parts: list[Any] = []
    labels = 0
    for name, values, column in _labels(batch, columns, first):
        labels += len(values) - values.null_count
        joined = [f"{name}\x01", values, "\x02"]
        parts += joined if not values.null_count else [_joined(joined).fill_null(b"")]
        _check_lengths(values, column, first)
    if isinstance(columns.properties, str):
        text, count = _map_text(batch[columns.properties], columns.properties, first)
        parts.append(text)
        labels += count
    if not parts:
        return None
    texts = _joined(parts)
    offsets = offsets_of(texts)
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    if np.count_nonzero(data == 1) != labels or np.count_nonzero(data == 2) != labels:
        raise _separator_inside(batch, columns, first)
    lengths = np.diff(offsets)
    longest = int(lengths.argmax())
    if lengths[longest] > USER_PROPERTIES_BYTES_MAX:
        raise _too_large(
            "keys, tag and properties",
            first + longest,
            int(lengths[longest]),
            USER_PROPERTIES_BYTES_MAX,
        )
    return texts


def _labels(batch: Any, columns: Columns, first: int) -> Iterator[tuple[str, Any, str]]:
    """(property name, values with null where there is none, column) in the order of the wire."""
    if columns.key is not None:
        yield KEYS, _keys(batch[columns.key], columns.key, first), columns.key
    if columns.tag is not None:
        tags = _none_if_empty(_text_values(batch[columns.tag], columns.tag))
        blank = pc.utf8_is_space(tags)
        if pc.any(blank).as_py():
            raise _illegal(
                columns.tag, first + _first(blank), "is a blank tag; use null for no tag"
            )
        yield TAGS, tags, columns.tag
    if not isinstance(columns.properties, str):
        for name in columns.properties:
            values = _text_values(batch[name], name)
            _refuse_empty(values, name, first)
            yield name, values, name


def _keys(values: Any, name: str, first: int) -> Any:
    kind = _plain_type(values.type)
    if not any(is_kind(kind) for is_kind in _LISTS):
        keys = _none_if_empty(_text_values(values, name, "string or list<string>"))
        _refuse_blanks(keys, None, name, first)
        return keys
    if not _is_text(_plain_type(kind.value_type)):
        raise _wrong_type(name, values.type, "string or list<string>")
    lists = _cast(values, pa.list_(pa.string()), name)
    flat = lists.flatten()
    parents = pc.list_parent_indices(lists)
    bad = pc.fill_null(pc.equal(pc.binary_length(flat), 0), True)
    if pc.any(bad).as_py():
        raise _illegal(
            name, first + parents[_first(bad)].as_py(), "holds an empty key or a null; remove it"
        )
    _refuse_blanks(flat, parents, name, first)
    return _none_if_empty(pc.binary_join(lists, " "))


def _refuse_blanks(keys: Any, parents: Any, name: str, first: int) -> None:
    blank = pc.match_substring(keys, " ")
    if pc.any(blank).as_py():
        at = _first(blank)
        raise _illegal(
            name,
            first + (at if parents is None else parents[at].as_py()),
            f"holds a blank inside a key ({keys[at].as_py()!r}); replace it",
        )


def _map_text(values: Any, name: str, first: int) -> tuple[Any, int]:
    """(text of each row's properties, how many properties in all)."""
    kind = values.type
    if pa.types.is_null(kind):
        return pa.array([b""] * len(values), pa.binary()), 0
    if not pa.types.is_map(kind) or not all(
        _is_text(_plain_type(side)) for side in (kind.key_type, kind.item_type)
    ):
        raise _wrong_type(name, kind, "map<string, string>, or give names of string columns")
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)
    begin, end = int(offsets[0]), int(offsets[-1])
    keys, items = (
        _cast(side.slice(begin, end - begin), pa.string(), name)
        for side in (values.keys, values.items)
    )

    def row(at: int) -> int:
        return first + int(np.searchsorted(offsets, begin + at, "right")) - 1

    for key in pc.unique(keys).to_pylist():
        _check_name(
            key, f"column {name!r}, row {row(pc.index(keys, key).as_py())}: the property name"
        )
    empty = pc.equal(pc.binary_length(items), 0)
    if pc.any(empty).as_py():
        raise _illegal(name, row(_first(empty)), "holds an empty value; leave the property out")
    pairs = _joined([keys, "\x01", items, "\x02"]).fill_null(b"")
    lists = pa.ListArray.from_arrays(pa.array(offsets - begin), pairs)
    return pc.if_else(values.is_valid(), pc.binary_join(lists, b""), b""), len(
        items
    ) - items.null_count


# --- values ---------------------------------------------------------------------------------------


def _text_values(values: Any, name: str, wanted: str = "string") -> Any:
    if not _is_text(_plain_type(values.type)):
        raise _wrong_type(name, values.type, wanted)
    return _cast(values, pa.string(), name)


def _cast(values: Any, kind: Any, name: str) -> Any:
    try:
        if pa.types.is_run_end_encoded(values.type):
            words = _cast(values.values, kind, name)
            runs = pa.RunEndEncodedArray.from_arrays(values.run_ends, words)
            values = pc.run_end_decode(runs.slice(values.offset, len(values)))
        elif pa.types.is_dictionary(values.type):
            words = _cast(values.dictionary, kind, name)
            values = pa.DictionaryArray.from_arrays(values.indices, words).dictionary_decode()
        return values if values.type == kind else values.cast(kind)
    except pa.ArrowException as error:
        raise ClientError(
            f"column {name!r} of type {values.type} cannot be read as {kind}: {error}", name
        ) from error


def _plain_type(kind: Any) -> Any:
    """The type of the values themselves, behind dictionaries and runs."""
    while pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):  # ends: each is inside
        kind = kind.value_type
    return kind


def _is_text(kind: Any) -> bool:
    """Text, or nothing at all."""
    return any(is_kind(kind) for is_kind in _TEXTS)


def _none_if_empty(values: Any) -> Any:
    empty = pc.equal(pc.binary_length(values), 0)
    return pc.if_else(empty, None, values) if pc.any(empty).as_py() else values


def _joined(parts: Sequence[Any]) -> Any:
    return pc.binary_join_element_wise(
        *[part.encode() if isinstance(part, str) else part.cast(pa.binary()) for part in parts], b""
    )


def _first(found: Any) -> int:
    """The first row where it is true."""
    return int(pc.index(found, True).as_py())


def _listed(properties: Any) -> list[Any]:
    refused = (
        f"properties={properties!r:.80} names no column; give the name of a map column, or a "
        f"list of string columns"
    )
    if isinstance(properties, bytes | bytearray | memoryview):
        raise ClientError(refused)
    try:
        return list(properties)
    except TypeError:
        raise ClientError(refused) from None


def _is_encodable(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)


# --- refusals -------------------------------------------------------------------------------------


def _check_name(name: object, what: str) -> None:
    if not isinstance(name, str) or not name or "\x01" in name or "\x02" in name:
        raise MessageIllegal(
            f"{what} {name!r} is empty, or holds the separator 0x01 or 0x02; rename it", name
        )
    if name in RESERVED_PROPERTIES:
        raise MessageIllegal(
            f"{what} {name!r} is reserved by the queue itself; rename it, or use key= and tag=",
            name,
        )


def _check_lengths(values: Any, name: str, first: int) -> None:
    lengths = pc.binary_length(values)
    longest = pc.max(lengths).as_py() or 0
    if longest > USER_PROPERTIES_BYTES_MAX:
        raise _too_large(
            name, first + pc.index(lengths, longest).as_py(), longest, USER_PROPERTIES_BYTES_MAX
        )


def _refuse_empty(values: Any, name: str, first: int) -> None:
    empty = pc.equal(pc.binary_length(values), 0)
    if pc.any(empty).as_py():
        raise _illegal(
            name, first + _first(empty), "is an empty property; use null to leave it out"
        )


def _separator_inside(batch: Any, columns: Columns, first: int) -> MessageIllegal:
    """Only called when there is one: where it is."""
    for _, values, column in _labels(batch, columns, first):
        for separator in ("\x01", "\x02"):
            found = pc.match_substring(values, separator)
            if pc.any(found).as_py():
                at = _first(found)
                return _illegal(
                    column,
                    first + at,
                    f"holds the separator 0x01 or 0x02: {values[at].as_py()!r}; remove it",
                )
    return MessageIllegal(
        f"column {columns.properties!r}: a value of rows {first} to "
        f"{first + batch.num_rows - 1} holds the separator 0x01 or 0x02; remove it"
    )


def _illegal(column: str, row: int, fault: str) -> MessageIllegal:
    return MessageIllegal(f"column {column!r}, row {row} {fault}; nothing was sent", column, row)


def _too_large(column: str, row: int, size: int, limit: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"column {column!r}, row {row} has {size} bytes, the limit is {limit}; shorten it; "
        f"nothing was sent",
        size,
        limit,
    )


def _wrong_type(column: str, kind: Any, wanted: str) -> ClientError:
    return ClientError(
        f"column {column!r} has type {kind}, {wanted} is needed; make it one first, e.g. "
        f"pyarrow.array(column.to_pylist(), type)",
        column,
    )
