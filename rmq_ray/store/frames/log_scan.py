"""Reading the log from one record to the next: which bytes are valid records, many at a time.

Decides: where valid records end, and why. Does not decide: what follows from that (``recovery``),
what records mean (``redispatch``). Pure: works on buffers.

A record is valid when its lengths add up, its magic is right, its PHYSICALOFFSET is its own
position and its body has the CRC that it names. Topic and properties have no CRC: in what we wrote
they hold no zero byte (the append refuses it), so a zero there is the mark of a write that was
torn, or of a page that never reached the disk. Boundaries are found one by one, or in one step for
records of one size; everything else is checked with numpy over all records of a buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.codec.body_crcs import body_crcs
from rmq_ray.codec.record import (
    BLANK_MAGIC,
    HEADER_BYTES,
    MAGIC,
    OVERHEAD_BYTES,
    TOPIC_BYTES_MAX,
    find_fault,
    texts_at,
)
from rmq_ray.codec.record_layout import RecordLayout

NEVER_STRICT = 1 << 62
_HEAD = struct.Struct(">iI")
_MAGIC_BYTES = MAGIC.to_bytes(4, "big")
_LENGTHS_MAX = 32  # different lengths of texts; beyond, they are searched one by one
_RUN_MAX = 4_096  # records of one size that are looked at by one call
_RUN_FIRST = 64
_RUN_MIN = 8  # shorter runs are quicker one by one
_RUN_TRIES = 16  # short runs in a buffer after which sizes count as mixed
_ARRAYS = (
    "starts",
    "ends",
    "topic_at",
    "text_at",
    "queue_ids",
    "queue_offsets",
    "store_ms",
    "sys_flags",
    "crcs",
)


class Stop(Enum):
    """Why reading ended behind the last valid record of a buffer."""

    MORE = "the next record is not wholly in the buffer"
    BLANK = "a blank record: the rest of the segment is empty"
    END = "zeros: nothing was written here"
    BAD = "bytes that are no valid record"


@dataclass(slots=True)
class ScannedRecords:
    """Valid records back to back. ``base``: log offset of ``view[0]``. All arrays are int64, one
    element a record; positions are bytes of ``view``: ``starts``, ``topic_at`` (of TOPICLEN),
    ``text_at`` (of the properties), ``ends``. ``crcs``: BODYCRC.
    """

    base: int
    view: memoryview
    starts: Array
    ends: Array
    topic_at: Array
    text_at: Array
    queue_ids: Array
    queue_offsets: Array
    store_ms: Array
    sys_flags: Array
    crcs: Array
    marked: Array | None = None
    """Rows that may have a frame's mark; filled by who looks first (``frame_marks``)."""
    names: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def part(self, begin: int, end: int) -> ScannedRecords:
        """Records [begin, end)."""
        return ScannedRecords(
            self.base, self.view, *(getattr(self, name)[begin:end] for name in _ARRAYS)
        )

    def select(self, rows: Array) -> ScannedRecords:
        """The records ``rows`` (increasing)."""
        return ScannedRecords(
            self.base, self.view, *(getattr(self, name)[rows] for name in _ARRAYS)
        )

    def topics(self) -> list[bytes]:
        """Every record's topic; found once."""
        if self.names is None:
            self.names = self._find_topics()
        return self.names

    def _find_topics(self) -> list[bytes]:
        view = self.view
        begins, lengths = self.topic_at + 1, self.text_at - self.topic_at - 3
        if len(self) and (lengths == lengths[0]).all():  # mostly all of one topic: compared at once
            length = int(lengths[0])
            first = bytes(view[int(begins[0]) : int(begins[0]) + length])
            if texts_at(view, begins, length) == first * len(self):
                return [first] * len(self)
        return [
            bytes(view[begin:end])
            for begin, end in zip(
                (self.topic_at + 1).tolist(), (self.text_at - 2).tolist(), strict=True
            )
        ]


@dataclass(frozen=True, slots=True)
class ScanResult:
    """``end``: log offset behind the last valid record (where reading stopped). ``fault``: what is
    wrong there, for ``BAD``.
    """

    records: ScannedRecords
    end: int
    stop: Stop
    fault: str = ""


def scan_buffer(
    view: memoryview,
    base: int,
    record_bytes_max: int,
    check_crc: bool,
    strict_from: int = NEVER_STRICT,
) -> ScanResult:
    """Valid records from ``view[0]``, which lies at log offset ``base`` and where a record begins.
    Records at and behind log offset ``strict_from`` are ours: no zero bytes in topic and
    properties.
    """
    starts, at, stop = _boundaries(view, record_bytes_max)
    records, layout = _gather(view, base, starts, at)
    bad = _first_bad(records, layout, check_crc)
    if bad < len(records):
        at = int(records.starts[bad])
        records = records.part(0, bad)
        stop = Stop.BAD
    torn = _first_torn(records, strict_from)
    if torn < len(records):
        at = int(records.starts[torn])
        return ScanResult(
            records.part(0, torn), base + at, Stop.BAD, "zero bytes in its topic or properties"
        )
    fault = ""
    if stop is Stop.BAD:
        fault = find_fault(view, at) or "its PHYSICALOFFSET is not its position"
    return ScanResult(records, base + at, stop, fault)


def find_valid(view: memoryview, base: int, at: int) -> int | None:
    """Log offset of the first valid record that begins at byte ``at`` of ``view`` or behind it,
    None if there is none in it.
    """
    data = _searchable(view)
    found = data.find(_MAGIC_BYTES, at + 4)
    while found >= 0:  # ends: found rises
        start = found - 4
        if (
            len(view) - start >= HEADER_BYTES
            and struct.unpack_from(">q", view, start + 28)[0] == base + start
            and find_fault(view, start) is None
        ):
            return base + start
        found = data.find(_MAGIC_BYTES, found + 1)
    return None


def broken_stretches(
    view: memoryview, base: int, record_bytes_max: int
) -> Iterator[tuple[int, int | None, str]]:
    """What of ``view``, which lies at log offset ``base``, is no record although one should begin
    there: (log offset, where the next valid record begins or None if none does, fault).
    """
    at = 0
    while True:  # ends: ``at`` rises
        found = scan_buffer(view[at:], base + at, record_bytes_max, True)
        if found.end - base >= len(view) or found.stop is Stop.BLANK:
            return
        following = find_valid(view, base, found.end - base + 1)
        yield found.end, following, found.fault or found.stop.value
        if following is None:
            return
        at = following - base


def _searchable(view: memoryview) -> bytes | bytearray:
    """The same bytes with ``find``, without a copy where the view is a whole object."""
    return (
        view.obj
        if isinstance(view.obj, bytes | bytearray) and len(view.obj) == len(view)
        else bytes(view)
    )


def _first_torn(records: ScannedRecords, strict_from: int) -> int:
    """Index of the first record with a zero byte in topic or properties; their number if there is
    none.
    """
    begin = int(np.searchsorted(records.starts + records.base, strict_from)) if len(records) else 0
    if begin >= len(records):
        return len(records)
    part = records.part(begin, len(records))
    return begin + min(
        _first_with_zero(part.view, part.text_at, part.ends),
        _first_with_zero(part.view, part.topic_at + 1, part.text_at - 2),
    )


def _first_with_zero(view: memoryview, begins: Array, ends: Array) -> int:
    """Index of the first of the texts at bytes [begins, ends) that holds a zero byte; their number
    if none does. Texts of one length are searched at once.
    """
    lengths, first = ends - begins, len(begins)
    kinds = np.flatnonzero(np.bincount(lengths)).tolist()
    if len(kinds) > _LENGTHS_MAX:
        find = _searchable(view).find
        return next(
            (
                row
                for row, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True))
                if find(0, begin, end) >= 0
            ),
            first,
        )
    for length in kinds:
        if length:
            rows = np.flatnonzero(lengths == length) if len(kinds) > 1 else None
            of_length = begins if rows is None else begins[rows]
            at = texts_at(view, of_length, length).find(0)
            if at >= 0:
                first = min(first, at // length if rows is None else int(rows[at // length]))
    return first


def _boundaries(view: memoryview, record_bytes_max: int) -> tuple[list[int], int, Stop]:
    """(where records begin, behind the last one, why there) by TOTALSIZE and magic alone."""
    starts: list[int] = []
    add, unpack = starts.append, _HEAD.unpack_from
    at, last = 0, len(view) - OVERHEAD_BYTES
    before, tries = 0, _RUN_TRIES
    while at <= last:  # ends: at rises
        total, magic = unpack(view, at)
        if magic != MAGIC or not OVERHEAD_BYTES < total <= record_bytes_max:
            break
        if at + total > len(view):
            return starts, at, Stop.MORE
        add(at)
        at += total
        if total == before and tries:
            run = _alike_from(view, at, total)
            starts.extend(range(at, at + run * total, total))
            at += run * total
            tries = tries - 1 if run < _RUN_MIN else _RUN_TRIES
        before = total
    if at + _HEAD.size > len(view):
        return starts, at, Stop.MORE
    total, magic = unpack(view, at)
    if magic == BLANK_MAGIC and total >= _HEAD.size:
        return starts, at, Stop.BLANK
    if total == 0 and magic == 0:
        return starts, at, Stop.END
    if at > last and magic == MAGIC:
        return starts, at, Stop.MORE
    return starts, at, Stop.BAD


def _alike_from(view: memoryview, at: int, total: int) -> int:
    """How many whole records of ``total`` bytes follow one another from ``at`` on, at most
    ``_RUN_MAX``.
    """
    room = min(_RUN_MAX, (len(view) - at) // total)
    for count in (min(room, _RUN_FIRST), room):  # runs are short mostly: a few are looked at first
        alike = np.ndarray((count,), ">u8", view, at, (total,)) == (total << 32 | MAGIC)
        if not alike.all():
            return int(alike.argmin())
    return room


def _gather(
    view: memoryview, base: int, starts: list[int], end: int
) -> tuple[ScannedRecords, RecordLayout]:
    """Fields of records whose boundaries are known, and their layout; lengths inside are not
    checked yet.
    """
    layout = RecordLayout(view[:end], np.diff(np.array([*starts, end], np.int64)))
    head = layout.heads
    records = ScannedRecords(
        base,
        view,
        layout.starts,
        layout.ends,
        layout.body_ends,
        layout.text_begins,
        head["queue_id"].astype(np.int64),
        head["queue_offset"].astype(np.int64),
        layout.field(">i8", layout.after_born + 56).astype(np.int64),
        layout.sys_flags,
        head["crc"].astype(np.int64),
    )
    return records, layout


def _first_bad(records: ScannedRecords, layout: RecordLayout, check_crc: bool) -> int:
    """Index of the first record that is not valid; the number of records when all are."""
    count = len(records)
    if not count:
        return 0
    topic_len = layout.topic_lengths
    good = layout.fits & (topic_len > 0) & (topic_len <= TOPIC_BYTES_MAX)
    good &= layout.heads["log_offset"] == records.base + layout.starts
    sound = count if good.all() else int((~good).argmax())
    if not check_crc or not sound:
        return sound
    begins, ends = layout.body_begins[:sound], layout.body_ends[:sound]
    wrong = body_crcs(records.view, begins, ends) != records.crcs[:sound]
    return int(wrong.argmax()) if wrong.any() else sound
