"""A frame: n records of one topic and queue from one producer, that are stored whole or not at all.
What marks it in the log.

The property string of a frame's first record begins with the mark (82 bytes, then 0x02 if more
properties follow):

    R M Q _ F R A M E 0x01 | producer id, hex 32 | sequence, hex 16 | count, hex 8 | own log offset,
    hex 16

all lower case. A producer writes ``ffffffffffffffff`` as the offset, the broker its real value.
Where that offset is not the record's own, the mark is void: the record is a copy (sent back,
delayed, committed, made by a foreign client).

Decides: the form of the mark and of the frame's CRC. Does not decide: validity of records
(``frame_check``), what a repeat is answered (``deduplication``). Called by: encoder, checker,
recovery, the single-message path. Pure functions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import field

from rmq_ray.arrays import Array
from rmq_ray.model.checksum import crc32
from rmq_ray.model.ids import FrameId
from rmq_ray.model.message import FRAME, NAME_SEPARATOR, PROPERTY_SEPARATOR
from rmq_ray.value import Draft

MARK_PREFIX = FRAME.encode() + b"\x01"
MARK_BYTES = len(MARK_PREFIX) + 72
_DIGITS_AT = len(MARK_PREFIX)
MARK_OFFSET_AT = MARK_BYTES - 16
"""Where the own log offset begins, counted from the mark's first byte."""
UNKNOWN_OFFSET = b"f" * 16
FRAME_RECORDS_MAX = 65_536


UNIQUE_KEY_PREFIX = b"UNIQ_KEY\x01"
UNIQUE_KEY_CHARS = 32
UNIQUE_TAIL_BYTES = len(UNIQUE_KEY_PREFIX) + UNIQUE_KEY_CHARS
"""Our producers end every record with the unique key, so that it can be found without parsing."""


class FrameMark(NamedTuple):
    """The mark as found in a record. ``log_offset`` is -1 where the producer left it to the
    broker.
    """

    frame_id: FrameId
    records: int
    log_offset: int


class KeyHashes(NamedTuple):
    """Business keys of records, one each, as what the index needs: which record, Java's hash of the
    key (uint32), its length in UTF-16 units.
    """

    rows: Array
    hashes: Array
    lengths: Array


class CheckedFrame(Draft):
    """What the checker learnt about records that lie back to back in one buffer, and what dispatch
    needs of them.

    ``sizes``, ``starts`` (bytes, relative to the first record) and ``tag_codes``: lists when there
    are few records, numpy int64 arrays when there are many. ``unique``: uint8[m, 32], the unique
    keys of the records ``unique_rows`` (None = of all). ``keys``: (record, key) of other keys to
    index, and of unique keys where ``unique`` is None; ``hashed_keys``: of those that were not
    looked at as text. ``mark_at``: byte of the mark's offset digits, -1 without a mark. ``crc``: of
    sizes and BODYCRCs, the same before and after patching.
    """

    topic: str
    queue_id: int
    count: int
    length: int
    sizes: Any
    starts: Any
    tag_codes: Any
    frame_id: FrameId | None = None
    crc: int = 0
    mark_at: int = -1
    unique: Array | None = None
    unique_rows: Array | None = None
    keys: list[tuple[int, str]] = field(default_factory=list)
    hashed_keys: list[KeyHashes] = field(default_factory=list)


def pack_mark(frame_id: FrameId, count: int) -> bytes:
    """The mark as a producer writes it.

    >>> pack_mark(FrameId(bytes(16), 7), 2)[42:66]
    b'000000000000000700000002'
    """
    return b"%s%s%016x%08x%s" % (
        MARK_PREFIX,
        frame_id.producer_id.hex().encode(),
        frame_id.sequence,
        count,
        UNKNOWN_OFFSET,
    )


def read_mark(properties: bytes) -> FrameMark | None:
    """The mark at the beginning of a property string; None when there is none, or not in this
    form.
    """
    if (
        properties[:_DIGITS_AT] != MARK_PREFIX
        or len(properties) < MARK_BYTES
        or (len(properties) > MARK_BYTES and properties[MARK_BYTES] != 2)
    ):
        return None
    digits = properties[_DIGITS_AT:MARK_BYTES]
    if digits.strip(b"0123456789abcdef"):
        return None
    offset = digits[56:]
    log_offset = -1 if offset == UNKNOWN_OFFSET else int(offset, 16)
    return FrameMark(
        FrameId(bytes.fromhex(digits[:32].decode()), int(digits[32:48], 16)),
        int(digits[48:56], 16),
        log_offset,
    )


def strip_mark(properties: str) -> str:
    """A property string without any mark: what the single-message path stores.

    >>> strip_mark("RMQ_FRAME\\x01ab\\x02KEYS\\x01k")
    'KEYS\\x01k'
    """
    if FRAME not in properties:
        return properties
    name = FRAME + NAME_SEPARATOR
    return PROPERTY_SEPARATOR.join(
        part for part in properties.split(PROPERTY_SEPARATOR) if not part.startswith(name)
    )


def frame_crc(sizes: bytes, body_crcs: bytes) -> int:
    """Identity of a frame's content: both as big-endian 4-byte integers back to back. Patching does
    not change it.
    """
    return crc32(sizes + body_crcs)
