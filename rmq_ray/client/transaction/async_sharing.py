"""What the callers of one turn of an event loop ask for travels together: the half messages and the
ends of many transactions (protocol-behaviour 20).

    ask(key, item) ──join──> one list for each key and loop turn ──call_soon──> ship(key, items) (task) ──> an answer for each item

Decides who travels with whom: those who come in the same turn of the loop with the same key, up to
the limits. Does not decide how anything is sent (``ship`` does). A caller that is cancelled leaves
its item in the list. Belongs to one loop; called by ``client.transaction.async_transaction``.

Invariants: every caller gets an end, also when the producer is closed before a list's task took its
first step; a half that a broker refuses fails for its own caller only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from rmq_ray.client.outgoing.batch_bisect import verdicts
from rmq_ray.client.outgoing.send_request import Outgoing
from rmq_ray.client.producer.async_frames import AsyncFrames
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.client.sending.sending import results_of
from rmq_ray.client.transaction.end_transaction import (
    END_BYTES,
    REQUEST_TIMEOUT_MS,
    Answer,
    answers_of,
)
from rmq_ray.client.transaction.half_sending import HalfSending
from rmq_ray.errors import ConnectionLost, RmqError, SendError, SendUnknown
from rmq_ray.model.message import SendResult
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import BINARY, Command
from rmq_ray.remoting.wire.halves import ENDS_MAX, End, pack_ends

log = logging.getLogger("rmq_ray.client")
Item = TypeVar("Item")
Result = TypeVar("Result")


class _Turn(Generic[Item, Result]):
    """One list; ``done`` gets the answers, each perhaps an error, or the error that all of them
    met.
    """

    __slots__ = ("bytes", "done", "items", "left")

    def __init__(self, done: asyncio.Future[Sequence[Result | SendError] | RmqError]) -> None:
        self.items: list[Item] = []
        self.bytes = 0
        self.left = False
        self.done = done


class LoopTurns(Generic[Item, Result]):
    """See the module. ``lost``: what callers get whose items were on their way when the producer
    was closed.
    """

    def __init__(
        self,
        frames: AsyncFrames,
        ship: Callable[[str, list[Item]], Awaitable[Sequence[Result | SendError]]],
        limits: tuple[int, int],
        lost: Callable[[], RmqError],
    ) -> None:
        self._frames = frames
        self._ship = ship
        self._items_max, self._bytes_max = limits
        self._lost = lost
        self._turns: dict[str, _Turn[Item, Result]] = {}
        frames.before_close.append(self._leave_all)

    async def ask(self, key: str, item: Item, size: int) -> Result:
        """The answer to this item. ``size``: about how many bytes it takes. Raises what the request
        met.
        """
        self._frames.check_open()
        turn = self._turns.get(key)
        if (
            turn is None
            or len(turn.items) >= self._items_max
            or turn.bytes + size > self._bytes_max
        ):
            loop = asyncio.get_running_loop()
            turn = self._turns[key] = _Turn(loop.create_future())
            loop.call_soon(self._leave, key, turn)
        index = len(turn.items)
        turn.items.append(item)
        turn.bytes += size
        outcome = await asyncio.shield(turn.done)
        mine = outcome if isinstance(outcome, RmqError) else outcome[index]
        if isinstance(mine, RmqError):
            raise type(mine)(*mine.args)
        return mine

    def _leave(self, key: str, turn: _Turn[Item, Result]) -> None:
        if turn.left:
            return
        turn.left = True
        if self._turns.get(key) is turn:
            del self._turns[key]
        self._frames.start(self._run(key, turn)).add_done_callback(partial(self._ended, turn))

    def _leave_all(self) -> None:
        for key, turn in list(self._turns.items()):
            self._leave(key, turn)

    async def _run(self, key: str, turn: _Turn[Item, Result]) -> None:
        outcome: Sequence[Result | SendError] | RmqError
        try:
            outcome = await self._ship(key, turn.items)
        except RmqError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - every caller must get an end
            log.exception("what a turn of the loop asked for %s could not be sent", key)
            outcome = SendError(f"what was asked for {key!r} could not be sent: {error!r}", key)
        turn.done.set_result(outcome)

    def _ended(self, turn: _Turn[Item, Result], _task: asyncio.Task[None]) -> None:
        """The list's task is over, perhaps cancelled before its first step: a coroutine that never
        ran has no ``finally``.
        """
        if not turn.done.done():
            turn.done.set_result(self._lost())


class SharedTransactions:
    """The halves and ends of one ``AsyncProducer`` that travel together."""

    def __init__(self, core: ProducerCore, frames: AsyncFrames, halves: HalfSending) -> None:
        self.frames = frames
        self._core = core
        self.timeout_ms = float(core.config.send_timeout_ms)
        self._group = core.group
        self._halves = halves
        limits = (core.config.batch_messages_max, core.config.batch_bytes_max)
        self.halves: LoopTurns[Outgoing, SendResult] = LoopTurns(
            frames,
            self._send,
            limits,
            lambda: SendUnknown("the producer was closed; it may be stored"),
        )
        ends_max = (ENDS_MAX, ENDS_MAX * END_BYTES)
        self.ends: LoopTurns[End, Answer] = LoopTurns(
            frames,
            self._end,
            ends_max,
            lambda: ConnectionLost("the producer was closed; it may have ended"),
        )

    async def _send(self, topic: str, messages: list[Outgoing]) -> Sequence[SendResult | SendError]:
        began_ms = self._core.clock.monotonic_ms()
        queues, _ = await self.frames.queues(topic, self.timeout_ms)
        queue = self.frames.next_queue(queues)

        async def send(begin: int, end: int) -> Sequence[SendResult]:
            left_ms, asked = self._core.left_ms, messages[begin:end]
            load = await self.frames.when_free(
                lambda: self._halves.load(asked, 0.0, None), left_ms(self.timeout_ms, began_ms)
            )
            return results_of(
                *await self.frames.resolve(
                    load, queue, False, left_ms(self.timeout_ms, began_ms), self._halves.sending
                )
            )

        return await verdicts(len(messages), send)

    async def _end(self, broker_name: str, ends: list[End]) -> Sequence[Answer]:
        command = Command(
            RequestCode.END_TRANSACTIONS, body=pack_ends(self._group, ends), serialize=BINARY
        )
        return answers_of(
            await self.frames.ask(broker_name, command, REQUEST_TIMEOUT_MS), len(ends)
        )
