"""A table sent from an event loop: rows are checked and encoded in threads, everything that waits
is awaited.

    route ──await──> rows checked (thread) ──> frames, several at a time: next queue ──> encoded (thread) ──> AsyncFrames ──> SendResult

Decides which frames of a table are out at once. Where a table is cut and what an error tells is
``client.sending.arrow_sending``'s, as are the rules: frames go to the queues in turn; to a given
queue one at a time, up to the first failure. Called by ``AsyncProducer.send_arrow``. Imported by
those who want columns only.

Invariants: a thread is taken for the processor's work only, never for a wait; no row is sent before
all were checked; every frame that was begun is waited for; at most ``frames_in_flight_max`` frames
of each broker and ``buffer_bytes_max`` bytes of the call are out; each frame has its own time-out,
the first one's covers the look-up of the route. Who is cancelled leaves the frames that were begun
on their way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rmq_ray.client.interceptors.send_steps import SendSteps
from rmq_ray.client.producer.async_frames import AsyncFrames
from rmq_ray.client.sending.arrow_sending import (
    ArrowCall,
    ArrowFrame,
    encode_rows,
    partly_sent,
    table_frames,
)
from rmq_ray.client.sending.frame_sending import partly
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.errors import ClientError, RmqError, SendError, SendUnknown
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import SendResult
from rmq_ray.model.namespaces import queue_with_namespace, with_namespace
from rmq_ray.protocol.validators import check_send_topic


async def send_table(
    core: ProducerCore, frames: AsyncFrames, steps: SendSteps | None, call: ArrowCall
) -> list[SendResult]:
    """See ``AsyncProducer.send_arrow``. One result per frame."""
    check_send_topic(call.topic)
    namespace = core.config.namespace
    topic, queue = (
        with_namespace(namespace, call.topic),
        None if call.queue is None else queue_with_namespace(namespace, call.queue),
    )
    queues, left_ms = await frames.queues(topic, call.timeout_ms)
    if queue is not None:
        core.choose(topic, queue, None, 0.0)
    table = await asyncio.to_thread(lambda: list(table_frames(call.data, call.names, core.config)))
    call = call._replace(topic=topic, queue=queue)
    if steps is not None:
        return await _one_by_one(
            core, frames, steps, call, table, queue or frames.next_queue(queues), left_ms
        )
    return await TableSending(core, frames, call, {queue.broker_name for queue in queues}).send(
        table, left_ms
    )


async def _one_by_one(  # noqa: PLR0913 - a call
    core: ProducerCore,
    frames: AsyncFrames,
    steps: SendSteps,
    call: ArrowCall,
    table: Sequence[ArrowFrame],
    target: MessageQueue,
    left_ms: float,
) -> list[SendResult]:
    """For producers that have more to do with each message: all to one queue, as ``send_batch``
    does.
    """
    results: list[SendResult] = []
    for frame in table:
        parts = await asyncio.to_thread(frame.parts)
        try:
            results += await frames.send_frames(
                [parts], target, call.queue is not None, left_ms, call.timeout_ms, steps
            )
        except (SendError, ClientError) as error:
            if not results:
                raise
            raise partly(error, results, call.topic, lambda stored: [(0, stored)]) from error
        target, left_ms = (
            queue_with_namespace(core.config.namespace, results[-1].queue),
            call.timeout_ms,
        )
    return results


class TableSending:
    """One call. ``brokers``: names of those that have the topic."""

    def __init__(
        self, core: ProducerCore, frames: AsyncFrames, call: ArrowCall, brokers: set[str]
    ) -> None:
        self._core = core
        self._frames = frames
        self._call = call
        self._frames_max = (
            1 if call.queue is not None else core.config.frames_in_flight_max * len(brokers)
        )
        self._out: dict[asyncio.Task[None], int] = {}
        """Frames on their way, and their bytes."""
        self._begun: list[ArrowFrame] = []
        self._ends: list[SendResult | Exception | None] = []
        self._failed = False

    async def send(self, table: Sequence[ArrowFrame], left_ms: float) -> list[SendResult]:
        """``left_ms``: of the first frame's time. Raises as ``ArrowSending.send``."""
        for frame in table:
            await self._room_for(frame.weight)
            if self._failed:
                break
            number = len(self._begun)
            self._begun.append(frame)
            self._ends.append(None)
            task = self._frames.start(
                self._send(number, frame, left_ms if not number else self._call.timeout_ms)
            )
            self._out[task] = frame.weight
        while self._out:  # ends: each frame has its time-out
            await self._wait()
        return self._results()

    async def _room_for(self, weight: int) -> None:
        bytes_max = self._core.config.buffer_bytes_max
        while self._out and (
            len(self._out) >= self._frames_max or sum(self._out.values()) + weight > bytes_max
        ):  # ends: each frame has its time-out
            await self._wait()

    async def _wait(self) -> None:
        done, _ = await asyncio.wait(self._out, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            del self._out[task]
            self._failed |= task.cancelled()  # the producer was closed: no other frame may follow

    async def _send(self, number: int, frame: ArrowFrame, timeout_ms: float) -> None:
        try:
            self._ends[number] = await self._sent(frame, timeout_ms)
        except Exception as error:  # noqa: BLE001 - told when all frames have ended
            self._ends[number], self._failed = error, True

    async def _sent(self, frame: ArrowFrame, timeout_ms: float) -> SendResult:
        core, frames, given = self._core, self._frames, self._call.queue
        started_ms = core.clock.monotonic_ms()
        queue = given or frames.next_queue((await frames.queues(self._call.topic, timeout_ms))[0])
        frame_id = await frames.when_free(
            lambda: core.identity.take(0.0), core.left_ms(timeout_ms, started_ms)
        )
        try:
            load = await asyncio.to_thread(encode_rows, core, frame, queue, frame_id)
        except asyncio.CancelledError:
            core.identity.release(frame_id)
            raise
        return await frames.send_load(
            load, queue, given is not None, core.left_ms(timeout_ms, started_ms)
        )

    def _results(self) -> list[SendResult]:
        stored = [
            (frame.begin, frame.end)
            for frame, end in zip(self._begun, self._ends, strict=True)
            if isinstance(end, SendResult)
        ]
        results: list[SendResult] = []
        for end in self._ends:
            if end is None:
                end = SendUnknown(
                    "the producer was closed before the broker answered; the rows may be stored",
                    self._call.topic,
                )
            if isinstance(end, RmqError) and not isinstance(end, SendError):
                raise end
            if isinstance(end, Exception):
                raise partly_sent(end, self._call.topic, stored) from end
            results.append(end)
        return results
