"""Where a table's files lie: one folder of a file system that pyarrow knows.

    /data/orders   file:///data/orders   s3://bucket/orders?region=eu-central-1
    gs://bucket/orders   hdfs://name-node:8020/orders

Decides: how a file appears whole, and what its failures mean. On a local disk or HDFS a file is
written under ``_rmq/staging`` and renamed; an object store shows an object when it is complete.
Does not decide names. Invariant: what ``write_whole`` or ``finish`` returned from is durable as far
as the store makes things durable; a local file and its folder were synced.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rmq_ray.errors import ConfigError, RmqError, TableError, TableStorageError
from rmq_ray.files import FileSystem

STAGING = "_rmq/staging"
_REMEDIES = {
    errno.ENOSPC: "free space there or give the table another location",
    errno.EDQUOT: "raise the quota there",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there",
    errno.EROFS: "it is read-only: give another location",
    errno.ENOENT: "create the bucket or the folder above it",
}
_WORDS = {
    "no such bucket": _REMEDIES[errno.ENOENT],
    "bucket does not exist": _REMEDIES[errno.ENOENT],
    "access_denied": "check the credentials of the Ray node (AWS_ACCESS_KEY_ID, its role, ...)",
    "access denied": "check the credentials of the Ray node (AWS_ACCESS_KEY_ID, its role, ...)",
    "invalid_access_key": "the access key is not known there: check AWS_ACCESS_KEY_ID",
    "signature": "the secret key is wrong: check AWS_SECRET_ACCESS_KEY",
    "credentials": "give the Ray node credentials (AWS_ACCESS_KEY_ID, its role, ...)",
    "expired": "the credentials have ended: renew them",
}


@dataclass(frozen=True, slots=True)
class Stored:
    """A file that is there. ``path``: below the location."""

    path: str
    bytes: int
    modified_ms: int


class Storage:
    """``uri``: see the module. ``filesystem``: another one than the URI's, for tests."""

    def __init__(self, uri: str, filesystem: Any = None) -> None:
        from pyarrow import fs

        self.uri = uri
        with self.told("reached"):
            try:
                found, path = fs.FileSystem.from_uri(uri)
            except (ValueError, KeyError) as error:
                raise ConfigError(f"location {uri!r} cannot be used: {error}", uri) from error
        self.filesystem = filesystem or found
        self.root = path.rstrip("/")
        self._staged = self.filesystem.type_name not in ("s3", "gcs")
        self._local = FileSystem() if found.type_name == "local" else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage, (self.uri,)

    def path(self, name: str) -> str:
        """As the file system knows it."""
        return f"{self.root}/{name}"

    def begin(self, name: str) -> Any:
        """A stream to write a new file to; ``finish`` makes it be there."""
        path = self.path(self._staging(name) if self._staged else name)
        with self.told("written to"):
            if self._staged:
                self.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            return self.filesystem.open_output_stream(path)

    def finish(self, name: str, stream: Any) -> int:
        """Close the stream: from now on the file is there, whole. Its size in bytes."""
        with self.told("written to"):
            size = int(stream.tell())
            stream.close()
            if self._staged:
                staged, final = self.path(self._staging(name)), self.path(name)
                self._sync(staged)
                folder = final.rpartition("/")[0]
                self.filesystem.create_dir(folder, recursive=True)
                self.filesystem.move(staged, final)
                if self._local is not None:
                    self._local.sync_dir(folder)
            return size

    def write_whole(self, name: str, data: bytes) -> None:
        """A file at once; one that is there is replaced."""
        stream = self.begin(name)
        with self.told("written to"):
            stream.write(data)
        self.finish(name, stream)

    def read_whole(self, name: str) -> bytes | None:
        """None where there is no such file."""
        with self.told("read"):
            try:
                with self.filesystem.open_input_stream(self.path(name)) as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def list(self, folder: str) -> list[Stored]:
        """Every file below a folder, in order of paths; none where there is no such folder."""
        from pyarrow import fs

        selector = fs.FileSelector(
            self.path(folder).rstrip("/"), allow_not_found=True, recursive=True
        )
        with self.told("read"):
            found = self.filesystem.get_file_info(selector)
        return sorted(
            (
                Stored(one.path[len(self.root) + 1 :], one.size or 0, (one.mtime_ns or 0) // 10**6)
                for one in found
                if one.type == fs.FileType.File
            ),
            key=lambda one: one.path,
        )

    def walk(self) -> Iterator[str]:
        """The path of every file, folder by folder: who stops early lists no more than that."""
        from pyarrow import fs

        folders = [self.root or "/"]
        while folders:  # ends: each folder is listed once
            selector = fs.FileSelector(folders.pop(0), allow_not_found=True)
            with self.told("read"):
                found = self.filesystem.get_file_info(selector)
            folders += [one.path for one in found if one.type == fs.FileType.Directory]
            for one in sorted(found, key=lambda info: info.path):
                if one.type == fs.FileType.File:
                    yield one.path[len(self.root) + 1 :]

    def delete(self, name: str) -> None:
        """Nothing where it is not there."""
        with self.told("deleted from"), contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(self.path(name))

    def discard(self, name: str) -> None:
        """A file that was begun, finished or not."""
        if self._staged:
            self.delete(self._staging(name))
        self.delete(name)

    def _staging(self, name: str) -> str:
        return f"{STAGING}/{name.replace('/', '+')}"

    def _sync(self, path: str) -> None:
        if self._local is None:
            return
        file = self._local.open_to_read(path)
        try:
            file.datasync()
        finally:
            file.close()

    @contextlib.contextmanager
    def told(self, how: str) -> Iterator[None]:
        """What the file system says, as an error of ours with what to do."""
        try:
            yield
        except RmqError:
            raise
        except OSError as error:
            said = str(error)
            remedy = _REMEDIES.get(error.errno or 0) or next(
                (remedy for word, remedy in _WORDS.items() if word in said.lower()),
                "check that it is there and may be used from the archivist's node",
            )
            raise TableStorageError(
                f"{bare(self.uri)} cannot be {how}: {said:.300}; {remedy}. "
                "The table goes on by itself once that is mended",
                bare(self.uri),
            ) from error


def bare(uri: str) -> str:
    """A URI without the credentials that it may have.

    >>> bare("s3://key:secret@bucket/a?region=x")
    's3://bucket/a?region=x'
    """
    scheme, colon, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{colon}{host.rpartition('@')[2]}{slash}{path}"


def require_pyiceberg() -> None:
    """``TableError`` where the package is missing."""
    try:
        import pyiceberg  # noqa: F401
    except ImportError as error:
        raise TableError(
            "a table with a catalog needs pyiceberg: pip install 'rmq_ray[table]'"
        ) from error
