"""Requests that wait for a reply message (protocol-behaviour 25): the asking side.

    request("rpc", b"x") ──message with CORRELATION_ID, REPLY_TO_CLIENT, TTL──> topic
         │ waits                                                                  v
         │            some consumer, which replies (``client.producer.replying``) ──> broker
         └<── PUSH_REPLY_MESSAGE_TO_CLIENT 326, over the connection with the heartbeats <──┘

Decides which reply belongs to which request, and when a request is over. Called by both producers;
the broker's pushes come in by ``ProducerCore.handle_request``. A request is answered by whichever
consumer got it first; further replies are dropped.

Invariants: a pending request ends once: with its reply, ``RequestTimeout``, or what its send
raised. At most ``PENDING_MAX`` wait.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypedDict

from rmq_ray.client.messages.received import MessageExt, restored
from rmq_ray.client.outgoing.callbacks import Callbacks, OwnFuture
from rmq_ray.client.outgoing.send_request import (
    Placement,
    Selector,
    SendRequest,
    checked_request,
    placed,
)
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.client.sending.send_steps import SendSteps
from rmq_ray.clock import Clock, seconds_to
from rmq_ray.codec.record import Record, encode_record
from rmq_ray.errors import BrokerBusy, ClientError, ConsumeError, RequestTimeout
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import Message, SendResult, decode_properties
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import PushReplyHeader

CORRELATION_ID, REPLY_TO_CLIENT, TTL = "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"
SCAN_FIRST_MS, SCAN_MS = 3_000, 1_000
SETTLE_S = 5.0
PENDING_MAX = 65_536
INTRODUCE_MS, INTRODUCE_PARTS = (
    3_000.0,
    4,
)  # a quarter of a request's time for its turn, another one for the answers

Reply = Future[MessageExt]
_making = threading.Lock()


@dataclass(slots=True)
class Pending:
    """One request that waits. ``deadline_ms``: monotonic."""

    topic: str
    deadline_ms: float
    timeout_ms: float
    reply: OwnFuture[MessageExt]
    sent: bool = False


class PendingRequests:
    """The table of one producer. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, Pending] = {}

    def add(
        self,
        correlation_id: str,
        topic: str,
        timeout_ms: float,
        started_ms: float,
        callbacks: Callbacks | None = None,
    ) -> Pending:
        """A request whose time began to run then (monotonic). ``callbacks``: who calls those of its
        reply. ``BrokerBusy`` when too many wait.
        """
        reply: OwnFuture[MessageExt] = OwnFuture(callbacks)
        pending = Pending(topic, started_ms + timeout_ms, timeout_ms, reply)
        with self._lock:
            if len(self._waiting) >= PENDING_MAX:
                raise BrokerBusy(
                    f"{PENDING_MAX} requests wait for their replies; nothing was sent, ask "
                    f"again later",
                    topic,
                )
            self._waiting[correlation_id] = pending
        return pending

    def replied(self, correlation_id: str, message: MessageExt) -> bool:
        """A reply came; False when nobody waits for it any more."""
        pending = self._take(correlation_id)
        if pending is not None:
            pending.reply.set_result(message)
        return pending is not None

    def failed(self, correlation_id: str, error: BaseException) -> None:
        """The request could not be sent."""
        pending = self._take(correlation_id)
        if pending is not None:
            pending.reply.set_exception(error)

    def expire(self) -> None:
        """End those whose time is over."""
        now = self._clock.monotonic_ms()
        for correlation_id, pending in self._waiting.copy().items():
            if pending.deadline_ms <= now and self._take(correlation_id) is not None:
                pending.reply.set_exception(timed_out(pending))

    def close(self) -> None:
        """End all that wait."""
        for correlation_id in list(self._waiting):
            self.failed(
                correlation_id, ClientError("the producer was closed before the reply came")
            )

    def orphan(self, error: ClientError) -> None:
        """In a forked child only: locks may be held by threads that do not exist here."""
        self._lock = threading.Lock()
        waiting, self._waiting = self._waiting, {}
        for pending in waiting.values():
            pending.reply.orphan(error)

    def __len__(self) -> int:
        return len(self._waiting)

    def _take(self, correlation_id: str) -> Pending | None:
        with self._lock:
            return self._waiting.pop(correlation_id, None)


class RequestReply:
    """Requests of one producer core; made by its first request."""

    def __init__(self, core: ProducerCore) -> None:
        self._core = core
        self._pending = PendingRequests(core.clock)
        self._introduced: set[str] = set()
        core.requests[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = self.pushed
        core.closers.append(self._pending.close)
        core.disowners.append(self._pending.orphan)
        core.worker.every("requests", SCAN_MS, self._pending.expire, first_ms=SCAN_FIRST_MS)

    def begin(
        self,
        message: SendRequest,
        timeout_ms: float,
        started_ms: float,
        callbacks: Callbacks | None = None,
    ) -> InFlightRequest:
        """Make ``message`` a request that waits until ``timeout_ms`` after then (monotonic); the
        caller sends it. ``callbacks``: of the reply's future, where users get it.
        """
        correlation_id = str(uuid.uuid4())
        own = {
            CORRELATION_ID: correlation_id,
            REPLY_TO_CLIENT: self._core.instance.client_id,
            TTL: str(int(timeout_ms)),
        }
        message.text += "".join(f"{name}\x01{value}\x02" for name, value in own.items())
        message.special = True
        return InFlightRequest(
            self,
            correlation_id,
            self._pending.add(correlation_id, message.topic, timeout_ms, started_ms, callbacks),
        )

    def abandon(self, correlation_id: str, error: BaseException) -> None:
        """The request was not sent."""
        self._pending.failed(correlation_id, error)

    def wait(self, correlation_id: str, pending: Pending) -> MessageExt:
        """The reply. Raises ``RequestTimeout``, or what the send raised."""
        try:
            return pending.reply.result(self.left_s(pending))
        except TimeoutError:
            self._introduced.discard(pending.topic)
            self._pending.failed(correlation_id, timed_out(pending))
            return pending.reply.result(
                SETTLE_S
            )  # another thread may have taken it a moment ago, and writes its end down just now

    def pushed(self, command: Command, _address: Address) -> Command:
        """326, in a reader thread."""
        header = PushReplyHeader.from_fields(command.fields)
        message = _message(header, command.body_bytes())
        self._pending.replied(
            decode_properties(header.properties or "").get(CORRELATION_ID, ""), message
        )
        return command.answer(ResponseCode.SUCCESS)

    def left_s(self, pending: Pending) -> float:
        """What is left of a request's time."""
        return seconds_to(self._core.clock, pending.deadline_ms)

    def knows(self, topic: str) -> bool:
        """Whether the topic's brokers were told who is here."""
        return topic in self._introduced

    def introduce(self, topics: Iterable[str], timeout_ms: float) -> None:
        """Brokers push replies to clients that they know: tell those of new topics, whose routes
        are known, who is here. Blocks for half of the time.
        """
        part_ms = min(INTRODUCE_MS, timeout_ms / INTRODUCE_PARTS)
        self._core.instance.heartbeat(part_ms / 1000, part_ms)
        self._introduced.update(topics)


def timed_out(pending: Pending) -> RequestTimeout:
    """The error of a request without a reply."""
    state = "was sent, but no reply came" if pending.sent else "was not answered"
    return RequestTimeout(
        f"the request to topic {pending.topic!r} {state} within {pending.timeout_ms:.0f} ms; "
        f"a consumer may still work on it",
        pending.topic,
    )


class AskOptions(TypedDict, total=False):
    """Keywords of ``request``; see ``Producer.send``."""

    tag: str | None
    keys: Sequence[str]
    properties: Mapping[str, str] | None
    queue: MessageQueue | None
    selector: Selector | None
    arg: object
    message_group: str | None


@dataclass(frozen=True, slots=True)
class InFlightRequest:
    """A request on its way."""

    requests: RequestReply
    correlation_id: str
    pending: Pending

    @property
    def reply(self) -> Reply:
        """Its future."""
        return self.pending.reply

    def sent(self, future: Future[SendResult]) -> None:
        """The send has ended: its failure ends the request, its success does not."""
        error = future.exception()
        if error is None:
            self.pending.sent = True
        else:
            self.abandon(error)

    def abandon(self, error: BaseException) -> None:
        """The request was not sent."""
        self.requests.abandon(self.correlation_id, error)

    def answer(self) -> MessageExt:
        """Its reply; raises as ``RequestReply.wait``."""
        return self.requests.wait(self.correlation_id, self.pending)


def request_of(
    topic_or_message: str | Message, body: bytes | None, options: AskOptions, body_bytes_max: int
) -> tuple[SendRequest, Placement | None]:
    """The checked message of a request and where it must go. Raises ``ClientError`` and what
    ``outgoing`` raises.
    """
    if unknown := options.keys() - AskOptions.__annotations__.keys():
        raise ClientError(
            f"a request takes no {', '.join(sorted(unknown))}; it takes timeout, "
            f"{', '.join(AskOptions.__annotations__)}"
        )
    labels = (options.get("tag"), options.get("keys", ()), options.get("properties"))
    message = checked_request(topic_or_message, body, labels, 0, body_bytes_max)
    if message.special:
        raise ClientError(
            "a request cannot be delayed, sent without waiting for the store, or sent to a "
            "retry topic",
            message.topic,
        )
    return message, placed(
        options.get("queue"),
        options.get("selector"),
        options.get("arg"),
        options.get("message_group"),
    )


def ask(
    core: ProducerCore,
    steps: SendSteps | None,
    topic_or_message: str | Message,
    body: bytes | None,
    timeout_ms: float,
    options: AskOptions,
) -> InFlightRequest:
    """Check and send a request; returns when it is handed to the connection. Its time includes what
    that waits for.
    """
    started_ms = core.clock.monotonic_ms()
    message, placement = request_of(topic_or_message, body, options, core.config.body_bytes_max)
    if steps is not None:
        steps.name(message)
    requests = request_reply_of(core)
    if not requests.knows(message.topic):
        core.queues.find(message.topic, timeout_ms)
        requests.introduce((message.topic,), core.left_ms(timeout_ms, started_ms))
    asked = requests.begin(message, timeout_ms, started_ms, core.callbacks)
    left_ms = core.left_ms(timeout_ms, started_ms)
    try:
        if steps is not None:
            future = steps.send_async(core, message, placement, left_ms)
        else:
            if placement is not None:
                left_ms = core.place(message, placement, left_ms)
            future = core.send_async(message, left_ms)
    except BaseException as error:
        asked.abandon(error)
        raise
    future.add_done_callback(asked.sent)
    return asked


def request_reply_of(core: ProducerCore) -> RequestReply:
    """The core's requests, made at their first use."""
    if core.request_reply is None:
        with _making:
            if (
                core.request_reply is None
            ):  # another thread may have made them: replies find only those who wait in one table
                core.request_reply = RequestReply(core)
    found = core.request_reply
    assert isinstance(found, RequestReply)
    return found


def _message(header: PushReplyHeader, body: bytes) -> MessageExt:
    """The reply as any received message. ``ConsumeError`` when its fields make no record."""
    try:
        born, stored = Address.parse(header.born_host), Address.parse(header.store_host)
        record = Record(
            header.topic,
            header.queue_id,
            body,
            header.properties or "",
            header.flag,
            0,
            0,
            header.sys_flag,
            header.born_ms,
            (born.host, born.port),
            header.store_ms,
            (stored.host, stored.port),
            header.reconsume_times or 0,
        )
        return restored(
            encode_record(record),
            (header.topic, "", header.queue_id),
            (0, 0),
            0,
            header.reconsume_times or 0,
        )
    except ValueError as error:
        raise ConsumeError(
            f"a reply with hosts {header.born_host!r} and {header.store_host!r} is no "
            f"message: {error}"
        ) from error
