"""Frames that are found in a log again: which are whole, which lack records, which producer sent
them (docs/file-format.md#frame-and-rmq_frame).

Decides: where the last frame of a stretch begins if records of it are missing, and what enters the
windows of repeats. Does not decide whether an incomplete frame goes (``recovery``: at the very tail
only), nor what a mark says (``frame_marks``).

Invariant: a frame is whole or not there.
"""

from __future__ import annotations

import struct
import zlib
from operator import eq

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.codec.record_batch import frame_crc
from rmq_ray.store.frames.deduplication import DeduplicationCache, StoredFrame
from rmq_ray.store.frames.frame_marks import Marks, candidates, own_marks
from rmq_ray.store.frames.log_scan import ScannedRecords

_SIZE_AND_CRC = struct.Struct(">iI")
_LOOKED_AT = 64  # marks from the end that are read at a time to find the last valid one


class FrameTracker:
    """Fills ``windows`` from marks."""

    def __init__(self, windows: DeduplicationCache) -> None:
        self._windows = windows

    @staticmethod
    def incomplete_at_end(records: ScannedRecords) -> int:
        """Index of the first record of a frame that begins in ``records`` and is not whole at their
        end; their number if there is none.
        """
        count = len(records)
        rows = candidates(records)
        while len(rows):  # ends: fewer each round
            marks = own_marks(records, rows[-_LOOKED_AT:])
            rows = rows[:-_LOOKED_AT]
            if len(marks):
                row = int(marks.rows[-1])
                have = count - row
                return (
                    row
                    if int(marks.counts[-1]) > have
                    and int(members_from(records, marks.rows[-1:])[0]) == have
                    else count
                )
        return count

    def add(self, records: ScannedRecords) -> int:
        """Enter whole frames; returns how many frames lack records."""
        marks = own_marks(records)
        if not len(marks):
            return 0
        whole = (
            members_from(records, marks.rows) >= marks.counts
            if (marks.counts > 1).any()
            else np.ones(len(marks), np.bool_)
        )
        self._remember(records, marks.select(np.flatnonzero(whole)))
        at_end = marks.rows + marks.counts > len(records)  # the caller counts those
        return int(np.count_nonzero(~whole & ~at_end))

    def _remember(self, records: ScannedRecords, marks: Marks) -> None:
        """Whole frames, in log order; of a producer only as many as its window holds."""
        left = self._skip_many(marks) if len(marks) > self._windows.frames_max else marks
        for number, (row, count) in enumerate(
            zip(left.rows.tolist(), left.counts.tolist(), strict=True)
        ):
            stored = (
                _stored_single(records, row) if count == 1 else _stored(records, row, row + count)
            )
            self._windows.add(left.frame_id(number), stored)

    def _skip_many(self, marks: Marks) -> Marks:
        kept = np.ones(len(marks), np.bool_)
        _, first, kinds = np.unique(
            marks.producers.copy().view("V16")[:, 0], return_index=True, return_inverse=True
        )
        for kind, example in enumerate(first.tolist()):
            own = np.flatnonzero(kinds == kind)
            early = own[: -self._windows.frames_max]
            if len(early):
                kept[early] = False
                highest = int(marks.sequences[early].view(np.uint64).max())
                self._windows.skip(marks.producers[example].tobytes(), highest)
        return marks.select(np.flatnonzero(kept))


def members_from(records: ScannedRecords, rows: Array) -> Array:
    """How many records from each of ``rows`` on belong together: one topic and queue, one store
    time, offsets that follow one another.
    """
    together = (
        (records.queue_ids[1:] == records.queue_ids[:-1])
        & (np.diff(records.store_ms) == 0)
        & (np.diff(records.queue_offsets) == 1)
    )
    topics = records.topics()
    if topics.count(topics[0]) < len(topics):
        together &= np.fromiter(map(eq, topics[1:], topics), np.bool_, len(topics) - 1)
    lasts = np.append(np.flatnonzero(~together), len(records) - 1)
    found: Array = lasts[np.searchsorted(lasts, rows)] - rows + 1
    return found


def _stored(records: ScannedRecords, row: int, end: int) -> StoredFrame:
    sizes = (records.ends[row:end] - records.starts[row:end]).astype(">i4")
    crc = frame_crc(sizes.tobytes(), records.crcs[row:end].astype(">u4").tobytes())
    return _stored_as(records, row, end, crc)


def _stored_single(records: ScannedRecords, row: int) -> StoredFrame:
    """The same for one record, without arrays."""
    size = int(records.ends[row]) - int(records.starts[row])
    return _stored_as(
        records, row, row + 1, zlib.crc32(_SIZE_AND_CRC.pack(size, int(records.crcs[row])))
    )


def _stored_as(records: ScannedRecords, row: int, end: int, crc: int) -> StoredFrame:
    topic_at, base = int(records.topic_at[row]), records.base
    topic = str(
        records.view[topic_at + 1 : topic_at + 1 + records.view[topic_at]], "utf-8", "replace"
    )
    return StoredFrame(
        crc,
        topic,
        int(records.queue_ids[row]),
        int(records.queue_offsets[row]),
        base + int(records.starts[row]),
        base + int(records.ends[end - 1]),
        int(records.store_ms[row]),
        end - row,
    )
