"""Requests that wait for a reply message, on an event loop: ``request_reply`` without a thread that
waits.

    ask ──route──> introduced? ──no──> heartbeat, in a thread: one for all topics that wait
                        └──yes──> send (task) ──> reply, or the end of the time

Decides who waits for what, so that no request holds a thread while a topic has no master or a
broker does not answer. What a request is, and when it is over, decides ``request_reply``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rmq_ray.client.messages.received import MessageExt
from rmq_ray.client.outgoing.send_request import Placement, SendRequest
from rmq_ray.client.producer.request_reply import (
    INTRODUCE_MS,
    INTRODUCE_PARTS,
    InFlightRequest,
    request_reply_of,
)
from rmq_ray.client.sending.loop_sender import LoopSender
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.errors import ClientError
from rmq_ray.model.message import SendResult

LoopSend = Callable[[SendRequest, Placement | None, float], Awaitable[SendResult]]
"""(message, placement, time-out in ms): a send with all that the producer does around it."""


class LoopRequests:
    """Requests of an event loop: asked over the loop's own connections. A request ends within its
    time-out, which includes the wait for a route.
    """

    def __init__(self, core: ProducerCore, sender: LoopSender, send: LoopSend) -> None:
        self.sender = sender
        self._core = core
        self._send = send
        self._requests = request_reply_of(core)
        self._untold: dict[str, asyncio.Future[None]] = {}
        self._telling: asyncio.Task[None] | None = None
        self._closed = False
        sender.tasks.before_close.append(self._close)

    async def ask(
        self, message: SendRequest, placement: Placement | None, timeout_ms: float
    ) -> MessageExt:
        """The reply. Raises ``RequestTimeout``, what the send raised, and ``ClientError`` when the
        producer is closed before the send.
        """
        core, started_ms = self._core, self._core.clock.monotonic_ms()
        _, left_ms = await self.sender.queues(message.topic, timeout_ms)
        if not self._closed and not self._requests.knows(message.topic):
            await self._introduce(message.topic, left_ms)
        if self._closed:
            raise ClientError(
                f"producer {core.group!r} was closed before the request to topic "
                f"{message.topic!r} left; nothing was sent",
                message.topic,
            )
        self.sender.check_open()
        asked = self._requests.begin(message, timeout_ms, started_ms)
        self.sender.tasks.start(
            self._ship(asked, message, placement, core.left_ms(timeout_ms, started_ms))
        )
        return await _answer(asked)

    async def _ship(
        self,
        asked: InFlightRequest,
        message: SendRequest,
        placement: Placement | None,
        timeout_ms: float,
    ) -> None:
        try:
            await self._send(message, placement, timeout_ms)
            asked.pending.sent = True
        except Exception as error:  # noqa: BLE001 - whoever waits for the reply gets it
            asked.abandon(error)

    async def _introduce(self, topic: str, timeout_ms: float) -> None:
        """Wait until the topic's brokers know who is here, for half of the time at most."""
        told = self._untold.get(topic)
        if told is None:
            told = self._untold[topic] = asyncio.get_running_loop().create_future()
        if self._telling is None:
            self._telling = asyncio.create_task(self._tell())
        await asyncio.wait((told,), timeout=2 * timeout_ms / INTRODUCE_PARTS / 1000)

    async def _tell(self) -> None:
        """All topics that wait, at once; those that come meanwhile, afterwards."""
        waiting: dict[str, asyncio.Future[None]] = {}
        try:
            while self._untold:  # ends: nobody came meanwhile
                waiting, self._untold = self._untold, {}
                await asyncio.to_thread(self._requests.introduce, waiting, INTRODUCE_MS)
                _wake(waiting)
        finally:
            self._telling = None
            _wake(waiting)

    def _close(self) -> None:
        """Who waits in ``ask`` is told. The task may be cancelled before its first step."""
        self._closed = True
        if self._telling is not None:
            self._telling.cancel()
        _wake(self._untold)


def _wake(waiting: dict[str, asyncio.Future[None]]) -> None:
    for told in waiting.values():
        if not told.done():
            told.set_result(None)


async def _answer(asked: InFlightRequest) -> MessageExt:
    """As ``InFlightRequest.answer``, without blocking the loop."""
    future = asyncio.wrap_future(asked.reply)
    # ``answer`` raises its error; asyncio would log it as one that nobody has seen
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait([future], timeout=asked.requests.left_s(asked.pending))
    return asked.answer()
