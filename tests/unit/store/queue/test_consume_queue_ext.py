"""Extension units: their bytes, where they go, what readers see of them, what a cut, a crash and
retention leave.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_ray.codec.store_files import ENTRY, ENTRY_BYTES
from rmq_ray.files import FileCache, FileSystem
from rmq_ray.store.queue.consume_queue import ConsumeQueue
from rmq_ray.store.queue.consume_queue_ext import (
    ADDRESS_MAX,
    LONG_MIN,
    ConsumeQueueExt,
    ExtendedQueue,
    ExtSettings,
    ExtUnit,
    is_address,
    pack_unit,
    unpack_unit,
)
from rmq_ray.store.queue.queue_table import QueueTable

FILE_BYTES = 200
PER_FILE = 16
STORE_MS = 1_700_000_000_000


def table(path: Path, enabled: bool = True) -> QueueTable:
    return QueueTable(
        str(path / "consumequeue"),
        PER_FILE,
        FileSystem(),
        ext=ExtSettings(str(path / "consumequeue_ext"), FILE_BYTES, enabled),
    )


def units_of(path: Path) -> ConsumeQueueExt:
    files = FileSystem()
    return ConsumeQueueExt(str(path), FILE_BYTES, files, FileCache(files))


def entries(first: int, count: int) -> bytes:
    return b"".join(ENTRY.pack(1_000 * at, 1_000, 7 + at) for at in range(first, first + count))


def fill(queue: ConsumeQueue, count: int, first: int = 0) -> None:
    queue.append(
        first, entries(first, count), STORE_MS, [bytes([first + at]) * 14 for at in range(count)]
    )


def codes(queue: ConsumeQueue, resolved: bool) -> list[int]:
    raw = queue.read(queue.min_offset, queue.max_offset)
    raw = queue.resolve(raw) if resolved else raw
    return [ENTRY.unpack_from(raw, at)[2] for at in range(0, len(raw), ENTRY_BYTES)]


def test_a_units_bytes_are_those_of_the_format() -> None:
    assert (
        pack_unit(ExtUnit(2598919, 1, b"\x05")).hex()
        == "0015000000000027a8070000000000000001000105"
    )
    for unit in (ExtUnit(-1, 0), ExtUnit(1 << 40, STORE_MS, bytes(range(14)))):
        assert unpack_unit(b"x" + pack_unit(unit), 1) == unit
    for broken in (
        b"",
        b"\x00\x14",
        pack_unit(ExtUnit(1, 2, b"abc"))[:-1],
        b"\xff\xff" + bytes(30),
    ):
        assert unpack_unit(broken, 0) is None
    assert is_address(LONG_MIN) and is_address(ADDRESS_MAX) and not is_address(ADDRESS_MAX + 1)


def test_units_fill_files_and_a_full_one_ends_with_its_mark(tmp_path: Path) -> None:
    ext = units_of(tmp_path / "u")
    ext.open_behind(None)
    wanted = [
        ExtUnit(at, at, b"m" * 30) for at in range(5)
    ]  # 50 bytes each: 3 a file, 4 bytes stay free
    addresses = ext.put(wanted)
    assert addresses == [LONG_MIN + position for position in (0, 50, 100, 200, 250)]
    first = (tmp_path / "u" / f"{0:020d}").read_bytes()
    assert len(first) == FILE_BYTES and first[150:] == b"\xff\xff" + bytes(48)
    assert ext.get_many([address for address in addresses if address is not None]) == wanted
    assert ext.get(LONG_MIN + 25) is None and ext.get(LONG_MIN + 400) is None and ext.get(5) is None


def test_a_unit_that_fits_into_no_file_gets_no_address(tmp_path: Path) -> None:
    ext = units_of(tmp_path / "u")
    ext.open_behind(None)
    assert ext.put(
        [ExtUnit(1, 1, bytes(177)), ExtUnit(2, 2, bytes(176)), ExtUnit(3, 3, bytes(32_748))]
    ) == [None, LONG_MIN, None]


@pytest.mark.seed("S4-096")
def test_readers_see_the_tags_code_where_the_entry_has_an_address(tmp_path: Path) -> None:
    queue = table(tmp_path).get_or_create("orders", 0)
    fill(queue, 20)
    assert all(map(is_address, codes(queue, resolved=False)))
    assert codes(queue, resolved=True) == [7 + at for at in range(20)]


@pytest.mark.seed("S4-096")
def test_a_bit_map_rules_entries_out(tmp_path: Path) -> None:
    queue = table(tmp_path).get_or_create("orders", 0)
    fill(queue, 6)
    seen: list[tuple[int, bytes]] = []

    def hit(store_ms: int, bit_map: bytes) -> bool:
        seen.append((store_ms, bit_map))
        return bit_map[0] % 2 == 0

    raw = queue.resolve(queue.read(0, 6), hit)
    assert [ENTRY.unpack_from(raw, at * ENTRY_BYTES)[1] == 1_000 for at in range(6)] == [
        True,
        False,
    ] * 3
    assert seen[5] == (STORE_MS, b"\x05" * 14)


def test_entries_that_are_there_already_get_no_second_unit(tmp_path: Path) -> None:
    queue = table(tmp_path).get_or_create("orders", 0)
    fill(queue, 4)
    before = codes(queue, resolved=False)
    assert (
        queue.append(2, entries(2, 4), STORE_MS) == 2
        and queue.append(0, entries(0, 3), STORE_MS) == 0
    )
    after = codes(queue, resolved=False)
    assert after[:4] == before and after[4] == before[3] + 34 and after[5] == after[4] + 20


def test_after_a_cut_units_go_on_behind_the_last_one_that_is_referred_to(tmp_path: Path) -> None:
    queue = table(tmp_path).get_or_create("orders", 0)
    fill(queue, 12)
    kept = codes(queue, resolved=False)[:3]
    queue.truncate_to(3)
    fill(queue, 1, first=3)
    assert codes(queue, resolved=False) == [*kept, kept[-1] + 34]
    assert sorted(
        path.name for path in (tmp_path / "consumequeue_ext" / "orders" / "0").iterdir()
    ) == [f"{0:020d}"]
    content = (tmp_path / "consumequeue_ext" / "orders" / "0" / f"{0:020d}").read_bytes()
    assert content[4 * 34 :] == bytes(FILE_BYTES - 4 * 34), (
        "nothing of the cut units is left behind the last one"
    )


def test_a_restart_goes_on_where_the_last_life_ended_also_without_the_option(
    tmp_path: Path,
) -> None:
    first = table(tmp_path)
    fill(first.get_or_create("orders", 0), 5)
    first.flush_all()
    first.close()
    without = table(tmp_path, enabled=False)
    without.load_all()
    queue = without.get_or_create("orders", 0)
    queue.append(5, entries(5, 1))
    assert (
        codes(queue, resolved=True) == [7, 8, 9, 10, 11, 12]
        and codes(queue, resolved=False)[5] == 12
    )
    without.close()
    again = table(tmp_path)
    again.load_all()
    queue = again.get_or_create("orders", 0)
    fill(queue, 2, first=6)
    assert codes(queue, resolved=True) == [7 + at for at in range(8)]


def test_a_unit_that_the_power_took_counts_as_wanted_and_its_place_is_not_used_again(
    tmp_path: Path,
) -> None:
    first = table(tmp_path)
    fill(first.get_or_create("orders", 0), 3)
    first.close()
    path = tmp_path / "consumequeue_ext" / "orders" / "0" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[:68] + bytes(FILE_BYTES - 68))
    again = table(tmp_path)
    again.load_all()
    queue = again.get_or_create("orders", 0)
    raw = queue.resolve(queue.read(0, 3), lambda _store_ms, _bit_map: True, lost=99)
    assert [ENTRY.unpack_from(raw, at * ENTRY_BYTES)[2] for at in range(3)] == [7, 8, 99]
    fill(queue, 1, first=3)
    assert codes(queue, resolved=False)[3] == LONG_MIN + FILE_BYTES


def test_units_go_with_the_entries_that_refer_to_them(tmp_path: Path) -> None:
    queues = table(tmp_path)
    queue = queues.get_or_create("orders", 0)
    fill(queue, 40)
    names = tmp_path / "consumequeue_ext" / "orders" / "0"
    assert len(list(names.iterdir())) == 8
    queues.set_min_log_offset(33_000)
    queues.delete_files_before_min()
    assert (
        codes(queue, resolved=True) == [7 + at for at in range(33, 40)]
        and len(list(names.iterdir())) == 2
    )
    (tmp_path / "rmq_ray").mkdir()
    assert queues.detach_topic("orders") == 1 and not names.exists()


def test_deleted_queues_begin_anew(tmp_path: Path) -> None:
    queue = table(tmp_path).get_or_create("orders", 0)
    fill(queue, 10)
    queue.delete()
    fill(queue, 1)
    assert (
        isinstance(queue, ExtendedQueue)
        and codes(queue, resolved=False) == [LONG_MIN]
        and codes(queue, resolved=True) == [7]
    )
