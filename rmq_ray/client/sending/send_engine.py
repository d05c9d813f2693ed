"""The send engine: one message or frame on its way, from its first attempt to its result.

    in_flight ──attempt──> ended(outcome) ──None──> stored, or error: it is over
                   ^            │ Decision
                   └── follow ──┘  (head elsewhere if so decided, after a pause)

``InFlightSend`` is the whole state of one payload: where it is headed, where it was, what its
attempts came to. ``protocol.retry`` decides what follows a failure; this module decides what an
answer means, when a payload that is stored less safely than asked for is sent elsewhere, and what
error is told in the end. Who waits is the driver's: a thread in ``SendEngine.send``, nobody in
``async_sender`` (callbacks), a task in ``loop_sender``.

Invariants: the common case, an answer to the first attempt of a thread that waits, builds no retry
state; a payload returns to a broker name that may hold it only with the queue it had there; a send
that may be stored never ends as a definite failure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.outgoing.confirming import confirmed, unconfirmed
from rmq_ray.client.outgoing.queue_choice import QueueChoice, RoundRobin
from rmq_ray.client.outgoing.send_payload import FramePayload, StoredAt
from rmq_ray.codec.key_range import KeyRange
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import (
    BrokerUnreachable,
    ConnectFailed,
    FrameTooLarge,
    HandshakeFailed,
    MalformedFrame,
    RemotingError,
    SendError,
    SendUnconfirmed,
    SendUnknown,
    TooManyRequests,
)
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import SendResult, SendStatus
from rmq_ray.model.metrics import Family, Histogram, Sample
from rmq_ray.model.namespaces import queue_without_namespace
from rmq_ray.protocol.retry import (
    MESSAGE_ILLEGAL,
    NOT_AUTHORIZED,
    STATUS_OF_CODE,
    SYSTEM_BUSY,
    Decision,
    Failure,
    SendAttempts,
    Step,
)
from rmq_ray.remoting.wire.frame import Command

NO_FIELDS: dict[str, str] = {}
SLICE_MS = 25.0  # of a pause, after which the route is looked at
# of its time-out must be left to a message that joins others, and of a frame's to be joined
LEFT_TO_SHARE = 0.9
SEND_MS = (1, 5, 10, 20, 50, 200, 500)
"""RocketMQ 5's buckets of ``rocketmq_send_cost_time``."""
TOPICS_MAX = 500
OTHERS = "(others)"
Outcome = Command | RemotingError
"""How an attempt ended: an answer, or what the connection met."""


class TopicSends:
    """Of one topic: messages, and frames by their time from call to end, failed ones apart."""

    __slots__ = ("failed", "failed_frames", "frames", "repeats", "sent")

    def __init__(self) -> None:
        self.sent = self.failed = self.repeats = 0
        self.frames, self.failed_frames = Histogram(SEND_MS), Histogram(SEND_MS)


class SendCounters:
    """What a producer tells of its sends in numbers (docs/metrics.md): counted once a frame, when
    it has ended. Topics beyond ``TOPICS_MAX`` count as one. Of one process. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, TopicSends] = {}

    def ended(
        self,
        topic: str,
        messages: int,
        took_ms: float,
        *,
        failed: bool = False,
        repeats: int = 0,
    ) -> None:
        """A frame has ended after so many repeats."""
        with self._lock:
            found = self._topics.get(topic) or self._begin(topic)
            found.repeats += repeats
            if failed:
                found.failed += messages
                found.failed_frames.add(took_ms)
            else:
                found.sent += messages
                found.frames.add(took_ms)

    def families(self, frames_waiting: int, bytes_waiting: int) -> list[Family]:
        """As Prometheus means them, without labels of the producer; with what waits now."""
        with self._lock:
            messages, times, repeats = [], [], []
            for topic, found in self._topics.items():
                good = {"topic": topic, "invocation_status": "success"}
                bad = {"topic": topic, "invocation_status": "failure"}
                messages.append(Sample(good, float(found.sent)))
                messages.append(Sample(bad, float(found.failed)))
                times += found.frames.samples(good)
                times += found.failed_frames.samples(bad)
                repeats.append(Sample({"topic": topic}, float(found.repeats)))
        return [
            Family(
                "rmq_ray_producer_messages_total",
                "counter",
                "Messages whose send has ended.",
                tuple(messages),
            ),
            Family(
                "rocketmq_send_cost_time",
                "histogram",
                "From a send, or its frame, to its end, ms.",
                tuple(times),
            ),
            Family(
                "rmq_ray_producer_repeats_total",
                "counter",
                "Frames that were sent again.",
                tuple(repeats),
            ),
            Family(
                "rmq_ray_producer_frames_waiting",
                "gauge",
                "Asynchronous frames that have not ended.",
                (Sample({}, float(frames_waiting)),),
            ),
            Family(
                "rmq_ray_producer_bytes_waiting",
                "gauge",
                "Bytes of their messages.",
                (Sample({}, float(bytes_waiting)),),
            ),
        ]

    def _begin(self, topic: str) -> TopicSends:
        if len(self._topics) >= TOPICS_MAX:
            topic = OTHERS
        return self._topics.setdefault(topic, TopicSends())


class InFlightSend:
    """See the module. Used by one thread or task at a time."""

    __slots__ = (
        "_engine",
        "_failure",
        "_tried",
        "_unreadable",
        "address",
        "attempts",
        "brokers_sent",
        "payload",
        "pinned",
        "queue",
        "stored",
    )

    def __init__(
        self,
        engine: SendEngine,
        payload: FramePayload,
        queue: MessageQueue,
        pinned: bool,
        attempts: SendAttempts,
    ) -> None:
        self._engine = engine
        self.payload = payload
        self.queue = queue
        self.pinned = pinned
        self.attempts = attempts
        self.address: Address | None = None
        """Where the last attempt went, or the next one goes when it goes elsewhere."""
        self.brokers_sent = [queue.broker_name]
        self.stored: StoredAt | None = None
        """What the last answer that said stored told."""
        self._tried = {queue.broker_name: queue}
        self._failure: tuple[Failure, int, str] | None = None
        self._unreadable: SendUnknown | None = None

    @property
    def attempted(self) -> bool:
        """Whether an attempt has failed."""
        return self._failure is not None

    def start(self, timeout_ms: float, callback: Callable[[Outcome], None]) -> None:
        """Begin one attempt; the outcome goes to ``callback``, at once (in this thread) when
        nothing could be sent.
        """
        engine, name = self._engine, self.queue.broker_name
        address = self.address = engine.routes.broker_address(name)
        callback = engine.choice.watching(name, callback)
        try:
            if address is None:
                raise _no_address(name)
            engine.link.invoke_async(
                address, self.payload.command(self.queue), timeout_ms, callback
            )
        except RemotingError as error:
            callback(error)

    def ended(self, outcome: Outcome, now_ms: float) -> Decision | None:
        """An attempt has ended. What follows; None: nothing, it is stored or ``finish`` says why
        not.
        """
        if isinstance(outcome, Command) and outcome.code in STATUS_OF_CODE:
            assert self.address is not None
            try:
                self.stored = self._engine.stored_at(
                    self.payload, self.queue, outcome, self.address
                )
            except SendUnknown as error:
                self._unreadable = error
                return None
            if self.stored.status is SendStatus.SEND_OK or not self._engine.not_ok_elsewhere:
                return None
            decision = self.attempts.not_stored(now_ms)
        else:
            self._failure = classify(outcome)
            decision = self.attempts.failed(self._failure[0], self._failure[1], now_ms)
            if self._failure[0] is Failure.NOT_SENT and decision.step is not Step.ELSEWHERE:
                why = self._engine.instance.stopped.why((self.queue.broker_name,))
                if why is not None:  # it is not back before somebody starts it
                    self._failure = (*self._failure[:2], why)
                    return None
        return None if decision.step is Step.GIVE_UP else decision

    def unconfirmed(self) -> SendUnconfirmed | None:
        """The error of what is stored less safely than asked for, where that is to be raised."""
        if self.stored is None or not self._engine.raises:
            return None
        return unconfirmed(frame_result(self.payload, self.stored))

    def follow(self, decision: Decision) -> None:
        """Prepare the next attempt: head elsewhere if so decided, and have the route looked at
        again.
        """
        self._engine.instance.watch_route(self.payload.topic)
        if decision.step is Step.ELSEWHERE:
            self._move()
        self.brokers_sent.append(self.queue.broker_name)

    def finish(self, now_ms: float) -> SendError | None:
        """It is over: count it. Returns the typed error of giving up; None: it is stored, perhaps
        less safely than asked for. What never got to an attempt was held up on this side.
        """
        is_stored = self._unreadable is None and self.stored is not None
        self._engine.counters.ended(
            self.payload.topic,
            len(self.payload.message_ids),
            now_ms - self.attempts.started_ms,
            failed=not is_stored,
            repeats=len(self.brokers_sent) - 1,
        )
        if self._unreadable is not None or self.stored is not None:
            return self._unreadable
        failure, code, reason = self._failure or (
            Failure.REFUSED,
            SYSTEM_BUSY,
            "waited behind other frames until the time-out",
        )
        return self.attempts.error(
            failure, code, reason, self.payload.topic, self.brokers_sent, now_ms
        )

    def place(self, now_ms: float) -> StoredAt:
        """``finish``; where it is stored, or its error raised."""
        error = self.finish(now_ms)
        if error is not None:
            raise error
        assert self.stored is not None
        return self.stored

    def _move(self) -> None:
        """Head for another broker, as long as the route shows one; one that was tried before gets
        the payload for the same queue as then. ``address`` is where that one is known to be.
        """
        engine, topic, left = self._engine, self.payload.topic, self.queue.broker_name
        info = engine.routes.publish(topic)
        if info is not None and info.queues:
            queue = engine.choice.next(info.queues, engine.round_robin.of(topic), left)
            self.queue = self._tried.setdefault(queue.broker_name, queue)
            if queue.broker_name != left:
                self.address = engine.routes.broker_address(queue.broker_name)


class SendEngine:
    """What sends of one producer in one process share. Thread-safe."""

    def __init__(
        self,
        instance: ClientInstance,
        config: ProducerConfig,
        round_robin: RoundRobin,
        choice: QueueChoice,
        counters: SendCounters | None = None,
    ) -> None:
        self.instance = instance
        self.link = instance.link
        self.routes = instance.routes
        self.config = config
        self.clock = instance.clock
        self.choice = choice
        self.round_robin = round_robin
        self.not_ok_elsewhere = config.retry_another_broker_when_not_store_ok
        self.raises = config.raise_on_status
        """Whether a status below SEND_OK is raised: ``client.outgoing.confirming``."""
        self.counters = SendCounters() if counters is None else counters

    def of_halves(self) -> SendEngine:
        """The same, but to one broker only once it may have the payload, and any status is
        returned: what is stored is still to be ended.
        """
        config = self.config.but(idempotent=True, raise_on_status=False)
        return SendEngine(self.instance, config, self.round_robin, self.choice, self.counters)

    def brokers(self, queue: MessageQueue, pinned: bool) -> int:
        """How many brokers a send and its retries may go to: that of ``queue``, which the route
        may show no more, and others.
        """
        info = self.routes.publish(queue.topic)
        if pinned or info is None:
            return 1
        return len({queue.broker_name, *info.brokers})

    def in_flight(
        self,
        payload: FramePayload,
        queue: MessageQueue,
        pinned: bool,
        timeout_ms: float,
        started_ms: float,
        *,
        codes_retried: bool = True,
    ) -> InFlightSend:
        """A payload whose time began to run then (monotonic). ``pinned``: it must go to ``queue``.
        ``codes_retried``: False where refusals are handed to the caller, as ``send_async`` does.
        """
        config = self.config
        attempts = SendAttempts(
            started_ms,
            timeout_ms,
            config.retries,
            brokers=self.brokers(queue, pinned),
            idempotent=config.idempotent,
            codes_retried=codes_retried,
        )
        return InFlightSend(self, payload, queue, pinned, attempts)

    def send(
        self,
        payload: FramePayload,
        queue: MessageQueue,
        pinned: bool,
        timeout_ms: float,
        started_ms: float,
    ) -> SendResult:
        """Send and wait until ``timeout_ms`` after ``started_ms`` (monotonic). Raises
        ``SendError``: definite, or ``SendUnknown`` / ``SendTimeout`` / ``SendUnconfirmed``.
        """
        config = self.config
        repeats = config.idempotent or self.brokers(queue, pinned) == 1
        shares = config.retries + 1 if repeats else 1
        ended = self._attempt(payload, queue, started_ms + timeout_ms, shares)
        outcome, address = ended or (ConnectFailed("the time was over before an attempt"), None)
        if isinstance(outcome, Command) and outcome.code == 0 and address is not None:
            stored = self.stored_at(payload, queue, outcome, address)
            self.counters.ended(
                payload.topic, len(payload.message_ids), self.clock.monotonic_ms() - started_ms
            )
            return frame_result(payload, stored)
        send, clock = self.in_flight(payload, queue, pinned, timeout_ms, started_ms), self.clock
        send.address = address
        while (decision := send.ended(outcome, clock.monotonic_ms())) is not None:
            send.follow(decision)
            self._pause(send, decision.delay_ms)
            now = clock.monotonic_ms()
            left = send.attempts.attempt_timeout_ms(now)
            ended = self._attempt(payload, send.queue, now + left, 1)
            if ended is None:
                break
            outcome, send.address = ended
        return confirmed(frame_result(payload, send.place(clock.monotonic_ms())), self.raises)

    def oneway(self, payload: FramePayload, queue: MessageQueue) -> None:
        """Send without an answer, once. Raises ``BrokerUnreachable`` when it could not be sent,
        ``SendUnknown`` when it broke off.
        """
        address = self.routes.broker_address(queue.broker_name)
        try:
            if address is None:
                raise _no_address(queue.broker_name)
            self.link.oneway(address, payload.command(queue))
        except RemotingError as error:
            raise oneway_failed(queue, error) from error

    def stored_at(
        self, payload: FramePayload, queue: MessageQueue, answer: Command, address: Address
    ) -> StoredAt:
        """What an answer tells that says stored. ``SendUnknown`` when it cannot be read."""
        try:
            offset, log_offset = payload.stored_at(answer)
        except MalformedFrame as error:
            raise SendUnknown(
                f"the answer of {queue.broker_name} to a send cannot be read ({error}); the "
                f"message may be stored",
                payload.topic,
            ) from error
        return StoredAt(
            STATUS_OF_CODE[answer.code],
            queue_without_namespace(self.config.namespace, queue),
            address,
            offset,
            log_offset,
            (answer.fields or NO_FIELDS).get("recallHandle"),
        )

    def _attempt(
        self, payload: FramePayload, queue: MessageQueue, until_ms: float, shares: int
    ) -> tuple[Outcome, Address | None] | None:
        """One attempt of the calling thread with its share of the time that is left; None: none
        is left.
        """
        began_ms = self.clock.monotonic_ms()
        if began_ms >= until_ms:
            return None
        address = self.routes.broker_address(queue.broker_name)
        if address is None:
            return _no_address(queue.broker_name), None
        outcome: Outcome
        try:
            outcome = self.link.invoke(
                address, payload.command(queue), (until_ms - began_ms) / shares
            )
        except RemotingError as error:
            outcome = error
        self.choice.ended(queue.broker_name, began_ms, outcome)
        return outcome, address

    def _pause(self, send: InFlightSend, delay_ms: float) -> None:
        """Wait, but not for a broker that is found at another address meanwhile."""
        while (
            delay_ms > 0 and self.routes.broker_address(send.queue.broker_name) == send.address
        ):  # ends: the rest falls
            self.clock.sleep_ms(min(delay_ms, SLICE_MS))
            delay_ms -= SLICE_MS


def frame_result(payload: FramePayload, stored: StoredAt) -> SendResult:
    """The one result of a payload: its first place, the ids of all its messages."""
    return ids_result(payload.message_ids, stored)


def ids_result(ids: Sequence[str], stored: StoredAt) -> SendResult:
    """The same of messages with these ids."""
    if len(ids) == 1:
        return stored.result(ids[0])
    joined = ids.joined() if isinstance(ids, KeyRange) else ",".join(ids)
    return replace(stored.result(joined), count=len(ids))


def message_results(payload: FramePayload, stored: StoredAt) -> list[SendResult]:
    """One result for each message of a stored frame."""
    results, start = [], 0
    for index, (message_id, size) in enumerate(
        zip(payload.message_ids, getattr(payload, "sizes", ()), strict=True)
    ):
        results.append(stored.result(message_id, index, start))
        start += int(size)
    return results


def oneway_failed(queue: MessageQueue, error: RemotingError) -> SendError:
    """The error of a one-way send."""
    kind = BrokerUnreachable if classify(error)[0] is Failure.NOT_SENT else SendUnknown
    return kind(f"one-way send to {queue} failed: {error}", queue.topic)


def classify(outcome: Outcome) -> tuple[Failure, int, str]:
    """(kind, response code, reason) of an attempt that failed."""
    if isinstance(outcome, Command):
        return (
            Failure.REFUSED,
            outcome.code,
            outcome.remark or f"the broker answered code {outcome.code}",
        )
    if isinstance(outcome, ConnectFailed | TooManyRequests):
        return Failure.NOT_SENT, outcome.code, str(outcome)
    if isinstance(outcome, FrameTooLarge):
        return Failure.REFUSED, MESSAGE_ILLEGAL, str(outcome)
    if isinstance(outcome, HandshakeFailed):
        return Failure.REFUSED, NOT_AUTHORIZED, str(outcome)
    return Failure.UNKNOWN, outcome.code, str(outcome)


def _no_address(broker_name: str) -> ConnectFailed:
    return ConnectFailed(f"no address of broker {broker_name!r} is known")
