"""A topic in memory and an archivist over it, with storage that fails or dies as it is told."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rmq_ray.client.scan.topic_state import State
from rmq_ray.clock import ManualClock
from rmq_ray.errors import OffsetOutOfRange, TableStorageError
from rmq_ray.model.arrow import SCHEMA
from rmq_ray.model.ids import MessageQueue
from rmq_ray.table.archivist import Archivist
from rmq_ray.table.manifest import ManifestTable
from rmq_ray.table.rules import Offsets, Ranges, TableSpec
from rmq_ray.table.storage import Storage

TOPIC = "orders"
START_MS = 1_700_000_000_000 - 1_700_000_000_000 % 86_400_000


class Killed(BaseException):
    """The process ended here."""


class Faults:
    """Which step fails next. ``at``: count down of steps to it; ``after``: the step is carried out
    first; ``kill``: the process dies, else it is an error that the caller sees.
    """

    def __init__(self) -> None:
        self.at, self.after, self.kill = -1, False, False

    def arm(self, chance: random.Random, steps: int = 14) -> None:
        self.at = chance.randrange(steps)
        self.after, self.kill = chance.random() < 0.5, chance.random() < 0.5

    def step(self, work: Any, *arguments: Any) -> Any:
        if self.at < 0:
            return work(*arguments)
        self.at -= 1
        if self.at >= 0:
            return work(*arguments)
        if self.after:
            work(*arguments)
        if self.kill:
            raise Killed
        raise TableStorageError("injected: 500", "here")


class FaultyStorage(Storage):
    """Each change of a file is a step that may fail."""

    def __init__(self, uri: str, faults: Faults) -> None:
        super().__init__(uri)
        self._faults = faults

    def begin(self, name: str) -> Any:
        return self._faults.step(super().begin, name)

    def finish(self, name: str, stream: Any) -> int:
        return self._faults.step(super().finish, name, stream)

    def delete(self, name: str) -> None:
        self._faults.step(super().delete, name)


class MemoryTopic:
    """A ``Source``: rows by queue; ``body_of`` a row is what a table must have."""

    def __init__(self, queues: int = 2) -> None:
        self.queues = [MessageQueue(TOPIC, "broker-a", number) for number in range(queues)]
        self.rows: dict[MessageQueue, list[tuple[bytes, int]]] = {q: [] for q in self.queues}
        self.lows: Offsets = dict.fromkeys(self.queues, 0)
        self.epoch = 1
        self.cuts: Offsets = {}
        self.held: Offsets = {}

    def send(self, queue: int, body: bytes, at_ms: int = START_MS) -> None:
        self.rows[self.queues[queue]].append((body, at_ms))

    def look(self) -> State:
        bounds = {q: (self.lows[q], len(rows)) for q, rows in self.rows.items()}
        return State(bounds, {"broker-a": self.epoch})

    def cut_to(self, committed: Offsets, epochs: Mapping[str, int]) -> Offsets:
        return self.cuts if epochs.get("broker-a", self.epoch) < self.epoch else {}

    def read(self, ranges: Ranges) -> Iterator[tuple[MessageQueue, int, Any, int]]:
        for queue, (low, high) in ranges.items():
            if low < self.lows[queue]:
                raise OffsetOutOfRange("gone", low, self.lows[queue], high)
            for first in range(low, high, 7):
                behind = min(high, first + 7)
                yield queue, self.epoch, self._batch(queue, first, behind), behind

    def hold(self, committed: Offsets | None, hold_bytes: int) -> int:
        self.held = dict(committed or {})
        return 0

    def let_go(self) -> None:
        self.held = {}

    def _batch(self, queue: MessageQueue, low: int, high: int) -> Any:
        rows = [
            {
                "topic": TOPIC,
                "broker": queue.broker_name,
                "queue_id": queue.queue_id,
                "queue_offset": offset,
                "message_id": f"{queue.queue_id}-{offset}",
                "keys": [f"k{offset}"],
                "tag": "t",
                "properties": [("p", "1")],
                "body": self.rows[queue][offset][0],
                "born_ts": self.rows[queue][offset][1] * 1000,
                "store_ts": self.rows[queue][offset][1] * 1000,
                "reconsume_times": 0,
            }
            for offset in range(low, high)
        ]
        return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def spec_at(folder: Path, **settings: Any) -> TableSpec:
    return TableSpec(TOPIC, str(folder), **settings).checked()


def archivist_at(
    spec: TableSpec, topic: MemoryTopic, writer: str, faults: Faults | None = None
) -> Archivist:
    storage = FaultyStorage(spec.location, faults or Faults())
    return Archivist(spec, topic, ManifestTable(storage, TOPIC, writer), ManualClock(START_MS))


def rows_of(paths: list[Path]) -> list[tuple[int, int, bytes]]:
    """(queue, offset, body) of Parquet files, sorted: repeats would show."""
    return sorted(row for path in paths for row in rows_in(pq.read_table(path, partitioning=None)))


def glob_rows(folder: Path) -> list[tuple[int, int, bytes]]:
    """What a reader without our code sees."""
    return rows_of(sorted(folder.glob("day=*/*.parquet")))


def rows_in(table: Any) -> list[tuple[int, int, bytes]]:
    """(queue, offset, body) of an Arrow table, sorted."""
    columns = [table.column(name).to_pylist() for name in ("queue_id", "queue_offset", "body")]
    return sorted(zip(*columns, strict=True))


def expected_rows(topic: MemoryTopic) -> list[tuple[int, int, bytes]]:
    return sorted(
        (queue.queue_id, offset, body)
        for queue, rows in topic.rows.items()
        for offset, (body, _) in enumerate(rows)
    )
