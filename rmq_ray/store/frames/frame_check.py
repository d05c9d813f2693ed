"""The broker's side of a frame: every record is checked before the first byte is written, then
patched in place.

Decides: whether records that a client encoded may go into the log (no client can hurt the log: what
recovery would not accept never gets in), and where the broker's own values go. Does not decide:
permissions, whether the topic exists, repeats. Called by ``store.front.appender``. Pure.

Two ways, one judgement: ``_check_each`` (struct, one record at a time) is the authority and words
the refusals; from ``MANY`` records on ``_check_many`` does the same with numpy over the whole
buffer, quickest where all records are alike, and leaves every doubt to the first.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from rmq_ray.arrays import MANY, Array
from rmq_ray.codec.body_crcs import body_crcs
from rmq_ray.codec.record import (
    CRC_MASK,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    OVERHEAD_BYTES,
    PROPERTIES_BYTES_MAX,
    TOPIC_BYTES_MAX,
    headers_at,
    texts_at,
)
from rmq_ray.codec.record_batch import (
    FRAME_RECORDS_MAX,
    MARK_BYTES,
    MARK_OFFSET_AT,
    MARK_PREFIX,
    UNKNOWN_OFFSET,
    CheckedFrame,
    FrameMark,
    frame_crc,
    read_mark,
)
from rmq_ray.codec.record_properties import (
    PropertyFacts,
    collect_facts,
    frame_facts,
    same_key,
    split_facts,
)
from rmq_ray.errors import MessageIllegal, MessageTooLarge
from rmq_ray.model.checksum import crc32
from rmq_ray.model.ids import FrameId
from rmq_ray.model.message import SysFlag
from rmq_ray.store.frames.uniform_frames import read_uniform

PartsOf = Callable[[bytes], tuple[str | None, PropertyFacts]]
"""A property string without its mark -> (unique key, facts of the rest); raises
``MessageIllegal``.
"""
_TOPIC = re.compile(rb"[%|a-zA-Z0-9_-]{1,127}")
_COMPRESSION_TYPES = 0x700
_SYS_FLAGS = SysFlag.COMPRESSED | _COMPRESSION_TYPES
_TWO = struct.Struct(">qq")
_HOSTS = struct.Struct(">8sq8s")
_OFFSETS_AT, _HOSTS_AT = 20, 48
_I16 = struct.Struct(">h")
_SIZE_AND_CRC = struct.Struct(">iI")
_PREFIX_BYTES = len(MARK_PREFIX)
_COUNT_AT = MARK_OFFSET_AT - 8
_ONE_RECORD = b"00000001" + UNKNOWN_OFFSET
_MARK_ENDS = (b"", b"\x02")
_frame_crc = crc32  # sizes and CRCs back to back: the same as frame_crc() of both


def check_frame(
    records: bytearray | memoryview,
    sizes: Array | Sequence[int],
    body_bytes_max: int,
    parts_of: PartsOf = split_facts,
) -> CheckedFrame:
    """What the frame holds. ``sizes``: one per record, a sequence of few or an array. ``parts_of``:
    what judges property strings, where that is not what clients may send freely.

    Raises ``MessageIllegal`` (names the record and the fault) or ``MessageTooLarge``; nothing was
    changed then.
    """
    count = len(sizes)
    if not 0 < count <= FRAME_RECORDS_MAX:
        raise MessageIllegal(f"a frame has 1 to {FRAME_RECORDS_MAX} records, not {count}")
    view = memoryview(records)
    if parts_of is not split_facts:
        return _check_each(view, _plain(sizes), body_bytes_max, parts_of)
    if count == 1:
        return _check_single(view, int(sizes[0]), body_bytes_max)
    if count >= MANY:
        many = _check_many(view, np.asarray(sizes, np.int64), body_bytes_max)
        if many is not None:
            return many
    return _check_each(view, _plain(sizes), body_bytes_max, split_facts)


def patch_frame(
    records: bytearray | memoryview,
    frame: CheckedFrame,
    offsets: tuple[int, int],
    store_ms: int,
    hosts: tuple[bytes, bytes],
) -> None:
    """Fill in what only the broker knows. ``offsets``: (queue offset, log offset) of the first
    record; ``hosts``: (born, store), 8 bytes each.
    """
    queue_offset, log_offset = offsets
    if frame.count < MANY:
        born, stored = hosts
        for start in frame.starts:
            _TWO.pack_into(records, start + _OFFSETS_AT, queue_offset, log_offset + start)
            _HOSTS.pack_into(records, start + _HOSTS_AT, born, store_ms, stored)
            queue_offset += 1
    else:
        _patch_many(records, frame, offsets, _HOSTS.pack(hosts[0], store_ms, hosts[1]))
    if frame.mark_at >= 0:
        records[frame.mark_at : frame.mark_at + 16] = b"%016x" % log_offset


def _plain(sizes: Array | Sequence[int]) -> list[int]:
    return sizes.tolist() if isinstance(sizes, np.ndarray) else list(sizes)


def _patch_many(
    records: bytearray | memoryview, frame: CheckedFrame, offsets: tuple[int, int], hosts: bytes
) -> None:
    starts = np.asarray(frame.starts)
    pairs = np.empty((frame.count, 2), ">i8")
    pairs[:, 0] = np.arange(offsets[0], offsets[0] + frame.count)
    pairs[:, 1] = starts + offsets[1]
    at = np.ndarray((len(records) - 15,), "V16", records, 0, (1,))
    at[starts + _OFFSETS_AT] = pairs.view("V16")[:, 0]
    at = np.ndarray((len(records) - 23,), "V24", records, 0, (1,))
    at[starts + _HOSTS_AT] = np.void(hosts)


def _check_many(view: memoryview, sizes: Array, body_bytes_max: int) -> CheckedFrame | None:
    """None when anything is doubtful."""
    uniform = _check_uniform(view, sizes, body_bytes_max)
    return _check_varied(view, sizes, body_bytes_max) if uniform is None else uniform


def _check_uniform(view: memoryview, sizes: Array, body_bytes_max: int) -> CheckedFrame | None:
    """Records that are all alike, the most frequent kind of many; None when they are not, or
    anything is doubtful.
    """
    count = len(sizes)
    try:
        found = read_uniform(
            view,
            sizes,
            lambda frame, start, size, index: _check_one(frame, start, size, index, body_bytes_max),
        )
        if found is None:
            return None
        (mark_at, row_text), second = found.texts, int(found.starts[1])
        mark = _frame_mark(bytes(view[mark_at : min(mark_at + MARK_BYTES + 1, second)]), count)
        first_key, first_facts = split_facts(
            bytes(view[_after_mark(mark_at, second, mark) : second])
        )
        row_key, facts = split_facts(bytes(view[row_text : second + int(sizes[1])]))
    except (MessageIllegal, MessageTooLarge):
        return None
    if (
        first_key is None
        or row_key is None
        or first_facts.unique is not None
        or facts.unique is not None
    ):
        return None
    codes, others = np.full(count, facts.tag_code, np.int64), np.arange(1, count)
    if found.labels is None:
        hashed = [same_key(others, key) for key in facts.keys]
    else:
        hashed = found.labels.keys_of(others)
        codes[1:] = 0 if found.labels.tag_codes is None else found.labels.tag_codes
    codes[0] = first_facts.tag_code
    unique = np.concatenate((np.frombuffer(first_key.encode(), np.uint8)[None], found.unique))
    crc = frame_crc(sizes.astype(">i4").tobytes(), found.crcs.tobytes())
    return CheckedFrame(
        _topic_text(found.topic),
        found.queue_id,
        count,
        len(view),
        sizes,
        found.starts,
        codes,
        mark.frame_id if mark else None,
        crc,
        mark_at + MARK_OFFSET_AT if mark else -1,
        unique,
        None,
        [(0, key) for key in first_facts.keys],
        hashed,
    )


def _check_varied(view: memoryview, sizes: Array, body_bytes_max: int) -> CheckedFrame | None:
    """Any records; None when anything is doubtful."""
    length, count = len(view), len(sizes)
    if int(sizes.min()) <= OVERHEAD_BYTES or int(sizes.sum()) != length:
        return None
    starts = np.cumsum(sizes)
    starts -= sizes
    head = headers_at(view, starts)
    body_len = head["body_len"].astype(np.int64)
    topic_at = starts + (HEADER_BYTES + body_len)
    first_at = int(topic_at[0])
    if not HEADER_BYTES <= first_at < length:
        return None
    topic_len, queue_id = view[first_at], int(head["queue_id"][0])
    topic = bytes(view[first_at + 1 : first_at + 1 + topic_len])
    text_len = sizes - (OVERHEAD_BYTES + topic_len) - body_len
    if not (
        _fixed_fields_fit(head, sizes, queue_id)
        and int(body_len.min()) >= 0
        and int(body_len.max()) <= body_bytes_max
    ):
        return None
    text_at = topic_at + (topic_len + 3)
    crcs = np.ascontiguousarray(head["crc"])
    if (
        int(text_len.min()) < 0
        or int(text_len.max()) > PROPERTIES_BYTES_MAX
        or not _TOPIC.fullmatch(topic)
        or not _topics_equal(view, topic_at, topic_len, count)
        or (np.ndarray((length - 1,), ">i2", view, 0, (1,))[text_at - 2] != text_len).any()
        or (body_crcs(view, starts + HEADER_BYTES, topic_at) != crcs).any()
    ):
        return None
    mark_at = int(text_at[0])
    mark = _frame_mark(
        bytes(view[mark_at : mark_at + min(int(text_len[0]), MARK_BYTES + 1)]), count
    )
    ends = starts + sizes
    text_at[0] = _after_mark(mark_at, int(ends[0]), mark)
    try:
        facts = collect_facts(view, text_at, ends, frame_facts)
    except MessageIllegal:
        return None
    crc = frame_crc(sizes.astype(">i4").tobytes(), crcs.tobytes())
    return CheckedFrame(
        topic.decode(),
        queue_id,
        count,
        length,
        sizes,
        starts,
        facts.tag_codes,
        mark.frame_id if mark else None,
        crc,
        mark_at + MARK_OFFSET_AT if mark else -1,
        facts.unique,
        facts.unique_rows,
        facts.keys,
        facts.hashed,
    )


def _fixed_fields_fit(head: Array, sizes: Array, queue_id: int) -> bool:
    sys_flags = head["sys_flag"]
    return bool(
        queue_id >= 0
        and (head["total"] == sizes).all()
        and (head["magic"] == MAGIC).all()
        and (head["queue_id"] == queue_id).all()
        and (
            not sys_flags.any() or all(_sys_flag_allowed(flag) for flag in set(sys_flags.tolist()))
        )
        and not head["reconsume_times"].any()
        and not head["prepared_offset"].any()
    )


def _topics_equal(view: memoryview, topic_at: Array, topic_len: int, count: int) -> bool:
    """Whether every record's TOPICLEN and topic are those of the first."""
    found = texts_at(view, topic_at, topic_len + 1)
    return found == found[: topic_len + 1] * count


def _check_each(
    view: memoryview, sizes: list[int], body_bytes_max: int, parts_of: PartsOf
) -> CheckedFrame:
    count, length, start = len(sizes), len(view), 0
    starts: list[int] = []
    codes: list[int] = []
    crcs: list[int] = []
    keys: list[tuple[int, str]] = []
    first: tuple[Any, ...] = ()
    mark: FrameMark | None = None
    mark_at = -1
    for index, size in enumerate(sizes):
        crc, queue_id, topic, text_at = _check_one(view, start, size, index, body_bytes_max)
        if index == 0:
            first = (queue_id, topic)
            mark = _frame_mark(
                bytes(view[text_at : min(text_at + MARK_BYTES + 1, start + size)]), count
            )
            mark_at = text_at + MARK_OFFSET_AT if mark else -1
            text_at = _after_mark(text_at, start + size, mark)
        elif (queue_id, topic) != first:
            raise MessageIllegal(
                f"record {index}: topic and queue must be those of the first record", index
            )
        try:
            unique, facts = parts_of(bytes(view[text_at : start + size]))
        except MessageIllegal as error:
            raise MessageIllegal(f"record {index}: {error.message}", index) from error
        starts.append(start)
        crcs.append(crc)
        codes.append(facts.tag_code)
        if unique is not None:
            keys.append((index, unique))
        if facts.keys:
            keys += [(index, key) for key in facts.keys]
        start += size
    if start != length:
        raise MessageIllegal(f"the sizes add up to {start} bytes, the records have {length}")
    queue_id, topic = first
    crc = frame_crc(struct.pack(f">{count}i", *sizes), struct.pack(f">{count}I", *crcs))
    return CheckedFrame(
        _topic_text(topic),
        queue_id,
        count,
        length,
        sizes,
        starts,
        codes,
        mark.frame_id if mark else None,
        crc,
        mark_at,
        None,
        None,
        keys,
    )


def _check_single(view: memoryview, size: int, body_bytes_max: int) -> CheckedFrame:
    """A frame of one record, the most frequent one of those who wait for every answer."""
    if size != len(view):
        raise MessageIllegal(f"record 0: size {size}, but {len(view)} bytes came", 0)
    crc, queue_id, topic, text_at = _check_one(view, 0, size, 0, body_bytes_max)
    text = bytes(view[text_at:])
    frame_id, mark_at = None, -1
    if text[:_PREFIX_BYTES] == MARK_PREFIX:
        frame_id, mark_at, text = (
            _single_mark(text),
            text_at + MARK_OFFSET_AT,
            text[MARK_BYTES + 1 :],
        )
    try:
        unique, facts = split_facts(text)
    except MessageIllegal as error:
        raise MessageIllegal(f"record 0: {error.message}", 0) from error
    keys = [(0, unique)] if unique is not None else []
    if facts.keys:
        keys += [(0, key) for key in facts.keys]
    content = _frame_crc(_SIZE_AND_CRC.pack(size, crc))
    return CheckedFrame(
        _topic_text(topic),
        queue_id,
        1,
        size,
        [size],
        [0],
        [facts.tag_code],
        frame_id,
        content,
        mark_at,
        None,
        None,
        keys,
    )


def _single_mark(text: bytes) -> FrameId:
    """The frame's id; the mark must be that of one record."""
    name = text[_PREFIX_BYTES:_COUNT_AT]
    if (
        text[_COUNT_AT:MARK_BYTES] == _ONE_RECORD
        and text[MARK_BYTES : MARK_BYTES + 1] in _MARK_ENDS
        and not name.strip(b"0123456789abcdef")
    ):
        return FrameId(_producer(name[:32]), int(name[32:], 16))
    mark = _frame_mark(text, 1)
    assert mark is not None, "it has the prefix"
    return mark.frame_id


@lru_cache(maxsize=4096)
def _producer(digits: bytes) -> bytes:
    return bytes.fromhex(digits.decode())


def _check_one(
    view: memoryview, start: int, size: int, index: int, body_bytes_max: int
) -> tuple[int, int, bytes, int]:
    """(CRC, queue id, topic, where the properties begin) of one record."""
    if not OVERHEAD_BYTES < size <= len(view) - start:
        raise MessageIllegal(
            f"record {index}: size {size} with {len(view) - start} bytes left", index
        )
    total, magic, crc, queue_id, _, _, _, sys_flag, _, _, _, _, reconsume, prepared, body_len = (
        HEADER.unpack_from(view, start)
    )
    if total != size or magic != MAGIC:
        raise MessageIllegal(
            f"record {index}: TOTALSIZE {total} and magic {magic:08X}, expected {size} and "
            f"{MAGIC:08X}",
            index,
        )
    if queue_id < 0 or not _sys_flag_allowed(sys_flag) or reconsume or prepared:
        what = (
            f"queue id {queue_id}, SYSFLAG {sys_flag:#x}, {reconsume} reconsume times, prepared "
            f"offset {prepared}"
        )
        raise MessageIllegal(f"record {index}: {what} may not come in a frame", index)
    if body_len > body_bytes_max:
        raise MessageTooLarge(
            f"record {index}: body of {body_len} bytes; {body_bytes_max} are allowed "
            f"(body_bytes_max)",
            body_len,
            body_bytes_max,
        )
    topic_at, end = start + HEADER_BYTES + body_len, start + size
    if body_len < 0 or topic_at + 3 > end:
        raise MessageIllegal(
            f"record {index}: body length {body_len} in a record of {size} bytes", index
        )
    text_at = topic_at + 3 + view[topic_at]
    if text_at > end or _I16.unpack_from(view, text_at - 2)[0] != end - text_at:
        raise MessageIllegal(
            f"record {index}: lengths of topic and properties do not add up to {size} bytes", index
        )
    topic = bytes(view[topic_at + 1 : text_at - 2])
    _topic_text(topic)
    if crc32(view[start + HEADER_BYTES : topic_at]) & CRC_MASK != crc:
        raise MessageIllegal(f"record {index}: the body's CRC is not {crc:08X}", index)
    return crc, queue_id, topic, text_at


@lru_cache(maxsize=4096)
def _topic_text(topic: bytes) -> str:
    if not _TOPIC.fullmatch(topic):
        raise MessageIllegal(
            f"topic {topic[:TOPIC_BYTES_MAX]!r} is not 1 to {TOPIC_BYTES_MAX} of the "
            f"characters % | a-z A-Z 0-9 _ -"
        )
    return topic.decode()


def _sys_flag_allowed(flag: int) -> bool:
    return flag == 0 or (flag & ~_SYS_FLAGS == 0 and bool(flag & SysFlag.COMPRESSED))


def is_queued(sys_flag: int) -> bool:
    """Whether records of this transaction type get a queue offset (store-format 3); prepared and
    rolled back ones carry 0.
    """
    return sys_flag & SysFlag.TRANSACTION_MASK in (
        SysFlag.TRANSACTION_NOT,
        SysFlag.TRANSACTION_COMMIT,
    )


def _frame_mark(text: bytes, count: int) -> FrameMark | None:
    """The first record's mark; several records need one, else a torn frame could not be told from a
    whole one.
    """
    mark = read_mark(text)
    if mark is None:
        if count > 1 or text.startswith(MARK_PREFIX):
            raise MessageIllegal(
                "record 0: several records need the frame property in its fixed form as the "
                "first property"
            )
        return None
    if mark.records != count or mark.log_offset != -1:
        raise MessageIllegal(
            f"record 0: the frame property says {mark.records} records at offset "
            f"{mark.log_offset}, sent were {count} without offset"
        )
    return mark


def _after_mark(text_at: int, end: int, mark: FrameMark | None) -> int:
    return text_at if mark is None else min(text_at + MARK_BYTES + 1, end)
