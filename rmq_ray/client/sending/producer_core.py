"""The machinery behind a producer in one process: made at its start, thrown away at its end; a
forked child cannot use it.

    Producer (names, life) ──> ProducerCore ──> Sending       one send, waited for
                                            ──> Accumulator ──> Launcher      batches, futures
                                            ──> ClientInstance                routes, connections, heartbeat

Decides nothing about messages (``client.outgoing.send_request``) or retries. Called by
``client.producer.producer`` only. Invariant: every frame id taken is released exactly when its load
will not be sent again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.identity import ProducerIdentity
from rmq_ray.client.instance.timers import Timers
from rmq_ray.client.outgoing.broker_probe import BrokerProbe
from rmq_ray.client.outgoing.compressing import split_word
from rmq_ray.client.outgoing.group_order import GroupOrder
from rmq_ray.client.outgoing.queue_choice import QueueChoice
from rmq_ray.client.outgoing.send_future import BatchOutcome, SendFuture
from rmq_ray.client.outgoing.send_payload import Load, RecordLoad, SingleLoad
from rmq_ray.client.outgoing.send_request import (
    Outgoing,
    Placement,
    Selector,
    as_message,
    check_placement,
)
from rmq_ray.client.sending.async_sender import Job, Launcher, Slots
from rmq_ray.client.sending.batching import Accumulator, encode_load
from rmq_ray.client.sending.route_wait import Finding
from rmq_ray.client.sending.send_coalescer import SendCoalescer
from rmq_ray.client.sending.sending import LEFT_TO_SHARE, Delivery, Sending, Turns
from rmq_ray.clock import left_ms
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import ClientError, SendTimeout
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import Message, SendResult
from rmq_ray.model.topics import DEFAULT_TOPIC
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
        self.turns = Turns()
        self.groups = GroupOrder()
        self.choice = QueueChoice(self.clock, config.latency_fault, self._isolated)
        self.sending = Sending(instance, config, self.turns, self.choice)
        self.requests: dict[int, Callable[[Command, Address], Command | None]] = {}
        """Request code of a broker -> who answers it, in a reader thread."""
        self.transactions: object | None = None
        """The ``TransactionEngine``, once there is one."""
        self.request_reply: object | None = None
        """The ``Requests``, once there was one."""
        self.closing = False
        """Who waits for a route stops waiting."""
        self.closers: list[Callable[[], None]] = []
        """What ends with the producer, before its connections do."""
        self.disowners: list[Callable[[ClientError], None]] = []
        """What else waits in the parent only."""
        self.finishers: list[Callable[[], None]] = []
        """What ends behind the last send."""
        self.probe = self._make_probe()
        self.worker = Timers(self.clock, f"rmq-producer-{config.group}")
        self.slots = Slots(config.frames_in_flight_max, config.buffer_bytes_max)
        self.launcher = Launcher(self.sending, self.slots, self.worker, self.resolved)
        self.coalescer = SendCoalescer(self.sending, self.identity, self.launcher, self._send_again)
        self.batches = Accumulator(
            self.sending,
            self.identity,
            self.launcher,
            self.slots,
            self.worker,
            self.turns,
            self.find_queues,
        )

    # --- as a managed producer --------------------------------------------------------------------

    def published_topics(self) -> list[str]:
        """The template topic, and all topics sent to."""
        return [DEFAULT_TOPIC, *self.turns.topics()]

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
        self.closing = True
        for close in self.closers:
            close()
        self.batches.flush()
        self.launcher.wait_idle(self.config.send_timeout_ms + CLOSE_SLACK_MS)
        if self.probe is not None:
            self.probe.stop()
        self._run_callbacks()
        self.worker.close()
        self.launcher.abandon("the producer was closed before the broker answered")
        for finish in self.finishers:
            finish()
        self.instance.unregister_producer(self.group)
        self.instance.release()

    def flush(self, timeout_ms: float) -> None:
        """Send what lingers and wait until every asynchronous send so far has ended.
        ``SendTimeout`` when they have not in time.
        """
        self.batches.flush()
        if not self.launcher.wait_idle(timeout_ms):
            raise SendTimeout(
                f"not every asynchronous send ended within {timeout_ms:.0f} ms; their "
                f"futures will still end"
            )

    def disown(self) -> None:
        """In a forked child: end the futures that nobody will ever complete here."""
        error = ClientError(
            "this future was made before a fork and is completed in the parent process only"
        )
        for outcome in [*self.batches.outcomes(), *self.launcher.outcomes()]:
            outcome.orphan(error)
        for disown in self.disowners:
            disown(error)

    # --- sending ----------------------------------------------------------------------------------

    def send(self, message: Outgoing, timeout_ms: float) -> SendResult:
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

    def send_plain(self, message: Outgoing) -> SendResult:
        """An ordinary message to any queue with the configured time-out: alone, or with other
        threads' messages when enough frames are out.
        """
        timeout_ms, started_ms = self.config.send_timeout_ms, self.clock.monotonic_ms()
        queues = self.known_queues(message.topic)
        if queues is None:
            queues = self.find_queues(message.topic, timeout_ms)
            if self.has_waited(timeout_ms, started_ms):
                return self._send_alone(message, timeout_ms, started_ms)
        queue = self.choice.next(queues, self.turns.of(message.topic))
        place = self.coalescer.enter(message, queue, started_ms)
        if place is not None:
            return self.coalescer.wait(*place)
        try:
            return self._send_load(
                self.make_load(message, timeout_ms), queue, False, timeout_ms, started_ms
            )
        finally:
            self.coalescer.leave(queue)

    def send_async(self, message: Outgoing, timeout_ms: float) -> SendFuture:
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

    def send_oneway(self, message: Outgoing, timeout_ms: float) -> None:
        """One message without an answer."""
        started_ms = self.clock.monotonic_ms()
        queue = message.queue or self.next_queue(message.topic, timeout_ms)
        load = self.make_load(message, self.left_ms(timeout_ms, started_ms))
        try:
            self.sending.oneway(load, queue)
        finally:
            self.identity.release(load.frame_id)

    def send_frame(
        self,
        queue: MessageQueue,
        pinned: bool,
        bodies: Sequence[bytes],
        texts: Sequence[str],
        flags: Sequence[int] | None,
        timeout_ms: float,
    ) -> SendResult:  # noqa: PLR0913 - a frame
        """Ordinary messages of one queue as one frame, waited for."""
        started_ms = self.clock.monotonic_ms()
        load = encode_load(
            self.identity, queue, bodies, texts, self.clock.now_ms(), timeout_ms, flags
        )
        return self._send_load(load, queue, pinned, timeout_ms, started_ms)

    def known_queues(self, topic: str) -> Sequence[MessageQueue] | None:
        """The queues of a topic without asking anybody; None = ``find_queues`` has to ask, and
        perhaps to wait.
        """
        info = self.instance.routes.publish(topic)
        return info.queues if info is not None and info.queues else None

    def find_queues(self, topic: str, timeout_ms: float) -> Sequence[MessageQueue]:
        """The queues of a topic; asks again, with pauses, while no name server answers or no master
        is there.

        Raises ``NoRoute``, ``TopicNotWritable``, ``BrokerUnreachable``, and ``ClientError`` when
        the producer is closed meanwhile.
        """
        found = self.known_queues(topic)
        if found is not None:
            return found
        finding, deadline = self.finding(topic), self.clock.monotonic_ms() + timeout_ms
        while (found := finding.attempt(deadline)) is None:  # ends: at the deadline
            pause = finding.pause_ms()
            if self.closing:
                raise self.closed_while_finding(topic)
            if self.clock.monotonic_ms() + pause >= deadline:
                raise finding.given_up(timeout_ms) from finding.met
            self.clock.sleep_ms(pause)
        return found

    def finding(self, topic: str) -> Finding:
        """A wait for the queues of a topic."""
        return Finding(self.instance.routes, topic, self.config.default_topic_queues)

    def closed_while_finding(self, topic: str) -> ClientError:
        """What a caller is told who waits for a route when the producer is closed."""
        return ClientError(
            f"producer {self.group!r} was closed while a send waited for the route of topic "
            f"{topic!r}; nothing was sent",
            topic,
        )

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
        return self.choice.next(self.find_queues(topic, timeout_ms), self.turns.of(topic))

    def choose(
        self, topic: str, queue: object, message_group: str | None, timeout_ms: float
    ) -> MessageQueue:
        """The queue of a message that must not go anywhere else, given or by its group."""
        if message_group is not None:
            return self.groups.choose(topic, message_group, self.find_queues(topic, timeout_ms))
        if (
            not isinstance(queue, MessageQueue)
            or queue.topic != topic
            or not _names_a_queue(queue.broker_name, queue.queue_id)
        ):
            raise ClientError(
                f"{queue!r} is not a queue of topic {topic!r}; use one of the topic's queues", topic
            )
        if self.instance.broker_address(queue.broker_name) is None:
            self.find_queues(topic, timeout_ms)
        return queue

    def place(self, message: Outgoing, placement: Placement, timeout_ms: float) -> float:
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
        queues = self.find_queues(message.topic, timeout_ms)
        return checked_choice(selector(list(queues), message, arg), message.topic, queues)

    def make_load(self, message: Outgoing, timeout_ms: float) -> Load:
        """The message as it goes on the wire, with a frame id of its own, for which it waits up to
        ``timeout_ms``.
        """
        now_ms = self.clock.now_ms()
        key = self.identity.unique_key(now_ms)
        frame_id = self.identity.take(timeout_ms)
        text = f"{message.text}UNIQ_KEY\x01{key}"
        if not message.special:
            return RecordLoad(
                message.topic, message.body, text, now_ms, frame_id, key, message.flag
            )
        queues = self.config.default_topic_queues
        flag, sys_flag = split_word(message.flag)
        return SingleLoad(
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

    def _send_alone(self, message: Outgoing, timeout_ms: float, started_ms: float) -> SendResult:
        """In a frame of its own; waiting for a route and for a frame id is part of the time."""
        queue = message.queue or self.next_queue(message.topic, timeout_ms)
        load = self.make_load(message, self.left_ms(timeout_ms, started_ms))
        return self._send_load(load, queue, message.queue is not None, timeout_ms, started_ms)

    def _send_again(self, message: Outgoing, queue: MessageQueue, started_ms: float) -> SendResult:
        """Alone, what was refused with others."""
        timeout_ms = self.config.send_timeout_ms
        return self._send_load(
            self.make_load(message, self.left_ms(timeout_ms, started_ms)),
            queue,
            False,
            timeout_ms,
            started_ms,
        )

    def _send_load(
        self, load: Load, queue: MessageQueue, pinned: bool, timeout_ms: float, started_ms: float
    ) -> SendResult:  # noqa: PLR0913 - a send
        try:
            return self.sending.send(load, queue, pinned, timeout_ms, started_ms)
        finally:
            self.identity.release(load.frame_id)

    def _send_ordered(self, message: Outgoing, timeout_ms: float) -> SendResult:
        """Through the queue's lane, behind what was sent to it before; its batch leaves at once."""
        assert message.queue is not None
        started_ms = self.clock.monotonic_ms()
        future = self.batches.append(
            message.queue, message.body, message.text, timeout_ms, message.flag, ordered=True
        )
        if message.group is not None:
            self.groups.sent(message.group, message.queue, future)
        self.batches.flush(message.queue)
        try:
            return future.result((self.left_ms(timeout_ms, started_ms) + CLOSE_SLACK_MS) / 1000)
        except TimeoutError:  # what is before it in the lane, or its batch, has a longer time-out
            raise SendTimeout(
                f"no answer within {timeout_ms:.0f} ms; the message may be stored", message.topic
            ) from None

    def _launch_single(self, message: Outgoing, timeout_ms: float) -> SendFuture:
        started_ms = self.clock.monotonic_ms()
        queues = (
            (message.queue,)
            if message.queue is not None
            else self.find_queues(message.topic, timeout_ms)
        )
        weight = len(message.body) + len(message.text)
        queue = self.batches.take_slot(queues, weight, self.left_ms(timeout_ms, started_ms))
        outcome = BatchOutcome(queue)

        def prepare(wait: bool) -> Delivery:
            load = self.make_load(message, self.left_ms(timeout_ms, started_ms) if wait else 0.0)
            outcome.message_ids = load.message_ids
            attempts = self.sending.attempts_since(
                started_ms, queue, message.queue is not None, timeout_ms
            )
            return Delivery(load, queue, attempts, message.queue is not None)

        job = Job(outcome, prepare, queue.broker_name, None, started_ms + timeout_ms, weight)
        self.launcher.admit(job)
        self.launcher.launch(job)
        return SendFuture(outcome, 0)

    def _run_callbacks(self) -> None:
        """Users' callbacks of sends that have ended run before the worker stops; a callback that
        closes the producer does not wait for itself.
        """
        if not self.worker.is_current_thread:
            through = threading.Event()
            self.worker.after(0.0, through.set)
            through.wait(CLOSE_SLACK_MS / 1000)

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

    def resolved(self, delivery: Delivery) -> None:
        """A load will not be sent again."""
        self.identity.release(delivery.load.frame_id)


def _names_a_queue(broker_name: object, queue_id: object) -> bool:
    """Whether they are of the kind that there is."""
    return (
        isinstance(broker_name, str) and isinstance(queue_id, int) and 0 <= queue_id < QUEUE_ID_END
    )
