"""A stream's memory in a directory: files appear whole, and belong to who opened it last."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_ray.data.checkpoint_files import FilesOfCheckpoint
from rmq_ray.errors import ClientError


def test_a_file_is_read_as_it_was_written_and_never_twice(tmp_path: Path) -> None:
    files = FilesOfCheckpoint(tmp_path)
    assert files.read("plans/0000000001") is None
    files.write("plans/0000000001", "é")
    files.write("plans/0000000000", "")
    assert files.read("plans/0000000001") == "é" and files.numbers("plans") == [0, 1]
    with pytest.raises(ClientError, match="another program"):
        files.write("plans/0000000001", "other")
    files.delete("plans/0000000000")
    files.delete("plans/0000000000")
    assert files.numbers("plans") == [1] and not list(tmp_path.rglob("*.part"))


def test_who_opens_a_directory_later_takes_it_over(tmp_path: Path) -> None:
    first, second = FilesOfCheckpoint(tmp_path), FilesOfCheckpoint(f"file://{tmp_path}")
    with pytest.raises(ClientError, match="another program has opened this checkpoint"):
        first.write("done/0000000000", "")
    second.write("done/0000000000", "")
    assert first.numbers("done") == [0]
    second.write("stream.json", "{}")
    third = FilesOfCheckpoint(tmp_path)
    second.write("done/0000000001", "")
    third.own()
    with pytest.raises(ClientError, match="another program has opened this checkpoint"):
        second.write("done/0000000002", "")


@pytest.mark.parametrize("uri", ["", "  ", 5, "nowhere://x/y"])
def test_what_is_no_directory_is_refused(uri: str) -> None:
    with pytest.raises(ClientError):
        FilesOfCheckpoint(uri)


def test_a_path_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClientError, match="cannot be written to"):
        FilesOfCheckpoint(tmp_path / "file")
