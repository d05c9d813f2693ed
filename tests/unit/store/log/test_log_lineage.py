"""Epochs rise, their starts never fall, and they survive a power loss."""

from __future__ import annotations

import pytest

from rmq_ray.errors import StoreCorrupt
from rmq_ray.store.log.log_lineage import EpochFile
from tests.support.faults.crash_fs import CrashFileSystem, keep_none

PATH = "/store/rmq_ray/epochs"


def disk_with(text: bytes | None = None) -> CrashFileSystem:
    disk = CrashFileSystem()
    disk.make_dirs("/store/rmq_ray")
    if text is not None:
        disk.write_whole(PATH, text)
    return disk


def loaded(disk: CrashFileSystem) -> EpochFile:
    epochs = EpochFile(PATH, disk)
    epochs.load()
    return epochs


def test_a_new_store_has_no_epoch() -> None:
    epochs = loaded(disk_with())
    assert (epochs.current, epochs.entries, epochs.of(5)) == (0, (), 0)


def test_epochs_are_durable_when_begin_returns() -> None:
    disk = disk_with()
    epochs = loaded(disk)
    assert [epochs.begin(0), epochs.begin(100), epochs.begin(100)] == [1, 2, 3]
    after = loaded(disk.survivor(keep_none, "boot-2"))
    assert after.entries == ((1, 0), (2, 100), (3, 100))
    assert disk.read_whole(PATH) == b"1 0\n2 100\n3 100\n"


def test_a_cut_drops_the_epochs_that_began_behind_it_and_goes_on_counting() -> None:
    epochs = loaded(disk_with(b"1 0\n2 100\n3 200\n"))
    assert epochs.begin(150) == 4
    assert epochs.entries == ((1, 0), (2, 100), (4, 150))


def test_a_promotion_brings_its_own_number() -> None:
    epochs = loaded(disk_with(b"1 0\n"))
    assert epochs.begin(10, 7) == 7 and epochs.begin(20, 3) == 8


def test_every_byte_belongs_to_one_epoch() -> None:
    epochs = loaded(disk_with(b"1 50\n2 100\n4 150\n"))
    assert [epochs.of(at) for at in (0, 49, 50, 99, 100, 149, 150, 10**12)] == [
        0,
        0,
        1,
        1,
        2,
        2,
        4,
        4,
    ]


@pytest.mark.parametrize("text", [b"x", b"1", b"1 a\n", b"2 0\n1 5\n", b"1 5\n2 4\n", b"1 0\n\n"])
def test_a_file_that_is_not_in_form_is_refused(text: bytes) -> None:
    with pytest.raises(StoreCorrupt, match="restore the file"):
        loaded(disk_with(text))


def test_only_the_newest_epochs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_ray.store.log.log_lineage.EPOCHS_MAX", 3)
    epochs = loaded(disk_with())
    for start in range(5):
        epochs.begin(start)
    assert epochs.entries == ((3, 2), (4, 3), (5, 4))
