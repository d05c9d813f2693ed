"""Appends gathered in reused buffers: committed every 200 ms or 4 pages, acknowledged and visible
after that (docs/file-format.md#flushing).
"""

from __future__ import annotations

import random
import threading

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.config import FlushMode, StoreConfig
from rmq_ray.errors import AppendUnknown, ConfigError, StoreFailed
from rmq_ray.store.front.message_store import StoreState
from rmq_ray.store.log.commit_log import CommitLog
from rmq_ray.store.log.flusher import LogCommitter
from rmq_ray.store.log.segment_chain import SegmentChain
from rmq_ray.store.log.transient_pool import TransientPool
from tests.support.brokers.store_rig import StoreRig, small_config
from tests.support.faults.crash_fs import Change, CrashFileSystem, keep_none

SEGMENT = 65_536


def pooled(**changes: object) -> StoreConfig:
    return small_config(
        **({"transient_store_pool": True, "transient_buffer_bytes": 4096} | changes)
    )


def make_log(size: int = 2, buffer_bytes: int = 1_000) -> tuple[CrashFileSystem, CommitLog]:
    disk = CrashFileSystem()
    disk.make_dirs("/store/rmq_ray")
    chain = SegmentChain(
        "/store/commitlog", "/store/rmq_ray", SEGMENT, disk, ManualClock(), ahead=False
    )
    chain.load()
    return disk, CommitLog(chain, TransientPool(size, buffer_bytes))


def put(log: CommitLog, data: bytes) -> None:
    log.write(data, log.place(len(data)), len(data))


@pytest.mark.seed("S3-096", "S3-105")
def test_what_is_gathered_is_neither_written_nor_visible_nor_acknowledged_before_its_commit() -> (
    None
):
    rig = StoreRig(config=pooled())
    writes = rig.disk.writes
    result = rig.send([b"a", b"b"])
    rig.store.dispatch_durable()
    assert (rig.disk.writes, rig.bodies(), rig.arrivals, rig.durable) == (writes, [], [], [])
    assert (
        rig.store.durable_offset
        == rig.store.visible_offset
        == result.base_log_offset
        < result.end_log_offset
        == rig.store.end_offset
    )
    rig.settle()
    assert (rig.disk.writes, rig.durable, rig.store.durable_offset) == (
        writes + 2,
        [result.end_log_offset],
        result.end_log_offset,
    )  # log and queue
    assert (
        rig.bodies() == [b"a", b"b"] and rig.store.flushed_offset == result.base_log_offset
    )  # in the kernel; the disk comes later


def test_many_frames_become_one_write() -> None:
    disk, log = make_log(buffer_bytes=4_096)
    log.place(10)
    writes = disk.writes
    for number in range(100):
        put(log, b"%10d" % number)
    assert disk.writes == writes and log.commit() == 1_000
    assert disk.writes == writes + 1 and log.read(990, 10) == b"        99"


def test_without_a_free_buffer_the_append_commits_and_no_buffer_is_added() -> None:
    disk, log = make_log(size=2, buffer_bytes=100)
    log.place(60)
    writes = disk.writes
    for number in range(50):
        put(log, b"%60d" % number)
    assert 0 < disk.writes - writes <= 50 and log.committed >= 50 * 60 - 2 * 100
    log.commit()
    assert [int(log.read(60 * number, 60)) for number in range(50)] == list(range(50))
    assert len(log.pool._free) == 2 and log.pool._unmade == 0 if log.pool else False


def test_a_frame_larger_than_a_buffer_follows_what_was_gathered_before_it() -> None:
    _disk, log = make_log(size=2, buffer_bytes=100)
    put(log, b"a" * 50)
    put(log, b"b" * 500)
    assert log.committed == log.end == 550
    put(log, b"c" * 50)
    assert log.committed == 550 and log.read(0, 1_000) == b"a" * 50 + b"b" * 500
    log.commit()
    assert log.read(550, 100) == b"c" * 50


def test_a_full_segment_is_committed_at_once_and_a_sync_commits_what_it_finds() -> None:
    _disk, log = make_log(buffer_bytes=SEGMENT)
    put(log, b"a" * 40_000)
    put(log, b"b" * 40_000)
    assert log.committed == SEGMENT and log.end == SEGMENT + 40_000
    assert log.sync() == log.end == log.committed == log.durable


@pytest.mark.seed("S3-096")
def test_four_pages_wake_the_commit_thread_and_less_wait_for_the_interval() -> None:
    _disk, log = make_log(size=5, buffer_bytes=8_192)
    told, arrived = [], threading.Event()

    def note(position: int) -> None:
        told.append(position)
        arrived.set()

    committer = LogCommitter(log, pooled(commit_interval_ms=60_000), note)
    committer.start()
    put(log, b"x" * 8_192)
    put(log, b"x" * 8_191)
    committer.request()
    assert not arrived.wait(0.05) and not told
    put(log, b"x")
    committer.request()
    assert arrived.wait(10) and told == [16_384]
    committer.stop()


def test_the_commit_thread_takes_a_few_bytes_after_the_interval() -> None:
    _disk, log = make_log()
    arrived = threading.Event()
    committer = LogCommitter(log, pooled(commit_interval_ms=5), lambda _position: arrived.set())
    put(log, b"x")
    committer.start()
    assert arrived.wait(10) and log.committed == 1
    committer.stop()


def test_flush_and_shutdown_commit_what_is_gathered() -> None:
    rig = StoreRig(config=pooled())
    rig.send([b"a"], sequence=0)
    rig.store.flush()
    assert rig.store.flushed_offset == rig.store.end_offset
    rig.send([b"b"], sequence=1)
    assert rig.store.shutdown() is True
    assert rig.next_life(rig.disk).bodies() == [b"a", b"b"]


def test_the_pool_is_not_used_under_sync_flush() -> None:
    config = pooled(flush=FlushMode.SYNC_FLUSH)
    rig = StoreRig(config=config)
    writes = rig.disk.writes
    rig.send([b"a"])
    assert not config.gathers and config.acknowledges_later and rig.disk.writes == writes + 1


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("partial", [0, 1, 150])
def test_a_commit_that_fails_acknowledges_nothing_and_the_repeats_are_stored_once(
    error: str, partial: int
) -> None:
    rig = StoreRig(config=pooled())
    rig.send([b"kept"], sequence=0)
    rig.settle()
    rig.send([b"a"], sequence=1)
    rig.send([b"b"], sequence=2)
    rig.disk.fail_next("pwrite", "commitlog", error, partial=partial)
    rig.store.flush_step()
    assert rig.store.state is StoreState.FAILED and rig.durable == [rig.durable[0]] * 2
    with pytest.raises((StoreFailed, AppendUnknown)):
        rig.send([b"c"], sequence=3)
    rig.store.reopen()
    for sequence, body in enumerate((b"kept", b"a", b"b", b"c")):
        rig.send([body], sequence=sequence)
    rig.settle()
    assert rig.bodies() == [b"kept", b"a", b"b", b"c"]


@pytest.mark.seed("S3-096", "S3-105")
@pytest.mark.parametrize("seed", range(60))
def test_whenever_it_crashes_what_was_acknowledged_is_there_and_nothing_is_there_twice(
    seed: int,
) -> None:
    """Kills and power losses at any step. A kill loses at most what was not committed, a power loss
    also what was not flushed.
    """
    choose = random.Random(seed)
    rig = StoreRig(config=pooled(transient_store_pool_size=choose.choice([1, 2, 5])))
    rig.store.flush()
    sent: list[bytes] = []
    acknowledged = flushed = 0
    ends: list[int] = []
    for step in range(choose.randrange(40)):
        action = choose.random()
        if action < 0.7:
            body = b"%d-%s" % (step, b"x" * choose.choice([10, 500, 5_000]))
            ends.append(rig.send([body], sequence=step).end_log_offset)
            sent.append(body)
        elif action < 0.9:
            rig.settle()
        else:
            rig.store.flush()
        rig.store.dispatch_durable()
        acknowledged = sum(end <= rig.store.durable_offset for end in ends)
        flushed = sum(end <= rig.store.flushed_offset for end in ends)
        assert rig.bodies() == sent[:acknowledged]
    if choose.random() < 0.5:
        found = rig.next_life(rig.disk.after_kill()).bodies()
        assert len(found) >= acknowledged
    else:

        def keep(_number: int, change: Change) -> bool | int:
            return (
                choose.choice([True, False, choose.randrange(len(change.data) + 1)])
                if change.data
                else True
            )

        found = rig.next_life(
            rig.disk.survivor(choose.choice([keep, keep_none]), "boot-2")
        ).bodies()
        assert len(found) >= flushed
    assert found == sent[: len(found)]


@pytest.mark.parametrize(
    "change",
    [
        {"transient_store_pool_size": 0},
        {"transient_buffer_bytes": 100},
        {"commit_interval_ms": 0},
        {"commit_least_pages": 0},
    ],
)
def test_wrong_settings_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        pooled(**change)
