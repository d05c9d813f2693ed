"""What of the bytes that a slave was sent is sound and whole: pure, so that it may run beside the
writing of the bytes before them.

Decides: which records and frames may be taken (docs/file-format.md#frame-and-rmq_frame; a frame is
whole or not there), where broken stretches are skipped (only where the master names them), and
which bytes may stand in the place of a broken stretch (records with their own positions and CRCs
that fill it exactly, or up to the blank that ends a segment, without the zero bytes of a torn
write). Does not decide what happens with them. Invariant: what counts as taken ends behind a whole
frame, behind a stretch that the master named, or at a segment's end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from rmq_ray.codec.record import BLANK, BLANK_MAGIC
from rmq_ray.store.frames.frame_tracker import FrameTracker
from rmq_ray.store.frames.log_scan import (
    NEVER_STRICT,
    ScannedRecords,
    ScanResult,
    Stop,
    scan_buffer,
)

Broken = Sequence[tuple[int, int, str]]
"""(log offset, bytes, fault) of stretches that are broken in the master's log, too."""


@dataclass(slots=True)
class CheckedPiece:
    """Log offsets [begin, end) of ``view`` may be taken. ``records``: what is in them, in log
    order; ``skipped``: what of the broken stretches is. ``fault``: why what lies behind is no
    record; empty where more bytes may make it one.
    """

    begin: int
    end: int
    view: memoryview
    records: list[ScannedRecords] = field(default_factory=list)
    skipped: list[tuple[int, int, str]] = field(default_factory=list)
    fault: str = ""

    @property
    def taken(self) -> int:
        """How many bytes may be taken."""
        return self.end - self.begin


def check_piece(
    view: memoryview, begin: int, segment_bytes: int, record_max: int, broken: Broken = ()
) -> CheckedPiece:
    """Look at ``view``, which lies at log offset ``begin``, where a frame begins. It does not cross
    the end of a segment.
    """
    found = CheckedPiece(begin, begin, view)
    known = {offset: (size, fault) for offset, size, fault in broken}
    start, base = 0, begin
    while start < len(view):  # ends: start rises, or it is left
        result = _without_torn(
            scan_buffer(view[start:], base, record_max, True, NEVER_STRICT),
            view[start:],
            record_max,
            known,
        )
        _keep_whole(found, result.records, base, result.stop)
        if result.stop is Stop.MORE:
            return found
        if result.stop is Stop.BLANK:
            segment_end = begin - begin % segment_bytes + segment_bytes
            if begin + len(view) >= segment_end:
                found.end = segment_end
            return found
        if result.end not in known:
            found.fault = result.fault or result.stop.value
            return found
        size, fault = known[result.end]
        found.skipped.append((result.end, size, fault))
        start, base = result.end - begin + size, result.end + size
        if start > len(view):
            return found
        found.end = base
    return found


def _without_torn(
    result: ScanResult, view: memoryview, record_max: int, known: Collection[int]
) -> ScanResult:
    """Up to the first record that the master names and that a write tore: no CRC covers its topic
    and properties, so that only the name tells it from one of a log that others wrote. A name at a
    record without a fault, or inside of one, is no reason to do without it.
    """
    if known and len(result.records):
        starts = result.records.starts + result.records.base
        for row in np.flatnonzero(np.isin(starts, np.array(list(known), np.int64))).tolist():
            at, end = int(result.records.starts[row]), int(result.records.ends[row])
            alone = scan_buffer(view[at:end], int(starts[row]), record_max, True, strict_from=0)
            if not len(alone.records):
                return ScanResult(
                    result.records.part(0, row), int(starts[row]), Stop.BAD, alone.fault
                )
    return result


def _keep_whole(found: CheckedPiece, records: ScannedRecords, base: int, stop: Stop) -> None:
    incomplete = FrameTracker.incomplete_at_end(records)
    if incomplete < len(records) and stop is Stop.MORE:
        records = records.part(0, incomplete)
    if len(records):
        found.records.append(records)
        found.end = base + int(records.ends[-1])


def whole_records(
    data: bytes, log_offset: int, record_max: int, segment_end: int, *, is_all: bool
) -> tuple[ScannedRecords, int] | None:
    """The whole records at the beginning of ``data``, and how many bytes they and what ends a full
    segment take. None where there are none, or anything else is in it. ``is_all``: they must fill
    ``data`` exactly; else its last record may lie in it only in part.
    """
    found = scan_buffer(memoryview(data), log_offset, record_max, True, strict_from=0)
    reached, end, room = found.end, log_offset + len(data), segment_end - found.end
    if (
        found.stop is Stop.BLANK
        and end == segment_end
        and data[-room:] == BLANK.pack(room, BLANK_MAGIC).ljust(room, b"\0")
    ):
        reached = end
    if reached == log_offset or not (reached == end or (not is_all and found.stop is Stop.MORE)):
        return None
    return found.records, reached - log_offset
