"""A topic that is deleted and made again is another topic of the same name: what each way to a
record finds of the old one (nothing), where the new one begins, and what survives a crash.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmq_ray.codec.store_files import BLANK_SIZE, ENTRY_BYTES
from rmq_ray.config import FlushMode
from rmq_ray.errors import StoreCorrupt
from rmq_ray.model.pulling import GetMessageStatus
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.reading.filtered_reading import Condition
from rmq_ray.store.reading.log_reader import LogReader
from rmq_ray.store.tables import topic_lives
from rmq_ray.store.tables.topic_lives import Life, TopicLives, decode_lives, encode_lives
from tests.support.brokers.store_rig import ROOT, StoreRig, small_config
from tests.support.faults.crash_fs import Change, CrashFileSystem, keep_all, keep_none

TOPIC = "TopicTest"
OLD, NEW = [b"a", b"b", b"c"], [b"d", b"e"]
FILE = f"{ROOT}/rmq_ray/topic_lives.json"
KEYED = {"head": "KEYS\x01k"}

Road = Callable[[MessageStore, int], object]
ROADS: dict[str, Road] = {
    "query": lambda store, _: store.query(TOPIC, "k", 10, 0, 1 << 60),
    "record_at": lambda store, log_offset: store.record_at(log_offset),
    "records_at": lambda store, log_offset: store.records_at([log_offset], 1 << 20) != [None],
    "get_messages": lambda store, _: store.get_messages(TOPIC, 0, 0, 10, 1 << 20, None).count,
    "get_matching": lambda store, _: (
        store.get_matching(TOPIC, 0, 0, 10, 1 << 20, Condition(lambda _text: True)).count
    ),
    "just_written": lambda store, _: store.just_written(TOPIC, 0, 0, 10, 1 << 20),
    "entries": lambda store, _: any(store.entries(TOPIC, 0, 0, 3)["size"] != BLANK_SIZE),
    "log_offset_of": lambda store, log_offset: store.log_offset_of(TOPIC, 0, 0) == log_offset,
    "queues": lambda store, _: store.queues().get((TOPIC, 0), (3, 3))[0] < 3,
    "bounds": lambda store, _: store.bounds(TOPIC, 0)[0] < 3,
    "first_since": lambda store, _: store.first_since(TOPIC, 0, 0) < 3,
}
"""Method of the store -> what it finds of the first old record, which begins at a log offset."""
NO_ROADS = frozenset(
    # life, writing, upkeep
    "open recover start configure shutdown reopen set_store_host append_frame append_message "
    "append_batch_body append_mixed set_arrival_listener dispatch_durable set_replicated end_topic "
    "delete_topic flush_step flush pin unpin request_cleaning clean expire_topics "
    # of the log, or of this store as a whole
    "counters state epoch epochs flushed_offset durable_offset visible_offset end_offset "
    "written_offset begin_offset status opened readable follows topics "
    # of places and times, within the bounds of a queue
    "offset_by_time earliest_store_ms is_cold is_cold_pull is_young".split()
)


def deleted(flush: FlushMode = FlushMode.ASYNC_FLUSH) -> tuple[StoreRig, int]:
    """A store whose topic was deleted, and where its first record lies."""
    rig = StoreRig(config=small_config(flush=flush))
    first = rig.send(OLD, 0, **KEYED)
    rig.settle()
    assert all(road(rig.store, first.base_log_offset) for road in ROADS.values())
    rig.delete()
    return rig, first.base_log_offset


@pytest.mark.parametrize("road", ROADS.values(), ids=ROADS)
@pytest.mark.parametrize("restarts", [False, True])
def test_nothing_of_a_deleted_topic_is_found_be_it_there_again_or_not(
    road: Road, restarts: bool
) -> None:
    rig, log_offset = deleted()
    if restarts:
        rig = rig.next_life(rig.disk.survivor(keep_all))
    assert not road(rig.store, log_offset)
    rig.send(NEW, 7)
    assert not road(rig.store, log_offset)


def test_every_way_into_the_store_is_a_road_or_none() -> None:
    public = {name for name in vars(MessageStore) if not name.startswith("_")}
    assert public == set(ROADS) | NO_ROADS


@pytest.mark.parametrize("flush", FlushMode)
def test_a_topic_made_again_goes_on_behind_the_old_ones_end(flush: FlushMode) -> None:
    rig, _ = deleted(flush)
    assert rig.store.bounds(TOPIC, 0) == (3, 3) and rig.store.bounds(TOPIC, 1) == (0, 0)
    assert rig.send(NEW, 1).base_queue_offset == 3
    rig.settle()
    assert rig.bodies() == NEW and rig.store.bounds(TOPIC, 0) == (3, 5)


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (2, GetMessageStatus.OFFSET_TOO_SMALL, 3),
        (3, GetMessageStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 3),
    ],
)
def test_an_old_position_is_too_small_or_at_the_new_beginning(
    offset: int, status: GetMessageStatus, following: int
) -> None:
    rig, _ = deleted()
    found = rig.store.get_messages(TOPIC, 0, offset, 10, 1 << 20, None)
    assert (found.status, found.next_offset) == (status, following)


def test_what_waits_for_the_disk_when_its_topic_goes_counts_as_the_old_ones() -> None:
    rig = StoreRig(config=small_config(flush=FlushMode.SYNC_FLUSH))
    rig.send(OLD, 0)
    rig.delete()
    rig.settle()
    assert rig.store.bounds(TOPIC, 0) == (3, 3)
    assert rig.send(NEW, 1).base_queue_offset == 3
    rig.settle()
    assert rig.bodies() == NEW


@pytest.mark.parametrize("visible", [True, False])
def test_nothing_is_removed_before_the_deletion_is_on_disk(visible: bool) -> None:
    """Neither of a queue whose last messages wait to become visible, nor of one without others."""
    rig = StoreRig(config=small_config(flush=FlushMode.SYNC_FLUSH))
    if visible:
        rig.send(OLD[:2], 0)
        rig.settle()
    rig.send(OLD[2:] if visible else OLD, 1)
    rig.store.end_topic(TOPIC)
    assert rig.bodies() == []
    rig.settle()
    rig.store.flush()
    assert rig.bodies() == [] and not rig.store.query(TOPIC, "k", 10, 0, 1 << 60)
    after = rig.next_life(rig.disk.survivor(keep_none, "boot-2"))
    assert after.bodies() == OLD, "whose deletion no file knows"
    rig.store.lives.save(rig.store.lives.snapshot())
    assert rig.store.delete_topic(TOPIC) == 1 and rig.store.bounds(TOPIC, 0) == (3, 3)


def test_what_still_waits_when_the_files_go_makes_no_queue() -> None:
    rig = StoreRig(config=small_config(flush=FlushMode.SYNC_FLUSH))
    rig.send(OLD, 0)
    rig.store.end_topic(TOPIC)
    rig.send(NEW, 1)
    rig.store.lives.save(rig.store.lives.snapshot())
    rig.store.delete_topic(TOPIC)
    rig.settle()
    assert rig.bodies() == NEW and rig.store.bounds(TOPIC, 0) == (3, 5)


def test_a_topic_made_again_before_its_files_are_gone_keeps_its_messages() -> None:
    rig = StoreRig()
    rig.send(OLD, 0)
    rig.store.end_topic(TOPIC)
    rig.send(NEW, 1)
    rig.store.lives.save(rig.store.lives.snapshot())
    assert rig.store.delete_topic(TOPIC) == 0 and rig.bodies() == NEW
    for disk in (rig.disk.survivor(keep_all), without_checkpoint(rig)):
        assert rig.next_life(disk).bodies() == NEW


def without_checkpoint(rig: StoreRig) -> CrashFileSystem:
    rig.store.flush()
    disk = rig.disk.survivor(keep_all)
    disk.remove_whole(f"{ROOT}/rmq_ray/checkpoint")
    return disk


@pytest.mark.parametrize("again", [False, True])
def test_queues_that_are_built_from_the_log_bring_nothing_back(again: bool) -> None:
    rig, _ = deleted()
    rig.send([b"x"], 5, topic="Kept")
    if again:
        rig.send(NEW, 1)
    disk = without_checkpoint(rig)
    for name in disk.list_dir(f"{ROOT}/consumequeue"):
        for file in disk.list_dir(f"{ROOT}/consumequeue/{name}/0"):
            disk.unlink(f"{ROOT}/consumequeue/{name}/0/{file}")
    after = rig.next_life(disk)
    assert after.bodies(topic="Kept") == [b"x"]
    assert after.bodies() == (NEW if again else [])
    assert after.send([b"f"], 9).base_queue_offset == (5 if again else 3)


@pytest.mark.parametrize("count", [2, 250])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_what_knows_nothing_of_deletions_may_write_the_next_topic_in_between(
    checkpoint: bool, count: int
) -> None:
    rig, _ = deleted()
    rig.store.flush()
    disk = rig.disk.survivor(keep_all)
    lives = TopicLives(ROOT, disk)
    lives.load()
    assert lives.begin(TOPIC, 0) == 3
    for name in disk.list_dir(f"{ROOT}/rmq_ray"):
        if name.startswith("topic_lives.json"):
            disk.unlink(f"{ROOT}/rmq_ray/{name}")
    between = rig.next_life(disk)
    bodies = [b"%d" % number for number in range(count)]
    assert between.send(bodies, 1).base_queue_offset == 0
    between.settle()
    between.store.flush()
    disk = between.disk.survivor(keep_all) if checkpoint else without_checkpoint(between)
    kept = TopicLives(ROOT, disk)
    kept.replace(lives.snapshot())
    kept.save(kept.snapshot())
    after = between.next_life(disk)
    for more in range(1, 4):  # and the next start finds it, too
        assert after.bodies() == bodies
        after.store.flush()
        after = after.next_life(after.disk.survivor(keep_all))
        bodies.append(b"more %d" % more)
        assert after.send(bodies[-1:], 1 + more).base_queue_offset == count + more - 1


def test_a_deletion_of_which_no_file_knows_when_the_power_fails_has_not_happened() -> None:
    rig = StoreRig()
    rig.send(OLD, 0)
    rig.store.flush()
    rig.store.end_topic(TOPIC)
    after = rig.next_life(rig.disk.survivor(keep_none, "boot-2"))
    assert after.bodies() == OLD and after.send(NEW, 1).base_queue_offset == 3


def test_a_deletion_that_is_on_disk_stands_though_its_files_were_not_removed() -> None:
    rig = StoreRig()
    rig.send(OLD, 0)
    rig.store.flush()
    rig.store.end_topic(TOPIC)
    rig.store.lives.save(rig.store.lives.snapshot())
    after = rig.next_life(rig.disk.survivor(keep_none, "boot-2"))
    assert after.bodies() == [] and TOPIC not in after.store.topics()
    assert after.report.way == "our checkpoint"
    assert after.send(NEW, 1).base_queue_offset == 3


def test_what_is_written_after_a_log_lost_its_end_is_newer_than_every_deletion() -> None:
    rig = StoreRig()
    rig.send(OLD, 0)
    rig.store.flush()
    rig.send([b"lost"] * 20, 1, topic="Other")
    rig.delete()
    disk = rig.disk.survivor(keep_none, "boot-2")
    after = rig.next_life(disk)
    assert after.store.end_offset < rig.store.end_offset and after.bodies() == []
    assert after.send(NEW, 2).base_queue_offset == 3
    assert after.bodies() == NEW
    after.store.flush()
    assert after.next_life(after.disk.survivor(keep_none, "boot-3")).bodies() == NEW


def test_a_key_of_a_deleted_topic_costs_no_read_of_its_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, _ = deleted()
    rig.send(NEW, 1, **KEYED)
    read: list[int] = []
    record_at = LogReader.record_at

    def noted(reader: LogReader, log_offset: int, limit: int) -> bytes | None:
        read.append(log_offset)
        return record_at(reader, log_offset, limit)

    monkeypatch.setattr(LogReader, "record_at", noted)
    assert len(rig.store.query(TOPIC, "k", 10, 0, 1 << 60)) == len(read) == len(NEW)


def test_a_second_deletion_keeps_the_ends_of_queues_that_the_second_topic_did_not_use() -> None:
    rig = StoreRig()
    rig.send(OLD, 0)
    rig.send(OLD, 1, queue_id=1)
    rig.delete()
    rig.send(NEW, 2)
    rig.delete()
    assert [rig.store.bounds(TOPIC, queue_id)[0] for queue_id in (0, 1)] == [5, 3]


def unaware(rig: StoreRig, bodies: list[bytes]) -> CrashFileSystem:
    """The store after something served it that knows no deletions, as it is when that stops."""
    rig.store.shutdown()
    disk = rig.disk.survivor(keep_all)
    known = {path: disk.read_whole(path) for path in (FILE, FILE + ".bak") if disk.exists(path)}
    for path in known:
        disk.remove_whole(path)
    other = rig.next_life(disk)
    assert other.send(bodies, 50).base_queue_offset == 0
    other.store.shutdown()
    disk = other.disk.survivor(keep_all)
    for path, content in known.items():
        disk.write_whole(path, content)
    return disk


@pytest.mark.parametrize("bodies", [NEW, NEW * 4])  # fewer than the old ones, and more
@pytest.mark.parametrize("keeps_checkpoint", [True, False])
def test_what_something_wrote_that_knows_no_deletions_is_there_and_stays(
    bodies: list[bytes], keeps_checkpoint: bool
) -> None:
    rig, log_offset = deleted()
    rig.send([b"x"], 5, topic="Kept")
    disk = unaware(rig, bodies)
    if not keeps_checkpoint:
        disk.remove_whole(f"{ROOT}/rmq_ray/checkpoint")
    for _ in range(3):
        rig = rig.next_life(disk)
        assert rig.bodies() == bodies and rig.store.record_at(log_offset) is None
        assert (rig.report.way == "our checkpoint") is keeps_checkpoint
        keeps_checkpoint = True
        rig.store.shutdown()
        disk = rig.disk.survivor(keep_all)
    rig = rig.next_life(disk)
    end = rig.send([b"f"], 60).base_queue_offset
    assert end == len(bodies) and rig.bodies() == [*bodies, b"f"]
    rig.delete()
    assert rig.send([b"g"], 61).base_queue_offset == max(end + 1, 3) and rig.bodies() == [b"g"]
    assert rig.next_life(rig.disk.survivor(keep_all)).bodies() == [b"g"]


def test_queues_that_went_with_such_a_topic_are_built_from_the_log() -> None:
    rig, _ = deleted()
    disk = unaware(rig, NEW)
    for file in disk.list_dir(f"{ROOT}/consumequeue/{TOPIC}/0"):
        disk.unlink(f"{ROOT}/consumequeue/{TOPIC}/0/{file}")
    after = rig.next_life(disk)
    assert after.bodies() == NEW and after.report.way.startswith("consume queues are missing")


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_a_log_that_lost_the_end_of_a_deleted_topic_goes_on_behind_its_last_offset(
    with_checkpoint: bool,
) -> None:
    """The queue's old files are there, as the topic was made again before they were removed."""
    rig = StoreRig()
    rig.send(OLD[:2], 0)
    rig.store.flush()
    rig.send(OLD[2:], 1)
    rig.store.end_topic(TOPIC)
    rig.store.lives.save(rig.store.lives.snapshot())
    rig.send(NEW, 2)
    assert rig.store.delete_topic(TOPIC) == 0
    torn = -1 if with_checkpoint else 2 * ENTRY_BYTES  # then the check of the queue ends there

    def keep(_number: int, change: Change) -> bool:
        return "/consumequeue/" in change.path and change.position != torn

    disk = rig.disk.survivor(keep, "boot-2")
    if not with_checkpoint:
        disk.remove_whole(f"{ROOT}/rmq_ray/checkpoint")
    after = rig.next_life(disk)
    assert after.store.end_offset < rig.store.end_offset and after.bodies() == []
    assert after.send([b"f"], 3).base_queue_offset == 3
    for boot in ("boot-3", "boot-4"):
        assert after.bodies() == [b"f"]
        after = after.next_life(after.disk.survivor(keep_all, boot))


def test_lives_are_what_the_file_and_a_master_say() -> None:
    lives = {"orders": Life(1234, {0: 3, 11: 5}), "refunds": Life(0, {})}
    assert decode_lives(encode_lives(lives)) == lives
    assert decode_lives({"topicConfigTable": {}}) == {}


def test_a_file_that_cannot_be_read_stops_the_start() -> None:
    rig, _ = deleted()
    for path in (FILE, FILE + ".bak"):
        rig.disk.write_whole(path, b"{")
    with pytest.raises(StoreCorrupt, match=r"topic_lives\.json"):
        rig.next_life(rig.disk.survivor(keep_all))


def test_beyond_the_limit_only_those_are_forgotten_of_which_the_log_has_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_lives, "LIVES_MAX", 2)
    lives = TopicLives(ROOT, CrashFileSystem())
    for number in range(1, 5):
        lives.end(f"t{number}", 10 * number, {0: 1}, log_begin=15)
    assert set(lives.snapshot()) == {"t2", "t3", "t4"}
