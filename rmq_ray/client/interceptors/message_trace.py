"""Message trace: hooks of producers and consumers that make Pub, SubBefore, SubAfter and
EndTransaction of each message, and what sends them (protocol-behaviour 25).

    Producer(trace=True)                      PushConsumer(..., hooks=[ConsumeTrace()])

    hooks ──add──> queue of 1,024 calls ──thread, every 100 ms──> SEND_MESSAGE_V2 to the trace topic

Decides which sends and which calls of a listener make which records, when records leave and what is
dropped. A send is traced when a broker answered it: one that failed on its way has no message to
trace, and one-way sends have no answer. A broker that traces nothing of its own sees trace messages
as any others. A queue that is full, of calls or of their records, drops the newest, a message that
no broker takes is dropped after one repeat; both are counted. The dispatcher is closed by the
client that started it, which waits half a second at most for what is queued; its thread ends with
its client in any case.

Invariants: a trace message is not traced; tracing never waits for anything in the caller's thread
and never fails a send.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import uuid
from typing import Any

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.managed import ServiceState
from rmq_ray.client.interceptors.consume_hooks import ConsumeHook, ConsumeHookContext, ConsumeStatus
from rmq_ray.client.interceptors.send_hooks import HALF, SendContext, TransactionEnd
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.clock import SYSTEM_CLOCK, Clock
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import RmqError
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import (
    DELAY,
    KEYS,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    WAIT,
    SendStatus,
    encode_properties,
)
from rmq_ray.model.namespaces import without_namespace
from rmq_ray.model.topics import DEFAULT_TOPIC, TRACE_TOPIC
from rmq_ray.model.trace import (
    REGION,
    EndTransaction,
    Pub,
    SubAfter,
    SubBefore,
    Trace,
    TraceCode,
    TraceMessageType,
    encode,
    search_keys,
)
from rmq_ray.protocol.retry import STATUS_OF_CODE
from rmq_ray.protocol.routing.queue_selection import position
from rmq_ray.protocol.transaction import LocalTransactionState
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import SendHeader

QUEUE_MAX = 1_024  # calls: sends, batches, calls of a listener
RECORDS_MAX = 65_536  # of all of them; a single call may have more
BATCH_MAX = 100
POLL_S = 0.1
STOP_S = 0.5
MESSAGE_BYTES_MAX = 118_000  # 128,000 less 10,000 for properties
KEYS_CHARS_MAX = 16_000
SEND_TIMEOUT_MS = 5_000.0
ATTEMPTS = 2
GROUP = "_INNER_TRACE_PRODUCER"
WARN_EVERY = 1_000

log = logging.getLogger("rmq_ray.client")
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


class TraceDispatcher:
    """Sends records beside the work that they are about. ``dropped``: what nobody will see."""

    def __init__(self, instance: ClientInstance, topic: str) -> None:
        self._instance = instance
        self._topic = topic
        self._queue: queue.Queue[tuple[Trace, ...]] = queue.Queue(QUEUE_MAX)
        self._lock = threading.Lock()
        self._records = 0
        self._turn = itertools.count().__next__
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.sent = 0
        self.dropped = 0

    @property
    def alive(self) -> bool:
        """False when its client is closed."""
        return self._instance.state is ServiceState.RUNNING

    def start(self) -> None:
        """Start the thread. A thread that cannot be started is only warned of: traces are dropped
        then.
        """
        thread = threading.Thread(
            target=self._run, name=f"rmq-trace-{self._instance.client_id}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            log.warning("message trace could not be started, nothing is traced: %s", error)
            return
        self._thread = thread

    def add(self, *records: Trace) -> bool:
        """Queue the records of one call; False when they were dropped. Never blocks."""
        if self._thread is None or self._stop.is_set():
            self._drop(len(records), "tracing does not run")
            return False
        with self._lock:
            fits = not self._records or self._records + len(records) <= RECORDS_MAX
            if fits and not self._queue.full():
                self._queue.put_nowait(records)
                self._records += len(records)
                return True
        self._drop(len(records), f"{QUEUE_MAX} calls or {RECORDS_MAX} records wait already")
        return False

    def close(self) -> None:
        """Send what is queued, within half a second; later records are dropped."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_S)

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            last = self._stop.is_set()
            records = self._take()
            if records:
                self._send_all(records)
            elif last:
                return
            elif not self.alive:
                self._stop.set()

    def _take(self) -> list[Trace]:
        """A hundred records or a few more; waits 100 ms for the first when none is there."""
        taken: list[Trace] = []
        try:
            taken += self._queue.get(timeout=0.0001 if self._stop.is_set() else POLL_S)
            while len(taken) < BATCH_MAX:
                taken += self._queue.get_nowait()
        except queue.Empty:
            pass
        with self._lock:
            self._records -= len(taken)
        return taken

    def _send_all(self, records: list[Trace]) -> None:
        chunk: list[Trace] = []
        texts: list[str] = []
        size = keys = 0
        for record in records:
            text = encode(record)
            length, own_keys = len(text.encode()), len(record.message_id) + len(record.keys) + 2
            if chunk and (size + length > MESSAGE_BYTES_MAX or keys + own_keys > KEYS_CHARS_MAX):
                self._send(chunk, "".join(texts))
                chunk, texts, size, keys = [], [], 0, 0
            chunk.append(record)
            texts.append(text)
            size, keys = size + length, keys + own_keys
        self._send(chunk, "".join(texts))

    def _send(self, records: list[Trace], body: str) -> None:
        properties = encode_properties(
            {KEYS: " ".join(search_keys(records))[:KEYS_CHARS_MAX], WAIT: "false"}
        )
        failure = ""
        for _ in range(ATTEMPTS):
            try:
                target, address = self._target()
                answer = self._instance.invoke(
                    address, self._command(target, body.encode(), properties), SEND_TIMEOUT_MS
                )
            except RmqError as error:
                failure = str(error)
                continue
            if answer.code in STATUS_OF_CODE:
                self.sent += len(records)
                return
            failure = answer.remark or f"code {answer.code}"
        self._drop(len(records), failure)

    def _target(self) -> tuple[MessageQueue, Address]:
        queues = self._instance.routes.find_publish(self._topic).queues
        target = queues[position(self._turn(), len(queues))]
        address = self._instance.broker_address(target.broker_name)
        if address is None:
            raise RmqError(f"no address of broker {target.broker_name!r} is known")
        return target, address

    def _command(self, target: MessageQueue, body: bytes, properties: str) -> Command:
        header = SendHeader(
            producer_group=GROUP,
            topic=self._topic,
            default_topic=DEFAULT_TOPIC,
            queue_id=target.queue_id,
            sys_flag=0,
            flag=0,
            born_ms=self._instance.clock.now_ms(),
            properties=properties,
            broker_name=target.broker_name,
        )
        return Command(RequestCode.SEND_MESSAGE_V2, fields=header.to_v2(), body=body)

    def _drop(self, count: int, reason: str) -> None:
        before, self.dropped = self.dropped, self.dropped + count
        if before // WARN_EVERY != self.dropped // WARN_EVERY or not before:
            log.warning("%d trace records were dropped so far: %s", self.dropped, reason)


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
