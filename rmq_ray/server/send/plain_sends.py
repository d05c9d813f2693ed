"""Single sends of Apache RocketMQ's clients that arrived together, the plain ones: no delay, no
transaction, a topic and a queue that are there (protocol-behaviour 9; remoting 3).

    read    what of the header hardly changes is looked up, not parsed    not plain: None
    write   one append for all, the answers from one template             refused: None

Decides which sends are plain. Everything else, and every refusal, is left to ``send_handlers``, one
by one. Invariant, a test: records and answers are those of ``send_handlers``.
"""

from __future__ import annotations

from typing import NamedTuple

from rmq_ray.codec.record import offset_message_id
from rmq_ray.codec.record_properties import facts_of
from rmq_ray.errors import AppendUnknown, RmqError
from rmq_ray.model.message import (
    CLUSTER,
    DELAY,
    FRAME,
    TIMER_DELAY_MS,
    TIMER_DELAY_SECONDS,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TRANSACTION_PREPARED,
    WAIT,
    SysFlag,
    decode_properties,
    encode_properties,
)
from rmq_ray.model.topics import CODED_TOPICS, FORBIDDEN_SEND_TOPICS, REPLY_SUFFIX, is_storable
from rmq_ray.ports import Peer
from rmq_ray.remoting.request_table import Row
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, JSON, Command, encode_bytes
from rmq_ray.remoting.wire.header import HeaderInvalid
from rmq_ray.remoting.wire.headers import SendHeader
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.send.send_path import WRITE, SendPath
from rmq_ray.server.tables.topic_table import is_internal
from rmq_ray.store.frames.mixed_frame import MESSAGES_MAX
from rmq_ray.store.frames.single_message import StoredMessage
from rmq_ray.store.front.message_store import MixedResult

GROUP_BYTES_MAX = 1 << 20
PLACES_MAX = 4_096
KEY_CHARS_MAX = 1_024  # of what is remembered of one kind of header
_TEXT_CHARS_MAX = 8_000  # no string of so many characters is too long in bytes
_BORN_DIGITS_MAX = 18
_FIELDS: dict[int, tuple[tuple[str, ...], str, str]] = {
    RequestCode.SEND_MESSAGE: (
        (
            *("producerGroup", "topic", "defaultTopicQueueNums", "queueId", "sysFlag", "flag"),
            *("reconsumeTimes", "maxReconsumeTimes", "batch", "rmqFrame"),
        ),
        "bornTimestamp",
        "properties",
    ),
    RequestCode.SEND_MESSAGE_V2: (("a", "b", "d", "e", "f", "h", "j", "l", "m", "rmqFrame"),)
    + ("g", "i"),
}
"""The fields that decide where a message goes, the same ones in most requests of a producer; when
it was born; its properties.
"""
_NOT_PLAIN = frozenset(
    (
        *(DELAY, FRAME, TRANSACTION_PREPARED),
        *(TIMER_DELIVER_MS, TIMER_DELAY_MS, TIMER_DELAY_SECONDS, TIMER_OUT_MS),
    )
)


class _Place(NamedTuple):
    """Where messages with one kind of header go."""

    topic: str
    queue_id: int
    flag: int
    sys_flag: int
    reconsume_times: int


class PlainMessage(NamedTuple):
    """``waits``: its answer waits for the disk where the broker's answers do."""

    stored: StoredMessage
    waits: bool


class PlainSends:
    """Of one broker. ``row``: of single sends."""

    def __init__(self, runtime: BrokerRuntime, path: SendPath, row: Row) -> None:
        self.path = path
        self.row = row
        self._identity = identity = runtime.identity
        self._body_bytes_max = runtime.config.store.body_bytes_max
        self._host = runtime.store_host
        self._extras = {"MSG_REGION": identity.region, "TRACE_ON": "true"}
        self._template = _template(self._extras, runtime.store_host)
        self._places: dict[tuple[str | None, ...], _Place] = {}
        self._places_version: object = None

    def group(self, peer: Peer) -> PlainGroup:
        """An empty one."""
        return PlainGroup(self, peer)

    def read(self, command: Command, peer: Peer) -> PlainMessage | None:
        """None when it is not plain, or may be refused. The body is not copied."""
        fields, body = command.fields, command.body
        if fields is None or type(body) is tuple or len(body) > self._body_bytes_max:
            return None
        if self._places_version is not self.path.topics.version:
            self._places.clear()
            self._places_version = self.path.topics.version
        unchanging, born_name, text_name = _FIELDS[command.code]
        key = tuple(map(fields.get, unchanging))
        place = self._places.get(key) or self._place(command, key)
        born, text = fields.get(born_name, ""), fields.get(text_name, "")
        if (
            place is None
            or not born.isdecimal()
            or len(born) > _BORN_DIGITS_MAX
            or len(text) > _TEXT_CHARS_MAX
        ):
            return None
        properties = decode_properties(text)
        if not _NOT_PLAIN.isdisjoint(properties):
            return None
        waits = properties.pop(WAIT, None) != "false"
        if CLUSTER not in properties:
            properties[CLUSTER] = self._identity.cluster
        topic, queue_id, flag, sys_flag, reconsume_times = place
        return PlainMessage(
            StoredMessage(
                topic,
                queue_id,
                body,  # type: ignore[arg-type]  # copied when the record is made
                encode_properties(properties),
                flag,
                sys_flag,
                int(born),
                (peer.host, peer.port),
                reconsume_times,
                0,
                facts_of(properties),
            ),
            waits,
        )

    def answers(
        self, commands: list[Command], messages: list[PlainMessage], result: MixedResult, peer: Peer
    ) -> list[Command | bytes | None]:
        """What each is answered: at once, or None where the answer waits for the disk."""
        template, log_offset, sync = self._template, result.log_offset, self.path.sync
        found: list[Command | bytes | None] = []
        for command, message, start, queue_offset in zip(
            commands, messages, result.starts, result.offsets, strict=True
        ):
            if command.flag & FLAG_ONEWAY:
                found.append(None)
                continue
            queue_id = message.stored.queue_id
            if command.serialize == JSON and not (sync and message.waits):
                header = template % (log_offset + start, queue_id, queue_offset, command.opaque)
                size = len(header)
                found.append((size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + header)
                continue
            fields = {
                **self._extras,
                "msgId": offset_message_id(*self._host, log_offset + start),
                "queueId": str(queue_id),
                "queueOffset": str(queue_offset),
            }
            if sync and message.waits:
                self._answer_later(command, fields, result.end_log_offset, peer)
                found.append(None)
            else:
                found.append(command.answer(0, fields))
        return found

    def _answer_later(
        self, command: Command, fields: dict[str, str], end_offset: int, peer: Peer
    ) -> None:
        self.path.when_durable(
            command,
            end_offset,
            len(command.body),
            lambda code: peer.send(command.answer(code, fields)),
        )

    def _place(self, command: Command, key: tuple[str | None, ...]) -> _Place | None:
        """None when such messages are not plain."""
        fields, path = command.fields, self.path
        try:
            header = (
                SendHeader.from_fields(fields)
                if command.code == RequestCode.SEND_MESSAGE
                else SendHeader.from_v2(fields)
            )
        except HeaderInvalid:
            return None
        topic, queue_id = header.topic, header.queue_id
        config = path.topics.get(topic)
        if (
            config is None
            or config.order
            or config.bound is not None  # each send is counted against the slots
            or path.limiter.active  # and against limits
            or not config.permission & WRITE
            or not 0 <= queue_id < max(config.read_queues, config.write_queues)
            or not is_storable(topic, queue_id)
            or is_internal(topic)
            or topic in path.pending_topics
            or topic in FORBIDDEN_SEND_TOPICS
            or topic in CODED_TOPICS
            or topic.endswith(REPLY_SUFFIX)
            or header.batch
            or header.frame_id is not None
            or header.sys_flag & SysFlag.TRANSACTION_MASK
        ):
            return None
        place = _Place(topic, queue_id, header.flag, header.sys_flag, header.reconsume_times or 0)
        if sum([len(text) for text in key if text is not None]) <= KEY_CHARS_MAX:
            if len(self._places) >= PLACES_MAX:
                self._places.clear()
            self._places[key] = place
        return place

    @property
    def is_open(self) -> bool:
        """Whether this broker takes messages at all."""
        return not self._identity.is_slave


class PlainGroup:
    """Sends of one connection on their way into one append."""

    def __init__(self, sends: PlainSends, peer: Peer) -> None:
        self._sends = sends
        self.peer = peer
        self.commands: list[Command] = []
        self._messages: list[PlainMessage] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it is to be written before more comes."""
        return self._bytes >= GROUP_BYTES_MAX or len(self.commands) >= MESSAGES_MAX

    def add(self, command: Command, message: PlainMessage) -> None:
        """The next one."""
        self.commands.append(command)
        self._messages.append(message)
        self._bytes += len(command.body)

    def clear(self) -> None:
        """They are written, or were refused."""
        self.commands, self._messages, self._bytes = [], [], 0

    def write(self) -> list[Command | bytes | None] | None:
        """The answers to all. None when they were refused together: nothing is written then, and
        each is to be asked for itself. Raises ``AppendUnknown``.
        """
        sends, path = self._sends, self._sends.path
        store = path.keeper.store
        if store is None or not sends.is_open:
            return None
        began = path.fast.now()
        try:
            path.admit(self._bytes)
            result = store.append_mixed([message.stored for message in self._messages])
        except AppendUnknown:
            raise
        except (RmqError, UnicodeEncodeError):
            return None
        finally:
            path.fast.ended(began)
        self._count(result)
        return sends.answers(self.commands, self._messages, result, self.peer)

    def _count(self, result: MixedResult) -> None:
        sizes: dict[str, list[int]] = {}
        ends = [*result.starts[1:], result.end_log_offset - result.log_offset]
        for message, start, end in zip(self._messages, result.starts, ends, strict=True):
            sizes.setdefault(message.stored.topic, []).append(end - start)
        for topic, found in sizes.items():
            self._sends.path.counters.put(topic, len(found), sum(found))


def _template(extras: dict[str, str], host: tuple[str, int]) -> bytes:
    """The header of an answer; to be filled in: log offset, queue, queue offset, opaque."""
    message_id, opaque = offset_message_id(*host, 0x0123456789ABCDEF), 1_234_567_891
    fields = {**extras, "msgId": message_id, "queueId": "<q>", "queueOffset": "<o>"}
    header = encode_bytes(Command(310, opaque).answer(0, fields))[8:].replace(b"%", b"%%")
    for mark, form in (
        (b"0123456789ABCDEF", b"%016X"),
        (b"<q>", b"%d"),
        (b"<o>", b"%d"),
        (b"%d" % opaque, b"%d"),
    ):
        header = header.replace(mark, form, 1)
    return header
