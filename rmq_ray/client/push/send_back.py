"""A message that the listener could not process goes back to its broker (protocol-behaviour 15,
17).

    CONSUMER_SEND_MSG_BACK (36) to the broker that stores it
      │     the broker copies it by its log offset; many in one request (BUNDLE 20060)
      └─ refused or unreachable: SEND_MESSAGE_V2 (310) into %RETRY%group, on any broker that has
            the topic

Decides which of the two ways is taken and what the copy of the second one carries. The broker
decides delay and dead letter: both ways tell it how often the message failed and how often it may.
``why`` in both: what the
listener failed with, for whoever looks at the dead letter (``RMQ_FAILED_WITH``). Does not keep
messages: False means that the caller does.

Invariants: True only when a broker said that it stored the copy. A lost answer may leave one copy
more for each request that was tried.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar

import msgpack

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.messages.listener import DEAD_LETTER_LEVEL
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.clock import Clock
from rmq_ray.errors import ConnectionLost, RemotingError, RequestTimeout
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import (
    CONSUME_START_TIME,
    DELAY,
    MAX_OFFSET,
    MAX_RECONSUME_TIMES,
    MIN_OFFSET,
    ORIGIN_MESSAGE_ID,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TRANSACTION_PREPARED,
    SysFlag,
    encode_properties,
)
from rmq_ray.model.topics import CLIENT_INNER_GROUP, retry_topic
from rmq_ray.protocol.redelivery import failure_text, with_failure
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import SendBackHeader, SendHeader

TIMEOUT_MS = 5_000
BASE_DELAY_LEVEL = 3  # as the broker's own: 3 + how often it failed
BUNDLE_MAX = 256  # messages in one request
BROKERS_MAX = 3  # tried for the copy of our own
INT32_MAX = (1 << 31) - 1

log = logging.getLogger("rmq_ray.client.push.send_back")
discarded = logging.getLogger("rmq_ray.client.consume")


class RetrySender:
    """Of one consumer group. Blocks the calling (consuming) thread for up to 5 s a try."""

    stores: ClassVar[bool] = True

    def __init__(self, client: ClientInstance, group: str, retries_max: int, clock: Clock) -> None:
        self._client = client
        self._group = group
        self._retries_max = retries_max
        self._clock = clock

    def send_back(self, message: MessageExt, delay_level: int, why: str = "") -> bool:
        """True when a broker keeps the message for its next delivery (or as dead letter:
        ``delay_level`` -1).
        """
        if self._ask_broker(message, delay_level, why):
            return True
        return self._write_copy(message, delay_level, why)

    def send_back_all(
        self, messages: Sequence[MessageExt], delay_level: int, why: str = ""
    ) -> list[MessageExt]:
        """The same for many of one queue, in bundles of requests; returns those that no broker
        keeps.
        """
        kept: list[MessageExt] = []
        for start in range(0, len(messages), BUNDLE_MAX):  # ends: a bundle each round
            some = messages[start : start + BUNDLE_MAX]
            alone = len(some) == 1
            done = [False] if alone else self._ask_for_all(some, delay_level, why)
            if done is None:
                kept += some  # perhaps a broker keeps them: again later, at most once more each
            else:
                kept += [
                    message
                    for message, taken in zip(some, done, strict=True)
                    if not taken and not self.send_back(message, delay_level, why)
                ]
        return kept

    def dead_letter(self, message: MessageExt, why: str = "") -> bool:
        """True when a broker keeps the message as dead letter. The copy comes first: it tells how
        often the message failed here.
        """
        return self._write_copy(message, DEAD_LETTER_LEVEL, why) or self._ask_broker(
            message, DEAD_LETTER_LEVEL, why
        )

    def _fields(self, message: MessageExt, delay_level: int, why: str) -> dict[str, str]:
        header = SendBackHeader(
            message.log_offset,
            self._group,
            delay_level,
            message.message_id,
            message.topic,
            False,
            self._retries_max,
            failure_text(why) or None,
            self._client.client_id if why else None,
        )
        return header.to_fields()

    def _ask_broker(self, message: MessageExt, delay_level: int, why: str) -> bool:
        fields = self._fields(message, delay_level, why)
        command = Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields=fields)
        return self._accepted(message, message.queue.broker_name, command)

    def _ask_for_all(
        self, messages: Sequence[MessageExt], delay_level: int, why: str
    ) -> list[bool] | None:
        """One request for messages of one broker: which of them it keeps; the others are asked for
        by themselves. None: no answer, nobody knows.
        """
        name, nothing = messages[0].queue.broker_name, [False] * len(messages)
        address = self._client.broker_address(name)
        if address is None:
            return nothing
        parts = [
            [int(RequestCode.CONSUMER_SEND_MSG_BACK), self._fields(message, delay_level, why), b""]
            for message in messages
        ]
        try:
            answer = self._client.invoke(
                address, Command(RequestCode.BUNDLE, body=msgpack.packb(parts)), TIMEOUT_MS
            )
            codes = (
                [int(code) for code, _, _ in msgpack.unpackb(answer.body_bytes())]
                if answer.code == ResponseCode.SUCCESS
                else []
            )
        except (ConnectionLost, RequestTimeout) as error:
            log.warning("%d messages were perhaps sent back to %s: %s", len(messages), name, error)
            return None
        except (RemotingError, ValueError, TypeError) as error:
            log.warning("%d messages not sent back to %s together: %s", len(messages), name, error)
            return nothing
        return (
            [code == ResponseCode.SUCCESS for code in codes]
            if len(codes) == len(messages)
            else nothing
        )

    def _write_copy(self, message: MessageExt, delay_level: int, why: str) -> bool:
        """Other brokers first: the one that stores the message has just refused."""
        topic = retry_topic(self._group)
        info = self._client.routes.publish(topic)
        if info is None or not info.queues:
            self._client.refresh_route_soon(topic)
            return False
        by_broker = {queue.broker_name: queue for queue in reversed(info.queues)}
        names = sorted(by_broker, key=lambda name: (name == message.queue.broker_name, name))[
            :BROKERS_MAX
        ]
        return any(
            self._accepted(message, name, self._copy(message, by_broker[name], delay_level, why))
            for name in names
        )

    def _copy(
        self, message: MessageExt, queue: MessageQueue, delay_level: int, why: str
    ) -> Command:
        # of this count the broker allows fewer than that, and makes a dead letter of all others
        failed, limit = message.reconsume_times + 1, min(self._retries_max + 1, INT32_MAX)
        if delay_level == DEAD_LETTER_LEVEL:
            failed, limit = max(failed, self._retries_max), self._retries_max
        properties = dict(message.all_properties)
        for name in (
            MIN_OFFSET,
            MAX_OFFSET,
            CONSUME_START_TIME,
            TRANSACTION_PREPARED,
            RECONSUME_TIME,
            MAX_RECONSUME_TIMES,
        ):
            properties.pop(name, None)
        properties[RETRY_TOPIC] = message.topic
        properties.setdefault(ORIGIN_MESSAGE_ID, message.message_id)
        properties[DELAY] = str(
            delay_level if delay_level > 0 else BASE_DELAY_LEVEL + message.reconsume_times
        )
        properties = with_failure(properties, why, self._client.client_id)
        header = SendHeader(
            producer_group=CLIENT_INNER_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            sys_flag=message.sys_flag
            & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | SysFlag.TRANSACTION_MASK),
            born_ms=self._clock.now_ms(),
            flag=message.flag,
            properties=encode_properties(properties),
            reconsume_times=failed,
            unit_mode=False,
            batch=False,
            max_reconsume_times=limit,
            broker_name=queue.broker_name,
        )
        return Command(RequestCode.SEND_MESSAGE_V2, fields=header.to_v2(), body=message.stored_body)

    def _accepted(self, message: MessageExt, broker_name: str, command: Command) -> bool:
        address = self._client.broker_address(broker_name)
        if address is None:
            return False
        try:
            answer = self._client.invoke(address, command, TIMEOUT_MS)
        except RemotingError as error:
            log.warning(
                "message %s not sent back (%d) to %s: %s",
                message.message_id,
                command.code,
                broker_name,
                error,
            )
            return False
        if answer.code != ResponseCode.SUCCESS:
            log.warning(
                "message %s not sent back (%d) to %s: code %d %s",
                message.message_id,
                command.code,
                broker_name,
                answer.code,
                answer.remark or "",
            )
        return answer.code == ResponseCode.SUCCESS


class FailedDiscarder:
    """What becomes of messages that a broadcasting consumer's listener could not process: nothing
    (protocol-behaviour 15). Every member of the group has the message; sent back, it would come to
    one of them only. So it is dropped, with a line in the log.
    """

    stores: ClassVar[bool] = False

    def __init__(self, group: str) -> None:
        self._group = group

    def send_back(self, message: MessageExt, delay_level: int, why: str = "") -> bool:
        """The message is done with; always true."""
        place = f"{message.queue}, offset {message.queue_offset}"
        discarded.warning(
            "message %s (%s) failed in broadcasting group %s and is dropped: nobody gets it again",
            message.message_id,
            place,
            self._group,
        )
        return True

    def send_back_all(
        self, messages: Sequence[MessageExt], delay_level: int, why: str = ""
    ) -> list[MessageExt]:
        """None is kept."""
        for message in messages:
            self.send_back(message, delay_level)
        return []
