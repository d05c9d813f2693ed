"""Forms of values that need no torch, and how they are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rmq_ray.errors import BodyUnreadable, ClientError
from rmq_ray.transfer_queue.values import PIECE_BYTES, Encoded, Room, decode, encode, parcels


def sent(value: Any, pickle: bool = False) -> tuple[str, list[bytes]]:
    """Form and bodies, as messages have them."""
    (parcel,) = parcels([encode(value, pickle)])
    table = parcel.table(["k"])
    assert set(table["key"].to_pylist()) == {"k"} and len(set(parcel.forms)) == 1
    return parcel.forms[0], table["body"].to_pylist()


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.array(7, np.int16),
        np.zeros((0, 3)),
        np.arange(9)[::-2],
        np.array([b"ab", b"c"]),
        np.array(["2026-01-01"], "datetime64[D]"),
        np.float64(0.5),
        np.bytes_(b"ab"),
        np.str_("é"),
        np.bytes_(b""),
        "text",
        {"a": [1, None, 2.5, b"\0"]},
        b"bytes",
        b"",
        None,
    ],
    ids=repr,
)
def test_a_value_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    form, bodies = sent(value)
    found = decode(form, bodies)
    assert type(found) is type(value) and all(bodies)
    if isinstance(value, np.ndarray):
        assert found.dtype == value.dtype and found.shape == value.shape
        assert np.array_equal(found, value) and found.flags.writeable
    else:
        assert found == value


@pytest.mark.parametrize(
    "value",
    [object(), (1, 2), {"a": {1}}, np.array([object()]), np.zeros(1, "i4,i4"), lambda: 1],
    ids=lambda value: type(value).__name__,
)
def test_a_value_without_a_form_is_refused_by_its_type(value: Any) -> None:
    with pytest.raises(ClientError, match="cannot be put, nothing was") as told:
        encode(value)
    assert told.value.args[1] == type(value).__name__


def test_pickle_takes_the_others_where_both_sides_ask_for_it() -> None:
    form, bodies = sent((1, {2}), pickle=True)
    assert decode(form, bodies, pickle=True) == (1, {2})
    with pytest.raises(ClientError, match="nothing is unpickled here"):
        decode(form, bodies)
    with pytest.raises(ClientError, match="generator cannot be put"):
        encode((n for n in ()), pickle=True)


def test_rows_that_lie_behind_each_other_are_one_column_without_a_copy() -> None:
    whole = np.arange(1 << 19, dtype=np.float32).reshape(64, -1)
    (parcel,) = parcels([encode(row) for row in whole])
    (column,) = parcel.bodies
    assert column.buffers()[2].address == whole.__array_interface__["data"][0]
    assert [np.frombuffer(body.as_py(), np.float32)[0] for body in column] == whole[:, 0].tolist()


def test_a_long_value_is_cut_and_the_others_are_put_together() -> None:
    long = np.arange(2 * PIECE_BYTES + 5, dtype=np.uint8)
    values = ["a", long, "b", np.ones(3)]
    alone, rest = parcels([encode(value) for value in values])
    assert alone.numbers == [1, 1, 1] and rest.numbers == [0, 2, 3]
    bodies = alone.table(["w", "x", "y", "z"])["body"].to_pylist()
    assert [len(body) for body in bodies] == [PIECE_BYTES, PIECE_BYTES, 5]
    assert np.array_equal(decode(alone.forms[0], bodies), long)
    assert rest.table(["w", "x", "y", "z"])["key"].to_pylist() == ["w", "y", "z"]


def test_values_of_a_get_lie_in_one_block_aligned_and_apart() -> None:
    values = [np.arange(size, dtype=np.int64) for size in (1, 3, 1_000, 0, 7)]
    sizes = [max(1, value.nbytes) for value in values]
    room = Room(sum(sizes), len(values))
    found = []
    for value in values:
        form, bodies = sent(value)
        found.append(decode(form, [b"" + body for body in bodies], room=room))
    for one in found:
        assert not one.size or one.__array_interface__["data"][0] % 64 == 0
        one += 1
    assert all(np.array_equal(one, value + 1) for one, value in zip(found, values, strict=True))


def test_a_piece_that_is_its_readers_own_is_the_value_itself_where_it_lies_aligned() -> None:
    block = np.zeros(512, np.uint8)
    first = -block.__array_interface__["data"][0] % 64
    for at, writable, itself in ((first, True, True), (first, False, False), (first + 8, 1, False)):
        piece = memoryview(block)[at : at + 80]
        value = decode("array <i8 10", [piece if writable else piece.toreadonly()])
        value += 1
        assert np.shares_memory(value, block) == itself and value.flags.aligned


def test_what_an_encoded_value_lies_in_is_kept_alive_by_its_column() -> None:
    def made() -> Encoded:
        return encode(np.full(1_000, 7, np.uint8))

    (parcel,) = parcels([made()])
    assert parcel.table(["k"])["body"][0].as_py() == b"\7" * 1_000


@pytest.mark.parametrize(
    ("form", "body"),
    [
        ("array <f8 3", b"12345678"),
        ("array nothing 1", b"1"),
        ("array <f8 x", b"12345678"),
        ("what", b"1"),
        ("", b"1"),
    ],
)
def test_a_body_that_is_not_of_its_form_is_unreadable(form: str, body: bytes) -> None:
    with pytest.raises(BodyUnreadable):
        decode(form, [body])
