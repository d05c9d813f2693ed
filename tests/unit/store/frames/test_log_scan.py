"""Reading the log many records at a time finds what reading it one by one finds: boundaries, zero
bytes, marks, members of frames.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.codec.record import BLANK, BLANK_MAGIC, decode_record, pack_host_v4
from rmq_ray.codec.record_batch import MARK_BYTES, read_mark
from rmq_ray.model.ids import FrameId
from rmq_ray.store.frames.deduplication import DeduplicationCache
from rmq_ray.store.frames.frame_check import check_frame, patch_frame
from rmq_ray.store.frames.frame_marks import own_marks, read_marks, without_marks
from rmq_ray.store.frames.frame_tracker import FrameTracker, members_from
from rmq_ray.store.frames.log_scan import ScannedRecords, Stop, scan_buffer

HOSTS = (pack_host_v4("1.2.3.4", 5), pack_host_v4("10.0.0.1", 10911))
LIMIT = 1 << 20
BASE = 3 << 40
KEY = "0A0102030405060708090A0B0C0D0E0F"


def log_of(
    frames: list[tuple[str, list[int]]],
    base: int = BASE,
    store_ms: int = 1_000,
    producer: bytes = bytes(16),
) -> bytearray:
    """Frames (topic, body lengths) back to back, as the broker writes them; sequences count from 1,
    one queue.
    """
    log, offsets = bytearray(), dict.fromkeys((topic for topic, _ in frames), 0)
    for number, (topic, lengths) in enumerate(frames):
        properties = [f"TAGS\x01t{n % 3}\x02UNIQ_KEY\x01{KEY}" for n in range(len(lengths))]
        data, sizes = encode_frame(
            topic,
            1,
            [b"b" * length for length in lengths],
            properties,
            5,
            FrameId(producer, number + 1),
        )
        records = bytearray(data)
        frame = check_frame(records, sizes, LIMIT)
        patch_frame(records, frame, (offsets[topic], base + len(log)), store_ms + number, HOSTS)
        offsets[topic] += len(lengths)
        log += records
    return log


def scanned(log: bytearray, stop: Stop = Stop.MORE, strict_from: int = 0) -> ScannedRecords:
    result = scan_buffer(memoryview(log), BASE, LIMIT, True, strict_from)
    assert result.stop is stop
    return result.records


def random_frames(seed: int) -> list[tuple[str, list[int]]]:
    chance = random.Random(seed)
    return [
        (
            chance.choice(("T", "Topic", "Other")),
            [
                chance.choice((0, 100, 100, 7)) if chance.random() < 0.3 else 100
                for _ in range(chance.choice((1, 1, 3, 90)))
            ],
        )
        for _ in range(60)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_boundaries_marks_and_members_are_those_of_a_record_by_record_reading(seed: int) -> None:
    frames = random_frames(seed)
    log = log_of(frames)
    records = scanned(log)
    at, starts, slow = 0, list[int](), []
    while at < len(log):
        record = decode_record(log, at)
        mark = read_mark(record.properties.encode())
        if mark is not None:
            slow.append((len(starts), mark))
        starts.append(at)
        at += record.size
    assert records.starts.tolist() == starts and records.ends[-1] == len(log)
    marks = own_marks(records)
    assert [(int(row), marks.mark(n)) for n, row in enumerate(marks.rows)] == slow
    assert members_from(records, marks.rows).tolist() == [len(lengths) for _, lengths in frames]
    assert len(frames) == len(slow)


def test_a_long_run_of_one_size_ends_where_a_record_differs_is_cut_or_is_blank() -> None:
    log = log_of([("T", [50] * 9_000), ("T", [51]), ("T", [50] * 100)])
    assert len(scanned(log)) == 9_101
    assert len(scanned(log[:-1])) == 9_100
    assert len(scanned(log + BLANK.pack(500, BLANK_MAGIC), Stop.BLANK)) == 9_101
    assert len(scanned(log + bytes(300), Stop.END)) == 9_101
    damaged = bytearray(log)
    at = int(scanned(log).starts[8_000])
    damaged[at + 4] ^= 1
    assert len(scanned(damaged, Stop.BAD)) == 8_000


def test_a_last_record_whose_hosts_would_lie_behind_its_end_is_bad() -> None:
    log = log_of([("T", [7, 0])])
    whole, last = scanned(log).starts.tolist()
    log[last + 39] |= 0x30  # of SYSFLAG: both hosts have 16 bytes
    del log[last + 112 :]
    log[last : last + 4] = (112).to_bytes(4, "big")
    found = scan_buffer(memoryview(log), BASE, LIMIT, True)
    assert (found.stop, found.records.starts.tolist()) == (Stop.BAD, [whole])
    assert "hosts of 20 and 20 bytes in a record of 112 bytes" in found.fault


@pytest.mark.parametrize("mixed", [False, True])
def test_the_first_zero_byte_in_topic_or_properties_ends_what_is_ours(mixed: bool) -> None:
    frames = [("T" * (1 + n % 40 if mixed else 5), [20]) for n in range(120)]
    log = log_of(frames)
    records = scanned(log)
    for row, at in ((70, int(records.text_at[70]) + 3), (90, int(records.topic_at[90]) + 1)):
        torn = bytearray(log)
        torn[at] = 0
        torn[int(records.text_at[100]) + 5] = 0
        found = scan_buffer(memoryview(torn), BASE, LIMIT, True, 0)
        assert len(found.records) == row and "zero bytes" in found.fault
        later = scan_buffer(memoryview(torn), BASE, LIMIT, True, BASE + int(records.starts[95]))
        assert len(later.records) == 100  # what lies before strict_from is not ours


def test_a_mark_that_is_not_in_its_form_or_not_the_records_own_counts_for_nothing() -> None:
    log = log_of([("T", [10]), ("T", [10, 10]), ("T", [10])])
    records = scanned(log)
    at = int(records.text_at[1])
    for change in (
        at + 9,
        at + 20,
        at + 60,
        at + MARK_BYTES,
    ):  # the prefix's end, the producer, the count, what separates
        broken = bytearray(log)
        broken[change] = ord("Z")
        assert own_marks(scanned(broken)).rows.tolist() == [0, 3] and read_marks(
            scanned(broken)
        ).rows.tolist() == [0, 3]
    copied = bytearray(log)
    copied[at + MARK_BYTES - 1] = ord("e") if copied[at + MARK_BYTES - 1] != ord("e") else ord("d")
    assert own_marks(scanned(copied)).rows.tolist() == [0, 3] and read_marks(
        scanned(copied)
    ).rows.tolist() == [0, 1, 3]


def test_what_stands_behind_a_mark_is_found_also_where_nothing_does() -> None:
    data, sizes = encode_frame("T", 0, [b"x"], [""], 5, FrameId(bytes(16), 1))
    alone = bytearray(data)
    patch_frame(alone, check_frame(alone, sizes, LIMIT), (0, BASE), 6, HOSTS)
    records = scanned(alone)
    assert without_marks(records).tolist() == records.ends.tolist()
    records = scanned(log_of([("T", [1, 1])]))
    assert bytes(records.view[int(without_marks(records)[0]) : int(records.ends[0])]).startswith(
        b"TAGS\x01t0"
    )
    assert without_marks(records)[1] == records.text_at[1]


def test_an_incomplete_frame_at_the_end_is_told_and_one_in_the_middle_counted() -> None:
    frames = [("T", [10])] * 100 + [("T", [10] * 5)]
    log = log_of(frames)
    records = scanned(log)
    assert (
        FrameTracker.incomplete_at_end(records) == 105
        and FrameTracker.incomplete_at_end(records.part(0, 103)) == 100
    )
    windows = DeduplicationCache(2_000, 600_000)
    assert FrameTracker(windows).add(records.part(0, 103)) == 0  # at the end the caller decides
    middle = records.select(np.array([*range(100, 102), *range(10)]))
    assert FrameTracker(windows).add(middle) == 1


def test_a_window_holds_a_producers_last_frames_and_knows_that_there_were_older_ones() -> None:
    one, other = bytes(15) + b"1", bytes(15) + b"2"
    log = log_of([("T", [10])] * 50, producer=one)
    log += log_of([("T", [10] * 2)] * 3, base=BASE + len(log), producer=other)
    slow, quick = DeduplicationCache(8, 600_000), DeduplicationCache(8, 600_000)
    records = scanned(log)
    for row in own_marks(records).rows.tolist():  # one by one nothing is skipped
        FrameTracker(slow).add(records.part(row, row + (2 if row >= 50 else 1)))
    FrameTracker(quick).add(records)
    assert quick.snapshot() == slow.snapshot() and len(quick.snapshot()[0][3]) == 8
