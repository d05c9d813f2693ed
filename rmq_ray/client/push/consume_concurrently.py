"""Concurrent consumption: threads that hand batches to the listener and settle what it answers
(protocol-behaviour 15).

    ready queue ─> thread ─> listener ─> judge
        ├─ done ────> finish: commit offset = smallest unfinished
        └─ failed ──> send back ─┬─ taken by a broker, or dropped ─> finish
              │                  └─ no ─> kept, again in 5 s, reconsume times + 1
              └─ while a breaker is open ─> ready queue, as if it had not been called

With listener batches of few messages, a thread claims up to 32 messages of a queue at once, calls
the listener for one portion after the other, and settles them together: one turn of the locks for
all. A claim is broken up into its portions, which are settled one by one, as soon as anything is
out of the ordinary:

    claim ─┬─ every portion done ───────────────────────────> finish
           ├─ a portion failed, or the consumer stops ──┐
           ├─ a call has not returned after 10 ms ──────┼──> done ones finish, the one that runs
           └─ calls take 50 us and more on average ─────┘    or failed is a batch of its own, the
                                                             others go back to the ready queue

So a slow listener runs in as many threads as there are, whatever a thread has claimed. For a quick
one two threads are awake, and two more for each call that has not returned after 10 ms: twenty that
take turns at one interpreter, and at a lock of the listener, are slower than one, and make its
calls look slow. Where two end as many slow calls as all (``awake_threads`` tries) they claim, too.

Decides the settlement of results, and who works on what. Does not pull, and does not decide what an
answer of the listener means (``listener.judge``).

Invariants: a batch of a dropped queue is not handed out, and its result is ignored. The commit
offset moves only when every message of a batch is done or stored again. A thread never dies of its
listener. On stop, batches that no listener has seen are left to the next owner, except those before
one that was seen: nothing is lost and nothing comes twice.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from threading import Lock, get_ident
from typing import Any

from rmq_ray.client.consumer.assigned_queue import AssignedQueue, ReadyBatch
from rmq_ray.client.consumer.consumer_parts import ConsumerParts
from rmq_ray.client.consumer.key_limits import KeyLimits
from rmq_ray.client.messages.listener import (
    ACK_ALL,
    DEAD_LETTER_LEVEL,
    ConsumeContext,
    ConsumeVerdict,
    Listener,
    judge,
)
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.client.push.awake_threads import QUICK_THREADS, AwakeThreads
from rmq_ray.client.push.consuming_threads import ConsumingThreads
from rmq_ray.client.push.key_limiter import KeyLimiter
from rmq_ray.client.push.listener_breaker import ListenerBreaker
from rmq_ray.client.push.send_back import FailedDiscarder, RetrySender

CLAIM_MESSAGES = 32
SLOW_CALL_MS = 0.05
"""Calls that take longer than that on average are handed out one at a time."""
LOOK_MS = 10.0
"""How long a call may keep what its thread has claimed behind it. A call counts as no longer in the
average: those that do not return are seen as such.
"""
KEPT = 0.25
"""What the calls before the last look weigh in the average of all, so that one that lost the
processor to another thread is one of the thousands of a quick listener.
"""
# level of a message whose listener takes longer than consume_timeout_minutes
OVERDUE_DELAY_LEVEL = 3

log = logging.getLogger("rmq_ray.client.consume")


def claim_messages(batch_size: int) -> int:
    """How many messages are cut from a page together: whole listener batches."""
    return batch_size * max(1, CLAIM_MESSAGES // batch_size)


class Claim:
    """A batch of several portions that one thread works on. Its deques are changed by one step at a
    time, so that a portion is taken by the thread or by whoever breaks the claim up.
    """

    __slots__ = ("batch", "began_ms", "done", "portions", "single", "todo", "took_ms")

    def __init__(self, batch: ReadyBatch, portion: int, began_ms: float) -> None:
        self.batch = batch
        self.portions = range(0, batch.count, portion)
        """Where each begins, as a number of a message of the batch."""
        self.todo = deque(self.portions)
        self.done: deque[int] = deque()
        """Of which the listener said that they are done; not settled yet."""
        self.began_ms = began_ms
        """When the running call of the listener began."""
        self.took_ms: deque[float] = deque()  # of calls that ended, until they are counted
        self.single: dict[int, ReadyBatch] | None = None
        """The batches that it was broken up into; changed under the lock of its queue."""


class ConcurrentConsumption(ConsumingThreads[ReadyBatch]):
    """The consuming threads of one consumer. ``drained(queue)``: called after a batch was finished,
    without a lock; ``take``: what of a batch the listener gets, messages unless given; ``limits``:
    of each key, where batches are one message each.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        listener: Listener,
        send_back: RetrySender | FailedDiscarder,
        drained: Callable[[AssignedQueue], None],
        take: Callable[[ReadyBatch, int, int, int], Any] = ReadyBatch.part_messages,
        breaker: ListenerBreaker | None = None,
        limits: KeyLimits | None = None,
    ) -> None:
        super().__init__(parts, log, self._look_later, breaker)
        self._limiter = (
            None if limits is None else KeyLimiter(limits, parts.clock, parts.delayed, self.submit)
        )
        self._waits_first = limits is None  # what waits for its key shall take no turn
        self._listener = listener
        self._take = take
        self._send_back = send_back
        self._drained = drained
        self._portion = parts.config.batch_size
        self.call_mean_ms = 0.0
        """How long the listener's calls take, as of the last look."""
        self._counting = Lock()  # of many calls at once
        self._took_ms = self._took_calls = 0.0
        """Of calls that ended, those before a look by ``KEPT``; of two at once one may miss."""
        self._awake = AwakeThreads()
        self._ended = 0  # calls since the start
        self._since = 0.0, 0
        """When the time that is looked at began, and what had ended by then."""
        self._claims: set[Claim] = set()
        self._calls: dict[int, float] = {}
        """Of batches that are one portion: thread -> when its call began."""
        self._looking = False
        self._put_back: set[ReadyBatch] = set()
        """What failed while the breaker was open, and was not called since."""
        self._ready.limit = QUICK_THREADS

    @property
    def waiting_for_keys(self) -> int:
        """Messages whose keys have as many calls as they may."""
        return 0 if self._limiter is None else self._limiter.waiting

    def submit(self, batches: Sequence[ReadyBatch]) -> None:
        """Queue batches; those of one queue of messages in the order of their offsets."""
        self._ready.put_all(batches)

    def _handle(self, item: ReadyBatch) -> None:
        try:
            if self._limiter is not None:
                self._limiter.hand_out(item, self._consume_in_turn)
            elif item.count <= self._portion:
                self.consume(item)
            elif (self._awake.suffice or self.call_mean_ms < SLOW_CALL_MS) and not self.pauses:
                self._work_off(item)
            else:
                self._consume_first(item)
        except Exception:
            log.exception(
                "a batch of %s from offset %d could not be settled", item.owner.queue, item.first
            )

    def _consume_in_turn(self, batch: ReadyBatch) -> None:
        self._wait(batch)
        self.consume(batch)

    def _is_over(self, item: ReadyBatch) -> bool:
        return item.owner.process.dropped

    # --- claims -----------------------------------------------------------------------------------

    def _work_off(self, batch: ReadyBatch) -> None:
        """Portion by portion, until one fails, the consumer stops or others took the rest."""
        work, portion, now_ms = batch.owner, self._portion, self._parts.clock.now_ms()
        if not self._begin(batch, now_ms):
            return
        claim = Claim(batch, portion, self._parts.clock.monotonic_ms())
        self._claims.add(claim)
        self._look_later()  # after it was added: a look that ends now may not have seen it
        try:
            start, verdict = self._call_on(claim, now_ms)
        finally:
            self._claims.discard(claim)
            self._count_calls(claim)
        with work.lock:
            work.last_begun = max(work.last_begun, batch.page.offsets[batch.indices[start]])
            rest = self._settle(claim)
        self._ready.put_first(rest)
        if work.held_back:
            self._drained(work)
        if verdict is not None:
            failed = claim.single[start] if claim.single else batch.part(start, start + portion)
            self._settle_failures(failed, verdict)

    def _call_on(self, claim: Claim, now_ms: int) -> tuple[int, ConsumeVerdict | None]:
        """Call the listener for what is left of a claim. Returns the portion that it got last, and
        its answer to that unless it is done with it.
        """
        batch, portion, work = claim.batch, self._portion, claim.batch.owner
        group, queue, process = self._parts.group, work.queue, work.process
        listener, take, elapsed_ms = self._listener, self._take, self._parts.clock.monotonic_ms
        todo, start, took_ms = claim.todo, 0, claim.took_ms
        while todo and not self._stopping and not process.dropped:
            try:
                start = todo.popleft()
            except IndexError:  # somebody else took it
                break
            ctx, began_ms = ConsumeContext(group, queue), claim.began_ms
            try:
                answer = listener(take(batch, now_ms, start, start + portion), ctx)
            except BaseException as error:  # noqa: BLE001
                answer = error
            claim.began_ms = ended_ms = elapsed_ms()
            took_ms.append(ended_ms - began_ms)
            if answer is not None or ctx.ack_index is not ACK_ALL:
                count = min(portion, batch.count - start)
                verdict = judge(answer, ctx, count)
                if verdict.done < count:
                    return start, verdict
            claim.done.append(start)
            if self._breaker is not None:
                self._breaker.succeeded()
        return start, None

    def _count_calls(self, claim: Claim) -> None:
        calls_ms = _drain(claim.took_ms)
        short = max(calls_ms, default=0.0) <= LOOK_MS
        took_ms = sum(calls_ms if short else (min(one, LOOK_MS) for one in calls_ms))
        with self._counting:
            self.times_of(claim.batch.owner.queue.topic).add_all(calls_ms)
            self._took_ms += took_ms
            self._took_calls += len(calls_ms)
            self._ended += len(calls_ms)

    def _settle(self, claim: Claim) -> list[ReadyBatch]:
        """Finish what the listener is done with. Anything else is a batch of its own from now on;
        returned is what nobody works on. Under the lock of the queue.
        """
        work, batch, portion = claim.batch.owner, claim.batch, self._portion
        rest, done = _drain(claim.todo), _drain(claim.done)
        work.counters.consumed_ok += sum(min(portion, batch.count - start) for start in done)
        if work.process.dropped:
            return []
        if claim.single is not None:
            for start in done:
                work.process.finish(claim.single[start])
        elif len(done) == len(claim.portions):
            work.process.finish(batch)
        else:
            left = sorted({*claim.portions} - {*done})
            claim.single = {start: batch.part(start, start + portion) for start in left}
            work.process.replace(batch, list(claim.single.values()))
            for start in {*left} - {*rest}:
                claim.single[start].started_ms = batch.started_ms
        if done:
            self._parts.offsets.update(work.queue, work.process.commit_offset, increase_only=True)
        return [claim.single[start] for start in rest] if claim.single is not None else []

    def _consume_first(self, batch: ReadyBatch) -> None:
        """The first portion; the others wait for the next threads."""
        work = batch.owner
        with work.lock:
            held = work.process.holds(batch)
            singles = self._settle(Claim(batch, self._portion, 0.0)) if held else []
        self._ready.put_first(singles[1:])
        for first in singles[:1]:
            self.consume(first)

    def _look_later(self) -> None:
        if not self._looking:
            self._looking = True
            self._since = self._parts.clock.monotonic_ms(), self._ended
            self._parts.delayed.after(LOOK_MS, self.look)

    def look(self) -> None:
        """Give away what waits behind a call that does not return, and wake more threads where
        calls are slow; again while there are claims, or a thread is kept asleep.
        """
        now_ms = self._parts.clock.monotonic_ms()
        since_ms, before = self._since
        waiting = not self._ready.empty() or any(claim.todo for claim in list(self._claims))
        self._looking = False  # before claims are looked at: one that comes in may be so twice
        blocked = sum(now_ms - began_ms >= LOOK_MS for began_ms in list(self._calls.values()))
        for claim in list(self._claims):
            self._count_calls(claim)
            took_ms = now_ms - claim.began_ms
            blocked += took_ms >= LOOK_MS
            if took_ms >= LOOK_MS and claim.single is None:
                with self._counting:
                    self._took_ms += LOOK_MS
                    self._took_calls += 1
            if claim.single is None and (took_ms >= LOOK_MS or self._awake.count > QUICK_THREADS):
                with claim.batch.owner.lock:
                    rest = self._settle(claim)
                self._ready.put_first(rest)
                if claim.batch.owner.held_back:
                    self._drained(claim.batch.owner)
        with self._counting:
            if self._took_calls >= 1:
                self.call_mean_ms = self._took_ms / self._took_calls
                self._took_ms, self._took_calls = self._took_ms * KEPT, self._took_calls * KEPT
        if self.call_mean_ms < SLOW_CALL_MS:
            self._awake = AwakeThreads()
        else:
            ended, went_ms = self._ended - before, now_ms - since_ms
            waiting, long = waiting and not self.pauses, self.call_mean_ms >= 0.9 * LOOK_MS
            self._awake.looked(ended, went_ms, self._ready.threads, waiting, long)
        wanted = max(self._awake.count, QUICK_THREADS * (1 + blocked))
        self._ready.limit = min(wanted, max(QUICK_THREADS, self._ready.threads))
        if self._stopping:  # perhaps since the line before
            self._ready.limit = inf
        self._ready.wake()
        if self._claims:
            self._look_later()

    # --- one batch --------------------------------------------------------------------------------

    def _begin(self, batch: ReadyBatch, now_ms: int) -> bool:
        work = batch.owner
        with work.lock:
            left = self._stopping and (self.pauses or batch.first > work.last_begun)
            if left or not work.process.begin(batch, now_ms):
                return False
            work.last_begun = max(work.last_begun, batch.first)
        return True

    def consume(self, batch: ReadyBatch) -> None:
        """Call the listener and settle the result, in the calling thread."""
        work, clock = batch.owner, self._parts.clock
        now_ms, again = clock.now_ms(), self._comes_again(batch)
        if not self._begin(batch, now_ms):
            return
        ctx, me = ConsumeContext(self._parts.group, work.queue), get_ident()
        try:
            given = self._take(batch, now_ms, 0, batch.count)
            self._calls[me] = clock.monotonic_ms()  # a page that is decoded is no slow listener
            if self._ready.limit > QUICK_THREADS or self.call_mean_ms >= SLOW_CALL_MS:
                self._look_later()  # whether calls are still slow
            answer = self._listener(given, ctx)
        except BaseException as error:  # noqa: BLE001
            answer = error
        if (began_ms := self._calls.pop(me, None)) is not None:
            took_ms = clock.monotonic_ms() - began_ms
            self.times_of(work.queue.topic).add(took_ms)
            took_ms = min(took_ms, LOOK_MS)  # here: a call between reading and writing loses much
            self._took_ms += took_ms
            self._took_calls, self._ended = self._took_calls + 1, self._ended + 1
        done = answer is None and ctx.ack_index is ACK_ALL
        verdict = None if done else judge(answer, ctx, batch.count)
        if verdict is None or verdict.done == batch.count:
            if self._breaker is not None:
                self._breaker.succeeded()
            self._finish(batch, batch.count, 0)
        else:
            self._settle_failures(batch, verdict, again)

    def _comes_again(self, batch: ReadyBatch) -> bool:
        """Whether it was put back, and the breaker has closed since: if it fails once more, it does
        so for its own sake.
        """
        if batch not in self._put_back:
            return False
        self._put_back.discard(batch)
        return not self.pauses

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

    def _settle_failures(
        self, batch: ReadyBatch, verdict: ConsumeVerdict, again: bool = False
    ) -> None:
        work = batch.owner
        if self._is_no_fault_of(verdict) and not again:
            self._call_again(batch)
            return
        failed = batch.take(batch.started_ms)[verdict.done :]
        if verdict.fault is not None:
            self._report(failed, verdict.fault, self._parts.retries_max)
        with work.lock:
            if work.process.dropped or not work.process.holds(batch):
                work.counters.consumed_ok += verdict.done
                work.counters.consumed_failed += len(failed)
                return
        kept = self._send_back.send_back_all(failed, verdict.delay_level, verdict.why)
        if kept:
            self._keep(batch, kept, verdict.done, len(failed))
        else:
            self._finish(batch, verdict.done, len(failed))

    def _is_no_fault_of(self, verdict: ConsumeVerdict) -> bool:
        """Of the messages: most calls fail. What is to be a dead letter says nothing of that."""
        return (
            self._breaker is not None
            and not verdict.done
            and verdict.delay_level != DEAD_LETTER_LEVEL
            and self._breaker.failed(verdict.why)
        )

    def _call_again(self, batch: ReadyBatch) -> None:
        """Behind whatever waits; as if the listener had never had it."""
        with batch.owner.lock:
            if batch.owner.process.dropped or not batch.owner.process.holds(batch):
                return
            batch.started_ms = 0
            self._put_back.add(batch)
        self._ready.put_all((batch,))

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
        again_ms = parts.config.send_back_retry_ms
        said = "%d messages of %s are kept and tried again in %d ms: no broker took them back"
        log.warning(said, len(kept), work.queue, again_ms)
        parts.delayed.after(again_ms, partial(self.submit, (batch,)))

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
        minutes = self._parts.config.consume_timeout_minutes
        why = f"the listener had it for more than {minutes} minutes"
        if self._send_back.send_back_all(batch.take(batch.started_ms), OVERDUE_DELAY_LEVEL, why):
            return False
        self._finish(batch, 0, 0)
        with work.lock:
            self._count_back(work, batch.count)
        return True

    def _count_back(self, work: AssignedQueue, count: int) -> None:
        if self._send_back.stores:
            work.counters.sent_back += count
        else:
            work.counters.dropped += count


def _drain(numbers: deque[Any]) -> list[Any]:
    """Everything in it, also what is put in meanwhile; each number is taken by one thread."""
    taken = []
    while numbers:
        try:
            taken.append(numbers.popleft())
        except IndexError:  # somebody else took the last one
            break
    return taken
