"""The controller's ledger: what was written is there after a loss of power at any moment, and never
half of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_ray.errors import StoreCorrupt, StoreError, StoreForeign, StoreInUse, StoreUnwritable
from rmq_ray.files import FileSystem
from rmq_ray.model.replica_roles import Assignment, Standing
from rmq_ray.store.tables.ledger import Entry, Ledger
from tests.support.faults.crash_fs import Change, CrashFileSystem, Keep, keep_all, keep_none

ROOT = "/disk/controller"


def entry(epoch: int, master: int | None = 0, version: int = 0) -> Entry:
    return Entry(
        Standing(
            Assignment(
                "broker-a",
                epoch,
                master,
                None if master is None else f"host:{master}",
                (0, 1),
                version,
            ),
            1,
        ),
        {0: "aa", 1: "bb"},
    )


def opened(disk: FileSystem, root: str = ROOT, cluster: str = "default") -> Ledger:
    ledger = Ledger(root, cluster, disk)
    ledger.open()
    return ledger


def half(_number: int, change: Change) -> bool | int:
    return len(change.data) // 2 if change.data else True


def test_what_was_written_is_read_again_by_the_next_controller(tmp_path: Path) -> None:
    root = str(tmp_path / "controller")
    ledger = opened(FileSystem(), root)
    assert ledger.read("broker-a") == Entry()
    for written in (Entry(None, {0: "aa"}), entry(1, None), entry(1, 0, 1), entry(2, None)):
        ledger.write("broker-a", written)
        ledger.close()
        ledger = opened(FileSystem(), root)
        assert ledger.read("broker-a") == written
    assert ledger.read("broker-b") == Entry()
    ledger.close()


@pytest.mark.parametrize(
    "keep",
    [keep_none, keep_all, half],
    ids=["nothing unsynced", "everything", "half of each write"],
)
@pytest.mark.parametrize("action", ["open", "pwrite", "datasync", "rename", "sync_dir", "none"])
@pytest.mark.parametrize("first", [False, True], ids=["a later write", "the first write"])
def test_a_loss_of_power_at_any_step_leaves_the_old_or_the_new_content(
    action: str, keep: Keep, first: bool
) -> None:
    disk = CrashFileSystem()
    ledger = opened(disk)
    old = Entry()
    if not first:
        old = entry(1)
        ledger.write("broker-a", old)
    if action == "none":
        ledger.write("broker-a", entry(2))
    else:
        part = "controller" if action == "sync_dir" else "broker-a.reign.tmp"
        disk.fail_next(action, part, partial=40)
        with pytest.raises(StoreError):
            ledger.write("broker-a", entry(2))
    found = opened(disk.survivor(keep, "boot-2")).read("broker-a")
    assert found == entry(2) if action == "none" else found in (old, entry(2))


def test_after_a_failed_write_the_next_one_is_durable() -> None:
    disk = CrashFileSystem()
    ledger = opened(disk)
    ledger.write("broker-a", entry(1))
    for action in ("pwrite", "datasync", "rename", "sync_dir"):
        disk.fail_next(
            action, "controller" if action == "sync_dir" else "broker-a.reign", partial=10
        )
        with pytest.raises(StoreError):
            ledger.write("broker-a", entry(2))
        ledger.write("broker-a", entry(2))
        assert opened(disk.survivor(keep_none, "boot-2")).read("broker-a") == entry(2)


def test_an_older_assignment_is_not_written_over_a_newer_one() -> None:
    ledger = opened(CrashFileSystem())
    ledger.write("broker-a", entry(3, 0, 2))
    for older in (entry(2, 0, 9), entry(3, 0, 1), Entry(None, {0: "aa"})):
        with pytest.raises(StoreError, match="epoch 3 already"):
            ledger.write("broker-a", older)
    ledger.write("broker-a", entry(3, 0, 2))
    assert ledger.read("broker-a") == entry(3, 0, 2)


def test_two_controllers_never_have_one_ledger(tmp_path: Path) -> None:
    ledger = opened(FileSystem(), str(tmp_path))
    with pytest.raises(StoreInUse, match="another controller"):
        opened(FileSystem(), str(tmp_path))
    ledger.close()
    opened(FileSystem(), str(tmp_path)).close()


def test_the_ledger_of_another_cluster_is_refused_and_its_lock_given_back() -> None:
    disk = CrashFileSystem()
    opened(disk).close()
    with pytest.raises(StoreForeign, match="cluster 'default', not 'other'"):
        opened(disk, cluster="other")
    opened(disk).close()


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"x")
    with pytest.raises(StoreForeign, match=r"photo\.jpg"):
        opened(FileSystem(), str(tmp_path))


@pytest.mark.parametrize("position", [0, 5, 60, -3])
def test_a_flipped_bit_is_told_with_the_remedy(position: int, tmp_path: Path) -> None:
    ledger = opened(FileSystem(), str(tmp_path))
    ledger.write("broker-a", entry(1))
    file = tmp_path / "broker-a.reign"
    raw = bytearray(file.read_bytes())
    raw[position] ^= 4
    file.write_bytes(raw)
    with pytest.raises(StoreCorrupt, match="the furthest one reigns"):
        ledger.read("broker-a")
    ledger.close()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"cluster": "default"}'])
def test_a_damaged_head_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(StoreCorrupt, match="damaged"):
        opened(FileSystem(), str(tmp_path))


def test_a_ledger_of_a_later_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"cluster": "default", "format": 2}')
    with pytest.raises(StoreForeign, match="format 2"):
        opened(FileSystem(), str(tmp_path))


def test_a_root_that_cannot_be_made_is_told() -> None:
    with pytest.raises((StoreUnwritable, StoreError)):
        opened(FileSystem(), "/proc/nowhere/controller")
