"""When the log is synced (docs/file-format.md#flushing)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.config import FlushMode, StoreConfig
from rmq_ray.store.log.commit_log import CommitLog
from rmq_ray.store.log.flusher import LogFlusher, is_due
from rmq_ray.store.log.segment_chain import SegmentChain
from tests.support.brokers.store_rig import small_config
from tests.support.faults.crash_fs import CrashFileSystem

SEGMENT = 65_536


class Rig:
    def __init__(self, mode: FlushMode, interval_ms: int = 500) -> None:
        self.disk = CrashFileSystem()
        self.disk.make_dirs("/store/rmq_ray")
        self.clock = ManualClock()
        chain = SegmentChain(
            "/store/commitlog", "/store/rmq_ray", SEGMENT, self.disk, self.clock, ahead=False
        )
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
def test_four_pages_or_a_full_segment_are_due(
    written: int, flushed: int, pages: int, due: bool
) -> None:
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


@pytest.mark.seed("S3-104")
def test_async_flush_takes_four_pages_at_once() -> None:
    rig = Rig(FlushMode.ASYNC_FLUSH)
    rig.write(16_384)
    rig.flusher.step()
    assert rig.log.durable == 16_384


def test_sync_flush_takes_whatever_there_is() -> None:
    rig = Rig(FlushMode.SYNC_FLUSH)
    rig.flusher.step()
    assert rig.told == [] and rig.disk.syncs <= 1
    rig.write(1)
    rig.write(1)
    rig.flusher.step()
    assert rig.told == [2]


def test_what_somebody_else_synced_is_told_too() -> None:
    rig = Rig(FlushMode.SYNC_FLUSH)
    rig.write(10)
    rig.log.sync()
    for _ in range(2):
        assert rig.flusher.step()
    assert rig.told == [10], "a send waits for it"


@pytest.mark.seed("S3-105")
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
    assert (
        rig.flusher.step() is False
        and rig.flusher.step() is False
        and rig.flusher.flush_now() is False
    )
    assert rig.told == [0] and rig.log.failure is not None and rig.disk.syncs == syncs + 1


def test_stopping_syncs_the_rest() -> None:
    rig = Rig(FlushMode.ASYNC_FLUSH, interval_ms=3_600_000)
    rig.flusher.start()
    rig.write(10)
    rig.flusher.stop()
    assert rig.log.durable == 10


def test_a_thread_that_ends_for_another_reason_fails_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(FlushMode.SYNC_FLUSH)

    def broken(_position: int) -> None:
        if not rig.told:
            rig.told.append(-1)
            raise RuntimeError("defect")

    rig.flusher._on_durable = broken
    rig.write(10)
    rig.flusher._thread._run()
    assert (
        rig.log.failure is not None
        and "defect" in rig.log.failure.message
        and "the flush thread ended" in caplog.text
    )


# --- the thread -----------------------------------------------------------------------------------


class Waits:
    """In place of the lock of the flusher's thread: notes how long the thread would wait, and ends
    the loop after some rounds.
    """

    def __init__(self, flusher: Any, rounds: int) -> None:
        self.flusher = flusher
        self.rounds = rounds
        self.seconds: list[float] = []

    def acquire(self, timeout: float) -> bool:
        self.seconds.append(timeout)
        self.flusher._stopping = len(self.seconds) == self.rounds
        return False


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread does not look by itself: only a request wakes it."""
    monkeypatch.setattr("rmq_ray.store.log.flusher._IDLE_S", 3_600.0)


@pytest.mark.seed("S3-102", "S3-103")
def test_the_async_flusher_looks_every_500_ms_whatever_is_written() -> None:
    rig = Rig(FlushMode.ASYNC_FLUSH, StoreConfig("unused").flush_interval_ms)
    waits: Any = Waits(rig.flusher._thread, 3)
    rig.flusher._thread._wake = waits
    rig.write(100)
    rig.flusher._thread._run()
    assert waits.seconds == [0.5, 0.5, 0.5]


@pytest.mark.seed("S3-097", "S3-101")
@pytest.mark.usefixtures("patient")
def test_a_request_wakes_the_sync_flusher_at_once() -> None:
    rig, flushed = Rig(FlushMode.SYNC_FLUSH), threading.Event()
    rig.flusher._on_durable = lambda position: (rig.told.append(position), flushed.set())[1]
    rig.flusher.start()
    rig.write(7)
    rig.flusher.request()
    assert flushed.wait(20)
    rig.flusher.stop()
    assert rig.told == [7]


@pytest.mark.seed("S3-099", "S3-101")
@pytest.mark.usefixtures("patient")
def test_a_request_that_comes_before_the_thread_waits_is_not_lost() -> None:
    rig, flushed = Rig(FlushMode.SYNC_FLUSH), threading.Event()
    rig.flusher._on_durable = lambda position: (rig.told.append(position), flushed.set())[1]
    rig.write(7)
    rig.flusher.request()
    rig.flusher.start()
    assert flushed.wait(20)
    rig.flusher.stop()


@pytest.mark.seed("S3-100", "S3-099")
@pytest.mark.usefixtures("patient")
def test_requests_that_come_while_a_sync_runs_are_covered_by_the_next_one() -> None:
    rig, flushed = Rig(FlushMode.SYNC_FLUSH), threading.Event()

    def told(position: int) -> None:
        rig.told.append(position)
        if position == 3:
            flushed.set()
            return
        for _ in range(2):
            rig.write(1)
            rig.flusher.request()

    rig.flusher._on_durable = told
    rig.write(1)
    rig.flusher.request()
    rig.flusher.start()
    assert flushed.wait(20)
    rig.flusher.stop()
    assert rig.told == [1, 3]
