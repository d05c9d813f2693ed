"""Requests of an event loop (protocol-behaviour 25): asked over the loop's own connections,
answered through ``client.producer.request_reply``.

    ask ──route──> introduced? ──no──> heartbeat, in a thread: one for all topics that wait ──> send (task) ──> reply, or the end of the time

Decides who waits for what, so that no request holds a thread while a topic has no master or a
broker does not answer. What a request is, and which reply belongs to it, is
``client.producer.request_reply``'s. Belongs to one loop; called by ``AsyncProducer.request``.
Invariant: a request ends within its time-out, which includes the wait for a route.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rmq_ray.client.messages.received import MessageExt
from rmq_ray.client.outgoing.send_request import Outgoing, Placement
from rmq_ray.client.producer.async_frames import AsyncFrames
from rmq_ray.client.producer.request_reply import INTRODUCE_MS, INTRODUCE_PARTS, Asked, requests_of
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.errors import ClientError
from rmq_ray.model.message import SendResult

Send = Callable[[Outgoing, Placement | None, float], Awaitable[SendResult]]
"""(message, placement, time-out in ms): a send with all that the producer does around it."""


class AsyncRequests:
    """See the module."""

    def __init__(self, core: ProducerCore, frames: AsyncFrames, send: Send) -> None:
        self.frames = frames
        self._core = core
        self._send = send
        self._requests = requests_of(core)
        self._untold: dict[str, asyncio.Future[None]] = {}
        self._telling: asyncio.Task[None] | None = None
        self._closed = False
        frames.before_close.append(self._close)

    async def ask(
        self, message: Outgoing, placement: Placement | None, timeout_ms: float
    ) -> MessageExt:
        """The reply. Raises ``RequestTimeout``, what the send raised, and ``ClientError`` when the
        producer is closed before the send.
        """
        core, started_ms = self._core, self._core.clock.monotonic_ms()
        _, left_ms = await self.frames.queues(message.topic, timeout_ms)
        if not self._closed and not self._requests.knows(message.topic):
            await self._introduce(message.topic, left_ms)
        if self._closed:
            raise ClientError(
                f"producer {core.group!r} was closed before the request to topic "
                f"{message.topic!r} left; nothing was sent",
                message.topic,
            )
        self.frames.check_open()
        asked = self._requests.begin(message, timeout_ms, started_ms)
        self.frames.start(
            self._ship(asked, message, placement, core.left_ms(timeout_ms, started_ms))
        )
        return await asked.answer_in_loop()

    async def _ship(
        self, asked: Asked, message: Outgoing, placement: Placement | None, timeout_ms: float
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
