"""Reading records of a queue: from queue offsets over consume-queue entries to bytes of the log
(docs/file-format.md#reading).

Decides: the status and the next offset of a read, which entries match a tag filter, how many reads
of the log it takes (records that lie densely are read with one call), and that a record which is
not what its entry says, or has a wrong CRC, is never handed out. Does not decide: who may read,
long polling. Any thread.

Invariant: every record handed out has its entry's log offset and size, the asked topic's queue
offset, and a body with its CRC.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from rmq_ray.arrays import MANY, Array
from rmq_ray.codec.body_crcs import body_crcs
from rmq_ray.codec.record import (
    CRC_MASK,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    OVERHEAD_BYTES,
    find_fault,
    headers_at,
    texts_at,
)
from rmq_ray.codec.store_files import BLANK_SIZE, ENTRIES, ENTRY, ENTRY_BYTES
from rmq_ray.errors import RecordAwaited, StoreMissing
from rmq_ray.model.checksum import crc32
from rmq_ray.model.pulling import GetMessageStatus
from rmq_ray.store.log.commit_log import CommitLog
from rmq_ray.store.log.quarantine import Quarantine
from rmq_ray.store.queue.consume_queue import ConsumeQueue
from rmq_ray.store.queue.consume_queue_ext import Hit
from rmq_ray.store.queue.queue_table import QueueTable
from rmq_ray.store.reading.page_cache import PAGE_BYTES_MAX, PAGE_RECORDS_MAX, CachedPage, PageCache

logger = logging.getLogger("rmq_ray.store")
FOREIGN_UNITS = 800  # max(16000, 20 * max_count) bytes of entries a pull
OUR_UNITS = 8_192
FOREIGN_CAPS = (32, 256 << 10)  # records, bytes of what is in memory
FOREIGN_DISK_CAPS = (8, 64 << 10)
IN_MEMORY_RATIO = 0.4  # accessMessageInMemoryMaxRatio
_DENSE = 4  # a span is read at once when it is at most this many times its wanted bytes
_SPAN_MAX = 8 << 20
_GAP_MAX = (
    32 << 10
)  # bytes of others between two records that are read along: that costs less than another read
_V6 = 0x30
_RECORD_GUESS = 4096
_NEAR_BYTES = (
    65_536  # between the first and the last of several records that are read with one call
)
RECENT_BYTES_MAX = 4_096
_LOG_OFFSET_AT = 28  # in a record, 8 bytes: docs/file-format.md#record
Kept = tuple[list[int], list[Any], int | None]
"""Sizes and buffers of sound records, up to the row of one that a copy is asked for."""
Wanted = tuple[Any, Any, Any]
"""Rows, log offsets, sizes: lists when there are few entries, arrays when there are many."""


class Place(NamedTuple):
    """Queue offset ``offset`` of a queue."""

    topic: str
    queue_id: int
    offset: int

    @property
    def topic_in_record(self) -> bytes:
        """As it stands in each of its records: TOPICLEN, topic."""
        topic = self.topic.encode()
        return bytes([len(topic)]) + topic


def last_log_offset(records: Any, sizes: Sequence[int] | Array) -> int:
    """Where the last of these records begins in the log. ``records``: bytes that end with it;
    ``sizes``: of the last one at least.
    """
    at = len(records) - int(sizes[-1]) + _LOG_OFFSET_AT
    return int.from_bytes(records[at : at + 8], "big")


def _is_record_of(data: bytes, at: int, log_offset: int) -> bool:
    """Whether a sound record begins at ``at`` that says it lies at ``log_offset``."""
    stated = data[at + _LOG_OFFSET_AT : at + _LOG_OFFSET_AT + 8]
    return int.from_bytes(stated, "big") == log_offset and find_fault(data, at) is None


@dataclass(slots=True)
class GetResult:
    """What a read found. ``parts``: buffers that hold the records back to back; ``sizes``: one per
    record (int32).
    """

    status: GetMessageStatus
    next_offset: int
    min_offset: int
    max_offset: int
    sizes: Array = field(default_factory=lambda: np.empty(0, np.int32))
    parts: list[Any] = field(default_factory=list)
    suggest_slave: bool = False

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.sizes)


@dataclass(slots=True)
class Recent:
    """A small frame as it was just written: a pull that waited for it needs no file. ``offset``:
    queue offset of its first record.
    """

    topic: str
    queue_id: int
    offset: int
    sizes: Sequence[int] | Array
    data: bytes

    @property
    def last_log_offset(self) -> int:
        """Where its last record begins in the log."""
        return last_log_offset(self.data, self.sizes)

    def answers(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int
    ) -> bool:
        """Whether a read without a filter gets all of it, and begins with it."""
        if offset != self.offset or queue_id != self.queue_id or topic != self.topic:
            return False
        return max_count >= len(self.sizes) and (
            len(self.data) <= max_bytes or len(self.sizes) == 1
        )


class LogReader:
    """``memory_bytes``: RAM, by which "in memory" is guessed as RocketMQ does."""

    def __init__(
        self, log: CommitLog, queues: QueueTable, quarantine: Quarantine, memory_bytes: int
    ) -> None:
        self._log = log
        self._queues = queues
        self._quarantine = quarantine
        self._memory_bytes = int(memory_bytes * IN_MEMORY_RATIO)
        self.recent: Recent | None = None
        """Kept by the appender; None from the moment on when the log is cut or a topic
        goes.
        """
        self._pages = PageCache()
        self._awaits: Callable[[int | None], bool] = lambda _log_offset: False

    def wait_for_copies(self, awaits: Callable[[int | None], bool]) -> None:
        """``awaits(log offset)``: whether another copy is asked for the broken record there; None:
        for any, as its entry is blank. Reads end in front of such a record.
        """
        self._awaits = awaits

    def forget(self) -> None:
        """The log was cut, or a topic goes: nothing that was read before is handed out again."""
        self.recent = None
        self._pages.forget()

    def get_messages(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        codes: frozenset[int] | None,
        foreign: bool = False,
        hit: Hit | None = None,
    ) -> GetResult:
        """Records from queue offset ``offset`` on, at most ``max_count`` and ``max_bytes`` (the
        first one always).

        ``codes``: tags codes wanted, None = all. ``foreign``: RocketMQ's caps apply. ``hit(store
        time, bit map)``: whether a record may be wanted, asked where there are extension units.
        """
        plain = codes is None and hit is None
        if plain and not foreign:
            found = self.recent_from(topic, queue_id, offset, max_count, max_bytes)
            if found is not None:
                recent, low, high = found
                sizes = np.array(recent.sizes, np.int32)
                return GetResult(GetMessageStatus.FOUND, high, low, high, sizes, [recent.data])
        queue, place = self._queues.find(topic, queue_id), Place(topic, queue_id, offset)
        low, high = self._queues.bounds_of(queue, topic, queue_id)
        outside = _outside(offset, low, high)
        if outside is not None:
            return outside
        assert queue is not None, "what is not there has nothing inside"
        if plain and foreign:
            paged = self._from_page(queue, place, max_count, max_bytes)
            if paged is not None:
                return paged
        units = (
            max(FOREIGN_UNITS, max_count)
            if foreign
            else min(OUR_UNITS, max_count if codes is None else OUR_UNITS)
        )
        raw = queue.read(offset, units)
        if not raw:
            following = queue.entries_per_file
            return GetResult(
                GetMessageStatus.OFFSET_FOUND_NULL,
                offset + following - offset % following,
                low,
                high,
            )
        if self._quarantine.count:
            raw = self._before_blank(raw, offset)
        if not plain:
            raw = queue.resolve(
                raw, hit, next(iter(codes)) if codes else 0
            )  # a code that is not known any more counts as wanted
        if foreign:
            max_count, max_bytes = min(max_count, FOREIGN_CAPS[0]), min(max_bytes, FOREIGN_CAPS[1])
        return self._read_entries(queue, place, raw, max_count, max_bytes, codes, foreign)

    def _before_blank(self, raw: bytes, offset: int) -> bytes:
        """Entries in front of the first that stands in for a record which a copy is asked for."""
        blank = np.flatnonzero(np.frombuffer(raw, ENTRIES)["size"] == BLANK_SIZE)
        if not len(blank) or not self._awaits(None):
            return raw
        if not blank[0]:
            raise RecordAwaited(f"a copy is asked for the record of queue offset {offset}", offset)
        return raw[: int(blank[0]) * ENTRY_BYTES]

    def _from_page(
        self,
        queue: ConsumeQueue,
        place: Place,
        max_count: int,
        max_bytes: int,
    ) -> GetResult | None:
        """Records from a page that holds so many and more, read now where that is worth it. None:
        the log is to be asked. RocketMQ hands out less of what is on disk, which is never in a
        page.
        """
        offset = place.offset
        max_count, max_bytes = min(max_count, FOREIGN_CAPS[0]), min(max_bytes, FOREIGN_CAPS[1])
        page = self._pages.find(place[:2])
        found = None if page is None else page.cut(offset, max_count, max_bytes)
        if found is None:
            if queue.max_offset - offset < 2 * max_count:
                return None
            page = self._read_page(queue, place)
            found = None if page is None else page.cut(offset, max_count, max_bytes)
        if page is None or found is None or page.log_offset < self._log.end - self._memory_bytes:
            return None
        sizes, data = found
        low, high, after = queue.min_offset, queue.max_offset, offset + len(sizes)
        return GetResult(GetMessageStatus.FOUND, after, low, high, sizes, [data])

    def _read_page(self, queue: ConsumeQueue, place: Place) -> CachedPage | None:
        """The page from there on; None where a record is missing or not sound."""
        life, offset = self._pages.life, place.offset
        raw = queue.read(offset, PAGE_RECORDS_MAX)
        if not raw:
            return None
        (rows, offsets, sizes), _ = _choose_many(raw, PAGE_RECORDS_MAX, PAGE_BYTES_MAX, None)
        if not len(rows) or int(rows[-1]) != len(rows) - 1:
            return None  # blank entries stand between them
        log_offset = int(offsets[0])
        if log_offset < self._log.end - self._memory_bytes:
            return None
        kept, parts, _ = self._read_many(place, rows, offsets, sizes)
        if len(kept) != len(rows):
            return None
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        ends = [0, *np.cumsum(sizes).tolist()]
        page = CachedPage(
            offset, log_offset, sizes.astype(np.int32), ends, memoryview(data).toreadonly()
        )
        self._pages.keep(place[:2], page, life)
        return page

    def recent_from(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int
    ) -> tuple[Recent, int, int] | None:
        """(the frame that was written last, the queue's smallest offset, its greatest + 1) where a
        read without a filter from ``offset`` on finds exactly that frame.
        """
        recent = self.recent
        if recent is None or not recent.answers(topic, queue_id, offset, max_count, max_bytes):
            return None
        queue = self._queues.find(topic, queue_id)
        if (
            queue is None
            or offset < queue.min_offset
            or offset + len(recent.sizes) != queue.max_offset
        ):  # not visible yet, or not the last any more
            return None
        return recent, queue.min_offset, queue.max_offset

    def is_sound(self, place: Place, entry: bytes) -> bool:
        """Whether a queue's entry there points at the record that it promises."""
        log_offset, size, _ = ENTRY.unpack(entry)
        if not self._has_room(log_offset, size):
            return False
        data = self._log.read(log_offset, size)
        return (
            len(data) == size and _find_sound(data, log_offset, place, [0], [log_offset], [size])[0]
        )

    def record_at(self, log_offset: int, limit: int) -> bytes | None:
        """The valid record that begins at ``log_offset`` below ``limit``, None when there is
        none.
        """
        if not self._log.begin <= log_offset < limit:
            return None
        data = self._log.read(log_offset, _RECORD_GUESS)
        if len(data) <= OVERHEAD_BYTES:
            return None
        total = int.from_bytes(data[:4], "big", signed=True)
        if total > len(data):
            data = self._log.read(log_offset, total)
        return data[:total] if _is_record_of(data, 0, log_offset) else None

    def records_at(
        self, log_offsets: Sequence[int], limit: int, bytes_max: int
    ) -> list[bytes | None]:
        """``record_at`` of each, until ``bytes_max`` bytes were read: the list ends there. What
        lies close together is read with one call.
        """
        low, high = min(log_offsets), max(log_offsets)
        data = (
            self._log.read(low, high - low + _RECORD_GUESS)
            if self._log.begin <= low and high - low <= _NEAR_BYTES
            else b""
        )
        found: list[bytes | None] = []
        size = 0
        for log_offset in log_offsets:
            if size >= bytes_max:
                break
            at = log_offset - low
            end = at + int.from_bytes(data[at : at + 4], "big")
            whole = (
                at < end <= len(data) and log_offset < limit and _is_record_of(data, at, log_offset)
            )
            raw = data[at:end] if whole else self.record_at(log_offset, limit)
            found.append(raw)
            size += len(raw or b"")
        return found

    def _read_entries(
        self,
        queue: ConsumeQueue,
        place: Place,
        raw: bytes,
        max_count: int,
        max_bytes: int,
        codes: frozenset[int] | None,
        foreign: bool,
    ) -> GetResult:
        scanned, offset = len(raw) // ENTRY_BYTES, place.offset
        if scanned < MANY:
            (rows, offsets, sizes), scanned = _choose_few(raw, scanned, max_count, max_bytes, codes)
        else:
            (rows, offsets, sizes), scanned = _choose_many(raw, max_count, max_bytes, codes)
        if foreign:
            fit = self._fit_on_disk(offsets, sizes)
            if fit < len(rows):
                scanned = int(rows[fit])
                rows, offsets, sizes = rows[:fit], offsets[:fit], sizes[:fit]
        result = GetResult(
            GetMessageStatus.NO_MATCHED_MESSAGE,
            offset + scanned,
            queue.min_offset,
            queue.max_offset,
        )
        if not len(rows):
            return result
        result.suggest_slave = self._log.end - int(offsets[-1]) > self._memory_bytes
        if len(rows) >= MANY:
            kept, result.parts, awaited = self._read_many(place, rows, offsets, sizes)
        else:
            if isinstance(rows, np.ndarray):
                rows, offsets, sizes = rows.tolist(), offsets.tolist(), sizes.tolist()
            kept, result.parts, awaited = self._read_records(place, rows, offsets, sizes)
        if awaited is not None:
            result.next_offset = offset + awaited
            if not kept:
                raise RecordAwaited(
                    f"a copy is asked for the record of queue offset {result.next_offset}",
                    result.next_offset,
                )
        result.sizes = np.array(kept, np.int32)
        result.status = GetMessageStatus.FOUND if kept else GetMessageStatus.MESSAGE_WAS_REMOVING
        if not kept:
            gone = (
                int(offsets[-1]) < self._log.begin
            )  # with its segment: what else was in there is not worth a look
            result.next_offset = max(
                result.next_offset, queue.min_offset, queue.first_at(self._log.begin) if gone else 0
            )
        return result

    def _fit_on_disk(self, offsets: Any, sizes: Any) -> int:
        """How many of these records RocketMQ hands out: a record that lies on disk ends the pull
        when the smaller caps are reached.
        """
        border = self._log.end - self._memory_bytes
        count_cap, bytes_cap = FOREIGN_DISK_CAPS
        total = 0
        for at, (log_offset, size) in enumerate(zip(offsets, sizes, strict=True)):
            if at and log_offset < border and (at >= count_cap or total + size > bytes_cap):
                return at
            total += size
        return len(offsets)

    def _read_many(self, place: Place, rows: Array, offsets: Array, sizes: Array) -> Kept:
        """``_read_records`` of many: those that lie near one another are read and checked at once,
        and one by one only where that fails.
        """
        segments = offsets // self._log.chain.segment_bytes
        apart = (offsets[1:] - (offsets[:-1] + sizes[:-1]) > _GAP_MAX) | (
            segments[1:] != segments[:-1]
        )
        edges = [0, *(np.flatnonzero(apart) + 1).tolist(), len(rows)]
        kept: list[int] = []
        parts: list[Any] = []
        for begin, end in pairwise(edges):
            span = (rows[begin:end], offsets[begin:end], sizes[begin:end])
            found = self._read_span(place, *span)
            sound, buffers, awaited = (
                self._read_records(place, *(values.tolist() for values in span))
                if found is None
                else (span[2].tolist(), found, None)
            )
            kept += sound
            parts += buffers
            if awaited is not None:
                return kept, parts, awaited
        return kept, parts, None

    def _read_span(
        self, place: Place, rows: Array, offsets: Array, sizes: Array
    ) -> list[Any] | None:
        """Buffers of records that lie near one another, each of those that stand back to back; None
        when they are not all sound.
        """
        first, ends = int(offsets[0]), offsets + sizes
        length = int(ends[-1]) - first
        if not 0 < length <= _SPAN_MAX or (sizes < OVERHEAD_BYTES).any():
            return None
        if (offsets[1:] < ends[:-1]).any():
            return None  # an entry is damaged: one by one
        try:
            data = self._log.read(first, length)
        except StoreMissing:
            return None
        if len(data) != length or not _are_sound(data, first, place, rows, offsets, sizes):
            return None
        breaks = np.flatnonzero(offsets[1:] != ends[:-1])
        if not len(breaks):
            return [data]
        view = memoryview(data)
        begins = [0, *(offsets[breaks + 1] - first).tolist()]
        return [
            view[begin:end]
            for begin, end in zip(begins, [*(ends[breaks] - first).tolist(), length], strict=True)
        ]

    def _read_records(
        self, place: Place, rows: list[int], offsets: list[int], sizes: list[int]
    ) -> Kept:
        """The records that are sound."""
        kept: list[int] = []
        parts: list[Any] = []
        for begin, end in self._spans(offsets, sizes):
            first, length = offsets[begin], offsets[end - 1] + sizes[end - 1] - offsets[begin]
            try:
                data = self._log.read(first, length) if length > 0 else b""
            except StoreMissing:
                continue  # retention was faster
            if len(data) < length:
                continue
            sound = _find_sound(
                data, first, place, rows[begin:end], offsets[begin:end], sizes[begin:end]
            )
            if all(sound) and sum(sizes[begin:end]) == length:
                kept += sizes[begin:end]
                parts.append(data)
                continue
            view = memoryview(data)
            for at, is_sound in zip(range(begin, end), sound, strict=True):
                if is_sound:
                    kept.append(sizes[at])
                    parts.append(view[offsets[at] - first : offsets[at] - first + sizes[at]])
                elif self._is_awaited(place.offset + rows[at], offsets[at], sizes[at]):
                    return kept, parts, rows[at]
        return kept, parts, None

    def _is_awaited(self, queue_offset: int, log_offset: int, size: int) -> bool:
        """Of a record that is not sound: it is listed; whether a copy is asked for it."""
        if not self._has_room(log_offset, size):
            logger.error(
                "the entry of queue offset %d is damaged: no record has %d bytes at log offset %d",
                queue_offset,
                size,
                log_offset,
            )
            return False
        fault = find_fault(self._log.read(log_offset, size), 0)
        self._quarantine.add(log_offset, size, fault or "it is not the record of its place")
        return self._awaits(log_offset)

    def _has_room(self, log_offset: int, size: int) -> bool:
        """Whether a record of that size can lie there."""
        return size >= OVERHEAD_BYTES and self._log.begin <= log_offset <= self._log.end - size

    def _spans(self, offsets: list[int], sizes: list[int]) -> list[tuple[int, int]]:
        """[begin, end) of entries that one read of the log covers."""
        count = len(offsets)
        segment_bytes = self._log.chain.segment_bytes
        total, own = offsets[-1] + sizes[-1] - offsets[0], sum(sizes)
        if offsets[0] // segment_bytes == offsets[-1] // segment_bytes and own <= total <= min(
            _DENSE * own, _SPAN_MAX
        ):
            return [(0, count)]
        spans: list[tuple[int, int]] = []
        begin, wanted = 0, sizes[0]
        for at in range(1, count):
            wanted += sizes[at]
            span = offsets[at] + sizes[at] - offsets[begin]
            if offsets[at] // segment_bytes != offsets[
                begin
            ] // segment_bytes or not wanted <= span <= min(_DENSE * wanted, _SPAN_MAX):
                spans.append((begin, at))
                begin, wanted = at, sizes[at]
        spans.append((begin, count))
        return spans


def _outside(offset: int, low: int, high: int) -> GetResult | None:
    """The result for an offset that no entry has."""
    if high == 0:
        return GetResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return GetResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return GetResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        return GetResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
    return None


def _choose_few(
    raw: bytes, count: int, max_count: int, max_bytes: int, codes: frozenset[int] | None
) -> tuple[Wanted, int]:
    """(the entries to read, how many entries were gone through)."""
    rows: list[int] = []
    offsets: list[int] = []
    sizes: list[int] = []
    room = max_bytes
    for row in range(count):
        log_offset, size, code = ENTRY.unpack_from(raw, row * ENTRY_BYTES)
        if size == BLANK_SIZE or (codes is not None and code not in codes):
            continue
        if rows and (len(rows) >= max_count or size > room):
            return (rows, offsets, sizes), row
        room -= size
        rows.append(row)
        offsets.append(log_offset)
        sizes.append(size)
    return (rows, offsets, sizes), count


def _choose_many(
    raw: bytes, max_count: int, max_bytes: int, codes: frozenset[int] | None
) -> tuple[Wanted, int]:
    entries = np.frombuffer(raw, ENTRIES)
    count = len(entries)
    matching = entries["size"] != BLANK_SIZE
    if codes is not None:
        matching &= np.isin(entries["code"], list(codes))
    rows = np.flatnonzero(matching)
    sizes = entries["size"][rows]
    fit = max(
        1,
        min(max_count, int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), max_bytes, "right"))),
    )
    scanned = int(rows[fit]) if fit < len(rows) else count
    rows = rows[:fit]
    return (
        rows,
        entries["log_offset"][rows].astype(np.int64),
        sizes[:fit].astype(np.int64),
    ), scanned


def _find_sound(
    data: bytes,
    first: int,
    place: Place,
    rows: Sequence[int],
    offsets: Sequence[int],
    sizes: Sequence[int],
) -> list[bool]:
    """Which records are what their entries say. ``data`` begins at log offset ``first``; entry
    ``rows[i]`` is so many behind ``place``.
    """
    sound: list[bool] = []
    view = memoryview(data)
    topic = place.topic_in_record
    for row, log_offset, size in zip(rows, offsets, sizes, strict=True):
        at = log_offset - first
        if size < OVERHEAD_BYTES or not 0 <= at <= len(data) - size:
            sound.append(False)  # the entry is damaged
            continue
        total, magic, crc, queue_id, _, queue_offset, own_offset, sys_flag, *_, body_len = (
            HEADER.unpack_from(data, at)
        )
        if (
            total != size
            or magic != MAGIC
            or queue_id != place.queue_id
            or queue_offset != place.offset + row
            or own_offset != log_offset
        ):
            sound.append(False)
        elif sys_flag & _V6:
            sound.append(find_fault(data, at) is None)
        else:
            body_at = at + HEADER_BYTES
            body_end = body_at + body_len
            sound.append(
                0 <= body_len <= size - OVERHEAD_BYTES
                and data[body_end : body_end + len(topic)] == topic
                and crc32(view[body_at:body_end]) & CRC_MASK == crc
            )
    return sound


def _are_sound(
    data: bytes, first: int, place: Place, rows: Array, offsets: Array, sizes: Array
) -> bool:
    """Whether all records are what their entries say, and have IPv4 hosts."""
    starts = offsets - first
    head = headers_at(data, starts)
    body_len = head["body_len"].astype(np.int64)
    good = (
        (head["total"] == sizes)
        & (head["log_offset"] == offsets)
        & (head["queue_id"] == place.queue_id)
        & (head["queue_offset"] == place.offset + rows)
        & (body_len <= sizes - OVERHEAD_BYTES)
    )
    if (
        not good.all()
        or (head["magic"] != MAGIC).any()
        or (body_len < 0).any()
        or (head["sys_flag"] & _V6).any()
    ):
        return False
    starts += HEADER_BYTES
    ends, topic = starts + body_len, place.topic_in_record
    if int(ends.max()) > len(data) - len(topic):
        return False
    return texts_at(data, ends, len(topic)) == topic * len(ends) and bool(
        (body_crcs(data, starts, ends) == head["crc"]).all()
    )
