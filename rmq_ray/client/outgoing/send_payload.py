"""What a send puts on the wire, what makes it recognisable there, and what its answer tells: a
frame of encoded records, or one message as Apache RocketMQ's SEND_MESSAGE_V2.

    RecordsPayload         SEND_RECORDS      1..65536 ordinary messages of one topic and queue
    RecordPayload          SEND_RECORDS      one ordinary message
    SingleMessagePayload   SEND_MESSAGE_V2   one message of a special kind (delay, WAIT=false),
                                             which the broker encodes

Decides the form; where it goes, and how often, is ``client.sending.send_engine``'s. On its way
through batches a message has one number for its two flags, the flag word: the user's flag, or, for
a compressed message, its low 32 bits with SYSFLAG above.

Invariants: every command of a payload carries the same frame id, whatever queue it is for, so that
a broker recognises repeats; a word of a message that is not compressed is the user's flag itself,
so that without compression nothing is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import rmq_ray.arrays as np
from rmq_ray.client.outgoing.producer_identity import ProducerIdentity
from rmq_ray.codec.frame_encoder import encode_frame, encode_single
from rmq_ray.codec.keyed_encoder import NO_FLAGS, RecordFlags, encode_keyed
from rmq_ray.codec.record import decode_record, headers, offset_message_id, parse_offset_message_id
from rmq_ray.codec.record_batch import MARK_BYTES, UNIQUE_TAIL_BYTES
from rmq_ray.errors import MalformedFrame
from rmq_ray.model.ids import Address, FrameId, LogOffset, MessageQueue, QueueOffset
from rmq_ray.model.message import SendResult, SendStatus
from rmq_ray.model.topics import DEFAULT_TOPIC
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import BINARY, Command
from rmq_ray.remoting.wire.headers import SendHeader
from rmq_ray.remoting.wire.records import pack_send, pack_send_one, unpack_send_answer
from rmq_ray.value import Draft

RECORD_OVERHEAD = 140  # header, lengths and UNIQ_KEY of a record, rounded up
FLAG_MAX = (1 << 31) - 1

FrameParts = tuple[list[bytes], list[str], list[int] | None]
"""Bodies, property texts, flag words (None when all are 0)."""


class StoredAt(NamedTuple):
    """What an answer tells of a payload that is stored: the places of its first message.
    ``queue``: under the names that the producer's user knows.
    """

    status: SendStatus
    queue: MessageQueue
    address: Address
    queue_offset: int
    log_offset: int
    recall_handle: str | None = None

    def result(
        self, message_id: str, index: int = 0, start: int = 0, transaction_id: str | None = None
    ) -> SendResult:
        """Of the message at ``index`` of the payload, ``start`` bytes behind the first one."""
        log_offset = self.log_offset + start
        return SendResult(
            self.status,
            message_id,
            self.queue,
            QueueOffset(self.queue_offset + index),
            store_id(self.address, log_offset),
            LogOffset(log_offset),
            transaction_id,
            1,
            self.recall_handle,
        )


class FramePayload(Protocol):
    """One unit of sending."""

    topic: str
    frame_id: FrameId
    message_ids: Sequence[str]

    def command(self, queue: MessageQueue) -> Command:
        """The request for this queue."""
        ...

    def stored_at(self, answer: Command) -> tuple[int, int]:
        """(first queue offset, first log offset) of an answer that says stored; ``MalformedFrame``
        when it cannot be read.
        """
        ...


class SizedPayload(FramePayload, Protocol):
    """One that knows the size of each of its records. ``sizes``: bytes; they may change with the
    queue, in place.
    """

    sizes: Any


class RecordsPayload:
    """A frame of records, encoded for ``queue_id``; another queue rewrites that field in each
    record.
    """

    __slots__ = ("_queue_id", "_records", "fields", "frame_id", "message_ids", "sizes", "topic")

    def __init__(
        self,
        topic: str,
        queue_id: int,
        records: bytes | memoryview,
        sizes: np.ndarray[Any, Any],
        frame_id: FrameId,
        message_ids: Sequence[str],
    ) -> None:
        self.topic = topic
        self.frame_id = frame_id
        self.message_ids = message_ids
        self.sizes = sizes
        self.fields: dict[str, str] | None = None  # of the request's header
        self._queue_id = queue_id
        self._records: bytes | bytearray | memoryview = records

    def command(self, queue: MessageQueue) -> Command:
        """See ``FramePayload``."""
        if queue.queue_id != self._queue_id:
            self._retarget(queue.queue_id)
        body = pack_send(self._records, self.sizes)
        return Command(RequestCode.SEND_RECORDS, fields=self.fields, body=body, serialize=BINARY)

    def stored_at(self, answer: Command) -> tuple[int, int]:
        """See ``FramePayload``."""
        return frame_stored_at(answer)

    def parts(self) -> FrameParts:
        """The messages as they were before they were encoded; slow."""
        bodies, texts, words, at = [], [], [], 0
        for size in self.sizes.tolist():
            record = decode_record(self._records, at, sound=True)
            bodies.append(record.body)
            texts.append(record.properties[0 if at else MARK_BYTES + 1 : -UNIQUE_TAIL_BYTES])
            words.append(flag_word(record.flag, record.sys_flag))
            at += size
        return bodies, texts, words if any(words) else None

    def _retarget(self, queue_id: int) -> None:
        """A copy: the old bytes may still be in a connection's queue."""
        records = bytearray(self._records)
        sizes = self.sizes.astype(np.int64)
        headers(records)["queue_id"][np.cumsum(sizes) - sizes] = queue_id
        self._records, self._queue_id = records, queue_id


class RecordPayload:
    """One ordinary message: a frame of one record, encoded when it is sent. ``properties`` end with
    UNIQ_KEY; ``flag``: a flag word.
    """

    __slots__ = ("_body", "_born_ms", "_flag", "_properties", "frame_id", "message_ids", "topic")

    def __init__(
        self,
        topic: str,
        body: bytes,
        properties: str,
        born_ms: int,
        frame_id: FrameId,
        message_id: str,
        flag: int,
    ) -> None:
        self.topic = topic
        self.frame_id = frame_id
        self.message_ids: Sequence[str] = (message_id,)
        self._body = body
        self._properties = properties
        self._born_ms = born_ms
        self._flag = flag

    def command(self, queue: MessageQueue) -> Command:
        """See ``FramePayload``."""
        if self._flag > FLAG_MAX:
            return self._compressed(queue)
        record = encode_single(
            self.topic,
            queue.queue_id,
            self._body,
            self._properties,
            self._born_ms,
            self.frame_id,
            self._flag,
        )
        return Command(RequestCode.SEND_RECORDS, body=pack_send_one(record), serialize=BINARY)

    def stored_at(self, answer: Command) -> tuple[int, int]:
        """See ``FramePayload``."""
        return frame_stored_at(answer)

    def _compressed(self, queue: MessageQueue) -> Command:
        """A record with a SYSFLAG of its own."""
        flag, sys_flag = split_word(self._flag)
        records, sizes = encode_frame(
            self.topic,
            queue.queue_id,
            (self._body,),
            (self._properties,),
            self._born_ms,
            self.frame_id,
            sys_flag,
            (flag,),
        )
        return Command(RequestCode.SEND_RECORDS, body=pack_send(records, sizes), serialize=BINARY)


class SingleMessagePayload(Draft):
    """One message with its property string (0x02 between properties, UNIQ_KEY included, no frame
    mark).
    """

    topic: str
    group: str
    body: bytes
    properties: str
    born_ms: int
    frame_id: FrameId
    message_ids: Sequence[str]
    flag: int = 0
    sys_flag: int = 0
    default_queues: int = 4

    def command(self, queue: MessageQueue) -> Command:
        """See ``FramePayload``."""
        header = SendHeader(
            producer_group=self.group,
            topic=self.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queues=self.default_queues,
            queue_id=queue.queue_id,
            sys_flag=self.sys_flag,
            born_ms=self.born_ms,
            flag=self.flag,
            properties=self.properties,
            broker_name=queue.broker_name,
            frame_id=self.frame_id,
        )
        return Command(RequestCode.SEND_MESSAGE_V2, fields=header.to_v2(), body=self.body)

    def stored_at(self, answer: Command) -> tuple[int, int]:
        """See ``FramePayload``."""
        fields = answer.fields or {}
        try:
            _, _, log_offset = parse_offset_message_id(fields.get("msgId", ""))
            return int(fields["queueOffset"]), log_offset
        except (KeyError, ValueError) as error:
            raise MalformedFrame(
                f"the answer to a send has no usable msgId or queueOffset: {fields}"
            ) from error


def frame_stored_at(answer: Command) -> tuple[int, int]:
    """See ``FramePayload.stored_at``: of SEND_RECORDS and its like."""
    offset, log_offset, _, _ = unpack_send_answer(answer.body)
    return offset, log_offset


def encode_records(
    identity: ProducerIdentity,
    queue: MessageQueue,
    bodies: Sequence[bytes],
    texts: Sequence[str],
    born_ms: int,
    timeout_ms: float,
    flags: Sequence[int] | None = None,
) -> RecordsPayload:
    """A frame of ordinary messages with the next frame id. ``texts``: property strings as
    ``property_text`` makes them; ``flags``: flag words.
    """
    keys = identity.unique_keys(born_ms, len(bodies))
    frame_id = identity.take(timeout_ms)
    try:
        records, sizes = encode_keyed(
            queue.topic, queue.queue_id, bodies, texts, keys, born_ms, frame_id, split_words(flags)
        )
    except BaseException:
        identity.release(frame_id)
        raise
    return RecordsPayload(queue.topic, queue.queue_id, records, sizes, frame_id, keys)


def flag_word(flag: int, sys_flag: int) -> int:
    """Both flags in one number; ``flag`` is a signed 32-bit number.

    >>> split_word(flag_word(-5, 0x301)), split_word(flag_word(-5, 0))
    ((-5, 769), (-5, 0))
    """
    return sys_flag << 32 | flag & 0xFFFFFFFF if sys_flag else flag


def split_word(word: int) -> tuple[int, int]:
    """(the user's flag, SYSFLAG)."""
    if word <= FLAG_MAX:
        return word, 0
    flag = word & 0xFFFFFFFF
    return (flag if flag <= FLAG_MAX else flag - (1 << 32)), word >> 32


def split_words(words: Sequence[int] | None) -> RecordFlags:
    """The flags of the messages of a frame, each in the short form where all
    are 0.
    """
    if words is None or not any(words):
        return NO_FLAGS
    if max(words) <= FLAG_MAX:
        return RecordFlags(list(words))
    pairs = [split_word(word) for word in words]
    return RecordFlags([flag for flag, _ in pairs], [sys_flag for _, sys_flag in pairs])


def store_id(address: Address, log_offset: int) -> str:
    """RocketMQ's offset message id; empty when the broker is known by a host name and not by an
    address.
    """
    head = _store_id_head(address)
    return f"{head}{log_offset:016X}" if head else ""


@lru_cache(maxsize=1024)
def _store_id_head(address: Address) -> str:
    try:
        return offset_message_id(address.host, address.port, 0)[:-16]
    except ValueError:
        return ""
