"""What a send puts on the wire: a frame of encoded records, or one message as Apache RocketMQ's
SEND_MESSAGE_V2.

    RecordsLoad   SEND_RECORDS      1..65536 ordinary messages of one topic and queue
    RecordLoad    SEND_RECORDS      one ordinary message
    SingleLoad    SEND_MESSAGE_V2   one message of a special kind (delay, WAIT=false, transaction): the broker encodes it

Decides the form; called by ``client.sending.sending`` and ``client.sending.async_sender``, which
decide where it goes and how often. Invariant: every command of a load carries the same frame id,
whatever queue it is for, so that a broker recognises repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rmq_ray.client.outgoing.compressing import FLAG_MAX, flag_word, split_word
from rmq_ray.client.outgoing.splitting import FrameParts
from rmq_ray.codec.frame_encoder import encode_frame, encode_single
from rmq_ray.codec.record import decode_record, headers, parse_offset_message_id
from rmq_ray.codec.record_batch import MARK_BYTES, UNIQUE_TAIL_BYTES
from rmq_ray.errors import MalformedFrame
from rmq_ray.model.ids import FrameId, MessageQueue
from rmq_ray.model.topics import DEFAULT_TOPIC
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import BINARY, Command
from rmq_ray.remoting.wire.headers import SendHeader
from rmq_ray.remoting.wire.records import pack_send, pack_send_one, unpack_send_answer


class Load(Protocol):
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


class FrameLoad(Load, Protocol):
    """One that knows the size of each of its records. ``sizes``: bytes; they may change with the
    queue, in place.
    """

    sizes: Any


class RecordsLoad:
    """A frame of records, encoded for ``queue_id``; another queue rewrites that field in each
    record.
    """

    __slots__ = ("_queue_id", "_records", "frame_id", "message_ids", "sizes", "topic")

    def __init__(
        self,
        topic: str,
        queue_id: int,
        records: bytes | memoryview,
        sizes: np.ndarray[Any, Any],
        frame_id: FrameId,
        message_ids: Sequence[str],
    ) -> None:  # noqa: PLR0913 - a frame
        self.topic = topic
        self.frame_id = frame_id
        self.message_ids = message_ids
        self.sizes = sizes
        self._queue_id = queue_id
        self._records: bytes | bytearray | memoryview = records

    def command(self, queue: MessageQueue) -> Command:
        """See ``Load``."""
        if queue.queue_id != self._queue_id:
            self._retarget(queue.queue_id)
        return Command(
            RequestCode.SEND_RECORDS, body=pack_send(self._records, self.sizes), serialize=BINARY
        )

    def stored_at(self, answer: Command) -> tuple[int, int]:
        """See ``Load``."""
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


class RecordLoad:
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
    ) -> None:  # noqa: PLR0913 - a record
        self.topic = topic
        self.frame_id = frame_id
        self.message_ids: Sequence[str] = (message_id,)
        self._body = body
        self._properties = properties
        self._born_ms = born_ms
        self._flag = flag

    def command(self, queue: MessageQueue) -> Command:
        """See ``Load``."""
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
        """See ``Load``."""
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


@dataclass(slots=True)
class SingleLoad:
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
        """See ``Load``."""
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
        """See ``Load``."""
        fields = answer.fields or {}
        try:
            _, _, log_offset = parse_offset_message_id(fields.get("msgId", ""))
            return int(fields["queueOffset"]), log_offset
        except (KeyError, ValueError) as error:
            raise MalformedFrame(
                f"the answer to a send has no usable msgId or queueOffset: {fields}"
            ) from error


def frame_stored_at(answer: Command) -> tuple[int, int]:
    """See ``Load.stored_at``: of SEND_RECORDS and its like."""
    offset, log_offset, _, _ = unpack_send_answer(answer.body)
    return offset, log_offset
