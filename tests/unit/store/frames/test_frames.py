"""What a producer encodes is what the broker accepts, and nothing else gets in (store-format 2;
design: frames).
"""

from __future__ import annotations

import random
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.arrays import Array
from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.codec.record import decode_record, pack_host_v4
from rmq_ray.codec.record_batch import (
    MARK_BYTES,
    CheckedFrame,
    FrameMark,
    frame_crc,
    pack_mark,
    read_mark,
    strip_mark,
)
from rmq_ray.codec.record_properties import split_facts
from rmq_ray.errors import MessageIllegal, MessageTooLarge, SendError
from rmq_ray.model.hashing import java_hash
from rmq_ray.model.ids import FrameId
from rmq_ray.store.frames import frame_check
from rmq_ray.store.frames.frame_check import check_frame, patch_frame
from rmq_ray.store.queue.index_service import hash_hashed_keys, hash_key

FRAME = FrameId(bytes(range(16)), 7)
KEY = "0A0102030405060708090A0B0C0D0E0F"
LIMIT = 1 << 20
HOSTS = (pack_host_v4("1.2.3.4", 5), pack_host_v4("10.0.0.1", 10911))
PATCHED = [
    *range(20, 36),
    *range(40, 72),
]  # offsets, times and hosts: the broker's or the producer's own business, not checked


def encoded(
    count: int, head: str = "TAGS\x01TagA\x02", body: bytes = b"body", **options: object
) -> tuple[bytearray, Array]:
    properties = [f"{head}UNIQ_KEY\x01{KEY[:-4]}{n:04X}" for n in range(count)]
    records, sizes = encode_frame(
        "TopicTest", 3, [body] * count, properties, 1_700_000_000_000, FRAME, **options
    )  # type: ignore[arg-type]
    return bytearray(records), sizes


def judged_slowly(records: bytearray, sizes: Array) -> CheckedFrame:
    return frame_check._check_each(memoryview(records), sizes.tolist(), LIMIT, split_facts)


PROPERTY = st.sampled_from(
    ["", "TAGS\x01a", "KEYS\x01k1 k2\x02TAGS\x01ü", "x\x01y\x02CLUSTER\x01c", "TAGS\x01a\x02"]
)
TAIL = st.sampled_from([f"UNIQ_KEY\x01{KEY}", f"UNIQ_KEY\x01{KEY[::-1]}", "UNIQ_KEY\x01short", ""])
MESSAGES = st.lists(st.tuples(st.binary(max_size=40), PROPERTY, TAIL), min_size=1, max_size=50)
WORD = st.text("abc-17", min_size=1, max_size=5)
VARIED = st.one_of(
    st.builds("KEYS\x01{}\x02TAGS\x01{}".format, WORD, WORD),
    st.builds("KEYS\x01{}\x02TAGS\x01{}\x02r\x01{}".format, WORD, WORD, st.just("two words")),
    st.builds("TAGS\x01{}".format, WORD),
    st.builds("KEYS\x01{} {}".format, WORD, WORD),
    st.builds("x\x01{}\x02CLUSTER\x01c".format, WORD),
    PROPERTY,
)
MANY = st.tuples(
    st.lists(VARIED, min_size=3, max_size=40),
    st.integers(100, 260),
    st.randoms(use_true_random=False),
)


@settings(deadline=None, max_examples=60)
@given(MESSAGES, st.integers(0, 65535))
def test_an_encoded_frame_is_accepted_and_decodes_to_its_messages(
    messages: list[tuple[bytes, str, str]], queue_id: int
) -> None:
    properties = [
        head + ("\x02" if head and tail and not head.endswith("\x02") else "") + tail
        for _, head, tail in messages
    ]
    bodies = [body for body, _, _ in messages]
    data, sizes = encode_frame("Topic_1", queue_id, bodies, properties, 123, FRAME)
    records = bytearray(data)
    frame = check_frame(records, sizes, LIMIT)
    assert (frame.topic, frame.queue_id, frame.count, frame.frame_id) == (
        "Topic_1",
        queue_id,
        len(messages),
        FRAME,
    )
    patch_frame(records, frame, (1000, 5000), 456, HOSTS)
    at = 0
    for number, (body, text) in enumerate(zip(bodies, properties, strict=True)):
        record = decode_record(records, at)
        assert (
            record.body,
            strip_mark(record.properties),
            record.queue_offset,
            record.log_offset,
        ) == (body, text, 1000 + number, 5000 + at)
        assert (record.born_ms, record.store_ms, record.born_host, record.store_host) == (
            123,
            456,
            ("1.2.3.4", 5),
            ("10.0.0.1", 10911),
        )
        assert frame.tag_codes[number] == java_hash(
            dict(p.split("\x01") for p in text.split("\x02") if p).get("TAGS", "")
        )
        at += record.size
    mark = read_mark(decode_record(records).properties.encode())
    assert mark == FrameMark(FRAME, len(messages), 5000)


@settings(deadline=None, max_examples=40)
@given(MANY)
def test_strings_that_differ_in_their_values_are_learnt_by_columns_just_the_same(
    many: tuple[list[str], int, random.Random],
) -> None:
    heads, count, rng = many
    chosen = rng.choices(heads[:2], k=count // 2) + rng.choices(heads, k=count - count // 2)
    rng.shuffle(chosen)
    compare_both_ways(
        [(b"x", head, f"UNIQ_KEY\x01{KEY[:-4]}{n:04X}") for n, head in enumerate(chosen)]
    )


@pytest.mark.parametrize(
    "head", ["", "TAGS\x01a", "KEYS\x01k1 k2\x02TAGS\x01ü", "x\x01y\x02CLUSTER\x01c"]
)
@pytest.mark.parametrize("body", [b"", b"x", b"b" * 600])
def test_records_that_are_all_alike_are_learnt_from_two_of_them(head: str, body: bytes) -> None:
    messages = [(body, head, f"UNIQ_KEY\x01{KEY[:-4]}{n:04X}") for n in range(40)]
    compare_both_ways(messages)
    compare_both_ways([(b"other", "TAGS\x01first", messages[0][2]), *messages[1:]])
    records, sizes = encode_frame(
        "T",
        0,
        [body] * 40,
        [f"{head}{head and chr(2)}{tail}" for _, head, tail in messages],
        1,
        FRAME,
    )
    assert (
        frame_check._check_uniform(memoryview(bytearray(records)), sizes.astype(np.int64), LIMIT)
        is not None
    )


LAYOUTS = [
    "KEYS\x01o-{:05}",
    "KEYS\x01{:05}\x02TAGS\x01eu\x02region\x01two words",
    "TAGS\x01{:05}",
    "x\x01{:05}\x02y\x01c",
]


def laid_out(layout: str, count: int = 600, body: bytes = b"body") -> list[tuple[bytes, str, str]]:
    return [(body, layout.format(n * 7), f"UNIQ_KEY\x01{KEY[:-4]}{n:04X}") for n in range(count)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_that_lie_in_the_same_columns_are_learnt_from_a_matrix(layout: str) -> None:
    messages = laid_out(layout)
    compare_both_ways(messages)
    compare_both_ways(
        [(body * (n % 3), head, tail) for n, (body, head, tail) in enumerate(messages)]
    )
    compare_both_ways(
        [
            message if n % 4 else (message[0], "TAGS\x01other", message[2])
            for n, message in enumerate(messages)
        ]
    )
    records, sizes = encode_frame(
        "T", 0, [b"body"] * 600, [f"{head}\x02{tail}" for _, head, tail in messages], 1, FRAME
    )
    assert (
        frame_check._check_uniform(memoryview(bytearray(records)), sizes.astype(np.int64), LIMIT)
        is not None
    )


@pytest.mark.parametrize(
    "odd",
    [
        "KEYS\x01o 123\x02TAGS\x01europe",
        "KEYS\x01o-123\x02TAGS\x01eur\xfcp",
        "KEYS\x01o-123\x02TAG\x01europe7",
        "KEYS\x01o-1\x02TAGS\x01europe77",
        "KEYS\x01o-123\x02TAGS\x01a\x02b\x01cd",
        "KEYS\x01abcdeXTAGS\x01europe",
    ],
)
@pytest.mark.parametrize("row", [1, 299, 300, 599])
def test_a_row_that_is_not_plain_is_judged_by_itself(odd: str, row: int) -> None:
    messages = laid_out("KEYS\x01{:05}\x02TAGS\x01europe")
    assert len(odd.encode()) == len(messages[0][1])
    messages[row] = (b"body", odd, messages[row][2])
    compare_both_ways(messages)


@pytest.mark.parametrize("layout", ["DELAY\x01{:05}", "x\x01{:05}\x02RETRY_TOPIC\x01r"])
def test_reserved_names_in_the_same_columns_are_refused(layout: str) -> None:
    for count in (40, 600):
        heads = [f"{head}\x02{tail}" for _, head, tail in laid_out(layout, count)]
        records, sizes = encode_frame(
            "T", 0, [b"x" * (n % 2) for n in range(count)], heads, 1, FRAME
        )
        with pytest.raises(MessageIllegal, match="reserved"):
            check_frame(bytearray(records), sizes, LIMIT)


@pytest.mark.parametrize("row", [1, 2, 20, 39])
def test_one_record_that_is_not_like_the_others_is_judged_by_itself(row: int) -> None:
    records, sizes = encoded(40, flags=[int(n == row) for n in range(40)])
    assert frame_check._check_uniform(memoryview(records), sizes.astype(np.int64), LIMIT) is None
    assert check_frame(records, sizes, LIMIT).count == 40


@settings(deadline=None, max_examples=30)
@given(MESSAGES)
def test_both_ways_of_checking_learn_the_same(messages: list[tuple[bytes, str, str]]) -> None:
    compare_both_ways(messages)


def compare_both_ways(messages: list[tuple[bytes, str, str]]) -> None:
    properties = [
        head + ("\x02" if head and tail and not head.endswith("\x02") else "") + tail
        for _, head, tail in messages
    ]
    data, sizes = encode_frame("T", 0, [body for body, _, _ in messages], properties, 1, FRAME)
    slow = judged_slowly(bytearray(data), sizes)
    fast = frame_check._check_many(memoryview(bytearray(data)), sizes.astype(np.int64), LIMIT)
    assert fast is not None
    assert (slow.topic, slow.queue_id, slow.length, slow.frame_id, slow.crc, slow.mark_at) == (
        fast.topic,
        fast.queue_id,
        fast.length,
        fast.frame_id,
        fast.crc,
        fast.mark_at,
    )
    assert (
        slow.starts == fast.starts.tolist()
        and slow.sizes == fast.sizes.tolist()
        and slow.tag_codes == fast.tag_codes.tolist()
    )
    rows = range(fast.count) if fast.unique_rows is None else fast.unique_rows.tolist()
    assert fast.unique is not None
    found = [
        (row, hash_key("T", bytes(key).decode()))
        for row, key in zip(rows, fast.unique, strict=True)
    ]
    found += [(row, hash_key("T", key)) for row, key in fast.keys]
    for keys in fast.hashed_keys:
        found += zip(keys.rows.tolist(), hash_hashed_keys("T", keys).tolist(), strict=True)
    assert sorted(found) == sorted((row, hash_key("T", key)) for row, key in slow.keys)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_no_changed_byte_passes_one_way_and_not_the_other(data: st.DataObject) -> None:
    head = data.draw(st.sampled_from(["", "TAGS\x01TagA\x02", "KEYS\x01k\x02", *LAYOUTS]))
    if head in LAYOUTS:
        plain, sizes = encode_frame(
            "T",
            0,
            [b"body"] * 40,
            [f"{text}\x02{tail}" for _, text, tail in laid_out(head, 40)],
            1,
            FRAME,
        )
        records = bytearray(plain)
    else:
        records, sizes = encoded(40, head=head)
    at = data.draw(st.integers(0, len(records) - 1))
    records[at] = data.draw(st.integers(0, 255))
    try:
        slow: CheckedFrame | None = judged_slowly(records, sizes)
    except SendError:
        slow = None
    try:
        fast = frame_check._check_many(memoryview(records), sizes.astype(np.int64), LIMIT)
    except SendError:
        fast = None
    assert (slow is None) == (fast is None)
    if slow is not None and fast is not None:
        assert slow.tag_codes == fast.tag_codes.tolist() and slow.crc == fast.crc


@pytest.mark.parametrize("count", [1, 3, 40])
def test_every_changed_byte_of_structure_and_body_is_refused(count: int) -> None:
    clean, sizes = encoded(count)
    starts = (np.cumsum(sizes) - sizes).tolist()
    start = starts[-1]
    free = {
        *PATCHED,
        *range(16, 20),
        *range(36, 40),
        *(range(12, 16) if count == 1 else ()),
    }  # flags; one record may name any queue
    fixed = [start + n for n in range(88) if n not in free]
    body_to_properties = range(start + 88, start + 88 + 4 + 1 + 9 + 2)
    for at in (*fixed, *body_to_properties):
        records = bytearray(clean)
        records[at] ^= 0x80
        with pytest.raises((MessageIllegal, MessageTooLarge)):
            check_frame(records, sizes, LIMIT)


@pytest.mark.parametrize("count", [2, 40])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("sizes", "TOTALSIZE"),
        ("queue", "topic and queue must be those of the first"),
        ("transaction", "may not come in a frame"),
        ("compression type alone", "may not come in a frame"),
        ("reconsumed", "may not come in a frame"),
        ("prepared", "may not come in a frame"),
        ("crc", "the body's CRC is not"),
    ],
)
def test_a_refusal_names_the_record_and_the_fault(count: int, fault: str, words: str) -> None:
    records, sizes = encoded(count)
    start = int(sizes[:-1].sum())
    if fault == "sizes":
        sizes[-1] -= 1
    elif fault == "queue":
        struct.pack_into(">i", records, start + 12, 4)
    elif fault == "transaction":
        struct.pack_into(">i", records, start + 36, 8)
    elif fault == "compression type alone":
        struct.pack_into(">i", records, start + 36, 0x300)
    elif fault == "reconsumed":
        struct.pack_into(">i", records, start + 72, 1)
    elif fault == "prepared":
        struct.pack_into(">q", records, start + 76, 1)
    else:
        records[start + 88] ^= 1
    with pytest.raises(MessageIllegal, match=words) as caught:
        check_frame(records, sizes, LIMIT)
    assert f"record {count - 1}" in caught.value.message


@pytest.mark.parametrize("count", [1, 40])
def test_compressed_bodies_with_a_type_are_accepted(count: int) -> None:
    for flag in (1, 0x301):
        frame = check_frame(*encoded(count, sys_flags=flag), LIMIT)
        assert frame.count == count


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize(
    "head",
    [
        "DELAY\x013\x02",
        "TRAN_MSG\x01true\x02",
        "RETRY_TOPIC\x01x\x02",
        "WAIT\x01false\x02",
        "RMQ_FRAME\x01x\x02",
        "a\x02",
        "\x01b\x02",
        "a\x01b\0\x02",
    ],
)
def test_reserved_and_malformed_properties_are_refused(count: int, head: str) -> None:
    with pytest.raises(MessageIllegal, match="record"):
        check_frame(*encoded(count, head=head), LIMIT)


def test_properties_that_are_not_utf8_are_refused() -> None:
    records, sizes = encoded(1)
    at = bytes(records).index(b"TagA")
    records[at] = 0xFF
    with pytest.raises(MessageIllegal, match="not UTF-8"):
        check_frame(records, sizes, LIMIT)


@pytest.mark.parametrize("topic", ["../x", "a b", "a/b", "ü"])
def test_a_topic_that_is_no_topic_is_refused(topic: str) -> None:
    for count in (1, 40):
        records, sizes = encode_frame(
            topic, 0, [b"x"] * count, [f"UNIQ_KEY\x01{KEY}"] * count, 1, FRAME
        )
        with pytest.raises(MessageIllegal, match="topic"):
            check_frame(bytearray(records), sizes, LIMIT)


def test_a_body_above_the_limit_is_too_large() -> None:
    records, sizes = encoded(1, body=b"x" * 101)
    with pytest.raises(MessageTooLarge) as caught:
        check_frame(records, sizes, 100)
    assert caught.value.args[1:] == (101, 100)
    assert check_frame(records, sizes, 101).count == 1


def test_several_records_need_the_mark_and_one_does_not() -> None:
    for count, accepted in ((1, True), (2, False), (40, False)):
        records, sizes = encode_frame(
            "T", 0, [b"x"] * count, [f"UNIQ_KEY\x01{KEY}"] * count, 1, None
        )
        if accepted:
            assert check_frame(bytearray(records), sizes, LIMIT).frame_id is None
        else:
            with pytest.raises(MessageIllegal, match="frame property"):
                check_frame(bytearray(records), sizes, LIMIT)


@pytest.mark.parametrize("count", [2, 40])
def test_a_mark_that_lies_about_the_frame_is_refused(count: int) -> None:
    records, sizes = encoded(count)
    at = bytes(records).index(b"RMQ_FRAME\x01") + 10
    for place, text in ((48, b"00000099"), (56, b"0000000000000000"), (0, b"G")):
        broken = bytearray(records)
        broken[at + place : at + place + len(text)] = text
        with pytest.raises(MessageIllegal, match="frame property"):
            check_frame(broken, sizes, LIMIT)


@pytest.mark.parametrize("sizes", [[], [0], [-1], [91], [2**31 - 1]])
def test_impossible_sizes_are_refused(sizes: list[int]) -> None:
    with pytest.raises(MessageIllegal):
        check_frame(bytearray(200), np.array(sizes, ">i4"), LIMIT)


def test_the_frames_crc_survives_patching() -> None:
    for count in (1, 40):
        records, sizes = encoded(count)
        before = check_frame(records, sizes, LIMIT)
        patch_frame(records, before, (9, 99), 999, HOSTS)
        crcs = b"".join(
            bytes(records[start + 8 : start + 12]) for start in np.asarray(before.starts).tolist()
        )
        assert before.crc == frame_crc(sizes.tobytes(), crcs) == zlib.crc32(sizes.tobytes() + crcs)


def test_the_mark_is_82_bytes_in_its_fixed_form() -> None:
    mark = pack_mark(FRAME, 3)
    assert (
        mark
        == b"RMQ_FRAME\x01000102030405060708090a0b0c0d0e0f000000000000000700000003ffffffffffffffff"
    )
    assert len(mark) == MARK_BYTES == 82
    assert read_mark(mark) == read_mark(mark + b"\x02a\x01b") == FrameMark(FRAME, 3, -1)
    for broken in (mark[:-1], mark + b"x", mark.replace(b"f", b"F"), b"A" + mark[1:], b""):
        assert read_mark(broken) is None


def test_a_copy_loses_the_mark() -> None:
    assert strip_mark(pack_mark(FRAME, 1).decode() + "\x02TAGS\x01a") == "TAGS\x01a"
    assert strip_mark("TAGS\x01a\x02" + pack_mark(FRAME, 1).decode()) == "TAGS\x01a"
    assert strip_mark("TAGS\x01RMQ_FRAME") == "TAGS\x01RMQ_FRAME"


def test_the_encoder_refuses_what_does_not_fit() -> None:
    for bodies, properties in (([], []), ([b"x"], []), ([b"x"] * 65_537, [""] * 65_537)):
        with pytest.raises(MessageIllegal, match="1 to 65536"):
            encode_frame("T", 0, bodies, properties, 1, FRAME)
    with pytest.raises(MessageIllegal, match="32767 fit"):
        encode_frame("T", 0, [b"x"], ["x" * 32_768], 1, FRAME)
    with pytest.raises(MessageIllegal, match="topic"):
        encode_frame("T" * 128, 0, [b"x"], ["x"], 1, FRAME)
