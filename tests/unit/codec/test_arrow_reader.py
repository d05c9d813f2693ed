"""Records become Arrow columns that say the same as decoding them one by one."""

from __future__ import annotations

import random
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_ray.codec.arrow.arrow_reader import to_batch
from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.codec.record import Record, decode_record, encode_record, offset_message_id
from rmq_ray.errors import ClientError
from rmq_ray.model.arrow import COLUMNS, SCHEMA
from rmq_ray.model.ids import FrameId
from rmq_ray.model.message import RESERVED_PROPERTIES, SysFlag, decode_properties

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEY = "UNIQ_KEY\x01" + "C0A8000A3E5418B4AAC20001E24000%02X"


def batch_of(*records: Record, columns: list[str] | None = None) -> Any:
    encoded = [encode_record(record) for record in records]
    return to_batch(
        "T",
        "broker-a",
        b"".join(encoded),
        np.array([len(data) for data in encoded], ">i4"),
        columns,
    )


def record(number: int = 0, **values: Any) -> Record:
    fields: dict[str, Any] = {
        "topic": "T",
        "queue_id": 3,
        "body": b"body %d" % number,
        "queue_offset": 100 + number,
        "log_offset": 5000 + number,
    }
    fields |= {
        "born_ms": 1_700_000_000_000 + number,
        "store_ms": 1_700_000_000_500 + number,
        "store_host": ("10.0.0.1", 10911),
    }
    return Record(**(fields | values))


def expected_row(data: bytes) -> dict[str, Any]:
    """The columns as the api says, made the slow way."""
    found = decode_record(data)
    properties = decode_properties(found.properties)
    unique = properties.get("UNIQ_KEY")
    return {
        "topic": "T",
        "broker": "broker-a",
        "queue_id": found.queue_id,
        "queue_offset": found.queue_offset,
        "message_id": unique or offset_message_id(*found.store_host, found.log_offset),
        "keys": [key for key in properties.get("KEYS", "").split(" ") if key],
        "tag": properties.get("TAGS"),
        "properties": [
            (name, value) for name, value in properties.items() if name not in RESERVED_PROPERTIES
        ],
        "body": found.body,
        "born_ts": EPOCH + timedelta(milliseconds=found.born_ms),
        "store_ts": EPOCH + timedelta(milliseconds=found.store_ms),
        "reconsume_times": found.reconsume_times,
    }


def check_same(records: list[Record]) -> None:
    encoded = [encode_record(record) for record in records]
    batch = to_batch("T", "broker-a", b"".join(encoded), [len(data) for data in encoded])
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA)
    for row, data in zip(batch.to_pylist(), encoded, strict=True):
        wanted = expected_row(data)
        row["properties"], wanted["properties"] = (
            sorted(row["properties"]),
            sorted(wanted["properties"]),
        )
        assert row == wanted


@pytest.mark.parametrize("sizes", [(500, 500, 500), (500, 499, 500), (127, 127), (128,), (0, 0)])
def test_bodies_of_one_length_and_of_several_are_cut_out_alike(sizes: tuple[int, ...]) -> None:
    bodies = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    check_same(
        [record(number, body=body, properties="TAGS\x01a") for number, body in enumerate(bodies)]
    )


def test_a_batch_has_the_public_columns_in_their_order() -> None:
    assert COLUMNS == (
        "topic",
        "broker",
        "queue_id",
        "queue_offset",
        "message_id",
        "keys",
        "tag",
        "properties",
        "body",
        "born_ts",
        "store_ts",
        "reconsume_times",
    )
    assert batch_of(record()).schema.equals(SCHEMA)


def test_every_column_says_what_the_record_says() -> None:
    check_same(
        [
            record(
                n,
                properties=f"KEYS\x01a{n} b\x02TAGS\x01t{n % 3}\x02region\x01eu\x02{KEY % n}",
                reconsume_times=n,
            )
            for n in range(90)
        ]
    )


def test_records_of_other_producers_with_the_unique_key_anywhere_read_the_same() -> None:
    check_same(
        [
            record(n, properties=f"{KEY % n}\x02WAIT\x01true\x02TAGS\x01TagA\x02CLUSTER\x01c\x02")
            for n in range(90)
        ]
    )


def test_a_users_property_whose_name_ends_like_the_unique_key_is_not_it() -> None:
    check_same([record(n, properties=f"MY_{KEY % n}") for n in range(3)])


def test_records_without_properties_get_the_offset_message_id() -> None:
    batch = batch_of(
        record(log_offset=1000), record(1, store_host=("fe80::1", 10911), log_offset=1001)
    )
    assert batch["message_id"].to_pylist() == [
        "0A00000100002A9F00000000000003E8",
        offset_message_id("fe80::1", 10911, 1001),
    ]
    assert (
        batch["tag"].to_pylist() == [None, None]
        and batch["keys"].to_pylist() == [[], []]
        and batch["properties"].to_pylist() == [[], []]
    )


def test_hosts_of_16_bytes_move_the_fields_behind_them() -> None:
    check_same(
        [
            record(
                n,
                born_host=("fe80::2", 1),
                store_host=("fe80::1" if n % 2 else "10.0.0.1", 2),
                reconsume_times=n,
                properties=KEY % n,
            )
            for n in range(6)
        ]
    )


def test_the_mark_of_a_frame_and_reserved_names_stay_hidden() -> None:
    data, sizes = encode_frame(
        "T",
        0,
        [b"a", b"b"],
        ["mine\x011\x02CLUSTER\x01c\x02" + KEY % n for n in range(2)],
        1,
        FrameId(bytes(16), 1),
    )
    assert b"RMQ_FRAME" in data
    batch = to_batch("T", "b", data, sizes)
    assert batch["properties"].to_pylist() == [[("mine", "1")]] * 2


def test_malformed_parts_are_skipped_and_of_equal_names_the_last_counts() -> None:
    check_same(
        [
            record(n, properties=text)
            for n, text in enumerate(
                (
                    "\x02\x02",
                    "a\x01",
                    "ab",
                    "=\x01x\x02TAGS\x01one\x02TAGS\x01two\x02k\x011\x02k\x012",
                    "a\x01b\x01c\x02",
                    "KEYS\x01 a  b ",
                )
            )
        ]
    )


def test_random_property_strings_read_as_the_plain_decoder_reads_them() -> None:
    chance = random.Random(5)
    for count in [20] * 10 + [90] * 20:  # few distinct strings are parsed one by one, many at once
        texts = [
            "".join(
                chance.choice("\x01\x02\x02aKTÄ ")
                + chance.choice(("", "KEYS\x01", "TAGS\x01x", "UNIQ_KEY\x01u", "p\x01v"))
                for _ in range(chance.randrange(9))
            )
            for _ in range(count)
        ]
        check_same([record(n, properties=text) for n, text in enumerate(texts)])


def test_text_that_is_not_utf8_gets_replacement_characters() -> None:
    good = encode_record(record(properties="TAGS\x01tag"))
    batch = to_batch("T", "b", good.replace(b"\x01tag", b"\x01\xff\xfeg"), [len(good)])
    assert batch["tag"].to_pylist() == ["\ufffd\ufffdg"]


def test_compressed_bodies_come_out_uncompressed() -> None:
    records = [
        record(0),
        record(1, body=zlib.compress(b"x" * 5000), sys_flag=SysFlag.COMPRESSED),
        record(2, body=zlib.compress(b"y"), sys_flag=SysFlag.COMPRESSED | 3 << 8),
    ]
    assert batch_of(*records)["body"].to_pylist() == [b"body 0", b"x" * 5000, b"y"]


@pytest.mark.parametrize("codec", [1, 2])
def test_bodies_of_later_producers_with_lz4_and_zstandard_can_be_read(codec: int) -> None:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, {1: "lz4", 2: "zstd"}[codec]) as stream:
        stream.write(b"z" * 3000)
    packed = sink.getvalue().to_pybytes()
    assert batch_of(record(body=packed, sys_flag=SysFlag.COMPRESSED | codec << 8))[
        "body"
    ].to_pylist() == [b"z" * 3000]


def test_a_compressed_body_that_cannot_be_read_is_null() -> None:
    cut = zlib.compress(b"x" * 5000)[:-8]
    bad = [
        record(n, body=body, sys_flag=SysFlag.COMPRESSED | kind << 8)
        for n, (body, kind) in enumerate([(b"junk", 0), (cut, 3), (b"junk", 1), (b"junk", 2)])
    ]
    assert batch_of(*bad, record(4))["body"].to_pylist() == [None] * 4 + [b"body 4"]


def test_only_the_columns_asked_for_are_made_in_the_order_asked_for() -> None:
    batch = batch_of(record(), columns=["body", "queue_offset"])
    assert batch.schema.names == ["body", "queue_offset"]
    damaged = encode_record(record(properties="TAGS\x01a")).replace(b"TAGS", b"\xff\xff\xff\xff")
    assert to_batch("T", "b", damaged, [len(damaged)], ["store_ts"]).num_rows == 1


def test_a_column_that_does_not_exist_is_the_callers_fault() -> None:
    with pytest.raises(ClientError, match="no column 'value'"):
        batch_of(record(), columns=["value"])


def test_no_records_make_an_empty_batch_of_the_same_schema() -> None:
    batch = to_batch("T", "b", b"", np.zeros(0, ">i4"))
    assert batch.num_rows == 0 and batch.schema.equals(SCHEMA)


def test_a_batch_does_not_change_when_the_buffer_is_used_again() -> None:
    data = bytearray(encode_record(record(properties=KEY % 1)))
    batch = to_batch("T", "b", data, [len(data)])
    before = batch.to_pylist()
    data[:] = bytes(len(data))
    assert batch.to_pylist() == before
