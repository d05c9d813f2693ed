"""Concurrent consumption: threads that hand batches to the listener and settle what it answers
(protocol-behaviour 15).

    ready queue ─> thread ─> listener ─> judge
        ├─ done ────> finish: commit offset = smallest unfinished
        └─ failed ──> send back ─┬─ taken by a broker, or dropped ─> finish
                                 └─ no ─> kept, again in 5 s, reconsume times + 1

Decides the settlement of results. Does not pull, and does not decide what an answer of the listener
means (``listener.judge``).

Invariants: a batch of a dropped queue is not handed out, and its result is ignored. The commit
offset moves only when every message of a batch is done or stored again. A thread never dies of its
listener. On stop, batches that no listener has seen are left to the next owner, except those before
one that was seen: nothing is lost and nothing comes twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rmq_ray.client.consumer.assigned_queue import AssignedQueue, ReadyBatch
from rmq_ray.client.consumer.consumer_parts import ConsumerParts
from rmq_ray.client.messages.listener import (
    ACK_ALL,
    ConsumeContext,
    ConsumeVerdict,
    Listener,
    judge,
)
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.client.push.consuming_threads import ConsumingThreads
from rmq_ray.client.push.send_back import FailedDiscarder, RetrySender

# level of a message whose listener takes longer than consume_timeout_minutes
OVERDUE_DELAY_LEVEL = 3

log = logging.getLogger("rmq_ray.client.consume")


class ConcurrentConsumption(ConsumingThreads[ReadyBatch]):
    """The consuming threads of one consumer. ``drained(queue)``: called after a batch was finished,
    without a lock; ``take``: what of a batch the listener gets, messages unless given.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        listener: Listener,
        send_back: RetrySender | FailedDiscarder,
        drained: Callable[[AssignedQueue], None],
        take: Callable[[ReadyBatch, int], Any] = ReadyBatch.take,
    ) -> None:
        super().__init__(parts, log)
        self._listener = listener
        self._take = take
        self._send_back = send_back
        self._drained = drained

    def submit(self, batches: Sequence[ReadyBatch]) -> None:
        """Queue batches; those of one queue of messages in the order of their offsets."""
        self._ready.put_all(batches)

    # --- one batch --------------------------------------------------------------------------------

    def _handle(self, item: ReadyBatch) -> None:
        try:
            self.consume(item)
        except Exception:  # noqa: BLE001
            log.exception(
                "a batch of %s from offset %d could not be settled", item.owner.queue, item.first
            )

    def consume(self, batch: ReadyBatch) -> None:
        """Call the listener and settle the result, in the calling thread."""
        work = batch.owner
        now_ms = self._parts.clock.now_ms()
        with work.lock:
            if self._stopping and batch.first > work.last_begun:
                return
            if not work.process.begin(batch, now_ms):
                return
            if batch.first > work.last_begun:
                work.last_begun = batch.first
        ctx = ConsumeContext(self._parts.group, work.queue)
        try:
            answer = self._listener(self._take(batch, now_ms), ctx)
        except BaseException as error:  # noqa: BLE001
            answer = error
        if answer is None and ctx.ack_index is ACK_ALL:
            self._finish(batch, batch.count, 0)
            return
        verdict = judge(answer, ctx, batch.count)
        if verdict.done == batch.count:
            self._finish(batch, batch.count, 0)
        else:
            self._settle_failures(batch, verdict)

    def _finish(self, batch: ReadyBatch, done: int, failed: int) -> None:
        """``failed`` messages were sent back or dropped, the others are done."""
        work = batch.owner
        with work.lock:
            if not work.process.dropped:
                self._parts.offsets.update(
                    work.queue, work.process.finish(batch), increase_only=True
                )
            work.counters.consumed_ok += done
            work.counters.consumed_failed += failed
            self._count_back(work, failed)
        if work.held_back:
            self._drained(work)

    def _settle_failures(self, batch: ReadyBatch, verdict: ConsumeVerdict) -> None:
        work = batch.owner
        if verdict.fault is not None:
            self._report(batch, verdict.fault)
        with work.lock:
            live = not work.process.dropped and work.process.holds(batch)
        failed = batch.take(batch.started_ms)[verdict.done :]
        if not live:
            with work.lock:
                work.counters.consumed_ok += verdict.done
                work.counters.consumed_failed += len(failed)
            return
        kept = self._send_back.send_back_all(failed, verdict.delay_level)
        if kept:
            self._keep(batch, kept, verdict.done, len(failed))
        else:
            self._finish(batch, verdict.done, len(failed))

    def _keep(self, batch: ReadyBatch, kept: list[MessageExt], done: int, failed: int) -> None:
        """No broker took them: they stay here, unfinished, and the listener gets them again."""
        parts, work = self._parts, batch.owner
        now_ms = parts.clock.now_ms()
        for message in kept:
            message.failed_here(now_ms)
        with work.lock:
            if not work.process.dropped:
                size = sum(len(message.stored_body) for message in kept)
                parts.offsets.update(
                    work.queue,
                    work.process.keep(batch, kept[0].queue_offset, len(kept), size),
                    increase_only=True,
                )
            work.counters.consumed_ok += done
            work.counters.consumed_failed += failed
            work.counters.sent_back += failed - len(kept)
        batch.messages = kept
        log.warning(
            "%d messages of %s are kept and tried again in %d ms: no broker took them back",
            len(kept),
            work.queue,
            parts.config.send_back_retry_ms,
        )
        parts.delayed.after(parts.config.send_back_retry_ms, partial(self.submit, (batch,)))

    # --- listeners that hang ----------------------------------------------------------------------

    def clean_overdue(self) -> int:
        """Send back what a listener has had for more than ``consume_timeout_minutes``, so that the
        commit offset can move on.

        Up to 16 messages a queue; returns how many. Blocks for the requests: not for consuming or
        reader threads.
        """
        now_ms = self._parts.clock.now_ms()
        timeout_ms = self._parts.config.consume_timeout_minutes * 60_000
        cleaned = 0
        for work in self._parts.assigned.snapshot().values():
            with work.lock:
                overdue = (
                    work.process.overdue(now_ms, timeout_ms) if not work.process.dropped else []
                )
            for batch in overdue:
                if isinstance(batch, ReadyBatch) and self._give_up(batch):
                    cleaned += batch.count
        return cleaned

    def _give_up(self, batch: ReadyBatch) -> bool:
        work = batch.owner
        log.warning(
            "listener of group %s has had %d messages of %s from offset %d for too long: sent back",
            self._parts.group,
            batch.count,
            work.queue,
            batch.first,
        )
        if self._send_back.send_back_all(batch.take(batch.started_ms), OVERDUE_DELAY_LEVEL):
            return False
        with work.lock:
            if not work.process.dropped:
                self._parts.offsets.update(
                    work.queue, work.process.finish(batch), increase_only=True
                )
            self._count_back(work, batch.count)
        return True

    def _count_back(self, work: AssignedQueue, count: int) -> None:
        if self._send_back.stores:
            work.counters.sent_back += count
        else:
            work.counters.dropped += count
