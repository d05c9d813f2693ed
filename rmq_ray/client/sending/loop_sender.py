"""Frames of one event loop: what joins them, where they go, and over which connections.

    send ──find, ask──> LoopGroup (one per key and turn of the loop)
                            └──call_soon──> ship (task) ──> resolve ──> AsyncConnection

Everything runs in the loop except route look-ups, which a thread does
(``client.sending.loop_route_wait``). What follows a failure is decided by
``client.sending.send_engine``, as for threads; only the waiting differs. Halves and ends of
transactions are grouped by ``LoopGroups``, too.

Invariants: every caller of a group gets an end, also when the producer is closed before the group's
task took its first step; a caller that is cancelled leaves its item in the group; at most
``frames_in_flight_max`` frames a broker are out; an ordered queue has one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.outgoing.confirming import confirmed, own_copy, unconfirmed
from rmq_ray.client.outgoing.send_payload import (
    RECORD_OVERHEAD,
    FrameParts,
    FramePayload,
    StoredAt,
    encode_records,
)
from rmq_ray.client.outgoing.send_request import SendRequest
from rmq_ray.client.sending.batch_bisect import bisected
from rmq_ray.client.sending.loop_route_wait import LoopRouteWait
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.client.sending.send_engine import (
    LEFT_TO_SHARE,
    InFlightSend,
    Outcome,
    SendEngine,
    frame_result,
    message_results,
    oneway_failed,
)
from rmq_ray.client.sending.send_steps import SendSteps, partly
from rmq_ray.clock import Clock
from rmq_ray.config import RemotingLimits
from rmq_ray.errors import (
    BrokerBusy,
    ClientError,
    ConnectFailed,
    RemotingError,
    RmqError,
    SendError,
    SendUnknown,
)
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import SendResult
from rmq_ray.model.namespaces import queue_with_namespace
from rmq_ray.remoting.async_connection import AsyncConnection
from rmq_ray.remoting.pool import connect_budget_ms
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command

Made = TypeVar("Made")
Item = TypeVar("Item")
Result = TypeVar("Result")
FRAME_ID_PAUSE_S = 0.01  # while an unanswered frame holds back newer ones
log = logging.getLogger("rmq_ray.client")


class LoopTasks:
    """The tasks of one producer on its loop. ``before_close``: what leaves when it is closed."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed = False
        self.before_close: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it as a task that ``close`` waits for, and then cancels: perhaps before its first
        step. One that is begun later is cancelled at once.
        """
        task = self.loop.create_task(work)
        if self.closed:
            task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self, timeout_ms: float) -> None:
        """Ship what waits and wait for what is out, also what leaves meanwhile. Who is cancelled
        cuts off what is out.
        """
        for leave in self.before_close:
            leave()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    while self._tasks:  # ends: no tasks, or the time-out
                        await asyncio.wait(self._tasks)
        finally:  # also when who closes does not wait for that any longer
            self.closed = True
            for task in self._tasks:
                task.cancel()


class LoopGroup(Generic[Item, Result]):
    """What callers of one turn of the loop ask for with the same key. ``begun``: its task runs;
    ``answers``: what each caller waits for.
    """

    __slots__ = ("_ended", "answers", "begun", "bytes", "items", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.items: list[Item] = []
        self.bytes = 0
        self.begun = False
        self.answers: list[asyncio.Future[Result]] = []
        self._ended = False

    def done(self) -> bool:
        """Whether everything in it has ended."""
        return self._ended

    def end(self, outcome: Sequence[Result | SendError] | RmqError) -> None:
        """Tell each caller its answer, perhaps an error, or the error that all of them met. A
        second call does nothing.
        """
        if self._ended:
            return
        self._ended = True
        ends = [outcome] * len(self.answers) if isinstance(outcome, RmqError) else outcome
        for answer, mine in zip(self.answers, ends, strict=True):
            if answer.done():  # its caller was cancelled
                continue
            if isinstance(mine, RmqError):
                answer.set_exception(own_copy(mine))
            else:
                answer.set_result(mine)


G = TypeVar("G", bound=LoopGroup[Any, Any])


class LoopGroups(Generic[G, Item, Result]):
    """Who comes in the same turn of the loop with the same key travels together, up to ``limits``
    (items, bytes). ``ship(group)``: the answers. ``lost(group)``: what its callers get when the
    producer is closed. Decides who travels with whom, not how anything is sent.
    """

    def __init__(
        self,
        tasks: LoopTasks,
        ship: Callable[[G], Awaitable[Sequence[Result | SendError]]],
        limits: tuple[int, int],
        lost: Callable[[G], RmqError],
    ) -> None:
        self._tasks = tasks
        self._ship = ship
        self._items_max, self._bytes_max = limits
        self._lost = lost
        self._open: dict[Hashable, G] = {}
        tasks.before_close.append(self._leave_all)

    def find(self, key: Hashable, size: int) -> G | None:
        """The key's open group; one that has no room for ``size`` bytes leaves."""
        group = self._open.get(key)
        if group is not None and group.bytes + size > self._bytes_max:
            self.leave(group)
            return None
        return group

    def open(self, group: G) -> G:
        """Others find this group until the turn of the loop is over."""
        self._open[group.key] = group
        self._tasks.loop.call_soon(self.leave, group)
        return group

    async def ask(self, group: G, item: Item, size: int) -> Result:
        """The answer to an item of the group, as ``find`` or ``open`` gave it in this step. Raises
        what the request met.
        """
        answer: asyncio.Future[Result] = self._tasks.loop.create_future()
        group.items.append(item)
        group.answers.append(answer)
        group.bytes += size
        if len(group.items) >= self._items_max:
            self.leave(group)
        return await answer

    def leave(self, group: G) -> None:
        """The turn is over, or the group is full: nothing joins it any more."""
        if self._open.get(group.key) is group:
            del self._open[group.key]
            self._tasks.start(self._run(group)).add_done_callback(partial(self._ended, group))

    def _leave_all(self) -> None:
        for group in list(self._open.values()):
            self.leave(group)

    async def _run(self, group: G) -> None:
        group.begun = True
        outcome: Sequence[Result | SendError] | RmqError
        try:
            outcome = await self._ship(group)
        except RmqError as error:
            outcome = error
        except Exception as error:  # every caller must get an end
            log.exception("a frame for %s could not be sent", group.key)
            outcome = SendError(f"a frame for {group.key} could not be sent: {error!r}", group.key)
        group.end(outcome)

    def _ended(self, group: G, _task: asyncio.Task[None]) -> None:
        """The group's task is over, perhaps cancelled before its first step: a coroutine that never
        ran has no ``finally``.
        """
        if not group.done():
            group.end(self._lost(group))


class MessageFrame(LoopGroup[SendRequest, SendResult]):
    """Messages for ``queue``. ``key``: their topic, or the queue that they must go to."""

    __slots__ = ("began_ms", "ordered", "queue", "timeout_ms")

    def __init__(
        self, key: str | MessageQueue, queue: MessageQueue, timeout_ms: float, began_ms: float
    ) -> None:
        super().__init__(key)
        self.queue = queue
        self.timeout_ms = timeout_ms
        self.began_ms = began_ms
        self.ordered = False

    def lost(self) -> RmqError:
        """What its senders get when the producer is closed before it was answered."""
        if self.begun:
            return SendUnknown(
                "the producer was closed before the broker answered; the message may be stored",
                self.queue.topic,
            )
        return ClientError(
            "the producer was closed before the message left; nothing was sent", self.queue.topic
        )


class LoopConnections:
    """The loop's connections to brokers."""

    def __init__(
        self, tasks: LoopTasks, group: str, instance: ClientInstance, limits: RemotingLimits
    ) -> None:
        self._tasks = tasks
        self._group = group
        self._instance = instance
        self._limits = limits
        self._links: dict[Address, AsyncConnection] = {}
        self._dialling: dict[Address, asyncio.Task[AsyncConnection]] = {}

    def check_open(self) -> None:
        """``ClientError`` when the producer is closed: nothing is begun any more, no connection
        opened.
        """
        if self._tasks.closed:
            raise ClientError(f"producer {self._group!r} was closed; nothing was sent", self._group)

    async def close(self) -> None:
        """Behind the last task."""
        links, self._links = self._links, {}
        for dialling in self._dialling.values():
            dialling.cancel()
        if links:
            loop = self._tasks.loop
            await asyncio.wait([loop.create_task(link.close()) for link in links.values()])

    async def reached(self, broker_name: str, timeout_ms: float) -> AsyncConnection:
        """The connection, in half of the time at most."""
        try:
            async with asyncio.timeout(connect_budget_ms(self._limits, timeout_ms) / 1000):
                return await self._connection(broker_name)
        except TimeoutError:
            raise ConnectFailed(
                f"no connection to broker {broker_name} in half of {timeout_ms:.0f} ms; "
                f"nothing was sent"
            ) from None

    async def _connection(self, broker_name: str) -> AsyncConnection:
        """The loop's connection to a broker; opened once however many ask at the same time."""
        self.check_open()
        address = self._instance.broker_address(broker_name)
        if address is None:
            raise ConnectFailed(f"no address of broker {broker_name!r} is known")
        link = self._links.get(address)
        if link is not None and link.alive:
            return link
        dialling = self._dialling.get(address)
        if dialling is None:
            dialling = self._dialling[address] = self._tasks.loop.create_task(
                self._connect(address)
            )
            dialling.add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # looked at even if every caller was cancelled
        await asyncio.wait((dialling,))
        if dialling.cancelled():
            self.check_open()
        return await dialling  # has ended

    async def _connect(self, address: Address) -> AsyncConnection:
        try:
            link = await AsyncConnection.open(
                address,
                self._instance.link.credentials("broker"),
                self._limits,
                self._instance.clock,
                _refuse,
                _ignore,
                self._instance.link.tls,
            )
            self._links[address] = link
            return link
        finally:
            del self._dialling[address]


class LoopSender:
    """See the module. Belongs to the loop in which it was made."""

    def __init__(self, core: ProducerCore, limits: RemotingLimits) -> None:
        self._core = core
        self._config = config = core.config
        self._clock: Clock = core.clock
        self.tasks = LoopTasks()
        self._routes = LoopRouteWait(core.queues)
        self._connections = LoopConnections(self.tasks, core.group, core.instance, limits)
        self._frames: LoopGroups[MessageFrame, SendRequest, SendResult] = LoopGroups(
            self.tasks,
            self._ship,
            (config.batch_messages_max, config.batch_bytes_max),
            MessageFrame.lost,
        )
        self._window: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(config.frames_in_flight_max)
        )
        self._order: defaultdict[MessageQueue, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(1)
        )

    def check_loop(self) -> None:
        """``ClientError`` when another loop is running than the one that this belongs to."""
        if asyncio.get_running_loop() is not self.tasks.loop:
            raise ClientError(
                f"producer {self._core.group!r} belongs to another event loop; make one per loop"
            )

    @property
    def orphaned(self) -> bool:
        """Whether its loop is closed: nothing of it runs any more."""
        return self.tasks.loop.is_closed()

    def check_open(self) -> None:
        """``ClientError`` when it is closed: nothing is begun any more, no connection opened."""
        self._connections.check_open()

    async def queues(self, topic: str, timeout_ms: float) -> tuple[Sequence[MessageQueue], float]:
        """The topic's queues, and what is left of the time; see ``LoopRouteWait.queues``."""
        return await self._routes.queues(topic, timeout_ms)

    def next_queue(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """Round robin."""
        return self._core.choice.next(queues, self._core.round_robin.of(queues[0].topic))

    async def send(self, message: SendRequest, timeout_ms: float) -> SendResult:
        """One message, in the frame of this loop turn; special kinds on their own."""
        if message.special:
            queues, timeout_ms = await self._queues_for(message, timeout_ms)
            began_ms = self._clock.monotonic_ms()
            payload = await self._single(message, timeout_ms)
            return await self.send_payload(
                payload,
                message.queue or self.next_queue(queues),
                message.queue is not None,
                self._core.left_ms(timeout_ms, began_ms),
            )
        key: str | MessageQueue = message.topic if message.queue is None else message.queue
        size = len(message.body) + len(message.text) + RECORD_OVERHEAD
        frame = self._joined(key, timeout_ms, size)
        if frame is None:
            queues, timeout_ms = await self._queues_for(message, timeout_ms)
            frame = self._joined(key, timeout_ms, size) or self._open(
                key, self.next_queue(queues), timeout_ms
            )
        if message.group is not None:
            self._core.groups.sent(message.group, frame.queue, frame)
        frame.ordered = frame.ordered or message.ordered
        return await self._frames.ask(frame, message, size)

    async def send_oneway(self, message: SendRequest, timeout_ms: float) -> None:
        """One message without an answer, written once."""
        queues, timeout_ms = await self._queues_for(message, timeout_ms)
        queue = message.queue or self.next_queue(queues)
        payload = (
            await self._single(message, timeout_ms)
            if message.special
            else await self._records(
                queue, ([message.body], [message.text], [message.flag]), timeout_ms
            )
        )
        try:
            connection = await self._connections.reached(queue.broker_name, timeout_ms)
            connection.oneway(payload.command(queue))
        except RemotingError as error:
            raise oneway_failed(queue, error) from error
        finally:
            self._core.identity.release(payload.frame_id)

    async def send_frames(
        self,
        frames: Sequence[FrameParts],
        queue: MessageQueue,
        pinned: bool,
        left_ms: float,
        timeout_ms: float,
        steps: SendSteps | None = None,
    ) -> list[SendResult]:
        """The frames of one batch, one after the other; see ``Producer.send_batch``. ``left_ms``:
        for the first one, ``timeout_ms``: for each other.
        """
        results: list[SendResult] = []
        for parts in frames:
            try:
                if steps is None:
                    results.append(await self._send_parts(parts, queue, pinned, left_ms))
                else:
                    with steps.around_frame(queue.topic, queue, parts) as (ctx, packed):
                        ctx.result = await self._send_parts(packed, queue, pinned, left_ms)
                    results.append(ctx.result)
            except (SendError, ClientError) as error:
                if not results:
                    raise
                raise partly(error, results, queue.topic) from error
            queue, left_ms = (
                queue_with_namespace(self._config.namespace, results[-1].queue),
                timeout_ms,
            )
        return results

    async def send_payload(
        self,
        payload: FramePayload,
        queue: MessageQueue,
        pinned: bool,
        timeout_ms: float,
        engine: SendEngine | None = None,
    ) -> SendResult:
        """One payload to its end, after which its frame id is free. ``engine``: by other rules than
        the producer's.
        """
        stored = await self.resolve(payload, queue, pinned, timeout_ms, engine)
        return confirmed(frame_result(payload, stored), (engine or self._core.engine).raises)

    async def resolve(
        self,
        payload: FramePayload,
        queue: MessageQueue,
        pinned: bool,
        timeout_ms: float,
        engine: SendEngine | None = None,
    ) -> StoredAt:
        """All attempts of a payload, after which its frame id is free. Raises ``SendError``."""
        clock = self._clock
        send = (engine or self._core.engine).in_flight(
            payload, queue, pinned, timeout_ms, clock.monotonic_ms()
        )
        window = self._window[queue.broker_name]
        try:
            if await acquired(window, timeout_ms):
                try:
                    await self._attempt_all(send)
                finally:
                    window.release()
            return send.place(clock.monotonic_ms())
        finally:
            self._core.identity.release(payload.frame_id)

    async def when_free(self, make: Callable[[], Made], timeout_ms: float) -> Made:
        """What ``make`` makes, as soon as it gets a frame id; its ``BrokerBusy`` after
        ``timeout_ms``.
        """
        deadline = self._clock.monotonic_ms() + timeout_ms
        while True:
            try:
                return make()
            except BrokerBusy:
                if self._clock.monotonic_ms() >= deadline:
                    raise
            await asyncio.sleep(FRAME_ID_PAUSE_S)

    async def ask(self, broker_name: str, command: Command, timeout_ms: float) -> Command:
        """A request to a broker and its answer. Connecting takes half of the time at most. Raises
        ``RemotingError``.
        """
        began_ms = self._clock.monotonic_ms()
        connection = await self._connections.reached(broker_name, timeout_ms)
        return await connection.request(command, max(1.0, self._core.left_ms(timeout_ms, began_ms)))

    async def close(self, timeout_ms: float) -> None:
        """Ship what waits, wait for what is out (also what leaves meanwhile), close the loop's
        connections. Who waits for a route is told; who is cancelled cuts off what is out.
        """
        self._routes.close()
        try:
            await self.tasks.close(timeout_ms)
        finally:
            await self._connections.close()

    # --- inside -----------------------------------------------------------------------------------

    async def _queues_for(
        self, message: SendRequest, timeout_ms: float
    ) -> tuple[Sequence[MessageQueue], float]:
        return (
            ((message.queue,), timeout_ms)
            if message.queue is not None
            else await self.queues(message.topic, timeout_ms)
        )

    def _joined(self, key: str | MessageQueue, timeout_ms: float, size: int) -> MessageFrame | None:
        """The key's frame; one that has much less time than the caller, or more, leaves instead,
        ahead of the next one.
        """
        frame = self._frames.find(key, size)
        if (
            frame is None
            or timeout_ms * LEFT_TO_SHARE
            <= self._core.left_ms(frame.timeout_ms, frame.began_ms)
            <= timeout_ms / LEFT_TO_SHARE
        ):
            return frame
        self._frames.leave(frame)
        return None

    def _open(
        self, key: str | MessageQueue, queue: MessageQueue, timeout_ms: float
    ) -> MessageFrame:
        if self._config.on_full == "raise" and self._window[queue.broker_name].locked():
            raise BrokerBusy(
                f"{self._config.frames_in_flight_max} frames to {queue.broker_name} are "
                f"unanswered (frames_in_flight_max); nothing was sent, send again later",
                queue.topic,
            )
        return self._frames.open(MessageFrame(key, queue, timeout_ms, self._clock.monotonic_ms()))

    async def _ship(self, frame: MessageFrame) -> Sequence[SendResult | SendError]:
        """The frame; one that is refused because of one of its messages in parts, which share its
        time.
        """
        send = partial(self._ship_part, frame)
        if not frame.ordered:
            return await bisected(len(frame.items), send)
        place = self._order[frame.queue]
        if not await acquired(place, self._core.left_ms(frame.timeout_ms, frame.began_ms)):
            busy = BrokerBusy(
                f"older messages to {frame.queue} were not answered within "
                f"{frame.timeout_ms:.0f} ms; nothing was sent",
                frame.queue.topic,
            )
            return [busy] * len(frame.items)
        try:
            return await bisected(len(frame.items), send)
        finally:
            place.release()

    async def _ship_part(
        self, frame: MessageFrame, begin: int, end: int
    ) -> Sequence[SendResult | SendError]:
        """These messages of the frame."""
        items = frame.items[begin:end]
        parts = [i.body for i in items], [i.text for i in items], [i.flag for i in items]
        left_ms = self._core.left_ms(frame.timeout_ms, frame.began_ms)
        payload = await self._records(frame.queue, parts, left_ms)
        left_ms = self._core.left_ms(frame.timeout_ms, frame.began_ms)
        pinned = isinstance(frame.key, MessageQueue)
        found = message_results(payload, await self.resolve(payload, frame.queue, pinned, left_ms))
        if not self._core.engine.raises:
            return found
        return [unconfirmed(result) or result for result in found]

    async def _records(
        self, queue: MessageQueue, parts: FrameParts, timeout_ms: float
    ) -> FramePayload:
        bodies, texts, flags = parts
        words = flags if flags and any(flags) else None
        return await self.when_free(
            lambda: encode_records(
                self._core.identity, queue, bodies, texts, self._clock.now_ms(), 0.0, words
            ),
            timeout_ms,
        )

    async def _send_parts(
        self, parts: FrameParts, queue: MessageQueue, pinned: bool, timeout_ms: float
    ) -> SendResult:
        payload = await self._records(queue, parts, timeout_ms)
        return await self.send_payload(payload, queue, pinned, timeout_ms)

    async def _single(self, message: SendRequest, timeout_ms: float) -> FramePayload:
        return await self.when_free(lambda: self._core.payload(message, 0.0), timeout_ms)

    async def _attempt_all(self, send: InFlightSend) -> None:
        clock = self._clock
        while (left := send.attempts.attempt_timeout_ms(clock.monotonic_ms())) > 0:
            if self.tasks.closed and send.attempted:
                return  # with what is known of the attempts before
            decision = send.ended(await self._attempt(send, left), clock.monotonic_ms())
            if decision is None:
                return
            send.follow(decision)
            if decision.delay_ms:
                await asyncio.sleep(decision.delay_ms / 1000)

    async def _attempt(self, send: InFlightSend, timeout_ms: float) -> Outcome:
        queue, began_ms = send.queue, self._clock.monotonic_ms()
        send.address = self._core.instance.broker_address(queue.broker_name)
        outcome: Outcome
        try:
            if send.address is None:
                raise ConnectFailed(f"no address of broker {queue.broker_name!r} is known")
            outcome = await self.ask(queue.broker_name, send.payload.command(queue), timeout_ms)
        except RemotingError as error:
            outcome = error
        self._core.choice.ended(queue.broker_name, began_ms, outcome)
        return outcome


async def acquired(place: asyncio.Semaphore, timeout_ms: float) -> bool:
    """Whether a place could be had within ``timeout_ms``; at once and without a timer when it is
    free. Who does not get it holds nothing. Places are semaphores: an ``asyncio.Lock`` says that it
    is free while the next one in line is being woken, and its ``acquire`` waits then.
    """
    if not place.locked():  # nor is anybody before us
        return await place.acquire()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await place.acquire()
    except TimeoutError:
        return False


def _refuse(command: Command, connection: AsyncConnection) -> Command | None:
    """Brokers ask the thread-based connection, not this one."""
    return (
        None
        if command.is_oneway
        else command.answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark="ask the connection that sends heartbeats",
        )
    )


def _ignore(connection: AsyncConnection, error: RemotingError) -> None:
    """A lost connection is noticed by the requests on it, and replaced by the next one."""
