"""The simple consumer: a worker takes messages of any queue for a time, and says for each what
became of it (protocol-behaviour 26, POP).

    with SimpleConsumer("jobs", "workers", discovery=...) as consumer:
        for message in consumer.receive(8, invisible=30, wait=20):
            work(message.body)
            message.ack()

No queue belongs to anybody: a topic of one queue can have a hundred workers. What is not settled
within its time comes again, with one more in ``reconsume_times``; after ``max_reconsume_times`` it
lies in the group's dead letters.

Decides what users may ask, and how long to go on when brokers do not answer. Pops are
``client.pop.pop_client``'s, acknowledgements ``client.pop.ack_sender``'s. Any thread may call any
method.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from rmq_ray.client.consumer.consumer_lifecycle import GroupConsumer
from rmq_ray.client.consumer.consumer_options import tell_beginning
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.managed import ServiceState
from rmq_ray.client.instance.settling import HandOver
from rmq_ray.client.instance.timers import DelayedCalls
from rmq_ray.client.messages.listener import DEAD_LETTER_LEVEL
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.client.pop.ack_sender import AckSender, SettleCounters
from rmq_ray.client.pop.patience import Patience, abandonable
from rmq_ray.client.pop.pop_client import PopClient
from rmq_ray.client.pop.receipts import (
    ReceivedMessage,
    ack_messages,
    delay_ms,
    extend_messages,
    give_back_messages,
)
from rmq_ray.client.push.send_back import RetrySender
from rmq_ray.clock import SYSTEM_CLOCK, Clock
from rmq_ray.errors import (
    ClientError,
    ConfigError,
    ConsumeError,
    RemotingError,
    RmqError,
    SubscriptionStale,
    TopicNotFound,
)
from rmq_ray.model.groups import ConsumeFromWhere, ConsumerData, ConsumeType, MessageModel
from rmq_ray.model.ids import Address
from rmq_ray.model.namespaces import with_namespace
from rmq_ray.model.pulling import Expression
from rmq_ray.ports import Discovery
from rmq_ray.protocol.validators import check_group, check_topic
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.pops import INVISIBLE_MS_MIN, PopRecords

CLOSE_TIMEOUT_MS = 30_000
MESSAGES_MAX = 1_024
PAGE_BYTES = 1 << 20
HOLD_MS = 30_000  # one request waits this long at a broker at most
# the others are waited for this long, then a broker that failed is asked again
ONE_FAILED_MS = 1_000
FIRST_PAUSE_MS, PAUSE_MS_MAX = 20.0, 200.0
STALE_TRIES = 5  # heartbeats in a row that a broker forgot
STARTS = {
    "first": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    "last": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
}


@dataclass(frozen=True, slots=True)
class PopEngine:
    """The parts of one started consumer."""

    client: ClientInstance
    group: str
    delayed: DelayedCalls
    acks: AckSender
    pops: PopClient

    def connect(self) -> None:
        """See ``Engine``; filters are checked with each pop."""
        self.client.start()

    def begin(self) -> None:
        """See ``Engine``."""
        self.delayed.start()

    def end(self, timeout_ms: int) -> bool:
        """See ``Engine``: acknowledgements are told first; nothing here runs on."""
        self.pops.close()
        self.acks.close()
        self.delayed.close()
        self.client.unregister_consumer(self.group)
        self.client.release()
        return True

    def rebalance_now(self) -> None:
        """No queue belongs to anybody; the next receive looks at the routes."""

    def persist_offsets(self) -> None:
        """Nothing: brokers keep the progress."""

    def halt(self) -> HandOver:
        """The same."""
        return lambda _until_ms: None

    def handle_request(self, command: Command, address: Address) -> Command | None:
        """Nothing that an operator may ask of consumers is known here."""
        if command.is_oneway:
            return None
        return command.answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark=f"request code {command.code} is not known to this consumer",
        )

    def stats(self) -> dict[str, Any]:
        """Messages settled; see ``SimpleConsumer.stats``."""
        return asdict(self.acks.counters)


class SimpleConsumer(GroupConsumer[PopEngine]):
    """A worker of ``group`` on ``topic``. Use it as a context manager, or ``start`` and ``close``.

    ``expression``: ``"*"``, ``"tag || tag"`` or ``rmq_ray.sql(...)``, the same in the whole group.
    ``start_from``: "last" or "first", where a group begins that never consumed the topic; what a
    young topic holds it gets either way (docs/listener.md).
    ``max_reconsume_times``: retries before the dead letters, -1 = the group's setting (16).
    ``ack_timeout``: seconds that settling a message is tried while its broker does not answer.
    ``namespace``: put before topic and group, taken off the topics of messages. Raises
    ``ConfigError`` or ``ClientError`` for wrong arguments.
    """

    def __init__(  # noqa: PLR0913 - settings by keyword
        self,
        topic: str,
        group: str,
        *,
        discovery: Discovery,
        expression: Expression = "*",
        start_from: str = "last",
        max_reconsume_times: int = -1,
        ack_timeout: float = 10.0,
        namespace: str = "",
        client_id: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        anew = partial(
            SimpleConsumer,
            topic,
            group,
            discovery=discovery,
            expression=expression,
            start_from=start_from,
            max_reconsume_times=max_reconsume_times,
            ack_timeout=ack_timeout,
            namespace=namespace,
            client_id=client_id,
        )
        self._given_topic = topic
        topic, group = with_namespace(namespace, topic), with_namespace(namespace, group)
        check_topic(topic)
        check_group(group)
        if start_from not in STARTS:
            raise ConfigError(
                f"start_from must be 'first' or 'last', not {start_from!r}", start_from
            )
        if not _is_number(max_reconsume_times, -1, (1 << 31) - 1):
            raise ConfigError(
                f"max_reconsume_times must be -1 (the group's setting) or more, not "
                f"{max_reconsume_times!r}",
                max_reconsume_times,
            )
        super().__init__("simple consumer", group, discovery, client_id, clock, namespace, anew)
        self._subscription = self._subscriptions.put(topic, expression, clock.now_ms())
        self._topic = topic
        self._start_from = STARTS[start_from]
        self._retries_max = max_reconsume_times
        self._ack_timeout_ms = delay_ms("ack_timeout", ack_timeout, 1)
        self._closing = threading.Event()
        self._rounds = 0
        self._begun: set[str] = set()
        self._received = 0

    # --- life -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Tell what was acknowledged, then leave the group. What was received and not settled comes
        again when its time is over. A ``start`` of another thread is waited for up to 30 s, one
        that a signal handler interrupts is not: it ends by itself.
        """
        self._life.stop(CLOSE_TIMEOUT_MS)

    stop = close

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # --- use --------------------------------------------------------------------------------------

    def receive(
        self,
        max_messages: int = 32,
        *,
        invisible: float = 30.0,
        wait: float = 20.0,
        patience: Patience | None = None,
    ) -> list[ReceivedMessage]:
        """Up to ``max_messages`` messages, at once when there are some, else the first to come
        within ``wait`` seconds; may be empty.

        Each is yours for ``invisible`` seconds (0.01 s to 12 h): settle or ``extend`` it before
        that. Nothing is handed out twice within its time, but a message may come again after it, or
        after a crash: work that must not be done twice needs a memory of its own. One that is
        interrupted takes nothing. ``patience``: what another thread may give the wait up by; then
        nothing comes.

        Raises ``GroupInUse`` (push consumers in the group, or another subscription),
        ``TooManyInFlight``, ``ClientError`` for wrong arguments and closed consumers,
        ``TopicNotFound`` and ``RemotingError`` when until the end of ``wait`` no broker could be
        asked.
        """
        if not _is_number(max_messages, 1, MESSAGES_MAX):
            raise ClientError(
                f"max_messages must be 1 to {MESSAGES_MAX}, not {max_messages!r}",
                repr(max_messages)[:80],
            )
        invisible_ms = delay_ms("invisible", invisible, INVISIBLE_MS_MIN)
        deadline_ms = self._clock.monotonic_ms() + delay_ms("wait", wait, 0)
        pop = self._pop(max_messages, invisible_ms)
        found = self._receive(self._running(), pop, deadline_ms, patience)
        if patience is not None and found and not patience.take():
            give_back_messages(found)
            return []
        self._received += len(found)
        return found

    async def receive_async(
        self, max_messages: int = 32, *, invisible: float = 30.0, wait: float = 20.0
    ) -> list[ReceivedMessage]:
        """``receive`` for an event loop, in a thread. A task that is cancelled takes nothing."""
        call = partial(self.receive, max_messages, invisible=invisible, wait=wait)
        return await abandonable(lambda patience: call(patience=patience), late=give_back_messages)

    def ack_all(self, messages: Iterable[ReceivedMessage], wait: bool = True) -> None:
        """Acknowledge many messages with one request to each broker; see ``ReceivedMessage.ack``.
        All that can be are acknowledged, also when it raises.
        """
        self._running()
        ack_messages(messages, wait)

    def flush(self) -> None:
        """Tell the brokers what ``ack(wait=False)`` gathered; answered on return, or counted as
        ``unanswered``.
        """
        self._running().acks.flush()

    def extend_all(self, messages: Iterable[ReceivedMessage], invisible: float) -> None:
        """They stay yours for ``invisible`` seconds from now on, with one request to each broker;
        what is settled already is passed over. Raises as ``ReceivedMessage.extend``; what is not
        stale is extended then, too.
        """
        self._running()
        extend_messages(messages, invisible)

    def dead_letter(self, message: MessageExt, why: str = "", group: str | None = None) -> None:
        """Put a message among the dead letters of ``group`` (None: of this one), a group that
        brokers know, with ``why`` for whoever looks at it.

        On return a broker has the dead letter, and what ``receive`` returned is acknowledged. A
        crash between the two leaves both. Raises ``ConsumeError`` when no broker took it: it is
        still yours; and as ``ReceivedMessage.ack``.
        """
        engine = self._running()
        target = with_namespace(self._namespace, group) if group else self._group
        check_group(target)
        sender = RetrySender(engine.client, target, message.reconsume_times + 1, self._clock)
        if not sender.send_back(message, DEAD_LETTER_LEVEL, why):
            raise ConsumeError(
                f"no broker took message {message.message_id} as a dead letter of {target!r}; see "
                f"the log, and try again",
                message.message_id,
            )
        if isinstance(message, ReceivedMessage):
            message.ack()

    def untaken(self, but: str = "") -> int | None:
        """See ``PopClient.untaken``: the sum of all brokers but the one named ``but``, as it was a
        moment ago, what comes again included. None where one does not tell now: it was not upgraded
        yet, or does not answer.
        """
        engine, pop = self._running(), self._pop(0, INVISIBLE_MS_MIN)
        for _ in range(STALE_TRIES):
            try:
                brokers = [name for name in self._brokers(engine.client) if name != but]
                if self._begin_at(engine.pops, pop, brokers):
                    return None
                told = [engine.pops.untaken(broker_name, pop) for broker_name in brokers]
                return sum(one for one in told if one is not None) if None not in told else None
            except SubscriptionStale:  # a broker that knows no member yet, or any more
                engine.client.heartbeat()
            except RmqError:
                return None
        return None

    def knows(self, topic: str) -> bool:
        """Whether a name server knows the topic now."""
        routes = self._running().client.routes
        return bool(routes.find_subscribe(with_namespace(self._namespace, topic)))

    @property
    def topic(self) -> str:
        """The topic, as it was given."""
        return self._given_topic

    def stats(self) -> dict[str, Any]:
        """Messages since ``start``: ``received``, ``acknowledged``, ``returned`` (nack, extend,
        reject), ``stale``, ``unanswered`` (of ``ack(wait=False)``).
        """
        found = {"topic": self.topic, "received": self._received, **asdict(SettleCounters())}
        return found | super().stats()

    # --- inside -----------------------------------------------------------------------------------

    def _make_engine(self, client: ClientInstance) -> PopEngine:
        delayed = DelayedCalls(self._clock, f"rmq-pops-{self._group}")
        acks = AckSender(client, self._group, self._ack_timeout_ms)
        pops = PopClient(client, self._group, self._subscription, acks, delayed, self._namespace)
        return PopEngine(client, self._group, delayed, acks, pops)

    def _end(self, timeout_ms: int) -> bool:
        self._closing.set()
        return super()._end(timeout_ms)

    def _receive(
        self, engine: PopEngine, pop: PopRecords, deadline_ms: float, patience: Patience | None
    ) -> list[ReceivedMessage]:
        pause_ms, stale, news = FIRST_PAUSE_MS, 0, 0
        last: Exception | None = None
        while True:  # ends: at the deadline, at the latest
            try:
                brokers = self._brokers(engine.client)
                unready = self._begin_at(engine.pops, pop, brokers)
                hold_ms = round(max(0.0, min(HOLD_MS, deadline_ms - self._clock.monotonic_ms())))
                found, news = self._ask(engine.pops, pop, brokers, unready, hold_ms, news, patience)
                pause_ms, stale, last = FIRST_PAUSE_MS, 0, None
            except SubscriptionStale as error:  # a broker that restarted remembers no member
                found, last, stale = [], error, stale + 1
                if stale > STALE_TRIES:
                    raise
                engine.client.heartbeat()
                if stale == 1:
                    continue
            except (RemotingError, TopicNotFound) as error:
                found, last = [], error
                engine.client.watch_route(pop.topic)
            if found or (patience is not None and patience.over):
                return found
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0 or self._closing.is_set():
                if last is not None and not self._closing.is_set():
                    raise last
                return []
            if last is not None:
                self._closing.wait(min(pause_ms, left_ms) / 1000)
                pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)

    def _pop(self, count_max: int, invisible_ms: int) -> PopRecords:
        return PopRecords(
            self._group,
            self._topic,
            count_max,
            PAGE_BYTES,
            invisible_ms,
            0,
            int(self._start_from is STARTS["first"]),
            self._retries_max,
            self._subscription.expression_type,
            self._subscription.expression,
        )

    def _begin_at(
        self, pops: PopClient, pop: PopRecords, brokers: list[str]
    ) -> dict[str, RemotingError]:
        """A group that is new begins everywhere with its first receive; one that begins at the end
        says what it does not read. The brokers where it could not: not to be asked for messages,
        which would begin there without knowing whether it is new; the next round tries again.
        """
        unready: dict[str, RemotingError] = {}
        if pop.from_first:
            return unready
        skipped = 0
        for broker_name in [name for name in brokers if name not in self._begun]:
            try:
                skipped += pops.begin(broker_name, pop)
                self._begun.add(broker_name)
            except RemotingError as error:
                unready[broker_name] = error
        tell_beginning(self._group, self._topic, skipped)
        return unready

    def _ask(
        self,
        pops: PopClient,
        pop: PopRecords,
        brokers: list[str],
        unready: dict[str, RemotingError],
        hold_ms: int,
        news: int,
        patience: Patience | None,
    ) -> tuple[list[ReceivedMessage], int]:
        """One round: what came, and the number of the news of ``PopClient.watch``."""
        if len(brokers) == 1 and not unready:
            return pops.pop(brokers[0], _waiting(pop, hold_ms), patience), news
        asked, failed = [], None
        for broker_name in brokers:
            try:
                if broker_name in unready:
                    raise unready[broker_name]
                found = pops.pop(broker_name, pop, patience)
            except RemotingError as error:
                failed = error
                continue
            if found:
                return found, news
            asked.append(broker_name)
        if not asked and failed is not None:
            raise failed
        if failed is not None:
            hold_ms = min(hold_ms, ONE_FAILED_MS)
        if not hold_ms:
            return [], news
        with patience.waits(pops.wake) if patience else nullcontext():
            return [], pops.watch(asked, _waiting(pop, hold_ms), news, hold_ms)

    def _brokers(self, client: ClientInstance) -> list[str]:
        """Broker names of the topic, beginning with another one each time. ``TopicNotFound`` while
        no name server knows it.
        """
        queues = client.routes.find_subscribe(self._topic)
        names = sorted({queue.broker_name for queue in queues})
        if not names:
            raise TopicNotFound(
                f"no name server knows topic {self._topic!r}; create it, or send to it first",
                self._topic,
            )
        self._rounds += 1
        first = self._rounds % len(names)
        return names[first:] + names[:first]

    def _running(self) -> PopEngine:
        engine = self._engine
        if engine is None or self._life.state is not ServiceState.RUNNING:
            raise ClientError(
                f"simple consumer of group {self._group!r} is {self._life.state.value}; use "
                f"it between start() and close()",
                self._group,
            )
        return engine

    # --- as the client instance sees it -----------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        """See ``ManagedConsumer``."""
        return ConsumerData(
            self._group,
            ConsumeType.CONSUME_POP,
            MessageModel.CLUSTERING,
            self._start_from,
            self._subscriptions.all(),
        )


def _waiting(pop: PopRecords, wait_ms: int) -> PopRecords:
    return replace(pop, wait_ms=wait_ms)


def _is_number(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
