"""A table on its way: cut into frames, each encoded by columns and sent while others are
unanswered.

    rows ──cut by bytes and count──> frame ──window of its broker──> AsyncSender ──> SendResult
    on an event loop: rows checked and encoded in threads, frames sent by ``LoopSender``

Each frame takes the next queue of the topic, so that rows of one frame keep their order and frames
do not. To a given queue they go one at a time and stop at the first failure: what is stored is a
beginning of the table. Decides where a table is cut, which frames of it are out at once, and what
an error tells of the frames that are stored. Does not decide what rows may be
(``client.sending.arrow_columns``) or what is sent again (``client.sending.send_engine``). Imported
by those who want columns only: pyarrow takes 0.15 s to load.

Invariants: no row is sent before all were checked; every frame that was begun is waited for; a
frame's time-out covers all that it waits for, the first one's the look-up of the route, too; at
most ``frames_in_flight_max`` frames of a broker and ``buffer_bytes_max`` bytes are out. On a loop a
thread is taken for the processor's work only, never for a wait; who is cancelled leaves the frames
that were begun on their way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rmq_ray.client.outgoing.confirming import beside_stored
from rmq_ray.client.outgoing.send_future import FINISHED, BatchOutcome
from rmq_ray.client.outgoing.send_payload import RECORD_OVERHEAD, FrameParts, RecordsPayload
from rmq_ray.client.sending.arrow_columns import CheckedRows, Columns, read_rows
from rmq_ray.client.sending.async_sender import AsyncSend
from rmq_ray.client.sending.loop_sender import LoopSender
from rmq_ray.client.sending.producer_core import CLOSE_SLACK_MS, ProducerCore
from rmq_ray.client.sending.send_engine import InFlightSend, ids_result
from rmq_ray.client.sending.send_steps import SendSteps, partly, send_frames
from rmq_ray.codec.arrow.arrow_encoder import encode_arrow, offsets_of
from rmq_ray.codec.record_batch import FRAME_RECORDS_MAX
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import BrokerBusy, ClientError, RmqError, SendError, SendTimeout, SendUnknown
from rmq_ray.model.ids import FrameId, MessageQueue
from rmq_ray.model.message import SendResult
from rmq_ray.model.namespaces import queue_with_namespace, with_namespace
from rmq_ray.protocol.validators import check_send_topic

WAIT_SLICE_S = 0.5  # cancellation reaches a thread between waits only


@dataclass(slots=True)
class ArrowFrame:
    """Rows [begin, end) of the table, as columns. ``weight``: bytes on the wire, rounded up."""

    begin: int
    end: int
    bodies: Any
    texts: Any
    weight: int

    def parts(self) -> FrameParts:
        """The same as lists, for producers that have more to do with each message."""
        bodies: list[bytes] = self.bodies.to_pylist()
        texts = (
            [""] * len(bodies)
            if self.texts is None
            else [text.decode() for text in self.texts.to_pylist()]
        )
        return bodies, texts, None


def table_frames(
    data: object,
    names: tuple[str, str | None, str | None, str | Sequence[str]],
    config: ProducerConfig,
) -> Iterator[ArrowFrame]:
    """The frames of a table; ``names``: of the columns for body, key, tag, properties. All rows are
    checked on return. Raises as ``read_rows``.
    """
    return cut(read_rows(data, Columns(*names), config.body_bytes_max), config)


def cut(windows: Sequence[CheckedRows], config: ProducerConfig) -> Iterator[ArrowFrame]:
    """Frames of at most ``batch_bytes_max`` bytes (unless one row has more) and 65,536 rows, in
    order.
    """
    for rows in windows:
        lengths = np.diff(offsets_of(rows.bodies)).astype(np.int64) + RECORD_OVERHEAD
        if rows.texts is not None:
            lengths += np.diff(offsets_of(rows.texts))
        ends = np.cumsum(lengths)
        begin, count, before = 0, len(lengths), 0
        while begin < count:  # ends: each frame takes a row at least
            fitting = int(np.searchsorted(ends, before + config.batch_bytes_max, "right"))
            end = max(begin + 1, min(fitting, begin + FRAME_RECORDS_MAX))
            texts = None if rows.texts is None else rows.texts.slice(begin, end - begin)
            weight = int(ends[end - 1]) - before
            yield ArrowFrame(
                rows.first + begin,
                rows.first + end,
                rows.bodies.slice(begin, end - begin),
                texts,
                weight,
            )
            begin, before = end, int(ends[end - 1])


class ArrowCall(NamedTuple):
    """What ``send_arrow`` was given. ``names``: of the columns for body, key, tag, properties."""

    topic: str
    data: object
    names: tuple[str, str | None, str | None, str | Sequence[str]]
    queue: MessageQueue | None
    timeout_ms: float
    place: Callable[[int], tuple[MessageQueue, FrameId]] | None = None


def send_rows(core: ProducerCore, steps: SendSteps | None, call: ArrowCall) -> list[SendResult]:
    """See ``Producer.send_arrow``. Blocks the calling thread."""
    check_send_topic(call.topic)
    frames, timeout_ms = table_frames(call.data, call.names, core.config), call.timeout_ms
    if steps is not None:
        return send_frames(
            core,
            steps,
            call.topic,
            unplaced(frames, call.place),
            call.queue,
            timeout_ms,
            lambda stored: [(0, stored)],
        )
    started_ms = core.clock.monotonic_ms()
    queue = None if call.queue is None else core.choose(call.topic, call.queue, None, timeout_ms)
    if call.place is not None:
        core.queues.find(call.topic, core.left_ms(timeout_ms, started_ms))  # where the brokers are
    return TableSend(core, call._replace(queue=queue)).send(frames, started_ms)


def unplaced(frames: Iterator[ArrowFrame], place: object) -> Iterator[FrameParts]:
    """The frames for producers that have more to do with each message; ``ClientError`` where the
    caller wants to place them.
    """
    if place is not None:
        raise ClientError(
            "place= goes without hooks, compression, trace and namespace only: use a plain producer"
        )
    return (frame.parts() for frame in frames)


class TableSend:
    """One call of ``send_arrow``."""

    def __init__(self, core: ProducerCore, call: ArrowCall) -> None:
        self._core = core
        self._topic, self._queue, self._timeout_ms, self._place = (
            call.topic,
            call.queue,
            call.timeout_ms,
            call.place,
        )
        self._sent: list[tuple[ArrowFrame, BatchOutcome]] = []
        self._looked_at = 0
        """Frames whose end is known, from the first one on."""

    def send(self, frames: Iterator[ArrowFrame], started_ms: float) -> list[SendResult]:
        """One result per frame. Raises ``SendError`` when a frame failed; ``args[2]`` are the
        ranges of rows that are stored all the same.

        ``started_ms``: when the first frame's time began to run; each other one's does when its
        turn comes.
        """
        try:
            for frame in frames:
                self._begin(
                    frame, started_ms if not self._sent else self._core.clock.monotonic_ms()
                )
                if self._failed(wait=self._queue is not None):
                    break
        except SendError as error:
            self._failed(wait=True)
            raise partly_sent(error, self._topic, *self._stored()) from error
        self._failed(wait=True)
        for _, outcome in self._sent:
            if outcome.error is not None:
                raise partly_sent(outcome.error, self._topic, *self._stored()) from outcome.error
        return [_result(outcome) for _, outcome in self._sent]

    def _begin(self, frame: ArrowFrame, started_ms: float) -> None:
        """Wait for a route and for room in the window, encode, hand the bytes to the connection."""
        core, timeout_ms = self._core, self._timeout_ms
        left_ms = core.left_ms(timeout_ms, started_ms)
        queue, frame_id = (
            self._place(len(self._sent))
            if self._place is not None
            else (self._queue or core.next_queue(self._topic, left_ms), None)
        )
        pinned = self._queue is not None or frame_id is not None
        if not core.window.take(
            queue.broker_name, frame.weight, core.left_ms(timeout_ms, started_ms)
        ):
            raise BrokerBusy(
                f"no frame to {queue.broker_name} was answered for {timeout_ms:.0f} ms; rows "
                f"from {frame.begin} on were not sent",
                self._topic,
            )
        outcome = BatchOutcome(queue)

        def prepare(wait: bool) -> InFlightSend:
            taken = frame_id or core.identity.take(
                core.left_ms(timeout_ms, started_ms) if wait else 0.0
            )
            payload = encode_rows(core, frame, queue, taken)
            outcome.message_ids = payload.message_ids
            return core.engine.in_flight(payload, queue, pinned, timeout_ms, started_ms)

        send = AsyncSend(
            outcome,
            prepare,
            queue.broker_name,
            queue,
            started_ms + timeout_ms,
            frame.weight,
            ordered=self._queue is not None,
        )
        self._sent.append((frame, outcome))
        core.async_sender.submit(send)

    def _failed(self, wait: bool) -> bool:
        """Whether a frame is known to have failed. ``wait``: until every frame that was begun has
        ended, by its own time-out at the latest.
        """
        deadline = self._core.clock.monotonic_ms() + self._timeout_ms + CLOSE_SLACK_MS
        failed = False
        for _, outcome in self._sent[self._looked_at :]:
            while wait and outcome.state is not FINISHED:
                if self._core.clock.monotonic_ms() > deadline:
                    raise SendTimeout(
                        f"frames to {outcome.queue} did not end in time; their rows may be stored",
                        self._topic,
                    )
                with outcome.condition:
                    ended = partial(_has_ended, outcome)
                    outcome.condition.wait_for(ended, WAIT_SLICE_S)
            if outcome.state is not FINISHED:
                break
            self._looked_at += 1
            failed = failed or outcome.error is not None
        return failed

    def _stored(self) -> tuple[list[tuple[int, int]], list[SendResult]]:
        """Rows of frames that are stored, and their results."""
        stored = [
            (frame, outcome)
            for frame, outcome in self._sent
            if outcome.state is FINISHED and outcome.error is None
        ]
        return [(frame.begin, frame.end) for frame, _ in stored], [
            _result(outcome) for _, outcome in stored
        ]


def encode_rows(
    core: ProducerCore, frame: ArrowFrame, queue: MessageQueue, frame_id: FrameId
) -> RecordsPayload:
    """A frame's bytes, with this id; which is released when they cannot be made."""
    now_ms = core.clock.now_ms()
    keys = core.identity.unique_keys(now_ms, frame.end - frame.begin)
    try:
        records, sizes = encode_arrow(
            queue.topic, queue.queue_id, frame.bodies, frame.texts, keys, now_ms, frame_id
        )
    except BaseException:
        core.identity.release(frame_id)
        raise
    return RecordsPayload(queue.topic, queue.queue_id, records, sizes, frame_id, keys)


def partly_sent(
    error: BaseException,
    topic: str,
    stored: list[tuple[int, int]],
    results: Sequence[SendResult],
) -> SendError:
    """The error of a table of which these rows [first, behind last) are stored, with these
    results.
    """
    rows = sum(end - begin for begin, end in stored)
    said = f"{rows} rows of other frames are stored, args[2] tells which"
    return beside_stored(error, said, topic, stored, results)


def _result(outcome: BatchOutcome) -> SendResult:
    assert outcome.stored is not None
    return ids_result(outcome.message_ids, outcome.stored)


def _has_ended(outcome: BatchOutcome) -> bool:
    return outcome.state is FINISHED


# --- on an event loop ---


async def send_table(
    core: ProducerCore, sender: LoopSender, steps: SendSteps | None, call: ArrowCall
) -> list[SendResult]:
    """See ``AsyncProducer.send_arrow``. One result per frame."""
    check_send_topic(call.topic)
    namespace = core.config.namespace
    topic, queue = (
        with_namespace(namespace, call.topic),
        None if call.queue is None else queue_with_namespace(namespace, call.queue),
    )
    queues, left_ms = await sender.queues(topic, call.timeout_ms)
    if queue is not None:
        core.choose(topic, queue, None, 0.0)
    table = await asyncio.to_thread(lambda: list(table_frames(call.data, call.names, core.config)))
    call = call._replace(topic=topic, queue=queue)
    if steps is not None:
        return await _one_by_one(
            core, sender, steps, call, table, queue or sender.next_queue(queues), left_ms
        )
    return await LoopTableSend(core, sender, call, {queue.broker_name for queue in queues}).send(
        table, left_ms
    )


async def _one_by_one(
    core: ProducerCore,
    sender: LoopSender,
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
            results += await sender.send_frames(
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


class LoopTableSend:
    """One call. ``brokers``: names of those that have the topic."""

    def __init__(
        self, core: ProducerCore, sender: LoopSender, call: ArrowCall, brokers: set[str]
    ) -> None:
        self._core = core
        self._sender = sender
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
        """``left_ms``: of the first frame's time. Raises as ``TableSend.send``."""
        for frame in table:
            await self._room_for(frame.weight)
            if self._failed:
                break
            number = len(self._begun)
            self._begun.append(frame)
            self._ends.append(None)
            task = self._sender.tasks.start(
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
        core, sender, given = self._core, self._sender, self._call.queue
        started_ms = core.clock.monotonic_ms()
        queue = given or sender.next_queue((await sender.queues(self._call.topic, timeout_ms))[0])
        frame_id = await sender.when_free(
            lambda: core.identity.take(0.0), core.left_ms(timeout_ms, started_ms)
        )
        try:
            payload = await asyncio.to_thread(encode_rows, core, frame, queue, frame_id)
        except asyncio.CancelledError:
            core.identity.release(frame_id)
            raise
        return await sender.send_payload(
            payload, queue, given is not None, core.left_ms(timeout_ms, started_ms)
        )

    def _results(self) -> list[SendResult]:
        ends = [end for end in self._ends if isinstance(end, SendResult)]
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
                raise partly_sent(end, self._call.topic, stored, ends) from end
            results.append(end)
        return results
