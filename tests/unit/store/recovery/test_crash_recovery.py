"""What a store holds after any stop (promises: F1, F2; docs/file-format.md#recovery). A layer
that drops unsynced writes stands in for the disk.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from rmq_ray.config import FlushMode
from rmq_ray.errors import DuplicateMismatch, StoreMissing
from rmq_ray.model.ids import FrameId
from rmq_ray.model.pulling import GetMessageStatus
from rmq_ray.store.front.message_store import StoredMessage
from rmq_ray.store.recovery.recovery import RecoveryReport
from tests.support.brokers.store_rig import ROOT, StoreRig, small_config
from tests.support.faults.crash_fs import Change, CrashFileSystem, keep_all, keep_none

LOG = f"{ROOT}/commitlog/{0:020d}"
MODES = list(FlushMode)
OLD = [b"old-%d" % n for n in range(4)]
LAST = [b"last-%d" % n * 3 for n in range(5)]


def rig_of(mode: FlushMode, **changes: object) -> StoreRig:
    return StoreRig(config=small_config(flush=mode, **changes))


def check_dense(rig: StoreRig, queue_id: int = 0) -> None:
    """Queue offsets 0, 1, 2, ... and log offsets that rise."""
    records = rig.records(queue_id)
    low, high = rig.store.bounds("TopicTest", queue_id)
    assert [record.queue_offset for record in records] == list(range(low, high))
    assert all(first.log_offset < second.log_offset for first, second in pairwise(records))


def check_goes_on(rig: StoreRig, before: list[bytes]) -> None:
    """Append, die, recover: what was there stays, what is new follows, and a second recovery
    changes nothing.
    """
    rig.send([b"new-1", b"new-2"], 900)
    rig.settle()
    rig.store.flush()
    assert rig.bodies() == [*before, b"new-1", b"new-2"]
    again = rig.next_life(rig.disk.survivor(keep_none, "boot-9"))
    assert again.bodies() == [*before, b"new-1", b"new-2"]
    check_dense(again)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
@pytest.mark.parametrize("queue_survives", [True, False])
def test_a_frame_torn_at_any_byte_is_whole_or_not_there(
    mode: FlushMode, boot: str, queue_survives: bool
) -> None:
    rig = rig_of(mode)
    rig.send(OLD, 0)
    rig.settle()
    rig.store.flush()
    result = rig.send(LAST, 1)
    length = result.end_log_offset - result.base_log_offset
    for cut in range(length + 1):

        def keep(_number: int, change: Change, cut: int = cut) -> bool | int:
            return cut if "commitlog" in change.path else queue_survives

        after = rig.next_life(rig.disk.survivor(keep, boot))
        expected = [*OLD, *LAST] if cut == length else OLD
        assert after.bodies() == expected, f"cut at byte {cut} of {length}"
        assert after.store.end_offset == (
            result.end_log_offset if cut == length else result.base_log_offset
        )
        if cut % 211 == 0 or cut == length:
            check_goes_on(after, expected)


@pytest.mark.parametrize("mode", MODES)
def test_dropping_any_one_unsynced_write_keeps_a_prefix_of_whole_frames(mode: FlushMode) -> None:
    rig = rig_of(mode)
    frames = [
        [b"f%d-%d" % (number, row) * 5 for row in range(1 + number % 4)] for number in range(12)
    ]
    rig.send(OLD, 100)
    rig.settle()
    rig.store.flush()
    for number, bodies in enumerate(frames):
        rig.send(bodies, number)
        if mode is FlushMode.ASYNC_FLUSH and number == 5:
            rig.store.append_message(StoredMessage("TopicTest", 0, b"single", "KEYS\x01k"))
    prefixes = [list(OLD)]
    for number, bodies in enumerate(frames):
        prefixes.append([*prefixes[-1], *bodies])
        if mode is FlushMode.ASYNC_FLUSH and number == 5:
            prefixes.append([*prefixes[-1], b"single"])
    count = len(rig.disk.unsynced())
    assert count >= 12
    for dropped in range(count):
        for names in (True, False):
            after = rig.next_life(
                rig.disk.survivor(
                    lambda number, _change, dropped=dropped: number != dropped,
                    "boot-2",
                    names=names,
                )
            )
            assert after.bodies() in prefixes, f"without write {dropped}"
            check_dense(after)
        check_goes_on(after, after.bodies())


@pytest.mark.parametrize("mode", MODES)
def test_zero_filled_extents_cut_the_log_where_they_begin(mode: FlushMode) -> None:
    rig = rig_of(mode)
    rig.send(OLD, 0)
    rig.settle()
    rig.store.flush()
    rig.send(LAST, 1)
    rig.send([b"x" * 9000], 2)
    log = [change for change in rig.disk.unsynced() if "commitlog" in change.path]
    base = rig.store.end_offset
    for page in range(0, base + 4096, 4096):
        disk = rig.disk.survivor(keep_all, "boot-2")
        inode = disk.names[LOG]
        kept = log[0].position
        for content in (inode.current, inode.stable):
            begin, end = max(page, kept), min(page + 4096, base)
            if begin < end:
                content[begin:end] = bytes(end - begin)
        after = rig.next_life(disk)
        assert after.bodies() in (OLD, [*OLD, *LAST], [*OLD, *LAST, b"x" * 9000])
        check_goes_on(after, after.bodies())


def test_what_sync_flush_acknowledged_survives_every_power_loss() -> None:
    rig = rig_of(FlushMode.SYNC_FLUSH)
    acknowledged: list[bytes] = []
    for number in range(8):
        bodies = [b"%d-%d" % (number, row) for row in range(3)]
        result = rig.send(bodies, number)
        assert rig.store.visible_offset <= result.base_log_offset, "visible before it was durable"
        lost = rig.next_life(rig.disk.survivor(keep_none, "boot-2"))
        assert lost.bodies() == acknowledged
        rig.settle()
        assert rig.store.durable_offset == result.end_log_offset == rig.durable[-1]
        acknowledged += bodies
        survived = rig.next_life(rig.disk.survivor(keep_none, "boot-2"))
        assert survived.bodies() == acknowledged
        assert survived.store.epoch == 1, "nothing that was seen is gone"


def test_async_flush_loses_nothing_when_the_process_dies() -> None:
    rig = rig_of(FlushMode.ASYNC_FLUSH)
    for number in range(30):
        rig.send([b"%d" % number] * 7, number, queue_id=number % 3)
    after = rig.next_life(rig.disk.survivor(keep_all))
    assert [len(after.bodies(queue_id)) for queue_id in range(3)] == [70, 70, 70]
    assert after.report.clean is False and after.report.cut_bytes == 0


def test_what_a_new_life_shows_survives_the_next_power_loss() -> None:
    rig = rig_of(FlushMode.SYNC_FLUSH)
    rig.send(OLD, 0)
    rig.settle()
    rig.store.flush()
    rig.send(LAST, 1)
    shown = rig.next_life(rig.disk.after_kill())
    assert shown.bodies() == [*OLD, *LAST], "the page cache still had it"
    assert shown.next_life(shown.disk.survivor(keep_none, "boot-2")).bodies() == [*OLD, *LAST]


def test_a_cut_leaves_nothing_that_could_be_taken_for_a_record_later() -> None:
    """A frame is torn; another whose first record has the same size takes its place; the old second
    record must not come back.
    """
    rig = rig_of(FlushMode.ASYNC_FLUSH)
    rig.send(OLD, 0)
    rig.store.flush()
    rig.send([b"AAAA"] * 6, 1)
    total = sum(len(change.data or b"") for change in rig.disk.unsynced("commitlog"))
    torn = rig.next_life(
        rig.disk.survivor(
            lambda _n, change: total - 1 if "commitlog" in change.path else True, "boot-2"
        )
    )
    assert torn.bodies() == OLD and torn.report.cut_bytes > 0
    torn.send([b"BBBB"], 2)
    after = torn.next_life(torn.disk.survivor(keep_all, "boot-3"))
    assert after.bodies() == [*OLD, b"BBBB"]


@pytest.mark.parametrize("keep", [keep_none, keep_all])
def test_a_recovery_that_loses_power_starts_again(keep: object) -> None:
    rig = rig_of(FlushMode.ASYNC_FLUSH)
    rig.send(OLD, 0)
    rig.store.flush()
    rig.send(LAST, 1)
    torn = rig.disk.survivor(
        lambda _n, change: 500 if "commitlog" in change.path else True, "boot-2"
    )
    first = rig.next_life(torn)
    second = first.next_life(torn.survivor(keep, "boot-3"))  # type: ignore[arg-type]
    assert first.bodies() == second.bodies() == OLD
    assert second.report.end == first.report.end


def test_after_a_clean_stop_nothing_is_read_again() -> None:
    rig = rig_of(FlushMode.ASYNC_FLUSH)
    rig.send(OLD, 0)
    rig.store.shutdown()
    after = rig.next_life(rig.disk.survivor(keep_none, "boot-2"))
    assert (after.report.clean, after.report.records, after.report.way, after.store.epoch) == (
        True,
        0,
        "our checkpoint",
        1,
    )
    assert after.bodies() == OLD


def test_without_our_checkpoint_the_log_tells_the_same() -> None:
    rig = rig_of(FlushMode.ASYNC_FLUSH)
    for number in range(6):
        rig.send(
            [b"%d" % number * 40] * 5,
            number,
            queue_id=number % 2,
            head=f"TAGS\x01T{number}\x02KEYS\x01k{number}",
        )
    rig.store.append_message(
        StoredMessage("Other", 1, b"single", "KEYS\x01s1 s2", born_host=("fe80::1", 7))
    )
    rig.store.flush()
    disk = rig.disk.survivor(keep_all, "boot-2")
    for path in [
        path
        for path in disk.names
        if "consumequeue" in path or "/index/" in path or path.endswith("rmq_ray/checkpoint")
    ]:
        del disk.names[path], disk.stable_names[path]
    after = rig.next_life(disk)
    assert after.report.records == 31 and after.report.way == "RocketMQ's rule"
    for queue_id in (0, 1):
        assert after.records(queue_id) == rig.records(queue_id)
    assert (
        after.store.get_messages(
            "TopicTest", 1, 0, 100, 1 << 20, frozenset([rig.arrivals[3][3][0]])
        ).count
        == 5
    )
    for topic, key, count in (
        ("TopicTest", "k3", 5),
        ("Other", "s1", 1),
        ("Other", "s2", 1),
        ("Other", "k3", 0),
    ):
        assert (
            len(after.store.query(topic, key, 32, 0, 1 << 60))
            == len(rig.store.query(topic, key, 32, 0, 1 << 60))
            == count
        )


def test_a_missing_queue_is_built_again_from_the_beginning() -> None:
    rig = rig_of(FlushMode.ASYNC_FLUSH)
    for number in range(4):
        rig.send([b"%d" % number] * 60, number, queue_id=number % 2)
    rig.store.shutdown()
    disk = rig.disk.survivor(keep_all)
    for path in [path for path in disk.names if "consumequeue/TopicTest/1/" in path]:
        del disk.names[path], disk.stable_names[path]
    disk.directories.discard(f"{ROOT}/consumequeue/TopicTest/1")
    after = rig.next_life(disk)
    assert (len(after.bodies(0)), len(after.bodies(1))) == (120, 120)
    assert after.report.way == "consume queues are missing: everything is read"


def test_a_checkpoint_of_another_log_is_not_believed() -> None:
    rig = rig_of(FlushMode.ASYNC_FLUSH)
    rig.send(OLD, 0)
    rig.store.shutdown()
    other = rig_of(FlushMode.ASYNC_FLUSH)
    other.send([b"other" * 30] * 4, 0)
    other.store.shutdown()
    disk = rig.disk.survivor(keep_all)
    for path in [path for path in disk.names if "/commitlog/" in path or "/consumequeue/" in path]:
        disk.names[path] = disk.stable_names[path] = other.disk.names[path]
    after = rig.next_life(disk)
    assert after.bodies() == [b"other" * 30] * 4
    assert after.report.way == "RocketMQ's rule"


def test_a_log_that_is_shorter_than_what_was_durable_is_refused() -> None:
    rig = rig_of(FlushMode.SYNC_FLUSH)
    rig.send(OLD, 0)
    rig.settle()
    rig.store.flush()
    disk = rig.disk.survivor(keep_none)
    del disk.names[LOG], disk.stable_names[LOG]
    with pytest.raises(StoreMissing, match="were durable; mount the right disk"):
        rig.next_life(disk)


def broken_at(rig: StoreRig, log_offset: int, at: int, boot: str = "boot-2") -> CrashFileSystem:
    disk = rig.disk.survivor(keep_all, boot)
    disk.flip(LOG, log_offset + at)
    return disk


@pytest.mark.parametrize("at", [0, 3, 4, 8, 30, 84, 87, 90, 92, 93, 103])
def test_a_broken_record_below_the_durable_position_costs_only_itself(at: int) -> None:
    rig = rig_of(FlushMode.ASYNC_FLUSH)
    results = [rig.send([b"body%d" % number], number) for number in range(5)]
    rig.store.flush()
    disk = broken_at(rig, results[2].base_log_offset, at)
    for path in [path for path in disk.names if "consumequeue" in path]:
        del disk.names[path], disk.stable_names[path]
    after = rig.next_life(disk)
    low, high = after.store.bounds("TopicTest", 0)
    assert (low, high) == (0, 5)
    assert after.bodies() == [b"body%d" % number for number in (0, 1, 3, 4)]
    assert [entry[0] for entry in after.report.quarantined] == [results[2].base_log_offset]
    assert after.store.status()["quarantined"] == 1
    assert disk.read_whole(f"{ROOT}/rmq_ray/quarantine").startswith(
        b"%d " % results[2].base_log_offset
    )
    assert after.send([b"more"], 77).base_queue_offset == 5


def test_a_flipped_bit_in_a_body_costs_one_record_of_a_read() -> None:
    for count in (5, 40):
        rig = rig_of(FlushMode.ASYNC_FLUSH)
        rig.send([b"body%03d" % number for number in range(count)], 0)
        victim = rig.records()[3]
        rig.disk.flip(LOG, victim.log_offset + 90)
        rig.store.opened.reader.recent = None  # the newest small frame would come from memory
        assert rig.bodies() == [b"body%03d" % number for number in range(count) if number != 3]
        assert rig.store.record_at(victim.log_offset) is None
        assert rig.store.status()["quarantined"] == 1
        alone = rig.store.get_messages("TopicTest", 0, 3, 1, 1 << 20, None)
        assert (alone.status, alone.count, alone.next_offset) == (
            GetMessageStatus.MESSAGE_WAS_REMOVING,
            0,
            4,
        )


def test_a_flipped_bit_above_the_checkpoint_does_not_cut_what_follows_when_no_power_was_lost() -> (
    None
):
    rig = rig_of(FlushMode.ASYNC_FLUSH)
    rig.send(OLD, 0)
    rig.store.flush()
    victim = rig.send([b"victim"], 1)
    rig.send(LAST, 2)
    after = rig.next_life(broken_at(rig, victim.base_log_offset, 90, "boot-1"))
    assert after.bodies() == [*OLD, *LAST]
    lost = rig.next_life(broken_at(rig, victim.base_log_offset, 90, "boot-2"))
    assert lost.bodies() == OLD, "after a power loss the rest was never synced: a suffix may go"


def test_an_incomplete_frame_that_valid_records_follow_stands_and_is_counted() -> None:
    rig = rig_of(FlushMode.ASYNC_FLUSH)
    first = rig.send([b"one", b"two", b"three"], 0)
    rig.send(LAST, 1)
    rig.store.flush()
    disk = rig.disk.survivor(keep_all, "boot-2")
    last_of_frame = rig.records()[2]
    disk.flip(LOG, last_of_frame.log_offset + 90)
    del disk.names[f"{ROOT}/consumequeue/TopicTest/0/{0:020d}"]
    after = rig.next_life(disk)
    assert after.bodies() == [b"one", b"two", *LAST]
    assert after.report.incomplete_frames == 1
    assert first.count == 3


def test_epochs_rise_with_unclean_starts_under_async_flush_only() -> None:
    for mode, after_kill, after_clean in (
        (FlushMode.ASYNC_FLUSH, 2, 2),
        (FlushMode.SYNC_FLUSH, 1, 1),
    ):
        rig = rig_of(mode)
        rig.send(OLD, 0)
        rig.settle()
        assert rig.store.epochs == ((1, 0),)
        killed = rig.next_life(rig.disk.survivor(keep_all))
        assert killed.store.epoch == after_kill
        killed.store.shutdown()
        assert killed.next_life(killed.disk.survivor(keep_all)).store.epoch == after_clean


def test_windows_of_repeats_come_back_from_checkpoint_and_log() -> None:
    rig = rig_of(FlushMode.ASYNC_FLUSH)
    results = [rig.send([b"%d" % number] * (1 + number), number) for number in range(3)]
    rig.store.flush()
    results += [rig.send([b"%d" % number] * (1 + number), number) for number in range(3, 6)]
    for disk in (rig.disk.survivor(keep_all), _without_checkpoint(rig.disk.survivor(keep_all))):
        after = rig.next_life(disk)
        for number, result in enumerate(results):
            again = after.send([b"%d" % number] * (1 + number), number)
            assert (
                again.repeat
                and again.base_queue_offset == result.base_queue_offset
                and again.end_log_offset == result.end_log_offset
            )
        assert len(after.bodies()) == 21


def test_without_our_checkpoint_frames_that_may_be_sent_again_are_still_known() -> None:
    rig = rig_of(FlushMode.ASYNC_FLUSH, segment_bytes=4096)
    assert rig.store._checkpointer is not None
    for number in range(15):
        rig.send([b"%d" % number * 1_000], number)
        rig.clock.advance_ms(1_000)
        rig.store._checkpointer.write(thorough=True)  # RocketMQ's file, too
    assert rig.store.end_offset > 4 * 4096
    after = rig.next_life(_without_checkpoint(rig.disk.survivor(keep_all)))
    assert after.report.way == "RocketMQ's rule"
    assert all(after.send([b"%d" % number * 1_000], number).repeat for number in range(15))


def _without_checkpoint(disk: CrashFileSystem) -> CrashFileSystem:
    path = f"{ROOT}/rmq_ray/checkpoint"
    del disk.names[path], disk.stable_names[path]
    return disk


@pytest.mark.parametrize("flush", [FlushMode.ASYNC_FLUSH, FlushMode.SYNC_FLUSH])
def test_without_any_checkpoint_a_flipped_bit_in_an_old_segment_costs_its_record_only(
    flush: FlushMode,
) -> None:
    """Nobody knows what was on disk; what lay in the air when the power went is in the last one."""
    rig = rig_of(flush, segment_bytes=4096)
    bodies = [b"%03d" % number * 30 for number in range(60)]
    results = []
    for number, body in enumerate(bodies):
        results.append(rig.send([body], number))
        rig.settle()
    rig.store.flush()
    assert results[-1].base_log_offset > 3 * 4096
    disk = _without_checkpoint(broken_at(rig, results[5].base_log_offset, 90, "boot-2"))
    disk.names.pop(f"{ROOT}/checkpoint", None)
    after = rig.next_life(disk)
    assert after.bodies() == [*bodies[:5], *bodies[6:]]
    last = results[-2].base_log_offset
    disk = _without_checkpoint(rig.disk.survivor(keep_all, "boot-2"))
    start = last // 4096 * 4096
    disk.flip(f"{ROOT}/commitlog/{start:020d}", last - start + 90)
    assert rig.next_life(disk).bodies() == bodies[:-2], "a suffix of the last segment may go"


def test_recovery_crosses_segments_and_their_blank_ends() -> None:
    rig = rig_of(FlushMode.ASYNC_FLUSH, segment_bytes=4096)
    sent: list[bytes] = []
    for number in range(40):
        bodies = [b"%03d-%d" % (number, row) * 8 for row in range(1 + number % 3)]
        sent += bodies
        rig.send(bodies, number)
    assert rig.store.end_offset > 4 * 4096
    for disk in (
        rig.disk.survivor(keep_all),
        _without_checkpoint(rig.disk.survivor(keep_all, "boot-2")),
    ):
        after = rig.next_life(disk)
        assert after.bodies() == sent == rig.bodies()
        assert after.store.end_offset == rig.store.end_offset
        check_goes_on(after, sent)


def test_a_topic_that_was_deleted_does_not_come_back_and_one_made_anew_goes_on_behind() -> None:
    rig = rig_of(FlushMode.ASYNC_FLUSH)
    rig.send(OLD, 0)
    rig.send(OLD, 1, topic="Kept")
    rig.store.flush()
    assert rig.delete() == 1 and rig.delete() == 0
    gone = rig.next_life(rig.disk.survivor(keep_all))
    assert gone.store.topics() == {"Kept"} and gone.report.way == "our checkpoint", (
        "a restart before the next checkpoint knows"
    )
    rig.store.flush()
    assert not [name for name in rig.disk.list_dir(f"{ROOT}/rmq_ray") if "deleted" in name]
    assert rig.next_life(rig.disk.survivor(keep_none, "boot-2")).store.topics() == {"Kept"}
    assert rig.send(LAST, 2).base_queue_offset == len(OLD)
    for disk in (rig.disk.survivor(keep_all), _without_checkpoint(rig.disk.survivor(keep_all))):
        after = rig.next_life(disk)
        assert after.bodies() == LAST and after.bodies(topic="Kept") == OLD


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_a_single_message_with_a_frame_id_is_known_after_a_crash(with_checkpoint: bool) -> None:
    rig = rig_of(FlushMode.ASYNC_FLUSH)
    message = StoredMessage(
        "TopicTest", 0, b"half", "TRAN_MSG\x01true\x02KEYS\x01k", born_host=("2001:db8::1", 7)
    )
    first = rig.store.append_message(message, FrameId(bytes(16), 3))
    assert rig.store.append_message(message, FrameId(bytes(16), 3)).repeat
    if with_checkpoint:
        rig.store.flush()
    after = rig.next_life(rig.disk.survivor(keep_all))
    again = after.store.append_message(message, FrameId(bytes(16), 3))
    assert again.repeat and (
        again.base_queue_offset,
        again.base_log_offset,
        again.end_log_offset,
    ) == (0, 0, first.end_log_offset)
    with pytest.raises(DuplicateMismatch):
        after.store.append_message(StoredMessage("TopicTest", 0, b"other"), FrameId(bytes(16), 3))
    assert (
        after.bodies() == [b"half"]
        and len(after.store.query("TopicTest", "k", 10, 0, 1 << 60)) == 1
    )


def test_a_report_says_what_was_done() -> None:
    rig = rig_of(FlushMode.ASYNC_FLUSH)
    assert rig.report == RecoveryReport(epoch=1)
    rig.send(OLD, 0)
    after = rig.next_life(rig.disk.survivor(keep_all))
    report = after.report
    assert (
        report.clean,
        report.begin,
        report.end,
        report.records,
        report.epoch,
        report.epoch_raised,
    ) == (False, 0, rig.store.end_offset, 4, 2, True)
