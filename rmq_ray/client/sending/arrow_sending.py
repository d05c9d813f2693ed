"""A table on its way: cut into frames, each encoded by columns and sent while others are
unanswered.

    rows ──cut by bytes and count──> frame ──slot of its broker──> Job ──> Launcher ──> ... ──> SendResult

Each frame takes the next queue of the topic, so that rows of one frame keep their order and frames
do not. To a given queue they go one at a time and stop at the first failure: what is stored is a
beginning of the table. Decides where a table is cut and what an error tells of the frames that are
stored. Does not decide what rows may be (``client.sending.arrow_columns``) or what is sent again
(``client.sending.async_sender``). Called by ``Producer.send_arrow``;
``client.producer.async_arrow`` does the same on an event loop. Imported by those who want columns
only: pyarrow takes 0.15 s to load.

Invariants: no row is sent before all were checked; every frame that was begun is waited for; a
frame's time-out covers all that it waits for, the first one's the look-up of the route, too; at
most ``frames_in_flight_max`` frames of a broker and ``buffer_bytes_max`` bytes are out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rmq_ray.client.interceptors.send_steps import SendSteps
from rmq_ray.client.outgoing.send_future import FINISHED, BatchOutcome
from rmq_ray.client.outgoing.send_payload import RecordsLoad
from rmq_ray.client.outgoing.splitting import RECORD_OVERHEAD, FrameParts
from rmq_ray.client.sending.arrow_columns import Columns, Rows, read_rows
from rmq_ray.client.sending.async_sender import Job
from rmq_ray.client.sending.frame_sending import send_frames
from rmq_ray.client.sending.producer_core import CLOSE_SLACK_MS, ProducerCore
from rmq_ray.client.sending.sending import Delivery
from rmq_ray.codec.arrow_encoder import encode_arrow, offsets_of
from rmq_ray.codec.key_range import KeyRange
from rmq_ray.codec.record_batch import FRAME_RECORDS_MAX
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import BrokerBusy, ClientError, SendError, SendTimeout
from rmq_ray.model.ids import FrameId, LogOffset, MessageQueue, QueueOffset
from rmq_ray.model.message import SendResult
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


def cut(windows: Sequence[Rows], config: ProducerConfig) -> Iterator[ArrowFrame]:
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
        core.find_queues(call.topic, core.left_ms(timeout_ms, started_ms))  # where the brokers are
    return ArrowSending(core, call._replace(queue=queue)).send(frames, started_ms)


def unplaced(frames: Iterator[ArrowFrame], place: object) -> Iterator[FrameParts]:
    """The frames for producers that have more to do with each message; ``ClientError`` where the
    caller wants to place them.
    """
    if place is not None:
        raise ClientError(
            "place= goes without hooks, compression, trace and namespace only: use a plain producer"
        )
    return (frame.parts() for frame in frames)


class ArrowSending:
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
            raise partly_sent(error, self._topic, self._stored()) from error
        self._failed(wait=True)
        for _, outcome in self._sent:
            if outcome.error is not None:
                raise partly_sent(outcome.error, self._topic, self._stored()) from outcome.error
        return [_result(outcome) for _, outcome in self._sent]

    def _begin(self, frame: ArrowFrame, started_ms: float) -> None:
        """Wait for a route and a slot, encode, hand the bytes to the connection."""
        core, timeout_ms = self._core, self._timeout_ms
        left_ms = core.left_ms(timeout_ms, started_ms)
        queue, frame_id = (
            self._place(len(self._sent))
            if self._place is not None
            else (self._queue or core.next_queue(self._topic, left_ms), None)
        )
        pinned = self._queue is not None or frame_id is not None
        if not core.slots.take(
            queue.broker_name, frame.weight, core.left_ms(timeout_ms, started_ms)
        ):
            raise BrokerBusy(
                f"no frame to {queue.broker_name} was answered for {timeout_ms:.0f} ms; rows "
                f"from {frame.begin} on were not sent",
                self._topic,
            )
        outcome = BatchOutcome(queue)

        def prepare(wait: bool) -> Delivery:
            attempts = core.sending.attempts_since(
                started_ms, queue, pinned, timeout_ms, codes_retried=True
            )
            taken = frame_id or core.identity.take(
                core.left_ms(timeout_ms, started_ms) if wait else 0.0
            )
            load = encode_rows(core, frame, queue, taken)
            outcome.message_ids = load.message_ids
            return Delivery(load, queue, attempts, pinned)

        job = Job(
            outcome,
            prepare,
            queue.broker_name,
            queue,
            started_ms + timeout_ms,
            frame.weight,
            ordered=self._queue is not None,
        )
        self._sent.append((frame, outcome))
        core.launcher.admit(job)
        core.launcher.launch(job)

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

    def _stored(self) -> list[tuple[int, int]]:
        return [
            (frame.begin, frame.end)
            for frame, outcome in self._sent
            if outcome.state is FINISHED and outcome.error is None
        ]


def encode_rows(
    core: ProducerCore, frame: ArrowFrame, queue: MessageQueue, frame_id: FrameId
) -> RecordsLoad:
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
    return RecordsLoad(queue.topic, queue.queue_id, records, sizes, frame_id, keys)


def partly_sent(error: BaseException, topic: str, stored: list[tuple[int, int]]) -> SendError:
    """The error of a table of which these rows [first, behind last) are stored."""
    rows = sum(end - begin for begin, end in stored)
    kind = type(error) if isinstance(error, SendError) else SendError
    return kind(
        f"{error}; {rows} rows of other frames are stored, args[2] tells which", topic, stored
    )


def _result(outcome: BatchOutcome) -> SendResult:
    keys, log_offset = outcome.message_ids, outcome.base_log_offset
    assert isinstance(keys, KeyRange)
    store_id = outcome.store_id(log_offset) if log_offset >= 0 else ""
    return SendResult(
        outcome.status,
        keys.joined(),
        outcome.queue,
        QueueOffset(outcome.base_offset),
        store_id,
        LogOffset(log_offset),
        None,
        len(keys),
    )


def _has_ended(outcome: BatchOutcome) -> bool:
    return outcome.state is FINISHED
