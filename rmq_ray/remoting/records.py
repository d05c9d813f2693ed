"""Bodies of our own request codes: frames of records and pulls that carry arrays of sizes.

SEND_RECORDS request      >i count | count x >i size | records back to back
SEND_RECORDS answer       >q base queue offset | >q base log offset | >q store time ms | >i 1 = a repeat
PULL_RECORDS request      msgpack [group, topic, queue id, offset, count max, bytes max, sys flag, commit offset, suspend ms,
                          subscription version, expression type, expression or nil, epoch]
SCAN_RECORDS request      msgpack [topic, queue id, start, end, bytes max, epoch]
answer of both            >q next offset | >q min | >q max | >q epoch | >i suggested broker id | >i count | count x >i size | records

Invariant: sizes are positive and add up to the records' length; anything else is ``MalformedFrame``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack
import numpy as np

from rmq_ray.errors import MalformedFrame

COUNT = struct.Struct(">i")
SEND_ANSWER = struct.Struct(">qqqi")
PULL_ANSWER = struct.Struct(">qqqqii")
RECORDS_MAX = 65_536

Buffer = bytes | bytearray | memoryview


def pack_send(records: Buffer, sizes: np.ndarray) -> tuple[Buffer, ...]:
    """Body of SEND_RECORDS. ``sizes``: int32 of any byte order, bytes of each record."""
    return (COUNT.pack(len(sizes)) + sizes.astype(">i4", copy=False).tobytes(), records)


def unpack_send(body: Buffer) -> tuple[memoryview, np.ndarray]:
    """(records as a view of ``body``, sizes >i4)."""
    return _sized(memoryview(body), 0, allow_empty=False)


def pack_send_answer(base_queue_offset: int, base_log_offset: int, store_ms: int, repeat: bool) -> bytes:
    """Body of the answer to SEND_RECORDS."""
    return SEND_ANSWER.pack(base_queue_offset, base_log_offset, store_ms, repeat)


class SendAnswer(NamedTuple):
    """Where a frame was stored."""

    base_queue_offset: int
    base_log_offset: int
    store_ms: int
    repeat: int


def unpack_send_answer(body: Buffer) -> SendAnswer:
    """``MalformedFrame`` for a wrong length."""
    if len(body) != SEND_ANSWER.size:
        raise MalformedFrame(f"answer to SEND_RECORDS of {len(body)} bytes, not {SEND_ANSWER.size}")
    return SendAnswer(*SEND_ANSWER.unpack(body))


class PullRecords(NamedTuple):
    """A PULL_RECORDS request."""

    group: str
    topic: str
    queue_id: int
    offset: int
    count_max: int
    bytes_max: int
    sys_flag: int
    commit_offset: int
    suspend_ms: int
    sub_version: int
    expression_type: str
    expression: str | None
    epoch: int


_PULL_TYPES = (str, str, int, int, int, int, int, int, int, int, str, (str, type(None)), int)


def pack_pull(pull: PullRecords) -> bytes:
    """Body of PULL_RECORDS."""
    return msgpack.packb(pull)  # type: ignore[no-any-return]


def unpack_pull(body: Buffer) -> PullRecords:
    """``MalformedFrame`` for a wrong shape or type."""
    return PullRecords(*_list(body, _PULL_TYPES, "PULL_RECORDS"))


class ScanRecords(NamedTuple):
    """A SCAN_RECORDS request."""

    topic: str
    queue_id: int
    start: int
    end: int
    bytes_max: int
    epoch: int


_SCAN_TYPES = (str, int, int, int, int, int)


def pack_scan(scan: ScanRecords) -> bytes:
    """Body of SCAN_RECORDS."""
    return msgpack.packb(scan)  # type: ignore[no-any-return]


def unpack_scan(body: Buffer) -> ScanRecords:
    """``MalformedFrame`` for a wrong shape or type."""
    return ScanRecords(*_list(body, _SCAN_TYPES, "SCAN_RECORDS"))


@dataclass(slots=True)
class PullAnswer:
    """A page of records. ``records``: back to back; ``sizes``: >i4, bytes of each."""

    next_offset: int
    min_offset: int
    max_offset: int
    epoch: int
    suggested_broker: int
    sizes: np.ndarray
    records: memoryview


def pack_pull_answer(next_offset: int, low: int, high: int, epoch: int, suggested_broker: int, sizes: np.ndarray | None = None, parts: tuple[Buffer, ...] = ()) -> tuple[Buffer, ...]:
    """Body of the answer; ``parts`` are the records' buffers, written without copying."""
    count = 0 if sizes is None else len(sizes)
    head = PULL_ANSWER.pack(next_offset, low, high, epoch, suggested_broker, count)
    if not count or sizes is None:
        return (head,)
    return (head + sizes.astype(">i4", copy=False).tobytes(), *parts)


def unpack_pull_answer(body: Buffer) -> PullAnswer:
    """``records`` is a view of ``body``. ``MalformedFrame`` for anything that does not add up."""
    view = memoryview(body)
    if len(view) < PULL_ANSWER.size:
        raise MalformedFrame(f"answer to a pull of {len(view)} bytes is shorter than its head of {PULL_ANSWER.size}")
    next_offset, low, high, epoch, suggested, _ = PULL_ANSWER.unpack_from(view)
    records, sizes = _sized(view, PULL_ANSWER.size - COUNT.size, allow_empty=True)
    return PullAnswer(next_offset, low, high, epoch, suggested, sizes, records)


def _sized(view: memoryview, at: int, *, allow_empty: bool) -> tuple[memoryview, np.ndarray]:
    """count, sizes, records from ``at`` on."""
    if len(view) < at + COUNT.size:
        raise MalformedFrame(f"body of {len(view)} bytes has no count of records")
    (count,) = COUNT.unpack_from(view, at)
    begin = at + COUNT.size + 4 * count
    if not (0 if allow_empty else 1) <= count <= RECORDS_MAX or begin > len(view):
        raise MalformedFrame(f"{count} records do not fit a body of {len(view)} bytes")
    sizes = np.frombuffer(view, ">i4", count, at + COUNT.size)
    total = int(sizes.sum(dtype=np.int64))
    if total != len(view) - begin or (count and int(sizes.min()) <= 0):
        raise MalformedFrame(f"sizes of {count} records add up to {total}, the body holds {len(view) - begin} bytes of records")
    return view[begin:], sizes


def _list(body: Buffer, types: tuple[Any, ...], what: str) -> list[Any]:
    try:
        found = msgpack.unpackb(body, use_list=True)
    except (ValueError, msgpack.exceptions.ExtraData, msgpack.exceptions.FormatError, msgpack.exceptions.StackError) as error:
        raise MalformedFrame(f"body of {what} is no msgpack: {error}") from None
    if not isinstance(found, list) or len(found) != len(types):
        raise MalformedFrame(f"body of {what} must be a list of {len(types)} values")
    for position, (value, kind) in enumerate(zip(found, types, strict=True)):
        if not isinstance(value, kind) or isinstance(value, bool):
            raise MalformedFrame(f"value {position} of {what} has the wrong type {type(value).__name__}")
    return found
