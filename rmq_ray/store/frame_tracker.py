"""Frames in the log again: which are whole, which lack records, which producer sent them (design: a frame is whole or not there).

Decides: where the last frame of a stretch begins if records of it are missing, and what enters the windows of repeats.
Does not decide: whether an incomplete frame goes (``recovery``: at the very tail only). Called by: recovery, inspection.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

from rmq_ray.store.deduplication import DeduplicationCache, StoredFrame
from rmq_ray.store.log_scan import ScannedRecords
from rmq_ray.store.record_batch import MARK_BYTES, MARK_PREFIX, Array, FrameMark, frame_crc, read_mark

_SIZE_AND_CRC = struct.Struct(">iI")
_PREFIX = int.from_bytes(MARK_PREFIX[:8], "big")


class FrameTracker:
    """Fills ``windows`` from marks; frames stored before ``since_ms`` are too old to be repeated."""

    def __init__(self, windows: DeduplicationCache, since_ms: int) -> None:
        self._windows = windows
        self._since_ms = since_ms

    @staticmethod
    def incomplete_at_end(records: ScannedRecords) -> int:
        """Index of the first record of a frame that begins in ``records`` and is not whole at their end; their number if there is none."""
        count = len(records)
        for row in reversed(_marked_rows(records).tolist()):
            mark = _mark_at(records, row)
            if mark is None:
                continue
            have = count - row
            return row if mark.records > have and count_members(records, row, have) == have else count
        return count

    def add(self, records: ScannedRecords) -> int:
        """Enter whole frames; returns how many frames lack records."""
        incomplete = 0
        for row, mark in find_marks(records):
            if mark.records > 1 and count_members(records, row, min(mark.records, len(records) - row)) < mark.records:
                incomplete += row + mark.records <= len(records)  # at the end the caller counts
                continue
            store_ms = int(records.store_ms[row])
            if store_ms >= self._since_ms:
                stored = _stored_single(records, row) if mark.records == 1 else _stored(records, row, row + mark.records)
                self._windows.add(mark.frame_id, stored, store_ms)
        return incomplete


def find_marks(records: ScannedRecords) -> list[tuple[int, FrameMark]]:
    """(record, mark) of every valid mark: its offset is the record's own."""
    found = []
    for row in _marked_rows(records).tolist():
        mark = _mark_at(records, row)
        if mark is not None:
            found.append((row, mark))
    return found


def _marked_rows(records: ScannedRecords) -> Array:
    """Records whose properties look like beginning with a mark."""
    view = records.view
    if not len(records):
        return records.starts
    long_enough = records.ends - records.text_at >= MARK_BYTES
    eight: Array = np.ndarray((len(view) - 7,), ">u8", view, 0, (1,))
    return np.flatnonzero(long_enough & (eight[np.minimum(records.text_at, len(view) - 8)] == _PREFIX))


def _mark_at(records: ScannedRecords, row: int) -> FrameMark | None:
    at = int(records.text_at[row])
    mark = read_mark(bytes(records.view[at : min(at + MARK_BYTES + 1, int(records.ends[row]))]))
    is_own = mark is not None and mark.log_offset == records.base + int(records.starts[row]) and mark.records > 0
    return mark if is_own else None


def count_members(records: ScannedRecords, row: int, count: int) -> int:
    """How many of ``count`` records from ``row`` on belong together: adjacent, one topic and queue, one store time, offsets that follow one another."""
    part = records.part(row, row + count)
    together = (part.queue_ids == part.queue_ids[0]) & (part.store_ms == part.store_ms[0])
    together &= part.queue_offsets == part.queue_offsets[0] + np.arange(len(part))
    together &= part.text_at - part.topic_at == part.text_at[0] - part.topic_at[0]
    if together.all():
        topic_bytes = int(part.text_at[0] - part.topic_at[0])
        topics = np.ndarray((len(part.view) - topic_bytes + 1,), f"V{topic_bytes - 2}", part.view, 0, (1,))[part.topic_at].tobytes()
        if topics == topics[: topic_bytes - 2] * len(part):
            return count
        return 1
    return int((~together).argmax())


def _stored(records: ScannedRecords, row: int, end: int) -> StoredFrame:
    part = records.part(row, end)
    crc = frame_crc((part.ends - part.starts).astype(">i4").tobytes(), part.crcs.astype(">u4").tobytes())
    topic = bytes(part.view[int(part.topic_at[0]) + 1 : int(part.text_at[0]) - 2]).decode("utf-8", "replace")
    return StoredFrame(
        crc, topic, int(part.queue_ids[0]), int(part.queue_offsets[0]), part.base + int(part.starts[0]), part.base + int(part.ends[-1]),
        int(part.store_ms[0]), end - row,
    )  # fmt: skip


def _stored_single(records: ScannedRecords, row: int) -> StoredFrame:
    """The same for one record, without arrays."""
    start, end, topic_at = int(records.starts[row]), int(records.ends[row]), int(records.topic_at[row])
    topic = str(records.view[topic_at + 1 : topic_at + 1 + records.view[topic_at]], "utf-8", "replace")
    crc = zlib.crc32(_SIZE_AND_CRC.pack(end - start, int(records.crcs[row])))
    return StoredFrame(
        crc, topic, int(records.queue_ids[row]), int(records.queue_offsets[row]), records.base + start, records.base + end, int(records.store_ms[row]), 1
    )
