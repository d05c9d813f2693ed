"""A record that names a wrong place, since a bit of its topic, queue or queue offset changed, keeps
no other one out of its own when queues are built again, and a copy's bytes make it whole.
"""

from __future__ import annotations

import pytest

from rmq_ray.store.recovery import recovery
from rmq_ray.store.recovery.queue_runs import LONE_GAP_MAX, Run, judge_first_run, judge_run
from rmq_ray.store.replication.follower_store import FollowerStore
from tests.support.brokers.store_rig import StoreRig, small_config
from tests.support.faults.crash_fs import CrashFileSystem
from tests.unit.store.replication.test_mending import bodies, copied, filled, good, middle, opened

QUEUE = 1
TOPIC = b"TopicTest"
FIELDS = {"queue id": (12, 16), "queue offset": (20, 28), "system flags": (36, 40)}


@pytest.fixture(scope="module")
def rig() -> StoreRig:
    return filled()


def bits(rig: StoreRig, field: str, place: tuple[int, int]) -> list[tuple[int, int]]:
    """(byte of the record, bit)."""
    at = good(rig, place).index(TOPIC)
    begin, end = (at, at + len(TOPIC)) if field == "topic" else FIELDS[field]
    return [(byte, bit) for byte in range(begin, end) for bit in range(8)]


def change(
    rig: StoreRig, store: FollowerStore, place: tuple[int, int], byte: int, bit: int
) -> None:
    segment = store.opened.chain.find(place[0])
    assert segment is not None
    segment.write(bytes([good(rig, place)[byte] ^ 1 << bit]), place[0] + byte)


def built_again(rig: StoreRig, place: tuple[int, int], byte: int, bit: int) -> FollowerStore:
    """A copy, killed, whose record has another bit, and whose queues are built from the log."""
    disk = CrashFileSystem()
    store = copied(rig, disk)
    change(rig, store, place, byte, bit)
    store.flush()
    after = disk.after_kill()
    for path in [path for path in after.names if "/consumequeue/" in path]:
        after.unlink(path)
    return opened(after)


def mend_all(rig: StoreRig, store: FollowerStore) -> None:
    """With the bytes of a sound copy; a reader may find more then."""
    while stretches := store.broken_stretches():
        for offset, size in stretches:
            assert store.mend(offset, good(rig, (offset, size)))
        bodies(store)


def missing(rig: StoreRig, store: FollowerStore) -> list[bytes]:
    return [
        body
        for mine, theirs in zip(bodies(store), bodies(rig.store), strict=True)
        for body in set(theirs) - set(mine)
    ]


@pytest.mark.parametrize("buffer_bytes", [8 << 20, 600])
@pytest.mark.parametrize(
    ("field", "offset"), [*((field, 3) for field in [*FIELDS, "topic"]), ("queue offset", 4)]
)
def test_a_wrong_bit_costs_its_record_only_and_a_copy_mends_it(
    rig: StoreRig, field: str, offset: int, buffer_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "BUFFER_BYTES", buffer_bytes)
    place, whole = middle(rig, QUEUE, offset), bodies(rig.store)
    lost = 0
    for byte, bit in bits(rig, field, place):
        store = built_again(rig, place, byte, bit)
        if not missing(rig, store):
            assert field == "system flags", (byte, bit)
            continue
        lost += 1
        assert missing(rig, store) == [whole[QUEUE][offset]], (byte, bit)
        mend_all(rig, store)
        assert bodies(store) == whole and not store.broken_stretches(), (byte, bit)
    assert lost


@pytest.mark.parametrize("buffer_bytes", [8 << 20, 600])
def test_a_first_record_with_a_wrong_offset_takes_no_queue(
    rig: StoreRig, buffer_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "BUFFER_BYTES", buffer_bytes)
    place, first = middle(rig, QUEUE, 0), bodies(rig.store)[QUEUE][0]
    for bit in range(64):
        store = built_again(rig, place, 27 - bit // 8, bit % 8)
        assert missing(rig, store) == [first], bit
        assert store.bounds("TopicTest", QUEUE)[1] == rig.store.bounds("TopicTest", QUEUE)[1]


@pytest.mark.parametrize("buffer_bytes", [8 << 20, 600])
def test_of_two_records_for_one_offset_a_copy_tells_which_is_right(
    buffer_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues that are sent to in turn have the same offsets: one bit is another queue's next."""
    monkeypatch.setattr(recovery, "BUFFER_BYTES", buffer_bytes)
    rig = StoreRig(config=small_config())
    for number in range(30):
        rig.send([b"%d" % number * 30], sequence=number, queue_id=number % 3)
    whole = bodies(rig.store)
    for queue_id, bit in ((0, 0), (1, 0), (0, 1), (2, 1)):
        store = built_again(rig, middle(rig, queue_id, 4), 15, bit)
        assert len(missing(rig, store)) <= 2
        mend_all(rig, store)
        assert bodies(store) == whole, (queue_id, bit)


def test_the_last_record_of_a_queue_with_a_wrong_offset_leaves_the_others_where_they_are(
    rig: StoreRig,
) -> None:
    last = rig.store.bounds("TopicTest", QUEUE)[1] - 1
    place, body = middle(rig, QUEUE, last), bodies(rig.store)[QUEUE][last]
    for bit in range(64):
        if last ^ 1 << bit:  # a last record that says 0 is one of a topic made anew
            store = built_again(rig, place, 27 - bit // 8, bit % 8)
            assert missing(rig, store) in ([], [body]), bit
            assert store.bounds("TopicTest", QUEUE)[1] <= last + LONE_GAP_MAX, bit


@pytest.mark.parametrize("field", ["queue id", "queue offset", "topic"])
@pytest.mark.parametrize("at_once", [1, 1_000])
def test_a_reader_finds_it_though_the_queues_entry_still_points_at_it(
    rig: StoreRig, field: str, at_once: int
) -> None:
    place, whole = middle(rig, QUEUE, 3), bodies(rig.store)
    for byte, bit in bits(rig, field, place):
        store = copied(rig, CrashFileSystem())
        change(rig, store, place, byte, bit)
        got = store.get_messages("TopicTest", QUEUE, 3, at_once, 1 << 24, None)
        assert (got.next_offset == 4 and not got.count) or at_once > 1, (byte, bit)
        assert missing(rig, store) == [whole[QUEUE][3]] and store.broken_stretches() == [place]
        assert store.mend(place[0], good(rig, place)) and bodies(store) == whole, (byte, bit)


def test_a_gap_is_listed_from_the_record_before_it_to_the_one_behind_it(rig: StoreRig) -> None:
    before, behind = middle(rig, QUEUE, 2), middle(rig, QUEUE, 4)
    store = built_again(rig, middle(rig, QUEUE, 3), 12, 0)
    assert store.broken_stretches() == [(sum(before), sum(behind) - sum(before))]
    fault = f"in it 1 records of queue TopicTest/{QUEUE} are missing"
    assert [entry[2] for entry in store.opened.quarantine.entries()] == [fault]


def test_a_sound_log_is_built_again_without_a_word(rig: StoreRig) -> None:
    place = middle(rig, QUEUE, 3)
    store = built_again(rig, place, 40, 0)  # its born time
    assert bodies(store) == bodies(rig.store) and not store.broken_stretches()


@pytest.mark.parametrize(
    ("first", "following", "explained", "is_last", "run"),
    [
        (7, None, False, False, Run.GOES_ON),
        (9, None, False, False, Run.OPEN),
        (9, None, True, False, Run.OPEN),
        (9, None, True, True, Run.GAP),
        (9, None, False, True, Run.GAP),
        (9, 12, False, False, Run.GAP),
        (9, 7, False, False, Run.STRAY),
        (9, 8, False, False, Run.STRAY),
        (9, 9, False, False, Run.STRAY),
        (9, 0, False, False, Run.GAP),  # the queue begins anew behind it
        (7 + LONE_GAP_MAX, None, False, True, Run.GAP),
        (8 + LONE_GAP_MAX, None, False, True, Run.STRAY),
        (8 + LONE_GAP_MAX, None, True, True, Run.GAP),
        (1 << 40, None, True, True, Run.STRAY),
        (1 << 40, (1 << 40) + 5, False, False, Run.STRAY),
        (3, None, False, False, Run.OPEN),
        (3, 7, False, False, Run.STRAY),
        (3, None, True, True, Run.STRAY),
        (0, None, False, False, Run.OPEN),
        (0, None, False, True, Run.ANEW),
        (0, 3, False, False, Run.ANEW),
        (0, 8, False, False, Run.STRAY),
    ],
)
def test_what_a_run_is_to_its_queue(
    first: int, following: int | None, explained: bool, is_last: bool, run: Run
) -> None:
    assert judge_run(7, first, following, explained=explained, is_last=is_last) is run


@pytest.mark.parametrize(
    ("first", "count", "following", "is_last", "run"),
    [
        (0, 1, None, False, Run.GOES_ON),
        (500, 2, None, False, Run.GOES_ON),  # what came before has left the log
        (500, 1, None, False, Run.OPEN),
        (500, 1, None, True, Run.GOES_ON),
        (500, 1, 502, False, Run.GOES_ON),
        (1 << 30, 1, 500, False, Run.STRAY),
        (-1, 2, None, True, Run.STRAY),
        (1 << 50, 2, None, True, Run.STRAY),
    ],
)
def test_what_a_run_is_to_a_queue_that_has_nothing(
    first: int, count: int, following: int | None, is_last: bool, run: Run
) -> None:
    assert judge_first_run(first, count, following, is_last=is_last) is run
