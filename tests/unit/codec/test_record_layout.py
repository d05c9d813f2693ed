"""Records in one buffer as arrays: the same places, and the same verdict, as record by record."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from rmq_ray.codec.record import (
    HEADER_BYTES,
    OVERHEAD_BYTES,
    Record,
    encode_record,
    find_fault,
    host_lengths,
)
from rmq_ray.codec.record_layout import RecordLayout

HOSTS = [("10.0.0.1", 10911), ("fd00::1", 10911)]


def random_record(rng: random.Random, long_hosts: bool) -> bytes:
    born, stored = (rng.choice(HOSTS) if long_hosts else HOSTS[0] for _ in range(2))
    return encode_record(
        Record(
            "t" * rng.choice((1, 9, 127)),
            rng.randrange(4),
            rng.randbytes(rng.choice((0, 1, 100, 3_000))),
            "KEYS\x01k\x02" * rng.randrange(3),
            born_host=born,
            store_host=stored,
            store_ms=rng.randrange(1 << 40),
        )
    )


def layout_of(records: list[bytes]) -> RecordLayout:
    return RecordLayout(b"".join(records), np.array([len(one) for one in records], np.int64))


@pytest.mark.parametrize("long_hosts", [False, True])
def test_bodies_topics_and_properties_are_where_each_record_says(long_hosts: bool) -> None:
    rng = random.Random(7)
    records = [random_record(rng, long_hosts) for _ in range(500)]
    layout = layout_of(records)
    start = 0
    for row, record in enumerate(records):
        born, stored = host_lengths(struct.unpack_from(">i", record, 36)[0])
        body_at = HEADER_BYTES - 16 + born + stored
        body_end = body_at + struct.unpack_from(">i", record, body_at - 4)[0]
        assert (layout.starts[row], layout.ends[row]) == (start, start + len(record))
        assert layout.body_begins[row] - start == body_at
        assert layout.body_ends[row] - start == body_end
        assert layout.topic_lengths[row] == record[body_end]
        assert layout.text_begins[row] - start == body_end + 3 + record[body_end]
        start += len(record)
    assert layout.fits.all() and layout.has_v6 == long_hosts


@pytest.mark.parametrize("long_hosts", [False, True])
def test_it_fits_exactly_where_the_one_that_reads_record_by_record_finds_no_fault(
    long_hosts: bool,
) -> None:
    rng = random.Random(8)
    records = []
    for _ in range(4_000):
        record = bytearray(random_record(rng, long_hosts))
        born, stored = host_lengths(struct.unpack_from(">i", record, 36)[0])
        body_at = HEADER_BYTES - 16 + born + stored
        body_end = body_at + struct.unpack_from(">i", record, body_at - 4)[0]
        places = [*range(36, 40), *range(body_at - 4, body_at), body_end, len(record) - 1]
        for _ in range(rng.randrange(3)):
            record[rng.choice(places)] = rng.randrange(256)
        records.append(bytes(record))
    layout = layout_of(records)
    sound = [find_fault(record, 0, check_crc=False) is None for record in records]
    topics = (layout.topic_lengths > 0) & (layout.topic_lengths <= 127)
    assert (layout.fits & topics).tolist() == sound
    assert 500 < sum(sound) < len(sound)


def test_a_record_too_short_for_its_long_hosts_or_with_a_negative_body_does_not_fit() -> None:
    short = bytearray(OVERHEAD_BYTES + 1)
    struct.pack_into(">i", short, 36, 0x30)
    negative = bytearray(encode_record(Record("t", 0, b"body")))
    struct.pack_into(">i", negative, HEADER_BYTES - 4, -1)
    layout = layout_of([bytes(short), bytes(negative), bytes(short)])
    assert not layout.fits.any()


def test_no_records_have_an_empty_layout() -> None:
    layout = layout_of([])
    assert len(layout.fits) == len(layout.text_begins) == 0
