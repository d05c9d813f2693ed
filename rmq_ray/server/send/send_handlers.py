"""SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE: sends of Apache RocketMQ's clients
(protocol-behaviour 9; remoting 3, 3.1, 3.2).

Decides: what is refused and with which code, where a message of a retry topic ends, when the answer
leaves. Does not decide how a message is stored (``message_writer``). Our own producers use
SEND_RECORDS instead.

When the answer with code 0 leaves: see ``records_handlers``; a message with WAIT=false is answered
when the kernel has it. Every answer carries MSG_REGION and TRACE_ON.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rmq_ray.codec.record import offset_message_ids
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import (
    ClientError,
    DuplicateMismatch,
    MessageIllegal,
    MessageTooLarge,
    TopicNotFound,
    TopicNotWritable,
)
from rmq_ray.model.message import (
    DELAY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SECONDS,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
    UNIQUE_KEY,
    WAIT,
    SysFlag,
    decode_properties,
)
from rmq_ray.model.topics import TIMER_TOPIC, GroupConfig, dlq_topic
from rmq_ray.ports import Peer
from rmq_ray.protocol.redelivery import group_of_retry_topic, max_times
from rmq_ray.protocol.timer import RecallHandle, is_timed
from rmq_ray.protocol.transaction import as_half
from rmq_ray.remoting.wire.bodies_admin import BatchElement, split_batch
from rmq_ray.remoting.wire.body_json import BodyInvalid
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import SendHeader
from rmq_ray.server.base.responses import Refused
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.send.message_writer import MessageWriter, Origin
from rmq_ray.server.send.send_path import SendPath
from rmq_ray.server.tables.group_table import GroupTable
from rmq_ray.store.frames.batch_body import property_strings
from rmq_ray.store.front.message_store import AppendResult

PROPERTIES_BYTES_MAX = 32_767
# What copies of half and timed messages have more: target, counts, where they come from.
COPIES_ADD_BYTES = 767
SUSPICIOUS = (b"DELAY\x01", b"TRAN_MSG\x01", b"TIMER_DEL")
"""Bytes without which no message of a batch can be of a kind that batches may not hold."""
NOT_TRANSACTIONAL = frozenset((DELAY, TIMER_DELIVER_MS, TIMER_DELAY_MS, TIMER_DELAY_SECONDS))


class SendHandlers:
    """10, 310, 320."""

    def __init__(
        self, runtime: BrokerRuntime, path: SendPath, groups: GroupTable, writer: MessageWriter
    ) -> None:
        self._rejects_halves = runtime.config.reject_transactions
        self._path = path
        self._writer = writer
        self._groups = groups
        self._identity = identity = runtime.identity
        self._body_bytes_max = runtime.config.store.body_bytes_max
        self._host = runtime.store_host
        self._extras = {"MSG_REGION": identity.region, "TRACE_ON": "true"}

    def configure(self, config: BrokerConfig) -> None:
        """Settings were changed."""
        self._body_bytes_max = config.store.body_bytes_max
        self._rejects_halves = config.reject_transactions

    def send(self, command: Command, peer: Peer) -> Command | None:
        """10: long field names."""
        return self._guarded(command, peer, SendHeader.from_fields(command.fields), False)

    def send_v2(self, command: Command, peer: Peer) -> Command | None:
        """310: letters; ``m=true`` makes it a batch."""
        return self._guarded(command, peer, SendHeader.from_v2(command.fields), False)

    def send_batch(self, command: Command, peer: Peer) -> Command | None:
        """320: a batch whatever ``m`` says."""
        return self._guarded(command, peer, SendHeader.from_v2(command.fields), True)

    def _guarded(
        self, command: Command, peer: Peer, header: SendHeader, batch: bool
    ) -> Command | None:
        began = self._path.fast.now()
        try:
            return self._admit(command, peer, header, batch or bool(header.batch))
        except Refused as error:
            return command.answer(error.response_code, self._extras, remark=error.message)
        except (MessageIllegal, MessageTooLarge, BodyInvalid) as error:
            return command.answer(ResponseCode.MESSAGE_ILLEGAL, self._extras, remark=error.message)
        except DuplicateMismatch as error:
            return command.answer(
                ResponseCode.DUPLICATE_MISMATCH, self._extras, remark=error.message
            )
        except (TopicNotFound, TopicNotWritable) as error:
            return command.answer(error.code, self._extras, remark=error.message)
        except ClientError as error:
            return command.answer(ResponseCode.SYSTEM_ERROR, self._extras, remark=error.message)
        finally:
            self._path.fast.ended(began)

    def _admit(
        self, command: Command, peer: Peer, header: SendHeader, batch: bool
    ) -> Command | None:
        path = self._path
        config = path.gate.admit(header.topic, header.default_topic, header.default_topic_queues)
        queue_id = path.gate.queue(config, header.queue_id)
        if header.topic in path.pending_topics:
            path.later(command, peer, header.topic)
            return None
        properties = decode_properties(header.properties or "")
        self._check(header, properties, len(command.body))
        path.admit(len(command.body))
        path.slots.admit(header.topic, 1, len(command.body))
        if path.limiter.active:
            size = len(command.body)
            count = len(split_batch(command.body_bytes())) if batch else 1
            path.limit(header.topic, peer, size, count)
        if batch:
            return self._put_batch(command, peer, header, queue_id, properties)
        return self._put_single(command, peer, header, queue_id, properties)

    def _put_single(
        self,
        command: Command,
        peer: Peer,
        header: SendHeader,
        queue_id: int,
        properties: dict[str, str],
    ) -> Command | None:
        """A message for its topic, for the half topic, or of a retry topic."""
        path, topic = self._path, header.topic
        half = properties.get(TRANSACTION_PREPARED) == "true"
        if half:
            topic, properties = as_half(topic, queue_id, properties, header.producer_group)
            path.topics.create_internal(topic, 1)
        group_name = group_of_retry_topic(topic)
        if group_name is not None:
            topic, queue_id, properties = self._retried(
                self._group(group_name), header, queue_id, properties
            )
            if topic in path.pending_topics:
                path.later(command, peer, topic)
                return None
        origin = Origin(
            header.born_ms,
            (peer.host, peer.port),
            header.flag,
            header.sys_flag & ~SysFlag.TRANSACTION_MASK,
            header.reconsume_times or 0,
        )
        # A repeat of one of ours is not stored: the frame's mark is in the record, so that it is
        # known after a crash, too.
        result = self._writer.put(
            topic,
            0 if half else queue_id,
            command.body_bytes(),
            properties,
            origin,
            header.frame_id,
        )
        path.counters.put_repeats += result.repeat
        result.queue_id = queue_id
        if topic != header.topic and not half:
            path.counters.dead_letters += not result.repeat
        extras: dict[str, str] = {}
        if half:
            extras["transactionId"] = properties.get(UNIQUE_KEY, "")
        elif result.topic == TIMER_TOPIC:
            path.topics.create_internal(TIMER_TOPIC, 2)
            extras["recallHandle"] = RecallHandle(
                topic,
                self._identity.name,
                properties.get(UNIQUE_KEY, ""),
                result.base_queue_offset,
                result.base_log_offset,
            ).encode()
        wait = half or properties.get(WAIT) != "false"
        return self._answer(command, peer, result, wait, extras)

    def _check(self, header: SendHeader, properties: dict[str, str], body_length: int) -> None:
        if body_length > self._body_bytes_max:
            raise MessageTooLarge(
                f"the message is illegal, maybe msg body or properties length not matched: "
                f"body of {body_length} bytes, {self._body_bytes_max} are allowed"
            )
        half = properties.get(TRANSACTION_PREPARED) == "true"
        properties_max = PROPERTIES_BYTES_MAX - (
            COPIES_ADD_BYTES if half or is_timed(properties) else 0
        )
        if len((header.properties or "").encode()) > properties_max:
            raise MessageTooLarge(
                f"the message is illegal, properties are longer than {properties_max} bytes"
            )
        if (half and self._rejects_halves) or (
            not half and header.sys_flag & SysFlag.TRANSACTION_MASK
        ):
            raise Refused(
                f"the broker[{self._identity.address}] sending transaction message is forbidden",
                ResponseCode.NO_PERMISSION,
            )
        if half and (
            properties.keys() & NOT_TRANSACTIONAL
            or header.batch
            or group_of_retry_topic(header.topic) is not None
        ):
            raise MessageIllegal(
                "a transactional message is neither delayed nor in a batch nor for a retry "
                "topic; send it without"
            )

    def _group(self, name: str) -> GroupConfig:
        group = self._groups.find(name)
        if group is None:
            raise Refused(
                f"subscription group not exist, {name}", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            )
        return group

    def _retried(
        self, group: GroupConfig, header: SendHeader, queue_id: int, properties: dict[str, str]
    ) -> tuple[str, int, dict[str, str]]:
        """A consumer that could not send back writes into its retry topic itself; beyond the limit
        that is the dead-letter topic.
        """
        if (header.reconsume_times or 0) < max_times(group, header.max_reconsume_times):
            return header.topic, queue_id, properties
        topic = dlq_topic(group.name)
        self._path.topics.create_internal(topic, 1)
        return topic, 0, {name: value for name, value in properties.items() if name != DELAY}

    def _put_batch(
        self,
        command: Command,
        peer: Peer,
        header: SendHeader,
        queue_id: int,
        properties: dict[str, str],
    ) -> Command | None:
        if group_of_retry_topic(header.topic) is not None:
            raise MessageIllegal("batches to retry topics are not taken; send single messages")
        body = command.body_bytes()
        texts = property_strings(body)
        if any(name in texts for name in SUSPICIOUS) and any(map(_is_special, split_batch(body))):
            raise MessageIllegal(
                "a batch holds neither delayed nor transactional messages; send them one by one"
            )
        origin = Origin(header.born_ms, (peer.host, peer.port), header.flag, header.sys_flag, 0)
        result = self._writer.put_batch(header.topic, queue_id, body, properties, origin)
        return self._answer(command, peer, result, properties.get(WAIT) != "false")

    def _answer(
        self,
        command: Command,
        peer: Peer,
        result: AppendResult,
        wait: bool,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> Command | None:
        """The answer now, or later when the log is durable that far (SYNC_FLUSH)."""
        path = self._path
        if not result.repeat:
            size = result.end_log_offset - result.base_log_offset
            path.counters.put(result.topic, result.count, size)
        ids = offset_message_ids(*self._host, result.log_offsets or (result.base_log_offset,))
        fields = {
            **self._extras,
            **more,
            "msgId": ids,
            "queueId": str(result.queue_id),
            "queueOffset": str(result.base_queue_offset),
        }
        if not (path.sync and wait):
            return command.answer(0, fields)
        path.when_durable(
            command,
            result.end_log_offset,
            len(command.body),
            lambda code: peer.send(command.answer(code, fields)),
        )
        return None


def _is_special(element: BatchElement) -> bool:
    properties = decode_properties(element.properties)
    return (
        DELAY in properties
        or is_timed(properties)
        or properties.get(TRANSACTION_PREPARED) == "true"
    )
