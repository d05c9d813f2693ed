"""Bodies of the requests between a slave and its master: FOLLOW_LOG, REPLICATE, REPLICA_STATE,
GIVE_RECORDS.

    FOLLOW_LOG     request  msgpack [broker id, address, log or "", tail begin, tail end, tail
                            CRC-32]: what the slave's log ends with
                   answer   msgpack [log, [[epoch, start], ...], begin, segment bytes, 1 = a copy
                            counts when it is on the slave's disk]
    REPLICATE      request  msgpack [epoch, offset, max bytes, written, flushed, confirmed, wait ms,
                            suspect] max bytes 0: a report only, answered at once. suspect: log
                            offset of bytes that were no record, -1 = none
                   answer   offset i64 | end i64 | confirmed i64 | epoch i64 | length i32 | broken,
                            msgpack [[log offset, bytes, fault], ...] | bytes
                            header field "wanted": "<log offset> <bytes>" of a stretch that the
                            master has broken and this slave may have whole
    GIVE_RECORDS   request  epoch i64 | log offset i64 | the slave's whole records from there on,
                            none where it has none
                   answer   none: they are looked at later
    REPLICA_STATE  request  none
                   answer   msgpack {"timer": [due ms, offset, first, cancel from], "end": the log's
                            end, "versions": [topics' counter, time, groups' counter,
                            time]}: what a slave keeps besides RocketMQ's four tables; what the
                            tables say was done lies below that end

All integers big-endian. Decides the layout and its limits. Called by
``server.replication.replication`` and ``server.slave.replica``. Invariants: pure; the bytes
of the log are not copied; ``unpack_*`` raises ``MalformedFrame`` and nothing else.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import msgpack

from rmq_ray.errors import MalformedFrame
from rmq_ray.model.topics import DataVersion
from rmq_ray.remoting.wire.frame import Body, Buffer

BYTES_MAX = 48 << 20
"""Of one answer: any frame that a connection can bring."""
WAIT_MS_MAX = 10_000
WANTED = "wanted"
_HEAD = struct.Struct(">qqqqi")
_GIVEN = struct.Struct(">qq")
_EPOCHS_MAX = 10_000
_INT_MAX = 1 << 63


@dataclass(frozen=True, slots=True)
class FollowLog:
    """A slave that wants to follow: ``log``: whose copy it has, empty = none; (``tail_begin``,
    ``tail_end``, ``tail_crc``): its log's last bytes.
    """

    broker_id: int
    address: str
    log: str
    tail_begin: int
    tail_end: int
    tail_crc: int


@dataclass(frozen=True, slots=True)
class LogLineage:
    """What a slave learns of the log that it is to follow."""

    log: str
    epochs: tuple[tuple[int, int], ...]
    begin: int
    segment_bytes: int
    flush_counts: bool


@dataclass(frozen=True, slots=True)
class Replicate:
    """One poll, which is an acknowledgement too: the slave has the log up to ``written``, on its
    disk up to ``flushed``.
    """

    epoch: int
    offset: int
    bytes_max: int
    written: int
    flushed: int
    confirmed: int
    wait_ms: int
    suspect: int = -1


class LogPiece(NamedTuple):
    """Bytes of the log from ``offset`` on; where the master's log ends and up to where it is
    confirmed; what in the piece is broken there, too.
    """

    offset: int
    end: int
    confirmed: int
    epoch: int
    broken: list[tuple[int, int, str]]
    data: memoryview


@dataclass(frozen=True, slots=True)
class GivenBytes:
    """What a slave of ``epoch`` has of a stretch that its master has broken: whole records from its
    beginning on, or nothing.
    """

    epoch: int
    log_offset: int
    data: bytes


def pack_wanted(log_offset: int, size: int) -> str:
    """The header field of an answer to REPLICATE."""
    return f"{log_offset} {size}"


def unpack_wanted(text: str) -> tuple[int, int]:
    """Reads what ``pack_wanted`` wrote: (log offset, bytes)."""
    offset, _, size = text.partition(" ")
    if not (offset.isdecimal() and size.isdecimal() and len(text) < 40):
        raise MalformedFrame(f"wanted stretch {text[:40]!r} is no log offset and size")
    return int(offset), int(size)


def pack_given(given: GivenBytes) -> tuple[Buffer, ...]:
    """Request body of GIVE_RECORDS."""
    return _GIVEN.pack(given.epoch, given.log_offset), given.data


def unpack_given(body: Body) -> GivenBytes:
    """Reads what ``pack_given`` wrote; the bytes are a copy."""
    data = b"".join(body) if isinstance(body, tuple) else bytes(body)
    if len(data) < _GIVEN.size:
        raise MalformedFrame(f"GIVE_RECORDS of {len(data)} bytes; {_GIVEN.size} at least")
    epoch, log_offset = _GIVEN.unpack_from(data)
    if min(epoch, log_offset) < 0:
        raise MalformedFrame(f"GIVE_RECORDS of epoch {epoch} at log offset {log_offset}")
    return GivenBytes(epoch, log_offset, data[_GIVEN.size :])


def pack_follow(asked: FollowLog) -> bytes:
    """Request body of FOLLOW_LOG."""
    return _packed(list(astuple(asked)))


def unpack_follow(body: Body) -> FollowLog:
    """Reads what ``pack_follow`` wrote."""
    return FollowLog(*_list(body, (int, str, str, int, int, int), "FOLLOW_LOG"))


def pack_lineage(found: LogLineage) -> bytes:
    """Answer body of FOLLOW_LOG."""
    return _packed(
        [
            found.log,
            [list(entry) for entry in found.epochs],
            found.begin,
            found.segment_bytes,
            int(found.flush_counts),
        ]
    )


def unpack_lineage(body: Body) -> LogLineage:
    """Reads what ``pack_lineage`` wrote."""
    log, epochs, begin, segment_bytes, flush_counts = _list(
        body, (str, list, int, int, int), "an answer to FOLLOW_LOG"
    )
    if not all(
        isinstance(entry, list) and len(entry) == 2 and all(_is_offset(value) for value in entry)
        for entry in epochs
    ):
        raise MalformedFrame("epochs must be [epoch, start]")
    return LogLineage(
        log,
        tuple((epoch, start) for epoch, start in epochs),
        begin,
        segment_bytes,
        flush_counts != 0,
    )


def pack_replicate(asked: Replicate) -> bytes:
    """Request body of REPLICATE."""
    return _packed(list(astuple(asked)))


def unpack_replicate(body: Body) -> Replicate:
    """Reads what ``pack_replicate`` wrote."""
    return Replicate(*_list(body, (int,) * 8, "REPLICATE"))


def pack_piece(piece: LogPiece) -> tuple[Buffer, ...]:
    """Answer body of REPLICATE; the bytes stay where they are."""
    broken = _packed([list(entry) for entry in piece.broken]) if piece.broken else b""
    head = _HEAD.pack(piece.offset, piece.end, piece.confirmed, piece.epoch, len(broken))
    return (head, broken, piece.data) if broken else (head, piece.data)


def unpack_piece(body: Body) -> LogPiece:
    """Reads what ``pack_piece`` wrote; ``data`` is a view of the body."""
    view = memoryview(b"".join(body)) if isinstance(body, tuple) else memoryview(body)
    if len(view) < _HEAD.size:
        raise MalformedFrame(f"answer to REPLICATE of {len(view)} bytes; {_HEAD.size} at least")
    offset, end, confirmed, epoch, length = _HEAD.unpack_from(view)
    if not 0 <= length <= len(view) - _HEAD.size or min(offset, end, confirmed, epoch) < 0:
        raise MalformedFrame(
            f"answer to REPLICATE with positions {offset}, {end}, {confirmed}, epoch {epoch} "
            f"and {length} bytes of broken stretches"
        )
    at = _HEAD.size + length
    broken: list[tuple[int, int, str]] = []
    for entry in _unpacked(view[_HEAD.size : at]) if length else ():
        if not (
            isinstance(entry, list)
            and len(entry) == 3
            and _is_offset(entry[0])
            and _is_offset(entry[1])
            and entry[1]
            and isinstance(entry[2], str)
        ):
            raise MalformedFrame("broken stretches must be [log offset, bytes, fault]")
        broken.append((entry[0], entry[1], entry[2]))
    return LogPiece(offset, end, confirmed, epoch, broken, view[at:])


def unpack_settings(body: Buffer) -> tuple[dict[str, str], DataVersion]:
    """Of the answer to BROKER_SETTINGS what a slave keeps: its master's changed settings, their
    version.
    """
    try:
        found = msgpack.unpackb(body)
        changes = {str(name): str(text) for name, text in found["changes"].items()}
        counter, timestamp_ms = found["version"]
        return changes, DataVersion(int(counter), int(timestamp_ms))
    except (ValueError, TypeError, LookupError, AttributeError, msgpack.UnpackException) as error:
        raise MalformedFrame(f"answer to BROKER_SETTINGS is none: {error!r:.80}") from None


def pack_state(timer: tuple[int, int, int, int], end: int, versions: tuple[int, ...]) -> bytes:
    """Answer body of REPLICA_STATE."""
    found: bytes = msgpack.packb({"timer": list(timer), "end": end, "versions": list(versions)})
    return found


def unpack_state(body: Body) -> tuple[tuple[int, int, int, int], int, tuple[int, ...]]:
    """Reads what ``pack_state`` wrote: the timer's progress, the log's end, versions of the tables
    of topics and groups (empty where none are told).
    """
    found = _unpacked(body, maps=8)
    timer = found.get("timer") if isinstance(found, dict) else None
    if (
        not isinstance(timer, list)
        or len(timer) != 4
        or not all(isinstance(value, int) and -1 <= value < _INT_MAX for value in timer)
    ):
        raise MalformedFrame("answer to REPLICA_STATE without the timer's progress")
    end = found.get("end", 0)
    if not _is_offset(end):
        raise MalformedFrame("answer to REPLICA_STATE with an end that is no log offset")
    versions = found.get("versions", [])
    if not isinstance(versions, list) or not all(type(value) is int for value in versions):
        raise MalformedFrame("answer to REPLICA_STATE with versions that are no numbers")
    return (timer[0], timer[1], timer[2], timer[3]), end, tuple(versions)


def _packed(values: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(values)
    return packed


def _unpacked(body: Body | memoryview, maps: int = 0) -> Any:
    data = b"".join(body) if isinstance(body, tuple) else body
    try:
        return msgpack.unpackb(data, max_array_len=_EPOCHS_MAX, max_map_len=maps, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise MalformedFrame(f"body between master and slave is not msgpack: {error}") from None


def _list(body: Body, types: tuple[type, ...], what: str) -> list[Any]:
    values = _unpacked(body)
    if not isinstance(values, list) or len(values) != len(types):
        raise MalformedFrame(f"body of {what} is no list of {len(types)} values")
    for index, (value, wanted) in enumerate(zip(values, types, strict=True)):
        if type(value) is not wanted or (isinstance(value, int) and not -1 <= value < _INT_MAX):
            raise MalformedFrame(
                f"value {index} of {what} is {type(value).__name__}, or out of range"
            )
    return values


def _is_offset(value: Any) -> bool:
    return type(value) is int and 0 <= value < _INT_MAX
