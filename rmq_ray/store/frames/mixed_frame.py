"""Several messages for several queues in one write: finals of transactions and the ops that end
their halves, single sends that arrived together.

    log     final 1 | op 1 | final 2 | op 2 | ...        one write, in this order: a crash leaves
                                                         a beginning of it
    queues  orders/0: final 1, final 2    op queue: op 1, op 2     one piece for each queue

Decides: bytes and facts of such records, and which piece each belongs to. Records carry no mark:
each stands for itself, a part of them may survive. Does not decide what is written so (the broker's
transactions) or when it becomes visible (``visibility``). Called by: message store. Pure.

Invariant: ``length`` and ``starts`` are those of the whole; rows of a piece begin relative to the
whole as well, so its records need not be neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from rmq_ray.codec.record import (
    HEADER,
    MAGIC,
    OVERHEAD_BYTES,
    PROPERTIES_BYTES_MAX,
    Record,
    body_crc,
    encode_record,
    pack_host,
    pack_host_v4,
)
from rmq_ray.codec.record_batch import MARK_PREFIX, CheckedFrame, strip_mark
from rmq_ray.codec.record_properties import stored_parts
from rmq_ray.errors import MessageIllegal, MessageTooLarge
from rmq_ray.model.message import SysFlag
from rmq_ray.model.topics import CODED_TOPICS
from rmq_ray.store.frames.frame_check import is_queued
from rmq_ray.store.frames.single_message import StoredMessage, check_queue

MESSAGES_MAX = 4_096
_V6_FLAGS = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_V6_EXTRA = 12
OwnCode = Callable[[str, str, int], int]
"""``Dispatcher.own_code``."""


@dataclass(slots=True)
class QueuePiece:
    """The records of one queue, the first of which gets ``queue_offset``."""

    frame: CheckedFrame
    queue_offset: int
    sys_flag: int


@dataclass(slots=True)
class MixedFrame:
    """What one write put into the log. ``keys``: (start, topic, key) to index, in log order;
    ``offsets``: the queue offset of each record.
    """

    length: int = 0
    starts: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    pieces: dict[tuple[str, int], QueuePiece] = field(default_factory=dict)
    keys: list[tuple[int, str, str]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many records."""
        return len(self.starts)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: its records are not queued any more."""
        self.pieces = {place: piece for place, piece in self.pieces.items() if place[0] != topic}
        self.keys = [key for key in self.keys if key[1] != topic]


class Sized(NamedTuple):
    """A message with its encoded parts; ``size``: of its record. ``host``: where it was born, None
    = an IPv6 address.
    """

    message: StoredMessage
    topic: bytes
    text: bytes
    size: int
    host: bytes | None


def measure(messages: Sequence[StoredMessage], body_bytes_max: int) -> list[Sized]:
    """How long the records will be. ``MessageTooLarge`` or ``MessageIllegal``: nothing is written
    then.
    """
    if not 0 < len(messages) <= MESSAGES_MAX:
        raise MessageIllegal(f"{len(messages)} messages in one write; 1 to {MESSAGES_MAX} go")
    return [_measured(message, body_bytes_max) for message in messages]


def _measured(message: StoredMessage, body_bytes_max: int) -> Sized:
    length, text = len(message.body), message.properties.encode()
    if MARK_PREFIX in text:
        text = strip_mark(message.properties).encode()
    if length > body_bytes_max:
        raise MessageTooLarge(
            f"body of {length} bytes; {body_bytes_max} are allowed (body_bytes_max)",
            length,
            body_bytes_max,
        )
    if len(text) > PROPERTIES_BYTES_MAX or b"\0" in text or not is_queued(message.sys_flag):
        raise MessageIllegal(
            f"properties of {len(text)} bytes (to {PROPERTIES_BYTES_MAX}), with a zero "
            f"character, or SYSFLAG {message.sys_flag:#x}"
        )
    topic, host = _topic_part(message.topic, message.queue_id), _host(*message.born_host)
    plain = len(host) == 8
    return Sized(
        message,
        topic,
        text,
        OVERHEAD_BYTES - 1 + length + len(topic) + len(text) + (0 if plain else _V6_EXTRA),
        host if plain else None,
    )


def encode_mixed(
    items: Sequence[Sized],
    log_offset: int,
    store_ms: int,
    store_host: tuple[str, int],
    next_offsets: Mapping[tuple[str, int], int],
    own_code: OwnCode,
) -> tuple[bytes, MixedFrame]:
    """(the records, what they are) as they go to ``log_offset``. ``next_offsets``: where each queue
    goes on.
    """
    parts: list[bytes] = []
    mixed = MixedFrame()
    host, start = pack_host_v4(*store_host), 0
    for item in items:
        message, topic_part, text, size, born_host = item
        topic, queue_id = message.topic, message.queue_id
        piece = mixed.pieces.get((topic, queue_id))
        if piece is None:
            piece = mixed.pieces[topic, queue_id] = QueuePiece(
                CheckedFrame(topic, queue_id, 0, 0, [], [], []),
                next_offsets.get((topic, queue_id), 0),
                message.sys_flag,
            )
        frame = piece.frame
        queue_offset = piece.queue_offset + frame.count
        if born_host is None:
            parts.append(encode_record(_record(item, (queue_offset, log_offset + start), store_ms)))
        else:
            parts += (
                _header(item, (queue_offset, log_offset + start), store_ms, host),
                message.body,
                topic_part,
                len(text).to_bytes(2, "big"),
                text,
            )
        facts = message.facts
        if facts is None:
            unique, facts = stored_parts(text)
        else:
            unique = facts.unique
        if unique is not None:
            mixed.keys.append((start, topic, unique))
        for key in facts.keys:
            mixed.keys.append((start, topic, key))
        code = (
            own_code(topic, facts.delay, store_ms)
            if facts.delay is not None and topic in CODED_TOPICS
            else 0
        )
        frame.count += 1
        frame.sizes.append(size)
        frame.starts.append(start)
        frame.tag_codes.append(code or facts.tag_code)
        mixed.offsets.append(queue_offset)
        mixed.starts.append(start)
        start += size
    mixed.length = start
    for piece in mixed.pieces.values():
        piece.frame.length = start
    return b"".join(parts), mixed


def _header(item: Sized, offsets: tuple[int, int], store_ms: int, store_host: bytes) -> bytes:
    """The fixed part of the record of a message that was born at an IPv4 address."""
    (_, queue_id, body, _, flag, sys_flag, born_ms, _, consumed, prepared_offset, _) = item.message
    return HEADER.pack(
        item.size,
        MAGIC,
        body_crc(body),
        queue_id,
        flag,
        *offsets,
        sys_flag & ~_V6_FLAGS,
        born_ms,
        item.host,
        store_ms,
        store_host,
        consumed,
        prepared_offset,
        len(body),
    )


def _record(item: Sized, offsets: tuple[int, int], store_ms: int) -> Record:
    message = item.message
    return Record(
        message.topic,
        message.queue_id,
        message.body,
        item.text.decode(),
        message.flag,
        *offsets,
        message.sys_flag,
        message.born_ms,
        message.born_host,
        store_ms,
        ("0.0.0.0", 0),
        message.reconsume_times,
        message.prepared_offset,
    )


@lru_cache(maxsize=4096)
def _topic_part(topic: str, queue_id: int) -> bytes:
    """TOPICLEN and the topic."""
    check_queue(topic, queue_id)
    return bytes((len(topic),)) + topic.encode()


@lru_cache(maxsize=4096)
def _host(host: str, port: int) -> bytes:
    try:
        return pack_host(host, port)
    except ValueError:
        return pack_host_v4(host, port)
