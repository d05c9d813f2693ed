"""The machinery behind a producer in one process: made at its start, thrown away at its end; a
forked child cannot use it.

    Producer (names, life) ──> ProducerCore ──> SendEngine                     one send, waited for
                                            ──> SendCoalescer ──> AsyncSender  sends of many threads
                                            ──> Accumulator ──> AsyncSender    batches, futures
                                            ──> ClientInstance                 routes, connections

Decides nothing about messages (``client.outgoing.send_request``) or retries. Invariant: every frame
id taken is released exactly when its payload will not be sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.timers import ClientTimers
from rmq_ray.client.outgoing.callbacks import Callbacks
from rmq_ray.client.outgoing.producer_identity import ProducerIdentity
from rmq_ray.client.outgoing.queue_choice import BrokerProbe, GroupOrder, QueueChoice, RoundRobin
from rmq_ray.client.outgoing.send_future import BatchOutcome, SendFuture
from rmq_ray.client.outgoing.send_payload import (
    FramePayload,
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
from rmq_ray.client.sending.topic_queues import TopicQueues
from rmq_ray.clock import left_ms
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import ClientError, SendTimeout
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import Message, SendResult
from rmq_ray.model.topics import DEFAULT_TOPIC, SELF_TEST_TOPIC
from rmq_ray.protocol.routing.queue_selection import checked_choice
from rmq_ray.remoting.wire.frame import Command

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
        """The ``RequestReply``, once there was a request."""
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

    @property
    def due_ms(self) -> float:
        """See ``Debtor``: the time-outs that callers asked for, and one more of a callback's."""
        until_ms = max(self.batches.until_ms, self.async_sender.until_ms)
        left = until_ms - self.clock.monotonic_ms()
        return max(self.config.send_timeout_ms, left) + CLOSE_SLACK_MS

    @property
    def outstanding(self) -> int:
        """See ``Debtor``. Counted in the order in which a send moves on: none is missed."""
        return len(self.batches.outcomes()) + self.async_sender.waiting + self.callbacks.outstanding

    @property
    def admitted(self) -> int:
        """See ``Debtor``."""
        return self.async_sender.admitted

    def ship(self) -> None:
        """See ``Debtor``."""
        self.batches.flush()

    def wait_through(self, timeout_ms: float) -> None:
        """See ``Debtor``."""
        until_ms = self.clock.monotonic_ms() + timeout_ms
        self.async_sender.wait_idle(timeout_ms)
        self.callbacks.wait_through(max(0.0, until_ms - self.clock.monotonic_ms()))

    def give_up(self, why: str) -> None:
        """See ``Debtor``."""
        self.batches.leave_all()
        self.async_sender.abandon(why)

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
        queues = self.instance.routes.writable(message.topic)
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
            self.coalescer.lone_ended_to(queue)

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
        fields: dict[str, str] | None = None,
    ) -> SendResult:
        """Ordinary messages of one queue as one frame, waited for. ``fields``: of its request."""
        started_ms = self.clock.monotonic_ms()
        payload = encode_records(
            self.identity, queue, bodies, texts, self.clock.now_ms(), timeout_ms, flags
        )
        payload.fields = fields
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
