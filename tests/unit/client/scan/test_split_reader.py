"""Bulk reads beside the log: the right records in order, nothing else, and a typed error wherever
files cannot be believed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rmq_ray.client.scan.blocks import Blocks
from rmq_ray.client.scan.split_reader import LocalSplitReader
from rmq_ray.codec.record import decode_record
from rmq_ray.errors import StoreCorrupt, StoreError, StoreForeign, StoreMissing
from rmq_ray.files import host_id
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import Split, SplitReader
from tests.support.brokers.store_rig import ROOT, StoreRig
from tests.support.faults.crash_fs import CrashFileSystem


def a_store(rounds: int = 30, topics: int = 2) -> StoreRig:
    """Frames of 1 to 7 records of some topics by turns, over several segments of 64 KiB; bodies
    tell topic and number.
    """
    rig = StoreRig()
    sent = [0] * topics
    for turn in range(rounds):
        for topic in range(topics):
            count = 1 + (turn * 3 + topic) % 7
            bodies = [
                b"%d-%d-" % (topic, n) + bytes(700) for n in range(sent[topic], sent[topic] + count)
            ]
            rig.send(bodies, sequence=turn * topics + topic, topic=f"T{topic}", queue_id=topic)
            sent[topic] += count
    return rig


def a_split(rig: StoreRig, topic: int = 0, **changes: Any) -> Split:
    config, store = rig.config, rig.store
    plain = Split(
        MessageQueue(f"T{topic}", "broker-a", topic),
        0,
        store.bounds(f"T{topic}", topic)[1],
        host_id(),
        ROOT,
        store.identity,
        store.epoch,
        (),
        config.segment_bytes,
        config.consume_queue_entries,
        store.visible_offset,
    )
    return replace(plain, **changes)


def read(
    rig: StoreRig, split: Split, chunk_bytes: int = 20_000, reader: LocalSplitReader | None = None
) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    read_into(found, rig, split, chunk_bytes, reader)
    return found


def check_read_up_to(rig: StoreRig, split: Split, bad: int, chunk_bytes: int) -> None:
    """Everything of the chunks before comes, and the offset that is to be asked of the broker is
    told.
    """
    found: list[tuple[int, bytes]] = []
    with pytest.raises(StoreCorrupt, match=f"at offset {bad} is damaged or missing"):
        read_into(found, rig, split, chunk_bytes)
    assert found == wanted(0, 0, len(found)) and len(found) <= bad
    assert len(found) == bad or chunk_bytes > 1


def read_into(
    found: list[tuple[int, bytes]],
    rig: StoreRig,
    split: Split,
    chunk_bytes: int,
    reader: LocalSplitReader | None = None,
) -> None:
    """(queue offset, body without its padding) of everything that comes out; checks sizes and
    offsets on the way.
    """
    for records, sizes, following in (reader or LocalSplitReader(rig.disk)).read_from(
        split, chunk_bytes
    ):
        assert sizes.dtype == np.int32 and len(records) == int(sizes.sum())
        at = 0
        for size in sizes.tolist():
            record = decode_record(records, at)
            assert (record.topic, record.queue_id, record.size) == (
                split.queue.topic,
                split.queue.queue_id,
                size,
            )
            found.append((record.queue_offset, record.body.rstrip(b"\0")))
            at += size
        assert found[-1][0] < following <= split.end


def wanted(topic: int, begin: int, end: int) -> list[tuple[int, bytes]]:
    return [(n, b"%d-%d-" % (topic, n)) for n in range(begin, end)]


@pytest.mark.parametrize("chunk_bytes", [1, 5_000, 20_000, 1 << 30])
@pytest.mark.parametrize("topics", [1, 2, 5])
def test_every_record_of_the_split_comes_once_and_in_order(topics: int, chunk_bytes: int) -> None:
    rig = a_store(topics=topics)
    for topic in range(topics):
        split = a_split(rig, topic)
        assert split.end > rig.config.consume_queue_entries  # more than one consume queue file
        assert read(rig, split, chunk_bytes) == wanted(topic, 0, split.end)


def test_a_split_is_a_part_of_the_queue() -> None:
    rig = a_store()
    for begin, end in ((0, 1), (49, 51), (50, 50), (17, 99)):
        assert read(rig, a_split(rig, start=begin, end=end)) == wanted(0, begin, end)


def test_it_is_the_port_that_bulk_reads_use() -> None:
    rig = a_store(4)
    reader = LocalSplitReader(rig.disk)
    assert isinstance(reader, SplitReader)
    chunks = list(reader.read(a_split(rig), 3_000))
    assert len(chunks) > 1 and all(
        isinstance(records, memoryview) and len(records) == sizes.sum() for records, sizes in chunks
    )
    reader.close()


def test_a_chunk_is_about_as_large_as_asked_for_and_one_record_at_least() -> None:
    rig = a_store()
    sizes = [
        len(records) for records, _, _ in LocalSplitReader(rig.disk).read_from(a_split(rig), 10_000)
    ]
    assert max(sizes) <= 10_000 and len(sizes) > 5
    assert all(
        len(chunk[1]) == 1 for chunk in LocalSplitReader(rig.disk).read_from(a_split(rig, end=5), 1)
    )


def test_all_chunks_lie_in_one_buffer_so_that_their_memory_is_used_again() -> None:
    rig = a_store(60)
    chunks = LocalSplitReader(rig.disk).read_from(a_split(rig), 10_000)
    places = [
        np.frombuffer(records, np.uint8).__array_interface__["data"][0] for records, _, _ in chunks
    ]
    assert len(places) > 10 and len(set(places[5:])) == 1


def test_nothing_behind_the_visible_end_is_read() -> None:
    rig = a_store()
    middle = rig.store.visible_offset // 2
    found = read(rig, a_split(rig, visible_end=middle))
    assert found == wanted(0, 0, len(found)) and 0 < len(found) < a_split(rig).end
    ends = [
        decode_record(records, 0).log_offset + len(records)
        for records, _, _ in LocalSplitReader(rig.disk).read_from(
            a_split(rig, visible_end=middle), 1
        )
    ]
    assert max(ends) <= middle


def flip_record(rig: StoreRig, number: int, at: int) -> None:
    """One bit of the byte ``at`` of T0's record ``number`` goes bad on the disk."""
    (records, _, _) = next(
        LocalSplitReader(rig.disk).read_from(a_split(rig, start=number, end=number + 1), 1)
    )
    log_offset = decode_record(records, 0).log_offset
    size = rig.config.segment_bytes
    rig.disk.flip(f"{ROOT}/commitlog/{log_offset - log_offset % size:020d}", log_offset % size + at)


TOPIC_AT = 88 + len(b"0-40-") + 700


@pytest.mark.parametrize(
    "at", [3, 5, 9, 15, 27, 35, 87, 88, 500, TOPIC_AT, TOPIC_AT + 1, TOPIC_AT + 4]
)
def test_a_flipped_bit_of_what_the_format_protects_is_a_reason_to_ask_the_broker(at: int) -> None:
    rig = a_store()
    flip_record(rig, 40, at)
    check_read_up_to(rig, a_split(rig), 40, 20_000)
    end = a_split(rig).end
    assert read(rig, a_split(rig, start=41)) == wanted(0, 41, end)


@pytest.mark.parametrize("chunk_bytes", [1, 20_000])
def test_the_first_damaged_record_of_several_is_told(chunk_bytes: int) -> None:
    rig = a_store()
    for number in (7, 8, 9):
        flip_record(rig, number, 100)
    check_read_up_to(rig, a_split(rig), 7, chunk_bytes)


def test_so_are_blank_entries_of_the_queue() -> None:
    rig = a_store()
    path = f"{ROOT}/consumequeue/T0/0/{0:020d}"
    rig.disk.open(path).pwrite((0).to_bytes(8) + (0x7FFFFFFF).to_bytes(4) + bytes(8), 20 * 5)
    check_read_up_to(rig, a_split(rig), 5, 1)


def test_an_entry_that_points_at_another_record_hands_out_nothing_else() -> None:
    rig = a_store()
    path = f"{ROOT}/consumequeue/T0/0/{0:020d}"
    file = rig.disk.open(path)
    file.pwrite(
        file.pread(20, 20 * 3), 20 * 5
    )  # the same topic and queue, but not the record of offset 5
    other = rig.disk.open(f"{ROOT}/consumequeue/T1/1/{0:020d}").pread(20, 20 * 7)
    file.pwrite(other, 20 * 6)
    file.pwrite((1 << 62).to_bytes(8), 20 * 8)
    for bad in (5, 6):
        check_read_up_to(rig, a_split(rig, end=8), 5, 1)
        with pytest.raises(StoreCorrupt, match=f"at offset {bad} "):
            read(rig, a_split(rig, start=bad, end=8))
    assert read(rig, a_split(rig, start=7, end=8)) == wanted(0, 7, 8)


@pytest.mark.parametrize("topic", ["T1", "T0x", "T"])
def test_an_entry_that_points_at_the_same_place_of_another_topic_hands_out_nothing(
    topic: str,
) -> None:
    rig = StoreRig()
    for number, name in enumerate(("T0", topic)):
        rig.send([b"0-%d-" % n for n in range(3)], sequence=number, topic=name, queue_id=0)
    entry = rig.disk.open(f"{ROOT}/consumequeue/{topic}/0/{0:020d}").pread(20, 20)
    rig.disk.open(f"{ROOT}/consumequeue/T0/0/{0:020d}").pwrite(entry, 20)
    check_read_up_to(rig, a_split(rig), 1, 1)
    assert read(rig, a_split(rig, start=2)) == wanted(0, 2, 3)


def test_another_stores_files_are_refused() -> None:
    rig = a_store(2)
    with pytest.raises(StoreForeign, match="plan the read again"):
        read(rig, a_split(rig, identity="0" * 32))
    with pytest.raises(StoreMissing):
        read(rig, a_split(rig, store_path="/nowhere"))
    rig.disk.write_whole(f"{ROOT}/rmq_ray/identity", b"{}")
    with pytest.raises(StoreCorrupt, match="names no store"):
        read(rig, a_split(rig))


def test_a_changed_epoch_is_refused_before_and_in_the_middle_of_a_read() -> None:
    rig = a_store()
    with pytest.raises(StoreError, match="epoch"):
        read(rig, a_split(rig, epoch=rig.store.epoch + 1))
    chunks = LocalSplitReader(rig.disk).read_from(a_split(rig), 5_000)
    next(chunks)
    path = f"{ROOT}/rmq_ray/epochs"
    rig.disk.write_whole(path, rig.disk.read_whole(path) + b"99 1000000\n")
    with pytest.raises(StoreError, match="epoch 99"):
        next(chunks)


def test_files_that_are_gone_are_a_typed_error_that_says_where_to_go_on() -> None:
    rig = a_store()
    seen = 0
    rig.disk.unlink(f"{ROOT}/commitlog/{rig.config.segment_bytes:020d}")
    with pytest.raises(StoreMissing):
        for _, _, following in LocalSplitReader(rig.disk).read_from(a_split(rig), 5_000):
            seen = following
    assert 0 < seen < a_split(rig).end
    rig = a_store(2)
    with pytest.raises(StoreMissing, match="ends before the split"):
        read(rig, a_split(rig, end=40))
    with pytest.raises(StoreMissing):
        read(rig, a_split(rig, 1, queue=MessageQueue("T9", "broker-a", 0)))


def test_a_segment_of_another_size_is_a_typed_error() -> None:
    rig = a_store()
    rig.disk.open(f"{ROOT}/commitlog/{0:020d}").truncate(30_000)
    with pytest.raises(StoreCorrupt, match="its size is not"):
        read(rig, a_split(rig))


def test_apart_every_body_is_aligned_and_its_memory_nobody_elses() -> None:
    rig = StoreRig()
    lengths = (1, 700, 20_000, 64, 17_000, 17_000, 128, 0, 40_000, 5_000) * 3
    sent = [bytes([number]) * max(1, length) for number, length in enumerate(lengths)]
    for number in range(0, len(sent), 3):
        rig.send(sent[number : number + 3], sequence=2 * number, topic="T0")
        rig.send([b"between" * 5] * 2, sequence=2 * number + 1, topic="T1")
    found: list[Any] = []
    blocks = Blocks()
    for size in (1, 60_000, 1 << 30):
        before = len(found)
        for first, layout in LocalSplitReader(rig.disk).read_apart(a_split(rig), size, blocks):
            assert first == len(found) - before
            ends = zip(layout.body_begins.tolist(), layout.body_ends.tolist(), strict=True)
            found += [np.frombuffer(layout.buffer[begin:end], np.uint8) for begin, end in ends]
    assert [bytes(body) for body in found] == sent * 3
    assert not [body for body in found if body.__array_interface__["data"][0] % 64]
    for body in found:
        body += 100
    assert all(body[0] == number % 30 + 100 for number, body in enumerate(found))


@pytest.mark.parametrize("at", [3, 15, 27, 88, 500, TOPIC_AT + 1])
def test_apart_nothing_that_is_damaged_is_handed_out_either(at: int) -> None:
    rig = a_store()
    flip_record(rig, 40, at)
    chunks = LocalSplitReader(rig.disk).read_apart(a_split(rig, start=38), 1, Blocks())
    assert [next(chunks)[0] for _ in range(2)] == [38, 39]
    with pytest.raises(StoreCorrupt, match="at offset 40 is damaged or missing"):
        next(chunks)


def test_the_reader_changes_nothing_on_disk() -> None:
    rig = a_store(5)
    writes = rig.disk.writes

    class ReadOnly(CrashFileSystem):
        def open(self, path: str, create: bool = False) -> Any:
            raise AssertionError(f"{path} opened for writing")

        def open_to_read(self, path: str) -> Any:
            return CrashFileSystem.open(self, path)

        def read_whole(self, path: str) -> bytes:
            return bytes(self.names[path].current)

    disk = ReadOnly()
    disk.names, disk.directories = rig.disk.names, rig.disk.directories
    assert read(rig, a_split(rig), reader=LocalSplitReader(disk)) == wanted(0, 0, a_split(rig).end)
    assert rig.disk.writes == writes


def test_the_host_is_the_same_in_every_reader_of_a_machine() -> None:
    assert host_id() == host_id() and len(host_id()) == 32
    assert set(host_id()) <= set("0123456789abcdef")
