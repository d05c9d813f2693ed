"""The disk forgets just what it may forget."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torture.disk import Disk, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no FUSE here: {why_not()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path, seed=1) as made:
        yield made


def lose(disk: Disk) -> None:
    disk.set("a", off=True)
    disk.lose_power("a")
    disk.set("a", off=False)


def synced(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def test_what_was_synced_is_there_after_a_loss_of_power(disk: Disk) -> None:
    folder = disk.path / "a"
    folder.mkdir()
    file = folder / "log"
    file.write_bytes(b"x" * 300_000)
    synced(file)
    synced(folder)
    lose(disk)
    assert file.read_bytes() == b"x" * 300_000


def test_what_was_not_synced_is_gone_sooner_or_later_and_what_was_stays(disk: Disk) -> None:
    folder = disk.path / "a"
    folder.mkdir()
    file = folder / "log"
    file.write_bytes(b"a" * 4_096)
    synced(file)
    synced(folder)
    fates = set()
    for number in range(12):
        with file.open("r+b", buffering=0) as opened:
            opened.seek(4_096)
            opened.write(bytes((number + 1,)) * 4_096)
        lose(disk)
        data = file.read_bytes()
        assert data[:4_096] == b"a" * 4_096
        fates.add(data[4_096:].count(number + 1))
    assert 0 in fates and 4_096 in fates


def test_a_new_file_in_a_directory_that_was_not_synced_may_be_gone(disk: Disk) -> None:
    folder = disk.path / "a"
    folder.mkdir()
    found = set()
    for number in range(12):
        file = folder / str(number)
        file.write_bytes(b"x")
        synced(file)
        lose(disk)
        found.add(file.exists())
    assert found == {True, False}


def test_a_rename_is_whole_or_not_there(disk: Disk) -> None:
    folder = disk.path / "a"
    folder.mkdir()
    (folder / "table").write_bytes(b"old")
    synced(folder / "table")
    synced(folder)
    seen = set()
    for _ in range(12):
        (folder / "table.new").write_bytes(b"new")
        synced(folder / "table.new")
        os.replace(folder / "table.new", folder / "table")
        lose(disk)
        seen.add((folder / "table").read_bytes())
    assert seen <= {b"old", b"new"} and b"new" in seen


def test_a_disk_is_off_full_or_broken_when_told(disk: Disk) -> None:
    folder, other = disk.path / "a", disk.path / "b"
    folder.mkdir()
    other.mkdir()
    for told, wanted in (
        ({"off": True}, errno.EIO),
        ({"full": True}, errno.ENOSPC),
        ({"write_errors": 1}, errno.EIO),
    ):
        disk.set("a", **told)
        with pytest.raises(OSError) as caught:
            (folder / "file").write_bytes(b"x" * 10)
        assert caught.value.errno == wanted
        (other / "file").write_bytes(b"other hosts go on")
        disk.set("a", **dict.fromkeys(told, 0))
    (folder / "file").write_bytes(b"x" * 10)
    disk.set("a", sync_errors=1)
    with pytest.raises(OSError):
        synced(folder / "file")
    synced(folder / "file")


def test_a_disk_that_lies_forgets_what_it_said_it_had_synced(disk: Disk) -> None:
    folder = disk.path / "a"
    folder.mkdir()
    synced(folder)
    disk.set("a", lies=True)
    gone = 0
    for number in range(12):
        file = folder / str(number)
        file.write_bytes(b"x" * 2_048)
        synced(file)
        synced(folder)
        lose(disk)
        gone += not file.exists() or file.read_bytes() != b"x" * 2_048
    assert gone


def test_a_sync_that_fails_and_forgets_leaves_what_was_synced_before(disk: Disk) -> None:
    folder = disk.path / "a"
    folder.mkdir()
    file = folder / "log"
    file.write_bytes(b"old!")
    synced(file)
    synced(folder)
    disk.set("a", sync_errors=1, forgets=True)
    file.write_bytes(b"new!")
    with pytest.raises(OSError):
        synced(file)
    synced(file)
    lose(disk)
    assert file.read_bytes() == b"old!"


def test_a_short_write_tells_how_much_it_wrote(disk: Disk) -> None:
    folder = disk.path / "a"
    folder.mkdir()
    disk.set("a", short_writes=1)
    with (folder / "file").open("wb", buffering=0) as file:
        assert file.write(b"x" * 1_000) == 500
        assert file.write(b"y" * 500) == 500
    assert (folder / "file").read_bytes() == b"x" * 500 + b"y" * 500


def test_a_flipped_bit_and_a_cut_are_there_for_good(disk: Disk) -> None:
    folder = disk.path / "a" / "commitlog"
    folder.mkdir(parents=True)
    file = folder / "0"
    file.write_bytes(bytes(range(1, 101)) + bytes(100))
    assert disk.files("a", "commitlog") == {"commitlog/0": 200}
    disk.flip("a", "commitlog/0", 0.5)
    disk.cut("a", "commitlog/0", 0.75)
    lose_names_too = disk.path / "a"
    synced(folder)
    synced(lose_names_too)
    data = file.read_bytes()
    assert len(data) == 150
    wrong = [at for at, byte in enumerate(bytes(range(1, 101))) if data[at] != byte]
    assert wrong == [50] and (data[50] ^ 51).bit_count() == 1
