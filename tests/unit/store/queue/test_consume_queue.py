"""Consume queues: Apache RocketMQ's bytes, bounds after every kind of stop, cuts, blanks, bounded
descriptors.

``tests/golden/store/consume-queue-file-*`` were written by Apache RocketMQ 4.9.7's ConsumeQueue
class (16 entries a file).
"""

from __future__ import annotations

import gc
import random
from pathlib import Path

import numpy as np
import pytest

from rmq_ray.codec.store_files import BLANK_ENTRY, ENTRIES, ENTRY
from rmq_ray.errors import MessageIllegal, StoreCorrupt
from rmq_ray.files import Bytes, File, FileCache, FileSystem
from rmq_ray.store.queue.consume_queue import GAP_MAX, ConsumeQueue
from rmq_ray.store.queue.queue_table import QueueTable
from tests.support.faults.crash_fs import CrashFileSystem, keep_none

GOLDEN = Path(__file__).parents[3] / "golden" / "store"
PER_FILE = 16
SIZE = 128


def entries(first: int, count: int, code: int = 7) -> bytes:
    """Entries of records of 128 bytes; record n of the queue lies at 1000 + 128 n."""
    return b"".join(ENTRY.pack(1000 + SIZE * n, SIZE, code) for n in range(first, first + count))


def a_queue(
    path: Path | str, files: FileSystem | None = None, per_file: int = PER_FILE
) -> ConsumeQueue:
    queue = ConsumeQueue(str(path), per_file, files or FileSystem())
    queue.load()
    return queue


class CountingFiles(FileSystem):
    """The real file system; notes every write as (file name, bytes)."""

    def __init__(self) -> None:
        self.writes: list[tuple[str, int]] = []

    def open(self, path: str, create: bool = False) -> File:
        inner = super().open(path, create)
        writes = self.writes

        class Counting(File):
            def pwrite(self, data: Bytes, position: int) -> None:
                writes.append((path.rpartition("/")[2], len(data)))
                super().pwrite(data, position)

        counting = Counting(path, inner._fd)
        inner._fd = -1
        return counting


@pytest.mark.seed("S4-092")
def test_files_are_those_that_apache_rocketmq_writes(tmp_path: Path) -> None:
    queue = a_queue(tmp_path / "q")
    for n in range(20):
        queue.append(5 + n, ENTRY.pack(1000 + 128 * n, 128, 2598919 + n))
    names = sorted(path.name for path in (tmp_path / "q").iterdir())
    assert names == ["00000000000000000000", "00000000000000000320"]
    assert [(tmp_path / "q" / name).read_bytes() for name in names] == [
        (GOLDEN / f"consume-queue-file-{n}").read_bytes() for n in (1, 2)
    ]
    assert (queue.min_offset, queue.max_offset, queue.max_log_offset) == (5, 25, 3560)


def test_files_that_apache_rocketmq_wrote_load_with_their_bounds(tmp_path: Path) -> None:
    for number, name in ((1, "00000000000000000000"), (2, "00000000000000000320")):
        (tmp_path / name).write_bytes((GOLDEN / f"consume-queue-file-{number}").read_bytes())
    queue = a_queue(tmp_path)
    assert (queue.min_offset, queue.max_offset, queue.max_log_offset) == (5, 25, 3560)
    assert ENTRY.unpack(queue.read(7, 1)) == (1000 + 2 * 128, 128, 2598921)


def test_a_real_file_has_exactly_6000000_bytes_and_takes_little_room(tmp_path: Path) -> None:
    queue = a_queue(tmp_path, per_file=300_000)
    queue.append(300_000, entries(300_000, 3))
    (path,) = tmp_path.iterdir()
    assert path.name == "00000000000006000000" and path.stat().st_size == 6_000_000
    assert path.stat().st_blocks * 512 <= 64 * 1024


def test_the_tags_code_is_kept_with_64_bits(tmp_path: Path) -> None:
    queue = a_queue(tmp_path)
    for n, code in enumerate((0, -2147483648, 2147483647, 1_700_000_005_000)):
        queue.append(n, ENTRY.pack(n * 100, 100, code))
    assert [ENTRY.unpack_from(queue.read(0, 4), n * 20)[2] for n in range(4)] == [
        0,
        -2147483648,
        2147483647,
        1_700_000_005_000,
    ]


def test_one_batch_is_one_write_for_each_file_it_touches(tmp_path: Path) -> None:
    files = CountingFiles()
    queue = ConsumeQueue(str(tmp_path / "q"), PER_FILE, files)
    queue.append(0, entries(0, 10))
    assert [size for _, size in files.writes] == [200]
    del files.writes[:]
    queue.append(10, entries(10, 30))
    assert files.writes == [
        ("00000000000000000000", 120),
        ("00000000000000000320", 320),
        ("00000000000000000640", 160),
    ]
    assert queue.read(0, 40) == entries(0, 40)


def test_reading_gives_what_is_there_and_nothing_outside(tmp_path: Path) -> None:
    queue = a_queue(tmp_path)
    queue.append(0, entries(0, 40))
    assert queue.read(3, 5) == entries(3, 5)
    assert queue.read(10, 100) == entries(10, 30)
    assert queue.read(15, 2) == entries(15, 2)
    assert queue.read(40, 1) == queue.read(-1, 5) == queue.read(41, 5) == b""


def test_entries_that_exist_are_ignored_by_queue_offset_and_by_log_offset(tmp_path: Path) -> None:
    queue = a_queue(tmp_path)
    assert queue.append(0, entries(0, 5)) == 5
    assert queue.append(0, entries(0, 5, code=9)) == 0
    assert queue.append(3, entries(3, 4)) == 2
    assert queue.append(7, entries(2, 3)) == 0  # their records end before the queue's last one
    assert queue.max_offset == 7 and queue.read(0, 7) == entries(0, 7)


def test_a_record_with_a_known_queue_offset_is_ignored_wherever_it_lies_in_the_log(
    tmp_path: Path,
) -> None:
    queue = a_queue(tmp_path)
    queue.append(0, entries(0, 5))
    assert queue.append(3, entries(100, 3)) == 1
    assert queue.read(0, 9) == entries(0, 5) + entries(102, 1)


def test_where_the_log_lost_records_blank_entries_keep_the_count_dense(tmp_path: Path) -> None:
    queue = a_queue(tmp_path)
    queue.append(0, entries(0, 2))
    assert queue.append(20, entries(20, 1)) == 1
    assert queue.read(2, 18) == BLANK_ENTRY * 18 and queue.read(20, 1) == entries(20, 1)
    again = a_queue(tmp_path)
    assert (again.min_offset, again.max_offset, again.max_log_offset) == (0, 21, 1000 + 21 * SIZE)
    again.set_min_log_offset(1000 + 3 * SIZE)
    assert again.min_offset == 20


def test_a_queue_with_a_gap_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    queue = a_queue(tmp_path)
    queue.append(0, entries(0, 1))
    with pytest.raises(StoreCorrupt, match="records are missing"):
        queue.append(GAP_MAX + 2, entries(GAP_MAX + 2, 1))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 31, 32, 48, 50])
def test_loading_finds_the_last_entry(tmp_path: Path, count: int) -> None:
    if count:
        a_queue(tmp_path).append(0, entries(0, count))
    queue = a_queue(tmp_path)
    assert (queue.min_offset, queue.max_offset) == (0, count)
    assert queue.max_log_offset == (1000 + count * SIZE if count else 0)
    assert queue.append(count, entries(count, 3)) == 3
    assert a_queue(tmp_path).max_offset == count + 3


def test_loading_finds_the_last_entry_behind_a_hole(tmp_path: Path) -> None:
    queue = a_queue(tmp_path, per_file=5_000)
    queue.append(0, entries(0, 4_500))
    path = tmp_path / "00000000000000000000"
    data = bytearray(path.read_bytes())
    data[20 * 100 : 20 * 4400] = bytes(20 * 4300)
    path.write_bytes(data)
    assert a_queue(tmp_path, per_file=5_000).max_offset == 4_500


def test_recovery_as_rocketmq_does_it_ends_at_the_first_hole_of_the_last_three_files(
    tmp_path: Path,
) -> None:
    queue = a_queue(tmp_path)
    queue.append(0, entries(0, 70))  # five files
    for name, at in (("00000000000000000000", 3), ("00000000000000000960", 4)):
        path = tmp_path / name
        data = bytearray(path.read_bytes())
        data[20 * at : 20 * at + 20] = bytes(20)
        path.write_bytes(data)
    again = a_queue(tmp_path)
    assert again.recover() == 1000 + (48 + 4) * SIZE
    assert (again.max_offset, again.min_offset) == (52, 0)
    assert a_queue(tmp_path).max_offset == 52


def test_a_file_whose_creation_was_interrupted_is_completed(tmp_path: Path) -> None:
    a_queue(tmp_path).append(0, entries(0, 16))
    (tmp_path / "00000000000000000320").write_bytes(b"")
    queue = a_queue(tmp_path)
    assert queue.max_offset == 16 and (tmp_path / "00000000000000000320").stat().st_size == 320


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("00000000000000000000", 340),
        ("0000000000000000032", 320),
        ("00000000000000000321", 320),
        ("00000000000000000640", 320),
    ],
)
def test_files_that_contradict_the_format_stop_the_load(
    tmp_path: Path, name: str, size: int
) -> None:
    a_queue(tmp_path).append(0, entries(0, 20))
    if name != "00000000000000000000":
        (tmp_path / "00000000000000000320").unlink()
    (tmp_path / name).write_bytes(bytes(size))
    with pytest.raises(StoreCorrupt, match=name):
        a_queue(tmp_path)


@pytest.mark.parametrize("name", ["00000000000000000321", "0000000000000000000x", "notes.txt"])
def test_a_name_that_is_no_start_of_a_file_stops_the_load(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(bytes(320))
    with pytest.raises(StoreCorrupt, match=name):
        a_queue(tmp_path)


@pytest.mark.parametrize("keep", range(41))
def test_a_cut_of_the_log_at_any_record_leaves_exactly_the_entries_before_it(
    tmp_path: Path, keep: int
) -> None:
    queue = a_queue(tmp_path)
    queue.append(0, entries(0, 40))
    assert queue.truncate_from(1000 + keep * SIZE) == 40 - keep
    for state in (queue, a_queue(tmp_path)):
        assert (state.max_offset, state.read(0, 100)) == (keep, entries(0, keep))
        assert state.max_log_offset == (1000 + keep * SIZE if keep else 0)
    queue.append(keep, entries(keep, 20, code=8))
    assert a_queue(tmp_path).read(0, 100) == entries(0, keep) + entries(keep, 20, code=8)


def test_a_cut_leaves_files_of_the_right_size_and_what_is_written_again_is_flushed_again(
    tmp_path: Path,
) -> None:
    queue = a_queue(tmp_path)
    queue.append(0, entries(0, 40))
    queue.flush()
    queue.truncate_to(20)
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == [320, 320]
    queue.append(20, entries(20, 20))
    assert not queue.is_flushed
    queue.set_min_log_offset(1000 + 35 * SIZE)
    queue.truncate_to(34)
    assert (queue.min_offset, queue.max_offset) == (34, 34)


def test_a_cut_inside_a_record_keeps_the_records_that_begin_before_it(tmp_path: Path) -> None:
    queue = a_queue(tmp_path)
    queue.append(0, entries(0, 10))
    assert queue.truncate_from(1000 + 4 * SIZE + 1) == 5
    assert queue.max_offset == 5


def test_a_queue_never_forgets_its_maximum(tmp_path: Path) -> None:
    queue = a_queue(tmp_path)
    queue.append(100, entries(100, 30))
    queue.set_min_log_offset(1000 + 130 * SIZE)
    queue.delete_files_before_min()
    assert (queue.min_offset, queue.max_offset) == (130, 130)
    queue.truncate_from(0)
    assert a_queue(tmp_path).max_offset == queue.max_offset == 130


def test_the_minimum_follows_the_log_and_files_below_it_go_but_never_the_last(
    tmp_path: Path,
) -> None:
    queue = a_queue(tmp_path)
    queue.append(0, entries(0, 70))
    queue.set_min_log_offset(1000 + 33 * SIZE)
    assert queue.min_offset == 33
    assert queue.delete_files_before_min() == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "00000000000000000640",
        "00000000000000000960",
        "00000000000000001280",
    ]
    assert queue.read(31, 5) == b"" and queue.read(33, 5) == entries(33, 5)
    queue.set_min_log_offset(1 << 40)
    assert (queue.min_offset, queue.delete_files_before_min()) == (70, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000001280"]
    again = a_queue(tmp_path)
    assert (again.min_offset, again.max_offset) == (64, 70)


def test_flushed_entries_survive_a_power_loss_and_a_torn_rest_is_cut_by_the_checkpoint() -> None:
    disk = CrashFileSystem()
    table = QueueTable("/s/consumequeue", PER_FILE, disk)
    disk.make_dirs("/s/consumequeue")
    table.get_or_create("T", 1).append(0, entries(0, 20))
    assert table.flush_all() == 1
    maxima = table.maxima()
    table.get_or_create("T", 1).append(20, entries(20, 20))
    table.get_or_create("U", 0).append(0, entries(0, 1))
    for keep in (keep_none, lambda number, _: number % 2 == 1, lambda number, _: 13):
        after = disk.survivor(keep, "boot-2")
        again = QueueTable("/s/consumequeue", PER_FILE, after)
        again.load_all()
        assert again.restore_maxima(maxima)
        assert again.maxima() == {("T", 1): 20}
        assert again.get_or_create("T", 1).read(0, 100) == entries(0, 20)


def test_a_flush_syncs_the_names_of_new_files_and_new_directories_once(tmp_path: Path) -> None:
    synced: list[str] = []

    class Noting(FileSystem):
        def sync_dir(self, path: str) -> None:
            synced.append(path.removeprefix(str(tmp_path)))

    table = QueueTable(str(tmp_path / "q"), PER_FILE, Noting())
    for queue_id in (0, 1):
        table.get_or_create("T", queue_id).append(0, entries(0, 3))
    table.flush_all()
    assert sorted(synced) == ["/q", "/q/T", "/q/T/0", "/q/T/1"]
    del synced[:]
    table.get_or_create("T", 0).append(3, entries(3, 3))
    table.flush_all()
    assert synced == []
    table.get_or_create("T", 1).append(3, entries(3, 20))
    table.flush_all()
    assert synced == ["/q/T/1"]


def test_queues_that_hold_less_than_the_checkpoint_says_are_not_believed(tmp_path: Path) -> None:
    table = QueueTable(str(tmp_path), PER_FILE, FileSystem())
    table.get_or_create("T", 1).append(0, entries(0, 4))
    assert not table.restore_maxima({("T", 1): 5})
    assert not table.restore_maxima({("T", 1): 4, ("T", 2): 1})
    assert table.maxima() == {("T", 1): 4}
    assert table.restore_maxima({("T", 1): 3, ("T", 2): 0}) and table.maxima() == {("T", 1): 3}


def test_many_queues_share_a_bounded_number_of_descriptors(tmp_path: Path) -> None:
    table = QueueTable(str(tmp_path), PER_FILE, FileSystem(), files_max=8)
    for number in range(100):
        table.get_or_create(f"topic-{number // 4}", number % 4).append(0, entries(0, 3))
    assert len(table._cache) == 8
    again = QueueTable(str(tmp_path), PER_FILE, FileSystem(), files_max=8)
    again.load_all()
    assert len(again.all()) == 100 and len(again.topics()) == 25 and len(again._cache) == 8
    assert all(queue.read(0, 9) == entries(0, 3) for _, _, queue in again.all())


def test_the_file_that_was_used_longest_ago_is_let_go(tmp_path: Path) -> None:
    cache = FileCache(FileSystem(), limit=2)
    first = cache.create(str(tmp_path / "a"), 8)
    cache.create(str(tmp_path / "b"), 8)
    assert cache.get(str(tmp_path / "a")) is first
    cache.create(str(tmp_path / "c"), 8)
    assert cache.get(str(tmp_path / "a")) is first and len(cache) == 2
    cache.drop(str(tmp_path / "a"))
    assert cache.get(str(tmp_path / "a")) is not first
    cache.close()
    assert len(cache) == 0


def test_a_file_that_is_let_go_while_it_is_read_stays_open_for_the_reader(tmp_path: Path) -> None:
    files = FileSystem()
    cache = FileCache(files, limit=1)
    cache.create(str(tmp_path / "a"), 8)
    held = cache.get(str(tmp_path / "a"))
    held.pwrite(b"x", 0)
    cache.create(str(tmp_path / "b"), 8)
    assert len(cache) == 1 and held.pread(1, 0) == b"x"


def test_names_that_are_no_topics_make_no_directory(tmp_path: Path) -> None:
    table = QueueTable(str(tmp_path), PER_FILE, FileSystem())
    for topic, queue_id in (
        ("../x", 0),
        ("a/b", 0),
        ("", 0),
        ("x" * 128, 0),
        ("T", -1),
        ("T", 65_536),
        ("T.x", 0),
    ):
        with pytest.raises(MessageIllegal, match="cannot be stored"):
            table.get_or_create(topic, queue_id)
    assert table.get_or_create("%RETRY%g|-_", 65_535).max_offset == 0


def test_deleting_a_topic_removes_its_queues_and_nothing_else(tmp_path: Path) -> None:
    table = QueueTable(str(tmp_path), PER_FILE, FileSystem())
    for topic in ("T", "T2"):
        for queue_id in (0, 1):
            table.get_or_create(topic, queue_id).append(0, entries(0, 20))
    assert table.delete_topic("T") == 2 and table.delete_topic("T") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["T2"] and table.find("T", 0) is None


@pytest.mark.seed("S0-014", "S0-019")
def test_a_topic_is_a_name_and_each_of_its_queues_is_stored_by_itself(tmp_path: Path) -> None:
    table = QueueTable(str(tmp_path), PER_FILE, FileSystem())
    for queue_id, count in ((0, 3), (1, 20), (7, 1)):
        table.get_or_create("T", queue_id).append(0, entries(0, count, code=queue_id))
    assert sorted(
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("0*") if path.is_file()
    ) == [
        "T/0/00000000000000000000",
        "T/1/00000000000000000000",
        "T/1/00000000000000000320",
        "T/7/00000000000000000000",
    ]
    assert table.maxima() == {("T", 0): 3, ("T", 1): 20, ("T", 7): 1}
    assert [table.get_or_create("T", queue_id).read(0, 1) for queue_id in (0, 1, 7)] == [
        entries(0, 1, code=code) for code in (0, 1, 7)
    ]


@pytest.mark.seed("S0-002")
def test_a_queue_holds_a_backlog_of_ten_million_messages(tmp_path: Path) -> None:
    queue, million = a_queue(tmp_path / "q", per_file=300_000), 1_000_000
    batch = np.zeros(million, ENTRIES)
    batch["size"] = SIZE
    for first in range(0, 10 * million, million):
        batch["log_offset"] = np.arange(first, first + million) * SIZE
        assert queue.append(first, batch.tobytes()) == million
    again = a_queue(tmp_path / "q", per_file=300_000)
    assert (again.min_offset, again.max_offset, again.max_log_offset) == (
        0,
        10 * million,
        10 * million * SIZE,
    )
    for offset in (0, 299_999, 300_000, 7_654_321, 9_999_999):
        assert ENTRY.unpack(again.read(offset, 1))[0] == offset * SIZE
    again.set_min_log_offset(5_000_001 * SIZE)
    assert again.min_offset == 5_000_001
    again.delete()
    assert not (tmp_path / "q").exists()


def test_cutting_all_queues_follows_one_log_position(tmp_path: Path) -> None:
    table = QueueTable(str(tmp_path), PER_FILE, FileSystem())
    table.get_or_create("T", 0).append(0, entries(0, 20))
    table.get_or_create("T", 1).append(0, entries(0, 5))
    assert table.max_log_offset() == 1000 + 20 * SIZE
    assert table.truncate_from(1000 + 5 * SIZE) == 15
    assert table.maxima() == {("T", 0): 5, ("T", 1): 5}


@pytest.mark.parametrize("seed", range(8))
def test_any_history_of_appends_cuts_deletions_and_restarts_reads_like_a_list(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    queue, first = a_queue(tmp_path), chance.choice((0, 3, 16, 37))
    model: dict[int, bytes] = {}
    low = top = first
    for _ in range(120):
        action = chance.random()
        if action < 0.5:
            count = chance.randrange(1, 25)
            queue.append(top, entries(top, count))
            model |= {n: entries(n, 1) for n in range(top, top + count)}
            top += count
        elif action < 0.7 and top > low:
            cut = chance.randrange(max(low, top - 20), top + 1)
            queue.truncate_from(1000 + cut * SIZE)
            top = cut
        elif action < 0.8 and top > low:
            low = chance.randrange(low, top)
            queue.set_min_log_offset(1000 + low * SIZE)
            queue.delete_files_before_min()
        elif action < 0.9:
            queue = a_queue(tmp_path)
            queue.set_min_log_offset(1000 + low * SIZE)
        else:
            queue.flush()
        if model:
            assert (queue.min_offset, queue.max_offset) == (low, top)
        assert queue.read(low, 1000) == b"".join(model[n] for n in range(low, top))


def test_queues_are_listed_while_others_come(tmp_path: Path) -> None:
    """The collector may run while the list is made; a finalizer gives the interpreter away, and
    another thread appends to a new topic.
    """
    table = QueueTable(str(tmp_path), PER_FILE, FileSystem())
    for queue_id in range(100):
        table.get_or_create("orders", queue_id)
    late: list[int] = []

    def collected(phase: str, _info: dict[str, int]) -> None:
        if phase == "start" and len(late) < 2_000:
            late.append(len(late))
            table.get_or_create("late", late[-1])

    limits = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(3)
    try:
        for _ in range(20):
            listed, maxima = table.all(), table.maxima()
    finally:
        gc.set_threshold(*limits)
        gc.callbacks.remove(collected)
    assert late, "the collector ran"
    assert len(listed) > 100 < len(maxima)
