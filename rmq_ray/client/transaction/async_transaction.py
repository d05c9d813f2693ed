"""A transaction on an event loop: halves and ends are awaited, over the loop's own connections
(protocol-behaviour 20).

    async with producer.transaction(checker) as tx:
        await tx.send("orders", b"body")
        await database.commit()

Decides what ``client.transaction.transaction`` decides, by the same parts; the ends of several
messages are awaited together, and what the tasks of one turn of the loop ask for travels together
(``client.sending.loop_sender``). The checker runs in a thread of its own, as for every producer.
Invariant: a cancelled send or block is rolled back; nothing here blocks the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rmq_ray.client.interceptors.send_hooks import ASYNC, HALF
from rmq_ray.client.outgoing.send_payload import RECORD_OVERHEAD
from rmq_ray.client.outgoing.send_request import (
    Placement,
    Selector,
    SendRequest,
    check_placement,
    checked_request,
    placed,
    timeout_in_ms,
)
from rmq_ray.client.sending.batch_bisect import bisected
from rmq_ray.client.sending.loop_sender import LoopGroup, LoopGroups, LoopSender
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.client.sending.send_engine import message_results
from rmq_ray.client.sending.send_steps import SendSteps
from rmq_ray.client.transaction.transaction import (
    COMMIT,
    ROLLBACK,
    OpenTransaction,
    engine_of,
    labelled,
)
from rmq_ray.client.transaction.transaction_engine import Half, attempt_ms, check_immunity
from rmq_ray.client.transaction.transaction_listener import (
    TransactionListener,
    TransactionSendResult,
    checked_half,
    failed_state,
    said_state,
)
from rmq_ray.client.transaction.transaction_sending import (
    END_BYTES,
    REQUEST_TIMEOUT_MS,
    SHARED_TEXT_MAX,
    Answer,
    answers_of,
    ends_command,
    mark,
)
from rmq_ray.errors import ConnectionLost, RemotingError, RmqError, SendError, SendUnknown
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message, SendResult, SendStatus
from rmq_ray.protocol.transaction import LocalTransactionState
from rmq_ray.remoting.wire.halves import ENDS_MAX, End

log = logging.getLogger("rmq_ray.client.transaction.transaction")
Place = Callable[[SendRequest, Placement | None, float], Awaitable[float]]
ENDS_AT_ONCE = 256


class AsyncHalves:
    """Halves and ends of one ``AsyncProducer``. ``place``: gives a message its queue and returns
    what is left of the time.
    """

    def __init__(
        self, core: ProducerCore, sender: LoopSender, steps: SendSteps | None, place: Place
    ) -> None:
        self.engine = engine_of(core, None)
        self.core = core
        self.sender = sender
        self._timeout_ms = float(core.config.send_timeout_ms)
        self._halves: LoopGroups[LoopGroup[SendRequest, SendResult], SendRequest, SendResult]
        self._halves = LoopGroups(
            sender.tasks,
            self._ship_halves,
            (core.config.batch_messages_max, core.config.batch_bytes_max),
            lambda _group: SendUnknown("the producer was closed; it may be stored"),
        )
        self._ends: LoopGroups[LoopGroup[End, Answer], End, Answer] = LoopGroups(
            sender.tasks,
            self._ship_ends,
            (ENDS_MAX, ENDS_MAX * END_BYTES),
            lambda _group: ConnectionLost("the producer was closed; it may have ended"),
        )
        self._steps = steps
        self._place = place

    async def send(
        self,
        message: SendRequest,
        placement: Placement | None,
        timeout_ms: float,
        immunity_s: int | None = None,
    ) -> Half:
        """Returns when the half is stored. Raises ``SendError``."""
        check_immunity(immunity_s)
        steps = self._steps
        if steps is None:
            timeout_ms = await self._place(message, placement, timeout_ms)
            return await self._send(message, timeout_ms, immunity_s)
        steps.name(message)
        with steps.around(message, ASYNC) as ctx:
            ctx.carried[HALF] = True
            timeout_ms = await self._place(message, steps.placement(placement), timeout_ms)
            steps.pack(message)
            half = await self._send(message, timeout_ms, immunity_s)
            ctx.result = half.result
        return labelled(half, ctx)

    async def _send(self, message: SendRequest, timeout_ms: float, immunity_s: int | None) -> Half:
        engine, sender = self.engine, self.sender
        key = engine.begin(message)
        try:
            mark(message, key)
            plain = message.queue is None and immunity_s is None and timeout_ms == self._timeout_ms
            if plain and len(message.text) <= SHARED_TEXT_MAX:
                sender.check_open()
                size = len(message.body) + len(message.text) + RECORD_OVERHEAD
                group = self._halves.find(message.topic, size) or self._halves.open(
                    LoopGroup(message.topic)
                )
                result = await self._halves.ask(group, message, size)
            else:
                began_ms, left_ms = self.core.clock.monotonic_ms(), self.core.left_ms
                queue = message.queue or sender.next_queue(
                    (await sender.queues(message.topic, timeout_ms))[0]
                )
                payload = await sender.when_free(
                    lambda: engine.halves.payload((message,), 0.0, immunity_s),
                    left_ms(timeout_ms, began_ms),
                )
                result = await sender.send_payload(
                    payload,
                    queue,
                    message.queue is not None,
                    left_ms(timeout_ms, began_ms),
                    engine.halves.engine,
                )
        except BaseException as error:
            engine.not_begun(key, error)
            raise
        return engine.stored(result, key)

    async def end(self, half: Half, state: LocalTransactionState, timeout_ms: float) -> None:
        """See ``TransactionEngine.end``."""
        self.engine.watched(half, state)
        ending = self.engine.ending(half, state, timeout_ms)
        while ending is not None and (left := ending.left_ms()) > 0:
            try:
                async with asyncio.timeout(attempt_ms(timeout_ms, left) / 1000):
                    outcome = await self._tell(half.result.queue.broker_name, ending.end)
            except TimeoutError:
                outcome = (-1, f"no answer in {attempt_ms(timeout_ms, left):.0f} ms")
            except RemotingError as error:
                outcome = (-1, str(error))
            if ending.done(outcome):
                return
            await asyncio.sleep(ending.pause_ms() / 1000)
        if ending is not None:
            raise ending.given_up()

    async def _tell(self, broker_name: str, end: End) -> Answer:
        self.sender.check_open()
        group = self._ends.find(broker_name, END_BYTES) or self._ends.open(LoopGroup(broker_name))
        return await self._ends.ask(group, end, END_BYTES)

    async def _ship_halves(
        self, group: LoopGroup[SendRequest, SendResult]
    ) -> Sequence[SendResult | SendError]:
        """A half that a broker refuses fails for its own caller only."""
        began_ms, left_ms = self.core.clock.monotonic_ms(), self.core.left_ms
        queues, _ = await self.sender.queues(group.items[0].topic, self._timeout_ms)
        queue, halves = self.sender.next_queue(queues), self.engine.halves

        async def send(begin: int, end: int) -> Sequence[SendResult]:
            asked = group.items[begin:end]
            payload = await self.sender.when_free(
                lambda: halves.payload(asked, 0.0, None), left_ms(self._timeout_ms, began_ms)
            )
            stored = await self.sender.resolve(
                payload, queue, False, left_ms(self._timeout_ms, began_ms), halves.engine
            )
            return message_results(payload, stored)

        return await bisected(len(group.items), send)

    async def _ship_ends(self, group: LoopGroup[End, Answer]) -> Sequence[Answer]:
        command = ends_command(self.core.group, group.items)
        answer = await self.sender.ask(str(group.key), command, REQUEST_TIMEOUT_MS)
        return answers_of(answer, len(group.items))


class AsyncTransaction(OpenTransaction):
    """Made by ``AsyncProducer.transaction``; an asynchronous context manager. Used by one task at a
    time.
    """

    def __init__(
        self, halves: Callable[[], Awaitable[AsyncHalves]], timeout_ms: float, body_bytes_max: int
    ) -> None:
        super().__init__(timeout_ms)
        self._find_halves = halves
        self._body_bytes_max = body_bytes_max
        self._lock = asyncio.Lock()

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
        check_immunity: int | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Store one half message; see ``Transaction.send``."""
        async with self._lock:
            self._may_send()
            check_placement(queue, selector, None)
            placement = placed(queue, selector, arg, None)
            timeout_ms = self._timeout_ms if timeout is None else timeout_in_ms(timeout)
            message = checked_request(
                topic_or_message, body, (tag, keys, properties), 0, self._body_bytes_max
            )
            halves = await self._find_halves()
            return self._kept(await halves.send(message, placement, timeout_ms, check_immunity))

    async def commit(self) -> None:
        """Make every message visible; see ``Transaction.commit``."""
        await self._end(COMMIT)

    async def rollback(self) -> None:
        """Have no message ever delivered; see ``Transaction.rollback``."""
        await self._end(ROLLBACK)

    async def __aenter__(self) -> Self:
        self._open("begin")
        await self._find_halves()  # the checker is known before anything is sent
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._state is not LocalTransactionState.UNKNOWN:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except RmqError as failure:
            log.warning("the roll-back after %r was not acknowledged: %s", error, failure)

    async def _end(self, state: LocalTransactionState) -> None:
        async with self._lock:
            halves = await self._find_halves()
            open_ones = self._decided(state, halves.engine)
            outcomes: list[BaseException | None] = []
            for start in range(
                0, len(open_ones), ENDS_AT_ONCE
            ):  # ends: a slice each round; each has its own time
                ends = [
                    halves.end(half, state, self._timeout_ms)
                    for half in open_ones[start : start + ENDS_AT_ONCE]
                ]
                outcomes += await asyncio.gather(*ends, return_exceptions=True)
            self._ended(open_ones, outcomes)


async def run_in_transaction(
    halves: AsyncHalves,
    half_message: SendRequest,
    message: Message,
    listener: TransactionListener,
    arg: Any,
    timeout_ms: float,
) -> TransactionSendResult:
    """See ``AsyncProducer.send_in_transaction``."""
    half = await halves.send(half_message, None, timeout_ms)
    state, error = ROLLBACK, None
    if half.result.status is SendStatus.SEND_OK:
        state, error = await _execute(halves.core.group, listener, message, arg)
    await halves.end(half, state, timeout_ms)
    checked_half(half.result, halves.core.config.raise_on_status)
    return TransactionSendResult.of(half.result, state, error)


async def _execute(
    group: str, listener: TransactionListener, message: Message, arg: Any
) -> tuple[LocalTransactionState, Exception | None]:
    try:
        said = listener.execute_local_transaction(message, arg)
        if inspect.isawaitable(said):
            said = await said
    except Exception as error:  # noqa: BLE001 - the user's code; the broker asks later
        return failed_state(group, error), error
    return said_state(group, said), None
