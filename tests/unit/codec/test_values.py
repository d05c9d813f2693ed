"""Python values as bodies: equal and of the same type on the other side, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.codec.values import BYTES, MSGPACK, TABLE, TENSOR, decode, encode
from rmq_ray.errors import BodyUnreadable, ClientError

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


class _Text(str):
    pass


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
