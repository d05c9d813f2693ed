"""Replies: a message that a consumer sends to one waiting producer (protocol-behaviour 25; remoting
3, 4).

    replier ──324 / 325──> broker ──326──> the client that asked ──answer──> broker ──> replier
                             └── stored in {cluster}_REPLY_TOPIC, for the record (store_replies)

Decides: which connection the client that asked has, and what the replier hears. The reply is pushed
first: its answer is 0 when the client took it, 1 when no such client is connected here or it did
not take it. What is stored is no delivery: nothing waits for its flush.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rmq_ray.codec.record import offset_message_id
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import RemotingError, RmqError, TopicNotFound
from rmq_ray.model.message import decode_properties
from rmq_ray.model.topics import REPLY_SUFFIX
from rmq_ray.ports import Peer
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import PushReplyHeader, SendHeader
from rmq_ray.server.base.responses import Responder
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.groups.membership import GroupMembership
from rmq_ray.server.send.message_writer import MessageWriter, Origin
from rmq_ray.server.send.send_path import SendPath

PUSH_TIMEOUT_MS = 10_000.0
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"

log = logging.getLogger("rmq_ray.server")


@runtime_checkable
class Askable(Protocol):
    """A connection whose client can be asked."""

    def request(
        self,
        command: Command,
        timeout_ms: float,
        callback: Callable[[Command | RemotingError], None],
    ) -> None:
        """See ``ServerPeer.request``."""
        ...


class ReplyHandlers:
    """324, 325."""

    def __init__(
        self,
        runtime: BrokerRuntime,
        path: SendPath,
        writer: MessageWriter,
        members: GroupMembership,
        responder: Responder,
    ) -> None:
        identity = runtime.identity
        self._path = path
        self._writer = writer
        self._members = members
        self._host = runtime.store_host
        self._answer = responder.answer
        self._store_replies = runtime.config.store_replies
        self._own_topic = identity.cluster + REPLY_SUFFIX
        self._extras = {"MSG_REGION": identity.region, "TRACE_ON": "true"}

    def configure(self, config: BrokerConfig) -> None:
        """Settings were changed."""
        self._store_replies = config.store_replies

    def reply(self, command: Command, peer: Peer) -> Command | None:
        """324: long field names."""
        return self._take(command, peer, SendHeader.from_fields(command.fields))

    def reply_v2(self, command: Command, peer: Peer) -> Command | None:
        """325: letters."""
        return self._take(command, peer, SendHeader.from_v2(command.fields))

    def _take(self, command: Command, peer: Peer, header: SendHeader) -> Command | None:
        path = self._path
        if header.topic.endswith(REPLY_SUFFIX) and header.topic != self._own_topic:
            raise TopicNotFound(
                f"replies of this cluster go to {self._own_topic}, not {header.topic:.127}",
                header.topic,
            )
        config = path.gate.admit(header.topic, header.default_topic, header.default_topic_queues)
        queue_id = path.gate.queue(config, header.queue_id)
        properties = decode_properties(header.properties or "")
        asker = self._members.channel(properties.get(REPLY_TO_CLIENT, ""))
        body = command.body_bytes()
        reply = _Reply(header, queue_id, properties, body, (peer.host, peer.port))
        if asker is None or not isinstance(asker, Askable):
            remark = (
                f"push reply message fail, channel of <{properties.get(REPLY_TO_CLIENT)}> not "
                f"found."
            )
            return self._end(command, reply, remark)
        try:
            asker.request(
                self._push(reply),
                PUSH_TIMEOUT_MS,
                lambda outcome: self._pushed(command, peer, reply, outcome),
            )
        except RemotingError as error:
            return self._end(
                command,
                reply,
                f"push reply message to <{properties[REPLY_TO_CLIENT]}> fail: {error}",
            )
        return None

    def _push(self, reply: _Reply) -> Command:
        header, now_ms = reply.header, self._path.clock.now_ms()
        text = f"{PUSH_REPLY_TIME}\x01{now_ms}\x02{header.properties or ''}"
        push = PushReplyHeader(
            header.producer_group,
            header.topic,
            header.default_topic,
            header.default_topic_queues,
            reply.queue_id,
            header.sys_flag,
            header.born_ms,
            header.flag,
            _text(reply.sender),
            _text(self._host),
            now_ms,
            text,
            header.reconsume_times or 0,
            header.unit_mode or False,
        )
        return Command(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields=push.to_fields(), body=reply.body
        )

    def _pushed(
        self, command: Command, peer: Peer, reply: _Reply, outcome: Command | RemotingError
    ) -> None:
        remark = None
        if isinstance(outcome, RemotingError):
            remark = f"push reply message to <{reply.properties[REPLY_TO_CLIENT]}> fail: {outcome}"
        elif outcome.code != ResponseCode.SUCCESS:
            asker = reply.properties[REPLY_TO_CLIENT]
            remark = f"push reply message to <{asker}> fail: {outcome.remark}"
        self._answer(command, peer, lambda: self._end(command, reply, remark))

    def _end(self, command: Command, reply: _Reply, remark: str | None) -> Command:
        """Store the reply if that is wanted, and tell the replier: ``remark`` None = it was
        delivered.
        """
        counters = self._path.counters
        fields = {**self._extras, "msgId": "", "queueId": str(reply.queue_id), "queueOffset": "0"}
        if self._store_replies:
            origin = Origin(
                reply.header.born_ms, reply.sender, reply.header.flag, reply.header.sys_flag
            )
            try:
                result = self._writer.put(
                    reply.header.topic, reply.queue_id, reply.body, reply.properties, origin
                )
                fields |= {
                    "msgId": offset_message_id(*self._host, result.base_log_offset),
                    "queueOffset": str(result.base_queue_offset),
                }
            except RmqError as error:
                log.warning(
                    "a reply to %s was not stored: %s", reply.properties.get(REPLY_TO_CLIENT), error
                )
        if remark is None:
            counters.replies += 1
            return command.answer(ResponseCode.SUCCESS, fields)
        counters.replies_failed += 1
        return command.answer(ResponseCode.SYSTEM_ERROR, fields, remark=remark)


@dataclass(frozen=True, slots=True)
class _Reply:
    """One reply while its push is out."""

    header: SendHeader
    queue_id: int
    properties: dict[str, str]
    body: bytes
    sender: tuple[str, int]


def _text(host: tuple[str, int]) -> str:
    return f"{host[0]}:{host[1]}"
