"""A batch that nobody waits for: ``send_batch_async``.

    batch ──> frames, all to one queue* ──window of its broker──> AsyncSender ──> one future of all

    * a frame whose broker fails goes elsewhere, as every send without a given queue

The calling thread encodes and writes each frame and goes on while the broker works: that is what it
is for, since batches that are waited for take turns with their broker. Decides what the future of a
batch of several frames tells. Does not decide where a batch is cut (``client.outgoing``), what is
sent again (``client.sending.send_engine``), or how much may be out (``frames_in_flight_max``,
``buffer_bytes_max``).

Invariants: frames of a queue leave in the order of the calls; the call raises only when nothing of
its batch was sent, or when it is interrupted; everything else is told by the future, once every
frame that was begun has ended; a batch that may be stored in part never ends as a definite failure.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from rmq_ray.client.interceptors.send_hooks import ASYNC
from rmq_ray.client.outgoing.callbacks import OwnFuture
from rmq_ray.client.outgoing.confirming import beside_stored
from rmq_ray.client.outgoing.send_future import FINISHED, BatchOutcome
from rmq_ray.client.outgoing.send_payload import RECORD_OVERHEAD, FrameParts, encode_records
from rmq_ray.client.sending.async_sender import AsyncSend
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.client.sending.send_engine import InFlightSend, ids_result
from rmq_ray.client.sending.send_steps import SendSteps
from rmq_ray.errors import RmqError, SendError, SendUnconfirmed, SendUnknown
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import SendResult
from rmq_ray.model.namespaces import queue_with_namespace, with_namespace


def begin_batch(
    core: ProducerCore,
    steps: SendSteps | None,
    topic: str,
    frames: Sequence[FrameParts],
    queue: MessageQueue | None,
    timeout_ms: float,
) -> OwnFuture[list[SendResult]]:
    """See ``Producer.send_batch_async``. ``queue``: where they must go; None = all to the next one
    with room.
    """
    started_ms = core.clock.monotonic_ms()
    topic = with_namespace(core.config.namespace, topic)
    if queue is None:
        queues = core.queues.find(topic, timeout_ms)
    else:
        whole = queue_with_namespace(core.config.namespace, queue)
        queues = (core.choose(topic, whole, None, timeout_ms),)
    batch = _Batch(core, steps, queues, queue is not None, timeout_ms, [len(f[0]) for f in frames])
    return batch.begin(frames, started_ms)


class _Batch:
    """One call. ``queues``: where its frames may go; ``counts``: messages of each frame."""

    def __init__(
        self,
        core: ProducerCore,
        steps: SendSteps | None,
        queues: Sequence[MessageQueue],
        pinned: bool,
        timeout_ms: float,
        counts: Sequence[int],
    ) -> None:
        self._core = core
        self._steps = steps
        self._queues = queues
        self._pinned = pinned
        self._timeout_ms = timeout_ms
        self._counts = counts
        self._ends: list[SendResult | RmqError | None] = [None] * len(counts)
        self._lock = threading.Lock()
        self._left = len(counts)
        self._future: OwnFuture[list[SendResult]] = OwnFuture(core.callbacks)

    def begin(self, frames: Sequence[FrameParts], started_ms: float) -> OwnFuture[list[SendResult]]:
        """Hand all frames over. ``started_ms``: when the first one's time began to run; each other
        one's does when its turn comes.
        """
        for number, parts in enumerate(frames):
            try:
                self._begin(number, parts, started_ms)
            except RmqError as error:
                if not number:
                    raise
                for missing in range(number, len(frames)):
                    self._ended(missing, error)
                break
            started_ms = self._core.clock.monotonic_ms()
        return self._future

    def orphan(self, error: RmqError) -> None:
        """In a forked child only."""
        if self._future._state != FINISHED:
            self._future.orphan(error)

    def _begin(self, number: int, parts: FrameParts, started_ms: float) -> None:
        """One frame, through the producer's steps if it has some."""
        if self._steps is None:
            self._submit(number, parts, started_ms)
            return
        topic, given = self._queues[0].topic, self._queues[0] if len(self._queues) == 1 else None
        with self._steps.around_frame(topic, given, parts, ASYNC) as (ctx, packed):
            ended: OwnFuture[SendResult] = OwnFuture(self._core.callbacks)
            self._submit(number, packed, started_ms, ended)
            self._steps.deferred(ctx, ended)

    def _submit(
        self,
        number: int,
        parts: FrameParts,
        started_ms: float,
        ended: OwnFuture[SendResult] | None = None,
    ) -> None:
        """Wait for room, encode, hand the bytes to the connection."""
        core, timeout_ms, pinned = self._core, self._timeout_ms, self._pinned
        bodies, texts, flags = parts
        weight = sum(map(len, bodies)) + sum(map(len, texts)) + RECORD_OVERHEAD * len(bodies)
        left_ms = core.left_ms(timeout_ms, started_ms)
        queue = core.batches.take_place(self._queues, weight, left_ms)
        self._queues = (queue,)
        outcome = _FrameOutcome(queue, self)
        outcome.on_finish = partial(self._finished, number, outcome, ended)

        def prepare(wait: bool) -> InFlightSend:
            payload = encode_records(
                core.identity,
                queue,
                bodies,
                texts,
                core.clock.now_ms(),
                core.left_ms(timeout_ms, started_ms) if wait else 0.0,
                flags,
            )
            outcome.message_ids = payload.message_ids
            return core.engine.in_flight(payload, queue, pinned, timeout_ms, started_ms)

        until_ms = started_ms + timeout_ms
        core.async_sender.submit(
            AsyncSend(outcome, prepare, queue.broker_name, queue, until_ms, weight)
        )

    def _finished(
        self, number: int, outcome: BatchOutcome, ended: OwnFuture[SendResult] | None
    ) -> None:
        """A frame has ended; in whichever thread that was seen."""
        outcome.on_finish = None  # it leads back to the outcome
        end: SendResult | RmqError
        if outcome.error is not None:
            end = outcome.error
        else:
            assert outcome.stored is not None
            end = ids_result(outcome.message_ids, outcome.stored)
        if ended is not None:
            if isinstance(end, SendResult):
                ended.set_result(end)
            else:
                ended.set_exception(end)
        self._ended(number, end)

    def _ended(self, number: int, end: SendResult | RmqError) -> None:
        with self._lock:
            self._ends[number] = end
            self._left -= 1
            if self._left:
                return
        errors = [found for found in self._ends if isinstance(found, RmqError)]
        if not errors:
            self._future.set_result([end for end in self._ends if isinstance(end, SendResult)])
        elif len(self._ends) == 1:
            self._future.set_exception(errors[0])
        else:
            self._future.set_exception(self._partly(errors))

    def _partly(self, errors: list[RmqError]) -> SendError:
        """Of several frames, some of which failed: what is said must hold for all of them."""
        results, stored, begin = [], [], 0
        for count, end in zip(self._counts, self._ends, strict=True):
            if isinstance(end, SendResult):
                results.append(end)
                stored.append((begin, begin + count))
            begin += count
        said = f"{sum(result.count for result in results)} messages of other frames are stored"
        said += ", args[2] tells which"
        weak = [error for error in errors if isinstance(error, SendUnconfirmed)]
        unknown = [e for e in errors if isinstance(e, SendUnknown) and e not in weak]
        error = (unknown or errors)[0]
        if not unknown and len(weak) == len(errors):
            results += [result for each in weak[1:] for result in each.results]
        elif not unknown and weak:  # stored less safely here, not stored there
            failed = next(each for each in errors if each not in weak)
            error = SendUnknown(f"{weak[0]}; and another frame is not stored: {failed}")
        return beside_stored(error, said, self._queues[0].topic, stored, results)


class _FrameOutcome(BatchOutcome):
    """Of one frame; in a forked child its batch's future ends with it."""

    __slots__ = ("_batch",)

    def __init__(self, queue: MessageQueue, batch: _Batch) -> None:
        super().__init__(queue)
        self._batch = batch

    def orphan(self, error: RmqError) -> None:
        """See ``BatchOutcome``."""
        self.on_finish = None
        super().orphan(error)
        self._batch.orphan(error)
