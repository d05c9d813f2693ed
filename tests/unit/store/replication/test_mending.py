"""A broken stretch of a copy is made whole with its master's bytes, or stays exactly as it is."""

from __future__ import annotations

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.codec.record import decode_record
from rmq_ray.errors import StoreError
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.replication.follower_store import FollowerStore, Lineage
from rmq_ray.store.replication.log_source import Tail, has_tail, read_log
from rmq_ray.store.replication.mending import mend_stretch
from tests.support.brokers.store_rig import HOST, StoreRig, small_config
from tests.support.faults.crash_fs import CrashFileSystem

QUEUES = range(3)


def filled() -> StoreRig:
    rig = StoreRig(config=small_config())
    for number in range(20):
        rig.send(
            [b"%d-%d" % (number, row) * 30 for row in range(number % 4 + 1)],
            sequence=number,
            queue_id=number % 3,
        )
        rig.settle()
    return rig


def opened(disk: CrashFileSystem, create: bool = False) -> FollowerStore:
    store = FollowerStore(
        small_config(), ManualClock(), broker_name="broker-a", store_host=HOST, files=disk
    )
    store.open(create)
    store.recover()
    store.start(lambda _position: None, threads=False)
    return store


def copied(
    rig: StoreRig, disk: CrashFileSystem, broken: tuple[int, int] | None = None
) -> FollowerStore:
    """A follower with everything; ``broken``: a record that the master then had broken, and that
    the follower has so.
    """
    store = opened(disk, create=True)
    store.follow(
        Lineage(
            rig.store.identity, rig.store.epochs, rig.store.begin_offset, rig.config.segment_bytes
        )
    )
    data = bytearray(read_log(rig.store.readable(), 0, 1 << 16))
    if broken is not None:
        data[broken[0] + broken[1] // 2] ^= 1
    assert store.append_raw(0, data, () if broken is None else [(*broken, "bad CRC")]) == len(data)
    store.advance(len(data))
    store.flush()
    return store


def middle(rig: StoreRig, queue_id: int = 1, offset: int = 3) -> tuple[int, int]:
    """(log offset, bytes) of a record in the middle of a queue."""
    entry = rig.store.entries("TopicTest", queue_id, offset, 1)[0]
    return int(entry["log_offset"]), int(entry["size"])


def good(rig: StoreRig, place: tuple[int, int]) -> bytes:
    return read_log(rig.store.readable(), *place)


def bodies(store: MessageStore) -> list[list[bytes]]:
    """What readers get of each queue."""
    found: list[list[bytes]] = []
    for queue_id in QUEUES:
        offset, high = store.bounds("TopicTest", queue_id)
        found.append([])
        while offset < high:
            result = store.get_messages("TopicTest", queue_id, offset, 1_000, 1 << 24, None)
            data, at = b"".join(bytes(part) for part in result.parts), 0
            for size in result.sizes.tolist():
                found[-1].append(decode_record(data, at).body)
                at += size
            offset = result.next_offset
    return found


def rot(store: FollowerStore, place: tuple[int, int]) -> None:
    """A bit of the record's body changes, and a reader finds it."""
    segment = store.opened.chain.find(place[0])
    assert segment is not None
    at = place[0] + place[1] // 2
    segment.write(bytes([segment.read(at, 1)[0] ^ 1]), at)
    assert len(bodies(store)[1]) == len(bodies(store)[0]) - 1 or store.broken_stretches() == [place]


@pytest.mark.parametrize("found_by", ["reader", "copying"])
def test_a_broken_record_is_whole_again_and_readers_get_it(found_by: str) -> None:
    rig, disk = filled(), CrashFileSystem()
    place = middle(rig)
    store = copied(rig, disk, place if found_by == "copying" else None)
    if found_by == "reader":
        rot(store, place)
    assert store.broken_stretches() == [place] and bodies(store) != bodies(rig.store)
    assert store.mend(place[0], good(rig, place))
    assert bodies(store) == bodies(rig.store) and store.queues() == rig.store.queues()
    assert store.broken_stretches() == [] and store.status()["quarantined"] == 0
    again = opened(disk.after_kill())
    assert bodies(again) == bodies(rig.store) and again.broken_stretches() == []
    assert read_log(again.readable(), 0, 1 << 16) == read_log(rig.store.readable(), 0, 1 << 16)


def test_the_last_record_of_a_queue_that_was_broken_when_it_came_is_appended_to_it() -> None:
    rig, disk = filled(), CrashFileSystem()
    place = middle(rig, 1, rig.store.bounds("TopicTest", 1)[1] - 1)
    store = copied(rig, disk, place)
    assert store.bounds("TopicTest", 1)[1] == rig.store.bounds("TopicTest", 1)[1] - 1
    assert store.mend(place[0], good(rig, place)) and bodies(store) == bodies(rig.store)


def test_bytes_that_are_no_better_change_nothing() -> None:
    rig, disk = filled(), CrashFileSystem()
    place, other = middle(rig), middle(rig, 1, 4)
    store = copied(rig, disk)
    rot(store, place)
    before = read_log(store.readable(), 0, 1 << 16)
    flipped = bytearray(good(rig, place))
    flipped[-20] ^= 1
    rotten = bytearray(good(rig, place))
    rotten[len(rotten) // 2] ^= 1
    for wrong in (
        good(rig, place)[:-1],
        good(rig, place) + b"\0",
        bytes(rotten),
        good(rig, other),
        b"",
    ):
        assert not store.mend(place[0], wrong)
    assert not store.mend(other[0], good(rig, other)), "it is not broken"
    assert read_log(store.readable(), 0, 1 << 16) == before and store.broken_stretches() == [place]


def test_a_stretch_that_is_sound_after_all_is_only_taken_off_the_list() -> None:
    rig, disk = filled(), CrashFileSystem()
    place = middle(rig)
    store = copied(rig, disk)
    store.opened.quarantine.add(*place, "the disk could not read it then")
    before = len(disk.unsynced("commitlog"))
    assert store.mend(place[0], good(rig, place)) and not store.broken_stretches()
    assert len(disk.unsynced("commitlog")) == before


def torn(store: MessageStore, place: tuple[int, int]) -> None:
    """Four zero bytes in the record's properties, which no CRC covers: what a start finds after a
    write that was torn.
    """
    segment = store.opened.chain.find(place[0])
    assert segment is not None
    segment.write(b"\0" * 4, place[0] + place[1] - 6)


def test_a_torn_record_whose_body_is_whole_gets_the_masters_bytes() -> None:
    rig, disk = filled(), CrashFileSystem()
    place = middle(rig)
    store = copied(rig, disk)
    torn(store, place)
    store.opened.quarantine.add(*place, "zero bytes in its topic or properties")
    assert store.mend(place[0], good(rig, place)) and not store.broken_stretches()
    assert read_log(store.readable(), *place) == good(rig, place)


def test_a_torn_record_of_the_master_is_no_remedy() -> None:
    rig, disk = filled(), CrashFileSystem()
    place = middle(rig)
    store = copied(rig, disk)
    rot(store, place)
    torn(rig.store, place)
    assert not store.mend(place[0], good(rig, place)) and store.broken_stretches() == [place]


def test_the_last_record_of_a_segment_is_mended_with_the_blank_behind_it() -> None:
    """A scan lists it up to the segment's end: no record follows."""
    rig, disk = StoreRig(config=small_config()), CrashFileSystem()
    while rig.store.end_offset < rig.config.segment_bytes + 2_000:
        rig.send([b"%d" % rig.store.end_offset * 40], sequence=rig.store.end_offset)
        rig.settle()
    starts = [int(entry["log_offset"]) for entry in rig.store.entries("TopicTest", 0, 0, 1_000)]
    last = max(start for start in starts if start < rig.config.segment_bytes)
    place = (last, rig.config.segment_bytes - last)
    store = copied(rig, disk)
    segment = store.opened.chain.find(last)
    assert segment is not None
    segment.write(b"\xff" * 40, last + 60)
    store.opened.quarantine.add(*place, "bad CRC")
    assert not store.mend(last, good(rig, place)[:-1] + b"!"), "not what a segment ends with"
    assert store.mend(last, good(rig, place)) and not store.broken_stretches()
    assert read_log(store.readable(), *place) == good(rig, place)


def test_a_torn_record_that_the_master_names_is_skipped_and_a_sound_one_is_taken() -> None:
    """What is wrong with it is in no CRC; a name that a rotten queue entry brought about hides
    nothing.
    """
    rig, disk = filled(), CrashFileSystem()
    place, other = middle(rig), middle(rig, 1, 5)
    store = opened(disk, create=True)
    store.follow(
        Lineage(
            rig.store.identity, rig.store.epochs, rig.store.begin_offset, rig.config.segment_bytes
        )
    )
    before = good(rig, place)
    torn(rig.store, place)
    data = read_log(rig.store.readable(), 0, 1 << 16)
    named = [
        (*place, "zero bytes"),
        (*other, "it is not the record of its place"),
        (other[0] + 16, other[1], "?"),
    ]
    assert store.append_raw(0, data, named) == len(data)
    store.advance(len(data))
    assert store.broken_stretches() == [place] and [len(found) for found in bodies(store)] == [
        len(found) - (queue == 1) for queue, found in enumerate(bodies(rig.store))
    ]
    assert store.mend(place[0], before) and not store.broken_stretches()


def test_a_broken_record_of_the_master_lets_no_other_end_of_a_log_pass() -> None:
    rig, disk = filled(), CrashFileSystem()
    store = copied(rig, disk)
    parts, tail = rig.store.readable(), store.tail()
    rig.store.opened.quarantine.add(*middle(rig), "bad CRC")
    assert has_tail(parts, tail, 4 << 20)
    assert not has_tail(parts, Tail(tail.begin, tail.end, tail.crc ^ 1), 4 << 20)


def test_behind_a_broken_record_of_the_master_shorter_ends_are_compared() -> None:
    rig, disk = filled(), CrashFileSystem()
    store = copied(rig, disk)
    parts, tail, place = rig.store.readable(), store.tail(), middle(rig, 1, 0)
    shorter = store.shorter_tails(tail)
    assert [tail.end - found.end for found in shorter] == [0] and 2_000 < tail.end - shorter[
        0
    ].begin <= 4 << 10
    segment = rig.store.opened.chain.find(place[0])
    assert segment is not None
    segment.write(b"\xff", place[0] + place[1] // 2)
    assert not has_tail(parts, tail, 4 << 20) and has_tail(parts, shorter[0], 4 << 20)
    assert parts.quarantine.count == 1
    last = middle(rig, 1, rig.store.bounds("TopicTest", 1)[1] - 1)
    segment.write(b"\xff", last[0] + last[1] // 2)
    assert not has_tail(parts, shorter[0], 4 << 20), "what is broken lies in it"


@pytest.mark.parametrize("keep", [True, False])
def test_a_loss_of_power_at_any_step_leaves_the_stretch_listed_or_whole(keep: bool) -> None:
    rig = filled()
    place = middle(rig)
    for action, part in (
        ("pwrite", "commitlog"),
        ("datasync", "commitlog"),
        ("pwrite", "consumequeue"),
        ("datasync", "consumequeue"),
        ("rename", "quarantine"),
    ):
        disk = CrashFileSystem()
        store = copied(rig, disk, place)
        disk.fail_next(action, part)
        with pytest.raises(StoreError):
            store.mend(place[0], good(rig, place))
        again = opened(disk.survivor(lambda _number, _change: keep, "boot-2"))
        listed = again.broken_stretches()
        assert listed in ([], [place])
        if not listed:
            assert bodies(again) == bodies(rig.store)
        else:
            assert again.mend(place[0], good(rig, place)) and bodies(again) == bodies(rig.store)


def test_a_beginning_of_whole_records_shrinks_a_long_stretch() -> None:
    rig, disk = filled(), CrashFileSystem()
    first, last = middle(rig, 1, 3), middle(rig, 1, 6)
    place = (first[0], last[0] - first[0])
    store = copied(rig, disk)
    store.opened.quarantine.add(*place, "a start found no record here")
    assert store.mend(place[0], good(rig, place)[: first[1] + 30]) == first[1]
    assert store.broken_stretches() == [(first[0] + first[1], place[1] - first[1])]
    assert store.mend(*_rest(rig, store)) and store.broken_stretches() == []
    assert store.status()["quarantined"] == 0 and bodies(store) == bodies(rig.store)


def _rest(rig: StoreRig, store: FollowerStore) -> tuple[int, bytes]:
    (place,) = store.broken_stretches()
    return place[0], good(rig, place)


def test_a_log_that_is_written_to_gives_no_record_an_offset_that_it_has_given_away() -> None:
    """The last record of a queue that was not there when the queue was made: another one may have
    its offset by now.
    """
    rig, disk = filled(), CrashFileSystem()
    place = middle(rig, 1, rig.store.bounds("TopicTest", 1)[1] - 1)
    parts = copied(rig, disk, place).opened
    assert mend_stretch(parts, place[0], good(rig, place), appends=False).taken == 0
    assert mend_stretch(parts, place[0], good(rig, place), appends=True).taken == place[1]
