"""Frames of one event loop: what joins them, where they go, and what happens when they fail.

    send ──join──> Turn (one per topic or given queue and loop turn) ──call_soon──> deliver (task) ──> AsyncConnection

Called by ``client.producer.async_producer``. Everything runs in the loop except route look-ups,
which a thread does (``client.producer.async_route_wait``). The rules are those of the thread-based
producer (``protocol.retry``); only the waiting differs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from rmq_ray.client.interceptors.send_steps import SendSteps
from rmq_ray.client.outgoing.batch_bisect import verdicts
from rmq_ray.client.outgoing.send_payload import Load
from rmq_ray.client.outgoing.send_request import Outgoing
from rmq_ray.client.outgoing.splitting import FrameParts
from rmq_ray.client.producer.async_route_wait import AsyncFinding
from rmq_ray.client.producer.semaphore import acquired
from rmq_ray.client.sending.batching import RECORD_OVERHEAD, Key, encode_load
from rmq_ray.client.sending.frame_sending import partly
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.client.sending.sending import (
    LEFT_TO_SHARE,
    Delivery,
    Outcome,
    Sending,
    classify,
    results_of,
)
from rmq_ray.config import RemotingLimits
from rmq_ray.errors import (
    BrokerBusy,
    BrokerUnreachable,
    ClientError,
    ConnectFailed,
    RemotingError,
    SendError,
    SendUnknown,
)
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import SendResult, SendStatus
from rmq_ray.model.namespaces import queue_with_namespace
from rmq_ray.protocol.retry import STATUS_OF_CODE, Failure, Step
from rmq_ray.remoting.async_connection import AsyncConnection
from rmq_ray.remoting.pool import connect_budget_ms
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command

Made = TypeVar("Made")
SPAN_PAUSE_S = 0.01  # while an unanswered frame holds back newer ones
log = logging.getLogger("rmq_ray.client")


class Turn:
    """The messages of one loop turn for one queue, and the futures of their senders."""

    __slots__ = (
        "began_ms",
        "bodies",
        "bytes",
        "flags",
        "futures",
        "key",
        "ordered",
        "queue",
        "texts",
        "timeout_ms",
    )

    def __init__(self, key: Key, queue: MessageQueue, timeout_ms: float, began_ms: float) -> None:
        self.key = key
        self.queue = queue
        self.timeout_ms = timeout_ms
        self.began_ms = began_ms
        self.ordered = False
        self.bodies: list[bytes] = []
        self.texts: list[str] = []
        self.flags: list[int] = []
        self.futures: list[asyncio.Future[SendResult]] = []
        self.bytes = 0


class AsyncFrames:
    """See the module. Belongs to the loop in which it was made."""

    def __init__(self, core: ProducerCore, limits: RemotingLimits) -> None:
        self._core = core
        self._config = core.config
        self._clock = core.clock
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._finding = AsyncFinding(core)
        self._turns: dict[Key, Turn] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.before_close: list[Callable[[], None]] = []
        self._closed = False
        self._links: dict[Address, AsyncConnection] = {}
        self._dialling: dict[Address, asyncio.Task[AsyncConnection]] = {}
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(self._config.frames_in_flight_max)
        )
        self._lanes: defaultdict[MessageQueue, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(1)
        )

    def check_loop(self) -> None:
        """``ClientError`` when another loop is running than the one that this belongs to."""
        if asyncio.get_running_loop() is not self._loop:
            raise ClientError(
                f"producer {self._core.group!r} belongs to another event loop; make one per loop"
            )

    @property
    def orphaned(self) -> bool:
        """Whether its loop is closed: nothing of it runs any more."""
        return self._loop.is_closed()

    def check_open(self) -> None:
        """``ClientError`` when it is closed: nothing is begun any more, no connection opened."""
        if self._closed:
            raise ClientError(
                f"producer {self._core.group!r} was closed; nothing was sent", self._core.group
            )

    async def queues(self, topic: str, timeout_ms: float) -> tuple[Sequence[MessageQueue], float]:
        """The topic's queues, and what is left of the time; see ``AsyncFinding.queues``."""
        return await self._finding.queues(topic, timeout_ms)

    def next_queue(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """Round robin."""
        return self._core.choice.next(queues, self._core.turns.of(queues[0].topic))

    async def send(self, message: Outgoing, timeout_ms: float) -> SendResult:
        """One message, in the frame of this loop turn; special kinds on their own."""
        if message.special:
            queues, timeout_ms = await self._queues_for(message, timeout_ms)
            began_ms = self._clock.monotonic_ms()
            load = await self._single(message, timeout_ms)
            return await self.send_load(
                load,
                message.queue or self.next_queue(queues),
                message.queue is not None,
                self._core.left_ms(timeout_ms, began_ms),
            )
        key: Key = message.topic if message.queue is None else message.queue
        turn = self._joined(key, timeout_ms)
        if turn is None:
            queues, timeout_ms = await self._queues_for(message, timeout_ms)
            turn = self._joined(key, timeout_ms) or self._open(
                key, self.next_queue(queues), timeout_ms
            )
        future: asyncio.Future[SendResult] = self._loop.create_future()
        if message.group is not None:
            self._core.groups.sent(message.group, turn.queue, future)
        turn.bodies.append(message.body)
        turn.texts.append(message.text)
        turn.flags.append(message.flag)
        turn.futures.append(future)
        turn.ordered = turn.ordered or message.ordered
        turn.bytes += len(message.body) + len(message.text) + RECORD_OVERHEAD
        if (
            turn.bytes >= self._config.batch_bytes_max
            or len(turn.bodies) >= self._config.batch_messages_max
        ):
            self._leave(turn)
        return await future

    async def send_oneway(self, message: Outgoing, timeout_ms: float) -> None:
        """One message without an answer, written once."""
        queues, timeout_ms = await self._queues_for(message, timeout_ms)
        queue = message.queue or self.next_queue(queues)
        load = (
            await self._single(message, timeout_ms)
            if message.special
            else await self._load(queue, [message.body], [message.text], [message.flag], timeout_ms)
        )
        try:
            connection = await self._reached(queue.broker_name, timeout_ms)
            connection.oneway(load.command(queue))
        except RemotingError as error:
            kind = BrokerUnreachable if classify(error)[0] is Failure.NOT_SENT else SendUnknown
            raise kind(f"one-way send to {queue} failed: {error}", queue.topic) from error
        finally:
            self._core.identity.release(load.frame_id)

    async def send_frames(  # noqa: PLR0913 - a batch
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

    async def send_load(
        self,
        load: Load,
        queue: MessageQueue,
        pinned: bool,
        timeout_ms: float,
        sending: Sending | None = None,
    ) -> SendResult:
        """One load to its end, after which its frame id is free. ``sending``: by other rules than
        the producer's.
        """
        return (await self.resolve(load, queue, pinned, timeout_ms, sending))[0]

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
            await asyncio.sleep(SPAN_PAUSE_S)

    async def ask(self, broker_name: str, command: Command, timeout_ms: float) -> Command:
        """A request to a broker and its answer. Connecting takes half of the time at most. Raises
        ``RemotingError``.
        """
        began_ms = self._clock.monotonic_ms()
        connection = await self._reached(broker_name, timeout_ms)
        return await connection.request(command, max(1.0, self._core.left_ms(timeout_ms, began_ms)))

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it as a task that ``close`` waits for, and then cancels: perhaps before its first
        step. One that is begun later is cancelled at once.
        """
        task = self._loop.create_task(work)
        if self._closed:
            task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self, timeout_ms: float) -> None:
        """Ship what waits, wait for what is out (also what leaves meanwhile), close the loop's
        connections. Who waits for a route is told; who is cancelled cuts off what is out.
        """
        self._finding.close()
        for turn in list(self._turns.values()):
            self._leave(turn)
        for leave in self.before_close:
            leave()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    while self._tasks:  # ends: no tasks, or the time-out
                        await asyncio.wait(self._tasks)
        finally:  # also when who closes does not wait for that any longer
            self._closed = True
            links, self._links = self._links, {}
            for task in [*self._tasks, *self._dialling.values()]:
                task.cancel()
            if links:
                await asyncio.wait(
                    [self._loop.create_task(link.close()) for link in links.values()]
                )

    # --- inside -----------------------------------------------------------------------------------

    async def _queues_for(
        self, message: Outgoing, timeout_ms: float
    ) -> tuple[Sequence[MessageQueue], float]:
        return (
            ((message.queue,), timeout_ms)
            if message.queue is not None
            else await self.queues(message.topic, timeout_ms)
        )

    def _joined(self, key: Key, timeout_ms: float) -> Turn | None:
        """The key's turn; one that has much less time than the caller, or more, leaves instead,
        ahead of the next one.
        """
        turn = self._turns.get(key)
        if (
            turn is None
            or timeout_ms * LEFT_TO_SHARE
            <= self._core.left_ms(turn.timeout_ms, turn.began_ms)
            <= timeout_ms / LEFT_TO_SHARE
        ):
            return turn
        self._leave(turn)
        return None

    def _open(self, key: Key, queue: MessageQueue, timeout_ms: float) -> Turn:
        if self._config.on_full == "raise" and self._slots[queue.broker_name].locked():
            raise BrokerBusy(
                f"{self._config.frames_in_flight_max} frames to {queue.broker_name} are "
                f"unanswered (frames_in_flight_max); nothing was sent, send again later",
                queue.topic,
            )
        turn = self._turns[key] = Turn(key, queue, timeout_ms, self._clock.monotonic_ms())
        self._loop.call_soon(self._leave, turn)
        return turn

    def _leave(self, turn: Turn) -> None:
        """The turn is over or its frame full: nothing joins it any more."""
        if self._turns.get(turn.key) is not turn:
            return
        del self._turns[turn.key]
        self.start(self._deliver(turn)).add_done_callback(lambda _task: _not_begun(turn))

    async def _deliver(self, turn: Turn) -> None:
        try:
            results = (
                await self._deliver_ordered(turn)
                if turn.ordered
                else await self._deliver_each(turn)
            )
        except asyncio.CancelledError:
            for future in turn.futures:
                if not future.done():
                    future.set_exception(
                        SendUnknown(
                            "the producer was closed before the broker answered; the message "
                            "may be stored",
                            turn.queue.topic,
                        )
                    )
            raise
        except Exception as error:  # noqa: BLE001 - every sender of the turn must get an end
            log.exception("a frame for %s could not be sent", turn.queue)
            for future in turn.futures:
                if not future.done():
                    future.set_exception(
                        SendError(
                            f"a frame for {turn.queue} could not be sent: {error!r}",
                            turn.queue.topic,
                        )
                    )
            return
        for future, each in zip(turn.futures, results, strict=True):
            if future.done():
                continue
            if isinstance(each, SendError):
                future.set_exception(type(each)(*each.args))
            else:
                future.set_result(each)

    async def _deliver_ordered(self, turn: Turn) -> Sequence[SendResult | SendError]:
        lane = self._lanes[turn.queue]
        if not await acquired(lane, self._core.left_ms(turn.timeout_ms, turn.began_ms)):
            busy = BrokerBusy(
                f"older messages to {turn.queue} were not answered within "
                f"{turn.timeout_ms:.0f} ms; nothing was sent",
                turn.queue.topic,
            )
            return [busy] * len(turn.bodies)
        try:
            return await self._deliver_each(turn)
        finally:
            lane.release()

    async def _deliver_each(self, turn: Turn) -> Sequence[SendResult | SendError]:
        """The turn's frame; one that is refused because of one of its messages in pieces, which
        share its time.
        """
        return await verdicts(
            len(turn.bodies), lambda begin, end: self._deliver_frame(turn, begin, end)
        )

    async def _deliver_frame(self, turn: Turn, begin: int, end: int) -> Sequence[SendResult]:
        """These messages of the turn as one frame."""
        left_ms = self._core.left_ms(turn.timeout_ms, turn.began_ms)
        load = await self._load(
            turn.queue,
            turn.bodies[begin:end],
            turn.texts[begin:end],
            turn.flags[begin:end],
            left_ms,
        )
        left_ms = self._core.left_ms(turn.timeout_ms, turn.began_ms)
        return results_of(
            *await self.resolve(load, turn.queue, isinstance(turn.key, MessageQueue), left_ms)
        )

    async def _load(
        self,
        queue: MessageQueue,
        bodies: Sequence[bytes],
        texts: Sequence[str],
        flags: Sequence[int],
        timeout_ms: float,
    ) -> Load:
        words = flags if any(flags) else None
        return await self.when_free(
            lambda: encode_load(
                self._core.identity, queue, bodies, texts, self._clock.now_ms(), 0.0, words
            ),
            timeout_ms,
        )

    async def _send_parts(
        self, parts: FrameParts, queue: MessageQueue, pinned: bool, timeout_ms: float
    ) -> SendResult:
        bodies, texts, flags = parts
        return await self.send_load(
            await self._load(queue, bodies, texts, flags or [], timeout_ms),
            queue,
            pinned,
            timeout_ms,
        )

    async def _single(self, message: Outgoing, timeout_ms: float) -> Load:
        return await self.when_free(lambda: self._core.make_load(message, 0.0), timeout_ms)

    async def resolve(
        self,
        load: Load,
        queue: MessageQueue,
        pinned: bool,
        timeout_ms: float,
        sending: Sending | None = None,
    ) -> tuple[SendResult, Load, Address]:
        """All attempts of a load, after which its frame id is free: its result, itself and the
        broker that has it. Raises ``SendError``.
        """
        sending, clock = sending or self._core.sending, self._clock
        attempts = sending.attempts_since(
            clock.monotonic_ms(), queue, pinned, timeout_ms, codes_retried=True
        )
        delivery = Delivery(load, queue, attempts, pinned)
        stored: tuple[SendResult, Load, Address] | None = None
        slot = self._slots[queue.broker_name]
        try:
            if not await acquired(slot, timeout_ms):
                raise delivery.error(clock.monotonic_ms())
            try:
                while (left := attempts.attempt_timeout_ms(clock.monotonic_ms())) > 0:
                    if self._closed and delivery.reason:
                        break  # with what is known of the attempts before
                    outcome = await self._attempt(delivery, left)
                    now = clock.monotonic_ms()
                    if (
                        isinstance(outcome, Command)
                        and outcome.code in STATUS_OF_CODE
                        and delivery.address is not None
                    ):
                        stored = (
                            sending.result(load, delivery.queue, outcome, delivery.address),
                            load,
                            delivery.address,
                        )
                        if (
                            stored[0].status is SendStatus.SEND_OK
                            or not self._config.retry_another_broker_when_not_store_ok
                        ):
                            return stored
                        decision = attempts.not_stored(now)
                    else:
                        decision = delivery.judge(outcome, now)
                    if decision.step is Step.GIVE_UP:
                        break
                    sending.follow(delivery, decision)
                    if decision.delay_ms:
                        await asyncio.sleep(decision.delay_ms / 1000)
            finally:
                slot.release()
            if stored is not None:
                return stored
            raise delivery.error(clock.monotonic_ms())
        finally:
            self._core.identity.release(load.frame_id)

    async def _attempt(self, delivery: Delivery, timeout_ms: float) -> Outcome:
        queue, began_ms = delivery.queue, self._clock.monotonic_ms()
        delivery.address = self._core.instance.broker_address(queue.broker_name)
        outcome: Outcome
        try:
            outcome = await self.ask(queue.broker_name, delivery.load.command(queue), timeout_ms)
        except RemotingError as error:
            outcome = error
        self._core.choice.ended(queue.broker_name, began_ms, outcome)
        return outcome

    async def _reached(self, broker_name: str, timeout_ms: float) -> AsyncConnection:
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
        address = self._core.instance.broker_address(broker_name)
        if address is None:
            raise ConnectFailed(f"no address of broker {broker_name!r} is known")
        link = self._links.get(address)
        if link is not None and link.alive:
            return link
        dialling = self._dialling.get(address)
        if dialling is None:
            dialling = self._dialling[address] = self._loop.create_task(self._connect(address))
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
                self._core.instance.link.credentials("broker"),
                self._limits,
                self._clock,
                _refuse,
                _ignore,
            )
            self._links[address] = link
            return link
        finally:
            del self._dialling[address]


def _not_begun(turn: Turn) -> None:
    """The turn's task is over. Senders without an end: it was cancelled before its first step."""
    for future in turn.futures:
        if not future.done():
            future.set_exception(
                ClientError(
                    "the producer was closed before the message left; nothing was sent",
                    turn.queue.topic,
                )
            )


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
