"""The index by key: Apache RocketMQ's bytes and query rules, whole batches like single puts, and
what a crash leaves.

``tests/golden/store/index-7-slots-20-items`` was written by Apache RocketMQ 4.9.7's IndexFile
class.
"""

from __future__ import annotations

import random
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.codec.record import decode_record
from rmq_ray.errors import StoreCorrupt, StoreFailed, StoreFull
from rmq_ray.files import FileSystem
from rmq_ray.model.hashing import java_hash
from rmq_ray.store.queue.index_file import ITEM, IndexFile, index_file_bytes
from rmq_ray.store.queue.index_service import (
    IndexService,
    file_name,
    hash_key,
    hash_keys,
    hash_texts,
    hash_unique_keys,
)
from rmq_ray.store.reading import record_lookup
from tests.support.brokers.store_rig import StoreRig
from tests.support.faults.crash_fs import CrashFileSystem, keep_all, keep_none

GOLDEN = Path(__file__).parents[3] / "golden" / "store"
START_MS = 1_700_000_000_000
FOREVER = 1 << 62
GOLDEN_KEYS = [
    ("TopicTest", "KEY1"),
    ("TopicTest", "KEY2"),
    ("order", "10001"),
    ("TopicTest", "KEY1"),
    ("T", "標籤"),
    ("TopicTest", "polygenelubricants"),
    ("TopicTest", "C0A8000A3E5418B4AAC20001E2400000"),
]


def a_service(
    path: Path | str,
    slots: int = 7,
    items: int = 20,
    files: FileSystem | None = None,
    clock: ManualClock | None = None,
) -> IndexService:
    return IndexService(
        str(path), slots, items, files or FileSystem(), clock or ManualClock(START_MS)
    )


def put_golden(service: IndexService) -> None:
    for n, (topic, key) in enumerate(GOLDEN_KEYS):
        service.put(topic, (key,), 1000 + 150 * n, START_MS + 700 * n)


def query(
    service: IndexService, topic: str, key: str, count: int, begin_ms: int, end_ms: int
) -> list[int]:
    """The first proposals."""
    return list(islice(service.query(topic, key, begin_ms, end_ms), count))


class ModelFile:
    """Apache RocketMQ's algorithm, one item at a time."""

    def __init__(self, slots: int, items: int) -> None:
        self.slots, self.items_max = [0] * slots, items
        self.items: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)]
        self.begin_ms = self.end_ms = self.used = 0

    def put(self, key_hash: int, log_offset: int, store_ms: int) -> None:
        if len(self.items) == 1:
            self.begin_ms = store_ms
        slot = key_hash % len(self.slots)
        self.used += self.slots[slot] == 0
        seconds = max(0, (store_ms - self.begin_ms) // 1000)
        self.items.append((key_hash, log_offset, seconds, self.slots[slot]))
        self.slots[slot] = len(self.items) - 1
        self.end_ms = store_ms

    def contents(self) -> bytes:
        head = (
            self.begin_ms.to_bytes(8, "big")
            + self.end_ms.to_bytes(8, "big")
            + self.items[1][1].to_bytes(8, "big")
            + self.items[-1][1].to_bytes(8, "big")
        )
        head += self.used.to_bytes(4, "big") + len(self.items).to_bytes(4, "big")
        slots = b"".join(value.to_bytes(4, "big") for value in self.slots)
        items = b"".join(ITEM.pack(*item) for item in self.items)
        return (head + slots + items).ljust(40 + 4 * len(self.slots) + 20 * self.items_max, b"\0")


def only_file(path: Path) -> bytes:
    (found,) = sorted(path.iterdir())
    return found.read_bytes()


def test_hashes_are_the_ones_of_java() -> None:
    assert (
        hash_key("TopicTest", "KEY1") == 1656969516
        and hash_key("TopicTest", "KEY1") % 5_000_000 == 1969516
    )
    assert (
        hash_key("order", "10001") == 192478781
        and hash_key("order", "10001") % 5_000_000 == 2478781
    )
    assert hash_key("", "") == 35
    zero = next(
        key
        for key in ("polygenelubricants", "DESIGNING WORKHOUSES")
        if java_hash(key) == -(1 << 31)
    )
    assert hash_texts([zero] * 20).tolist() == [0] * 20


def test_hashing_many_keys_at_once_gives_what_hashing_one_gives() -> None:
    chance = random.Random(3)
    keys = [
        "".join(chance.choice("abcXYZ0189 -%") for _ in range(chance.randrange(1, 40)))
        for _ in range(500)
    ]
    assert hash_keys("T", keys).tolist() == [hash_key("T", key) for key in keys]
    assert hash_keys("T", keys[:3]).tolist() == [hash_key("T", key) for key in keys[:3]]
    odd = [*keys[:20], "ключ", "鍵", "a😀b"]
    assert hash_keys("T", odd).tolist() == [hash_key("T", key) for key in odd]
    unique = [f"C0A8000A3E5418B4AAC2{chance.randrange(1 << 48):012X}" for _ in range(200)]
    matrix = np.frombuffer("".join(unique).encode(), np.uint8).reshape(-1, 32)
    assert hash_unique_keys("TopicTest", matrix).tolist() == [
        hash_key("TopicTest", key) for key in unique
    ]
    assert all(hash_key("T", key) == abs(java_hash(f"T#{key}")) for key in odd)


def test_the_file_is_the_one_that_apache_rocketmq_writes(tmp_path: Path) -> None:
    service = a_service(tmp_path)
    put_golden(service)
    service.close()
    assert only_file(tmp_path) == (GOLDEN / "index-7-slots-20-items").read_bytes()


def test_a_file_that_apache_rocketmq_wrote_answers_and_takes_more(tmp_path: Path) -> None:
    (tmp_path / "20231114221320000").write_bytes((GOLDEN / "index-7-slots-20-items").read_bytes())
    service = a_service(tmp_path)
    assert service.load() == 0
    assert query(service, "TopicTest", "KEY1", 32, 0, FOREVER) == [1450, 1000]
    assert (service.end_offset, service.last_update_ms) == (1900, START_MS + 4200)
    service.put("TopicTest", ("KEY1",), 5000, START_MS + 9000)
    assert query(service, "TopicTest", "KEY1", 32, 0, FOREVER) == [5000, 1450, 1000]
    assert len(list(tmp_path.iterdir())) == 1


def test_real_files_have_exactly_420000040_bytes_and_take_little_room(tmp_path: Path) -> None:
    service = a_service(tmp_path, 5_000_000, 20_000_000)
    put_golden(service)
    service.close()
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size == 420_000_040 == index_file_bytes(5_000_000, 20_000_000)
    assert path.stat().st_blocks * 512 < 1_000_000
    with path.open("rb") as file:
        file.seek(40 + 4 * 1969516)
        assert int.from_bytes(file.read(4)) == 4  # the newest of the two records with KEY1
        file.seek(40 + 20_000_000 + 20 * 4)
        assert ITEM.unpack(file.read(20)) == (1656969516, 1450, 2, 1)


@pytest.mark.parametrize("batch", [1, 3, 64, 500])
def test_batches_link_their_items_as_single_puts_do(tmp_path: Path, batch: int) -> None:
    chance = np.random.default_rng(batch)
    hashes = chance.integers(0, 300, 1_900).astype(
        np.int32
    )  # many collisions within a batch and between batches
    model = ModelFile(97, 2_000)
    service = a_service(tmp_path, 97, 2_000)
    for at in range(0, len(hashes), batch):
        part = hashes[at : at + batch]
        store_ms = START_MS + at * 10
        service.put_many(part, np.arange(at, at + len(part)) * 100, store_ms)
        for n, value in enumerate(part.tolist()):
            model.put(value, (at + n) * 100, store_ms)
    service.close()
    assert only_file(tmp_path) == model.contents()


def test_single_puts_wait_for_one_another_and_are_in_order_with_batches(tmp_path: Path) -> None:
    model = ModelFile(97, 2_000)
    service = a_service(tmp_path, 97, 2_000)
    for n in range(300):
        if n % 70 == 69:
            service.put_many(
                np.array([n % 13] * 2, np.int32), np.array([n * 10, n * 10 + 1]), START_MS + n
            )
            model.put(n % 13, n * 10, START_MS + n)
            model.put(n % 13, n * 10 + 1, START_MS + n)
        else:
            service.put("T", (f"k{n % 5}", "other"), n * 10, START_MS + n)
            model.put(hash_key("T", f"k{n % 5}"), n * 10, START_MS + n)
            model.put(hash_key("T", "other"), n * 10, START_MS + n)
    assert service.end_offset == 2990
    service.close()
    assert only_file(tmp_path) == model.contents()


def test_queries_find_a_single_put_at_once(tmp_path: Path) -> None:
    service = a_service(tmp_path)
    service.put("T", ("a", "b"), 77, START_MS)
    assert (
        query(service, "T", "a", 32, 0, FOREVER) == query(service, "T", "b", 32, 0, FOREVER) == [77]
    )
    assert (
        query(service, "T", "c", 32, 0, FOREVER) == query(service, "U", "a", 32, 0, FOREVER) == []
    )


def test_queries_give_the_newest_first_and_as_many_as_are_asked_for(tmp_path: Path) -> None:
    service = a_service(tmp_path, 97, 300)
    for n in range(1_000):
        service.put("T", ("same",), n, START_MS + n)
    assert query(service, "T", "same", 5, 0, FOREVER) == [999, 998, 997, 996, 995]
    assert query(service, "T", "same", 2_000, 0, FOREVER) == list(range(999, -1, -1))
    assert query(service, "T", "same", 0, 0, FOREVER) == []


def test_a_full_file_is_followed_by_the_next_and_queries_walk_them_newest_first(
    tmp_path: Path,
) -> None:
    service = a_service(tmp_path)  # 19 items fit: item 0 is never used
    for n in range(60):
        service.put("T", (f"k{n % 30}",), 100 * n, START_MS + n * 1000)
    assert query(service, "T", "k3", 32, 0, FOREVER) == [3300, 300]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert (
        len(names) == 4
        and len(set(names)) == 4
        and all(len(name) == 17 and name.isdigit() for name in names)
    )
    service.close()
    headers = [int.from_bytes((tmp_path / name).read_bytes()[36:40]) for name in names]
    assert headers == [20, 20, 20, 4]
    again = a_service(tmp_path)
    again.load()
    assert [query(again, "T", f"k{n}", 32, 0, FOREVER) for n in range(30)] == [
        [100 * (n + 30), 100 * n] for n in range(30)
    ]


def test_one_batch_may_fill_several_files(tmp_path: Path) -> None:
    service = a_service(tmp_path)
    service.put_many(np.arange(50, dtype=np.int32), np.arange(50) * 10, START_MS)
    service.flush()
    assert len(list(tmp_path.iterdir())) == 3 and service.end_offset == 490


def test_times_are_seconds_after_the_files_begin_and_bound_a_query(tmp_path: Path) -> None:
    service = a_service(tmp_path, 97, 300)
    for n in range(100):
        service.put("T", ("k",), n, START_MS + n * 500)
    assert query(service, "T", "k", 64, START_MS + 10_000, START_MS + 11_999) == [23, 22, 21, 20]
    assert query(service, "T", "k", 64, START_MS + 60_000, FOREVER) == []
    assert query(service, "T", "k", 64, 0, START_MS - 1) == []
    assert query(service, "T", "k", 64, START_MS + 49_000, START_MS + 49_000) == [99, 98]


def test_a_query_ends_at_the_first_item_and_file_that_are_too_old_as_rocketmqs_does(
    tmp_path: Path,
) -> None:
    service = a_service(tmp_path, 7, 5)  # four items a file
    for seconds, offset in ((0, 0), (60, 1), (70, 2), (80, 3), (5, 4), (20, 5), (15, 6), (30, 7)):
        service.put("T", ("k",), offset, START_MS + seconds * 1000)
    assert query(service, "T", "k", 64, START_MS + 18_000, FOREVER) == [
        7
    ]  # 15 s ends the chain, 5 s ends the files
    assert query(service, "T", "k", 64, START_MS + 5_000, FOREVER) == [7, 6, 5, 4, 3, 2, 1]


def test_a_store_time_before_the_files_begin_counts_as_its_begin(tmp_path: Path) -> None:
    service = a_service(tmp_path)
    service.put("T", ("a",), 1, START_MS)
    service.put("T", ("b",), 2, START_MS - 60_000)
    service.flush_slots()
    assert ITEM.unpack(only_file(tmp_path)[40 + 28 + 40 :][:20])[2] == 0


def test_files_are_named_by_local_time_and_never_twice(tmp_path: Path) -> None:
    assert len(file_name(START_MS + 7)) == 17 and file_name(START_MS + 7).endswith("007")
    clock = ManualClock(START_MS)
    service = a_service(tmp_path, clock=clock)
    service.put_many(np.arange(30, dtype=np.int32), np.arange(30), START_MS)
    clock.advance_ms(-3_600_000)  # the hour comes twice when summer time ends
    service.put_many(np.arange(20, dtype=np.int32), np.arange(30, 50), START_MS)
    service.flush()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        file_name(START_MS),
        f"{int(file_name(START_MS)) + 1}",
        f"{int(file_name(START_MS)) + 2}",
    ]


def test_after_an_unclean_stop_files_younger_than_rocketmqs_checkpoint_go(tmp_path: Path) -> None:
    service = a_service(tmp_path)
    for n in range(30):
        service.put("T", ("k",), n, START_MS + n)
    service.flush()
    assert (
        service.index_ms == START_MS + 18
    )  # the full file's last record; the second file's header knows no item yet
    again = a_service(tmp_path)
    assert again.load(service.index_ms) == 0
    assert (again.end_offset, query(again, "T", "k", 64, 0, FOREVER)) == (
        18,
        list(range(18, -1, -1)),
    )
    for n in range(19, 25):
        again.put("T", ("k",), n, START_MS + n)
    assert query(again, "T", "k", 64, 0, FOREVER) == list(range(24, -1, -1))
    again.flush_slots()
    assert again.index_ms == START_MS + 24
    last = a_service(tmp_path)
    assert last.load(START_MS + 23) == 1 and query(last, "T", "k", 64, 0, FOREVER) == list(
        range(18, -1, -1)
    )
    assert a_service(tmp_path).load(START_MS) == 1 and not list(tmp_path.iterdir())


def test_a_header_on_disk_never_promises_more_than_the_slots_on_disk_keep() -> None:
    """Apache RocketMQ indexes no record again that lies before the last file's endPhyOffset."""
    disk = CrashFileSystem()
    service = a_service("/i", 1_000, 5_000, disk)
    service.put_many(np.arange(100, dtype=np.int32), np.arange(100), START_MS)
    service.flush_slots()
    service.put_many(np.arange(100, 200, dtype=np.int32), np.arange(100, 200), START_MS + 1_000)
    service.flush()
    path = next(path for path in disk.names if path.startswith("/i/"))
    assert int.from_bytes(disk.read_whole(path)[36:40]) == 101
    disk.fail_next("pwrite", "/i/")
    with pytest.raises(StoreFailed):
        service.flush_slots()
    assert int.from_bytes(disk.read_whole(path)[36:40]) == 101
    for after in (disk.survivor(keep_all), disk.survivor(keep_none, "boot-2")):
        again = a_service("/i", 1_000, 5_000, after)
        assert again.load(START_MS) == 0 and again.end_offset == 99


def test_a_query_of_a_file_whose_slots_know_more_than_its_header_walks_back(tmp_path: Path) -> None:
    service = a_service(tmp_path)
    for n in range(3):
        service.put("T", ("k",), n, START_MS)
    service.close()
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[36:40] = (3).to_bytes(4)
    path.write_bytes(data)
    again = a_service(tmp_path)
    again.load()
    assert query(again, "T", "k", 64, 0, FOREVER) == [1, 0]
    again.put("T", ("k",), 7, START_MS)
    assert query(again, "T", "k", 64, 0, FOREVER) == [7, 1, 0]


def test_files_of_another_size_are_removed_and_foreign_files_refused(tmp_path: Path) -> None:
    (tmp_path / "20231114221320000").write_bytes(b"")
    (tmp_path / "20231114221320001").write_bytes(bytes(index_file_bytes(7, 21)))
    assert a_service(tmp_path).load() == 2
    (tmp_path / "notes.txt").write_bytes(b"")
    with pytest.raises(StoreCorrupt, match=r"notes\.txt is no index file"):
        a_service(tmp_path).load()


def test_files_below_the_logs_beginning_go_but_the_newest_stays(tmp_path: Path) -> None:
    service = a_service(tmp_path)
    for n in range(60):
        service.put("T", (f"k{n}",), 100 * n, START_MS)
    service.flush()
    assert service.delete_before(1800) == 0
    assert service.delete_before(1801) == 1
    assert service.delete_before(1 << 40) == 2 and len(list(tmp_path.iterdir())) == 1
    assert query(service, "T", "k59", 32, 0, FOREVER) == [5900]


def crash_points(disk: CrashFileSystem) -> list[CrashFileSystem]:
    """Process death, and power losses that keep none, some or torn writes."""
    return [
        disk.survivor(keep_all),
        disk.survivor(keep_none, "boot-2"),
        disk.survivor(lambda n, _: n % 2 == 0, "boot-2"),
        disk.survivor(lambda n, _: n % 3 != 0, "boot-2"),
        disk.survivor(lambda n, _: 7 if n % 2 else True, "boot-2", names=True),
    ]


@pytest.mark.parametrize("slots_first", [False, True])
@pytest.mark.parametrize("flushed", [0, 1, 11, 19, 20, 45])
def test_a_restore_is_exactly_what_the_checkpoint_says_and_goes_on_from_there(
    flushed: int, slots_first: bool
) -> None:
    disk = CrashFileSystem()
    service = a_service("/s/index", files=disk)

    def put(target: IndexService, n: int) -> None:
        target.put("T", (f"k{n % 9}",), 100 * n, START_MS + n * 1000)

    for n in range(flushed):
        put(service, n)
        if slots_first and n == flushed // 2:
            service.flush_slots()
    service.flush()
    state = service.state()
    for n in range(flushed, flushed + 13):
        put(service, n)
        if n % 5 == 0:
            service._write_pending()
    if slots_first:
        service.flush_slots()  # slots know more than the checkpoint
    for after in crash_points(disk):
        again = a_service("/s/index", files=after)
        again.load()
        assert again.restore(state)
        assert again.end_offset == (100 * (flushed - 1) if flushed else 0)
        for n in range(flushed, flushed + 13):
            put(again, n)
        wanted = {
            key: [100 * n for n in range(flushed + 12, -1, -1) if n % 9 == key] for key in range(9)
        }
        assert {key: query(again, "T", f"k{key}", 64, 0, FOREVER) for key in range(9)} == wanted
        again.close()
        clean = a_service("/s/index", files=after)
        clean.load()
        assert {key: query(clean, "T", f"k{key}", 64, 0, FOREVER) for key in range(9)} == wanted


def test_a_restored_file_has_the_bytes_of_one_that_never_crashed() -> None:
    disk, calm = CrashFileSystem(), CrashFileSystem()
    service, model = a_service("/i", 97, 500, disk), a_service("/i", 97, 500, calm)
    hashes = np.random.default_rng(1).integers(0, 1 << 31, 400).astype(np.int32)
    for target in (service, model):
        target.put_many(hashes[:150], np.arange(150), START_MS)
        target.flush_slots()
        target.put_many(hashes[150:250], np.arange(150, 250), START_MS + 5_000)
        target.flush()
    state = service.state()
    service.put_many(hashes[:100], np.arange(250, 350), START_MS + 9_000)
    service.flush_slots()
    after = disk.survivor(keep_all)
    again = a_service("/i", 97, 500, after)
    again.load()
    assert again.restore(state)
    for target in (again, model):
        target.put_many(hashes[250:], np.arange(250, 400), START_MS + 9_000)
        target.close()
    (path,) = [path for path in after.names if path.startswith("/i/")]
    assert after.read_whole(path) == calm.read_whole(path)


def test_a_state_that_the_files_contradict_is_refused(tmp_path: Path) -> None:
    service = a_service(tmp_path)
    put_golden(service)
    service.flush()
    state = service.state()
    other = a_service(tmp_path / "none")
    other.load()
    assert not other.restore(state)
    again = a_service(tmp_path)
    again.load()
    assert not again.restore({**state, "header": [*state["header"][:5], 15]})
    assert not again.restore({**state, "last_item": bytes(20)})
    assert again.restore({}) and not list(tmp_path.iterdir())


def test_a_second_flush_writes_nothing_and_slots_are_left_alone_until_they_are_far_behind() -> None:
    disk = CrashFileSystem()
    service = a_service("/i", 1_000, 5_000, disk)
    service.put_many(np.arange(100, dtype=np.int32), np.arange(100), START_MS)
    service.flush()
    syncs, writes = disk.syncs, disk.writes
    service.flush()
    assert (disk.syncs, disk.writes) == (syncs, writes)
    (path,) = [path for path in disk.names if path.startswith("/i/")]
    assert not any(disk.read_whole(path)[40:4040])
    service.flush_slots()
    assert any(disk.read_whole(path)[40:4040])


def test_items_that_meet_a_full_disk_are_not_forgotten() -> None:
    disk = CrashFileSystem()
    service = a_service("/i", files=disk)
    service.put("T", ("a",), 1, START_MS)
    service.flush()
    service.put("T", ("b",), 2, START_MS)
    disk.fail_next("pwrite", "/i/", "ENOSPC")
    with pytest.raises(StoreFull):
        query(service, "T", "b", 32, 0, FOREVER)
    assert query(service, "T", "b", 32, 0, FOREVER) == [2]


def test_flushes_and_queries_run_beside_puts(tmp_path: Path) -> None:
    service = a_service(tmp_path, 1_009, 4_000)
    faults: list[str] = []
    done = threading.Event()

    def beside() -> None:
        rounds = 0
        while not done.is_set() and rounds < 10_000:
            rounds += 1
            service.flush_slots()
            found = query(service, "T", "k1", 64, 0, FOREVER)
            if found != sorted(found, reverse=True):
                faults.append(f"not newest first: {found}")

    threads = [threading.Thread(target=beside, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for n in range(3_000):
        service.put("T", (f"k{n % 7}", f"u{n}"), n, START_MS + n)
    done.set()
    for thread in threads:
        thread.join(20)
    assert faults == []
    service.close()
    again = a_service(tmp_path, 1_009, 4_000)
    again.load()
    assert [query(again, "T", f"u{n}", 5, 0, FOREVER) for n in range(3_000)] == [
        [n] for n in range(3_000)
    ]


def test_a_damaged_chain_ends_a_query_instead_of_going_in_circles(tmp_path: Path) -> None:
    file = IndexFile.create(str(tmp_path / "20231114221320000"), 7, 20, FileSystem(), None)
    file.put_many(np.array([3, 3, 3], np.int32), np.array([10, 20, 30]), START_MS)
    file.close()
    path = tmp_path / "20231114221320000"
    data = bytearray(path.read_bytes())
    data[40 + 28 + 20 + 16 : 40 + 28 + 40] = (3).to_bytes(4)  # item 1 points forward to item 3
    path.write_bytes(data)
    again = IndexFile.load(str(path), 7, 20, FileSystem())
    assert list(again.query(3, 0, FOREVER)) == [30, 20, 10]


def test_slots_that_point_behind_the_last_item_count_as_empty(tmp_path: Path) -> None:
    service = a_service(tmp_path)
    service.put("T", ("a",), 1, START_MS)
    service.close()
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    slot = 40 + 4 * (hash_key("T", "b") % 7)
    data[slot : slot + 4] = (15).to_bytes(
        4
    )  # as Apache RocketMQ's mapped pages may be after a power loss
    path.write_bytes(data)
    again = a_service(tmp_path)
    again.load()
    again.put("T", ("b",), 2, START_MS)
    assert query(again, "T", "b", 32, 0, FOREVER) == [2] and query(
        again, "T", "a", 32, 0, FOREVER
    ) == [1]
    again.close()
    assert ITEM.unpack(path.read_bytes()[40 + 28 + 40 :][:20])[3] in (0, 1)


def test_topics_and_keys_that_only_share_a_hash_are_not_mixed_up() -> None:
    rig = StoreRig()
    for number, (topic, key) in enumerate((("Aa", "CC"), ("BB", "CC"), ("Aa", "Bb"), ("BB", "Bb"))):
        rig.send([f"{topic} {key}".encode()], number, topic=topic, head=f"KEYS\x01{key}")
    rig.settle()
    for topic in ("Aa", "BB"):
        for key in ("CC", "Bb"):
            found = rig.store.query(topic, key, 32, 0, FOREVER)
            assert [decode_record(record).body.decode() for record in found] == [
                f"{topic} {key}"
            ], "all four have one hash in the index"
    assert java_hash("Aa#CC") == java_hash("BB#CC") == java_hash("Aa#Bb") == java_hash("BB#Bb")


def test_a_query_reads_no_more_than_so_many_records_of_other_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_lookup, "READ_MAX", 20)
    rig = StoreRig()
    for number, (key, count) in enumerate((("user-b1", 1), ("user-aP", 19), ("user-aP", 1))):
        before = rig.store.query("TopicTest", "user-b1", 4, 0, FOREVER)
        rig.send([b"x"] * count, number, head=f"KEYS\x01{key}")
        rig.settle()
    assert len(before) == 1 and rig.store.query("TopicTest", "user-b1", 4, 0, FOREVER) == []


def test_a_limit_counts_what_was_found_and_not_what_the_index_proposed() -> None:
    rig = StoreRig()
    assert java_hash("user-b1") == java_hash("user-aP")
    for number, (key, count) in enumerate((("user-b1", 3), ("user-aP", 200), ("user-b1", 1))):
        rig.send([b"%d" % n for n in range(count)], number, head=f"KEYS\x01{key}")
    rig.settle()

    def found(key: str, limit: int) -> list[bytes]:
        return [
            decode_record(raw).body for raw in rig.store.query("TopicTest", key, limit, 0, FOREVER)
        ]

    assert found("user-b1", 4) == found("user-b1", 1_000) == [b"0", b"2", b"1", b"0"]
    assert found("user-b1", 2) == [b"0", b"2"]
    newest = [b"%d" % n for n in range(199, 135, -1)]
    assert found("user-aP", 1_000) == newest, "64 at most, as RocketMQ"
    assert found("user-b1", 0) == []


@pytest.mark.parametrize("first_ms", [0, 250, 999])
def test_a_window_is_compared_to_the_millisecond(first_ms: int) -> None:
    rig = StoreRig(clock=ManualClock(START_MS + first_ms))
    base = rig.clock.now_ms()
    times = (0, 1, 700, 1_300, 2_000, 2_001)
    for number, at_ms in enumerate(times):
        rig.clock.advance_ms(base + at_ms - rig.clock.now_ms())
        rig.send([b"%d" % at_ms], number, head="KEYS\x01k")
    rig.settle()
    for begin in (*times, 699, 701, 1_999):
        for end in (*times, 699, 701, 1_999):
            found = rig.store.query("TopicTest", "k", 64, base + begin, base + end)
            wanted = [b"%d" % at_ms for at_ms in reversed(times) if begin <= at_ms <= end]
            assert [decode_record(raw).body for raw in found] == wanted, (begin, end)


def test_a_query_finds_what_another_thread_is_about_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = a_service(tmp_path)
    service.put("T", ("key",), 1000, START_MS)
    write, begun, go = service._put_arrays, threading.Event(), threading.Event()

    def slow(*items: Any) -> None:
        begun.set()
        go.wait(10)
        write(*items)

    monkeypatch.setattr(service, "_put_arrays", slow)
    flusher = threading.Thread(target=service.flush)
    flusher.start()
    assert begun.wait(10)
    threading.Timer(0.2, go.set).start()
    assert query(service, "T", "key", 1, 0, FOREVER) == [1000]
    flusher.join()
