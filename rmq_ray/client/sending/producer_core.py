"""The machinery behind a producer in one process: made at its start, thrown away at its end; a
forked child cannot use it.

    Producer (names, life) ──> ProducerCore ──> SendEngine                     one send, waited for
                                            ──> SendCoalescer ──> AsyncSender  sends of many threads
                                            ──> Accumulator ──> AsyncSender    batches, futures
                                            ──> ClientInstance                 routes, connections

Decides nothing about messages (``client.outgoing.send_request``) or retries. Invariant: every frame
id taken is released exactly when its payload will not be sent again.

The wait for the queues that a topic may be written to: what is asked again, with which pauses,
and what is told in the end.

    RouteWait       attempt ──None──> pause ──> attempt ──> ... ──queues, or given_up──> caller
    TopicQueues     a thread sleeps between attempts
    LoopRouteWait   tasks of an event loop await one look-up for each topic

Decides that a name server which does not answer and a topic between two masters pass by themselves,
and nothing else: a topic that is read-only by its own permission stays so (``RouteCache`` tells it
from one whose broker is drained). Each caller waits for its own time-out.

Invariants of the loop's look-ups: callers go on in the order in which they came; attempts have one
thread of their own (one at a time reaches a name server anyway), so that no outage takes threads
from anybody else, and a wait between attempts takes none; a wait ends when nobody wants to know any
more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.timers import ClientTimers
from rmq_ray.client.outgoing.callbacks import Callbacks
from rmq_ray.client.outgoing.queue_choice import BrokerProbe, GroupOrder, QueueChoice, RoundRobin
from rmq_ray.client.outgoing.send_future import BatchOutcome, SendFuture
from rmq_ray.client.outgoing.send_payload import (
    FramePayload,
    ProducerIdentity,
    RecordPayload,
    SingleMessagePayload,
    encode_records,
    split_word,
)
from rmq_ray.client.outgoing.send_request import (
    Placement,
    Selector,
    SendRequest,
    as_message,
    check_placement,
)
from rmq_ray.client.sending.async_sender import AsyncSend, AsyncSender, InFlightWindow
from rmq_ray.client.sending.batching import Accumulator
from rmq_ray.client.sending.group_commit import SendCoalescer
from rmq_ray.client.sending.send_engine import LEFT_TO_SHARE, InFlightSend, SendEngine
from rmq_ray.clock import left_ms
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import (
    BrokerUnreachable,
    ClientError,
    HandshakeFailed,
    NoRoute,
    RemotingError,
    RouteNotAuthorized,
    SendError,
    SendNotAuthorized,
    SendTimeout,
)
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import Message, SendResult
from rmq_ray.model.topics import DEFAULT_TOPIC, SELF_TEST_TOPIC
from rmq_ray.protocol.retry import BACK_OFF_FIRST_MS, BACK_OFF_MAX_MS
from rmq_ray.protocol.routing.queue_selection import checked_choice
from rmq_ray.remoting.wire.frame import Command

ATTEMPT_MS = 3_000.0  # of one attempt of a loop: others wait for the thread meanwhile


class RouteWait:
    """One wait; does not wait itself. ``default_queues``: of a topic that is not created yet."""

    def __init__(self, instance: ClientInstance, topic: str, default_queues: int) -> None:
        self.topic = topic
        self._routes = instance.routes
        self._stopped = instance.stopped
        self._default_queues = default_queues
        self._pause_ms = BACK_OFF_FIRST_MS
        self.met: Exception | None = None
        """What the last attempt came to: the cause of ``given_up``."""

    def attempt(self, until_ms: float) -> Sequence[MessageQueue] | None:
        """Look the route up once; blocks, until then (monotonic) at most. None: ask again after
        ``pause_ms``. ``NoRoute`` where no master is missing, or all that are were stopped on
        purpose; ``TopicNotWritable`` where the topic forbids it, ``SendNotAuthorized`` the account.
        """
        try:
            return self._routes.find_publish(self.topic, self._default_queues, until_ms).queues
        except NoRoute as error:
            self.met = error
            if not self._routes.is_between_masters(self.topic):
                if why := self._stopped.why_some(until_ms):
                    raise NoRoute(
                        f"{error}; or it is on what is stopped: {why}", self.topic
                    ) from error
                raise
            if why := self._stopped.why(self._routes.brokers_missed(self.topic)):
                raise self._given_up(f"now: {why}") from error
        except RemotingError as error:
            if isinstance(error, RouteNotAuthorized):
                raise SendNotAuthorized(f"{error}; nothing was sent", self.topic) from error
            self.met = error
            if error.__class__ is HandshakeFailed:
                raise self.given_up(0) from error
        return None

    def pause_ms(self) -> float:
        """How long to wait before the next attempt: longer each time."""
        pause, self._pause_ms = self._pause_ms, min(self._pause_ms * 2, BACK_OFF_MAX_MS)
        return pause

    def given_up(self, timeout_ms: float) -> SendError:
        """What a caller is told who has waited for ``timeout_ms``: nothing was sent."""
        topic, met = self.topic, self.met
        if isinstance(met, NoRoute):
            return self._given_up(
                f"now, after {timeout_ms:.0f} ms: its master is gone, is drained, or takes no "
                f"messages"
            )
        why = (
            f"no answer within {timeout_ms:.0f} ms"
            if met is None
            else str(met).removesuffix("; nothing was sent")
        )
        if isinstance(met, HandshakeFailed):
            return SendNotAuthorized(
                f"the route of topic {topic!r} is unknown, no name server lets this client in: "
                f"{why}; nothing was sent",
                topic,
            )
        return BrokerUnreachable(
            f"the route of topic {topic!r} is unknown and no name server answers: {why}; "
            f"nothing was sent",
            topic,
        )

    def _given_up(self, why: str) -> NoRoute:
        return NoRoute(
            f"no broker takes messages of topic {self.topic!r} {why}; nothing was sent", self.topic
        )


class TopicQueues:
    """The queues of topics, for the threads of one producer. ``closing``: who waits for a route
    stops waiting.
    """

    def __init__(self, instance: ClientInstance, config: ProducerConfig) -> None:
        self.group = config.group
        self.clock = instance.clock
        self.closing = False
        self._instance = instance
        self._routes = instance.routes
        self._default_queues = config.default_topic_queues

    def known(self, topic: str) -> Sequence[MessageQueue] | None:
        """The queues of a topic without asking anybody; None = ``find`` has to ask, and perhaps to
        wait.
        """
        info = self._routes.publish(topic)
        return info.queues if info is not None and info.queues else None

    def find(self, topic: str, timeout_ms: float) -> Sequence[MessageQueue]:
        """The queues of a topic; asks again, with pauses, while no name server answers or no master
        is there.

        Raises ``NoRoute``, ``TopicNotWritable``, ``BrokerUnreachable``, and ``ClientError`` when
        the producer is closed meanwhile.
        """
        found = self.known(topic)
        if found is not None:
            return found
        wait, deadline = self.wait_for(topic), self.clock.monotonic_ms() + timeout_ms
        while (found := wait.attempt(deadline)) is None:  # ends: at the deadline
            pause = wait.pause_ms()
            if self.closing:
                raise self.closed_meanwhile(topic)
            if self.clock.monotonic_ms() + pause >= deadline:
                raise wait.given_up(timeout_ms) from wait.met
            self.clock.sleep_ms(pause)
        return found

    def wait_for(self, topic: str) -> RouteWait:
        """A wait for the queues of a topic."""
        return RouteWait(self._instance, topic, self._default_queues)

    def closed_meanwhile(self, topic: str) -> ClientError:
        """What a caller is told who waits for a route when the producer is closed."""
        return ClientError(
            f"producer {self.group!r} was closed while a send waited for the route of topic "
            f"{topic!r}; nothing was sent",
            topic,
        )


class _Lookup:
    """Of one topic. ``found``: what it comes to; ``waiters``: of those who want to know, in the
    order in which they came.
    """

    __slots__ = ("found", "wait", "waiters")

    def __init__(self, wait: RouteWait, found: asyncio.Future[Sequence[MessageQueue]]) -> None:
        self.wait = wait
        self.found = found
        self.waiters: list[asyncio.Future[Sequence[MessageQueue]]] = []


class LoopRouteWait:
    """See the module. Belongs to the loop in which it was made."""

    def __init__(self, queues: TopicQueues) -> None:
        self._queues = queues
        self._loop = asyncio.get_running_loop()
        self._lookups: dict[str, _Lookup] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(1, f"rmq-routes-{queues.group}")
        self._closed = False

    async def queues(self, topic: str, timeout_ms: float) -> tuple[Sequence[MessageQueue], float]:
        """The topic's queues, and what is left of the time. Only the first calls for a topic wait,
        and those while it has no master.

        Raises ``NoRoute``, ``TopicNotWritable``, ``BrokerUnreachable``, and ``ClientError`` when
        the producer is closed meanwhile.
        """
        lookup = self._lookups.get(topic)
        if lookup is None:
            known = self._queues.known(topic)
            if known is not None:
                return known, timeout_ms
            lookup = self._begin(topic)
        began_ms = self._queues.clock.monotonic_ms()
        while (
            lookup.found.done() and self._lookups.get(topic) is lookup
        ):  # those who waited longer come first
            await asyncio.sleep(0)
        queues = await (lookup.found if lookup.found.done() else self._wait(lookup, timeout_ms))
        return queues, left_ms(self._queues.clock, timeout_ms, began_ms)

    def close(self) -> None:
        """Who waits is told now that the producer is closed."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
        lookups, self._lookups = self._lookups, {}
        for topic, lookup in lookups.items():
            _end(lookup, self._queues.closed_meanwhile(topic))

    # --- inside -----------------------------------------------------------------------------------

    async def _wait(self, lookup: _Lookup, timeout_ms: float) -> Sequence[MessageQueue]:
        mine: asyncio.Future[Sequence[MessageQueue]] = (
            self._loop.create_future()
        )  # its own: woken at once, before anybody who comes now
        lookup.waiters.append(mine)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await mine
        except TimeoutError:
            raise lookup.wait.given_up(timeout_ms) from lookup.wait.met
        finally:
            lookup.waiters.remove(mine)

    def _begin(self, topic: str) -> _Lookup:
        if self._closed:
            raise self._queues.closed_meanwhile(topic)
        lookup = self._lookups[topic] = _Lookup(
            self._queues.wait_for(topic), self._loop.create_future()
        )
        task = self._loop.create_task(self._look_up(topic, lookup))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return lookup

    async def _look_up(self, topic: str, lookup: _Lookup) -> None:
        try:
            while (
                queues := await self._loop.run_in_executor(self._thread, self._attempt, lookup)
            ) is None:  # ends: found, refused, or nobody waits any more
                await asyncio.sleep(lookup.wait.pause_ms() / 1000)
                if not lookup.waiters:
                    del self._lookups[topic]
                    return
            _end(lookup, queues)
        except Exception as error:  # noqa: BLE001 - every caller gets it
            _end(lookup, error)
        self._loop.call_soon(
            self._lookups.pop, topic, None
        )  # behind the callers that are being woken

    def _attempt(self, lookup: _Lookup) -> Sequence[MessageQueue] | None:
        """In the thread."""
        return lookup.wait.attempt(self._queues.clock.monotonic_ms() + ATTEMPT_MS)


def _end(lookup: _Lookup, outcome: Sequence[MessageQueue] | Exception) -> None:
    """What it comes to, and everybody who waits is woken; nothing when it has ended before."""
    if lookup.found.done():
        return
    for future in (lookup.found, *lookup.waiters):
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
    lookup.found.exception()  # looked at even if every caller was cancelled


QUEUE_ID_END = 1 << 31
CLOSE_SLACK_MS = 1_000  # beyond the send time-out, for frames that end at it


class ProducerCore:
    """See the module. Implements ``ManagedProducer``."""

    def __init__(self, instance: ClientInstance, config: ProducerConfig) -> None:
        self.group = config.group
        self.config = config
        self.instance = instance
        self.clock = instance.clock
        self.identity = ProducerIdentity(instance.client_id.partition("@")[0])
        self.round_robin = RoundRobin()
        self.groups = GroupOrder()
        self.queues = TopicQueues(instance, config)
        self.choice = QueueChoice(self.clock, config.latency_fault, self._isolated)
        self.engine = SendEngine(instance, config, self.round_robin, self.choice)
        self.requests: dict[int, Callable[[Command, Address], Command | None]] = {}
        """Request code of a broker -> who answers it, in a reader thread."""
        self.has_checker = False
        self.transactions: object | None = None
        """The ``TransactionEngine``, once there is one."""
        self.request_reply: object | None = None
        """The ``Requests``, once there was one."""
        self.closers: list[Callable[[], None]] = []
        """What ends with the producer, before its connections do."""
        self.disowners: list[Callable[[ClientError], None]] = []
        """What else waits in the parent only."""
        self.finishers: list[Callable[[], None]] = []
        """What ends behind the last send."""
        self.probe = self._make_probe()
        self.worker = ClientTimers(self.clock, f"rmq-producer-{config.group}")
        self.callbacks = Callbacks(self.worker)
        self.window = InFlightWindow(config.frames_in_flight_max, config.buffer_bytes_max)
        self.async_sender = AsyncSender(self.clock, self.window, self.worker, self.identity.release)
        self.coalescer = SendCoalescer(
            self.engine, self.identity, self.async_sender, self._send_again
        )
        self.batches = Accumulator(
            self.engine,
            self.identity,
            self.async_sender,
            self.window,
            self.worker,
            self.queues.find,
            self.callbacks,
        )

    # --- as a managed producer --------------------------------------------------------------------

    def published_topics(self) -> list[str]:
        """The template topic, and all topics sent to. Every broker has the self-test topic: who
        has a checker makes itself known to all of them, whatever it sent.
        """
        asked = [SELF_TEST_TOPIC] if self.has_checker else []
        return [DEFAULT_TOPIC, *asked, *self.round_robin.topics()]

    def handle_request(self, command: Command, address: Address) -> Command | None:
        """A request of a broker goes to whoever is here for its code."""
        handler = self.requests.get(command.code)
        return None if handler is None else handler(command, address)

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Register, start the instance and tell brokers (those that routes name already)."""
        self.instance.register_producer(self)
        try:
            self.instance.start()
        except BaseException:
            self.instance.unregister_producer(self.group)
            self.instance.release()
            raise
        self.worker.start()
        self.instance.timers.soon("heartbeat", self.instance.heartbeat)

    def close(self) -> None:
        """Send what lingers, wait for the answers up to the send time-out, unregister, let go of
        the instance.
        """
        self.queues.closing = True
        for close in self.closers:
            close()
        self.batches.flush()
        self.async_sender.wait_idle(self.config.send_timeout_ms + CLOSE_SLACK_MS)
        if self.probe is not None:
            self.probe.stop()
        self.callbacks.wait_through(CLOSE_SLACK_MS)
        self.worker.close()
        self.async_sender.abandon("the producer was closed before the broker answered")
        self.callbacks.run_all()
        for finish in self.finishers:
            finish()
        self.instance.unregister_producer(self.group)
        self.instance.release()

    def flush(self, timeout_ms: float) -> None:
        """Send what lingers and wait until every asynchronous send so far has ended.
        ``SendTimeout`` when they have not in time, ``ClientError`` in a callback.
        """
        self.callbacks.check_may_wait("its sends")
        self.batches.flush()
        if not self.async_sender.wait_idle(timeout_ms):
            raise SendTimeout(
                f"not every asynchronous send ended within {timeout_ms:.0f} ms; their "
                f"futures will still end"
            )

    def disown(self) -> None:
        """In a forked child: end the futures that nobody will ever complete here."""
        error = ClientError(
            "this future was made before a fork and is completed in the parent process only"
        )
        for outcome in [*self.batches.outcomes(), *self.async_sender.outcomes()]:
            outcome.orphan(error)
        for disown in self.disowners:
            disown(error)

    # --- sending ----------------------------------------------------------------------------------

    def send(self, message: SendRequest, timeout_ms: float) -> SendResult:
        """One message, waited for."""
        if message.ordered and not message.special:
            return self._send_ordered(message, timeout_ms)
        if (
            message.queue is None
            and not message.special
            and timeout_ms == self.config.send_timeout_ms
        ):
            return self.send_plain(message)
        return self._send_alone(message, timeout_ms, self.clock.monotonic_ms())

    def send_plain(self, message: SendRequest) -> SendResult:
        """An ordinary message to any queue with the configured time-out: alone, or with other
        threads' messages when enough frames are out.
        """
        timeout_ms, started_ms = self.config.send_timeout_ms, self.clock.monotonic_ms()
        queues = self.queues.known(message.topic)
        if queues is None:
            queues = self.queues.find(message.topic, timeout_ms)
            if self.has_waited(timeout_ms, started_ms):
                return self._send_alone(message, timeout_ms, started_ms)
        queue = self.choice.next(queues, self.round_robin.of(message.topic))
        place = self.coalescer.enter(message, queue, started_ms)
        if place is not None:
            return self.coalescer.wait(*place)
        try:
            return self._send_payload(
                self.payload(message, timeout_ms), queue, False, timeout_ms, started_ms
            )
        finally:
            self.coalescer.leave(queue)

    def send_async(self, message: SendRequest, timeout_ms: float) -> SendFuture:
        """One message into its batch; special kinds at once."""
        if message.special:
            return self._launch_single(message, timeout_ms)
        key = message.topic if message.queue is None else message.queue
        future = self.batches.append(
            key, message.body, message.text, timeout_ms, message.flag, message.ordered
        )
        if message.group is not None and message.queue is not None:
            self.groups.sent(message.group, message.queue, future)
        return future

    def send_oneway(self, message: SendRequest, timeout_ms: float) -> None:
        """One message without an answer."""
        started_ms = self.clock.monotonic_ms()
        queue = message.queue or self.next_queue(message.topic, timeout_ms)
        payload = self.payload(message, self.left_ms(timeout_ms, started_ms))
        try:
            self.engine.oneway(payload, queue)
        finally:
            self.identity.release(payload.frame_id)

    def send_frame(
        self,
        queue: MessageQueue,
        pinned: bool,
        bodies: Sequence[bytes],
        texts: Sequence[str],
        flags: Sequence[int] | None,
        timeout_ms: float,
    ) -> SendResult:
        """Ordinary messages of one queue as one frame, waited for."""
        started_ms = self.clock.monotonic_ms()
        payload = encode_records(
            self.identity, queue, bodies, texts, self.clock.now_ms(), timeout_ms, flags
        )
        return self._send_payload(payload, queue, pinned, timeout_ms, started_ms)

    def left_ms(self, timeout_ms: float, started_ms: float) -> float:
        """What is left of a call's time; not below 0."""
        return left_ms(self.clock, timeout_ms, started_ms)

    def has_waited(self, timeout_ms: float, started_ms: float) -> bool:
        """Whether so much of the time is gone that a message must not go into a shared frame, whose
        time is that of who opens it.
        """
        return self.left_ms(timeout_ms, started_ms) < timeout_ms * LEFT_TO_SHARE

    def next_queue(self, topic: str, timeout_ms: float) -> MessageQueue:
        """Round robin over the topic's queues."""
        return self.choice.next(self.queues.find(topic, timeout_ms), self.round_robin.of(topic))

    def choose(
        self, topic: str, queue: object, message_group: str | None, timeout_ms: float
    ) -> MessageQueue:
        """The queue of a message that must not go anywhere else, given or by its group."""
        if message_group is not None:
            return self.groups.choose(topic, message_group, self.queues.find(topic, timeout_ms))
        if (
            not isinstance(queue, MessageQueue)
            or queue.topic != topic
            or not _names_a_queue(queue.broker_name, queue.queue_id)
        ):
            raise ClientError(
                f"{queue!r} is not a queue of topic {topic!r}; use one of the topic's queues", topic
            )
        if self.instance.broker_address(queue.broker_name) is None:
            self.queues.find(topic, timeout_ms)
        return queue

    def place(self, message: SendRequest, placement: Placement, timeout_ms: float) -> float:
        """Give the message its queue; what is left of the time."""
        started_ms = self.clock.monotonic_ms()
        queue, selector, arg, group = placement
        check_placement(queue, selector, group)
        if selector is not None:
            message.queue = self.select(selector, as_message(message), arg, timeout_ms)
        else:
            message.queue = self.choose(message.topic, queue, group, timeout_ms)
        message.ordered, message.group = queue is None, group
        return self.left_ms(timeout_ms, started_ms)

    def select(
        self, selector: Selector, message: Message, arg: object, timeout_ms: float
    ) -> MessageQueue:
        """The queue that the user's selector picks. What it raises passes; nothing is sent then."""
        queues = self.queues.find(message.topic, timeout_ms)
        return checked_choice(selector(list(queues), message, arg), message.topic, queues)

    def payload(self, message: SendRequest, timeout_ms: float) -> FramePayload:
        """The message as it goes on the wire, with a frame id of its own, for which it waits up to
        ``timeout_ms``.
        """
        now_ms = self.clock.now_ms()
        key = self.identity.unique_key(now_ms)
        frame_id = self.identity.take(timeout_ms)
        text = f"{message.text}UNIQ_KEY\x01{key}"
        if not message.special:
            return RecordPayload(
                message.topic, message.body, text, now_ms, frame_id, key, message.flag
            )
        queues = self.config.default_topic_queues
        flag, sys_flag = split_word(message.flag)
        return SingleMessagePayload(
            message.topic,
            self.group,
            message.body,
            text,
            now_ms,
            frame_id,
            (key,),
            flag,
            sys_flag,
            default_queues=queues,
        )

    # --- inside -----------------------------------------------------------------------------------

    def _send_alone(self, message: SendRequest, timeout_ms: float, started_ms: float) -> SendResult:
        """In a frame of its own; waiting for a route and for a frame id is part of the time."""
        queue = message.queue or self.next_queue(message.topic, timeout_ms)
        payload = self.payload(message, self.left_ms(timeout_ms, started_ms))
        return self._send_payload(payload, queue, message.queue is not None, timeout_ms, started_ms)

    def _send_again(
        self, message: SendRequest, queue: MessageQueue, started_ms: float
    ) -> SendResult:
        """Alone, what was refused with others."""
        timeout_ms = self.config.send_timeout_ms
        return self._send_payload(
            self.payload(message, self.left_ms(timeout_ms, started_ms)),
            queue,
            False,
            timeout_ms,
            started_ms,
        )

    def _send_payload(
        self,
        payload: FramePayload,
        queue: MessageQueue,
        pinned: bool,
        timeout_ms: float,
        started_ms: float,
    ) -> SendResult:
        try:
            return self.engine.send(payload, queue, pinned, timeout_ms, started_ms)
        finally:
            self.identity.release(payload.frame_id)

    def _send_ordered(self, message: SendRequest, timeout_ms: float) -> SendResult:
        """In the order of its queue, behind what was sent there before; its batch leaves at
        once.
        """
        assert message.queue is not None
        started_ms = self.clock.monotonic_ms()
        future = self.batches.append(
            message.queue, message.body, message.text, timeout_ms, message.flag, ordered=True
        )
        if message.group is not None:
            self.groups.sent(message.group, message.queue, future)
        self.batches.flush(message.queue)
        try:
            # bounded: it may wait in a callback, too
            return Future.result(
                future, (self.left_ms(timeout_ms, started_ms) + CLOSE_SLACK_MS) / 1000
            )
        except TimeoutError:  # what is before it, or its batch, has a longer time-out
            raise SendTimeout(
                f"no answer within {timeout_ms:.0f} ms; the message may be stored", message.topic
            ) from None

    def _launch_single(self, message: SendRequest, timeout_ms: float) -> SendFuture:
        started_ms = self.clock.monotonic_ms()
        queues = (
            (message.queue,)
            if message.queue is not None
            else self.queues.find(message.topic, timeout_ms)
        )
        weight = len(message.body) + len(message.text)
        queue = self.batches.take_place(queues, weight, self.left_ms(timeout_ms, started_ms))
        outcome = BatchOutcome(queue, self.callbacks)

        def prepare(wait: bool) -> InFlightSend:
            payload = self.payload(message, self.left_ms(timeout_ms, started_ms) if wait else 0.0)
            outcome.message_ids = payload.message_ids
            pinned = message.queue is not None
            return self.engine.in_flight(
                payload, queue, pinned, timeout_ms, started_ms, codes_retried=False
            )

        until_ms = started_ms + timeout_ms
        self.async_sender.submit(
            AsyncSend(outcome, prepare, queue.broker_name, None, until_ms, weight)
        )
        return SendFuture(outcome, 0)

    def _isolated(self, broker_name: str) -> None:
        if self.probe is not None:
            self.probe.begin(broker_name)

    def _make_probe(self) -> BrokerProbe | None:
        faults = self.choice.faults
        if faults is None or not self.config.latency_fault_probe:
            return None
        return BrokerProbe(
            self.group, self.clock, faults, self.instance.broker_address, self.instance.invoke
        )


def _names_a_queue(broker_name: object, queue_id: object) -> bool:
    """Whether they are of the kind that there is."""
    return (
        isinstance(broker_name, str) and isinstance(queue_id, int) and 0 <= queue_id < QUEUE_ID_END
    )
