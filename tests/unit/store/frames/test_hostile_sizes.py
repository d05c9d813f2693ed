"""The largest that the format allows, offsets that do not fit 32 bits, thousands of queues, clocks
that jump: stored, read, found and recovered.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.codec.record import decode_record
from rmq_ray.config import StoreConfig
from rmq_ray.errors import MessageIllegal, MessageTooLarge
from rmq_ray.model.ids import FrameId
from rmq_ray.model.pulling import GetMessageStatus
from rmq_ray.store.front.message_store import AppendResult, MessageStore, StoredMessage

SEGMENT_BYTES = 1 << 16
HOST = ("10.0.0.1", 10911)
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
TOPIC = "t" * 127


class JumpingClock(ManualClock):
    """Its wall clock is set by somebody; the monotonic one is not."""

    jump_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.jump_ms


def config(path: Path, **changes: object) -> StoreConfig:
    base = StoreConfig(
        str(path),
        segment_bytes=SEGMENT_BYTES,
        consume_queue_entries=64,
        index_slots=97,
        index_items=4_000,
        preallocate=False,
    )
    return base.but(**changes)


def opened(path: Path, clock: ManualClock | None = None, **changes: object) -> MessageStore:
    store = MessageStore(
        config(path, **changes),
        clock or ManualClock(NOW_MS),
        broker_name="broker-a",
        store_host=HOST,
    )
    store.open(True)
    store.recover()
    store.start(lambda _offset: None)
    return store


def put(store: MessageStore, number: int, topic: str = "orders", queue_id: int = 0) -> AppendResult:
    return store.append_message(
        StoredMessage(topic, queue_id, b"%d" % number, f"KEYS\x01k{number}", 0, 0, NOW_MS, HOST)
    )


def bodies(
    store: MessageStore, offset: int, topic: str = "orders", queue_id: int = 0, count: int = 1_000
) -> list[bytes]:
    found = store.get_messages(topic, queue_id, offset, count, 64 << 20, None)
    texts, sizes = b"".join(bytes(part) for part in found.parts), found.sizes.tolist()
    return [decode_record(texts, sum(sizes[:number])).body for number in range(len(sizes))]


def without_checkpoint(path: Path, *derived: str) -> None:
    """As after a power loss that took everything but the log (and the first queue file, which says
    where the queue began).
    """
    for name in ("rmq_ray/checkpoint", "checkpoint", *derived):
        target = path / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
    (path / "abort").touch()


@pytest.mark.parametrize("beyond", [1 << 32, 1 << 40, (1 << 62) + SEGMENT_BYTES])
def test_log_offsets_beyond_32_bits_are_stored_read_found_and_recovered(
    tmp_path: Path, beyond: int
) -> None:
    """A log that begins a segment below the mark, and goes over it."""
    begin = beyond - SEGMENT_BYTES
    (tmp_path / "commitlog").mkdir()
    with (tmp_path / "commitlog" / f"{begin:020d}").open("wb") as file:
        file.truncate(SEGMENT_BYTES)
    store = opened(tmp_path)
    places = [put(store, number) for number in range(1_200)]
    assert places[0].base_log_offset == begin and places[-1].base_log_offset > beyond
    for derived in ((), ("index", "consumequeue")):
        assert bodies(store, 0, count=1_200) == [b"%d" % number for number in range(1_200)]
        for number in (0, 600, 1_199):
            (raw,) = store.query("orders", f"k{number}", 10, 0, 1 << 60)
            assert decode_record(raw).log_offset == places[number].base_log_offset
            found = store.record_at(places[number].base_log_offset)
            assert found is not None and decode_record(found).body == b"%d" % number
        assert store.offset_by_time("orders", 0, NOW_MS + 1) == 1_199
        store.shutdown()
        without_checkpoint(tmp_path, *derived)
        store = opened(tmp_path)
        assert store.report.end == places[-1].end_log_offset
    store.request_cleaning()
    for path in (tmp_path / "commitlog").iterdir():
        store._around.files.set_modified_ms(str(path), NOW_MS - 100 * HOUR_MS)
    assert store.clean(NOW_MS).begin == beyond and store.bounds("orders", 0)[0] > 0
    store.shutdown()


def test_queue_offsets_beyond_31_bits_are_assigned_read_and_recovered(tmp_path: Path) -> None:
    queue = tmp_path / "consumequeue" / "orders" / "0"
    queue.mkdir(parents=True)
    first = (1 << 31) - 64  # the begin of a file of 64 entries
    with (queue / f"{first * 20:020d}").open("wb") as file:
        file.truncate(64 * 20)
    store = opened(tmp_path)
    offsets = [put(store, number).base_queue_offset for number in range(200)]
    assert offsets == list(range(first, first + 200))
    for derived in ((), ("index",)):
        assert bodies(store, first + 60) == [b"%d" % number for number in range(60, 200)]
        assert store.bounds("orders", 0) == (first, first + 200)
        assert store.get_messages("orders", 0, 0, 1, 1 << 20, None).next_offset == first
        assert (
            store.get_messages("orders", 0, 1 << 62, 1, 1 << 20, None).status
            is not GetMessageStatus.FOUND
        )
        store.shutdown()
        without_checkpoint(tmp_path, *derived)
        store = opened(tmp_path)
    assert put(store, 200).base_queue_offset == first + 200
    store.shutdown()


def test_the_largest_bodies_properties_and_topics_come_back_and_nothing_larger_gets_in(
    tmp_path: Path,
) -> None:
    largest = 4 << 20
    body, text = bytes(range(256)) * (largest // 256), "p\x01" + "y" * 32_765
    store = opened(tmp_path, segment_bytes=16 << 20, body_bytes_max=largest)
    store.append_message(StoredMessage(TOPIC, 0, body, text, 0, 0, NOW_MS, HOST))
    records, sizes = encode_frame(
        TOPIC,
        0,
        [body, b"", body],
        [text.replace("y", "z", 90)[:32_600], "", "a\x01b"],
        NOW_MS,
        FrameId(bytes(16), 1),
    )
    store.append_frame(bytearray(records), sizes, HOST)
    for message, error in (
        (StoredMessage(TOPIC, 0, body + b"x", "", 0, 0, NOW_MS, HOST), MessageTooLarge),
        (StoredMessage(TOPIC, 0, b"", text + "yy", 0, 0, NOW_MS, HOST), MessageIllegal),
        (StoredMessage(TOPIC + "t", 0, b"", "", 0, 0, NOW_MS, HOST), MessageIllegal),
    ):
        end = store.end_offset
        with pytest.raises(error):
            store.append_message(message)
        assert store.end_offset == end
    for _ in range(2):
        assert bodies(store, 0, TOPIC) == [body, body, b"", body]
        assert (
            decode_record(bytes(store.get_messages(TOPIC, 0, 0, 1, 1, None).parts[0])).properties
            == text
        )
        store.shutdown()
        without_checkpoint(tmp_path, "consumequeue", "index")
        store = opened(tmp_path, segment_bytes=16 << 20, body_bytes_max=largest)
    store.shutdown()


def test_ten_thousand_queues_are_written_read_and_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queue n of each of ten topics; a queue costs a directory and a sparse file. Not synced:
    10,000 files are not the subject.
    """
    monkeypatch.setattr(os, "fdatasync", lambda _descriptor: None)
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    store = opened(tmp_path, segment_bytes=8 << 20, index_enabled=False)
    for queue_id in range(1_000):
        for topic in range(10):
            put(store, queue_id, f"topic-{topic}", queue_id)
    assert len(store.queues()) == 10_000
    store.shutdown()
    store = opened(tmp_path, segment_bytes=8 << 20, index_enabled=False)
    assert store.report.way == "our checkpoint" and len(store.queues()) == 10_000
    assert all(bodies(store, 0, f"topic-{n % 10}", n) == [b"%d" % n] for n in range(0, 1_000, 37))
    assert put(store, 1, "topic-9", 999).base_queue_offset == 1
    store.shutdown()


@pytest.mark.parametrize(
    "jump_ms", [-HOUR_MS, -40 * 24 * HOUR_MS, 10 * 365 * 24 * HOUR_MS, -NOW_MS + 5]
)
def test_a_clock_that_jumps_loses_nothing_and_repeats_stay_repeats(
    tmp_path: Path, jump_ms: int
) -> None:
    clock = JumpingClock(NOW_MS)
    store = opened(tmp_path, clock)
    frames = [
        encode_frame(
            "orders", 0, [b"%d" % n], [f"UNIQ_KEY\x01{n:032d}"], NOW_MS, FrameId(bytes(16), n)
        )
        for n in range(6)
    ]

    def send(number: int) -> AppendResult:
        return store.append_frame(bytearray(frames[number][0]), frames[number][1], HOST)

    first = [send(number) for number in range(3)]
    clock.jump_ms = jump_ms
    later = [send(number) for number in range(3, 6)]
    assert send(1).repeat and send(4).repeat
    assert [result.base_queue_offset for result in (*first, *later)] == list(range(6))
    assert (
        0 <= store.offset_by_time("orders", 0, NOW_MS) < 6
        and 0 <= store.offset_by_time("orders", 0, clock.now_ms()) < 6
    )
    for derived in ((), ("consumequeue", "index")):
        assert bodies(store, 0) == [b"%d" % n for n in range(6)]
        assert len(store.query("orders", f"{4:032d}", 10, 0, 1 << 60)) == 1
        assert store.clean(clock.now_ms()).begin == 0, (
            "the segment that is written never goes, whatever its age looks like"
        )
        store.shutdown()
        without_checkpoint(tmp_path, *derived)
        store = opened(tmp_path, clock)
    store.shutdown()
