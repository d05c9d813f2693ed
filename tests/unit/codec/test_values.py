"""Python values as bodies: equal and of the same type on the other side, or refused."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.codec.values import BYTES, MSGPACK, TABLE, TENSOR, decode, encode
from rmq_ray.errors import BodyUnreadable, ClientError


class _Text(str):
    pass


class _Number(IntEnum):
    ONE = 1


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
)


def same(value: Any, other: Any) -> bool:
    if type(value) is not type(other):
        return False
    if isinstance(value, list):
        return len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, dict):
        return list(value) == list(other) and all(map(same, value.values(), other.values()))
    return bool(value == other)


@given(PLAIN)
def test_plain_values_come_back_equal_and_of_their_type(value: Any) -> None:
    assert same(decode(*encode(value)), value)


OTHERS = (
    st.binary().map(bytearray)
    | st.binary().map(memoryview)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary())
    | st.builds(msgpack.Timestamp, st.integers(0, 9))
    | st.tuples(PLAIN)
    | st.sets(st.integers())
    | st.builds(np.float64, st.floats())
    | st.builds(_Text, st.text())
    | st.just(_Number.ONE)
    | st.builds(np.arange, st.integers(0, 3))
)


@given(value=PLAIN, other=OTHERS, into=st.data())
def test_a_value_of_another_type_is_refused_wherever_it_lies(
    value: Any, other: Any, into: st.DataObject
) -> None:
    nested = other
    for _ in range(into.draw(st.integers(1, 4))):
        nested = into.draw(st.sampled_from(([value, nested], {"a": value, "b": nested}, [nested])))
    with pytest.raises(ClientError, match="pickle"):
        encode(nested)


DTYPES = [*"?bBhHiIlLqQefdgFD", "S3", "U3", "O", "M8[s]", "m8[s]", "i4,f8"]
DTYPES += [
    f"{order}{kind}" for order in "<>" for kind in ("i2", "i4", "i8", "u4", "f4", "f8", "c16")
]
SURVIVE = frozenset(np.dtype(kind) for kind in "bBhHiIlLqQefd")
SHAPES = [(), (0,), (5,), (2, 3), (0, 3), (3, 0), (2, 1, 3)]
VIEWS: list[Callable[[Any], Any]] = [
    lambda array: array,
    np.asfortranarray,
    lambda array: array[::-1] if array.ndim else array,
    lambda array: array[..., ::2] if array.ndim else array,
    np.transpose,
    lambda array: np.broadcast_to(array, (2, *array.shape)),
]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_comes_back_with_values_type_and_shape_or_is_refused(
    dtype: str, view: Callable[[Any], Any]
) -> None:
    for shape in SHAPES:
        array = view(np.zeros(shape, dtype))
        if array.dtype.kind in "iuf":
            numbers = np.asarray(np.arange(array.size) - 1)
            array = view(numbers.reshape(array.shape).astype(dtype))
        if np.dtype(dtype) not in SURVIVE:
            with pytest.raises(ClientError, match="no array of numbers"):
                encode(array)
            continue
        found = decode(*encode(array))
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert type(found) is np.ndarray and np.array_equal(found, array)


class _Mine(pa.ExtensionType):
    """Known to this process only."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "tests.mine")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, _storage: Any, _serialized: Any) -> _Mine:
        return cls()


WORDS = pa.array(["a", None, "b", "a"])
TABLES = {
    "no columns": pa.table({}),
    "no rows": pa.table({"a": WORDS}).slice(0, 0),
    "nulls": pa.table({"a": pa.nulls(3)}),
    "a slice": pa.table({"a": WORDS, "b": [1, 2, 3, 4]}).slice(1, 2),
    "chunks": pa.concat_tables([pa.table({"a": WORDS})] * 2),
    "dictionaries": pa.table(
        {"a": pa.chunked_array([pa.array([word]).dictionary_encode() for word in "ab"])}
    ),
    "runs": pa.table({"a": pc.run_end_encode(WORDS)}).slice(1, 2),
    "views": pa.table({"a": WORDS.cast(pa.string_view())}),
    "nested": pa.table({"a": [{"x": [1, None], "y": {"z": b""}}, None]}),
    "moments": pa.table({"a": pa.array([0], pa.timestamp("us", "Europe/Berlin"))}),
    "two columns of one name": pa.Table.from_arrays([WORDS, WORDS], ["a", "a"]),
    "a type of Arrow's own": pa.table({"a": pa.array([b"0" * 16], pa.uuid())}),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_comes_back_whatever_its_layout(table: Any) -> None:
    assert decode(*encode(table)).equals(table, check_metadata=True)


def test_what_arrow_does_not_give_back_is_refused() -> None:
    mine = pa.ExtensionArray.from_storage(_Mine(), pa.array([1]))
    for table in (pa.table({"a": mine}), pa.table({"a": pa.array([1])}).to_batches()[0]):
        with pytest.raises(ClientError, match="pickle"):
            encode(table)


def test_no_bytes_are_a_value_too_though_a_message_has_a_body() -> None:
    body, kind = encode(b"")
    assert body and decode(body, kind) == b""


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "u2", "i8"])
def test_arrays_come_back_with_shape_and_type_and_may_be_written(dtype: str) -> None:
    array = np.arange(12).astype(dtype).reshape(3, 4)[:, ::2]
    body, kind = encode(array)
    found = decode(body, kind)
    assert kind == TENSOR and found.dtype == array.dtype and (found == array).all()
    found[0, 0] = 7
    assert array[0, 0] == 0


def test_tables_come_back_with_their_schema() -> None:
    table = pa.table({"a": [1, None], "b": [["x"], []]}).replace_schema_metadata({"k": "v"})
    body, kind = encode(table)
    found = decode(body, kind)
    assert kind == TABLE and found.equals(table, check_metadata=True)


def test_bytes_are_the_body() -> None:
    assert encode(b"\x00x") == (b"\x00x", BYTES) and encode("x")[1] == MSGPACK


@pytest.mark.parametrize(
    "value",
    [(1, 2), [(1,)], {1, 2}, object(), 1 << 64, _Text("x"), lambda: 0, np.array(["x"]), {"a": 1j}],
)
def test_what_would_come_back_otherwise_is_refused_with_what_helps(value: Any) -> None:
    with pytest.raises(ClientError, match="pickle"):
        encode(value)


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ClientError, match="no plain value"):
        encode(value)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"\xc1", MSGPACK),
        (b"\x81\x90\x01", MSGPACK),
        (b"", MSGPACK),
        (b"\x01\x02", MSGPACK),
        (b"no table", TABLE),
        (b"", TABLE),
        (b"no tensor", TENSOR),
        (b"x", "pickle"),
        (b"x", "something"),
    ],
)
def test_bodies_that_are_not_of_their_kind_are_refused(body: bytes, kind: str) -> None:
    with pytest.raises(BodyUnreadable):
        decode(body, kind)
