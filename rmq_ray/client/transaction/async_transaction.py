"""A transaction on an event loop: halves and ends are awaited, over the loop's own connections
(protocol-behaviour 20).

    async with producer.transaction(checker) as tx:
        await tx.send("orders", b"body")
        await database.commit()

Decides what ``client.transaction.transaction`` decides, by the same parts; the ends of several
messages are awaited together. The checker runs in a thread of its own, as for every producer.
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
from rmq_ray.client.interceptors.send_steps import SendSteps
from rmq_ray.client.outgoing.send_request import (
    Outgoing,
    Placement,
    Selector,
    check_placement,
    outgoing,
    placed,
    timeout_in_ms,
)
from rmq_ray.client.producer.async_frames import AsyncFrames
from rmq_ray.client.sending.batching import RECORD_OVERHEAD
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.client.transaction.async_sharing import SharedTransactions
from rmq_ray.client.transaction.end_transaction import END_BYTES
from rmq_ray.client.transaction.half_sending import SHARED_TEXT_MAX, mark
from rmq_ray.client.transaction.transaction import (
    COMMIT,
    ROLLBACK,
    OpenTransaction,
    engine_of,
    labelled,
    watch_ends,
)
from rmq_ray.client.transaction.transaction_engine import Half, attempt_ms, check_immunity
from rmq_ray.client.transaction.transaction_listener import (
    TransactionListener,
    TransactionSendResult,
    failed_state,
    said_state,
)
from rmq_ray.errors import RemotingError, RmqError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message, SendResult, SendStatus
from rmq_ray.protocol.transaction import LocalTransactionState

log = logging.getLogger("rmq_ray.client.transaction.transaction")
Place = Callable[[Outgoing, Placement | None, float], Awaitable[float]]
ENDS_AT_ONCE = 256


class AsyncHalves:
    """Halves and ends of one ``AsyncProducer``. ``place``: gives a message its queue and returns
    what is left of the time.
    """

    def __init__(
        self, core: ProducerCore, frames: AsyncFrames, steps: SendSteps | None, place: Place
    ) -> None:
        self.engine = engine_of(core, None)
        self._shared = SharedTransactions(core, frames, self.engine.halves)
        self.core = core
        self.frames = frames
        self._steps = steps
        self._place = place
        watch_ends(self.engine, steps)

    async def send(
        self,
        message: Outgoing,
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

    async def _send(self, message: Outgoing, timeout_ms: float, immunity_s: int | None) -> Half:
        engine, frames = self.engine, self.frames
        key = engine.begin(message)
        try:
            mark(message, key)
            plain = (
                message.queue is None
                and immunity_s is None
                and timeout_ms == self._shared.timeout_ms
            )
            if plain and len(message.text) <= SHARED_TEXT_MAX:
                result = await self._shared.halves.ask(
                    message.topic, message, len(message.body) + len(message.text) + RECORD_OVERHEAD
                )
            else:
                began_ms, left_ms = self.core.clock.monotonic_ms(), self.core.left_ms
                queue = message.queue or frames.next_queue(
                    (await frames.queues(message.topic, timeout_ms))[0]
                )
                load = await frames.when_free(
                    lambda: engine.halves.load((message,), 0.0, immunity_s),
                    left_ms(timeout_ms, began_ms),
                )
                result = await frames.send_load(
                    load,
                    queue,
                    message.queue is not None,
                    left_ms(timeout_ms, began_ms),
                    engine.halves.sending,
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
                    outcome = await self._shared.ends.ask(
                        half.result.queue.broker_name, ending.end, END_BYTES
                    )
            except TimeoutError:
                outcome = (-1, f"no answer in {attempt_ms(timeout_ms, left):.0f} ms")
            except RemotingError as error:
                outcome = (-1, str(error))
            if ending.done(outcome):
                return
            await asyncio.sleep(ending.pause_ms() / 1000)
        if ending is not None:
            raise ending.given_up()


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
            message = outgoing(
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
            if not self._decided(state, halves.engine):
                return
            outcomes: list[BaseException | None] = []
            for start in range(
                0, len(self._halves), ENDS_AT_ONCE
            ):  # ends: a slice each round; each has its own time
                ends = [
                    halves.end(half, state, self._timeout_ms)
                    for half in self._halves[start : start + ENDS_AT_ONCE]
                ]
                outcomes += await asyncio.gather(*ends, return_exceptions=True)
            for outcome in outcomes:
                if outcome is not None:
                    raise outcome


async def run_in_transaction(
    halves: AsyncHalves,
    half_message: Outgoing,
    message: Message,
    listener: TransactionListener,
    arg: Any,
    timeout_ms: float,
) -> TransactionSendResult:  # noqa: PLR0913 - a call
    """See ``AsyncProducer.send_in_transaction``."""
    half = await halves.send(half_message, None, timeout_ms)
    state, error = ROLLBACK, None
    if half.result.status is SendStatus.SEND_OK:
        state, error = await _execute(halves.core.group, listener, message, arg)
    await halves.end(half, state, timeout_ms)
    return TransactionSendResult.of(half.result, state, error)


async def _execute(
    group: str, listener: TransactionListener, message: Message, arg: Any
) -> tuple[LocalTransactionState, Exception | None]:
    try:
        said = listener.execute_local_transaction(message, arg)
        if inspect.isawaitable(said):
            said = await said
    except Exception as error:  # noqa: BLE001 - the user's code; the broker asks later
        return failed_state(group), error
    return said_state(group, said), None
