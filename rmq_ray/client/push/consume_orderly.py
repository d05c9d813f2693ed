"""Ordered consumption: each queue is worked on by one thread at a time, message after message
(protocol-behaviour 16).

    pulled ─> queue is not busy? ─> ready ─> thread ─> lock held? ─> next batch ─> listener ─> judge
                                      ^                   │ no
                                      │                   └─ refresh it, 10 ms or 3 s ─┐
                                      └──── later: pause, 60 s are over ───────────────┘

    judge ─┬─ done ──────> commit, next batch
           ├─ again ─────> counted (not while a breaker is open), pause, later
           └─ too often ─> dead letter, next batch

Decides when a queue's next messages are handed out and what becomes of the result. Does not decide
what an answer of the listener means (``client.messages.listener``) or who holds the queue
(``queue_leases``).

Invariants: a batch is handed out only while the queue's lock is trusted, by one thread, under the
queue's gate; nothing of a queue is handed out before everything before it is done or dead. Retries
are counted in this consumer only: another one begins to count anew. A thread never dies of its
listener, and no queue rests because of a fault.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from rmq_ray.client.consumer.assigned_queue import AssignedQueue, QueueLease, ReadyBatch
from rmq_ray.client.consumer.consumer_parts import ConsumerParts
from rmq_ray.client.consumer.queue_leases import QueueLeases
from rmq_ray.client.messages.listener import (
    Listener,
    OrderlyContext,
    OrderlyStep,
    OrderlyVerdict,
    judge_orderly,
    pause_ms,
)
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.client.push.consuming_threads import ConsumingThreads
from rmq_ray.client.push.listener_breaker import ListenerBreaker
from rmq_ray.client.push.send_back import RetrySender

RELOCK_FIRST_MS = 100
RELOCK_MS = 10
RESUME_MS = 10
GATE_WAIT_S = 0.05
GATE_RETRY_MS = 100  # a listener of the queue's last stay here still runs
RETRIES_WITHOUT_END = (1 << 31) - 1

log = logging.getLogger("rmq_ray.client.orderly")


class OrderlyConsumption(ConsumingThreads[AssignedQueue]):
    """The consuming threads of one consumer. ``drained(work)``: called after a commit;
    ``idle(work)``: a queue that is to leave has ended.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        listener: Listener,
        send_back: RetrySender,
        leases: QueueLeases,
        drained: Callable[[AssignedQueue], None],
        idle: Callable[[AssignedQueue], None],
        breaker: ListenerBreaker | None = None,
    ) -> None:
        super().__init__(parts, log, breaker=breaker)
        self._listener = listener
        self._send_back = send_back
        self._leases = leases
        self._drained = drained
        self._idle = idle

    def submit(self, batches: Sequence[ReadyBatch]) -> None:
        """Batches of one queue lie in its process queue."""
        if batches:
            self.wake(batches[0].owner)

    def wake(self, work: AssignedQueue) -> None:
        """Work on the queue, unless somebody does."""
        lease = work.lease
        with work.lock:
            if lease is None or lease.busy or lease.leaving:
                return
            lease.busy = True
        self._ready.put(work)

    def clean_overdue(self) -> int:
        """Nothing: a message that is worked on in order is not taken away from its listener
        (protocol-behaviour 15 is for concurrent consumption).
        """
        return 0

    def _handle(self, item: AssignedQueue) -> None:
        try:
            self.work_off(item)
        except Exception:
            log.exception(
                "messages of %s could not be settled, once more in %d ms",
                item.queue,
                self._parts.config.suspend_queue_ms,
            )
            if item.lease is not None:
                item.lease.in_work.clear()
            self._later(item, self._parts.config.suspend_queue_ms)

    def _is_over(self, item: AssignedQueue) -> bool:
        return item.process.dropped or item.lease is None or item.lease.leaving

    # --- one queue --------------------------------------------------------------------------------

    def work_off(self, work: AssignedQueue) -> None:
        """Hand out batch after batch until there is none, the queue pauses, or its turn of 60 s is
        over. In the calling thread.
        """
        clock, lease = self._parts.clock, work.lease
        assert lease is not None
        began_ms = clock.monotonic_ms()
        wait_ms: float | None = 0.0
        relock_ms = RELOCK_FIRST_MS
        while wait_ms == 0.0:  # ends: the queue runs empty, or its turn is over
            now_ms = clock.monotonic_ms()
            if self._stopping or lease.leaving or work.process.dropped:
                self._rest(work, lease)
                return
            if not lease.is_held(now_ms):
                self._leases.relock(work, relock_ms, partial(self._relocked, work))
                return
            if now_ms - began_ms > self._parts.config.max_continuous_ms:
                wait_ms = RESUME_MS
            elif lease.gate.acquire(timeout=GATE_WAIT_S):
                try:
                    wait_ms = self._next(work, lease)
                finally:
                    lease.gate.release()
            else:
                wait_ms = GATE_RETRY_MS
            relock_ms = RELOCK_MS
        if wait_ms is not None:
            self._later(work, wait_ms)

    def _rest(self, work: AssignedQueue, lease: QueueLease) -> None:
        with work.lock:
            lease.busy = False
        if self._stopping or work.process.dropped:
            return
        if lease.leaving:
            self._idle(work)
        else:
            self.wake(work)  # it stays after all

    def _later(self, work: AssignedQueue, delay_ms: float) -> None:
        self._parts.delayed.after(delay_ms, partial(self._ready.put, work))

    def _relocked(self, work: AssignedQueue, granted: bool) -> None:
        self._later(work, RESUME_MS if granted else self._parts.config.lock_retry_ms)

    def _next(self, work: AssignedQueue, lease: QueueLease) -> float | None:
        """The next batch through the listener: 0 = go on, ms = pause, None = there is none. Under
        the gate.
        """
        now_ms = self._parts.clock.now_ms()
        with work.lock:
            batch = work.process.head(len(lease.in_work))
            if batch is None:
                lease.busy = False
                return None
            if lease.leaving or not work.process.begin(batch, now_ms):
                return 0.0
            lease.in_work.append(batch)
        if self.pauses:
            lease.put_back = None
        assert isinstance(batch, ReadyBatch)
        ctx, clock = OrderlyContext(self._parts.group, work.queue), self._parts.clock
        began_ms = clock.monotonic_ms()
        try:
            answer = self._listener(batch.take(now_ms), ctx)
        except BaseException as error:  # noqa: BLE001
            answer = error
        self.times_of(work.queue.topic).add(clock.monotonic_ms() - began_ms)
        if answer is None and ctx.auto_commit:
            if self._breaker is not None:
                self._breaker.succeeded()
            self._commit(work, lease, batch.count)
            return 0.0
        return self._settle(work, lease, batch, judge_orderly(answer, ctx), ctx)

    # --- results ----------------------------------------------------------------------------------

    def _settle(
        self,
        work: AssignedQueue,
        lease: QueueLease,
        batch: ReadyBatch,
        verdict: OrderlyVerdict,
        ctx: OrderlyContext,
    ) -> float:
        if self._breaker is not None:
            if verdict.step in (OrderlyStep.COMMIT, OrderlyStep.KEEP):
                self._breaker.succeeded()
            elif verdict.step is OrderlyStep.SUSPEND and self._breaker.failed(verdict.why):
                again, lease.put_back = lease.put_back is batch, batch
                if not again:  # once more although the breaker had closed: for its own sake
                    lease.in_work.remove(batch)  # as if it had never been called
                    return pause_ms(ctx, self._parts.config.suspend_queue_ms)
        if verdict.fault is not None:
            now_ms = self._parts.clock.now_ms()
            self._report(batch.take(now_ms), verdict.fault, self._retries_max())
        if verdict.step is OrderlyStep.COMMIT:
            self._commit(work, lease, batch.count)
            return 0.0
        if verdict.step is OrderlyStep.KEEP:
            self._count(work, ok=batch.count)
            return 0.0
        self._count(work, failed=batch.count)
        pause = pause_ms(ctx, self._parts.config.suspend_queue_ms)
        if work.process.dropped:
            return 0.0
        if verdict.step is OrderlyStep.ROLLBACK:
            lease.in_work.clear()
            return pause
        if self._kept(work, batch, verdict):
            lease.in_work.remove(batch)
            return pause
        if len(lease.in_work) == 1:  # behind uncommitted ones it waits for their commit
            self._commit(work, lease, 0)
        return 0.0

    def _commit(self, work: AssignedQueue, lease: QueueLease, ok: int) -> None:
        """Everything in work is done: the commit offset moves behind it. ``ok``: messages of the
        last call.
        """
        with work.lock:
            work.counters.consumed_ok += ok
            if not work.process.dropped:
                for batch in lease.in_work:
                    work.process.finish(batch)
                self._parts.offsets.update(
                    work.queue, work.process.commit_offset, increase_only=False
                )
            lease.in_work.clear()
        if work.held_back:
            self._drained(work)

    def _retries_max(self) -> int:
        configured = self._parts.config.max_reconsume_times
        return RETRIES_WITHOUT_END if configured == -1 else configured

    def _kept(self, work: AssignedQueue, batch: ReadyBatch, verdict: OrderlyVerdict) -> bool:
        """Count a failure of each message, make dead letters of those that failed too often. False
        = none is left to be tried again.
        """
        retries_max, reject = self._retries_max(), verdict.step is OrderlyStep.REJECT
        now_ms = self._parts.clock.now_ms()
        if batch.messages is None:
            batch.messages = batch.take(now_ms)
        messages = batch.messages
        kept: list[MessageExt] = []
        for message in messages:
            if (reject or message.reconsume_times >= retries_max) and self._send_back.dead_letter(
                message, verdict.why
            ):
                continue
            message.failed_here(now_ms)
            kept.append(message)
        if len(kept) < len(messages):
            self._count(work, sent_back=len(messages) - len(kept))
        if not kept:
            return False
        if len(kept) < len(messages):
            with work.lock:
                work.process.keep(
                    batch,
                    kept[0].queue_offset,
                    len(kept),
                    sum(len(message.stored_body) for message in kept),
                )
            batch.messages = kept
        return True

    def _count(self, work: AssignedQueue, ok: int = 0, failed: int = 0, sent_back: int = 0) -> None:
        with work.lock:
            work.counters.consumed_ok += ok
            work.counters.consumed_failed += failed
            work.counters.sent_back += sent_back
