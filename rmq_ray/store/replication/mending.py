"""A broken stretch of a log is made whole again with another copy's bytes, in place.

    listed in quarantine ──another copy's bytes are whole records──> written over it, synced
    ──> blank entries of queues filled ──> taken off the list

A stretch that is longer than ``PIECE_BYTES``, or reaches over the end of a segment, is mended from
its beginning on, piece by piece. Decides which bytes are good enough, and in which order things
become durable. Does not decide whom to ask (``server.replication.mender``, ``server.slave``).

Invariants: nothing outside of a listed stretch is written over, and what is taken off the list is
there byte for byte as the other copy has it; a stretch is on the list until its bytes are on disk,
so a death at any step leaves what there was, or a whole record that the next call takes off. What
was broken when the queues were made gets its entry, no keys in the index.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from rmq_ray.arrays import Array
from rmq_ray.codec.record import RECORD_BYTES_OVER_BODY_MAX
from rmq_ray.codec.store_files import ENTRY
from rmq_ray.config import BODY_BYTES_MAX
from rmq_ray.errors import StoreError, StoreUnreadable
from rmq_ray.store.frames.log_scan import ScannedRecords
from rmq_ray.store.log.segment_chain import Segment
from rmq_ray.store.reading.log_reader import Place
from rmq_ray.store.recovery.redispatch import Redispatcher
from rmq_ray.store.recovery.store_parts import StoreParts
from rmq_ray.store.replication.follower_check import whole_records

logger = logging.getLogger("rmq_ray.store")
PIECE_BYTES = BODY_BYTES_MAX + RECORD_BYTES_OVER_BODY_MAX
"""Asked for at once: any record has room in it, and a frame of 16 MiB has room for it."""


def mendable(parts: StoreParts) -> list[tuple[int, int]]:
    """(log offset, bytes) of what is in quarantine and may be mended, in log order."""
    return [
        (offset, size)
        for offset, size, _ in sorted(parts.quarantine.entries())
        if size > 0
        and parts.chain.find(offset) is not None
        and offset + size <= parts.log.committed
    ]


def piece_bytes(parts: StoreParts, log_offset: int, size: int) -> int:
    """How many bytes of the ``size`` ones from there on to ask for at once; 0 where the log does
    not reach.
    """
    segment = parts.chain.find(log_offset)
    return 0 if segment is None else min(size, PIECE_BYTES, segment.end - log_offset)


def sound_bytes(parts: StoreParts, log_offset: int, size: int) -> bytes:
    """The whole records that this log has at the beginning of a stretch that another copy has
    broken; empty where it has none there, or cannot read them.
    """
    segment = parts.chain.find(log_offset)
    wanted = min(piece_bytes(parts, log_offset, size), max(0, parts.log.committed - log_offset))
    if segment is None or wanted <= 0:
        return b""
    data = _bytes_at(segment, log_offset, wanted)
    found = whole_records(data, log_offset, PIECE_BYTES, segment.end, is_all=False)
    return b"" if found is None else data[: found[1]]


class Mended(NamedTuple):
    """``taken``: how many of another copy's bytes; ``changed``: they were others before."""

    taken: int
    changed: bool


NOTHING = Mended(0, False)


def mend_stretch(parts: StoreParts, log_offset: int, data: bytes, *, appends: bool) -> Mended:
    """Put another copy's bytes at the beginning of a listed stretch; ``NOTHING`` where they are no
    better. ``appends``: a record that was the last of its queue when that was made may
    be appended to it; a log that is written to has given its offset away, and is not touched.

    Durable on return; raises the store's errors.
    """
    size = dict(mendable(parts)).get(log_offset, 0)
    segment = parts.chain.find(log_offset)
    room = piece_bytes(parts, log_offset, size)
    if segment is None or not 0 < len(data) <= room:
        return NOTHING
    is_all = len(data) == min(size, segment.end - log_offset)
    found = whole_records(data, log_offset, PIECE_BYTES, segment.end, is_all=is_all)
    if found is None:
        return NOTHING
    records, taken = found
    blanks = _Blanks(parts, appends)
    with parts.visibility.lock:
        if log_offset < parts.visibility.offset and not blanks.fit(records):
            return NOTHING
    changed = _bytes_at(segment, log_offset, taken) != data[:taken]
    if changed:
        segment.write(data[:taken], log_offset)
    try:
        segment.file.datasync()
    except StoreError as error:  # no later sync may say that it is on disk
        parts.log.failure = parts.log.failure or error
        raise
    with parts.visibility.lock:
        parts.reader.forget()
        if log_offset < parts.visibility.offset:
            blanks.put(records)
    if appends:
        parts.queues.flush_all()
    parts.quarantine.shrink(log_offset, taken)
    logger.warning(
        "%d bytes of the log at offset %d were broken and are whole again: %d records of another "
        "copy",
        taken,
        log_offset,
        len(records),
    )
    return Mended(taken, changed)


def _bytes_at(segment: Segment, log_offset: int, count: int) -> bytes:
    """Empty where the disk cannot read them."""
    try:
        return segment.read(log_offset, count)
    except StoreUnreadable:
        return b""


class _Blanks(Redispatcher):
    """Fills entries that stand in for records that were broken, or point at one of another place;
    what has its entry keeps it.
    """

    def __init__(self, parts: StoreParts, appends: bool) -> None:
        super().__init__(parts.queues, None, parts.dispatcher, parts.quarantine, parts.lives)
        self._appends = appends
        self._reader = parts.reader
        self._looks_only = False
        self._fits = True

    def fit(self, records: ScannedRecords) -> bool:
        """Whether every record has an entry, or may get one."""
        self._looks_only, self._fits = True, True
        self.put(records)
        self._looks_only = False
        return self._fits

    def put(self, records: ScannedRecords) -> None:
        """``add``, and what the dispatcher knows of the newest record stays."""
        before = self._dispatcher.store_ms
        self.add(records)
        self._dispatcher.store_ms = before

    def _queue(
        self, topic: str, queue_id: int, group: ScannedRecords, codes: Array, queued: Array
    ) -> None:
        if self._looks_only:
            queue = self._queues.find(topic, queue_id)
            high = 0 if queue is None else queue.max_offset
            beyond = bool(queued.any()) and int(group.queue_offsets[queued][-1]) >= high
            self._fits = self._fits and (self._appends or not beyond)
            return
        queue = self._queues.get_or_create(topic, queue_id)
        for row in queued.nonzero()[0].tolist():
            offset, start = int(group.queue_offsets[row]), int(group.starts[row])
            entry = ENTRY.pack(group.base + start, int(group.ends[row]) - start, int(codes[row]))
            if offset >= queue.max_offset:
                queue.append(offset, entry, int(group.store_ms[row]))
                continue
            present, place = queue.read(offset, 1), Place(topic, queue_id, offset)
            if present not in (b"", entry) and not self._reader.is_sound(place, present):
                queue.fill_blank(offset, entry, present)
