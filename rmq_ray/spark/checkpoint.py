"""A stream's memory in a directory: plans before, marks after every batch. Any file system that
Spark's Hadoop client knows.

    <checkpoint>/rmq_ray/stream.json       {"format": 1, "id": ..., "topics": [...], "begin":
                                           position}; once, at the first start
    <checkpoint>/rmq_ray/plans/0000000012  the position of the end of batch 12, whose start is the
                                           end of batch 11; before it runs
    <checkpoint>/rmq_ray/done/0000000012   empty; after it ran

Decides: which batch is to run again after a restart: the one that was planned and is not done.
Files appear whole: written under another name and renamed. Invariants: a plan is never changed; a
second driver on the same directory is told so when it plans the same batch.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmq_ray.errors import SparkError
from rmq_ray.protocol.scan.stream_offsets import StreamPosition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = 1
KEPT = 100  # batches whose files are kept


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


@dataclass(frozen=True, slots=True)
class Planned:
    """A batch: [the end of ``before``, ``end``)."""

    number: int
    before: StreamPosition
    end: StreamPosition


class Checkpoint:
    """Of one stream; opened by one driver at a time. ``id``: of the stream, the same over all
    restarts.
    """

    def __init__(
        self, directory: Directory, topics: Sequence[str], begin: Callable[[], StreamPosition]
    ) -> None:
        self._directory = directory
        self.id, first = self._open(list(topics), begin)
        done = directory.numbers("done")
        self._last = done[-1] if done else -1
        self._position = first if self._last < 0 else self._planned(self._last)

    @property
    def position(self) -> StreamPosition:
        """The end of the last batch that is done."""
        return self._position

    def pending(self) -> Planned | None:
        """The batch that was planned and is not done."""
        text = self._directory.read(_name("plans", self._last + 1))
        return (
            None
            if text is None
            else Planned(self._last + 1, self._position, StreamPosition.from_json(text))
        )

    def plan(self, end: StreamPosition) -> Planned:
        """Write the next batch down before it runs."""
        self._directory.write(_name("plans", self._last + 1), end.to_json())
        return Planned(self._last + 1, self._position, end)

    def done(self, batch: Planned) -> None:
        """It ran: it does not run again."""
        self._directory.write(_name("done", batch.number), "")
        self._last, self._position = batch.number, batch.end
        for folder in ("done", "plans") if batch.number >= KEPT else ():
            self._directory.delete(_name(folder, batch.number - KEPT))

    def _planned(self, number: int) -> StreamPosition:
        text = self._directory.read(_name("plans", number))
        if text is None:
            raise SparkError(
                f"{self._directory} has no plan of batch {number}, which is done: restore "
                f"the directory, or use a new checkpoint",
                number,
            )
        return StreamPosition.from_json(text)

    def _open(
        self, topics: list[str], begin: Callable[[], StreamPosition]
    ) -> tuple[str, StreamPosition]:
        text = self._directory.read("stream.json")
        if text is None:
            first, made = begin(), uuid.uuid4().hex
            facts = {
                "format": FORMAT,
                "id": made,
                "topics": topics,
                "begin": json.loads(first.to_json()),
            }
            self._directory.write("stream.json", json.dumps(facts))
            return made, first
        try:
            facts = json.loads(text)
            found, known, first = (
                facts["format"],
                facts["topics"],
                StreamPosition.from_json(json.dumps(facts["begin"])),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise SparkError(
                f"{self._directory}/stream.json cannot be read ({error!r}): restore it, or "
                f"use a new checkpoint"
            ) from None
        if found != FORMAT:
            raise SparkError(
                f"{self._directory} has format {found}; this version reads {FORMAT}: use a "
                f"new checkpoint",
                found,
            )
        if sorted(known) != sorted(topics):
            raise SparkError(
                f"{self._directory} belongs to a stream of {', '.join(known)}, not of "
                f"{', '.join(topics)}: use another checkpoint",
                str(known),
            )
        return str(facts["id"]), first


def _name(folder: str, number: int) -> str:
    return f"{folder}/{number:010d}"
