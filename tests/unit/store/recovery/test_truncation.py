"""The end of a copy's log is cut off: what is left is what both logs share, after a death or a
power loss at any step, too.
"""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.errors import LogDiverged, StoreFailed
from rmq_ray.files import DirectoryLock
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.recovery.restart import mark_truncation
from rmq_ray.store.replication.follower_store import FollowerStore, Lineage
from rmq_ray.store.replication.log_source import read_log
from tests.support.brokers.store_rig import BORN, HOST, make_frame, small_config
from tests.support.faults.crash_fs import CrashFileSystem, Fault

STEPS = ("pwrite", "datasync", "truncate", "rename", "sync_dir", "unlink")


class Killed(BaseException):
    """The process or the power is gone."""


class MortalDisk(CrashFileSystem):
    """Stops at one of the calls that change something."""

    def __init__(self, boot: str = "boot-1") -> None:
        super().__init__(boot)
        self.left: int | None = None
        self.made = 0

    def step(self, action: str) -> None:
        if action in STEPS:
            self.made += 1
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise Killed

    def take_fault(self, action: str, path: str) -> Fault | None:
        self.step(action)
        return super().take_fault(action, path)

    def unlink(self, path: str) -> None:
        self.step("unlink")
        super().unlink(path)

    def lock_directory(self, path: str) -> DirectoryLock:
        return super().lock_directory(path)


def opened(disk: CrashFileSystem, epoch: int | None, create: bool = False) -> MessageStore:
    """A follower's store, or that of the master of ``epoch``."""
    kind = FollowerStore if epoch is None else MessageStore
    store = kind(
        small_config(),
        ManualClock(),
        broker_name="broker-a",
        store_host=HOST,
        files=disk,
        new_epoch=epoch,
    )
    store.open(create)
    store.recover()
    store.start(lambda _position: None, threads=False)
    return store


def send(store: MessageStore, numbers: range, body: bytes) -> None:
    for number in numbers:
        records, sizes = make_frame(
            [body + b"%d-%d" % (number, row) * 30 for row in range(number % 7 + 1)],
            sequence=number,
            queue_id=number % 3,
        )
        store.append_frame(records, sizes, BORN)


def lineage(store: MessageStore, log: str) -> Lineage:
    return Lineage(log, store.epochs, store.begin_offset, 65_536)


def copy(source: MessageStore, target: FollowerStore, until: int | None = None) -> None:
    while target.end_offset < (end := source.end_offset if until is None else until):
        target.append_raw(
            target.end_offset,
            read_log(source.readable(), target.end_offset, min(1 << 20, end - target.end_offset)),
        )
        target.advance(target.end_offset)


def log_bytes(store: MessageStore) -> bytes:
    return b"".join(
        segment.read(segment.start, 65_536) for segment in store.opened.chain.segments()
    )[: store.end_offset - store.begin_offset]


class Parted:
    """``old`` was master of epoch 2, and follows again; ``new`` is master of epoch 3 with the log
    of epoch 1 up to ``point``.
    """

    def __init__(self, frames_lost: int = 12) -> None:
        first, self.disk, other = CrashFileSystem(), MortalDisk(), CrashFileSystem()
        other.random = 7
        master = opened(first, 1, create=True)
        self.log = master.identity
        send(master, range(28), b"shared")
        self.point = master.end_offset
        for disk in (self.disk, other):
            slave = opened(disk, None, create=True)
            assert isinstance(slave, FollowerStore)
            slave.follow(lineage(master, self.log))
            copy(master, slave)
            slave.shutdown()
        zombie = opened(self.disk, 2)
        send(zombie, range(100, 100 + frames_lost), b"lost")
        zombie.flush()
        zombie.opened.quarantine.add(self.point + 10, 20, "broken later")
        self.had = zombie.end_offset
        zombie.shutdown()
        self.new = opened(other, 3)
        send(self.new, range(200, 220), b"new")

    def joins(self, store: FollowerStore) -> None:
        """Follows the new master; afterwards both are the same."""
        store.follow(lineage(self.new, self.log))
        copy(self.new, store)
        assert log_bytes(store) == log_bytes(self.new) and store.epochs == self.new.epochs == (
            (1, 0),
            (3, self.point),
        )
        assert store.queues() == self.new.queues() and store.opened.quarantine.entries() == []
        for topic, queue_id in self.new.queues():
            high = self.new.bounds(topic, queue_id)[1]
            theirs, ours = (
                b"".join(s.get_messages(topic, queue_id, high - 20, 20, 1 << 20, None).parts)
                for s in (self.new, store)
            )
            assert ours == theirs != b""
        assert len(store.opened.windows.snapshot()) == 1
        assert {n for n, _ in store.opened.windows.snapshot()[0][3]} == {
            n for n, _ in self.new.opened.windows.snapshot()[0][3]
        }
        for number in (3, 27, 200, 219):
            key = self.key(number)
            assert (
                store.query("TopicTest", key, 8, 0, 1 << 60)
                == self.new.query("TopicTest", key, 8, 0, 1 << 60)
                != []
            )

    def key(self, number: int) -> str:
        """The unique key of some record of the frame with that number."""
        frames = dict(self.new.opened.windows.snapshot()[0][3])
        record = self.new.record_at(frames[number].log_offset)
        assert record is not None
        at = record.index(b"UNIQ_KEY\x01") + 9
        return record[at : at + 32].decode()


def follower(disk: CrashFileSystem) -> FollowerStore:
    store = opened(disk, None)
    assert isinstance(store, FollowerStore)
    return store


@pytest.mark.parametrize("frames_lost", [1, 25, 400])
def test_what_no_elected_master_has_is_removed_and_the_rest_goes_on(frames_lost: int) -> None:
    parted = Parted(frames_lost)
    store = follower(parted.disk)
    assert store.end_offset == parted.had
    with pytest.raises(LogDiverged):
        store.follow(lineage(parted.new, parted.log))
    assert store.truncate(parted.point) == parted.had - parted.point
    assert (
        store.end_offset == store.flushed_offset == store.visible_offset == parted.point
        and store.epochs == ((1, 0),)
    )
    parted.joins(store)
    store.shutdown()
    again = follower(parted.disk)
    assert again.report.way == "our checkpoint" and again.end_offset == parted.new.end_offset


@pytest.mark.parametrize("finished_by_a_start", [False, True])
def test_a_deletion_of_which_the_elected_master_knows_nothing_has_not_happened(
    finished_by_a_start: bool,
) -> None:
    parted = Parted(40)
    assert parted.new.end_offset < parted.had
    zombie = opened(parted.disk, 4)
    zombie.end_topic("TopicTest")
    zombie.lives.save(zombie.lives.snapshot())
    zombie.shutdown()
    store = follower(parted.disk)
    if finished_by_a_start:
        mark_truncation(parted.disk, "/store", parted.point)
        store = follower(parted.disk.after_kill())
    else:
        store.truncate(parted.point)
    store.follow(lineage(parted.new, parted.log))
    copy(parted.new, store)

    def newest(found: MessageStore, queue_id: int) -> bytes:
        high = parted.new.bounds("TopicTest", queue_id)[1]
        return b"".join(found.get_messages("TopicTest", queue_id, high - 5, 5, 1 << 20, None).parts)

    for learnt in (False, True):
        if learnt:
            store.take_lives({})
        for queue_id in range(3):
            assert newest(store, queue_id) == newest(parted.new, queue_id) != b""


def test_a_cut_outside_of_the_log_is_refused_and_changes_nothing() -> None:
    parted = Parted()
    store = follower(parted.disk)
    before = log_bytes(store)
    with pytest.raises(LogDiverged, match="cannot be cut"):
        store.truncate(parted.had + 1)
    assert log_bytes(store) == before and store.epochs == ((1, 0), (2, parted.point))


def _steps() -> int:
    parted = Parted()
    store = follower(parted.disk)
    before = parted.disk.made
    store.truncate(parted.point)
    return parted.disk.made - before


TOTAL = _steps()


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("step", range(0, TOTAL))
def test_a_death_or_a_power_loss_at_any_step_leaves_a_store_that_goes_on(
    step: int, power: bool
) -> None:
    parted, chance = Parted(), random.Random(step)
    store = follower(parted.disk)
    parted.disk.left = step
    with pytest.raises(Killed):
        store.truncate(parted.point)
    parted.disk.left = None
    torn = parted.disk.survivor(
        lambda _n, change: chance.choice(
            (True, False, chance.randrange(len(change.data) + 1) if change.data else True)
        ),
        "boot-2",
    )
    again = follower(torn if power else parted.disk.after_kill())
    assert again.end_offset in (parted.had, parted.point), "never below what both logs share"
    if again.end_offset > parted.point:
        again.truncate(parted.point)
    parted.joins(again)
    again.shutdown()
    parted.joins(follower(again._around.files))  # type: ignore[arg-type]


def test_a_start_that_dies_while_it_finishes_the_cut_can_be_repeated() -> None:
    for step in range(0, 60, 3):
        parted = Parted()
        store = follower(parted.disk)
        parted.disk.left = TOTAL // 2
        with pytest.raises(Killed):
            store.truncate(parted.point)
        parted.disk.left = None
        disk = MortalDisk()
        disk.names, disk.stable_names, disk.directories = (
            parted.disk.names,
            parted.disk.stable_names,
            parted.disk.directories,
        )
        disk.left = step
        with contextlib.suppress(Killed):
            follower(disk)
        disk.left = None
        again = follower(disk.after_kill())
        assert again.end_offset == parted.point
        parted.joins(again)


def test_a_disk_that_fails_in_the_middle_is_read_again_and_the_cut_finished() -> None:
    parted = Parted()
    store = follower(parted.disk)
    parted.disk.fail_next("datasync", "commitlog", skip=1)
    try:
        store.truncate(parted.point)
    except StoreFailed:
        store.reopen()
    assert store.end_offset == parted.point
    parted.joins(store)


def test_nothing_is_left_of_the_mark(tmp_path: Path) -> None:
    parted = Parted()
    store = follower(parted.disk)
    store.truncate(parted.point)
    assert not parted.disk.exists("/store/rmq_ray/truncating") and parted.disk.exists(
        "/store/rmq_ray/checkpoint"
    )
