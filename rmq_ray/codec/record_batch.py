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

CRCs of many bodies that lie in one buffer: what appending, reading and recovery spend most of
their time on.

Called by ``frame_check``, ``log_reader`` and ``log_scan``, which compare. Pure. Invariant: all ways
give the same values.

Java's string hash of many ASCII texts that lie in one buffer (store-format 3, 5), without a
string for each.

Pure. Called by ``alike_properties`` (tags, keys) and ``index_service`` (``topic#key``). Numbers are
uint32: the bits of Java's int.

``encode_frame`` and ``encode_single`` are the producer's side: bodies and property strings become
records back to back, ready to be patched by the broker. They are the authority on the order of the
bytes, one record after the other, used for few messages; ``keyed_encoder`` makes the same bytes of
many by columns. Names, limits of users' values and unique keys are decided elsewhere. Invariants:
pure; what the broker fills in (queue offset, log offset, store time, hosts) is zero; each property
string must end with UNIQ_KEY where the producer wants fast checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import rmq_ray.arrays as np
from rmq_ray.codec.record import (
    CRC_MASK,
    HEADER,
    MAGIC,
    OVERHEAD_BYTES,
    PROPERTIES_BYTES_MAX,
    TOPIC_BYTES_MAX,
)
from rmq_ray.errors import MessageIllegal
from rmq_ray.model.checksum import crc32
from rmq_ray.model.ids import FrameId
from rmq_ray.model.message import FRAME, NAME_SEPARATOR, PROPERTY_SEPARATOR

_SHIFTS_MAX = 32_768  # no property is longer


def hash_texts_at(data: Array, begins: Array, ends: Array) -> Array:
    """``String.hashCode`` of the texts at bytes [begins, ends) of ``data`` (uint8): uint32[n].
    Texts of one length are hashed together.
    """
    lengths = ends - begins
    hashes = np.zeros(len(begins), np.uint32)
    for length in np.flatnonzero(np.bincount(lengths)).tolist():
        if length:
            rows = np.flatnonzero(lengths == length)
            texts = (
                np.ndarray((len(data) - length + 1,), f"V{length}", data, 0, (1,))[begins[rows]]
                .view(np.uint8)
                .reshape(len(rows), length)
            )
            hashes[rows] = texts.astype(np.uint32) @ powers(length)
    return hashes


@lru_cache(maxsize=256)
def powers(length: int) -> Array:
    """uint32: what each of ``length`` characters is multiplied with."""
    return np.array([pow(31, length - 1 - n, 1 << 32) for n in range(length)], np.uint32)


def shifts(lengths: Array) -> Array:
    """uint32: what the hash of a head is multiplied with when a text of such a length follows."""
    found: Array = _all_shifts()[lengths]
    return found


@cache
def _all_shifts() -> Array:
    factors = np.full(_SHIFTS_MAX, 31, np.uint32)
    factors[0] = 1
    return np.multiply.accumulate(factors, dtype=np.uint32)


_EQUAL_MAX = 512  # bytes; above, copying the bodies costs more than a view of each


def body_crcs(buffer: bytes | bytearray | memoryview, begins: Array, ends: Array) -> Array:
    """BODYCRC (store-format 2.1) of each of the bodies [begins, ends) as uint32; at least one body,
    all of them inside of the buffer.

    Short bodies of one length are cut out by one numpy call: 0.07 us instead of 0.13 us for 100
    bytes. Long ones of one length that lie at equal distances are rows of a matrix: 0.10 us instead
    of 0.14 us for 1 KB.
    """
    count = len(begins)
    lengths = ends - begins
    length = int(lengths[0])
    equal = length > 0 and bool((lengths == length).all())
    if equal and length <= _EQUAL_MAX:
        bodies = np.ndarray((len(buffer) - length + 1,), f"V{length}", buffer, 0, (1,))[
            begins
        ].tolist()
        return np.fromiter(map(crc32, bodies), np.uint32, count) & CRC_MASK
    step = int(begins[1] - begins[0]) if count > 1 else 0
    if equal and step >= length and bool((np.diff(begins) == step).all()):
        rows = np.ndarray((count, length), np.uint8, buffer, int(begins[0]), (step, 1))
        return np.array(list(map(crc32, rows)), np.uint32) & CRC_MASK
    view = memoryview(buffer)
    found = [
        crc32(view[begin:end]) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
    return np.array(found, np.uint32) & CRC_MASK


MARK_PREFIX = FRAME.encode() + b"\x01"
MARK_BYTES = len(MARK_PREFIX) + 72
_DIGITS_AT = len(MARK_PREFIX)
MARK_OFFSET_AT = MARK_BYTES - 16
"""Where the own log offset begins, counted from the mark's first byte."""
UNKNOWN_OFFSET = b"f" * 16
FRAME_RECORDS_MAX = 65_536

_NO_HOST = bytes(8)


UNIQUE_KEY_PREFIX = b"UNIQ_KEY\x01"
UNIQUE_KEY_CHARS = 32
UNIQUE_TAIL_BYTES = len(UNIQUE_KEY_PREFIX) + UNIQUE_KEY_CHARS
"""Our producers end every record with the unique key, so that it can be found without parsing."""

Array: TypeAlias = "np.ndarray[Any, Any]"


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


@dataclass(slots=True)
class CheckedFrame:
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


def encode_frame(
    topic: str,
    queue_id: int,
    bodies: Sequence[bytes],
    properties: Sequence[str],
    born_ms: int,
    frame_id: FrameId | None,
    sys_flags: int | Sequence[int] = 0,
    flags: Sequence[int] | None = None,
) -> tuple[bytes, Array]:
    """(records back to back, their sizes as big-endian int32).

    ``properties``: per record, without the frame's mark, UNIQ_KEY last. ``sys_flags``: one value or
    one per record (compression bits). ``flags``: users' flags. Raises ``MessageIllegal`` when
    something does not fit its field.
    """
    count = len(bodies)
    topic_bytes = topic.encode()
    if not 0 < count <= FRAME_RECORDS_MAX or count != len(properties):
        raise MessageIllegal(
            f"a frame has 1 to {FRAME_RECORDS_MAX} records and as many property strings, not "
            f"{count} and {len(properties)}"
        )
    if not 0 < len(topic_bytes) <= TOPIC_BYTES_MAX:
        raise MessageIllegal(f"topic of {len(topic_bytes)} bytes; 1 to {TOPIC_BYTES_MAX} fit")
    first = [properties[0].encode()]
    if frame_id is not None:
        mark = pack_mark(frame_id, count)
        first = [mark + b"\x02" + first[0] if first[0] else mark]
    encoded = first + [text.encode() for text in properties[1:]]
    each_sys_flag = repeat(sys_flags) if isinstance(sys_flags, int) else sys_flags
    parts, sizes = _encode_each(
        topic_bytes, queue_id, bodies, encoded, born_ms, each_sys_flag, flags or repeat(0)
    )
    return b"".join(parts), np.array(sizes, ">i4")


def encode_single(
    topic: str,
    queue_id: int,
    body: bytes,
    properties: str,
    born_ms: int,
    frame_id: FrameId,
    flag: int = 0,
) -> bytes:
    """A frame of one record, as ``encode_frame`` makes it; no numpy, because this is what a single
    send costs.
    """
    topic_part = _topic_part(topic)
    text = pack_mark(frame_id, 1) + b"\x02" + properties.encode()
    body_len, text_len = len(body), len(text)
    if text_len > PROPERTIES_BYTES_MAX:
        raise MessageIllegal(
            f"properties of {text_len} bytes in record 0; {PROPERTIES_BYTES_MAX} fit, "
            f"shorten keys or user properties"
        )
    total = OVERHEAD_BYTES - 1 + len(topic_part) + body_len + text_len
    head = HEADER.pack(
        total,
        MAGIC,
        crc32(body) & CRC_MASK,
        queue_id,
        flag,
        0,
        0,
        0,
        born_ms,
        _NO_HOST,
        0,
        _NO_HOST,
        0,
        0,
        body_len,
    )
    return b"".join((head, body, topic_part, text_len.to_bytes(2, "big"), text))


@lru_cache(maxsize=4096)
def _topic_part(topic: str) -> bytes:
    """TOPICLEN and the topic."""
    encoded = topic.encode()
    if not 0 < len(encoded) <= TOPIC_BYTES_MAX:
        raise MessageIllegal(f"topic of {len(encoded)} bytes; 1 to {TOPIC_BYTES_MAX} fit")
    return bytes((len(encoded),)) + encoded


def _encode_each(
    topic: bytes,
    queue_id: int,
    bodies: Sequence[bytes],
    properties: Sequence[bytes],
    born_ms: int,
    sys_flags: object,
    flags: object,
) -> tuple[list[bytes], list[int]]:
    parts: list[bytes] = []
    sizes: list[int] = []
    add, pack = parts.append, HEADER.pack
    topic_part = bytes((len(topic),)) + topic
    fixed = OVERHEAD_BYTES + len(topic)
    rows = zip(bodies, properties, sys_flags, flags)  # type: ignore[call-overload]  # noqa: B905
    for body, text, sys_flag, flag in rows:  # flags may be endless
        body_len, text_len = len(body), len(text)
        if text_len > PROPERTIES_BYTES_MAX:
            raise MessageIllegal(
                f"properties of {text_len} bytes in record {len(sizes)}; "
                f"{PROPERTIES_BYTES_MAX} fit, shorten keys or user properties"
            )
        total = fixed + body_len + text_len
        add(
            pack(
                total,
                MAGIC,
                crc32(body) & CRC_MASK,
                queue_id,
                flag,
                0,
                0,
                sys_flag,
                born_ms,
                _NO_HOST,
                0,
                _NO_HOST,
                0,
                0,
                body_len,
            )
        )
        add(body)
        add(topic_part)
        add(text_len.to_bytes(2, "big"))
        add(text)
        sizes.append(total)
    return parts, sizes
