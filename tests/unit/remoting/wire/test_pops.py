"""Bodies of POP_RECORDS and SETTLE_POPPED: there and back, and whatever strangers may send."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.errors import MalformedFrame
from rmq_ray.remoting.wire.pops import (
    INVISIBLE_MS_MAX,
    SETTLEMENTS_MAX,
    LeaseHead,
    PopRecords,
    Settlement,
    pack_pop,
    pack_popped,
    pack_settle,
    pack_stale,
    unpack_pop,
    unpack_popped,
    unpack_settle,
    unpack_stale,
)

POP = PopRecords(
    "workers", "jobs", 8, 1 << 20, 30_000, 20_000, 1, -1, "TAG", "paid || open", 1 << 62, 1
)
ROW = Settlement("jobs", 3, 77, 1, b"\x05", 1_500)


def test_a_pop_arrives_as_it_was_sent() -> None:
    assert unpack_pop(pack_pop(POP)) == POP


def test_leases_arrive_with_their_own_records() -> None:
    heads = [
        LeaseHead("jobs", 0, 7, 1_000, 0, 9, 2, 7),
        LeaseHead("%RETRY%workers", 1, 8, 1_000, 2, 5, 1, 4),
    ]
    body = pack_popped(
        heads, [np.array([3, 4], np.int32), np.array([4], np.int32)], [b"aaabbbb", b"cccc"]
    )
    first, second = unpack_popped(b"".join(bytes(part) for part in body))
    assert (first.head, bytes(first.records), first.sizes.tolist()) == (
        heads[0],
        b"aaabbbb",
        [3, 4],
    )
    assert (second.head, bytes(second.records), second.sizes.tolist()) == (heads[1], b"cccc", [4])


def test_settlements_and_their_answer_arrive_as_they_were_sent() -> None:
    assert unpack_settle(pack_settle("workers", [ROW, ROW])) == ("workers", [ROW, ROW])
    assert unpack_stale(pack_stale([b"", b"\x01"]), 2) == [b"", b"\x01"]


@pytest.mark.parametrize(
    "change",
    [
        {"group": 7},
        {"count_max": -2},
        {"count_max": 1 << 63},
        {"invisible_ms": "30"},
        {"expression": None},
        {"wait_ms": True},
    ],
    ids=str,
)
def test_a_pop_of_other_types_is_refused(change: dict[str, object]) -> None:
    fields = {name: getattr(POP, name) for name in POP.__dataclass_fields__} | change
    with pytest.raises(MalformedFrame):
        unpack_pop(msgpack.packb(list(fields.values())))


@pytest.mark.parametrize(
    "row",
    [
        ROW._replace(action=3),
        ROW._replace(delay_ms=INVISIBLE_MS_MAX + 1),
        ROW._replace(mask=b"\x01" * 8_193),
        ROW._replace(mask="x"),
        ROW[:5],
    ],
    ids=["action", "delay", "mask", "type", "length"],
)
def test_a_settlement_out_of_range_is_refused(row: Settlement) -> None:
    with pytest.raises(MalformedFrame):
        unpack_settle(pack_settle("workers", [row]))


@pytest.mark.parametrize("count", [0, SETTLEMENTS_MAX + 1])
def test_none_and_too_many_settlements_are_refused(count: int) -> None:
    with pytest.raises(MalformedFrame, match="leases in one request"):
        unpack_settle(pack_settle("workers", [ROW] * count))


def test_an_answer_whose_lengths_disagree_is_refused() -> None:
    heads = [LeaseHead("jobs", 0, 7, 1_000, 0, 9, 2, 7)]
    body = b"".join(
        bytes(part) for part in pack_popped(heads, [np.array([3, 4], np.int32)], [b"aaabbbb"])
    )
    for wrong in (
        body[:-1],
        body + b"x",
        body[:3],
        b"\xff\xff\xff\xff" + body[4:],
        b"\0\0\xff\xff" + body[4:],
    ):
        with pytest.raises(MalformedFrame):
            unpack_popped(wrong)


@given(st.binary(max_size=200))
def test_random_bytes_raise_malformed_frame_and_nothing_else(data: bytes) -> None:
    for unpack in (unpack_pop, unpack_popped, unpack_settle, lambda body: unpack_stale(body, 1)):
        with pytest.raises(MalformedFrame):
            unpack(data)  # type: ignore[operator]
