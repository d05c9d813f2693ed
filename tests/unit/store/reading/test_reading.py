"""Reads at the edges: files that are gone, files that are full, records on disk
(docs/file-format.md#reading).
"""

from __future__ import annotations

import pytest

from rmq_ray.codec.record import decode_record
from rmq_ray.model.hashing import java_hash
from rmq_ray.model.pulling import GetMessageStatus
from rmq_ray.store.queue.queue_table import QueueTable
from tests.support.brokers.store_rig import ROOT, StoreRig, small_config


def forget_first_segments(rig: StoreRig, count: int = 1) -> None:
    """As while retention is between the log and the queues: the segments are gone and the queues
    still point at them.
    """
    for _ in range(count):
        assert rig.store.opened.chain.remove_first()


def of_segments(count: int = 3) -> tuple[StoreRig, list[int]]:
    """A store of some segments, and how many records lie in each."""
    rig = StoreRig(config=small_config(segment_bytes=4096))
    numbers: list[int] = []
    while len(numbers) < count + 1:
        segment = rig.send([b"x" * 200], sum(numbers)).base_log_offset // 4096
        numbers += [0] * (segment + 1 - len(numbers))
        numbers[segment] += 1
    return rig, numbers


@pytest.mark.seed("S4-098")
def test_a_read_of_records_that_are_gone_leads_to_the_first_that_is_there() -> None:
    rig, numbers = of_segments()
    forget_first_segments(rig, 2)
    gone = rig.store.get_messages("TopicTest", 0, 0, 3, 1 << 20, None)
    assert (gone.status, gone.count, gone.next_offset) == (
        GetMessageStatus.MESSAGE_WAS_REMOVING,
        0,
        numbers[0] + numbers[1],
    )


@pytest.mark.seed("S4-093")
def test_a_read_passes_over_entries_that_point_into_a_removed_file() -> None:
    rig, numbers = of_segments()
    forget_first_segments(rig)
    found = rig.store.get_messages("TopicTest", 0, numbers[0] - 2, 4, 1 << 20, None)
    assert (found.status, found.count, found.next_offset) == (
        GetMessageStatus.FOUND,
        2,
        numbers[0] + 2,
    )
    assert rig.store.status()["quarantined"] == 0, "gone is not damaged"


@pytest.mark.seed("S4-124")
def test_a_read_that_finds_no_entries_goes_on_at_the_next_file_of_the_queue() -> None:
    rig = StoreRig()
    rig.send([b"x"] * 120)
    queue, second = (
        rig.store.opened.queues.find("TopicTest", 0),
        f"{ROOT}/consumequeue/TopicTest/0/{50 * 20:020d}",
    )
    assert queue is not None
    rig.disk.unlink(second)
    queue._cache.drop(second)
    nothing = rig.store.get_messages("TopicTest", 0, 60, 10, 1 << 20, None)
    assert (nothing.status, nothing.count, nothing.next_offset) == (
        GetMessageStatus.OFFSET_FOUND_NULL,
        0,
        100,
    )
    assert rig.store.get_messages("TopicTest", 0, 100, 10, 1 << 20, None).count == 10


@pytest.mark.seed("S4-123")
def test_the_maximum_of_a_full_file_is_where_the_next_file_begins() -> None:
    rig = StoreRig()
    rig.send([b"x"] * 50)
    directory = f"{ROOT}/consumequeue/TopicTest/0"
    assert rig.disk.list_dir(directory) == [f"{0:020d}"]
    waiting = rig.store.get_messages("TopicTest", 0, 50, 10, 1 << 20, None)
    assert (waiting.status, waiting.next_offset, waiting.max_offset) == (
        GetMessageStatus.OFFSET_OVERFLOW_ONE,
        50,
        50,
    )
    rig.send([b"next"], 1)
    assert rig.disk.list_dir(directory) == [f"{0:020d}", f"{50 * 20:020d}"]
    found = rig.store.get_messages("TopicTest", 0, 50, 10, 1 << 20, None)
    assert (found.status, found.count, found.next_offset) == (GetMessageStatus.FOUND, 1, 51)


@pytest.mark.seed("S4-094", "S4-095")
def test_a_foreign_read_asks_of_every_record_whether_it_lies_on_disk() -> None:
    rig = StoreRig()
    rig.send([b"x" * 500] * 60)
    starts, end = [record.log_offset for record in rig.records()], rig.store.end_offset

    def read(offset: int, in_memory: int, codes: frozenset[int] | None = None) -> tuple[int, int]:
        """(records, next offset) when the last ``in_memory`` records count as in memory."""
        rig.store.opened.reader._memory_bytes = end - starts[60 - in_memory]
        result = rig.store.get_messages("TopicTest", 0, offset, 1_000, 1 << 30, codes, foreign=True)
        return result.count, result.next_offset

    assert read(0, in_memory=60) == (32, 32)
    assert read(0, in_memory=1) == (8, 8)
    assert read(0, in_memory=55) == (32, 32), (
        "records 5 and on are in memory: their greater caps apply"
    )
    assert read(0, in_memory=50) == (8, 8), "the ninth record lies on disk"
    assert read(51, in_memory=1) == (9, 60), "only the ninth is in memory"
    assert read(0, in_memory=1, codes=frozenset([java_hash("absent")])) == (0, 60)


@pytest.mark.seed("S4-095")
def test_a_foreign_read_from_disk_ends_at_64_kib_and_one_from_memory_at_256() -> None:
    rig = StoreRig(config=small_config(segment_bytes=1 << 20))
    for number in range(40):
        rig.send([b"x" * 15_000], number)
    assert rig.store.get_messages("TopicTest", 0, 0, 1_000, 1 << 30, None, foreign=True).count == 17
    rig.store.opened.reader._memory_bytes = 0
    assert rig.store.get_messages("TopicTest", 0, 0, 1_000, 1 << 30, None, foreign=True).count == 4
    assert rig.store.get_messages("TopicTest", 0, 0, 1_000, 1 << 30, None).count == 40, (
        "our own readers have no such caps"
    )


def bodies_of(
    rig: StoreRig, offset: int, count: int, queue_id: int = 0, codes: frozenset[int] | None = None
) -> tuple[list[bytes], int]:
    """(bodies, next offset) of a read."""
    found = rig.store.get_messages("TopicTest", queue_id, offset, count, 1 << 20, codes)
    data, bodies, at = b"".join(bytes(part) for part in found.parts), [], 0
    for size in found.sizes.tolist():
        bodies.append(decode_record(data, at).body)
        at += size
    assert at == len(data)
    return bodies, found.next_offset


def interleaved(rounds: int, frame: int) -> tuple[StoreRig, list[bytes]]:
    """Frames of two queues by turns, in segments of 64 KiB; what lies in queue 0."""
    rig = StoreRig(config=small_config(segment_bytes=1 << 16))
    expected = [b"%d" % i * 40 for i in range(rounds * frame)]
    for start in range(0, len(expected), frame):
        rig.send(expected[start : start + frame], 2 * start)
        rig.send([b"other" * 30] * frame, 2 * start + 1, queue_id=1)
    return rig, expected


@pytest.mark.parametrize(("rounds", "frame"), [(8, 30), (100, 1), (3, 200)])
def test_records_between_those_of_other_queues_are_read_whole_and_in_order(
    rounds: int, frame: int
) -> None:
    rig, expected = interleaved(rounds, frame)
    assert bodies_of(rig, 0, 1_000) == (expected, len(expected))
    assert bodies_of(rig, 7, 40) == (expected[7:47], 47)


def test_one_damaged_record_among_many_is_left_out_and_counted_and_the_others_come() -> None:
    rig, expected = interleaved(8, 30)
    log_offset = rig.records()[100].log_offset
    segment = log_offset // (1 << 16) * (1 << 16)
    rig.disk.flip(f"{ROOT}/commitlog/{segment:020d}", log_offset - segment + 90)
    found, next_offset = bodies_of(rig, 0, 1_000)
    assert (found, next_offset) == (expected[:100] + expected[101:], 240)
    assert rig.store.status()["quarantined"] == 1


def test_a_pull_that_waited_for_a_small_frame_gets_it_without_reading_a_file() -> None:
    rig = StoreRig()
    rig.send([b"old"], 0)
    rig.send([b"one", b"two"], 1)
    reader = rig.store.opened.reader
    asked = [
        (1, 10, 1 << 20),
        (1, 2, 1),
        (1, 1, 1 << 20),
        (2, 10, 1 << 20),
        (0, 10, 1 << 20),
        (3, 10, 1 << 20),
    ]
    quick = [rig.store.get_messages("TopicTest", 0, *read, None) for read in asked]
    assert reader.recent is not None and quick[0].parts == [reader.recent.data]
    reader.recent = None
    for found, read in zip(quick, asked, strict=True):
        plain = rig.store.get_messages("TopicTest", 0, *read, None)
        assert (found.status, found.next_offset, found.min_offset, found.max_offset) == (
            plain.status,
            plain.next_offset,
            plain.min_offset,
            plain.max_offset,
        )
        assert found.sizes.tolist() == plain.sizes.tolist() and b"".join(
            map(bytes, found.parts)
        ) == b"".join(map(bytes, plain.parts))


def test_what_was_just_written_is_not_shown_of_another_queue_under_a_filter_or_deleted() -> None:
    rig = StoreRig()
    rig.send([b"kept"], 0, queue_id=1)
    rig.send([b"new"], 1)
    assert bodies_of(rig, 0, 10, queue_id=1) == ([b"kept"], 1)
    assert (
        rig.store.get_messages(
            "TopicTest", 0, 0, 10, 1 << 20, frozenset((java_hash("other"),))
        ).count
        == 0
    )
    rig.delete()
    rig.send([b"x" * 5_000], 2)
    assert bodies_of(rig, 1, 10) == ([b"x" * 5_000], 2)
    assert bodies_of(rig, 0, 10) == ([], 1), "too small: the new topic's first message is told"


def test_messages_that_a_queue_gets_first_during_a_read_are_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, find = StoreRig(), QueueTable.find

    def find_before(table: QueueTable, topic: str, queue_id: int) -> object:
        found = find(table, topic, queue_id)
        if found is None:
            rig.send([b"a"] * 5)
        return found

    monkeypatch.setattr(QueueTable, "find", find_before)
    found = rig.store.get_messages("TopicTest", 0, 0, 10, 1 << 20, None)
    assert (found.status, found.next_offset) == (GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0)
    assert rig.store.get_messages("TopicTest", 0, 0, 10, 1 << 20, None).count == 5
