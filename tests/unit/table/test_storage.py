"""Where a table's files lie: they appear whole, and what a store says becomes an error of ours."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from rmq_ray.errors import ConfigError, TableStorageError
from rmq_ray.table.rules import TableSpec
from rmq_ray.table.storage import STAGING, Storage


class FailingDisk:
    """A local file system whose writes fail."""

    type_name = "local"

    def __init__(self, number: int, said: str) -> None:
        self._own, self._error = fs.LocalFileSystem(), OSError(number, said)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def open_output_stream(self, path: str) -> Any:
        raise self._error


def test_a_file_is_not_there_before_it_is_whole(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "new" / "table"))
    stream = storage.begin("day=1/a.parquet")
    stream.write(b"half")
    assert [one.path for one in storage.list("day=1")] == []
    assert [one.path for one in storage.list(STAGING)] == [f"{STAGING}/day=1+a.parquet"]
    assert storage.finish("day=1/a.parquet", stream) == 4
    (found,) = storage.list("")
    assert (found.path, found.bytes) == ("day=1/a.parquet", 4) and found.modified_ms > 0
    assert storage.read_whole("day=1/a.parquet") == b"half" and storage.read_whole("b") is None
    storage.write_whole("day=1/a.parquet", b"other")
    storage.delete("day=1/a.parquet"), storage.delete("day=1/a.parquet")
    assert storage.list("") == []


@pytest.mark.parametrize(
    ("number", "said", "remedy"),
    [
        (errno.ENOSPC, "No space left on device", "free space"),
        (errno.EACCES, "Permission denied", "right to write"),
        (errno.EROFS, "Read-only file system", "another location"),
        (errno.EIO, "AWS Error ACCESS_DENIED during PutObject: Access Denied", "credentials"),
        (errno.EIO, "The provided token has expired", "renew"),
        (errno.EIO, "AWS Error NO_SUCH_BUCKET: The specified bucket does not exist", "create"),
        (errno.EIO, "something nobody knows", "check that it is there"),
    ],
)
def test_what_a_store_says_is_told_with_what_to_do(
    tmp_path: Path, number: int, said: str, remedy: str
) -> None:
    storage = Storage(str(tmp_path), FailingDisk(number, said))
    with pytest.raises(TableStorageError, match=remedy) as told:
        storage.write_whole("x", b"1")
    assert told.value.retriable and "goes on by itself" in str(told.value)


def test_a_location_that_cannot_be_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        Storage("sftp://host/x")


def test_a_walk_meets_each_file_and_lists_no_folder_behind_the_last_that_is_asked_for(
    tmp_path: Path,
) -> None:
    assert list(Storage(str(tmp_path / "none")).walk()) == []
    names = ["a.txt", "b/c/d.txt", "b/e.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    assert sorted(Storage(str(tmp_path)).walk()) == names
    walk = Storage(str(tmp_path)).walk()
    assert next(walk) == "a.txt"
    (tmp_path / "b/e.txt").unlink()
    assert list(walk) == ["b/c/d.txt"]


@pytest.mark.parametrize(
    ("location", "catalog", "stays"),
    [
        ("/data/orders", {}, True),
        ("file:///data/orders", {}, True),
        ("s3://lake/orders", {}, False),
        ("hdfs://name-node:8020/orders", {}, False),
        ("s3://lake/orders", {"type": "sql", "uri": "sqlite:////data/catalog.db"}, True),
        ("s3://lake/orders", {"type": "sql", "uri": "sqlite+pysqlite:////data/c.db"}, True),
        ("s3://lake/orders", {"name": "lake"}, True),
        ("s3://lake/orders", {"type": "sql", "uri": "postgresql://db/catalog"}, False),
        ("s3://lake/orders", {"name": "lake", "type": "glue"}, False),
    ],
)
def test_a_table_stays_on_its_host_where_others_may_not_have_its_files(
    location: str, catalog: dict[str, str], stays: bool
) -> None:
    assert TableSpec("orders", location, catalog=catalog).stays is stays
