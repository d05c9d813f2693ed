"""Pulling: one request under way per held queue, for as long as the queue is held
(protocol-behaviour 10.1, 10.7).

    pull ──(may it?)──> PULL_RECORDS ──answer, in the connection's reader thread──> page, batches
      ^       │ no: 50 ms, 1 s                     │
      │       └─────────── later ──────────────────┤
      └────────────────────────────────────────────┘

Few records go to the listener first; of many the next pull goes out first, so that it is under way
while the listener works.

Decides when a queue is pulled and what an answer means. Does not run listeners (``submit`` hands
batches over), choose queues (``client.consumer.rebalancer``) or bring connections back
(``client.consumer.consumer_engine``).

Invariants: answers of one queue are taken in order, because there is one pull at a time. What is
put into the process queue is above everything before it. A dropped queue is never pulled again and
its answers are thrown away. The commit flag is only sent to masters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Protocol

from rmq_ray.client.consumer.assigned_queue import AssignedQueue, ReadyBatch, cut
from rmq_ray.client.consumer.consumer_parts import ConsumerParts, is_retry_topic
from rmq_ray.client.consumer.offset_store import ReadOffset
from rmq_ray.client.messages.received import PulledPage, whole_bytes
from rmq_ray.errors import ConnectFailed, ConnectionLost, NotAuthorized, RemotingError
from rmq_ray.model.groups import Subscription
from rmq_ray.model.ids import MASTER_ID, Address
from rmq_ray.model.pulling import PullStatus, PullSysFlag
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import BINARY, Command
from rmq_ray.remoting.wire.records import Lengths, PullAnswer, PullRecords, pack_pull, unpack_pulled

PAUSED_DELAY_MS = 1_000  # PULL_TIME_DELAY_MILLS_WHEN_SUSPEND
BUSY_DELAY_MS = 20  # PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL
QUICK_ANSWER_MS = 5
QUICK_EMPTY_MAX = 8  # a broker that does not hold pulls is asked every 50 ms, not in a tight loop
HELD_BACK_LOG_EVERY = 1_000
# of an answer: a message that comes alone should not wait for the next pull to be written
FEW_RECORDS = 16
FAILURE_LOG_EVERY = 60  # a minute of failures, one each second

STATUS_OF_CODE: dict[int, PullStatus] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}
"""What an answer's code means; every other code is a failure of the pull."""
UNTOLD = frozenset(
    (
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    )
)
"""The broker's picture of the group is older than ours: a heartbeat helps."""

log = logging.getLogger("rmq_ray.client.consumer.puller")


class PullEvents(Protocol):
    """What the puller asks of and tells the consumer; none may block."""

    def broker_lost(self, broker_name: str) -> None:
        """Have the connection brought back; then every queue of the broker is pulled."""
        ...

    def broker_down(self, broker_name: str) -> bool:
        """True while that goes on: pulls wait."""
        ...

    def tell_brokers(self) -> None:
        """A broker does not know the subscription: a heartbeat is needed soon."""
        ...

    def offset_moved(self, work: AssignedQueue, offset: int) -> None:
        """The queue was dropped because its offset is not in the log; it goes on at ``offset`` when
        it is taken anew.
        """
        ...


class PullPace(Enum):
    """Whether pulls go out."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


class Puller:
    """Pulls for one consumer. ``pull`` may be called from any thread, at any time: a queue that
    must not be pulled is not.

    ``inline``: of a pull consumer. Each pull carries its filter, so that it is served whatever the
    broker knows of the group, and an offset that is not in the log does not end the queue:
    ``PullEvents.offset_moved`` decides (protocol-behaviour 24).
    """

    def __init__(self, parts: ConsumerParts, events: PullEvents, *, inline: bool = False) -> None:
        self._parts = parts
        self._events = events
        self._submit: Callable[[Sequence[ReadyBatch]], None] = lambda _batches: None
        self._inline = inline
        self.pace = PullPace.RUNNING

    # --- asking -----------------------------------------------------------------------------------

    def begin(self, submit: Callable[[Sequence[ReadyBatch]], None]) -> None:
        """Batches go to ``submit`` from now on, in their order; it must not block. What consumes
        them asks the puller to go on, so it is made after it.
        """
        self._submit = submit

    def pull(self, work: AssignedQueue) -> None:
        """Send the next pull of this queue, or see to it that it is tried again when it may."""
        with work.lock:
            if work.pulling or work.process.dropped or self.pace is PullPace.STOPPED:
                return
            work.process.last_pull_ms = self._parts.clock.now_ms()
            delay_ms = self._obstacle_ms(work)
            work.pulling = delay_ms is None
            if delay_ms is not None and work.waiting:
                return
            work.waiting = work.waiting or delay_ms is not None
        if delay_ms is None:
            self._send(work)
        else:
            self._parts.delayed.after(delay_ms, partial(self._due, work))

    def later(self, work: AssignedQueue, delay_ms: float) -> None:
        """Pull in ``delay_ms``; while one such call waits, others are not added."""
        with work.lock:
            if work.waiting or work.process.dropped:
                return
            work.waiting = True
        self._parts.delayed.after(delay_ms, partial(self._due, work))

    def resume_if_drained(self, work: AssignedQueue) -> None:
        """A batch was finished: a queue that a threshold held back is pulled now, not when its 50
        ms are over.
        """
        if (
            work.held_back
            and not work.pulling
            and self.pace is PullPace.RUNNING
            and self._parts.flow.pressure(work.queue.topic, work.process) is None
        ):
            self.pull(work)

    def _due(self, work: AssignedQueue) -> None:
        with work.lock:
            work.waiting = False
        self.pull(work)

    def _obstacle_ms(self, work: AssignedQueue) -> float | None:
        """How long to wait before looking again; None = pull now."""
        parts = self._parts
        work.held_back = False
        if work.lease is not None and not work.lease.may_work(parts.clock.monotonic_ms()):
            return parts.config.exception_delay_ms
        if self.pace is PullPace.PAUSED or parts.pauses.covers(work.queue):
            return PAUSED_DELAY_MS
        pressure = parts.flow.pressure(work.queue.topic, work.process)
        work.held_back = pressure is not None
        if pressure is not None:
            parts.flow.held_back[pressure] += 1
            if parts.flow.held_back[pressure] % HELD_BACK_LOG_EVERY == 1:
                log.info(
                    "pull of %s held back by %s: %d messages, %d bytes unfinished",
                    work.queue,
                    pressure.value,
                    work.process.count,
                    work.process.body_bytes,
                )
            return parts.config.flow_control_delay_ms
        if parts.subscriptions.get(work.queue.topic) is None or self._events.broker_down(
            work.queue.broker_name
        ):
            return parts.config.exception_delay_ms
        return None

    def _send(self, work: AssignedQueue) -> None:
        parts = self._parts
        subscription = parts.subscriptions.get(work.queue.topic)
        found = parts.client.routes.subscribe_address(work.queue.broker_name, work.broker_id)
        if subscription is None or found is None:
            parts.client.refresh_route_soon(work.queue.topic)
            self._again(work, parts.config.exception_delay_ms)
            return
        broker_id, address = found
        command = Command(
            RequestCode.PULL_RECORDS,
            body=pack_pull(self._request(work, subscription, broker_id)),
            serialize=BINARY,
        )
        sent_ms = parts.clock.monotonic_ms()
        try:
            parts.client.link.invoke_async(
                address,
                command,
                parts.config.pull_timeout_ms,
                partial(self._answered, work, address, sent_ms),
            )
        except RemotingError as error:
            self._failed(work, error)
        except Exception as error:  # noqa: BLE001 - no thread, no memory, a file of keys: it may pass
            log.warning("no pull of %s could be sent, the next one follows: %s", work.queue, error)
            self._again(work, parts.config.exception_delay_ms)

    def _request(
        self, work: AssignedQueue, subscription: Subscription, broker_id: int
    ) -> PullRecords:
        parts, queue = self._parts, work.queue
        commit = parts.offsets.read(queue, ReadOffset.MEMORY)
        flags = PullSysFlag.SUSPEND
        # 0, too: who begins there is in the topic, though it may die before its first commit
        if commit >= 0 and broker_id == MASTER_ID and parts.offsets.at_brokers:
            flags |= PullSysFlag.COMMIT_OFFSET
        if self._inline:
            flags |= PullSysFlag.SUBSCRIPTION | PullSysFlag.LITE_PULL
        return PullRecords(
            parts.group,
            queue.topic,
            queue.queue_id,
            work.process.next_offset,
            parts.config.pull_records,
            parts.config.pull_bytes,
            int(flags),
            max(0, commit),
            parts.config.suspend_ms,
            subscription.version,
            subscription.expression_type,
            subscription.expression if self._inline else None,
            work.epoch,
            work.lease.epoch if work.lease is not None else 0,
        )

    # --- taking answers (reader thread) -----------------------------------------------------------

    def _answered(
        self,
        work: AssignedQueue,
        address: Address,
        sent_ms: float,
        outcome: Command | RemotingError,
    ) -> None:
        if work.process.dropped or self.pace is PullPace.STOPPED:
            work.pulling = False
            return
        try:
            if isinstance(outcome, RemotingError):
                self._failed(work, outcome)
                return
            status = STATUS_OF_CODE.get(outcome.code)
            if status is None:
                self._refused(work, outcome)
            else:
                self._take(work, address, status, outcome, sent_ms)
        except Exception as error:  # noqa: BLE001 - a queue that is not pulled again stands still
            log.warning("answer to a pull of %s cannot be used: %s", work.queue, error)
            self._again(work, self._parts.config.exception_delay_ms)

    def _take(
        self,
        work: AssignedQueue,
        address: Address,
        status: PullStatus,
        outcome: Command,
        sent_ms: float,
    ) -> None:
        answer = unpack_pulled(outcome.body)
        work.broker_id = answer.suggested_broker
        work.min_offset, work.max_offset = answer.min_offset, answer.max_offset
        work.counters.pulls += 1
        work.failures = 0
        if status is PullStatus.OFFSET_ILLEGAL:
            with work.lock:
                # inline no other pull may go out before the event has moved the offset
                if not self._inline:
                    work.process.drop()
                    work.pulling = False
            log.warning(
                "offset %d of %s lies outside %d..%d: moved to %d",
                work.process.next_offset,
                work.queue,
                answer.min_offset,
                answer.max_offset,
                answer.next_offset,
            )
            # the epoch stays that of the offset, which is committed until the event has moved it
            self._events.offset_moved(work, answer.next_offset)
            return
        work.epoch = answer.epoch
        if status is PullStatus.FOUND and len(answer.sizes):
            work.empty_in_a_row = 0
            batches = self._put(work, answer)
            few = len(answer.sizes) <= FEW_RECORDS
            if batches and few:
                self._submit(batches)
            self._next(work, address, self._parts.config.pull_interval_ms if batches else 0)
            if batches and not few:
                self._submit(batches)
        else:
            self._advance(work, answer.next_offset)
            self._next(work, address, self._empty_delay_ms(work, status, sent_ms))

    def _put(self, work: AssignedQueue, answer: PullAnswer[Lengths]) -> list[ReadyBatch]:
        """Page, tag check, batches; all of it is in the process queue on return."""
        raw, start = whole_bytes(answer.records)
        page = PulledPage(
            work.queue, raw, answer.sizes, start, (answer.min_offset, answer.max_offset)
        )
        page.namespace = self._parts.config.namespace
        subscription = self._parts.subscriptions.get(work.queue.topic)
        tags = subscription.tags if subscription is not None else frozenset()
        indices: Sequence[int] = page.tagged(tags) if tags else range(len(page))
        expected = work.process.next_offset
        if page.offsets[0] < expected or answer.next_offset <= page.offsets[-1]:
            log.warning(
                "%s: asked from offset %d, got %d to %d, next %d",
                work.queue,
                expected,
                page.offsets[0],
                page.offsets[-1],
                answer.next_offset,
            )
            indices = [i for i in indices if page.offsets[i] >= expected]
        parts = self._parts
        most = parts.cut_messages or parts.config.batch_size
        batches = cut(work, page, indices, most) if indices else []
        with work.lock:
            if work.process.dropped:
                return []
            for batch in batches:
                work.process.put(batch)
            work.process.advance(max(answer.next_offset, page.offsets[-1] + 1))
            work.counters.pulled += len(indices)
            work.counters.filtered += len(page) - len(indices)
        if not batches:
            self._advance(work, work.process.next_offset)
        return batches

    def _advance(self, work: AssignedQueue, next_offset: int) -> None:
        """Nothing to consume up to ``next_offset``; when nothing is unfinished either, that is
        progress to remember.
        """
        with work.lock:
            if work.process.dropped:
                return
            work.process.advance(next_offset)
            if work.process.count == 0:
                self._parts.offsets.update(work.queue, next_offset, increase_only=True)

    def _empty_delay_ms(self, work: AssignedQueue, status: PullStatus, sent_ms: float) -> float:
        if (
            status is PullStatus.NO_MATCHED_MSG
            or self._parts.clock.monotonic_ms() - sent_ms > QUICK_ANSWER_MS
        ):
            work.empty_in_a_row = 0
            return 0
        work.empty_in_a_row += 1
        return (
            self._parts.config.flow_control_delay_ms if work.empty_in_a_row > QUICK_EMPTY_MAX else 0
        )

    def _next(self, work: AssignedQueue, address: Address, delay_ms: float) -> None:
        """The next pull: from this thread when it goes to the connection that just answered, which
        needs no connecting.
        """
        work.pulling = False
        found = self._parts.client.routes.subscribe_address(work.queue.broker_name, work.broker_id)
        if delay_ms == 0 and found is not None and found[1] == address:
            self.pull(work)
        else:
            self.later(work, delay_ms)

    # --- failures ---------------------------------------------------------------------------------

    def _again(self, work: AssignedQueue, delay_ms: float) -> None:
        work.pulling = False
        self.later(work, delay_ms)

    def _refused(self, work: AssignedQueue, outcome: Command) -> None:
        """The broker answered, but not with a page."""
        delay_ms: float = self._parts.config.exception_delay_ms
        if outcome.code == ResponseCode.FLOW_CONTROL:
            delay_ms = BUSY_DELAY_MS
        elif outcome.code in UNTOLD:
            self._events.tell_brokers()
            if outcome.code == ResponseCode.FILTER_DATA_NOT_EXIST and self._worth_a_line(work):
                log.warning(
                    "pull of %s refused: %s",
                    work.queue,
                    outcome.remark or "the broker does not know the filter",
                )
        elif outcome.code == ResponseCode.STILL_RECOVERING:
            self._events.broker_lost(work.queue.broker_name)
        elif self._worth_a_line(work):
            known = outcome.code == ResponseCode.NOT_AUTHORIZED
            what = NotAuthorized.__name__ if known else f"code {outcome.code}"
            log.warning("pull of %s refused: %s: %s", work.queue, what, outcome.remark or "")
        self._again(work, delay_ms)

    def _worth_a_line(self, work: AssignedQueue) -> bool:
        work.failures += 1
        return work.failures % FAILURE_LOG_EVERY == 1 and not is_retry_topic(work.queue.topic)

    def _failed(self, work: AssignedQueue, error: RemotingError) -> None:
        """No answer. A broken connection is brought back as soon as the broker listens again; 1 s
        is the latest.
        """
        if isinstance(error, ConnectionLost | ConnectFailed):
            work.broker_id = MASTER_ID
            self._events.broker_lost(work.queue.broker_name)
        if self._worth_a_line(work):
            log.info("pull of %s failed: %s", work.queue, error)
        self._again(work, self._parts.config.exception_delay_ms)
