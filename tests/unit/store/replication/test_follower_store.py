"""A slave's store: bytes of a master's log in, the same queues out, and nothing that is not the
master's.
"""

from __future__ import annotations

import random

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.codec.record import decode_record
from rmq_ray.config import FlushMode
from rmq_ray.errors import LogDiverged, StoreCorrupt, StoreUnwritable
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.replication.follower_store import FollowerStore, Lineage
from rmq_ray.store.replication.log_source import (
    Tail,
    broken_between,
    has_tail,
    look_again,
    read_log,
)
from tests.support.brokers.store_rig import BORN, HOST, StoreRig, make_frame, small_config
from tests.support.faults.crash_fs import CrashFileSystem


def follower(
    disk: CrashFileSystem | None = None, create: bool = True, **changes: object
) -> FollowerStore:
    store = FollowerStore(
        small_config(**changes),
        ManualClock(),
        broker_name="broker-a",
        store_host=HOST,
        files=disk or CrashFileSystem(),
    )
    store.open(create)
    store.recover()
    store.start(lambda _position: None, threads=False)
    return store


def lineage(rig: StoreRig) -> Lineage:
    return Lineage(
        rig.store.identity, rig.store.epochs, rig.store.begin_offset, rig.config.segment_bytes
    )


def filled(frames: int = 40, **changes: object) -> StoreRig:
    rig = StoreRig(config=small_config(**changes))
    for number in range(frames):
        rig.send(
            [b"%d-%d" % (number, row) * 30 for row in range(number % 7 + 1)],
            sequence=number,
            queue_id=number % 3,
        )
        rig.settle()
    return rig


def copy(
    rig: StoreRig, store: FollowerStore, count: int = 10_000, confirmed: int | None = None
) -> None:
    """Until the follower has everything."""
    while store.end_offset < rig.store.end_offset:
        asked = count
        while not store.append_raw(
            store.end_offset, read_log(rig.store.readable(), store.end_offset, asked)
        ):
            asked *= 2
        store.advance(rig.store.visible_offset if confirmed is None else confirmed)


def last_bytes(store: MessageStore, queue_id: int) -> bytes:
    """Of the last three records of a queue."""
    high = store.bounds("TopicTest", queue_id)[1]
    return b"".join(store.get_messages("TopicTest", queue_id, high - 3, 3, 1 << 20, None).parts)


def log_bytes(store: MessageStore) -> bytes:
    return b"".join(
        segment.read(segment.start, 65_536) for segment in store.opened.chain.segments()
    )


@pytest.mark.parametrize("count", [1_000, 10_000, 1 << 20])
def test_a_copy_has_the_same_bytes_queues_and_epochs_whatever_the_pieces(count: int) -> None:
    rig = filled(80)
    store = follower()
    store.follow(lineage(rig))
    copy(rig, store, count)
    assert log_bytes(store)[: store.end_offset] == log_bytes(rig.store)[: rig.store.end_offset]
    assert (
        store.queues() == rig.store.queues()
        and store.epochs == rig.store.epochs
        and store.end_offset == rig.store.end_offset > 65_536
    )


def test_pieces_of_any_length_never_leave_a_torn_frame_behind() -> None:
    rig, chance = StoreRig(), random.Random(5)
    ends = {0}
    for number in range(300):
        result = rig.send(
            [b"z" * chance.randrange(1, 200) for _ in range(chance.randrange(1, 6))],
            sequence=1_000 + number,
        )
        ends.add(result.end_log_offset)
    store = follower()
    store.follow(lineage(rig))
    while store.end_offset < rig.store.end_offset:
        store.append_raw(
            store.end_offset,
            read_log(rig.store.readable(), store.end_offset, chance.randrange(1, 5_000)),
        )
        assert store.end_offset in ends or store.end_offset % 65_536 == 0


def test_what_the_master_has_not_confirmed_is_kept_and_not_visible() -> None:
    rig = filled(6)
    store = follower()
    store.follow(lineage(rig))
    copy(rig, store, confirmed=0)
    assert (
        store.end_offset == rig.store.end_offset
        and store.visible_offset == 0
        and store.queues() == {}
    )
    arrivals: list[tuple[str, int, int]] = []
    store.set_arrival_listener(
        lambda topic, queue_id, maximum, _codes: arrivals.append((topic, queue_id, maximum))
    )
    assert store.advance(rig.store.end_offset) == rig.store.end_offset
    assert store.queues() == rig.store.queues() and sorted(arrivals)[-1] == (
        "TopicTest",
        2,
        rig.store.bounds("TopicTest", 2)[1],
    )


def test_under_sync_flush_only_what_is_on_the_slaves_disk_is_visible() -> None:
    rig = filled(3, flush=FlushMode.SYNC_FLUSH)
    store = follower(flush=FlushMode.SYNC_FLUSH)
    store.follow(lineage(rig))
    copy(rig, store)
    assert store.visible_offset == 0
    store.sync()
    assert store.advance(rig.store.visible_offset) == rig.store.visible_offset > 0


def test_bytes_that_do_not_continue_the_log_are_refused() -> None:
    rig = filled(4)
    store = follower()
    store.follow(lineage(rig))
    with pytest.raises(LogDiverged, match="do not continue"):
        store.append_raw(100, read_log(rig.store.readable(), 100, 500))
    assert store.end_offset == 0


def test_one_wrong_bit_in_a_piece_is_not_taken_over() -> None:
    rig = filled(1)
    store = follower()
    store.follow(lineage(rig))
    data = bytearray(read_log(rig.store.readable(), 0, 1 << 16))
    data[95] ^= 1  # in the first body
    with pytest.raises(StoreCorrupt) as caught:
        store.append_raw(0, data)
    assert caught.value.args[2] == 0 and store.end_offset == 0


def test_a_record_that_is_broken_at_the_master_is_skipped_there_and_here() -> None:
    rig = StoreRig()
    places = [rig.send([b"body %d" % n], sequence=n).base_log_offset for n in range(5)]
    segment = rig.store.opened.chain.segments()[0]
    segment.write(b"\xff", places[2] + 89)
    store = follower()
    store.follow(lineage(rig))
    data = read_log(rig.store.readable(), 0, 1 << 16)
    assert store.append_raw(0, data) == places[2], "what is sound before it"
    with pytest.raises(StoreCorrupt):
        store.append_raw(places[2], data[places[2] :])
    parts = rig.store.readable()
    assert look_again(parts, places[2], rig.config.body_bytes_max) and not look_again(
        parts, places[1], rig.config.body_bytes_max
    )
    broken = broken_between(parts, places[2], rig.store.end_offset)
    assert [entry[:2] for entry in broken] == [(places[2], places[3] - places[2])]
    store.append_raw(places[2], data[places[2] :], broken)
    store.advance(rig.store.visible_offset)
    assert (
        store.end_offset == rig.store.end_offset
        and store.visible_offset == rig.store.visible_offset
        and store.bounds("TopicTest", 0) == (0, 5)
    )
    assert store.opened.quarantine.entries() == parts.quarantine.entries()


def test_a_copy_of_another_log_is_refused() -> None:
    rig, other = filled(3), filled(3)
    store = follower()
    store.follow(lineage(rig))
    copy(rig, store)
    with pytest.raises(LogDiverged, match="empty directory"):
        store.follow(Lineage("0" * 32, other.store.epochs, 0, 65_536))
    assert store.origin().log == rig.store.identity
    assert not has_tail(other.store.readable(), Tail(0, store.end_offset, 1), 1 << 22) and has_tail(
        rig.store.readable(), store.tail(), 1 << 22
    )


def test_segments_of_another_size_are_refused() -> None:
    rig = filled(1)
    with pytest.raises(LogDiverged, match="segment_bytes"):
        follower(segment_bytes=131_072).follow(lineage(rig))


@pytest.mark.parametrize(
    ("epochs", "fits"),
    [
        (((1, 0), (2, 10_000_000)), True),
        (((1, 0), (2, 500)), False),
        (((3, 10_000_000),), True),
        (((1, 4),), False),
    ],
)
def test_epochs_tell_whether_a_copy_is_a_prefix(
    epochs: tuple[tuple[int, int], ...], fits: bool
) -> None:
    rig = filled(10)
    store = follower()
    store.follow(lineage(rig))
    copy(rig, store)
    wanted = Lineage(rig.store.identity, epochs, 0, 65_536)
    if fits:
        store.follow(wanted)
        assert store.epochs == epochs
    else:
        with pytest.raises(LogDiverged):
            store.follow(wanted)


def test_a_wiped_slave_begins_with_the_masters_first_segment() -> None:
    rig = filled(80)
    chain = rig.store.opened.chain
    assert chain.remove_first() and rig.store.begin_offset == 65_536
    rig.store.opened.queues.set_min_log_offset(chain.begin)
    disk = CrashFileSystem()
    store = follower(disk)
    store.follow(lineage(rig))
    assert (store.begin_offset, store.end_offset) == (65_536, 65_536)
    copy(rig, store)
    assert store.end_offset == rig.store.end_offset
    for queue_id in range(3):
        high = rig.store.bounds("TopicTest", queue_id)[1]
        assert store.bounds("TopicTest", queue_id)[1] == high
        assert last_bytes(store, queue_id) == last_bytes(rig.store, queue_id) != b""


def test_a_slave_that_retention_left_behind_begins_anew_at_the_masters_first_segment() -> None:
    rig = filled(30)
    store = follower()
    store.follow(lineage(rig))
    copy(rig, store)
    behind = store.end_offset
    for number in range(60):
        rig.send([b"%d" % number * 500], sequence=500 + number)
    chain = rig.store.opened.chain
    while chain.begin < behind:
        chain.remove_first()
    store.follow(lineage(rig))
    assert store.begin_offset == store.end_offset == chain.begin > behind and store.queues() == {}
    copy(rig, store)
    assert store.end_offset == rig.store.end_offset


def test_clients_cannot_append_to_a_copy() -> None:
    store = follower()
    records, sizes = make_frame([b"x"])
    with pytest.raises(StoreUnwritable, match="master"):
        store.append_frame(records, sizes, BORN)


def test_an_unclean_stop_of_a_slave_begins_no_epoch_and_loses_no_whole_frame() -> None:
    rig, disk = filled(20), CrashFileSystem()
    store = follower(disk)
    store.follow(lineage(rig))
    copy(rig, store)
    again = follower(disk.after_kill(), create=False)
    assert (again.epochs, again.end_offset, again.queues()) == (
        rig.store.epochs,
        rig.store.end_offset,
        rig.store.queues(),
    )


def test_a_copy_that_is_opened_as_a_master_begins_an_epoch() -> None:
    rig, disk = filled(20), CrashFileSystem()
    store = follower(disk)
    store.follow(lineage(rig))
    copy(rig, store)
    store.shutdown()
    master = StoreRig(disk=disk, create=False)
    assert master.store.epochs == ((1, 0), (2, rig.store.end_offset))
    assert (
        master.send([b"new"], sequence=7_000, queue_id=0).base_queue_offset
        == rig.store.bounds("TopicTest", 0)[1]
    )
    master.store.shutdown()
    assert StoreRig(disk=disk, create=False).store.epoch == 2, "once"


@pytest.mark.parametrize("jump_ms", [0, 3_600_000, -3_600_000])
def test_a_repeat_of_what_the_master_stored_is_known_after_the_change(jump_ms: int) -> None:
    """Whatever the master's clock was ahead of the slave's then."""
    rig, disk = StoreRig(), CrashFileSystem()
    rig.clock.jump_ms(jump_ms)
    first = rig.send([b"a", b"b"], sequence=3)
    store = follower(disk)
    store.follow(lineage(rig))
    copy(rig, store)
    store.shutdown()
    again = StoreRig(disk=disk, create=False).send([b"a", b"b"], sequence=3)
    assert again.repeat and again.base_log_offset == first.base_log_offset


@pytest.mark.parametrize("seed", range(25))
def test_a_slave_whose_host_lost_power_has_a_prefix_left_and_goes_on(seed: int) -> None:
    chance = random.Random(seed)
    rig, disk = filled(50), CrashFileSystem()
    store = follower(disk)
    store.follow(lineage(rig))
    while store.end_offset < rig.store.end_offset * chance.random():
        store.append_raw(
            store.end_offset,
            read_log(rig.store.readable(), store.end_offset, chance.randrange(500, 6_000)),
        )
        store.advance(store.end_offset)
        if chance.random() < 0.2:
            store.sync()
    held, had = store.flushed_offset, store.end_offset
    after = disk.survivor(
        lambda _number, change: chance.choice(
            (True, False, chance.randrange(len(change.data) + 1) if change.data else True)
        ),
        "boot-2",
    )
    again = follower(after, create=False)
    assert held <= again.end_offset <= had and again.epochs == rig.store.epochs
    assert log_bytes(again)[: again.end_offset] == log_bytes(rig.store)[: again.end_offset]
    assert not log_bytes(again)[again.end_offset :].strip(b"\0"), (
        "nothing of a torn piece is left behind the end"
    )
    again.follow(lineage(rig))
    copy(rig, again)
    assert (
        again.queues() == rig.store.queues()
        and log_bytes(again)[: again.end_offset] == log_bytes(rig.store)[: rig.store.end_offset]
    )


@pytest.mark.parametrize("known_at", range(4))
@pytest.mark.parametrize("again", [False, True])
def test_a_slave_has_nothing_of_a_topic_that_was_deleted_whenever_it_learns_of_it(
    known_at: int, again: bool
) -> None:
    rig, disk = StoreRig(), CrashFileSystem()
    rig.send([b"kept"], 0, topic="Kept")
    store = follower(disk)
    store.follow(lineage(rig))

    def learn(now: int) -> None:
        copy(rig, store)
        if now >= known_at:
            store.take_lives(rig.store.lives.snapshot())
            store.delete_topic("TopicTest")

    old = rig.send([b"old"] * 3, 1, head="KEYS\x01k")
    if known_at < 3:
        copy(rig, store)
    rig.send([b"last"], 2)
    rig.delete()
    if known_at == 0:
        store.take_lives(rig.store.lives.snapshot())
    learn(1)
    if again:
        rig.send([b"new"], 3)
    learn(2)
    rig.send([b"other"], 4, topic="Kept")
    learn(3)
    assert store.lives.snapshot() == rig.store.lives.snapshot()

    def check(found: MessageStore) -> None:
        assert found.bounds("TopicTest", 0) == rig.store.bounds("TopicTest", 0) == (4, 4 + again)
        assert found.record_at(old.base_log_offset) is None
        assert found.query("TopicTest", "k", 10, 0, 1 << 60) == []
        read = found.get_messages("TopicTest", 0, 4, 10, 1 << 20, None)
        assert [decode_record(bytes(part)).body for part in read.parts] == [b"new"] * again

    check(store)
    store.lives.save(store.lives.snapshot())
    store.shutdown()
    check(follower(disk, create=False))


def test_a_slave_that_is_behind_a_deletion_takes_over_what_it_has_of_the_log() -> None:
    """Elected before it had all of it: what is written from then on is newer than the deletion."""
    rig, disk = StoreRig(), CrashFileSystem()
    rig.send([b"old"] * 3, 0)
    store = follower(disk)
    store.follow(lineage(rig))
    copy(rig, store)
    rig.send([b"x" * 500] * 9, 1, topic="Kept")
    rig.delete()
    store.take_lives(rig.store.lives.snapshot())
    store.lives.save(store.lives.snapshot())
    store.shutdown()
    master = StoreRig(disk, small_config(), create=False)
    assert master.send([b"new"], 5).base_queue_offset == 3
    assert master.bodies() == [b"new"]
    assert master.next_life(disk_of(master)).bodies() == [b"new"]


def disk_of(rig: StoreRig) -> CrashFileSystem:
    rig.store.shutdown()
    return rig.disk
