"""The producer for asyncio: sends run on the caller's event loop, over connections of that loop.

    async with AsyncProducer("web", discovery=...) as producer:
        result = await producer.send("orders", b"body")

Sends that are made in the same turn of the loop to the same topic (``asyncio.gather``) travel in
one frame; a single one leaves at once. Routes, registration and heartbeats are the thread-based
``ClientInstance``'s; only the first send to a topic waits for it.

Decides as ``Producer`` does, by the same rules (``protocol.retry``,
``client.outgoing.send_request``). Invariants: belongs to one loop; nothing in here blocks it; at
most ``frames_in_flight_max`` frames a broker are out; an ordered queue has one; cancelling a send
forgets its result, not the message.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from rmq_ray.client.instance.managed import ServiceState
from rmq_ray.client.interceptors.send_hooks import ASYNC, ONEWAY
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.client.outgoing.send_batches import batch_of, split_batch
from rmq_ray.client.outgoing.send_request import (
    Placement,
    Selector,
    SendRequest,
    check_placement,
    checked_request,
    placed,
    timeout_in_ms,
    when,
)
from rmq_ray.client.producer.cancel_delayed import recall_in_loop
from rmq_ray.client.producer.loop_requests import LoopRequests
from rmq_ray.client.producer.producer_base import ProducerBase
from rmq_ray.client.producer.request_reply import AskOptions, request_of
from rmq_ray.client.sending.loop_sender import LoopSender
from rmq_ray.client.sending.producer_core import CLOSE_SLACK_MS, ProducerCore
from rmq_ray.client.transaction.async_transaction import (
    AsyncHalves,
    AsyncTransaction,
    run_in_transaction,
)
from rmq_ray.client.transaction.transaction import engine_of, required
from rmq_ray.client.transaction.transaction_checks import Checker
from rmq_ray.client.transaction.transaction_listener import (
    TransactionListener,
    TransactionSendResult,
    check_listener,
    half_of,
)
from rmq_ray.clock import Clock
from rmq_ray.config import ProducerConfig, RemotingLimits
from rmq_ray.errors import ClientError
from rmq_ray.extras import named
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message, SendResult
from rmq_ray.model.namespaces import queue_with_namespace, with_namespace
from rmq_ray.ports import Discovery
from rmq_ray.remoting.sockets import process_id


class AsyncProducer(ProducerBase):
    """Sends messages of one producer group from one event loop; arguments and settings are
    ``Producer``'s. Times are seconds.
    """

    def _configure(
        self,
        discovery: Discovery,
        config: ProducerConfig,
        limits: RemotingLimits | None,
        clock: Clock,
        client_id: str | None,
    ) -> None:
        super()._configure(discovery, config, limits, clock, client_id)
        self._sender: LoopSender | None = None
        self._transactions: AsyncHalves | None = None
        self._requests: LoopRequests | None = None
        self._starting: AsyncStart | None = None
        self._process = process_id()

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect. The first send does so too. ``ClientError`` when it was started before or its
        group is taken.
        """
        self._look_for_fork()
        starting = self._under_way()
        if self._state is not ServiceState.CREATE_JUST and (starting is None or starting.wanted):
            raise ClientError(
                f"producer {self.group!r} cannot start: it is {self._state.value}; make a new one",
                self.group,
            )
        await self._start()

    async def close(self) -> None:
        """Wait for the sends that are out, up to the send time-out, then unregister. Later calls do
        nothing. Who is cancelled meanwhile cuts off what is out, which may be stored, and gives up
        a start that is under way. ``ClientError`` in another loop than its own, unless that one has
        ended.
        """
        self._look_for_fork()
        starting, patience_ms = self._under_way(), self._timeout_ms + CLOSE_SLACK_MS
        if starting is not None:
            try:
                await asyncio.wait((starting.task,))
            except asyncio.CancelledError:
                await self._shut(0.0)
                raise
        await self._shut(patience_ms)

    async def _shut(self, patience_ms: float) -> None:
        if self._starting is not None:  # nobody took yet what it made, or makes
            self._starting.give_up()
            self._starting = None
        if self._sender is not None and self._sender.orphaned:
            self._sender = None
        elif self._sender is not None:
            self._sender.check_loop()
        sender, self._sender = self._sender, None
        core, self._core = self._core, None
        if self._state is not ServiceState.INHERITED:
            self._state = ServiceState.SHUTDOWN_ALREADY
        try:
            if sender is not None:
                await sender.close(patience_ms)
        finally:
            if core is not None:
                await asyncio.to_thread(core.close)

    async def __aenter__(self) -> Self:
        if self._state is ServiceState.CREATE_JUST or self._starting is not None:
            await self._ready()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- sending ----------------------------------------------------------------------------------

    async def send(  # noqa: PLR0913 - the public signature
        self,
        topic_or_message: str | Message,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
        message_group: str | None = None,
        delay_level: int = 0,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message and wait until the broker has it; see ``Producer.send``. Many at once:
        ``asyncio.gather``.
        """
        sender = await self._ready()
        timeout_ms = self._time(timeout)
        message = checked_request(
            topic_or_message,
            body,
            (tag, keys, properties),
            when(delay_level, delay, deliver_at),
            self._config.body_bytes_max,
        )
        placement = placed(queue, selector, arg, message_group)
        if self._steps is not None:
            self._steps.name(message)
        return await self._send(sender, message, placement, timeout_ms)

    async def send_oneway(  # noqa: PLR0913 - the public signature
        self,
        topic_or_message: str | Message,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
        message_group: str | None = None,
        delay_level: int = 0,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
    ) -> None:
        """Send one message without any answer: it may be lost unnoticed. Raises ``SendError`` when
        it could not be written.
        """
        sender = await self._ready()
        message = checked_request(
            topic_or_message,
            body,
            (tag, keys, properties),
            when(delay_level, delay, deliver_at),
            self._config.body_bytes_max,
        )
        placement = placed(queue, selector, arg, message_group)
        if self._steps is None:
            await sender.send_oneway(
                message, await self._place(message, placement, self._timeout_ms)
            )
            return
        self._steps.name(message)
        with self._steps.around(message, ONEWAY):
            left_ms = await self._place(message, self._steps.placement(placement), self._timeout_ms)
            self._steps.pack(message)
            await sender.send_oneway(message, left_ms)

    async def send_batch(
        self,
        messages: Sequence[Message] | str,
        bodies: Sequence[bytes | Message] | MessageQueue | None = None,
        queue: MessageQueue | None = None,
        *,
        tags: str | Sequence[str | None] | None = None,
        keys: str | Sequence[str | Sequence[str] | None] | None = None,
        properties: Mapping[str, str] | Sequence[Mapping[str, str] | None] | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic, or a topic and bodies, to one queue; one result per frame
        sent. See ``Producer.send_batch``.
        """
        sender = await self._ready()
        timeout_ms = self._time(timeout)
        batch, queue = batch_of(messages, bodies, queue, (tags, keys, properties))
        topic, parts = split_batch(batch, self._config)
        namespace = self._config.namespace
        topic, queue = (
            with_namespace(namespace, topic),
            None if queue is None else queue_with_namespace(namespace, queue),
        )
        core = self._core
        assert core is not None
        queues, left_ms = await sender.queues(topic, timeout_ms)
        target = (
            sender.next_queue(queues) if queue is None else core.choose(topic, queue, None, 0.0)
        )
        return await sender.send_frames(
            parts, target, queue is not None, left_ms, timeout_ms, self._steps
        )

    async def send_arrow(
        self,
        topic: str,
        data: object,
        *,
        body: str = "body",
        key: str | None = None,
        tag: str | None = None,
        properties: str | Sequence[str] = (),
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Send the rows of a ``pyarrow.Table`` or ``RecordBatch``; see ``Producer.send_arrow``.
        Encoded in threads: the loop goes on.
        """
        sender = await self._ready()
        assert self._core is not None
        with named():  # pyarrow takes 0.15 s to load
            from rmq_ray.client.sending.arrow_sending import ArrowCall, send_table

        call = ArrowCall(topic, data, (body, key, tag, properties), queue, self._time(timeout))
        return await send_table(self._core, sender, self._steps, call)

    def transaction(
        self, checker: Checker | None = None, *, timeout: float | None = None
    ) -> AsyncTransaction:
        """Begin a transaction: ``async with producer.transaction(checker) as tx: await
        tx.send("orders", b"x")``; see ``Producer.transaction``.
        """
        mine = required(self._checker if checker is None else checker)
        return AsyncTransaction(
            lambda: self._halves(mine), self._time(timeout), self._config.body_bytes_max
        )

    async def send_in_transaction(
        self,
        message: Message,
        listener: TransactionListener,
        arg: Any = None,
        *,
        timeout: float | None = None,
    ) -> TransactionSendResult:
        """Store the half, run ``listener.execute_local_transaction`` (awaited where it is a
        coroutine), commit or roll back and wait for the acknowledgement.

        See ``TransactionProducer.send_in_transaction``; the listener of the last call answers the
        brokers' questions.
        """
        check_listener(listener)
        half = half_of(message, self._config.body_bytes_max)
        return await run_in_transaction(
            await self._halves(listener.check_local_transaction),
            half,
            message,
            listener,
            arg,
            self._time(timeout),
        )

    async def recall_message(
        self, topic: str, recall_handle: str, *, timeout: float | None = None
    ) -> str:
        """Take back a message that waits for its delivery time; see ``Producer.recall_message``."""
        sender = await self._ready()
        assert self._core is not None
        return await recall_in_loop(self._core, sender, topic, recall_handle, self._time(timeout))

    async def request(
        self,
        topic_or_message: str | Message,
        body: bytes | None = None,
        *,
        timeout: float = 3.0,
        **options: Unpack[AskOptions],
    ) -> MessageExt:
        """Send one message and wait for the reply of a consumer to it; see ``Producer.request``."""
        sender, timeout_ms = await self._ready(), timeout_in_ms(timeout)
        assert self._core is not None
        message, placement = request_of(
            topic_or_message, body, options, self._config.body_bytes_max
        )
        if self._steps is not None:
            self._steps.name(message)
        if self._requests is None or self._requests.sender is not sender:
            self._requests = LoopRequests(self._core, sender, partial(self._send, sender))
        return await self._requests.ask(message, placement, timeout_ms)

    # --- inside -----------------------------------------------------------------------------------

    async def _send(
        self,
        sender: LoopSender,
        message: SendRequest,
        placement: Placement | None,
        timeout_ms: float,
    ) -> SendResult:
        """A message whose topic has its whole name, through the producer's other steps if it has
        some.
        """
        if self._steps is None:
            timeout_ms = await self._place(message, placement, timeout_ms)
            return await sender.send(message, timeout_ms)
        with self._steps.around(message, ASYNC) as ctx:
            timeout_ms = await self._place(message, self._steps.placement(placement), timeout_ms)
            self._steps.pack(message)
            ctx.result = result = await sender.send(message, timeout_ms)
        return result

    async def _halves(self, checker: Checker) -> AsyncHalves:
        sender = await self._ready()
        assert self._core is not None
        engine_of(self._core, checker)
        if self._transactions is None or self._transactions.sender is not sender:
            self._transactions = AsyncHalves(self._core, sender, self._steps, self._place)
        return self._transactions

    async def _place(
        self, message: SendRequest, placement: Placement | None, timeout_ms: float
    ) -> float:
        """Give the message its queue; what is left of the time."""
        if placement is None:
            return timeout_ms
        core, sender = self._core, self._sender
        if core is None or sender is None:
            raise ClientError(f"producer {self.group!r} was closed; nothing was sent", self.group)
        check_placement(placement[0], placement[1], placement[3])
        _, left_ms = await sender.queues(
            message.topic, timeout_ms
        )  # the route is known from here on: what follows does not block
        core.place(message, placement, 0.0)
        return left_ms

    async def _ready(self) -> LoopSender:
        self._look_for_fork()
        sender = self._sender
        if sender is not None:
            sender.check_loop()
            return sender
        if self._under_way() is None and self._state is not ServiceState.CREATE_JUST:
            raise ClientError(
                f"producer {self.group!r} is {self._state.value}; make a new one", self.group
            )
        return await self._start()

    def _look_for_fork(self) -> None:
        """In a forked child, one that was not started yet is as good as new; connections and frame
        numbers of any other are the parent's.
        """
        if self._process == process_id():
            return
        self._process = process_id()
        self._starting = None
        if self._state is not ServiceState.CREATE_JUST:
            self._core = self._sender = None
            self._state = ServiceState.INHERITED

    def _under_way(self) -> AsyncStart | None:
        """The start that others wait for. ``ClientError`` when another loop runs it; one whose loop
        has ended never was.
        """
        starting = self._starting
        if starting is None:
            return None
        if starting.over:
            starting.give_up()
            self._forget(starting)
            return None
        starting.check_loop()
        return starting

    async def _start(self) -> LoopSender:
        """Calls that come while another starts wait for it, and go on when that one is cancelled. A
        start for which nobody waits when it ends was none: what it made is closed.
        """
        while True:  # ends: each round ends a start
            starting = self._under_way()
            if starting is None:
                if self._state is not ServiceState.CREATE_JUST:
                    raise self._closed_meanwhile()
                self._state = ServiceState.START_FAILED
                starting = self._starting = AsyncStart(self.group, self._make_core, self._begin)
            await starting.wait()
            self._take(starting)
            if self._sender is not None:
                return self._sender

    async def _begin(self, starting: AsyncStart) -> None:
        """A group that is taken, a loop that ends meanwhile, or waiters who are all cancelled leave
        the state as it was.
        """
        try:
            await asyncio.to_thread(starting.run)
            if starting.wanted:
                return
            await asyncio.to_thread(starting.discard)
            self._forget(starting)
        except (ClientError, asyncio.CancelledError):
            starting.give_up()
            self._forget(starting)
            raise
        finally:
            if self._starting is starting and not starting.made:
                self._starting = None

    def _take(self, starting: AsyncStart) -> None:
        """The first of those who waited takes what it made."""
        core = starting.take()
        if core is None:
            return
        self._starting, self._core = None, core
        self._watch(core)
        self._sender = LoopSender(core, self._limits or RemotingLimits())
        self._state = ServiceState.RUNNING

    def _forget(self, starting: AsyncStart) -> None:
        """It leaves the producer as it was before. Not so when its loop was closed, and this is
        what remains of it.
        """
        if self._starting is starting:
            self._starting = None
            if self._state is ServiceState.START_FAILED:
                self._state = ServiceState.CREATE_JUST

    def _closed_meanwhile(self) -> ClientError:
        return ClientError(
            f"producer {self.group!r} was closed while it started; nothing was sent, make a "
            f"new one",
            self.group,
        )


class AsyncStart:
    """One start, and who has the core that its thread makes: it is taken once, or closed once,
    whichever of the thread and the loop ends first.

        thread: make ──> run() ──lock──> left for the loop ──> take(), by the first who waits
                              └──given up──> closed

    Belongs to the loop in which it was made. ``make``: connects, in a thread; ``begin(self)``:
    the start, a task of that loop.
    """

    def __init__(
        self,
        group: str,
        make: Callable[[], ProducerCore],
        begin: Callable[[AsyncStart], Coroutine[Any, Any, None]],
    ) -> None:
        self._group = group
        self._make = make
        self._lock = threading.Lock()
        self._given_up = False
        self._made: ProducerCore | None = None
        self._waiting = 0
        self.task = asyncio.create_task(begin(self))

    @property
    def over(self) -> bool:
        """Whether nobody gets anything from it: it was given up, or its loop was closed, or
        cancelled it before its first step.
        """
        return self._given_up or self.task.cancelled() or self.task.get_loop().is_closed()

    @property
    def made(self) -> bool:
        """Whether a core is there to be taken."""
        return self._made is not None

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for it."""
        return self._waiting > 0

    def check_loop(self) -> None:
        """``ClientError`` when another loop is running than the one in which it goes on."""
        if self.task.get_loop() is not asyncio.get_running_loop():
            raise ClientError(
                f"producer {self._group!r} is being started by another event loop; make one "
                f"per loop",
                self._group,
            )

    async def wait(self) -> None:
        """Until it has ended; what it raises. Who is cancelled and was the last to wait leaves a
        core that is made already to nobody.
        """
        self._waiting += 1
        try:
            await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if self._waiting == 1 and self.task.done():
                self.give_up()
            raise
        finally:
            self._waiting -= 1

    def run(self) -> None:
        """In the thread: make the core, and leave it for the loop. What ``make`` raises."""
        made = self._make()
        with self._lock:
            if not self._given_up:
                self._made = made
                return
        made.close()

    def take(self) -> ProducerCore | None:
        """The core, after ``run``: it is the caller's. None: it was taken, or given up."""
        with self._lock:
            made, self._made = self._made, None
        return made

    def discard(self) -> None:
        """In a thread, after ``run``: nobody waits for the core, it is closed."""
        made = self.take()
        if made is not None:
            made.close()

    def give_up(self) -> None:
        """Nobody will take the core: it is closed, by a thread. Does not block."""
        with self._lock:
            self._given_up = True
            made, self._made = self._made, None
        if made is not None:
            threading.Thread(
                target=made.close, name=f"rmq-given-up-{self._group}", daemon=True
            ).start()
