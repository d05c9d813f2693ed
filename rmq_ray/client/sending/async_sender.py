"""Asynchronous frames: how many are out, in which order, and what happens with their answers.

    Accumulator ──Job──> Launcher.launch ──> Sending.start ──> connection
                              ^                                    │ answer (reader thread)
                              ├── worker thread <── retry ─────────┤
                              └── next piece <── refused ──────────┤  of several calls' messages (``client.outgoing.batch_bisect``)
                                                  finished <───────┘  slot freed, next of the lane, futures completed

Decides nothing about retries (``protocol.retry``) or batches (``client.sending.batching``).
Invariants: at most ``frames_in_flight_max`` jobs of a broker hold a slot, from the first message of
a batch until its answer; frames of a queue leave in order (``client.outgoing.per_queue_order``); a
job is finished exactly once; the reader thread never encodes, writes, waits or runs users'
callbacks.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from rmq_ray.client.instance.timers import Timers
from rmq_ray.client.outgoing.batch_bisect import ONE_OF_MANY, Pieces
from rmq_ray.client.outgoing.per_queue_order import Lanes
from rmq_ray.client.outgoing.send_future import BatchOutcome
from rmq_ray.client.sending.sending import Delivery, Outcome, Sending, store_id
from rmq_ray.errors import BrokerBusy, MalformedFrame, SendError, SendUnknown
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import SendStatus
from rmq_ray.protocol.retry import STATUS_OF_CODE, Decision, Step
from rmq_ray.remoting.wire.frame import Command

BUSY_PAUSE_MS = 10.0  # while an unanswered frame holds newer ones back

log = logging.getLogger("rmq_ray.client")


class Job:
    """One asynchronous unit: a batch or a single message, its futures' outcome and the slot it
    holds (None: bounded elsewhere).

    ``prepare(wait)`` makes its delivery: called by whoever launches it first (encoding happens
    there). It may wait for a frame id; with ``wait`` False it raises ``BrokerBusy`` instead and is
    called again later. ``separate``: the pieces of a refused frame that holds messages of several
    calls; None = it stays whole. ``told``: where the answer to its present frame is written.
    ``until_ms``: when its time is over, monotonic.
    """

    __slots__ = (
        "delivery",
        "done",
        "holds",
        "kept",
        "lane",
        "number",
        "ordered",
        "outcome",
        "pieces",
        "prepare",
        "separate",
        "slot_of",
        "told",
        "until_ms",
        "waiting",
        "weight",
    )

    def __init__(  # noqa: PLR0913 - a unit
        self,
        outcome: BatchOutcome,
        prepare: Callable[[bool], Delivery],
        slot_of: str | None,
        lane: MessageQueue | None,
        until_ms: float,
        weight: int = 0,
        ordered: bool = False,
        separate: Callable[[], Pieces] | None = None,
    ) -> None:
        self.outcome = self.told = outcome
        self.separate = separate
        self.pieces: Pieces | None = None
        self.prepare = prepare
        self.slot_of = slot_of
        self.weight = weight
        self.lane = lane
        self.ordered = ordered
        self.until_ms = until_ms
        self.holds = False
        self.number = 0
        self.waiting: Callable[[], None] | None = None
        self.delivery: Delivery | None = None
        self.done = False
        self.kept = False  # what is told already holds a result below SEND_OK


class Slots:
    """The bounds on what is out: frames of each broker name, and bytes of all. One slot fits
    however heavy it is. Thread-safe.
    """

    def __init__(self, limit: int, bytes_max: int) -> None:
        self._limit = limit
        self._bytes_max = bytes_max
        self._bytes = 0
        self._free: dict[str, int] = {}
        self._freed = threading.Condition(threading.Lock())

    def try_take(self, broker_name: str, weight: int) -> bool:
        """Take a slot for ``weight`` bytes if there is room."""
        with self._freed:
            return self._take(broker_name, weight)

    def take(self, broker_name: str, weight: int, timeout_ms: float) -> bool:
        """Wait up to ``timeout_ms`` for room; False when there was none."""
        with self._freed:
            return self._freed.wait_for(lambda: self._take(broker_name, weight), timeout_ms / 1000)

    def free(self, broker_name: str, weight: int) -> None:
        """Give a slot back."""
        with self._freed:
            self._free[broker_name] = min(self._limit, self._free.get(broker_name, 0) + 1)
            self._bytes = max(0, self._bytes - weight)
            self._freed.notify_all()

    def _take(self, broker_name: str, weight: int) -> bool:
        free = self._free.get(broker_name, self._limit)
        if free <= 0 or (self._bytes and self._bytes + weight > self._bytes_max):
            return False
        self._free[broker_name] = free - 1
        self._bytes += weight
        return True


class Launcher:
    """See the module. ``finished(delivery)`` is told when a load will not be sent again."""

    def __init__(
        self, sending: Sending, slots: Slots, worker: Timers, finished: Callable[[Delivery], None]
    ) -> None:
        self._sending = sending
        self._slots = slots
        self._worker = worker
        self._finished = finished
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._jobs: set[Job] = set()
        self._lanes: Lanes[Job] = Lanes()
        self._callbacks: deque[Callable[[], None]] = deque()

    def admit(self, job: Job) -> None:
        """Take responsibility for a job. The jobs of a lane leave in the order of these calls;
        ``launch`` follows, in any order.
        """
        with self._lock:
            self._jobs.add(job)
            self._lanes.add(job)

    def launch(self, job: Job) -> None:
        """Launch a job, or what its lane has before it; another thread that is at it, or the end of
        what holds the lane, may launch it as well.
        """
        if job.lane is None:
            self._begin(job)
        else:
            self._work_off(job.lane)

    def _work_off(self, queue: MessageQueue) -> None:
        while True:  # ends: each round takes one job out of the lane
            with self._lock:
                job = self._lanes.next(queue)
            if job is None:
                return
            try:
                self._begin(job)
            finally:
                with self._lock:
                    self._lanes.launched(queue)

    def _begin(self, job: Job) -> None:
        """Encode if need be and begin an attempt; returns when the bytes are handed to the
        connection. Never raises.
        """
        try:
            delivery = job.delivery
            if delivery is None:
                delivery = self._prepare(job)
                if delivery is None:
                    return
            left = delivery.attempts.attempt_timeout_ms(self._sending.clock.monotonic_ms())
            if left > 0:
                self._sending.start(delivery, left, partial(self._answered, job))
            else:
                self._too_late(job, delivery)
        except SendError as error:
            self._finish(job, error)
        except Exception as error:  # noqa: BLE001
            log.exception("a batch for %s could not be sent", job.outcome.queue)
            self._finish(
                job, SendError(f"a batch for {job.outcome.queue} could not be sent: {error!r}")
            )
        except BaseException:
            # Ctrl-C in the launching thread: nobody else would end the job, and its lane would wait
            # for it
            self._finish(
                job,
                SendUnknown(
                    f"sending to {job.outcome.queue} was interrupted; the message may be stored",
                    job.outcome.queue.topic,
                ),
            )
            raise

    def _prepare(self, job: Job) -> Delivery | None:
        """The job's delivery; None = the worker looks again soon. It must not wait itself: the
        frames that keep ids are repeated by it.
        """
        in_worker = self._worker.is_current_thread
        try:
            job.delivery = job.prepare(not in_worker)
        except BrokerBusy:
            if not in_worker or self._sending.clock.monotonic_ms() >= job.until_ms:
                raise
            self._later(BUSY_PAUSE_MS, job, lambda: self._begin(job))
        return job.delivery

    def _later(self, delay_ms: float, job: Job, action: Callable[[], None]) -> None:
        """The worker goes on with this job; newer ones of its lane wait."""
        with self._lock:
            self._lanes.hold(job)
        self._worker.after(delay_ms, lambda: self._in_turn(job, action))

    def _in_turn(self, job: Job, action: Callable[[], None]) -> None:
        with self._lock:
            may_go = self._lanes.may_go(job, action)
        if may_go:
            action()

    def wait_idle(self, timeout_ms: float, jobs: set[Job] | None = None) -> bool:
        """Wait until the given jobs (None = all there are now) are finished; False when they are
        not in time.
        """
        with self._lock:
            wanted = set(self._jobs) if jobs is None else jobs
            return self._idle.wait_for(lambda: not (wanted & self._jobs), timeout_ms / 1000)

    def abandon(self, reason: str) -> None:
        """Finish every job that is left, as unknown; the worker has closed."""
        with self._lock:
            jobs = list(self._jobs)
            self._lanes.clear()
        for job in jobs:
            self._end(
                job, SendUnknown(f"{reason}; the message may be stored", job.outcome.queue.topic)
            )
        self._call_back()

    def outcomes(self) -> list[BatchOutcome]:
        """Of the jobs that are not finished."""
        return [job.outcome for job in list(self._jobs)]

    def _answered(self, job: Job, outcome: Outcome) -> None:
        """An attempt ended; in a reader thread, or in the launching one when nothing was sent. Must
        not block.
        """
        delivery = job.delivery
        assert delivery is not None
        now = self._sending.clock.monotonic_ms()
        if isinstance(outcome, Command) and outcome.code in STATUS_OF_CODE:
            if not self._keep(job, delivery, outcome):
                return
            if (
                job.told.status is SendStatus.SEND_OK
                or not self._sending.config.retry_another_broker_when_not_store_ok
            ):
                self._finish(job, None)
                return
            decision = delivery.attempts.not_stored(now)
        else:
            decision = delivery.judge(outcome, now)
        if decision.step is Step.GIVE_UP:
            self._finish(job, None if job.kept else delivery.error(now))
        else:
            self._later(decision.delay_ms, job, lambda: self._again(job, delivery, decision))

    def _keep(self, job: Job, delivery: Delivery, answer: Command) -> bool:
        """Write an answer that says stored into the outcome; False when it cannot be read (the job
        is finished then).
        """
        try:
            offset, log_offset = delivery.load.stored_at(answer)
        except MalformedFrame as error:
            self._finish(
                job,
                SendUnknown(
                    f"the answer to a send cannot be read ({error}); the message may be stored",
                    delivery.load.topic,
                ),
            )
            return False
        result = job.told
        result.status, result.queue = (
            STATUS_OF_CODE[answer.code],
            self._sending.shown(delivery.queue),
        )
        result.base_offset, result.base_log_offset = offset, log_offset
        result.recall_handle = answer.fields.get("recallHandle") if answer.fields else None
        if delivery.address is not None:
            result.store_id = partial(store_id, delivery.address)
        job.kept = True
        return True

    def _again(self, job: Job, delivery: Delivery, decision: Decision) -> None:
        self._sending.follow(delivery, decision)
        self._begin(job)

    def _too_late(self, job: Job, delivery: Delivery) -> None:
        if job.kept:
            self._finish(job, None)
            return
        self._finish(job, delivery.error(self._sending.clock.monotonic_ms()))

    def _finish(self, job: Job, error: SendError | None) -> None:
        """Its frame is stored or given up."""
        if job.pieces is not None or (job.separate is not None and isinstance(error, ONE_OF_MANY)):
            self._later(0.0, job, lambda: self._next_piece(job, error))
        else:
            self._end(job, error)

    def _next_piece(self, job: Job, error: SendError | None) -> None:
        """In the worker: a frame with messages of several calls was refused, or a piece of it has
        ended.
        """
        if job.done:
            return
        try:
            if job.pieces is None:
                assert job.separate is not None
                job.pieces = job.separate()
            pieces = job.pieces
            pieces.ended(error)
            if job.delivery is not None:
                self._finished(job.delivery)
            job.delivery, job.kept = None, False
            told = pieces.begin()
        except Exception as failure:  # noqa: BLE001
            log.exception("a refused batch for %s could not be taken apart", job.outcome.queue)
            self._end(
                job,
                error
                or SendError(
                    f"a refused batch for {job.outcome.queue} could not be taken apart: {failure!r}"
                ),
            )
            return
        if told is None:
            self._end(job, None)
            return
        job.told, job.prepare = told, lambda _wait: pieces.delivery()
        self._begin(job)

    def _end(self, job: Job, error: SendError | None) -> None:
        with self._lock:
            if job.done:
                return
            job.done = True
            followed, action = self._lanes.ended(job)
        if job.slot_of is not None:
            self._slots.free(job.slot_of, job.weight)
        if job.delivery is not None:
            self._finished(job.delivery)
        if job.pieces is not None:
            job.pieces.abandon(error)
            job.outcome.verdicts, error = job.pieces.verdicts, job.pieces.refusal
        job.outcome.finish(error, self._run_callbacks)
        with self._lock:
            self._jobs.discard(job)
            self._idle.notify_all()
        if action is not None:
            self._worker.after(0.0, action)
        if followed and job.lane is not None:
            queue = job.lane
            self._worker.after(0.0, lambda: self._work_off(queue))

    def _run_callbacks(self, callbacks: Callable[[], None]) -> None:
        self._callbacks.append(callbacks)
        if self._worker.closed:
            self._call_back()
        else:  # what the worker forgets when it closes now, ``abandon`` finds
            self._worker.after(0.0, self._call_back)

    def _call_back(self) -> None:
        while True:  # ends: each round takes one
            try:
                callbacks = self._callbacks.popleft()
            except IndexError:
                return
            callbacks()
