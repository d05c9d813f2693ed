"""Zeros ahead of the log: behind every record, out of the way of appends, no matter what becomes of
them.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.config import FlushMode, StoreConfig
from rmq_ray.errors import StoreNotReady
from rmq_ray.files import Bytes, File, FileSystem
from rmq_ray.store.log import zero_ahead
from rmq_ray.store.log.commit_log import CommitLog
from rmq_ray.store.log.flusher import LogFlusher
from rmq_ray.store.log.segment_chain import SegmentChain
from rmq_ray.store.log.zero_ahead import PIECES_AHEAD, ZeroAhead
from rmq_ray.store.replication.follower_store import FollowerStore
from tests.support.brokers.store_rig import HOST, StoreRig, small_config
from tests.support.faults.crash_fs import Change, CrashFile, CrashFileSystem, Inode, keep_none
from tests.support.waiting import eventually

SEGMENT = 1 << 20
PIECE = SEGMENT // zero_ahead.SEGMENT_SHARE


class Rig:
    """A log on ``disk`` and what zeroes ahead of it, step by step."""

    def __init__(
        self,
        disk: FileSystem | None = None,
        directory: str = "/store",
        segment_bytes: int = SEGMENT,
    ) -> None:
        self.disk = disk or CrashFileSystem()
        self.disk.make_dirs(f"{directory}/rmq_ray")
        self.chain = SegmentChain(
            f"{directory}/commitlog",
            f"{directory}/rmq_ray",
            segment_bytes,
            self.disk,
            ManualClock(),
            ahead=False,
        )
        self.chain.load()
        self.log = CommitLog(self.chain)
        self.ahead = self.log.ahead = ZeroAhead(segment_bytes)

    def write(self, length: int, byte: bytes = b"x") -> None:
        at = self.log.place(length)
        self.log.write(byte * length, at, length)

    def zeroed(self) -> list[tuple[int, int]]:
        """(position, bytes) of what was zeroed since the last sync."""
        assert isinstance(self.disk, CrashFileSystem)
        return [
            (change.position, len(change.data))
            for change in self.disk.unsynced("commitlog")
            if change.data is not None and not any(change.data)
        ]


class StuckDisk(CrashFileSystem):
    """A disk that holds the next zeroing until ``go``; ``begun`` when it has come."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()

    def open_direct(self, path: str) -> File:
        return _StuckFile(self, path, self.names[path])


class _StuckFile(CrashFile):
    __slots__ = ("_stuck",)

    def __init__(self, disk: StuckDisk, path: str, inode: Inode) -> None:
        super().__init__(disk, path, inode)
        self._stuck = disk

    def pwrite(self, data: Bytes, position: int) -> None:
        self._stuck.begun.set()
        assert self._stuck.go.wait(30)
        super().pwrite(data, position)


def test_zeros_lie_a_piece_behind_the_end_in_whole_pages_and_no_further_than_planned() -> None:
    rig = Rig()
    assert not rig.ahead.step(), "nothing was written yet"
    rig.write(5_000)
    while rig.ahead.step():
        pass
    first = 8_192 + PIECE
    assert rig.zeroed() == [(first + i * PIECE, PIECE) for i in range(PIECES_AHEAD - 1)]
    rig.write(PIECE)
    assert rig.ahead.step() and not rig.ahead.step(), "a piece was written, a piece is zeroed"


def test_the_rest_of_a_segment_is_zeroed_and_the_next_one_from_its_own_beginning() -> None:
    rig = Rig()
    rig.write(SEGMENT - 2 * PIECE)
    assert rig.ahead.step() and not rig.ahead.step()
    assert rig.zeroed() == [(SEGMENT - PIECE, PIECE)]
    rig.write(3 * PIECE)
    assert rig.ahead.step()
    assert rig.chain.segments()[1].read(SEGMENT, 3 * PIECE) == b"x" * 3 * PIECE


def test_a_log_that_ends_anywhere_keeps_every_byte() -> None:
    rig, written = Rig(), 0
    for length in (1, 4_095, 4_096, 4_097, 100_000, PIECE, 3 * PIECE + 1, 9 * PIECE, 7):
        rig.write(length)
        written += length
        while rig.ahead.step():
            pass
    assert (
        b"".join(segment.read(segment.start, SEGMENT) for segment in rig.chain.segments()).count(
            b"x"
        )
        == written
    )


def test_an_append_that_reaches_the_piece_being_zeroed_waits_for_it() -> None:
    disk = StuckDisk()
    rig = Rig(disk)
    rig.write(100)
    zeroing = threading.Thread(target=rig.ahead.step, daemon=True)
    zeroing.start()
    assert disk.begun.wait(10)
    appending = threading.Thread(target=rig.write, args=(3 * PIECE,), daemon=True)
    appending.start()
    eventually(lambda: rig.ahead._reached > 3 * PIECE)
    assert rig.log.end == 100, "it is not written while its place is zeroed"
    disk.go.set()
    for thread in (zeroing, appending):
        thread.join(10)
    assert rig.log.read(0, rig.log.end) == b"x" * (100 + 3 * PIECE)


def test_a_piece_is_zeroed_by_short_writes_for_the_file_system_holds_appends_back_meanwhile() -> (
    None
):
    rig = Rig(segment_bytes=1 << 24)
    rig.write(100)
    assert rig.ahead.step()
    written = [(position, count) for position, count in rig.zeroed() if position]
    assert sum(count for _, count in written) == zero_ahead.PIECE_BYTES_MAX and {
        count for _, count in written
    } == {zero_ahead.WRITE_BYTES}
    assert [position for position, _ in written] == list(
        range(written[0][0], written[0][0] + zero_ahead.PIECE_BYTES_MAX, zero_ahead.WRITE_BYTES)
    )


def test_a_stop_begins_no_other_write() -> None:
    disk = StuckDisk()
    rig = Rig(disk, segment_bytes=1 << 24)
    disk.go.set()
    rig.write(100)
    disk.begun.clear()
    disk.go.clear()
    zeroing = threading.Thread(target=rig.ahead.step, daemon=True)
    zeroing.start()
    assert disk.begun.wait(10)
    stopping = threading.Thread(target=rig.ahead.stop, daemon=True)
    stopping.start()
    eventually(lambda: rig.ahead._stopped)
    before = disk.writes
    disk.go.set()
    for thread in (zeroing, stopping):
        thread.join(10)
    assert disk.writes == before + 1, "the write that had begun"


def test_an_append_before_the_piece_does_not_wait() -> None:
    disk = StuckDisk()
    rig = Rig(disk)
    rig.write(100)
    zeroing = threading.Thread(target=rig.ahead.step, daemon=True)
    zeroing.start()
    assert disk.begun.wait(10)
    rig.write(PIECE)
    disk.go.set()
    zeroing.join(10)
    assert rig.log.read(0, rig.log.end) == b"x" * (100 + PIECE)


@pytest.mark.parametrize("how", ["frame", "copy", "blank"])
def test_a_disk_that_does_not_end_a_piece_refuses_the_append_and_nothing_is_written(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zero_ahead, "WAIT_S", 0.0)
    disk = StuckDisk()
    rig = Rig(disk)
    rig.write(100)
    zeroing = threading.Thread(target=rig.ahead.step, daemon=True)
    zeroing.start()
    assert disk.begun.wait(10)
    with pytest.raises(StoreNotReady, match="too slow"):
        if how == "copy":
            rig.log.extend(b"x" * 3 * PIECE)
        else:
            rig.log.place(3 * PIECE if how == "frame" else SEGMENT - 50)
    assert rig.log.end == 100 and rig.log.failure is None
    monkeypatch.setattr(zero_ahead, "WAIT_S", 60.0)
    with pytest.raises(
        StoreNotReady, match="too slow"
    ):  # whoever comes next does not wait as long again
        rig.log.place(3 * PIECE)
    disk.go.set()
    zeroing.join(10)
    rig.write(3 * PIECE)


def test_stop_waits_for_the_piece_and_nothing_is_zeroed_afterwards() -> None:
    disk, seen = StuckDisk(), []
    rig = Rig(disk)
    rig.write(100)
    zeroing = threading.Thread(target=rig.ahead.step, daemon=True)
    zeroing.start()
    assert disk.begun.wait(10)

    def stop() -> None:
        rig.ahead.stop()
        seen.append(disk.writes)

    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    stopping.join(0.1)
    disk.go.set()
    for thread in (zeroing, stopping):
        thread.join(10)
    assert seen == [2], "the record and the piece"
    rig.write(5 * PIECE)
    assert not rig.ahead.step() and disk.writes == 3


def test_the_thread_ends_with_stop() -> None:
    rig = Rig()
    rig.ahead.start()
    rig.write(100)
    eventually(lambda: len(rig.zeroed()) == PIECES_AHEAD - 1)
    thread = rig.ahead._thread
    rig.ahead.stop()
    assert thread is not None and not thread.is_alive()


@pytest.mark.parametrize("action", ["open_direct", "pwrite"])
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_a_disk_that_takes_no_zeros_takes_records(action: str, error: str) -> None:
    disk = CrashFileSystem()
    rig = Rig(disk)
    rig.write(100)
    disk.fail_next(action, "commitlog", error, partial=10)
    assert rig.ahead.step() and not rig.ahead.step(), "it is not tried again in this segment"
    rig.write(SEGMENT // 2)
    rig.log.sync()
    assert rig.log.durable == rig.log.end == 100 + SEGMENT // 2
    rig.write(SEGMENT - 1_000)
    assert not rig.ahead.step(), "no whole piece is left"
    rig.write(10_000)
    assert rig.ahead.step(), "the next segment is another try"


def test_a_segment_of_few_pages_is_not_zeroed() -> None:
    rig = Rig(segment_bytes=15 * 4_096)
    rig.write(100)
    assert not rig.ahead.step()


def test_only_a_log_that_is_synced_for_each_answer_is_zeroed_ahead() -> None:
    for mode in FlushMode:
        rig = Rig()
        LogFlusher(
            rig.log,
            small_config(flush=mode, segment_bytes=SEGMENT),
            ManualClock(),
            lambda _position: None,
        )
        assert (rig.log.ahead is not None) is (mode is FlushMode.SYNC_FLUSH)


def test_records_on_a_real_disk_are_whole_and_the_rest_reads_as_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zero_ahead, "WAIT_S", 60.0)  # no disk is too slow
    rig = Rig(FileSystem(), str(tmp_path), 1 << 23)
    rig.ahead.start()
    data = bytes(range(1, 251))
    for _ in range(60_000):
        at = rig.log.place(len(data))
        rig.log.write(data, at, len(data))
    rig.ahead.stop()
    rig.log.sync()
    segments = rig.chain.segments()
    found = b"".join(segment.read(segment.start, 1 << 23).rstrip(b"\0") for segment in segments)
    assert found.count(data) == 60_000 and len(segments) == 2
    rig.chain.close()


def test_zeros_are_on_a_real_disk_before_the_log_reaches_them(tmp_path: Path) -> None:
    rig = Rig(FileSystem(), str(tmp_path), 1 << 23)
    rig.write(100)
    assert rig.chain.segments()[0].file.data_end() <= 4_096
    while rig.ahead.step():
        pass
    assert rig.chain.segments()[0].file.data_end() == 4_096 + PIECES_AHEAD * (1 << 19)
    rig.chain.close()


def test_a_copy_whose_log_was_cut_is_written_again_where_zeros_lie() -> None:
    master = StoreRig(config=small_config())
    ends = [master.send([b"%d" % number * 400] * 3, number).end_log_offset for number in range(8)]
    log = master.store.opened.log.read(0, ends[-1])
    disk, config = CrashFileSystem(), small_config(flush=FlushMode.SYNC_FLUSH)
    copy = _follower(disk, config, create=True)
    for cut in (ends[1], ends[5]):
        _take_and_zero(copy, log)
        copy.truncate(cut)
        assert (
            copy.end_offset == cut
            and copy.opened.chain.segments()[0].read(cut, 65_536).strip(b"\0") == b""
        )
    _take_and_zero(copy, log)
    copy.sync()
    again = _follower(disk.survivor(keep_none, "boot-2"), config)
    assert again.opened.log.read(0, again.end_offset) == log


@pytest.mark.parametrize("number", range(PIECES_AHEAD))
@pytest.mark.parametrize("left", [True, False, 1, 2_000, 4_095])
def test_any_one_piece_may_be_torn_by_a_power_loss(number: int, left: bool | int) -> None:
    rig = StoreRig(config=small_config(flush=FlushMode.SYNC_FLUSH, segment_bytes=65_536))
    rig.send([b"first"] * 3, 1)
    rig.store.flush_step()
    ahead = rig.store.opened.log.ahead
    assert ahead is not None
    while ahead.step():
        pass
    rig.send([b"second"] * 20, 2)
    rig.store.flush_step()
    rig.store.dispatch_durable()
    while ahead.step():
        pass
    rig.send([b"third" * 500] * 2, 3)
    pieces = [
        change.sequence
        for change in rig.disk.unsynced("commitlog")
        if change.data is not None and not any(change.data)
    ]

    def keep(_number: int, change: Change) -> bool | int:
        return (
            left if change.sequence in pieces and pieces.index(change.sequence) == number else True
        )

    after = rig.next_life(rig.disk.survivor(keep, "boot-2"))
    assert after.bodies(0) == [b"first"] * 3 + [b"second"] * 20 + [b"third" * 500] * 2
    after.send([b"fourth" * 900] * 9, 4)
    after.store.flush_step()
    again = after.next_life(after.disk.survivor(keep, "boot-3"))
    assert again.bodies(0)[-9:] == [b"fourth" * 900] * 9


def _follower(disk: CrashFileSystem, config: StoreConfig, create: bool = False) -> FollowerStore:
    store = FollowerStore(
        config, ManualClock(), broker_name="broker-a", store_host=HOST, files=disk
    )
    store.open(create)
    store.recover()
    store.start(lambda _position: None, threads=False)
    return store


def _take_and_zero(copy: FollowerStore, log: bytes) -> None:
    """What it lacks of ``log`` in three parts, and zeros wherever they are due in between."""
    ahead = copy.opened.log.ahead
    assert ahead is not None
    while copy.end_offset < len(log):
        copy.append_raw(copy.end_offset, log[copy.end_offset : copy.end_offset + 5_000])
        while ahead.step():
            pass
