"""One record of the commit log: its bytes, and what is derived from them (store-format 2.1-2.4, 9).

      0 TOTALSIZE i32  20 QUEUEOFFSET i64     48 BORNHOST 4+4 (16+4)   72 RECONSUMETIMES i32
      4 MAGICCODE u32  28 PHYSICALOFFSET i64  56 STORETIMESTAMP i64    76 PREPAREDTRANSACTIONOFFSET
                                                                       i64
      8 BODYCRC u32    36 SYSFLAG i32         64 STOREHOST 4+4 (16+4)  84 BODYLEN i32, then the
                                                                       body,
     12 QUEUEID i32    40 BORNTIMESTAMP i64                               TOPICLEN i8, topic,
                                                                          PROPLEN i16, properties
     16 FLAG i32

All big-endian. Version 1 only (what Apache RocketMQ 4.9 writes and accepts). A host of 16 bytes
sets a bit of SYSFLAG and moves everything after it by 12. A blank record (i32 rest of the segment,
u32 ``BLANK_MAGIC``) ends every full segment.

Decides: the layout and its validity. Does not decide: what a client may send (``frame_check``),
where records go. Called by: the rest of ``store``, and clients that encode or decode records.
Invariant: pure functions, no I/O, no clock.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import rmq_ray.arrays as np
from rmq_ray.errors import StoreCorrupt
from rmq_ray.model.checksum import crc32
from rmq_ray.model.message import NAME_SEPARATOR, PROPERTY_SEPARATOR, TAGS, SysFlag
from rmq_ray.value import Value

MAGIC = 0xDAA320A7
BLANK_MAGIC = 0xCBD43194
HEADER_BYTES = 88  # IPv4 hosts; the body follows
OVERHEAD_BYTES = 91  # header, TOPICLEN, PROPLEN
BLANK_BYTES_MIN = 8  # END_FILE_MIN_BLANK_LENGTH: every full segment ends with at least this much
RECORD_BYTES_OVER_BODY_MAX = 65_536  # a record is at most the greatest body and this
PROPERTIES_BYTES_MAX = 32_767  # PROPLEN is an i16
TOPIC_BYTES_MAX = 127  # TOPICLEN is an i8
CRC_MASK = 0x7FFFFFFF

HEADER = struct.Struct(">iIIiiqqiq8sq8siqi")
"""The fixed part with IPv4 hosts: the fields above in order, hosts as 8 raw bytes."""
BLANK = struct.Struct(">iI")
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")


@cache
def record_header() -> np.dtype[Any]:
    """``HEADER`` as a numpy type of 88 bytes."""
    return np.dtype(
        [
            ("total", ">i4"),
            ("magic", ">u4"),
            ("crc", ">u4"),
            ("queue_id", ">i4"),
            ("flag", ">i4"),
            ("queue_offset", ">i8"),
            ("log_offset", ">i8"),
            ("sys_flag", ">i4"),
            ("born_ms", ">i8"),
            ("born_host", "V8"),
            ("store_ms", ">i8"),
            ("store_host", "V8"),
            ("reconsume_times", ">i4"),
            ("prepared_offset", ">i8"),
            ("body_len", ">i4"),
        ]
    )


def headers(buffer: bytes | bytearray | memoryview | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Element ``i`` is the header that begins at byte ``i`` (strides of 1): ``headers(b)[starts]``
    gathers all fixed parts, ``headers(b)["queue_offset"][starts] = x`` patches them in place. Empty
    when the buffer is shorter than a header.
    """
    return np.ndarray((max(0, len(buffer) - HEADER_BYTES + 1),), record_header(), buffer, 0, (1,))


def headers_at(
    buffer: bytes | bytearray | memoryview, starts: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """A copy of the fixed parts that begin at ``starts``; all of them inside of the buffer. Copying
    whole headers is three times as fast as by field.
    """
    found: np.ndarray[Any, Any] = np.ndarray(
        (max(0, len(buffer) - HEADER_BYTES + 1),), f"V{HEADER_BYTES}", buffer, 0, (1,)
    )[starts].view(record_header())
    return found


def texts_at(
    buffer: bytes | bytearray | memoryview | np.ndarray[Any, Any],
    begins: np.ndarray[Any, Any],
    length: int,
) -> bytes:
    """Texts of one length > 0 that begin at these bytes, back to back; all inside of the buffer."""
    every: np.ndarray[Any, Any] = np.ndarray(
        (len(buffer) - length + 1,), f"V{length}", buffer, 0, (1,)
    )
    found: bytes = every[begins].tobytes()
    return found


class Record(Value, frozen=True):
    """One record with every field. Hosts are (address, port); offsets: ``queue_offset`` counts
    records, ``log_offset`` bytes.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: str = ""
    flag: int = 0
    queue_offset: int = 0
    log_offset: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: tuple[str, int] = ("0.0.0.0", 0)
    store_ms: int = 0
    store_host: tuple[str, int] = ("0.0.0.0", 0)
    reconsume_times: int = 0
    prepared_offset: int = 0
    size: int = 0
    """TOTALSIZE as read; ignored when encoding."""


def body_crc(body: bytes | bytearray | memoryview) -> int:
    """CRC-32 (zlib's) of the stored body, without the sign bit.

    >>> hex(body_crc(b"hello world"))
    '0xd4a1185'
    """
    return crc32(body) & CRC_MASK


@lru_cache(maxsize=4096)
def pack_host(host: str, port: int) -> bytes:
    """Address bytes and port: 8 bytes for IPv4, 20 for IPv6; an IPv4 address written as IPv6 counts
    as IPv4.

    >>> pack_host("10.0.0.1", 10911).hex()
    '0a00000100002a9f'
    """
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed + _I32.pack(port)


@lru_cache(maxsize=4096)
def pack_host_v4(host: str, port: int) -> bytes:
    """8 bytes, for records whose layout is fixed to IPv4: any other kind of address becomes
    0.0.0.0.
    """
    try:
        packed = pack_host(host, port)
    except ValueError:
        packed = b""
    return packed if len(packed) == 8 else bytes(4) + _I32.pack(port)


@lru_cache(maxsize=4096)
def unpack_host(packed: bytes) -> tuple[str, int]:
    """The reverse of ``pack_host``."""
    return str(ipaddress.ip_address(packed[:-4])), _I32.unpack(packed[-4:])[0]


def encode_record(record: Record) -> bytes:
    """The record's bytes. SYSFLAG gets the bits of the hosts' kinds. ``ValueError`` when a length
    does not fit its field.
    """
    topic, properties = record.topic.encode(), record.properties.encode()
    if not 0 < len(topic) <= TOPIC_BYTES_MAX or len(properties) > PROPERTIES_BYTES_MAX:
        raise ValueError(
            f"topic of {len(topic)} bytes (1 to 127) or properties of {len(properties)} "
            f"bytes (to 32767) do not fit a record"
        )
    born, stored = pack_host(*record.born_host), pack_host(*record.store_host)
    sys_flag = record.sys_flag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
    sys_flag |= (SysFlag.BORN_HOST_V6 if len(born) == 20 else 0) | (
        SysFlag.STORE_HOST_V6 if len(stored) == 20 else 0
    )
    body = record.body
    total = OVERHEAD_BYTES - 16 + len(born) + len(stored) + len(body) + len(topic) + len(properties)
    head = struct.pack(
        f">iIIiiqqiq{len(born)}sq{len(stored)}siqi",
        total,
        MAGIC,
        body_crc(body),
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.log_offset,
        sys_flag,
        record.born_ms,
        born,
        record.store_ms,
        stored,
        record.reconsume_times,
        record.prepared_offset,
        len(body),
    )
    return b"".join(
        (head, body, bytes((len(topic),)), topic, _I16.pack(len(properties)), properties)
    )


def decode_record(
    buffer: bytes | bytearray | memoryview, at: int = 0, *, sound: bool = False
) -> Record:
    """The record that begins at byte ``at``. ``StoreCorrupt`` when lengths contradict one another,
    the magic or the CRC is wrong; not looked at where the caller knows that it is ``sound``.
    """
    fault = None if sound else find_fault(buffer, at)
    if fault is not None:
        raise StoreCorrupt(f"no valid record at byte {at}: {fault}", "", at)
    view = memoryview(buffer)
    sys_flag = _I32.unpack_from(view, at + 36)[0]
    born_len, store_len = host_lengths(sys_flag)
    fields = struct.unpack_from(f">iIIiiqqiq{born_len}sq{store_len}siqi", view, at)
    (
        total,
        _,
        _,
        queue_id,
        flag,
        queue_offset,
        log_offset,
        _,
        born_ms,
        born,
        store_ms,
        stored,
        reconsume,
        prepared,
        body_len,
    ) = fields
    body_at = at + HEADER_BYTES - 16 + born_len + store_len
    topic_at = body_at + body_len
    properties_at = topic_at + 1 + view[topic_at] + 2
    topic = str(view[topic_at + 1 : properties_at - 2], "utf-8", "replace")
    properties = str(view[properties_at : at + total], "utf-8", "replace")
    return Record(
        topic,
        queue_id,
        bytes(view[body_at:topic_at]),
        properties,
        flag,
        queue_offset,
        log_offset,
        sys_flag,
        born_ms,
        unpack_host(born),
        store_ms,
        unpack_host(stored),
        reconsume,
        prepared,
        total,
    )


class RecordParts(NamedTuple):
    """What a copy of a record keeps, and where the record lies; ``text``: its property string. A
    quarter of what a ``Record`` costs.
    """

    topic: bytes
    queue_offset: int
    log_offset: int
    body: bytes
    text: bytes
    flag: int
    sys_flag: int
    born_ms: int
    born_host: tuple[str, int]
    reconsume_times: int


def record_parts(raw: bytes) -> RecordParts:
    """Of one record that is sound."""
    sys_flag = _I32.unpack_from(raw, 36)[0]
    if sys_flag & (SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6):
        it = decode_record(raw, sound=True)
        return RecordParts(
            it.topic.encode(),
            it.queue_offset,
            it.log_offset,
            it.body,
            it.properties.encode(),
            it.flag,
            sys_flag,
            it.born_ms,
            it.born_host,
            it.reconsume_times,
        )
    _, _, _, _, flag, queue_offset, log_offset, _, born_ms, born, _, _, reconsume, _, body_len = (
        HEADER.unpack_from(raw)
    )
    topic_at = HEADER_BYTES + body_len + 1
    text_at = topic_at + raw[topic_at - 1] + 2
    return RecordParts(
        raw[topic_at : text_at - 2],
        queue_offset,
        log_offset,
        raw[HEADER_BYTES : topic_at - 1],
        raw[text_at:],
        flag,
        sys_flag,
        born_ms,
        unpack_host(born),
        reconsume,
    )


def host_lengths(sys_flag: int) -> tuple[int, int]:
    """Bytes of born host and store host."""
    return (
        20 if sys_flag & SysFlag.BORN_HOST_V6 else 8,
        20 if sys_flag & SysFlag.STORE_HOST_V6 else 8,
    )


def find_fault(
    buffer: bytes | bytearray | memoryview, at: int, check_crc: bool = True
) -> str | None:
    """What is wrong with the record at byte ``at``, or None: magic, lengths against TOTALSIZE,
    text, body CRC (store-format 2.1).
    """
    have = len(buffer) - at
    if have < OVERHEAD_BYTES:
        return f"only {have} bytes"
    total, magic, crc = struct.unpack_from(">iII", buffer, at)
    if magic != MAGIC:
        return f"magic is {magic:08X}"
    if not OVERHEAD_BYTES < total <= have:
        return f"size {total} of {have} bytes at hand"
    born_len, store_len = host_lengths(_I32.unpack_from(buffer, at + 36)[0])
    body_at = at + HEADER_BYTES - 16 + born_len + store_len
    if body_at + 3 > at + total:
        return f"hosts of {born_len} and {store_len} bytes in a record of {total} bytes"
    body_len = _I32.unpack_from(buffer, body_at - 4)[0]
    topic_at = body_at + body_len
    if body_len < 0 or topic_at + 3 > at + total:
        return f"body length {body_len} in a record of {total} bytes"
    topic_len = buffer[topic_at]
    properties_at = topic_at + 1 + topic_len + 2
    if not 0 < topic_len <= TOPIC_BYTES_MAX or properties_at > at + total:
        return f"topic length {topic_len}"
    properties_len = _I16.unpack_from(buffer, properties_at - 2)[0]
    if properties_at + properties_len != at + total:
        return f"property length {properties_len} does not end the record"
    view = memoryview(buffer)
    if check_crc and body_crc(view[body_at:topic_at]) != crc:
        return "the body's CRC differs"
    return None


def property_value(properties: str, name: str) -> str | None:
    """One property out of a property string, None if it is not there.

    >>> property_value("KEYS\\x01k1\\x02TAGS\\x01TagA\\x02", "TAGS")
    'TagA'
    """
    wanted = name + NAME_SEPARATOR
    for segment in properties.split(PROPERTY_SEPARATOR):
        if segment.startswith(wanted) and len(segment) > len(wanted):
            return segment[len(wanted) :]
    return None


def tag_of(properties: str) -> str | None:
    """The TAGS property."""
    return property_value(properties, TAGS)


def offset_message_id(host: str, port: int, log_offset: int) -> str:
    """RocketMQ's offsetMsgId: address, port and log offset as upper-case hex (store-format 9.1).

    >>> offset_message_id("10.0.0.1", 10911, 1000)
    '0A00000100002A9F00000000000003E8'
    """
    return (pack_host(host, port) + struct.pack(">q", log_offset)).hex().upper()


def offset_message_ids(host: str, port: int, log_offsets: Sequence[int]) -> str:
    """``offset_message_id`` of many records of one log, joined by ``,``: what a batch is answered.

    >>> offset_message_ids("10.0.0.1", 10911, [0, 255])
    '0A00000100002A9F0000000000000000,0A00000100002A9F00000000000000FF'
    """
    head = pack_host(host, port).hex().upper()
    digits = np.asarray(log_offsets, ">i8").tobytes().hex().upper()
    return ",".join([f"{head}{digits[at : at + 16]}" for at in range(0, len(digits), 16)])


def parse_offset_message_id(message_id: str) -> tuple[str, int, int]:
    """(host, port, log offset) of an offsetMsgId; ``ValueError`` when it is not one."""
    packed = bytes.fromhex(message_id)
    if len(packed) not in (16, 28):
        raise ValueError(f"{message_id!r} is not an offset message id of 32 or 56 hex digits")
    host, port = unpack_host(packed[:-8])
    return host, port, struct.unpack(">q", packed[-8:])[0]
