"""Where a stream's memory (``client.scan.stream_checkpoint``) is kept: any file system that Spark's
Hadoop client knows.

Files appear whole: written under another name and renamed. A second driver on the same directory is
told so when it plans the same batch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rmq_ray.errors import SparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Directory:
    """Small text files under one URI."""

    def __init__(self, session: SparkSession, uri: str) -> None:
        if not uri.strip():
            raise SparkError(
                f"checkpoint must name a directory that outlives the driver, not {uri!r}", repr(uri)
            )
        jvm: Any = session._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._uri = uri
        with self._told("reached"):
            self._root: Any = self._path(uri, "rmq_ray")
            self._files = self._root.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())

    def __str__(self) -> str:
        return str(self._root.toString())

    def read(self, name: str) -> str | None:
        """The text; None where there is no such file."""
        path = self._path(self._root, name)
        with self._told("read"):
            if not self._files.exists(path):
                return None
            length = int(self._files.getFileStatus(path).getLen())
            stream = self._files.open(path)
            try:
                return bytes(stream.readNBytes(length)).decode("utf-8")
            finally:
                stream.close()

    def write(self, name: str, text: str) -> None:
        """A new file, whole or not there. ``SparkError`` where it exists."""
        path, part = (
            self._path(self._root, name),
            self._path(self._root, f"{name}.{uuid.uuid4().hex}.part"),
        )
        with self._told("written to"):
            stream = self._files.create(part, True)
            stream.write(bytearray(text.encode("utf-8")))
            stream.close()
            if not self._files.exists(path) and self._files.rename(part, path):
                return
            self._files.delete(part, False)
        raise SparkError(
            f"{path.toString()} exists already: another driver uses this checkpoint; stop "
            f"one of them",
            str(path.toString()),
        )

    def numbers(self, folder: str) -> list[int]:
        """The files of a folder whose names are numbers, in order."""
        path = self._path(self._root, folder)
        with self._told("read"):
            if not self._files.exists(path):
                return []
            names = [str(status.getPath().getName()) for status in self._files.listStatus(path)]
        return sorted(int(name) for name in names if name.isdecimal())

    def delete(self, name: str) -> None:
        """Nothing where it is not there."""
        with self._told("written to"):
            self._files.delete(self._path(self._root, name), False)

    @contextmanager
    def _told(self, how: str) -> Iterator[None]:
        """What Java says of the file system, as an error of ours."""
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            said = str(error.java_exception.toString()).partition("\n")[0]
            raise SparkError(
                f"the checkpoint {self._uri} cannot be {how}: {said}; give a directory that "
                f"the driver may write to",
                self._uri,
            ) from error
