"""Segments: adjacent files of one size, made before they are named, gone for good behind a cut
(docs/file-format.md).
"""

from __future__ import annotations

import threading

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.codec.store_files import segment_name
from rmq_ray.config import StoreConfig
from rmq_ray.errors import StoreCorrupt, StoreFailed, StoreFull
from rmq_ray.store.log.segment_chain import Segment, SegmentChain
from tests.support.faults.crash_fs import CrashFileSystem, keep_none

LOG = "/store/commitlog"
SIZE = 8192


def chain_on(disk: CrashFileSystem, ahead: bool = False) -> SegmentChain:
    disk.make_dirs("/store/rmq_ray")
    chain = SegmentChain(LOG, "/store/rmq_ray", SIZE, disk, ManualClock(), ahead)
    chain.load()
    return chain


@pytest.mark.seed("S3-107")
def test_files_are_named_by_their_start_in_20_digits() -> None:
    assert [segment_name(start) for start in (0, 1 << 30, 1 << 31)] == [
        "00000000000000000000",
        "00000000001073741824",
        "00000000002147483648",
    ]
    assert StoreConfig("unused").segment_bytes == 1 << 30


def test_segments_are_made_in_order_and_found_by_offset() -> None:
    disk = CrashFileSystem()
    chain = chain_on(disk)
    assert chain.find(0) is None and (chain.begin, chain.end) == (0, 0)
    for start in (0, SIZE, 2 * SIZE):
        segment = chain.ensure(start)
        assert (segment.start, segment.end) == (start, start + SIZE)
    found = [chain.find(at) for at in (0, SIZE - 1, SIZE, 3 * SIZE - 1, 3 * SIZE, -1)]
    assert [segment.start if segment else None for segment in found] == [
        0,
        0,
        SIZE,
        2 * SIZE,
        None,
        None,
    ]
    assert chain_on(disk.survivor(keep_none)).end == 3 * SIZE, (
        "names and sizes are durable when ensure returns"
    )


def test_a_segment_has_its_full_size_whenever_it_has_its_name() -> None:
    for action in ("truncate", "datasync", "rename", "sync_dir"):
        disk = CrashFileSystem()
        chain = chain_on(disk)
        disk.fail_next(action, "segment" if action != "sync_dir" else LOG, "ENOSPC")
        with pytest.raises(StoreFull):
            chain.ensure(0)
        for name in disk.list_dir(LOG):
            assert disk.file_size(f"{LOG}/{name}") == SIZE
        again = chain_on(disk.survivor(keep_none))
        assert again.ensure(0).start == 0


@pytest.mark.parametrize("name", ["x", "0", f"{1:020d}", f"{3 * SIZE:020d}", f"{0:019d}"])
def test_a_foreign_file_or_a_gap_is_refused(name: str) -> None:
    disk = CrashFileSystem()
    chain_on(disk).ensure(0)
    disk.write_whole(f"{LOG}/{name}", bytes(SIZE))
    with pytest.raises(StoreCorrupt, match="not the next segment"):
        chain_on(disk)


def test_a_file_of_another_size_is_refused() -> None:
    disk = CrashFileSystem()
    chain_on(disk).ensure(0)
    disk.write_whole(f"{LOG}/{segment_name(SIZE)}", bytes(SIZE - 1))
    with pytest.raises(StoreCorrupt, match="set segment_bytes"):
        chain_on(disk)


def test_leftovers_of_an_interrupted_preparation_are_removed() -> None:
    disk = CrashFileSystem()
    chain_on(disk)
    disk.write_whole("/store/rmq_ray/next-segment-1", b"x")
    chain_on(disk)
    assert disk.list_dir("/store/rmq_ray") == []


@pytest.mark.parametrize("at", [0, 1, SIZE - 1, SIZE, SIZE + 5, 2 * SIZE])
def test_behind_a_cut_everything_reads_as_zeros_even_after_a_power_loss(at: int) -> None:
    disk = CrashFileSystem()
    chain = chain_on(disk)
    for start in (0, SIZE, 2 * SIZE):
        segment = chain.ensure(start)
        segment.write(b"\xff" * SIZE, start)
        segment.file.datasync()
    chain.cut_from(at)
    for view in (chain, chain_on(disk.survivor(keep_none))):
        data = b"".join(segment.read(segment.start, SIZE) for segment in view.segments())
        assert data == (b"\xff" * at).ljust(len(data), b"\0")
        assert view.end % SIZE == 0 and view.end >= at


def test_the_oldest_goes_first_and_the_last_stays() -> None:
    disk = CrashFileSystem()
    chain = chain_on(disk)
    for start in (0, SIZE):
        chain.ensure(start)
    held = chain.find(0)
    assert held is not None and chain.remove_first() and not chain.remove_first()
    assert (chain.begin, disk.list_dir(LOG)) == (SIZE, [segment_name(SIZE)])
    assert chain.find(0) is None and chain.ensure(2 * SIZE).start == 2 * SIZE


def test_a_segment_whose_file_stays_keeps_its_place() -> None:
    """Else the next removal would leave a gap, and the next start finds a log with a hole."""
    disk = CrashFileSystem()
    chain = chain_on(disk)
    for start in (0, SIZE, 2 * SIZE):
        chain.ensure(start)
    disk.fail_next("unlink", segment_name(0))
    with pytest.raises(StoreFailed):
        chain.remove_first()
    assert chain.begin == 0 and chain.find(0) is not None
    assert chain.remove_first() and chain.remove_first()
    assert chain_on(disk).begin == 2 * SIZE


def test_the_thread_that_makes_segments_survives_what_is_no_fault_of_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = chain_on(CrashFileSystem(), ahead=True)
    make, failed = SegmentChain._make, threading.Event()

    def without_memory(one: SegmentChain, start: int) -> Segment:
        if threading.current_thread() is not threading.main_thread() and not failed.is_set():
            failed.set()
            raise MemoryError
        return make(one, start)

    monkeypatch.setattr(SegmentChain, "_make", without_memory)
    chain.ensure(0)
    assert failed.wait(10), "the one behind is made ahead"
    for start in (SIZE, 2 * SIZE, 3 * SIZE):
        assert chain.ensure(start).start == start
    chain.close()
