"""Bodies of our own requests that carry records in store layout: SEND_RECORDS, PULL_RECORDS,
SCAN_RECORDS.

    SEND_RECORDS  request  count i32 | sizes count x i32 | records back to back
                  answer   base queue offset i64 | base log offset i64 | store time ms i64 | 1 = a
                           repeat, i32
    PULL_RECORDS  request  msgpack [group, topic, queue id, offset, max count, max bytes, sys flag,
                           commit offset, suspend ms,
                           subscription version, expression type, expression or nil, epoch, lock
                           epoch]
    SCAN_RECORDS  request  msgpack [topic, queue id, start, end, max bytes, epoch]
    both          answer   next i64 | min i64 | max i64 | epoch i64 | suggested broker id i32 |
                           count i32 | sizes | records

All integers big-endian. Decides the layout and that lengths agree; what is inside the records is
checked by the store. Called by producers, consumers, scan readers and the broker's handlers.
Invariants: pure; records are never copied here; ``unpack_*`` raises ``MalformedFrame`` and nothing
else.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgpack

import rmq_ray.arrays as np
from rmq_ray.arrays import MANY
from rmq_ray.errors import MalformedFrame, MessageIllegal
from rmq_ray.remoting.wire.frame import Body, Buffer
from rmq_ray.value import Value

Sizes: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
"""Byte lengths of records, big-endian int32, one dimension."""
Lengths: TypeAlias = "Sizes | tuple[int, ...]"
"""The same; fewer than ``MANY`` as plain numbers."""

S = TypeVar("S")

RECORDS_MAX = 65_536
"""Records of one frame or answer."""
RECORD_BYTES_MIN = 91
"""A record with empty body, topic and properties (store-format 2.1)."""

_COUNT = struct.Struct(">i")
_ONE = struct.Struct(">ii")
_SEND_ANSWER = struct.Struct(">qqqi")
_PULL_ANSWER = struct.Struct(">qqqqii")
_SIZE_TYPE = ">i4"
_FEW_SIZES = tuple(struct.Struct(f">{count}i") for count in range(MANY))
_RECORD_HEADER_BYTES = (
    88  # a record's fixed part; queue id at 12, length of the body at 84 (store-format 2.1)
)
_QUEUE_AND_BODY = struct.Struct(">12xi68xi")


class SendAnswer(NamedTuple):
    """Where a frame's first record went; ``repeat``: it had been stored before and this is the
    first outcome again.
    """

    base_queue_offset: int
    base_log_offset: int
    store_ms: int
    repeat: bool


class PullAnswer(NamedTuple, Generic[S]):
    """One answer to a pull or scan. ``records`` is a view of the answer's frame, ``sizes`` their
    lengths: an array, or as ``unpack_pulled`` has them.
    """

    next_offset: int
    min_offset: int
    max_offset: int
    epoch: int
    suggested_broker: int
    sizes: S
    records: memoryview


class PullRecords(Value, frozen=True):
    """A pull of ours. ``sys_flag``: bits of ``PullSysFlag``; ``epoch``: the log's epoch the offset
    belongs to, 0 = not known.

    ``lock_epoch``: of the queue's lock, under which the commit offset was reached; 0 = not consumed
    in order.
    """

    group: str
    topic: str
    queue_id: int
    offset: int
    count_max: int
    bytes_max: int
    sys_flag: int = 0
    commit_offset: int = 0
    suspend_ms: int = 0
    sub_version: int = 0
    expression_type: str = "TAG"
    expression: str | None = None
    epoch: int = 0
    lock_epoch: int = 0


class ScanRecords(Value, frozen=True):
    """A bulk read of queue offsets [start, end) by offset, without a group."""

    topic: str
    queue_id: int
    start: int
    end: int
    bytes_max: int
    epoch: int = 0


def pack_send(records: Buffer, sizes: Sizes) -> tuple[Buffer, ...]:
    """A request's body; the records stay where they are."""
    return _COUNT.pack(len(sizes)), _size_bytes(sizes), records


def pack_send_one(record: bytes) -> tuple[Buffer, ...]:
    """``pack_send`` of a frame of one record."""
    return (_ONE.pack(1, len(record)), record)


def first_record(records: memoryview) -> tuple[str, int]:
    """(topic, queue id) of the first record, read with care: nothing was checked yet. Raises
    ``MessageIllegal``.
    """
    if len(records) <= _RECORD_HEADER_BYTES:
        raise MessageIllegal(f"record 0: {len(records)} bytes are less than a record's head")
    queue_id, body_length = _QUEUE_AND_BODY.unpack_from(records)
    at = _RECORD_HEADER_BYTES + body_length
    if not _RECORD_HEADER_BYTES <= at < len(records):
        raise MessageIllegal(f"record 0: a body of {body_length} bytes runs over the frame's end")
    try:
        return str(records[at + 1 : at + 1 + records[at]], "ascii"), queue_id
    except UnicodeDecodeError:
        raise MessageIllegal(
            "record 0: the topic holds other characters than letters, digits, % | _ -"
        ) from None


def unpack_send(body: Body) -> tuple[memoryview, Lengths]:
    """(records, sizes); the records are a view of the body, writable where the body is."""
    view = _view(body)
    if len(view) < 4:
        raise MalformedFrame(f"records in a body of {len(view)} bytes")
    (count,) = _COUNT.unpack_from(view)
    start, sizes = _lengths(view, 4, count, count_min=1)
    return view[start:], sizes


def pack_send_answer(
    base_queue_offset: int, base_log_offset: int, store_ms: int, repeat: bool
) -> bytes:
    """Answer body of SEND_RECORDS."""
    return _SEND_ANSWER.pack(base_queue_offset, base_log_offset, store_ms, repeat)


def unpack_send_answer(body: Body) -> SendAnswer:
    """Reads what ``pack_send_answer`` wrote."""
    view = _view(body)
    if len(view) != _SEND_ANSWER.size:
        raise MalformedFrame(
            f"answer to SEND_RECORDS of {len(view)} bytes instead of {_SEND_ANSWER.size}"
        )
    queue_offset, log_offset, store_ms, repeat = _SEND_ANSWER.unpack(view)
    return SendAnswer(queue_offset, log_offset, store_ms, repeat != 0)


def pack_pull(pull: PullRecords) -> bytes:
    """Request body of PULL_RECORDS."""
    return _pack(
        [
            pull.group,
            pull.topic,
            pull.queue_id,
            pull.offset,
            pull.count_max,
            pull.bytes_max,
            pull.sys_flag,
            pull.commit_offset,
            pull.suspend_ms,
            pull.sub_version,
            pull.expression_type,
            pull.expression,
            pull.epoch,
            pull.lock_epoch,
        ]
    )


def unpack_pull(body: Body) -> PullRecords:
    """Reads what ``pack_pull`` wrote; types and signs are checked."""
    return PullRecords(
        *_unpack(body, (str, str, int, int, int, int, int, int, int, int, str, None, int, int))
    )


def pack_scan(scan: ScanRecords) -> bytes:
    """Request body of SCAN_RECORDS."""
    return _pack([scan.topic, scan.queue_id, scan.start, scan.end, scan.bytes_max, scan.epoch])


def unpack_scan(body: Body) -> ScanRecords:
    """Reads what ``pack_scan`` wrote; types and signs are checked."""
    return ScanRecords(*_unpack(body, (str, int, int, int, int, int)))


def pack_pull_answer(
    next_offset: int,
    low: int,
    high: int,
    epoch: int,
    suggested_broker: int,
    sizes: Sizes | None = None,
    parts: Sequence[Buffer] = (),
) -> tuple[Buffer, ...]:
    """Answer body of PULL_RECORDS and SCAN_RECORDS. ``parts``: the records, back to back; they stay
    where they are.
    """
    count = 0 if sizes is None else len(sizes)
    head = _PULL_ANSWER.pack(next_offset, low, high, epoch, suggested_broker, count)
    return (head,) if sizes is None else (head, _size_bytes(sizes), *parts)


def pack_found(
    next_offset: int,
    low: int,
    epoch: int,
    suggested_broker: int,
    sizes: Sequence[int] | Lengths,
    records: bytes,
) -> bytes:
    """``pack_pull_answer`` of all that lies between an offset and the queue's end, fewer than
    ``MANY`` records.
    """
    return (
        _PULL_ANSWER.pack(next_offset, low, next_offset, epoch, suggested_broker, len(sizes))
        + _FEW_SIZES[len(sizes)].pack(*sizes)
        + records
    )


def unpack_pull_answer(body: Body) -> PullAnswer[Sizes]:
    """Reads what ``pack_pull_answer`` wrote."""
    answer = unpack_pulled(body)
    sizes = answer.sizes
    return PullAnswer(
        *answer[:5],
        np.array(sizes, _SIZE_TYPE) if isinstance(sizes, tuple) else sizes,
        answer.records,
    )


def unpack_pulled(body: Body) -> PullAnswer[Lengths]:
    """The same as consumers read it, many times a second: without an array of a few sizes, which
    costs more than the rest of a small answer.
    """
    view = _view(body)
    if len(view) < _PULL_ANSWER.size:
        raise MalformedFrame(f"answer to a pull of {len(view)} bytes; {_PULL_ANSWER.size} at least")
    next_offset, min_offset, max_offset, epoch, suggested, count = _PULL_ANSWER.unpack_from(view)
    start, sizes = _lengths(view, _PULL_ANSWER.size, count, count_min=0)
    return PullAnswer(next_offset, min_offset, max_offset, epoch, suggested, sizes, view[start:])


def _lengths(view: memoryview, at: int, count: int, count_min: int) -> tuple[int, Lengths]:
    """(where the records begin, their lengths)."""
    start = at + 4 * count
    if not count_min <= count <= RECORDS_MAX or start > len(view):
        raise MalformedFrame(
            f"{count} records in a body of {len(view)} bytes; {count_min} to {RECORDS_MAX} "
            f"with a size each may be in it"
        )
    sizes: Lengths
    if count < MANY:
        sizes = few = _FEW_SIZES[count].unpack_from(view, at)
        smallest, total = min(few, default=RECORD_BYTES_MIN), sum(few)
    else:
        sizes = many = np.frombuffer(view, _SIZE_TYPE, count, at)
        smallest, total = int(many.min()), int(many.sum(dtype=np.int64))
    if smallest < RECORD_BYTES_MIN:
        raise MalformedFrame(f"a record of {smallest} bytes; {RECORD_BYTES_MIN} at least")
    if total != len(view) - start:
        raise MalformedFrame(
            f"{count} records of {total} bytes in all, but {len(view) - start} bytes follow "
            f"their sizes"
        )
    return start, sizes


def _size_bytes(sizes: Sizes) -> bytes:
    return (sizes if sizes.dtype.str == _SIZE_TYPE else sizes.astype(_SIZE_TYPE)).tobytes()


def _view(body: Body) -> memoryview:
    return memoryview(b"".join(body) if isinstance(body, tuple) else body)


def _pack(values: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(values)
    return packed


def _unpack(body: Body, types: tuple[type | None, ...]) -> list[Any]:
    """A list of values of these types (None = text or nil); integers from 0 on, but -1 stands for
    'none' in offsets.
    """
    try:
        values = msgpack.unpackb(
            _view(body), max_array_len=len(types), max_map_len=0, max_ext_len=0
        )
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise MalformedFrame(f"request body is not msgpack: {error}") from None
    if not isinstance(values, list) or len(values) != len(types):
        raise MalformedFrame(f"request body is no list of {len(types)} values")
    for index, (value, wanted) in enumerate(zip(values, types, strict=True)):
        fits = type(value) is wanted or (wanted is None and (value is None or type(value) is str))
        if wanted is int and fits:
            fits = -1 <= value < 1 << 63
        if not fits:
            raise MalformedFrame(
                f"value {index} of the request body is {type(value).__name__}, or out of range"
            )
    return values
