"""Records are byte-exact, and nothing that is not one passes for one (store-format 2, 9)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.codec.record import (
    HEADER,
    Record,
    body_crc,
    decode_record,
    encode_record,
    find_fault,
    headers,
    offset_message_id,
    pack_host,
    pack_host_v4,
    parse_offset_message_id,
    property_value,
    record_header,
    tag_of,
    unpack_host,
)
from rmq_ray.errors import StoreCorrupt

GOLDEN = bytes.fromhex(
    "00000080DAA320A70D4A118500000002000000000000000000000005" + "00000000000003E800000000"
    "0000018BCFE56800C0A8000A0000C7380000018BCFE568050A00000100002A9F000000000000000000000000"
    "0000000B68656C6C6F20776F726C6409546F70696354657374"
    + "00114B455953016B310254414753015461674 1".replace(" ", "")
)
RECORD = Record(
    "TopicTest",
    2,
    b"hello world",
    "KEYS\x01k1\x02TAGS\x01TagA",
    0,
    5,
    1000,
    0,
    1_700_000_000_000,
    ("192.168.0.10", 51000),
    1_700_000_000_005,
    ("10.0.0.1", 10911),
    size=128,
)

HOSTS = st.sampled_from(
    [
        ("10.0.0.1", 10911),
        ("255.255.255.255", 65535),
        ("fe80::1", 1),
        ("2001:db8::ff00:42:8329", 40000),
    ]
)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
I64 = st.integers(0, 2**63 - 1)
TOPICS = st.text(st.sampled_from("%|aZ09_-"), min_size=1, max_size=127)
RECORDS = st.builds(
    Record,
    TOPICS,
    st.integers(0, 65535),
    st.binary(max_size=300),
    TEXT,
    st.integers(-(2**31), 2**31 - 1),
    I64,
    I64,
    st.sampled_from([0, 1, 4, 8, 12, 0x301]),
    I64,
    HOSTS,
    I64,
    HOSTS,
    st.integers(0, 100),
    I64,
)


@pytest.mark.seed("S3-089", "S3-091")
def test_the_golden_record_has_every_byte_in_its_place() -> None:
    assert len(GOLDEN) == 128
    assert encode_record(RECORD) == GOLDEN
    assert decode_record(GOLDEN) == RECORD


def test_the_struct_and_the_numpy_header_are_the_same_88_bytes() -> None:
    assert HEADER.size == record_header().itemsize == 88
    head = headers(GOLDEN)[0]
    assert head["total"] == 128 and head["queue_offset"] == 5 and head["log_offset"] == 1000
    assert (int(head["born_ms"]), int(head["store_ms"]), int(head["body_len"])) == (
        1_700_000_000_000,
        1_700_000_000_005,
        11,
    )


@settings(deadline=None, max_examples=60)
@given(RECORDS)
def test_a_record_decodes_to_what_was_encoded(record: Record) -> None:
    data = encode_record(record)
    decoded = decode_record(b"xx" + data, 2)
    v6 = (0x10 if ":" in record.born_host[0] else 0) | (0x20 if ":" in record.store_host[0] else 0)
    assert decoded.size == len(data)
    assert decoded.sys_flag == record.sys_flag | v6
    for name in (
        "topic",
        "queue_id",
        "body",
        "properties",
        "flag",
        "queue_offset",
        "log_offset",
        "born_ms",
        "born_host",
        "store_ms",
        "store_host",
        "reconsume_times",
    ):
        assert getattr(decoded, name) == getattr(record, name)


@settings(deadline=None, max_examples=60)
@given(RECORDS, st.data())
def test_a_shortened_record_is_never_valid(record: Record, data: st.DataObject) -> None:
    encoded = encode_record(record)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    assert find_fault(encoded[:cut], 0) is not None


@settings(deadline=None, max_examples=60)
@given(RECORDS, st.data())
def test_a_flipped_bit_in_lengths_magic_or_body_is_found(
    record: Record, data: st.DataObject
) -> None:
    encoded = bytearray(encode_record(record))
    body_at = 88 + 12 * (":" in record.born_host[0]) + 12 * (":" in record.store_host[0])
    places = [*range(12), *range(body_at - 4, body_at + len(record.body) + 1)]
    encoded[data.draw(st.sampled_from(places))] ^= 1 << data.draw(st.integers(0, 7))
    assert find_fault(encoded, 0) is not None


def test_decoding_garbage_names_the_place_and_the_fault() -> None:
    broken = bytearray(GOLDEN)
    broken[90] ^= 1
    with pytest.raises(StoreCorrupt, match="byte 0: the body's CRC differs"):
        decode_record(broken)
    with pytest.raises(StoreCorrupt, match="magic is 00000000"):
        decode_record(bytes(200))


def test_lengths_that_do_not_fit_are_refused() -> None:
    for record in (
        Record("t" * 128, 0, b""),
        Record("", 0, b""),
        Record("t", 0, b"", "x" * 32_768),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            encode_record(record)


def test_the_crc_is_zlibs_without_the_sign_bit() -> None:
    assert body_crc(b"hello world") == 0x0D4A1185
    assert body_crc(b"123456789") == 0x4BF43926


def test_property_strings_are_read_with_and_without_the_last_separator() -> None:
    for ending in ("", "\x02"):
        text = "KEYS\x01k1 k2\x02TAGS\x01TagA" + ending
        assert tag_of(text) == "TagA"
        assert property_value(text, "KEYS") == "k1 k2"
    assert property_value("TAGSX\x01a\x02TAGS\x01", "TAGS") is None


def test_hosts_are_packed_as_4_or_16_bytes_and_a_port() -> None:
    assert pack_host("10.0.0.1", 10911).hex() == "0a00000100002a9f"
    assert pack_host("::ffff:10.0.0.1", 1) == pack_host("10.0.0.1", 1)
    assert len(pack_host("fe80::1", 1)) == 20
    assert unpack_host(pack_host("fe80::1", 7)) == ("fe80::1", 7)
    assert pack_host_v4("fe80::1", 7) == pack_host_v4("no address", 7) == bytes(7) + b"\x07"


def test_offset_message_ids_are_hex_of_host_and_offset() -> None:
    assert offset_message_id("10.0.0.1", 10911, 1000) == "0A00000100002A9F00000000000003E8"
    assert parse_offset_message_id("0A00000100002A9F00000000000003E8") == ("10.0.0.1", 10911, 1000)
    assert len(offset_message_id("fe80::1", 1, 2)) == 56
    for wrong in ("0A", "zz" * 16, ""):
        with pytest.raises(ValueError):
            parse_offset_message_id(wrong)
