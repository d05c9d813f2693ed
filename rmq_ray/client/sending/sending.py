"""One send from first attempt to result, in the calling thread; and what the asynchronous driver
shares with it.

Decides which queue and broker each attempt goes to, following ``protocol.retry``. Does not encode
(``client.outgoing.send_payload``) or batch (``client.sending.batching``). Called by
``client.producer.producer``; ``client.sending.async_sender`` uses ``Delivery`` the same way with
callbacks.

Invariants: the common case, an answer to the first attempt, builds no retry state; a load returns
to a broker name that may hold it only with the queue it had there; a send that may be stored never
ends as a definite failure.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import lru_cache

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.outgoing.queue_choice import QueueChoice
from rmq_ray.client.outgoing.send_payload import Load
from rmq_ray.codec.key_range import KeyRange
from rmq_ray.codec.record import offset_message_id
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import (
    BrokerUnreachable,
    ConnectFailed,
    FrameTooLarge,
    HandshakeFailed,
    MalformedFrame,
    RemotingError,
    SendError,
    SendUnknown,
    TooManyRequests,
)
from rmq_ray.model.ids import Address, LogOffset, MessageQueue, QueueOffset
from rmq_ray.model.message import SendResult, SendStatus
from rmq_ray.model.namespaces import queue_without_namespace
from rmq_ray.protocol.retry import (
    MESSAGE_ILLEGAL,
    NO_PERMISSION,
    STATUS_OF_CODE,
    SYSTEM_BUSY,
    Decision,
    Failure,
    SendAttempts,
    Step,
)
from rmq_ray.protocol.routing.queue_selection import NextIndex
from rmq_ray.remoting.wire.frame import Command

NO_FIELDS: dict[str, str] = {}
SLICE_MS = 25.0  # of a pause, after which the route is looked at
# of its time-out must be left to a message that joins others, and of a frame's to be joined
LEFT_TO_SHARE = 0.9
Outcome = Command | RemotingError
"""How an attempt ended: an answer, or what the connection met."""


class Delivery:
    """A load on its way: where it is headed, where it was, and what its attempts came to."""

    __slots__ = (
        "_tried",
        "address",
        "attempts",
        "brokers_sent",
        "code",
        "failure",
        "load",
        "pinned",
        "queue",
        "reason",
    )

    def __init__(
        self, load: Load, queue: MessageQueue, attempts: SendAttempts, pinned: bool
    ) -> None:
        self.load = load
        self.queue = queue
        self.attempts = attempts
        self.pinned = pinned
        self.address: Address | None = None
        self.brokers_sent = [queue.broker_name]
        self.failure, self.code, self.reason = Failure.NOT_SENT, 0, ""
        self._tried = {queue.broker_name: queue}

    def judge(self, outcome: Outcome, now_ms: float) -> Decision:
        """The attempt failed: remember how, and decide what follows."""
        self.failure, self.code, self.reason = classify(outcome)
        return self.attempts.failed(self.failure, self.code, now_ms)

    def move(
        self, routes: Callable[[str], list[MessageQueue]], turn: NextIndex, choice: QueueChoice
    ) -> None:
        """Head for another broker, as long as the route shows one; one that was tried before gets
        the load for the same queue as then.
        """
        queues = routes(self.load.topic)
        if queues:
            queue = choice.next(queues, turn, self.queue.broker_name)
            self.queue = self._tried.setdefault(queue.broker_name, queue)

    def error(self, now_ms: float) -> SendError:
        """The typed error of giving up; a load that never got to an attempt was held up on this
        side.
        """
        if not self.reason:
            self.failure, self.code, self.reason = (
                Failure.REFUSED,
                SYSTEM_BUSY,
                "waited behind other frames until the time-out",
            )
        return self.attempts.error(
            self.failure, self.code, self.reason, self.load.topic, self.brokers_sent, now_ms
        )


class Turns:
    """Round-robin counters, one per topic, each from a random start (protocol-behaviour 7.1).
    Thread-safe: ``count`` steps atomically.
    """

    def __init__(self) -> None:
        self._counters: dict[str, NextIndex] = {}

    def of(self, topic: str) -> NextIndex:
        """The topic's counter."""
        found = self._counters.get(topic)
        if found is None:
            found = self._counters.setdefault(
                topic, itertools.count(int.from_bytes(os.urandom(4))).__next__
            )
        return found

    def topics(self) -> list[str]:
        """Topics that were sent to."""
        return list(self._counters)


class Sending:
    """What sends of one producer in one process share. Thread-safe."""

    def __init__(
        self, instance: ClientInstance, config: ProducerConfig, turns: Turns, choice: QueueChoice
    ) -> None:
        self.instance = instance
        self.config = config
        self.clock = instance.clock
        self.choice = choice
        self._turns = turns

    def alone(self, queue: MessageQueue, pinned: bool) -> bool:
        """True when a retry has no other broker to go to than that of ``queue``, which the route
        may show no more.
        """
        info = self.instance.routes.publish(queue.topic)
        return pinned or info is None or all(name == queue.broker_name for name in info.brokers)

    def attempts_since(
        self,
        started_ms: float,
        queue: MessageQueue,
        pinned: bool,
        timeout_ms: float,
        *,
        codes_retried: bool = False,
    ) -> SendAttempts:
        """The retry state of a send to ``queue`` that started then (monotonic). Asynchronous sends
        hand refusals to the caller.
        """
        config = self.config
        return SendAttempts(
            started_ms,
            timeout_ms,
            config.retries,
            alone=self.alone(queue, pinned),
            idempotent=config.idempotent,
            codes_retried=codes_retried,
        )

    def send(
        self, load: Load, queue: MessageQueue, pinned: bool, timeout_ms: float, started_ms: float
    ) -> SendResult:  # noqa: PLR0913 - a send
        """Send and wait until ``timeout_ms`` after ``started_ms`` (monotonic). Raises
        ``SendError``: definite, or ``SendUnknown`` / ``SendTimeout``.
        """
        config = self.config
        shares = config.retries + 1 if config.idempotent or self.alone(queue, pinned) else 1
        outcome, address = self._attempt(load, queue, started_ms + timeout_ms, shares)
        if isinstance(outcome, Command) and outcome.code == 0 and address is not None:
            return self.result(load, queue, outcome, address)
        attempts = self.attempts_since(started_ms, queue, pinned, timeout_ms, codes_retried=True)
        return self._go_on(Delivery(load, queue, attempts, pinned), outcome, address)

    def oneway(self, load: Load, queue: MessageQueue) -> None:
        """Send without an answer, once. Raises ``BrokerUnreachable`` when it could not be sent,
        ``SendUnknown`` when it broke off.
        """
        address = self.instance.broker_address(queue.broker_name)
        try:
            if address is None:
                raise ConnectFailed(f"no address of broker {queue.broker_name!r} is known")
            self.instance.oneway(address, load.command(queue))
        except RemotingError as error:
            kind = BrokerUnreachable if classify(error)[0] is Failure.NOT_SENT else SendUnknown
            raise kind(f"one-way send to {queue} failed: {error}", load.topic) from error

    def start(
        self, delivery: Delivery, timeout_ms: float, callback: Callable[[Outcome], None]
    ) -> None:
        """Begin one attempt; the outcome goes to ``callback``, at once (in this thread) when
        nothing could be sent.
        """
        address = delivery.address = self.instance.broker_address(delivery.queue.broker_name)
        callback = self.choice.watching(delivery.queue.broker_name, callback)
        try:
            if address is None:
                raise ConnectFailed(f"no address of broker {delivery.queue.broker_name!r} is known")
            self.instance.invoke_async(
                address, delivery.load.command(delivery.queue), timeout_ms, callback
            )
        except RemotingError as error:
            callback(error)

    def follow(self, delivery: Delivery, decision: Decision) -> None:
        """Prepare the next attempt: head elsewhere if so decided, and have the route looked at
        again.
        """
        self.instance.watch_route(delivery.load.topic)
        if decision.step is Step.ELSEWHERE:
            delivery.move(self._queues, self._turns.of(delivery.load.topic), self.choice)
        delivery.brokers_sent.append(delivery.queue.broker_name)

    def result(
        self, load: Load, queue: MessageQueue, answer: Command, address: Address
    ) -> SendResult:
        """The result of an answer that says stored."""
        try:
            offset, log_offset = load.stored_at(answer)
        except MalformedFrame as error:
            raise SendUnknown(
                f"the answer of {queue.broker_name} to a send cannot be read ({error}); the "
                f"message may be stored",
                load.topic,
            ) from error
        ids = load.message_ids
        return SendResult(
            STATUS_OF_CODE[answer.code],
            ids[0]
            if len(ids) == 1
            else ids.joined()
            if isinstance(ids, KeyRange)
            else ",".join(ids),
            self.shown(queue),
            QueueOffset(offset),
            store_id(address, log_offset),
            LogOffset(log_offset),
            None,
            len(ids),
            (answer.fields or NO_FIELDS).get("recallHandle"),
        )

    def shown(self, queue: MessageQueue) -> MessageQueue:
        """The queue under the names that the producer's user knows."""
        return queue_without_namespace(self.config.namespace, queue)

    def _attempt(
        self, load: Load, queue: MessageQueue, until_ms: float, shares: int
    ) -> tuple[Outcome, Address | None]:
        """One attempt with its share of the time that is left."""
        address = self.instance.broker_address(queue.broker_name)
        if address is None:
            return ConnectFailed(f"no address of broker {queue.broker_name!r} is known"), None
        began_ms = self.clock.monotonic_ms()
        if began_ms >= until_ms:
            return ConnectFailed("the time was over before the first attempt"), None
        outcome: Outcome
        try:
            outcome = self.instance.invoke(
                address, load.command(queue), (until_ms - began_ms) / shares
            )
        except RemotingError as error:
            outcome = error
        self.choice.ended(queue.broker_name, began_ms, outcome)
        return outcome, address

    def _go_on(self, delivery: Delivery, outcome: Outcome, address: Address | None) -> SendResult:
        """After an attempt that was not plainly stored: retries until ``protocol.retry`` says
        stop.
        """
        attempts, clock = delivery.attempts, self.clock
        stored: SendResult | None = None
        while True:
            now = clock.monotonic_ms()
            if (
                isinstance(outcome, Command)
                and outcome.code in STATUS_OF_CODE
                and address is not None
            ):
                stored = self.result(delivery.load, delivery.queue, outcome, address)
                if (
                    stored.status is SendStatus.SEND_OK
                    or not self.config.retry_another_broker_when_not_store_ok
                ):
                    return stored
                decision = attempts.not_stored(now)
            else:
                decision = delivery.judge(outcome, now)
            if decision.step is Step.GIVE_UP:
                if stored is not None:
                    return stored
                raise delivery.error(now)
            self.follow(delivery, decision)
            self._pause(delivery, decision.delay_ms, address)
            now = clock.monotonic_ms()
            left = attempts.attempt_timeout_ms(now)
            if left <= 0:
                if stored is not None:
                    return stored
                raise delivery.error(now)
            outcome, address = self._attempt(delivery.load, delivery.queue, now + left, 1)

    def _pause(self, delivery: Delivery, delay_ms: float, tried: Address | None) -> None:
        """Wait, but not for a broker that is found at another address meanwhile."""
        while (
            delay_ms > 0 and self.instance.broker_address(delivery.queue.broker_name) == tried
        ):  # ends: the rest falls
            self.clock.sleep_ms(min(delay_ms, SLICE_MS))
            delay_ms -= SLICE_MS

    def _queues(self, topic: str) -> list[MessageQueue]:
        info = self.instance.routes.publish(topic)
        return list(info.queues) if info is not None else []


def results_of(result: SendResult, load: Load, address: Address) -> list[SendResult]:
    """One result for each message of a stored frame."""
    results, log_offset = [], int(result.log_offset)
    for index, (message_id, size) in enumerate(
        zip(load.message_ids, getattr(load, "sizes", ()), strict=True)
    ):
        at = QueueOffset(result.queue_offset + index)
        results.append(
            SendResult(
                result.status,
                message_id,
                result.queue,
                at,
                store_id(address, log_offset),
                LogOffset(log_offset),
            )
        )
        log_offset += int(size)
    return results


def store_id(address: Address, log_offset: int) -> str:
    """RocketMQ's offset message id; empty when the broker is known by a host name and not by an
    address.
    """
    head = _store_id_head(address)
    return f"{head}{log_offset:016X}" if head else ""


@lru_cache(maxsize=1024)
def _store_id_head(address: Address) -> str:
    try:
        return offset_message_id(address.host, address.port, 0)[:-16]
    except ValueError:
        return ""


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
        return Failure.REFUSED, NO_PERMISSION, str(outcome)
    return Failure.UNKNOWN, outcome.code, str(outcome)
