"""The marks of a buffer's records, all at once (docs/file-format.md#frame-and-rmq_frame).

Decides which records have a mark in its fixed form, and what it says. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.codec.record_batch import MARK_BYTES, MARK_PREFIX, FrameMark
from rmq_ray.model.ids import FrameId
from rmq_ray.store.frames.log_scan import ScannedRecords

_PREFIX = int.from_bytes(MARK_PREFIX[:8], "big")
_DIGITS_AT = len(MARK_PREFIX)
_HEX = np.full(256, 16, np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_PLACES = 16 ** np.arange(7, -1, -1, dtype=np.int64)
_SEPARATOR = 2
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Marks:
    """``rows``: the marked records, increasing. ``producers``: uint8[n, 16]. ``sequences``,
    ``counts``, ``log_offsets``: int64[n]; a sequence from 2**63 on is negative there, the offset
    that a producer left to the broker is -1.
    """

    rows: Array
    producers: Array
    sequences: Array
    counts: Array
    log_offsets: Array

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, which: Array) -> Marks:
        """Those marks."""
        return Marks(
            self.rows[which],
            self.producers[which],
            self.sequences[which],
            self.counts[which],
            self.log_offsets[which],
        )

    def frame_id(self, number: int) -> FrameId:
        """Of mark ``number``."""
        return FrameId(self.producers[number].tobytes(), int(self.sequences[number]) & _WORD)

    def mark(self, number: int) -> FrameMark:
        """Mark ``number`` by itself."""
        return FrameMark(
            self.frame_id(number), int(self.counts[number]), int(self.log_offsets[number])
        )


def candidates(records: ScannedRecords) -> Array:
    """Records whose properties look like beginning with a mark."""
    if records.marked is None:
        records.marked = _find_candidates(records)
    return records.marked


def _find_candidates(records: ScannedRecords) -> Array:
    view = records.view
    rows = np.flatnonzero(records.ends - records.text_at >= MARK_BYTES)
    if not len(rows):
        return rows
    eight: Array = np.ndarray((len(view) - 7,), ">u8", view, 0, (1,))
    found: Array = rows[eight[records.text_at[rows]] == _PREFIX]
    return found


def read_marks(records: ScannedRecords, rows: Array | None = None) -> Marks:
    """The marks of all records, or of those of ``rows``, that are in their fixed form."""
    rows = candidates(records) if rows is None else rows
    at = records.text_at[rows]
    texts = (
        np.ndarray(
            (max(0, len(records.view) - MARK_BYTES + 1),), f"V{MARK_BYTES}", records.view, 0, (1,)
        )[at]
        .view(np.uint8)
        .reshape(-1, MARK_BYTES)
    )
    digits = _HEX[texts[:, _DIGITS_AT:]]
    good = (digits < 16).all(axis=1) & (
        texts[:, 8:_DIGITS_AT] == np.frombuffer(MARK_PREFIX[8:], np.uint8)
    ).all(axis=1)
    behind = at + MARK_BYTES
    data = np.frombuffer(records.view, np.uint8)
    good &= (behind == records.ends[rows]) | (data[np.minimum(behind, len(data) - 1)] == _SEPARATOR)
    if not good.all():
        rows, digits = rows[good], digits[good]
    numbers = [digits[:, begin : begin + 8] @ _PLACES for begin in range(32, 72, 8)]
    producers = digits[:, 0:32:2] << 4 | digits[:, 1:32:2]
    return Marks(
        rows, producers, numbers[0] << 32 | numbers[1], numbers[2], numbers[3] << 32 | numbers[4]
    )


def own_marks(records: ScannedRecords, rows: Array | None = None) -> Marks:
    """Those that are valid: the log offset is the record's own, at least one record."""
    marks = read_marks(records, rows)
    valid = (marks.log_offsets == records.base + records.starts[marks.rows]) & (marks.counts > 0)
    return marks if valid.all() else marks.select(np.flatnonzero(valid))


def without_marks(records: ScannedRecords) -> Array:
    """Where each record's properties begin behind its mark, if it has one: bytes of the view."""
    rows = read_marks(records).rows
    if not len(rows):
        return records.text_at
    begins = records.text_at.copy()
    begins[rows] = np.minimum(begins[rows] + MARK_BYTES + 1, records.ends[rows])
    return begins
