"""Asynchronous frames: how many are out, in which order, and who drives them.

    AsyncSend ──admit, launch──> InFlightSend.start ──> connection
                     ^                                      │ answer (reader thread)
                     ├── worker thread <── send again ──────┤
                     └── next part <── refused ─────────────┤  see ``batch_bisect``
                                         finished <─────────┘  futures completed, window freed

Decides nothing about retries (``client.sending.send_engine``) or batches
(``client.sending.batching``). Invariants: at most ``frames_in_flight_max`` frames of a broker are
out, from the first message of a batch until its answer; frames of a queue leave in order
(``client.sending.per_queue_order``); a send is finished exactly once; the reader thread never
encodes, writes, waits or runs users' callbacks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from rmq_ray.client.instance.timers import ClientTimers
from rmq_ray.client.outgoing.send_future import BatchOutcome
from rmq_ray.client.sending.batch_bisect import ONE_OF_MANY, SplitBatch
from rmq_ray.client.sending.per_queue_order import PerQueueOrder
from rmq_ray.client.sending.send_engine import InFlightSend, Outcome
from rmq_ray.clock import Clock
from rmq_ray.errors import BrokerBusy, SendError, SendUnknown
from rmq_ray.model.ids import FrameId, MessageQueue
from rmq_ray.protocol.retry import Decision

BUSY_PAUSE_MS = 10.0  # while an unanswered frame holds newer ones back

log = logging.getLogger("rmq_ray.client")


class AsyncSend:
    """One asynchronous unit: a batch or a single message, with the outcome of its futures.

    ``prepare(wait)`` makes its frame: called by whoever launches it first (encoding happens there).
    It may wait for a frame id; with ``wait`` False it raises ``BrokerBusy`` instead and is called
    again later. ``window_of``: the broker in whose window it has a place (None: it is bounded
    elsewhere), with ``weight`` bytes. ``order_key``: the queue whose order it keeps. ``until_ms``:
    when its time is over, monotonic. ``separate``: its parts if it is refused and holds messages of
    several calls; None = it stays whole. ``told``: where the result of its present frame is
    written.
    """

    __slots__ = (
        "done",
        "holds",
        "number",
        "order_key",
        "ordered",
        "outcome",
        "prepare",
        "flight",
        "separate",
        "split",
        "told",
        "until_ms",
        "waiting",
        "weight",
        "window_of",
    )

    def __init__(
        self,
        outcome: BatchOutcome,
        prepare: Callable[[bool], InFlightSend],
        window_of: str | None,
        order_key: MessageQueue | None,
        until_ms: float,
        weight: int = 0,
        ordered: bool = False,
        separate: Callable[[], SplitBatch] | None = None,
    ) -> None:
        self.outcome = self.told = outcome
        self.prepare = prepare
        self.window_of = window_of
        self.weight = weight
        self.until_ms = until_ms
        self.separate = separate
        self.split: SplitBatch | None = None
        self.flight: InFlightSend | None = None
        self.done = False
        # see ``per_queue_order.OrderedSend``
        self.order_key = order_key
        self.ordered = ordered
        self.holds = False
        self.number = 0
        self.waiting: Callable[[], None] | None = None


class InFlightWindow:
    """The bounds on what is out: frames of each broker name, and bytes of all. One frame fits
    however heavy it is. Thread-safe.
    """

    def __init__(self, limit: int, bytes_max: int) -> None:
        self._limit = limit
        self._bytes_max = bytes_max
        self._bytes = 0
        self._free: dict[str, int] = {}
        self._freed = threading.Condition(threading.Lock())

    def try_take(self, broker_name: str, weight: int) -> bool:
        """Take a place for ``weight`` bytes if there is room."""
        with self._freed:
            return self._take(broker_name, weight)

    def take(self, broker_name: str, weight: int, timeout_ms: float) -> bool:
        """Wait up to ``timeout_ms`` for room; False when there was none."""
        with self._freed:
            return self._freed.wait_for(lambda: self._take(broker_name, weight), timeout_ms / 1000)

    def free(self, broker_name: str, weight: int) -> None:
        """Give a place back."""
        with self._freed:
            self._free[broker_name] = min(self._limit, self._free.get(broker_name, 0) + 1)
            self._bytes = max(0, self._bytes - weight)
            self._freed.notify_all()

    @property
    def bytes(self) -> int:
        """Of what is out."""
        return self._bytes

    def _take(self, broker_name: str, weight: int) -> bool:
        free = self._free.get(broker_name, self._limit)
        if free <= 0 or (self._bytes and self._bytes + weight > self._bytes_max):
            return False
        self._free[broker_name] = free - 1
        self._bytes += weight
        return True


class AsyncSender:
    """See the module. ``release(frame id)`` is told when a frame will not be sent again."""

    def __init__(
        self,
        clock: Clock,
        window: InFlightWindow,
        worker: ClientTimers,
        release: Callable[[FrameId], object],
    ) -> None:
        self._clock = clock
        self._window = window
        self._worker = worker
        self._release = release
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._sends: set[AsyncSend] = set()
        self.admitted = 0
        """How many sends it has taken so far."""
        self._abandoned: str | None = None
        self._order: PerQueueOrder[AsyncSend] = PerQueueOrder()

    def submit(self, send: AsyncSend) -> None:
        """``admit`` and ``launch``."""
        self.admit(send)
        self.launch(send)

    def admit(self, send: AsyncSend) -> None:
        """Take responsibility. The sends of a queue leave in the order of these calls; ``launch``
        follows, in any order. Behind ``abandon`` it ends at once.
        """
        with self._lock:
            abandoned = self._abandoned
            if abandoned is None:
                self.admitted += 1
                self._sends.add(send)
                self._order.add(send)
        if abandoned is not None:
            self._end(send, SendError(f"{abandoned}; nothing was sent", send.outcome.queue.topic))

    def launch(self, send: AsyncSend) -> None:
        """Launch it, or what its queue has before it; another thread that is at it, or the end of
        what holds the queue, may launch it as well.
        """
        if send.order_key is None:
            self._begin(send)
        else:
            self._work_off(send.order_key)

    def wait_idle(self, timeout_ms: float) -> bool:
        """Wait until all sends there are now are finished; False when they are not in time."""
        with self._lock:
            wanted = set(self._sends)
            return self._idle.wait_for(lambda: not (wanted & self._sends), timeout_ms / 1000)

    def abandon(self, reason: str) -> None:
        """Finish every send that is left, as unknown; none follows."""
        with self._lock:
            self._abandoned = reason
            sends = list(self._sends)
            self._order.clear()
        for send in sends:
            topic = send.outcome.queue.topic
            self._end(send, SendUnknown(f"{reason}; the message may be stored", topic))

    @property
    def waiting(self) -> int:
        """How many sends have not ended."""
        return len(self._sends)

    @property
    def until_ms(self) -> float:
        """When the time of the last one is over, monotonic; 0 where there is none."""
        with self._lock:
            return max((send.until_ms for send in self._sends), default=0.0)

    def outcomes(self) -> list[BatchOutcome]:
        """Of the sends that are not finished."""
        return [send.outcome for send in list(self._sends)]

    # --- on its way -------------------------------------------------------------------------------

    def _work_off(self, queue: MessageQueue) -> None:
        while True:  # ends: each round takes one send out of the queue
            with self._lock:
                send = self._order.next(queue)
            if send is None:
                return
            try:
                self._begin(send)
            finally:
                with self._lock:
                    self._order.launched(queue)

    def _begin(self, send: AsyncSend) -> None:
        """Encode if need be and begin an attempt; returns when the bytes are handed to the
        connection. Never raises.
        """
        if send.done:
            return  # given up while the worker was to go on with it
        queue = send.outcome.queue
        try:
            flight = send.flight or self._prepare(send)
            if flight is None:
                return
            left = flight.attempts.attempt_timeout_ms(self._clock.monotonic_ms())
            if left > 0:
                flight.start(left, partial(self._answered, send, flight))
            else:
                self._over(send, flight)
        except SendError as error:
            self._finish(send, error)
        except Exception as error:
            log.exception("a batch for %s could not be sent", queue)
            self._finish(send, SendError(f"a batch for {queue} could not be sent: {error!r}"))
        except BaseException:
            # Ctrl-C in the launching thread: nobody else would end the send, and its queue would
            # wait for it
            said = f"sending to {queue} was interrupted; the message may be stored"
            self._finish(send, SendUnknown(said, queue.topic))
            raise

    def _prepare(self, send: AsyncSend) -> InFlightSend | None:
        """Its frame; None = the worker looks again soon. It must not wait itself: the frames that
        keep ids are repeated by it.
        """
        in_worker = self._worker.is_current_thread
        try:
            send.flight = send.prepare(not in_worker)
        except BrokerBusy:
            if not in_worker or self._clock.monotonic_ms() >= send.until_ms:
                raise
            self._later(BUSY_PAUSE_MS, send, lambda: self._begin(send))
        return send.flight

    def _later(self, delay_ms: float, send: AsyncSend, action: Callable[[], None]) -> None:
        """The worker goes on with this one; newer ones of its queue wait."""

        def go_on() -> None:
            with self._lock:
                may_go = self._order.may_go(send, action)
            if may_go:
                action()

        with self._lock:
            self._order.hold(send)
        self._worker.after(delay_ms, go_on)

    def _answered(self, send: AsyncSend, flight: InFlightSend, outcome: Outcome) -> None:
        """An attempt ended; in a reader thread, or in the launching one when nothing was sent. Must
        not block.
        """
        decision = flight.ended(outcome, self._clock.monotonic_ms())
        if decision is None:
            self._over(send, flight)
        else:
            self._later(decision.delay_ms, send, lambda: self._again(send, flight, decision))

    def _again(self, send: AsyncSend, flight: InFlightSend, decision: Decision) -> None:
        flight.follow(decision)
        self._begin(send)

    # --- ends -------------------------------------------------------------------------------------

    def _over(self, send: AsyncSend, flight: InFlightSend) -> None:
        """Its frame is stored or given up."""
        error = flight.finish(self._clock.monotonic_ms())
        if error is None and flight.stored is not None:
            send.told.queue, send.told.stored = flight.stored.queue, flight.stored
            error = flight.unconfirmed()
        self._finish(send, error)

    def _finish(self, send: AsyncSend, error: SendError | None) -> None:
        if send.split is not None or (send.separate is not None and isinstance(error, ONE_OF_MANY)):
            self._later(0.0, send, lambda: self._next_part(send, error))
        else:
            self._end(send, error)

    def _next_part(self, send: AsyncSend, error: SendError | None) -> None:
        """In the worker: a frame with messages of several calls was refused, or a part of it has
        ended.
        """
        if send.done:
            return
        try:
            if send.split is None:
                assert send.separate is not None
                send.split = send.separate()
            split = send.split
            split.ended(error)
            self._release_frame(send)
            told = split.begin()
        except Exception as failure:
            queue = send.outcome.queue
            log.exception("a refused batch for %s could not be taken apart", queue)
            said = f"a refused batch for {queue} could not be taken apart: {failure!r}"
            self._end(send, error or SendError(said))
            return
        if told is None:
            self._end(send, None)
            return
        send.told, send.prepare = told, lambda _wait: split.send()
        self._begin(send)

    def _end(self, send: AsyncSend, error: SendError | None) -> None:
        with self._lock:
            if send.done:
                return
            send.done = True
            followed, action = self._order.ended(send)
        if send.window_of is not None:
            self._window.free(send.window_of, send.weight)
        self._release_frame(send)
        if send.split is not None:
            if error is not None:
                send.split.abandon(error)
            send.outcome.verdicts, error = send.split.verdicts, send.split.refusal
        send.outcome.finish(error)
        with self._lock:
            self._sends.discard(send)
            self._idle.notify_all()
        if action is not None:
            self._worker.after(0.0, action)
        if followed and send.order_key is not None:
            queue = send.order_key
            self._worker.after(0.0, lambda: self._work_off(queue))

    def _release_frame(self, send: AsyncSend) -> None:
        """Its frame will not be sent again."""
        flight, send.flight = send.flight, None
        if flight is not None:
            self._release(flight.payload.frame_id)
