"""The log as slaves read it: raw bytes up to the written end, a digest of what lies below a
position, what of it is broken.

Decides: nothing of replication; it reads. A read ends at a segment's end, at the log's end, or
after ``count`` bytes; the log's end is always behind whole frames. Bytes of a record that is in
quarantine are read as they are on disk, and ``broken_between`` names them, so that a copy skips the
same stretches. Any thread.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from rmq_ray.codec.record import MAGIC, RECORD_BYTES_OVER_BODY_MAX
from rmq_ray.codec.record_batch import MARK_BYTES, MARK_OFFSET_AT, MARK_PREFIX
from rmq_ray.errors import LogDiverged
from rmq_ray.store.frames.log_scan import broken_stretches, find_valid, scan_buffer
from rmq_ray.store.recovery.store_parts import StoreParts

TAIL_BYTES = 1 << 16
"""How much of the log below a position the digest covers."""
SHORTER_BYTES = (16 << 10, 4 << 10)
_SEARCH_BYTES = 8 << 20
_LAST_FRAME_BYTES = 512 << 10
_TRIES = 16  # bodies may hold what looks like a record's beginning, or a mark
_POSITION_AT = 24  # PHYSICALOFFSET, counted from the magic
_MAGIC_BYTES = MAGIC.to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
class Tail:
    """The last bytes of a copy: [begin, end) of the log and their CRC-32. Empty when the copy
    is.
    """

    begin: int
    end: int
    crc: int


def read_log(parts: StoreParts, log_offset: int, count: int) -> bytes:
    """Up to ``count`` bytes from ``log_offset`` on. Raises ``LogDiverged`` when the log does not
    reach that far or has removed it.
    """
    log = parts.log
    if not log.begin <= log_offset <= log.committed:
        raise LogDiverged(
            f"log offset {log_offset} is not in the log, which has {log.begin} to {log.committed}",
            log_offset,
            log.begin,
            log.committed,
        )
    return log.read(log_offset, count)


def whole_frames(data: bytes, log_offset: int) -> int:
    """How many of these bytes of the log, which begin at ``log_offset``, to hand out: up to where
    their last frame begins, which may not be whole, so that who reads on gets each frame in one
    piece. All of them where no frame is found to begin near their end: a guess that costs who is
    told more only time.
    """
    low = max(0, len(data) - _LAST_FRAME_BYTES)
    mark = len(data)
    for _ in range(_TRIES):
        mark = data.rfind(MARK_PREFIX, low, mark)
        if mark < 0:
            break
        begin = _record_before(data, log_offset, low, mark)
        if begin >= 0 and data[mark + MARK_OFFSET_AT : mark + MARK_BYTES] == b"%016x" % (
            log_offset + begin
        ):
            return begin or len(data)
    begin = _record_before(data, log_offset, low, len(data))
    return begin if begin > 0 else len(data)


def _record_before(data: bytes, log_offset: int, low: int, at: int) -> int:
    """Where the last record begins whose header ends before byte ``at``, -1 if it is not found
    behind byte ``low``.
    """
    for _ in range(_TRIES):
        at = data.rfind(_MAGIC_BYTES, low, at)
        if at < 4:
            break
        if (
            at + _POSITION_AT + 8 <= len(data)
            and struct.unpack_from(">q", data, at + _POSITION_AT)[0] == log_offset + at - 4
        ):
            return at - 4
    return -1


def shorter_tails(parts: StoreParts, tail: Tail, body_bytes_max: int) -> list[Tail]:
    """Shorter ones with the same end, for a master that has other bytes in ``tail``: maybe broken
    ones, far from the end. Each holds whole records, whose positions, times and properties no other
    log has there; empty where the last bytes hold none.
    """
    found = []
    for size in SHORTER_BYTES:
        view = memoryview(
            b"" if tail.end - tail.begin <= size else parts.log.read(tail.end - size, size)
        )
        first = find_valid(view, tail.end - size, 0) if len(view) == size else None
        if first is not None and len(
            scan_buffer(
                view[first - tail.end + size :],
                first,
                body_bytes_max + RECORD_BYTES_OVER_BODY_MAX,
                True,
            ).records
        ):
            found.append(Tail(first, tail.end, zlib.crc32(view[first - tail.end + size :])))
    return found


def tail_of(parts: StoreParts, end: int, body_bytes_max: int) -> Tail:
    """What lies directly below ``end``, in the segment that holds the byte before it, and behind
    what is broken there: that is put into quarantine.
    """
    segment = parts.chain.find(end - 1) if end > parts.log.begin else None
    if segment is None:
        return Tail(end, end, 0)
    begin = max(segment.start, end - TAIL_BYTES)
    data = segment.read(begin, end - begin)
    at = _behind_broken(
        parts,
        memoryview(data),
        begin,
        body_bytes_max + RECORD_BYTES_OVER_BODY_MAX,
        aligned=begin == segment.start,
    )
    return Tail(begin + at, end, zlib.crc32(data[at:]))


def has_tail(parts: StoreParts, tail: Tail, body_bytes_max: int) -> bool:
    """Whether the log has the same bytes there; True for an empty tail. Where it has not, what of
    its own bytes is broken there goes into quarantine. The caller looks at positions outside of the
    log.
    """
    if tail.begin == tail.end:
        return True
    if not 0 < tail.end - tail.begin <= TAIL_BYTES:
        return False
    data = parts.log.read(tail.begin, tail.end - tail.begin)
    if len(data) != tail.end - tail.begin:
        return False
    if zlib.crc32(data) == tail.crc:
        return True
    _behind_broken(
        parts,
        memoryview(data),
        tail.begin,
        body_bytes_max + RECORD_BYTES_OVER_BODY_MAX,
        aligned=False,
    )
    return False


def _behind_broken(
    parts: StoreParts, view: memoryview, base: int, record_max: int, *, aligned: bool
) -> int:
    """From which byte of ``view`` on, which lies at log offset ``base``, everything is sound;
    broken stretches before go into quarantine. ``aligned``: a record begins at ``base``. 0 where no
    record begins in it; bytes at its very end that are no record are not looked for.
    """
    first = find_valid(view, base, 0)
    if first is None:
        return 0
    if aligned and first > base:
        parts.quarantine.add(base, first - base, "the log's first record here is none")
    at = first - base
    for begin, following, fault in broken_stretches(view[at:], first, record_max):
        if following is None:
            break
        parts.quarantine.add(begin, following - begin, fault)
        at = following - base
    return at


def broken_between(parts: StoreParts, begin: int, end: int) -> list[tuple[int, int, str]]:
    """(log offset, bytes, fault) of what is in quarantine and begins in [begin, end), in log
    order.
    """
    return sorted(entry for entry in parts.quarantine.entries() if begin <= entry[0] < end)


def look_again(parts: StoreParts, log_offset: int, body_bytes_max: int) -> bool:
    """A slave could not make sense of the bytes at ``log_offset``, where a record begins: read them
    again, and put them into quarantine if they are broken here too. True when they are.
    """
    segment = parts.chain.find(log_offset)
    if segment is None or log_offset >= parts.log.committed:
        return False
    limit = min(segment.end, parts.log.committed)
    record_max = body_bytes_max + RECORD_BYTES_OVER_BODY_MAX
    data = segment.read(log_offset, min(limit - log_offset, max(_SEARCH_BYTES, 2 * record_max)))
    for begin, following, fault in broken_stretches(memoryview(data), log_offset, record_max):
        if begin > log_offset:
            return False
        parts.quarantine.add(begin, (limit if following is None else following) - begin, fault)
        return True
    return False
