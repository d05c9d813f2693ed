"""When the log is synced (store-format 8)."""

from __future__ import annotations

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.config import FlushMode
from rmq_ray.store.commit_log import CommitLog
from rmq_ray.store.flusher import LogFlusher, is_due
from rmq_ray.store.segment_chain import SegmentChain
from tests.support.crash_fs import CrashFileSystem
from tests.support.store_rig import small_config

SEGMENT = 65_536


class Rig:
    def __init__(self, mode: FlushMode, interval_ms: int = 500) -> None:
        self.disk = CrashFileSystem()
        self.disk.make_dirs("/store/rmq_ray")
        self.clock = ManualClock()
        chain = SegmentChain("/store/commitlog", "/store/rmq_ray", SEGMENT, self.disk, self.clock, ahead=False)
        chain.load()
        self.log = CommitLog(chain)
        self.told: list[int] = []
        config = small_config(flush=mode, flush_interval_ms=interval_ms)
        self.flusher = LogFlusher(self.log, config, self.clock, self.told.append)

    def write(self, length: int) -> None:
        at = self.log.place(length)
        self.log.write(b"x" * length, at, length)


@pytest.mark.seed("S3-104", "S3-106")
@pytest.mark.parametrize(
    ("written", "flushed", "pages", "due"),
    [
        (0, 0, 0, False),
        (1, 0, 0, True),
        (4095, 0, 1, False),
        (4096, 0, 1, True),
        (16383, 0, 4, False),
        (16384, 0, 4, True),
        (20000, 16000, 4, False),
        (SEGMENT, SEGMENT - 1, 4, True),
    ],
)
def test_four_pages_or_a_full_segment_are_due(written: int, flushed: int, pages: int, due: bool) -> None:
    assert is_due(written, flushed, pages, SEGMENT) is due


def test_async_flush_leaves_a_few_bytes_until_the_thorough_interval() -> None:
    rig = Rig(FlushMode.ASYNC_FLUSH)
    rig.write(100)
    assert rig.flusher.step() and rig.log.durable == 0
    rig.clock.advance_ms(9_999)
    rig.flusher.step()
    assert (rig.log.durable, rig.told) == (0, [])
    rig.clock.advance_ms(1)
    rig.flusher.step()
    assert (rig.log.durable, rig.told) == (100, [100])


def test_async_flush_takes_four_pages_at_once() -> None:
    rig = Rig(FlushMode.ASYNC_FLUSH)
    rig.write(16_384)
    rig.flusher.step()
    assert rig.log.durable == 16_384


@pytest.mark.seed("S3-101")
def test_sync_flush_takes_whatever_there_is() -> None:
    rig = Rig(FlushMode.SYNC_FLUSH)
    rig.flusher.step()
    assert rig.told == [] and rig.disk.syncs <= 1
    rig.write(1)
    rig.write(1)
    rig.flusher.step()
    assert rig.told == [2]


def test_all_segments_that_were_written_are_synced() -> None:
    rig = Rig(FlushMode.SYNC_FLUSH)
    for _ in range(5):
        rig.write(40_000)
    assert rig.log.end > 4 * SEGMENT
    rig.flusher.step()
    assert not rig.disk.unsynced("commitlog") and rig.log.durable == rig.log.end


def test_a_failed_sync_is_told_once_and_never_tried_again() -> None:
    rig = Rig(FlushMode.SYNC_FLUSH)
    rig.write(10)
    rig.disk.fail_next("datasync", "commitlog")
    syncs = rig.disk.syncs
    assert rig.flusher.step() is False and rig.flusher.step() is False and rig.flusher.flush_now() is False
    assert rig.told == [0] and rig.log.failure is not None and rig.disk.syncs == syncs + 1


def test_stopping_syncs_the_rest() -> None:
    rig = Rig(FlushMode.ASYNC_FLUSH, interval_ms=3_600_000)
    rig.flusher.start()
    rig.write(10)
    rig.flusher.stop()
    assert rig.log.durable == 10


def test_a_thread_that_ends_for_another_reason_fails_the_log(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(FlushMode.SYNC_FLUSH)

    def broken(_position: int) -> None:
        if not rig.told:
            rig.told.append(-1)
            raise RuntimeError("defect")

    rig.flusher._on_durable = broken
    rig.write(10)
    rig.flusher._run()
    assert rig.log.failure is not None and "defect" in rig.log.failure.message and "the flush thread ended" in caplog.text
