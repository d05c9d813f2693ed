"""Reads beside the log: a split's records straight from the files of the broker's store, by another
process.

    consumequeue/{topic}/{queueId}/...  ->  entries (log offset, size)  ->  commitlog/...  ->
    records back to back, in a buffer that is used again (``read_from``)
    records apart, in memory of their own, each body aligned (``read_apart``)

Decides: that a record which is not the one the entry promises is never handed out: topic, queue,
queue offset, log offset, lengths and CRC are checked. Does not decide what to do where one is not,
or when the files cannot be read: every such case is a ``StoreError``, and the caller asks the
broker instead, which has a copy mend what it can.

Invariants: opens files for reading only; nothing at or behind ``visible_end`` is read; a store of
another identity or a log whose epoch has changed since the plan is refused, before and after every
chunk. What ``read_from`` gives is good until its next chunk is asked for: it lies in one buffer of
the reader, since fresh memory for each chunk costs as much as reading it from the page cache. A
long record is read straight to where it is wanted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.client.scan.blocks import Blocks, address
from rmq_ray.codec.body_crcs import body_crcs
from rmq_ray.codec.record import HEADER_BYTES, MAGIC, OVERHEAD_BYTES
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
LONG_BYTES = 16 << 10  # of a record; copying that many takes as long as a second call
ALIGNED = 64  # bytes: of a cache line, and more than any element of an array wants
OPEN_FILES_MAX = 64

Target = Callable[[Array], tuple[memoryview, Array]]
"""(sizes of records) -> (memory for them, where each of them begins in it)."""


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
        for first, layout in self._chunks(split, chunk_bytes, self._back_to_back):
            sizes = (layout.ends - layout.starts).astype(np.int32)
            yield layout.buffer, sizes, first + layout.count

    def read_apart(
        self, split: Split, chunk_bytes: int, blocks: Blocks
    ) -> Iterator[tuple[int, RecordLayout]]:
        """Yields (queue offset of the first, where the parts of each are): records in memory of
        ``blocks`` that is the caller's own, where each body begins at a multiple of ``ALIGNED``
        bytes (but behind hosts of 16 bytes). Raises what ``read_from`` does.
        """
        return self._chunks(split, chunk_bytes, partial(_apart, blocks))

    def close(self) -> None:
        """Close all files."""
        self._cache.close()

    def _chunks(
        self, split: Split, chunk_bytes: int, target: Target
    ) -> Iterator[tuple[int, RecordLayout]]:
        self._check_store(split)
        at = split.start
        while at < split.end:  # ends: at rises by one entry at least, or the loop is left
            entries = self._entries(split, at)
            count = _fitting(entries, chunk_bytes, split.visible_end)
            if count == 0:
                return
            layout = self._records(split, at, entries[:count], target)
            self._check_epoch(split)
            yield at, layout
            at += count

    def _back_to_back(self, sizes: Array) -> tuple[memoryview, Array]:
        total = int(sizes.sum())
        if len(self._buffer) < total:
            # chunks differ a little in length
            self._buffer = np.empty(total + total // 4, np.uint8)
        return memoryview(self._buffer)[:total], np.cumsum(sizes) - sizes  # type: ignore[arg-type]

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

    def _records(self, split: Split, first: int, entries: Array, target: Target) -> RecordLayout:
        """The records of entries ``first``, ``first + 1``, ...; ``StoreCorrupt`` where one is not
        what it should be.
        """
        offsets, sizes = entries["log_offset"].astype(np.int64), entries["size"].astype(np.int64)
        rows = np.arange(first, first + len(entries))
        real = (
            (sizes != BLANK_SIZE)
            & (sizes > OVERHEAD_BYTES)
            & (offsets % split.segment_bytes + sizes <= split.segment_bytes)
        )
        _check_all(real, split, first, offsets)
        buffer, starts = target(sizes)
        self._read_runs(split, offsets, sizes, buffer, starts)
        layout = RecordLayout(buffer, sizes, starts)
        _check_all(_sound(layout, sizes, offsets, rows, split), split, first, offsets)
        return layout

    def _read_runs(
        self, split: Split, offsets: Array, sizes: Array, buffer: memoryview, starts: Array
    ) -> None:
        """One read for short records that lie close together; the bytes between them are left
        out.
        """
        ends, segments = offsets + sizes, offsets // split.segment_bytes
        gaps, parted = offsets[1:] - ends[:-1], np.diff(starts - offsets) != 0
        far = (gaps > GAP_BYTES_MAX) | (gaps < 0) | (segments[1:] != segments[:-1])
        far |= parted & (np.maximum(sizes[1:], sizes[:-1]) > LONG_BYTES)
        bounds = _cut(far, 0, len(offsets))
        for low, high in zip(bounds[:-1], bounds[1:], strict=True):
            begin, end = int(offsets[low]), int(ends[high - 1])
            pieces = _cut(parted[low : high - 1], low, high)
            if len(pieces) == 2:
                at = int(starts[low])
                self._read_span(split, begin, buffer[at : at + end - begin])
                continue
            data = memoryview(bytearray(end - begin))
            self._read_span(split, begin, data)
            for first, last in zip(pieces[:-1], pieces[1:], strict=True):
                piece = data[int(offsets[first]) - begin : int(ends[last - 1]) - begin]
                at = int(starts[first])
                buffer[at : at + len(piece)] = piece

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


def _cut(here: Array, low: int, high: int) -> list[int]:
    """Bounds of the parts of [low, high); ``here[i]``: one ends behind number ``low + i``."""
    return [low, *(np.flatnonzero(here) + low + 1).tolist(), high]


def _apart(blocks: Blocks, sizes: Array) -> tuple[memoryview, Array]:
    """A ``Target`` of memory that nobody else has, in one block."""
    rooms = -(-sizes // ALIGNED) * ALIGNED
    block = blocks.take(int(rooms.sum()) + ALIGNED)
    first = -(address(block) + HEADER_BYTES) % ALIGNED
    return memoryview(block)[first:], np.cumsum(rooms) - rooms  # type: ignore[arg-type]


def _check_all(good: Array, split: Split, first: int, offsets: Array) -> None:
    if not good.all():
        bad = int((~good).argmax())
        raise StoreCorrupt(
            f"the record of {split.queue} at offset {first + bad} is damaged or missing",
            split.store_path,
            int(offsets[bad]),
        )


def _sound(layout: RecordLayout, sizes: Array, offsets: Array, rows: Array, split: Split) -> Array:
    """Which records are the ones that the queue's entries promise."""
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
    sound &= body_crcs(layout.buffer, layout.body_begins, layout.body_ends) == heads["crc"]
    return sound
