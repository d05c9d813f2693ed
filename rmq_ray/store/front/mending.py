"""A broken stretch of a copy's log is made whole again with its master's bytes, in place.

    listed in quarantine ──the master's bytes are whole records, as long──> written over it, synced ──> blank entries of queues filled ──> taken off the list

Decides: which stretches may be mended (within one segment, 16 MiB at most), which bytes are good
enough (records with their own positions and CRCs that fill the stretch exactly, or up to the blank
that ends a segment, without the zero bytes of a torn write). Does not decide where they come from.
Called by: follower store, which holds its locks.

Invariants: nothing outside of a listed stretch is written over, and what is taken off the list is
there byte for byte as the master has it; a stretch is on the list until its bytes are on disk, so a
death at any step leaves what there was, or a whole record that the next call takes off. What was
broken when the queues were made gets its entry, no keys in the index.
"""

from __future__ import annotations

import logging

from rmq_ray.codec.record import BLANK, BLANK_MAGIC
from rmq_ray.codec.record_batch import Array
from rmq_ray.store.log.log_scan import ScannedRecords, Stop, scan_buffer
from rmq_ray.store.queue.consume_queue import ENTRY
from rmq_ray.store.recovery.redispatch import Redispatcher
from rmq_ray.store.recovery.restart import StoreParts

logger = logging.getLogger("rmq_ray.store")
STRETCH_BYTES_MAX = 16 << 20


def mendable(parts: StoreParts) -> list[tuple[int, int]]:
    """(log offset, bytes) of what is in quarantine and may be mended, in log order."""
    found = []
    for offset, size, _ in sorted(parts.quarantine.entries()):
        segment = parts.chain.find(offset)
        if (
            segment is not None
            and 0 < size <= STRETCH_BYTES_MAX
            and offset + size <= min(segment.end, parts.log.committed)
        ):
            found.append((offset, size))
    return found


def mend_stretch(
    parts: StoreParts, log_offset: int, data: bytes, record_max: int, visible: int
) -> bool:
    """Put the master's bytes of a stretch in its place; False where they are no better.
    ``visible``: up to where queues have been made. Durable on return; raises the store's errors.
    """
    segment = parts.chain.find(log_offset)
    if segment is None or (log_offset, len(data)) not in mendable(parts):
        return False
    records = whole_records(data, log_offset, record_max, segment.end)
    if records is None:
        return False
    if segment.read(log_offset, len(data)) != data:
        segment.write(data, log_offset)
    segment.file.datasync()
    if log_offset < visible:
        before = parts.dispatcher.store_ms
        _Blanks(parts.queues, None, parts.dispatcher).add(records)
        parts.dispatcher.store_ms = before
        parts.queues.flush_all()
    parts.quarantine.remove(log_offset)
    logger.warning(
        "%d bytes of the log at offset %d were broken and are whole again: %d records of the "
        "master",
        len(data),
        log_offset,
        len(records),
    )
    return True


def whole_records(
    data: bytes, log_offset: int, record_max: int, segment_end: int
) -> ScannedRecords | None:
    """The records that fill ``data`` exactly, but for what ends a full segment; None where anything
    else is in it.
    """
    found = scan_buffer(memoryview(data), log_offset, record_max, True, strict_from=0)
    end, room = log_offset + len(data), segment_end - found.end
    if (
        found.stop is Stop.BLANK
        and end == segment_end
        and data[-room:] == BLANK.pack(room, BLANK_MAGIC).ljust(room, b"\0")
    ):
        end = found.end
    return found.records if len(found.records) and found.end == end else None


class _Blanks(Redispatcher):
    """Fills entries that stand in for records that were broken; what has its entry keeps it."""

    def _queue(
        self, topic: str, queue_id: int, group: ScannedRecords, codes: Array, queued: Array
    ) -> None:
        queue = self._queues.get_or_create(topic, queue_id)
        for row in queued.nonzero()[0].tolist():
            offset, start = int(group.queue_offsets[row]), int(group.starts[row])
            entry = ENTRY.pack(group.base + start, int(group.ends[row]) - start, int(codes[row]))
            if offset >= queue.max_offset:
                queue.append(offset, entry, int(group.store_ms[row]))
            else:
                queue.fill_blank(offset, entry)
