"""CONSUMER_SEND_MSG_BACK: a consumer could not process a message (protocol-behaviour 17).

Decides: where the copy goes (with ``protocol.redelivery``) and what the consumer is told. Does not
decide when it comes back: a copy for the retry topic lies in the schedule topic until its delay is
over. The answer 0 leaves when the copy is as durable as the mode demands; anything else makes the
consumer keep the message.
"""

from __future__ import annotations

from rmq_ray.codec.record import decode_record, offset_message_id
from rmq_ray.model.message import DELAY, RETRY_TOPIC, decode_properties
from rmq_ray.model.topics import GroupConfig, Permission
from rmq_ray.ports import Peer
from rmq_ray.protocol.access.decision import Action
from rmq_ray.protocol.redelivery import copy_properties, decide, max_times, with_failure
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import SendBackHeader
from rmq_ray.server.base.responses import Refused, Responder
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.send.message_writer import Origin
from rmq_ray.server.send.send_path import SendPath
from rmq_ray.server.send.writers import Writers
from rmq_ray.server.tables.group_table import GroupTable


class SendBackHandler:
    """Request code 36."""

    def __init__(
        self,
        runtime: BrokerRuntime,
        path: SendPath,
        groups: GroupTable,
        writers: Writers,
        responder: Responder,
    ) -> None:
        self._identity = runtime.identity
        self._path = path
        self._groups = groups
        self._writer, self._own = writers.writer, writers.own
        self._later, self._check_topic = responder.answer_from, responder.check_topic
        self._turn = 0

    def send_back(self, command: Command, peer: Peer) -> Command | None:
        """36."""
        header = SendBackHeader.from_fields(command.fields)
        path = self._path
        group = self._groups.find(header.group)
        if group is None:
            raise Refused(
                f"subscription group not exist, {header.group}",
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        if not self._identity.writable or self._identity.is_slave or self._identity.draining:
            raise Refused(
                f"the broker[{self._identity.address}] sending message is forbidden",
                ResponseCode.NO_PERMISSION,
            )
        if group.retry_queues <= 0:
            return command.answer(fields={})
        store = path.keeper.store
        if store is None:
            raise path.keeper.refusal()
        if store.is_cold(header.offset):
            self._later(
                command,
                peer,
                lambda: store.record_at(header.offset),
                lambda raw: self._copy(command, peer, header, group, raw),
            )
            return None
        return self._copy(command, peer, header, group, store.record_at(header.offset))

    def _copy(
        self,
        command: Command,
        peer: Peer,
        header: SendBackHeader,
        group: GroupConfig,
        raw: bytes | None,
    ) -> Command | None:
        """Store the copy of the record ``raw``; ``None`` = there is none at that offset."""
        origin = header.origin_topic or ""
        if raw is None and self._own.is_gone(origin, header.offset):
            self._own.dropped(origin)
            return command.answer(fields={})
        if raw is None:
            raise Refused(
                f"look message by offset failed, {header.offset}", ResponseCode.SYSTEM_ERROR
            )
        path, record = self._path, decode_record(raw)
        self._check_topic(peer, Action.SUB, record.topic)
        plan = decide(
            group,
            record.reconsume_times,
            header.delay_level,
            max_times(group, header.max_reconsume_times),
        )
        topic, queue_id = self._target(group, plan.topic, plan.dead)
        if topic in path.pending_topics:
            path.later(command, peer, topic)
            return None
        properties = copy_properties(
            decode_properties(record.properties),
            record.topic,
            offset_message_id(*record.store_host, record.log_offset),
            header.origin_message_id,
        )
        if path.sync:
            path.acks.check_room(len(record.body))
        if plan.delay_level:
            properties[DELAY] = str(plan.delay_level)
        properties = with_failure(properties, header.failed_with, header.failed_on)
        born = Origin(
            record.born_ms, record.born_host, record.flag, record.sys_flag, plan.reconsume_times
        )
        result = self._writer.put(topic, queue_id, record.body, properties, born)
        origin = properties.get(RETRY_TOPIC, record.topic)
        path.counters.sent_back_by(origin, group.name, len(record.body))
        path.counters.dead_letters += plan.dead
        if not path.sync:
            return command.answer(fields={})
        path.when_durable(
            command,
            result.end_log_offset,
            len(record.body),
            lambda code: peer.send(_answer(command, code)),
        )
        return None

    def _target(self, group: GroupConfig, topic: str, dead: bool) -> tuple[str, int]:
        """The topic, made where it is missing, and the queue whose turn it is."""
        config = self._path.topics.create_internal(topic, 1 if dead else group.retry_queues)
        if not config.permission & Permission.WRITE:
            raise Refused(
                f"the topic[{topic}] sending message is forbidden", ResponseCode.NO_PERMISSION
            )
        self._turn += 1
        return topic, self._turn % max(
            1, min(config.write_queues, 1 if dead else group.retry_queues)
        )


def _answer(command: Command, code: int) -> Command:
    """A copy that may not be on disk is not stored as far as the consumer is concerned: it keeps
    the message.
    """
    if code == ResponseCode.SUCCESS:
        return command.answer(fields={})
    return command.answer(ResponseCode.SYSTEM_ERROR, {}, remark="FLUSH_DISK_TIMEOUT")
