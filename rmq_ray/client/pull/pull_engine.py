"""The parts of a running pull consumer: the same puller and rebalancer as a push consumer's, with a
buffer in place of a listener.

    assign ──> offsets are looked up beside ──┐
    subscribe ──> Rebalancer ── takes, leaves ┴─> AssignedQueues
                        Puller ── batches ──> PrefetchBuffer ──> poll
                        commit ──> CommittedOffsets ──> brokers

Decides what assigning, seeking, pausing and a moved offset do to a queue: it becomes another
``AssignedQueue``, so that an answer under way to the old one is thrown away. Does not check
arguments (``client.pull.pull_consumer``).

Invariants: a queue's position is its process queue's commit offset: the next message that a poll
returns. What is told to brokers is only what was committed, never what was merely pulled or polled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, ClassVar

from rmq_ray.client.consumer.assigned_queue import AssignedQueue, AssignedQueues
from rmq_ray.client.consumer.consumer_engine import ConsumerEngine
from rmq_ray.client.consumer.consumer_options import ConsumerSettings
from rmq_ray.client.consumer.consumer_parts import ConsumerParts
from rmq_ray.client.consumer.flow_control import PauseTable
from rmq_ray.client.consumer.offset_store import ReadOffset, RemoteOffsetStore
from rmq_ray.client.consumer.operator_requests import ORDERLY, OperatorRequests
from rmq_ray.client.consumer.rebalancer import Rebalancer
from rmq_ray.client.consumer.subscriptions import SubscriptionTable
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.settling import HandOver
from rmq_ray.client.instance.timers import DelayedCalls
from rmq_ray.client.pull.prefetch_buffer import PrefetchBuffer, PrefetchLimits
from rmq_ray.errors import RemotingError
from rmq_ray.model.groups import ConsumerData
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.rebalance import Membership

RESOLVE_AGAIN_MS = 1_000
WAIT_SLICE_S = 1.0

log = logging.getLogger("rmq_ray.client.consumer")


class CommittedOffsets(RemoteOffsetStore):
    """Offsets that the user, or auto-commit, has committed; progress of pulls is none."""

    may_lower: ClassVar[bool] = True  # who seeks back commits what lies there

    def update(self, queue: MessageQueue, offset: int, increase_only: bool = True) -> None:
        """Only what a broker told or what is corrected is taken; ``increase_only`` marks the
        puller's own progress.
        """
        if not increase_only:
            super().update(queue, offset, False)

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """The group has consumed everything before ``offset``; never back, except after a seek."""
        super().update(queue, offset, True)


class PullEngine(ConsumerEngine):
    """Of one started pull consumer. ``data``: what the heartbeat says of it."""

    def __init__(
        self,
        client: ClientInstance,
        settings: ConsumerSettings,
        subscriptions: SubscriptionTable,
        data: Callable[[], ConsumerData],
    ) -> None:
        config, pauses = settings.config, PauseTable()
        group = config.group
        assigned = AssignedQueues()
        self.offsets = CommittedOffsets(group, client, log_epoch=assigned.log_epoch)
        self.ready = PrefetchBuffer(pauses, client.clock)
        self.flow = PrefetchLimits(
            config, self.ready, settings.prefetch_messages, settings.prefetch_mib
        )
        parts = ConsumerParts(
            group,
            config,
            client.clock,
            client,
            self.offsets,
            DelayedCalls(client.clock, f"rmq-later-{group}"),
            self.flow,
            subscriptions,
            assigned,
            pauses=pauses,
        )
        super().__init__(parts, data, inline=True)
        self.puller.begin(self.ready.put)
        member = Membership(group, client.client_id, settings.model, settings.strategy)
        self.rebalancer = Rebalancer(
            parts, member, settings.start_from, self._taken, lambda: 0, passive=False
        )
        properties = {"PROP_CONSUME_TYPE": "CONSUME_ACTIVELY", ORDERLY: "false"}
        self.operator_requests = OperatorRequests(
            parts, "pull consumer", properties, self.reset_offset
        )
        self._table = threading.Condition()
        self._wanted: frozenset[MessageQueue] = frozenset()
        self._rebalancing = False

    # --- life -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """After the client instance started."""
        self.parts.delayed.start()

    def subscribed(self) -> None:
        """Topics were subscribed or given up: from now on queues come by rebalance."""
        self._learn_routes(self.parts.subscriptions.topics())
        with self._table:
            first, self._rebalancing = not self._rebalancing, True
        if not first:
            self.rebalancer.beat()
            self.rebalancer.wake()
            return
        self.client.heartbeat()
        self.rebalancer.start()

    def end(self, _timeout_ms: int) -> bool:
        """No further pulls; committed offsets are handed over; the group is left."""
        self._stop_pulling()
        self.parts.delayed.close()
        self.ready.close()
        for work in self.parts.assigned.snapshot().values():
            with work.lock:
                work.process.drop()
        self.persist(self.offsets.clone())
        self._leave_group()
        return True

    def halt(self) -> HandOver:
        """See ``ManagedConsumer``. Commits go on to count, up to the end."""
        self._halt_pulling()
        return lambda until_ms: self.offsets.hand_over(self.offsets.clone(), until_ms)

    def rebalance_now(self) -> None:
        """Assigned queues are not divided: nothing to do for them."""
        if self._rebalancing:
            self.rebalancer.wake()

    # --- queues that the user chose ---------------------------------------------------------------

    def assign(self, queues: Collection[MessageQueue]) -> None:
        """Hold exactly these. Where to begin is looked up beside, so that a seek may come first."""
        with self._table:
            self._wanted = frozenset(queues)
        self._learn_routes({queue.topic for queue in self._wanted})
        self.client.heartbeat()
        for queue, work in self.parts.assigned.snapshot().items():
            if queue not in self._wanted:
                self._let_go(work)
        self.parts.delayed.after(0, self._resolve)

    def wanted(self) -> frozenset[MessageQueue]:
        """Queues that were assigned, those included whose offset is not known yet."""
        return self._wanted

    def work_of(self, queue: MessageQueue, timeout_ms: float) -> AssignedQueue | None:
        """The queue as it is held; an assigned one is waited for until its offset is known. None:
        not held.
        """
        deadline = self.parts.clock.monotonic_ms() + timeout_ms
        with self._table:
            while (found := self.parts.assigned.get(queue)) is None and queue in self._wanted:
                left_ms = deadline - self.parts.clock.monotonic_ms()
                if left_ms <= 0 or self.ready.closed:
                    return None
                self._table.wait(min(left_ms / 1000, WAIT_SLICE_S))
            return found

    def _resolve(self) -> None:
        """Where assigned queues begin; in the thread of delayed calls. What a broker does not tell
        is asked again in a second.
        """
        missing = sorted(self._wanted - self.parts.assigned.snapshot().keys())
        if not missing:
            return
        self._learn_routes({queue.topic for queue in missing})
        failed: set[str] = set()
        for queue in missing:
            if queue in self.parts.assigned.snapshot() or queue not in self._wanted:
                continue  # sought, or given up, meanwhile
            offset = self._first_offset(queue) if queue.broker_name not in failed else None
            if offset is None:
                failed.add(queue.broker_name)
                continue
            work = AssignedQueue(queue, offset, self.parts.clock.now_ms())
            work.epoch = self.offsets.epoch(queue)
            if self._hold(work):
                self.puller.pull(work)
        self.rebalancer.tell_beginnings()
        if failed:
            self.parts.delayed.after(RESOLVE_AGAIN_MS, self._resolve)

    def _first_offset(self, queue: MessageQueue) -> int | None:
        try:
            return self.rebalancer.first_offset(queue)
        except RemotingError as error:
            log.info("no start offset of %s: %s", queue, error)
            return None

    def _hold(self, work: AssignedQueue) -> bool:
        with self._table:
            held = work.queue in self._wanted and self.parts.assigned.put(work)
            self._table.notify_all()
            return held

    # --- changes of held queues -------------------------------------------------------------------

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at ``offset``; what was pulled is forgotten. Nothing when the queue was given away
        meanwhile.
        """
        with self._table:
            old = self.parts.assigned.get(queue)
            if old is None and queue not in self._wanted:
                return
            self.offsets.remove(queue)
            work = self._renew(queue, old, offset)
            self._table.notify_all()
        self.puller.pull(work)

    def rewind(self, queue: MessageQueue) -> None:
        """Forget what was pulled of a queue that was paused: it may hold no memory."""
        with self._table:
            old = self.parts.assigned.get(queue)
            work = self._renew(queue, old, None) if old is not None else None
        if work is not None:
            self.puller.pull(work)
        self.unblock(())

    def _renew(
        self, queue: MessageQueue, old: AssignedQueue | None, offset: int | None
    ) -> AssignedQueue:
        """Hold the queue anew, from ``offset`` or else from its position on."""
        if old is not None:
            with old.lock:
                old.process.drop()
                offset = old.process.commit_offset if offset is None else offset
        work = AssignedQueue(queue, offset or 0, self.parts.clock.now_ms())
        if old is not None:
            self.parts.assigned.remove(old)
            self.ready.discard(old)
            work.epoch, work.min_offset, work.max_offset = old.epoch, old.min_offset, old.max_offset
        self.parts.assigned.put(work)
        return work

    def _let_go(self, work: AssignedQueue) -> None:
        with work.lock:
            work.process.drop()
        self.offsets.persist(work.queue)
        self.offsets.remove(work.queue)
        self.parts.assigned.remove(work)
        self.ready.discard(work)

    def unblock(self, works: Iterable[AssignedQueue]) -> None:
        """Messages were taken from these queues: pull them again, and all others that had to wait
        for room.
        """
        starved, self.flow.starved = self.flow.starved, False
        for work in list(self.parts.assigned.snapshot().values()) if starved else works:
            self.puller.resume_if_drained(work)

    # --- commits ----------------------------------------------------------------------------------

    def persist(self, offsets: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Tell the brokers and wait; the queues whose broker did not take it. One that fails is not
        asked for its other queues.
        """
        failed: list[MessageQueue] = []
        brokers: set[str] = set()
        for queue in sorted(offsets):
            if queue.broker_name in brokers or not self.offsets.persist(queue):
                brokers.add(queue.broker_name)
                failed.append(queue)
        return failed

    # --- what the puller tells (PullEvents), and operators ----------------------------------------

    def offset_moved(self, work: AssignedQueue, offset: int) -> None:
        """See ``PullEvents``: at once. Forward (messages expired): what was pulled is still handed
        out. Back (the log was cut): it is not, for other messages have these offsets now; what was
        not handed out is pulled again, and a committed offset beyond the cut goes back too.
        """
        self.offsets_moved += 1
        queue = work.queue
        with self._table:
            if self.parts.assigned.get(queue) is not work:
                return
            if offset >= work.process.next_offset:
                with work.lock:
                    work.process.advance(offset)
                    work.pulling = False
            else:
                with work.lock:
                    offset = work.process.resume_at(offset)
                work = self._renew(queue, work, offset)
                if self.offsets.read(queue, ReadOffset.MEMORY) > offset:
                    self.offsets.update(queue, offset, increase_only=False)
        self.puller.pull(work)

    def reset_offset(self, work: AssignedQueue, offset: int) -> None:
        """See ``ConsumerEngine``: at once, and the group's commits with it."""
        self.parts.delayed.after(0, partial(self._reset, work.queue, offset))

    def _reset(self, queue: MessageQueue, offset: int) -> None:
        if queue in self.parts.assigned.snapshot():
            self.seek(queue, offset)
            self.offsets.commit(queue, offset)

    # --- inside -----------------------------------------------------------------------------------

    def _taken(self, work: AssignedQueue) -> None:
        """The rebalancer holds another queue."""
        with self._table:
            self._table.notify_all()
        self.puller.pull(work)

    def _learn_routes(self, topics: Iterable[str]) -> None:
        for topic in sorted(topics):
            try:
                self.client.routes.find_subscribe(topic)
            except RemotingError as error:
                log.warning("route of %s not known yet, it is asked for again: %s", topic, error)

    def pull_soon(self, queues: Iterable[MessageQueue]) -> None:
        """Pull these now, from the thread of delayed calls."""
        held = self.parts.assigned.snapshot()
        for queue in queues:
            if queue in held:
                self.parts.delayed.after(0, partial(self.puller.pull, held[queue]))

    def stats(self) -> dict[str, Any]:
        """Messages: ``pulled, filtered, polled, prefetched`` (bytes of bodies:
        ``prefetched_bytes``), ``lag``; ``queues``: one entry each.
        """
        works = self.parts.assigned.snapshot()
        total = self.parts.assigned.total()
        return {
            "pulls": total["pulls"],
            "pulled": total["pulled"],
            "filtered": total["filtered"],
            "polled": total["consumed_ok"],
            "prefetched": self.ready.messages,
            "prefetched_bytes": self.ready.body_bytes,
            "lag": sum(work.lag for work in works.values()),
            "offsets_moved": self.offsets_moved,
            "held_back": {pressure.value: count for pressure, count in self.flow.held_back.items()},
            "paused": [str(item) for item in self.parts.pauses.all()],
            "queues": [
                {
                    "topic": q.topic,
                    "broker": q.broker_name,
                    "queue_id": q.queue_id,
                    "position": work.position,
                    "lag": work.lag,
                }
                for q, work in sorted(works.items())
            ],
        }
