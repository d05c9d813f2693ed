"""Bulk reads beside the log: a split's records straight from the files of the broker's store, by
another process.

    consumequeue/{topic}/{queueId}/...  ->  entries (log offset, size)  ->  commitlog/...  ->
    records back to back

Decides: that a record which is not the one the entry promises is never handed out: topic, queue,
queue offset, log offset, lengths and CRC are checked. Does not decide what to do where one is not,
or when the files cannot be read: every such case is a ``StoreError``, and the caller asks the
broker instead, which has a copy mend what it can.

Invariants: opens files for reading only; nothing at or behind ``visible_end`` is read; a store of
another identity or a log whose epoch has changed since the plan is refused, before and after every
chunk. A chunk's bytes are good until the next one is asked for: they lie in one buffer of the
reader, since fresh memory for each chunk costs as much as reading it from the page cache.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.codec.body_crcs import body_crcs
from rmq_ray.codec.record import MAGIC, OVERHEAD_BYTES
from rmq_ray.codec.record_layout import RecordLayout
from rmq_ray.codec.store_files import (
    BLANK_SIZE,
    COMMIT_LOG,
    CONSUME_QUEUE,
    ENTRIES,
    ENTRY_BYTES,
    OURS,
    decode_epochs,
    segment_name,
)
from rmq_ray.errors import StoreCorrupt, StoreError, StoreForeign, StoreMissing
from rmq_ray.files import FileCache, FileSystem
from rmq_ray.ports import Split

ENTRIES_A_READ = 4_096  # 80 KiB of consume queue
GAP_BYTES_MAX = (
    4_096  # bytes of other queues between two records that are cheaper to read than a second call
)
OPEN_FILES_MAX = 64


class LocalSplitReader:
    """Reads splits of stores on this machine."""

    def __init__(self, files: FileSystem | None = None) -> None:
        self._files = files or FileSystem()
        self._cache = FileCache(self._files, OPEN_FILES_MAX, read_only=True)
        self._buffer: Array = np.empty(0, np.uint8)

    def read(self, split: Split, chunk_bytes: int) -> Iterator[tuple[memoryview, Any]]:
        """Yields (records back to back, int32 sizes) in queue order, about ``chunk_bytes`` at a
        time. See ``read_from``.
        """
        for records, sizes, _ in self.read_from(split, chunk_bytes):
            yield records, sizes

    def read_from(self, split: Split, chunk_bytes: int) -> Iterator[tuple[memoryview, Any, int]]:
        """The same with the queue offset that follows each chunk, where another reader can go on.

        Raises ``StoreMissing`` (files gone or not there yet), ``StoreForeign`` (another store),
        ``StoreCorrupt``, ``StoreError`` (the epoch changed).
        """
        self._check_store(split)
        at = split.start
        while at < split.end:  # ends: at rises by one entry at least, or the loop is left
            entries = self._entries(split, at)
            count = _fitting(entries, chunk_bytes, split.visible_end)
            if count == 0:
                return
            records, sizes = self._records(split, at, entries[:count])
            at += count
            self._check_epoch(split)
            if len(sizes):
                yield records, sizes, at

    def close(self) -> None:
        """Close all files."""
        self._cache.close()

    def _check_store(self, split: Split) -> None:
        path = f"{split.store_path}/{OURS}/identity"
        try:
            found = json.loads(self._files.read_whole(path))["identity"]
        except (ValueError, LookupError, TypeError) as error:
            raise StoreCorrupt(
                f"{path} names no store: {error}; restore it from a copy", path, 0
            ) from error
        if found != split.identity:
            self._cache.close()
            raise StoreForeign(
                f"{split.store_path} holds store {found}, planned was {split.identity}; plan "
                f"the read again",
                split.store_path,
            )
        self._check_epoch(split)

    def _check_epoch(self, split: Split) -> None:
        path = f"{split.store_path}/{OURS}/epochs"
        try:
            epochs = decode_epochs(self._files.read_whole(path), path)
        except StoreMissing:  # before the first
            epochs = []
        current = epochs[-1][0] if epochs else 0
        if current != split.epoch:
            fault = (
                f"the log at {split.store_path} is in epoch {current}, planned was "
                f"{split.epoch}: what lay behind a cut may have changed"
            )
            raise StoreError(f"{fault}; plan the read again", split.store_path)

    def _entries(self, split: Split, at: int) -> Array:
        """Consume queue entries from queue offset ``at`` on: at least one, to the end of the file
        at most.
        """
        file_bytes = split.consume_queue_entries * ENTRY_BYTES
        position = at * ENTRY_BYTES % file_bytes
        start = at * ENTRY_BYTES - position
        count = min(ENTRIES_A_READ, split.end - at, (file_bytes - position) // ENTRY_BYTES)
        path = (
            f"{split.store_path}/{CONSUME_QUEUE}/{split.queue.topic}/{split.queue.queue_id}/"
            f"{start:020d}"
        )
        entries = np.frombuffer(self._cache.get(path).pread(count * ENTRY_BYTES, position), ENTRIES)
        written = entries["size"] > 0
        if not written.all():
            entries = entries[: int((~written).argmax())]
        if not len(entries):
            raise StoreMissing(
                f"{path} has no entry {at} of {split.queue}; the queue ends before the split", path
            )
        return entries

    def _records(self, split: Split, first: int, entries: Array) -> tuple[memoryview, Array]:
        """The records of entries ``first``, ``first + 1``, ... back to back; ``StoreCorrupt`` where
        one is not what it should be.
        """
        offsets, sizes = entries["log_offset"].astype(np.int64), entries["size"].astype(np.int64)
        rows = np.arange(first, first + len(entries))
        real = (
            (sizes != BLANK_SIZE)
            & (sizes > OVERHEAD_BYTES)
            & (offsets % split.segment_bytes + sizes <= split.segment_bytes)
        )
        _check_all(real, split, first, offsets)
        buffer = self._read_runs(split, offsets, sizes)
        _check_all(_sound(buffer, offsets, sizes, rows, split), split, first, offsets)
        return buffer, sizes.astype(np.int32)

    def _read_runs(self, split: Split, offsets: Array, sizes: Array) -> memoryview:
        """One read for records that lie close together, into the place where they belong; the bytes
        between them are left out.
        """
        if not len(offsets):
            return memoryview(b"")
        ends, total = offsets + sizes, int(sizes.sum())
        gaps = offsets[1:] - ends[:-1]
        segments = offsets // split.segment_bytes
        far = (
            np.flatnonzero((gaps > GAP_BYTES_MAX) | (gaps < 0) | (segments[1:] != segments[:-1]))
            + 1
        )
        bounds = [0, *far.tolist(), len(offsets)]
        if len(self._buffer) < total:
            self._buffer = np.empty(
                total + total // 4, np.uint8
            )  # chunks differ a little in length
        target, at = memoryview(self._buffer)[:total], 0  # type: ignore[arg-type]
        for low, high in zip(bounds[:-1], bounds[1:], strict=True):
            begin, end = int(offsets[low]), int(ends[high - 1])
            cuts = np.flatnonzero(gaps[low : high - 1]) + low + 1
            if not len(cuts):
                self._read_span(split, begin, target[at : at + end - begin])
                at += end - begin
                continue
            data = memoryview(bytearray(end - begin))
            self._read_span(split, begin, data)
            pieces = [low, *cuts.tolist(), high]
            for first, last in zip(pieces[:-1], pieces[1:], strict=True):
                piece = data[int(offsets[first]) - begin : int(ends[last - 1]) - begin]
                target[at : at + len(piece)] = piece
                at += len(piece)
        return target

    def _read_span(self, split: Split, begin: int, into: memoryview) -> None:
        """The bytes of the log from ``begin`` on, which lie in one segment."""
        start = begin - begin % split.segment_bytes
        path = f"{split.store_path}/{COMMIT_LOG}/{segment_name(start)}"
        found = self._cache.get(path).pread_into(into, begin - start)
        if found < len(into):
            raise StoreCorrupt(
                f"{path} ends at {found} of {len(into)} bytes from {begin} on; its size is "
                f"not {split.segment_bytes}",
                path,
                begin,
            )


def _fitting(entries: Array, chunk_bytes: int, visible_end: int) -> int:
    """How many leading entries make one chunk: visible, and within ``chunk_bytes`` (one at
    least).
    """
    sizes = np.where(entries["size"] == BLANK_SIZE, 0, entries["size"]).astype(np.int64)
    hidden = entries["log_offset"] + sizes > visible_end
    visible = int(hidden.argmax()) if hidden.any() else len(entries)
    return min(visible, max(1, int(np.searchsorted(np.cumsum(sizes), chunk_bytes, "right"))))


def _check_all(good: Array, split: Split, first: int, offsets: Array) -> None:
    if not good.all():
        bad = int((~good).argmax())
        raise StoreCorrupt(
            f"the record of {split.queue} at offset {first + bad} is damaged or missing",
            split.store_path,
            int(offsets[bad]),
        )


def _sound(buffer: memoryview, offsets: Array, sizes: Array, rows: Array, split: Split) -> Array:
    """Which records are the ones that the queue's entries promise."""
    layout = RecordLayout(buffer, sizes)
    heads, topic = layout.heads, split.queue.topic.encode()
    sound: Array = (
        (heads["total"] == sizes)
        & (heads["magic"] == MAGIC)
        & (heads["queue_id"] == split.queue.queue_id)
    )
    sound &= (heads["queue_offset"] == rows) & (heads["log_offset"] == offsets)
    sound &= layout.fits & (layout.topic_lengths == len(topic))
    sound &= (
        layout.bytes_at(layout.body_ends + 1, len(topic)) == np.frombuffer(topic, np.uint8)
    ).all(axis=1)
    sound &= body_crcs(buffer, layout.body_begins, layout.body_ends) == heads["crc"]
    return sound
