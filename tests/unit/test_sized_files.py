"""Files that RocketMQ wants in one size: whole or not there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rmq_ray.errors import StoreMissing, StoreUnwritable
from rmq_ray.files import FileSystem


def test_a_file_of_a_size_is_there_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, path = FileSystem(), tmp_path / "00000000000000000000"
    real = os.ftruncate

    def dies(fd: int, size: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "ftruncate", dies)
    with pytest.raises(KeyboardInterrupt):
        files.make_sized(str(path), 1_280)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "ftruncate", real)
    made = files.make_sized(str(path), 1_280)
    made.pwrite(b"x", 0)
    made.close()
    again = files.make_sized(str(path), 2_560)
    assert (again.size(), again.pread(1, 0)) == (2_560, b"x"), (
        "an existing one is brought to that size"
    )
    again.close()


def test_a_file_of_a_size_is_made_where_nameless_files_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "link", refuses)
    made = FileSystem().make_sized(str(tmp_path / "f"), 400)
    assert made.size() == 400 and [path.name for path in tmp_path.iterdir()] == ["f"]
    made.close()


def test_a_file_in_the_place_of_a_directory_is_told_and_no_fault_of_the_disk(
    tmp_path: Path,
) -> None:
    (tmp_path / "taken").touch()
    for wrong in (tmp_path / "taken", tmp_path / "taken" / "broker-a"):
        with pytest.raises(
            StoreUnwritable, match="a file is where a directory of the store should be"
        ):
            FileSystem().make_dirs(str(wrong))


def test_a_place_where_nothing_can_be_made_is_told_with_a_remedy() -> None:
    with pytest.raises(
        StoreMissing,
        match=(
            r"make directory /proc/no-disk/broker-a: .*; mount the disk that has it, or choose "
            r"another path"
        ),
    ):
        FileSystem().make_dirs("/proc/no-disk/broker-a")
