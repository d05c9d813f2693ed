"""Message trace as hooks of producers and consumers: each message's Pub, SubBefore, SubAfter and
EndTransaction (protocol-behaviour 25).

    Producer(trace=True)                      PushConsumer(..., hooks=[ConsumeTrace()])

Decides which sends and which calls of a listener make which records. Does not send them
(``client.interceptors.trace_dispatcher``). A send is traced when a broker answered it: one that failed
on its way has no message to trace, and one-way sends have no answer. A broker that traces nothing
of its own sees trace messages as any others.

Invariant: a trace message is not traced.
"""

from __future__ import annotations

import threading
import uuid
from typing import Any

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.interceptors.consume_hooks import ConsumeHook, ConsumeHookContext, ConsumeStatus
from rmq_ray.client.interceptors.send_hooks import HALF, SendContext, TransactionEnd
from rmq_ray.client.interceptors.trace_dispatcher import TraceDispatcher
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.clock import SYSTEM_CLOCK, Clock
from rmq_ray.config import ProducerConfig
from rmq_ray.model.message import DELAY, KEYS, TAGS, TIMER_DELAY_MS, TIMER_DELIVER_MS, SendStatus
from rmq_ray.model.namespaces import without_namespace
from rmq_ray.model.topics import TRACE_TOPIC
from rmq_ray.model.trace import (
    REGION,
    EndTransaction,
    Pub,
    SubAfter,
    SubBefore,
    TraceCode,
    TraceMessageType,
)
from rmq_ray.protocol.transaction import LocalTransactionState

_CODES = {
    ConsumeStatus.SUCCESS: TraceCode.SUCCESS,
    ConsumeStatus.TIME_OUT: TraceCode.TIME_OUT,
    ConsumeStatus.EXCEPTION: TraceCode.EXCEPTION,
    ConsumeStatus.FAILED: TraceCode.FAILED,
}
_REQUEST = "rmq.trace"
_DELAYED = frozenset((DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS))
_STATES = {LocalTransactionState.UNKNOWN: "UNKNOW"}
"""As Java spells it, whose readers accept nothing else."""


class SendTrace:
    """The hook of a producer with ``trace=True``."""

    def __init__(self, instance: ClientInstance, config: ProducerConfig) -> None:
        self._instance = instance
        self._config = config
        self._topic = config.trace_topic
        self.dispatcher = TraceDispatcher(instance, self._topic)
        self.dispatcher.start()

    def before(self, ctx: SendContext) -> None:
        """Nothing is known yet."""

    def after(self, ctx: SendContext) -> None:
        """The broker answered: one record for each message of the frame."""
        result = ctx.result
        if result is None or ctx.topic == self._topic:
            return
        namespace = self._config.namespace
        topic, group = (
            without_namespace(namespace, ctx.topic),
            without_namespace(namespace, ctx.group),
        )
        address = self._instance.broker_address(result.queue.broker_name)
        records: list[Pub] = []
        for message_id, (properties, body_bytes) in zip(
            result.message_id.split(","), ctx.each(), strict=False
        ):
            kind = (
                TraceMessageType.HALF
                if HALF in ctx.carried
                else TraceMessageType.NORMAL
                if _DELAYED.isdisjoint(properties)
                else TraceMessageType.DELAY
            )
            records.append(
                Pub(
                    ctx.started_ms,
                    REGION,
                    group,
                    topic,
                    message_id,
                    properties.get(TAGS, ""),
                    properties.get(KEYS, ""),
                    str(address or ""),
                    body_bytes,
                    round(ctx.cost_ms),
                    kind,
                    result.offset_message_id,
                    result.status is SendStatus.SEND_OK,
                )
            )
        self.dispatcher.add(*records)

    def ended(self, end: TransactionEnd) -> None:
        """A transaction is being ended by this process; see ``TransactionEngine.watch``."""
        namespace = self._config.namespace
        topic, group = (
            without_namespace(namespace, end.topic),
            without_namespace(namespace, self._config.group),
        )
        self.dispatcher.add(
            EndTransaction(
                self._instance.clock.now_ms(),
                REGION,
                group,
                topic,
                end.key,
                end.tag,
                end.keys,
                str(end.address or ""),
                TraceMessageType.COMMIT,
                end.key,
                _STATES.get(end.state, end.state.name),
                end.from_check,
            )
        )


class ConsumeTrace(ConsumeHook):
    """A hook for consumers: ``hooks=[ConsumeTrace()]``. It sends over the consumer's own client,
    found by the broker that messages come from.
    """

    def __init__(self, topic: str = TRACE_TOPIC, clock: Clock = SYSTEM_CLOCK) -> None:
        self._topic = topic
        self._clock = clock
        self._lock = threading.Lock()
        self._dispatchers: dict[str, TraceDispatcher] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return ConsumeTrace, (self._topic,)

    def before(self, context: ConsumeHookContext) -> None:
        """Before the listener: a SubBefore for each message."""
        dispatcher, messages = self._dispatcher(context), _messages(context)
        if dispatcher is None or not messages:
            return
        request_id = uuid.uuid4().hex.upper()
        context.props[_REQUEST] = (dispatcher, request_id)
        now, group = self._clock.now_ms(), context.group
        dispatcher.add(
            *(
                SubBefore(
                    now,
                    REGION,
                    group,
                    request_id,
                    each.message_id,
                    each.reconsume_times,
                    " ".join(each.keys),
                )
                for each in messages
            )
        )

    def after(self, context: ConsumeHookContext) -> None:
        """After it: a SubAfter for each message; the call's cost is shared by its messages."""
        found = context.props.get(_REQUEST)
        if found is None or context.status is None:
            return
        dispatcher, request_id = found
        messages, now = _messages(context), self._clock.now_ms()
        cost, code, success, group = (
            round(context.duration_ms / len(messages)),
            int(_CODES[context.status]),
            context.success,
            context.group,
        )
        dispatcher.add(
            *(
                SubAfter(
                    request_id,
                    each.message_id,
                    cost,
                    success,
                    " ".join(each.keys),
                    code,
                    now,
                    group,
                )
                for each in messages
            )
        )

    def close(self) -> None:
        """Send what is queued and end; a consumer does not call this: its threads are daemons."""
        for dispatcher in self._dispatchers.values():
            dispatcher.close()

    def _dispatcher(self, context: ConsumeHookContext) -> TraceDispatcher | None:
        if context.queue.topic == self._topic:
            return None
        found = self._dispatchers.get(context.group)
        if found is not None and found.alive:
            return found
        with self._lock:
            found = self._dispatchers.get(context.group)
            client = _client(context)
            if client is not None and (found is None or not found.alive):
                found = self._dispatchers[context.group] = TraceDispatcher(client, self._topic)
                found.start()
        return found


def _messages(context: ConsumeHookContext) -> list[MessageExt]:
    """The messages of the call; none for a call that got an Arrow batch."""
    return (
        [message for message in context.messages if isinstance(message, MessageExt)]
        if isinstance(context.messages, list)
        else []
    )


def _client(context: ConsumeHookContext) -> ClientInstance | None:
    """The running client of this process that has the group's consumer."""
    return next(
        (
            client
            for client in ClientInstance.running()
            if client.consumer(context.group) is not None
        ),
        None,
    )
