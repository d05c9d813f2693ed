"""A stream's memory in a directory: plans before, marks after every batch.

    <directory>/stream.json       {"format": 1, "id": ..., "topics": [...], "cluster": ..., "begin":
                                  position}; once, at the first start
    <directory>/plans/0000000012  the position of the end of batch 12, whose start is the end of
                                  batch 11; before it runs
    <directory>/done/0000000012   empty; after it ran

Decides: which batch is to run again after a restart: the one that was planned and is not done. Does
not decide where the directory is: Spark's Hadoop client, or pyarrow's file systems. Invariant: a
plan is never changed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rmq_ray.errors import ClientError, RmqError
from rmq_ray.protocol.scan.stream_offsets import StreamPosition

FORMAT = 1
KEPT = 100  # batches whose files are kept


class TextFiles(Protocol):
    """Small text files of one directory, each whole or not there; its ``str`` names it."""

    def read(self, name: str) -> str | None:
        """The text; None where there is no such file."""
        ...

    def write(self, name: str, text: str) -> None:
        """A new file; an error where it exists: another driver uses the directory."""
        ...

    def numbers(self, folder: str) -> list[int]:
        """The files of a folder whose names are numbers, in order."""
        ...

    def delete(self, name: str) -> None:
        """Nothing where it is not there."""
        ...


@dataclass(frozen=True, slots=True)
class Planned:
    """A batch: [the end of ``before``, ``end``)."""

    number: int
    before: StreamPosition
    end: StreamPosition


class Checkpoint:
    """Of one stream; opened by one driver at a time. ``id``: of the stream, the same over all
    restarts. ``cluster``: the name that is kept beside it, None = none is. ``error``: what a
    directory of another stream, or a broken one, is.
    """

    def __init__(
        self,
        directory: TextFiles,
        topics: Sequence[str],
        begin: Callable[[], StreamPosition],
        cluster: str | None = None,
        error: type[RmqError] = ClientError,
    ) -> None:
        self._directory = directory
        self._cluster = cluster
        self._error = error
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
            raise self._error(
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
            if self._cluster is not None:
                facts["cluster"] = self._cluster
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
            raise self._error(
                f"{self._directory}/stream.json cannot be read ({error!r}): restore it, or "
                f"use a new checkpoint"
            ) from None
        if found != FORMAT:
            raise self._error(
                f"{self._directory} has format {found}; this version reads {FORMAT}: use a "
                f"new checkpoint",
                found,
            )
        if sorted(known) != sorted(topics):
            raise self._error(
                f"{self._directory} belongs to a stream of {', '.join(known)}, not of "
                f"{', '.join(topics)}: use another checkpoint",
                str(known),
            )
        if self._cluster is not None and facts.get("cluster", self._cluster) != self._cluster:
            raise self._error(
                f"{self._directory} belongs to a stream of cluster {facts['cluster']!r}, not of "
                f"{self._cluster!r}: use another checkpoint",
                str(facts["cluster"]),
            )
        return str(facts["id"]), first


def _name(folder: str, number: int) -> str:
    return f"{folder}/{number:010d}"
