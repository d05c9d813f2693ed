"""Writes the Parquet files of one commit, and reads files back.

    batches of a queue, in order ──> one file for each run of rows of one UTC day, closed at
                                     ``file_bytes`` ──> DataFile

Decides: how rows lie in files (zstd, row groups of about 32 MB of bodies, statistics of the columns
that readers look for), and their folder, ``day=YYYY-MM-DD``. Does not decide which rows. Invariant:
a file that ``close`` returned is complete; files of an attempt that failed are only leftovers.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from rmq_ray.errors import RmqError
from rmq_ray.model.arrow import SCHEMA
from rmq_ray.model.ids import MessageQueue
from rmq_ray.table.rules import DataFile, file_name
from rmq_ray.table.storage import Storage

ROW_GROUP_BYTES = 32 << 20
ZSTD_LEVEL = 1
DICTIONARIES = ["topic", "broker", "tag", "keys.list.element", "_reason"]
STATISTICS = ["broker", "queue_id", "queue_offset", "tag", "born_ts", "store_ts"]
_DAY_US = 86_400_000_000
REASON = pa.field("_reason", pa.string())
"""What a rejected row has behind the columns of a message."""


class FileWriter:
    """The files of one attempt to commit, whose names no other attempt has: a file that was left
    open is closed when Python drops it, whatever lies under its name by then. ``folder``: in front
    of ``day=``; ``writer``: of this start of the committer; ``rejected``: of the rows that did not
    fit. A ``with`` block that an error ends takes them away again, as far as that can be done.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        schema: Any,
        file_bytes: int,
        writer: str,
        rejected: bool = False,
    ) -> None:
        self._storage, self._folder, self._schema = storage, folder, schema
        self._file_bytes, self._rejected = file_bytes, rejected
        self._writer = f"{writer}-{uuid.uuid4().hex[:8]}"
        self._open: _OpenFile | None = None
        self._done: list[DataFile] = []
        self._names: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, Exception):
            return
        if self._open is not None:
            self._open.abandon()
        for name in self._names:
            with suppress(OSError, RmqError):
                self._storage.discard(name)

    def write(self, queue: MessageQueue, epoch: int, batch: Any, next_offset: int) -> None:
        """Rows of one queue behind all that were written of it; ``next_offset``: behind them."""
        micros = np.asarray(batch.column("store_ts").cast(pa.int64()))
        days = micros // _DAY_US
        cuts = [0, *(np.flatnonzero(days[1:] != days[:-1]) + 1).tolist(), len(days)]
        for low, high in zip(cuts[:-1], cuts[1:], strict=True):
            if low == high:
                continue
            rows = batch.slice(low, high - low)
            first = int(rows.column("queue_offset")[0].as_py())
            day = str(np.datetime64(int(days[low]), "D"))
            if self._open is not None and not self._open.takes(queue, day, self._file_bytes):
                self._close(first if self._open.queue == queue else 0)
            if self._open is None:
                name = f"{self._folder}day={day}/{file_name(queue, first, epoch, self._writer)}"
                self._names.append(name)
                self._open = _OpenFile(self._storage, name, self._schema, queue, day, first)
            behind = next_offset if high == len(days) else int(rows["queue_offset"][-1].as_py()) + 1
            self._open.write(rows, behind)

    def close(self) -> list[DataFile]:
        """All files, complete."""
        if self._open is not None:
            self._close()
        return self._done

    def _close(self, next_offset: int = 0) -> None:
        assert self._open is not None
        one = self._open
        rows, size = one.close()
        self._open = None
        queue = one.queue
        self._done.append(
            DataFile(
                one.name,
                one.day,
                queue.broker_name,
                queue.queue_id,
                one.first,
                max(next_offset, one.next),
                rows,
                size,
                self._rejected,
            )
        )


class _OpenFile:
    def __init__(
        self, storage: Storage, name: str, schema: Any, queue: MessageQueue, day: str, first: int
    ) -> None:
        self.name, self.queue, self.day, self.first = name, queue, day, first
        self.next = first
        self._storage, self._schema = storage, schema
        self._stream = storage.begin(name)
        with storage.told("written to"):
            self._parquet = pq.ParquetWriter(
                self._stream,
                schema,
                compression="zstd",
                compression_level=ZSTD_LEVEL,
                use_dictionary=[*DICTIONARIES],
                write_statistics=STATISTICS,
                store_schema=True,
            )
        self._waiting: list[Any] = []
        self._waiting_bytes = self._rows = 0

    def takes(self, queue: MessageQueue, day: str, file_bytes: int) -> bool:
        """Whether rows of this queue and day still belong in here."""
        return (self.queue, self.day) == (queue, day) and self._stream.tell() < file_bytes

    def write(self, rows: Any, next_offset: int) -> None:
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        self._rows += rows.num_rows
        self.next = max(self.next, next_offset)  # merged files of a log that was cut overlap
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> tuple[int, int]:
        """(rows, bytes)."""
        if self._waiting:
            self._flush()
        with self._storage.told("written to"):
            self._parquet.close()
        return self._rows, self._storage.finish(self.name, self._stream)

    def abandon(self) -> None:
        """Nothing is written any more, not even when Python drops this."""
        for part in (self._parquet, self._stream):
            with suppress(OSError, ValueError):
                part.close()

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema)
        with self._storage.told("written to"):
            self._parquet.write_table(table, row_group_size=max(1, table.num_rows))
        self._waiting, self._waiting_bytes = [], 0


def read_files(
    storage: Storage,
    paths: Sequence[str],
    schema: Any,
    columns: Sequence[str] | None = None,
    where: Any = None,
) -> Iterator[Any]:
    """Record batches of these files, in their order; columns that a file does not have are null.
    ``where``: an expression of ``pyarrow.dataset``.
    """
    if not paths:
        return
    with storage.told("read"):
        found = ds.dataset(
            [storage.path(path) for path in paths],
            schema=schema,
            format="parquet",
            filesystem=storage.filesystem,
        )
        yield from found.to_batches(
            columns=None if columns is None else list(columns), filter=where, batch_readahead=2
        )


def rejected_schema() -> Any:
    """A message's columns and why it was rejected."""
    return SCHEMA.append(REASON)
