"""Finding records by key and by time (docs/file-format.md#consume-queue,
docs/file-format.md#index).

Decides: which of the index's candidates really have the key (hashes collide), the queue offset for
a time, and which records count as gone with their topics. Does not decide: who may ask.
"""

from __future__ import annotations

import struct
from itertools import islice

from rmq_ray.codec.record import decode_record, host_lengths, record_parts
from rmq_ray.codec.store_files import BLANK_SIZE, ENTRY
from rmq_ray.model.message import KEYS, REAL_TOPIC, UNIQUE_KEY, decode_properties
from rmq_ray.model.topics import WAITING_TOPICS
from rmq_ray.store.queue.consume_queue import ConsumeQueue
from rmq_ray.store.queue.index_service import IndexService
from rmq_ray.store.reading.log_reader import LogReader
from rmq_ray.store.tables.topic_lives import TopicLives

QUERY_MAX = 64  # maxMsgsNumBatch
READ_MAX = 10_000  # records with the key's hash that one query reads, of other keys above all
_SKIP_MAX = 1_024  # blank entries in a row that a search by time steps over


def query_by_key(
    reader: LogReader,
    index: IndexService,
    lives: TopicLives,
    visible: int,
    topic: str,
    key: str,
    max_num: int,
    stored: tuple[int, int],
) -> list[bytes]:
    """Whole records of ``topic``, as it is there now, with the key (UNIQ_KEY or one of KEYS),
    ``stored`` from the one time to the other, both included, newest first, at most ``max_num`` and
    ``QUERY_MAX``.

    The index proposes, the record decides: what is counted was found, though other keys have the
    same hash. It looks no further back than ``READ_MAX`` of what is proposed, or the last deletion
    of the topic.
    """
    begin_ms, end_ms = stored
    found: dict[int, bytes] = {}
    for log_offset in islice(index.query(topic, key, begin_ms, end_ms), READ_MAX):
        if len(found) >= min(max_num, QUERY_MAX) or not lives.holds(topic, log_offset):
            break  # what follows is older
        record = reader.record_at(log_offset, visible)
        if (
            record is not None
            and begin_ms <= store_ms_of(record) <= end_ms
            and _has_key(record, topic, key)
        ):
            found[log_offset] = record
    return [found[log_offset] for log_offset in sorted(found, reverse=True)]


def alive(lives: TopicLives, record: bytes | None) -> bytes | None:
    """The record, unless its topic was deleted since."""
    if record is None or not lives:
        return record
    parts = record_parts(record)
    return record if lives.holds(str(parts.topic, "utf-8", "replace"), parts.log_offset) else None


def shown(lives: TopicLives, record: bytes | None) -> bytes | None:
    """For people: the record, unless it waits for a topic that was deleted since."""
    if record is None or not lives:
        return record
    parts = record_parts(record)
    if str(parts.topic, "utf-8", "replace") not in WAITING_TOPICS:
        return record
    real = decode_properties(str(parts.text, "utf-8", "replace")).get(REAL_TOPIC, "")
    return record if lives.holds(real, parts.log_offset) else None


def first_since(reader: LogReader, queue: ConsumeQueue, visible: int, at_ms: int) -> int:
    """Queue offset of the first record stored at ``at_ms`` or later, the queue's end where none
    was. Its beginning where a record on the way cannot be read: nothing is passed over.
    """
    low = queue.min_offset
    found = first_stored_since(reader, queue, visible, at_ms, low, queue.max_offset)
    return low if found is None else found


def offset_by_time(reader: LogReader, queue: ConsumeQueue, visible: int, at_ms: int) -> int:
    """Queue offset of the record stored at ``at_ms``, else the nearer neighbour (a tie: the
    earlier); 0 when records cannot be read.
    """
    low, high = queue.min_offset, queue.max_offset
    if low >= high:
        return 0
    begin = first_stored_since(reader, queue, visible, at_ms, low, high)
    if begin is None:
        return 0
    if begin == high:
        return high - 1
    if begin == low:
        return low
    left, right = (
        store_ms_at(reader, queue, visible, begin - 1),
        store_ms_at(reader, queue, visible, begin),
    )
    if left is None or right is None:
        return 0
    return begin if right == at_ms or right - at_ms < at_ms - left else begin - 1


def first_stored_since(
    reader: LogReader, queue: ConsumeQueue, visible: int, at_ms: int, low: int, high: int
) -> int | None:
    """The first queue offset in [low, high) that was stored at ``at_ms`` or later, ``high`` where
    none was; None when a record cannot be read.
    """
    begin, end = low, high  # invariant: before begin all are earlier, from end on none is
    while begin < end:  # ends: the range halves
        middle = (begin + end) // 2
        stored_ms = store_ms_at(reader, queue, visible, middle)
        if stored_ms is None:
            return None
        if stored_ms < at_ms:
            begin = middle + 1
        else:
            end = middle
    return begin


def log_offset_at(queue: ConsumeQueue | None, offset: int) -> int:
    """Where the record of a queue offset begins in the log; -1 when the queue does not have it."""
    raw = queue.read(offset, 1) if queue is not None else b""
    log_offset, size, _ = ENTRY.unpack(raw) if raw else (-1, BLANK_SIZE, 0)
    return -1 if size == BLANK_SIZE else int(log_offset)


def store_ms_of(record: bytes) -> int:
    """The store time in a record's bytes."""
    born_len = host_lengths(int.from_bytes(record[36:40], "big"))[0]
    stored: int = struct.unpack_from(">q", record, 48 + born_len)[0]
    return stored


def store_ms_at(reader: LogReader, queue: ConsumeQueue, visible: int, offset: int) -> int | None:
    """Store time of entry ``offset``, or of the next one that is not blank."""
    for at in range(offset, min(offset + _SKIP_MAX, queue.max_offset)):
        raw = queue.read(at, 1)
        if not raw:
            return None
        log_offset, size, _ = ENTRY.unpack(raw)
        if size != BLANK_SIZE:
            record = reader.record_at(log_offset, visible)
            return None if record is None else store_ms_of(record)
    return None


def _has_key(record: bytes, topic: str, key: str) -> bool:
    decoded = decode_record(record)
    if decoded.topic != topic:
        return False
    properties = decode_properties(decoded.properties)
    return properties.get(UNIQUE_KEY) == key or key in properties.get(KEYS, "").split(" ")
