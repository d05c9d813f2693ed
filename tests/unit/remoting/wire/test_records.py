"""Bodies of our own requests: lengths agree or the frame is refused; records are views, never
copies.
"""

from __future__ import annotations

import struct

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.arrays import MANY
from rmq_ray.errors import MalformedFrame
from rmq_ray.remoting.wire import records
from rmq_ray.remoting.wire.records import PullRecords, ScanRecords, SendAnswer

SIZES = st.lists(st.integers(records.RECORD_BYTES_MIN, 300), min_size=1, max_size=20)
PULL = PullRecords(
    "group", "topic", 3, 77, 256, 1 << 20, 3, -1, 15_000, 1_700_000_000_000, "TAG", None, 2, 7
)


@settings(deadline=None)
@given(SIZES, st.sampled_from(("<i4", ">i4")))
def test_a_frame_of_records_is_read_back(lengths: list[int], order: str) -> None:
    payload = bytes(number % 251 for number in range(sum(lengths)))
    body = bytearray(b"".join(records.pack_send(payload, np.array(lengths, order))))
    found, sizes = records.unpack_send(memoryview(body))
    assert (bytes(found), list(sizes)) == (payload, lengths)
    assert isinstance(sizes, tuple) is (len(lengths) < MANY)
    found[0] = 255
    assert body[4 + 4 * len(lengths)] == 255  # the broker patches in place


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_make_the_readers_fail_otherwise(data: bytes) -> None:
    for read in (
        records.unpack_send,
        records.unpack_send_answer,
        records.unpack_pull,
        records.unpack_scan,
        records.unpack_pull_answer,
    ):
        try:
            found = read(data)
        except MalformedFrame:
            continue
        assert found is not None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0",
        struct.pack(">i", 0),
        struct.pack(">i", -1),
        struct.pack(">i", 1),
        struct.pack(">i", 1 << 30) + bytes(100),
        struct.pack(">ii", 1, 90) + bytes(90),
        struct.pack(">ii", 1, 100) + bytes(99),
        struct.pack(">ii", 1, 100) + bytes(101),
        struct.pack(">iii", 2, 200, -100) + bytes(100),
        struct.pack(">ii", 1, -100),
        struct.pack(">i", 65_537) + bytes(4 * 65_537),
    ],
)
def test_sizes_that_do_not_add_up_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedFrame):
        records.unpack_send(body)


def test_sizes_whose_sum_overflows_32_bits_are_refused() -> None:
    lengths = [0x7FFFFFFF, 0x7FFFFFFF, 102]
    with pytest.raises(MalformedFrame, match="in all"):
        records.unpack_send(struct.pack(">iiii", 3, *lengths) + bytes(100))


@pytest.mark.parametrize("count", [0, 1, 3, MANY - 1, MANY, 40])
def test_a_pulled_page_is_the_answer_with_its_few_sizes_as_numbers(count: int) -> None:
    lengths = [91 + number for number in range(count)]
    payload = bytes(number % 251 for number in range(sum(lengths)))
    body = b"".join(
        records.pack_pull_answer(
            10 + count, 2, 10 + count, 3, 1, np.array(lengths, np.int32), (payload,)
        )
    )
    answer, page = records.unpack_pull_answer(body), records.unpack_pulled(body)
    assert isinstance(page.sizes, tuple) is (count < MANY)
    assert list(page.sizes) == lengths == answer.sizes.tolist() and answer.sizes.dtype == np.dtype(
        ">i4"
    )
    assert page[:5] == answer[:5] == (10 + count, 2, 10 + count, 3, 1)
    assert bytes(page.records) == bytes(answer.records) == payload
    if 0 < count < MANY:
        assert records.pack_found(10 + count, 2, 3, 1, lengths, payload) == body
    with pytest.raises(MalformedFrame):
        records.unpack_pulled(body + b"x")


def test_the_answer_to_a_send_is_28_bytes() -> None:
    body = records.pack_send_answer(5, 1 << 40, 1_700_000_000_000, True)
    assert body == struct.pack(">qqqi", 5, 1 << 40, 1_700_000_000_000, 1)
    assert records.unpack_send_answer(body) == SendAnswer(5, 1 << 40, 1_700_000_000_000, True)


def test_a_pull_and_a_scan_are_lists_in_their_fixed_order() -> None:
    values = [
        "group",
        "topic",
        3,
        77,
        256,
        1 << 20,
        3,
        -1,
        15_000,
        1_700_000_000_000,
        "TAG",
        None,
        2,
        7,
    ]
    assert msgpack.unpackb(records.pack_pull(PULL)) == values
    assert records.unpack_pull(records.pack_pull(PULL)) == PULL
    scan = ScanRecords("topic", 1, 10, 20, 1 << 20, 7)
    assert msgpack.unpackb(records.pack_scan(scan)) == ["topic", 1, 10, 20, 1 << 20, 7]
    assert records.unpack_scan(records.pack_scan(scan)) == scan


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, b"group"),
        (0, 1),
        (2, "3"),
        (2, True),
        (3, -2),
        (3, 1 << 63),
        (3, None),
        (4, 1.0),
        (10, None),
        (11, 5),
        (12, "0"),
        (13, "0"),
        (1, ["topic"]),
        (1, {}),
    ],
)
def test_a_pull_with_a_value_of_another_kind_is_refused(at: int, value: object) -> None:
    values = msgpack.unpackb(records.pack_pull(PULL))
    values[at] = value
    with pytest.raises(MalformedFrame):
        records.unpack_pull(msgpack.packb(values))


@pytest.mark.parametrize("values", [[], 5, None, ["a"] * 13, ["a"] * 15])
def test_a_request_that_is_no_list_of_the_right_length_is_refused(values: object) -> None:
    with pytest.raises(MalformedFrame):
        records.unpack_pull(msgpack.packb(values))


def test_pages_of_records_are_views_of_the_answer() -> None:
    sizes = np.array([100, 120], "<i4")
    body = b"".join(
        records.pack_pull_answer(12, 0, 90, 3, 1, sizes, [b"a" * 100, memoryview(b"b" * 120)])
    )
    page = records.unpack_pull_answer(body)
    assert page[:5] == (12, 0, 90, 3, 1) and page.sizes.tolist() == [100, 120]
    assert bytes(page.records) == b"a" * 100 + b"b" * 120 and page.records.obj is body


def test_an_empty_page_has_offsets_only() -> None:
    body = b"".join(records.pack_pull_answer(5, 0, 5, 1, 0))
    assert body == struct.pack(">qqqqii", 5, 0, 5, 1, 0, 0)
    page = records.unpack_pull_answer((body[:20], body[20:]))
    assert (len(page.sizes), len(page.records), page.next_offset) == (0, 0, 5)
