"""The parts of a running push consumer: consumption in place of a buffer.

    Puller ── batches ──> ConcurrentConsumption ──> listener
                               │ done
                          RemoteOffsetStore, or LocalFileOffsetStore

Ordered consumption has ``OrderlyConsumption`` in its place, and ``QueueLeases`` that the rebalancer
asks before it takes a queue.

Decides the order in which parts start and stop; every rule lies in one of them.

Invariant: ``end`` stops pulls first, then waits for listeners, then hands the offsets over, and
only then leaves the group: the next owner of a queue finds everything that was finished.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from math import inf
from typing import Any

from rmq_ray.client.consumer.assigned_queue import AssignedQueue, AssignedQueues
from rmq_ray.client.consumer.consumer_engine import ConsumerEngine
from rmq_ray.client.consumer.consumer_options import ConsumerSettings
from rmq_ray.client.consumer.consumer_parts import ConsumerParts
from rmq_ray.client.consumer.flow_control import FlowControl, Pausable
from rmq_ray.client.consumer.local_offset_store import LocalFileOffsetStore
from rmq_ray.client.consumer.offset_store import ReadOffset, RemoteOffsetStore
from rmq_ray.client.consumer.operator_requests import ORDERLY, OperatorRequests
from rmq_ray.client.consumer.puller import PullPace
from rmq_ray.client.consumer.queue_leases import OwnQueues, QueueLeases
from rmq_ray.client.consumer.rebalancer import Rebalancer
from rmq_ray.client.consumer.subscriptions import SubscriptionTable
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.settling import HandOver
from rmq_ray.client.instance.timers import DelayedCalls
from rmq_ray.client.messages.listener import Listener
from rmq_ray.client.push.consume_concurrently import ConcurrentConsumption, claim_messages
from rmq_ray.client.push.consume_orderly import OrderlyConsumption
from rmq_ray.client.push.listener_breaker import ListenerBreaker
from rmq_ray.client.push.listener_invoker import ListenerInvoker
from rmq_ray.client.push.send_back import FailedDiscarder, RetrySender
from rmq_ray.errors import ConfigError, RemotingError
from rmq_ray.model.groups import ConsumerData
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.metrics import Family, Sample
from rmq_ray.protocol.rebalance import Membership

PERSIST_TIMEOUT_MS = 10_000
ADJUSTABLE = (
    "concurrency",
    "max_span",
    "threshold_messages",
    "threshold_messages_group",
    "threshold_messages_topic",
    "threshold_mib",
    "threshold_mib_group",
    "threshold_mib_topic",
)
"""Settings of ``ConsumerConfig`` that a running consumer takes."""

log = logging.getLogger("rmq_ray.client.consumer")


HELP = {
    "messages": "Messages that the listener has returned from.",
    "times": "Calls of the listener, ms.",
    "rocketmq_consumer_cached_messages": "Messages pulled and not finished.",
    "rocketmq_consumer_cached_bytes": "Bytes of their bodies.",
    "rmq_ray_consumer_queues": "Queues held.",
    "rmq_ray_consumer_behind_messages": "Messages up to the ends of the queues held, as last told.",
    "rmq_ray_consumer_pauses": "1 while calls of the listener wait, since most have failed.",
    "rmq_ray_consumer_pulled_messages_total": "Messages pulled.",
    "rmq_ray_consumer_retries_total": "Messages sent back for a retry.",
}


class PushEngine(ConsumerEngine):
    """Of one started push consumer. ``data``: what the heartbeat says of it; ``local``: keeps the
    offsets of a broadcasting consumer.
    """

    def __init__(
        self,
        client: ClientInstance,
        settings: ConsumerSettings,
        subscriptions: SubscriptionTable,
        listener: Listener,
        data: Callable[[], ConsumerData],
        local: LocalFileOffsetStore | None = None,
    ) -> None:
        config, clock, orderly = settings.config, client.clock, settings.orderly
        group = config.group
        assigned = AssignedQueues()
        remote = RemoteOffsetStore(
            group, client, self._lock_epoch if orderly else None, assigned.log_epoch
        )
        parts = ConsumerParts(
            group,
            config,
            clock,
            client,
            local or remote,
            DelayedCalls(clock, f"rmq-later-{group}"),
            FlowControl(config, inf if orderly else None),
            subscriptions,
            assigned,
            cut_messages=0 if orderly or settings.key_limits else claim_messages(config.batch_size),
        )
        super().__init__(parts, data)
        self._limits = config
        self._left = False
        self.invoker = invoker = ListenerInvoker(group, listener, settings, clock)
        self.leases: QueueLeases | None = None
        if orderly:
            self.leases = (OwnQueues if settings.broadcasting else QueueLeases)(
                parts, self._lock_lost
            )
        self.consumption = self._consumption(parts, settings)
        self.puller.begin(self.consumption.submit)
        self.rebalancer = Rebalancer(
            parts,
            Membership(group, client.client_id, settings.model, settings.strategy),
            settings.start_from,
            self._taken,
            self.consumption.clean_overdue,
            leases=self.leases,
        )
        properties = {
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            ORDERLY: str(orderly).lower(),
            "PROP_THREADPOOL_CORE_SIZE": str(config.concurrency),
        }
        self.operator_requests = OperatorRequests(
            parts, "consumer", properties, self.reset_offset, invoker.of_messages
        )

    def _consumption(
        self, parts: ConsumerParts, settings: ConsumerSettings
    ) -> ConcurrentConsumption | OrderlyConsumption:
        """What hands messages to the listener: queue by queue under their leases, or side by
        side.
        """
        send_back = RetrySender(parts.client, parts.group, parts.retries_max, parts.clock)
        drained = self.puller.resume_if_drained
        given = settings.breaker
        breaker = None if given is None else ListenerBreaker(given, parts.group, parts.clock)
        if self.leases is not None:
            return OrderlyConsumption(
                parts,
                self.invoker.of_messages,
                send_back,
                self.leases,
                drained,
                lambda _work: self.rebalance_now(),
                breaker,
            )
        failed = FailedDiscarder(parts.group) if settings.broadcasting else send_back
        return ConcurrentConsumption(
            parts,
            self.invoker.call,
            failed,
            drained,
            self.invoker.take,
            breaker,
            settings.key_limits,
        )

    def begin(self) -> None:
        """After the client instance started: routes, heartbeat, then the threads."""
        self.parts.offsets.load()
        for topic in sorted(self.parts.subscriptions.topics()):
            try:
                self.client.routes.refresh(topic)
            except RemotingError as error:
                log.warning("route of %s not known yet, the rebalance asks again: %s", topic, error)
        self.client.heartbeat()
        self.parts.delayed.start()
        self.consumption.start()
        if self.leases is not None:
            self.leases.start()
        self.rebalancer.start()

    def halt(self) -> HandOver:
        """See ``ManagedConsumer``. What listeners are at now comes again."""
        self.consumption.halt()
        return super().halt()

    def end(self, timeout_ms: int) -> bool:
        """Stop the parts in the order in which messages flow; True when every listener ended in
        time. Called again, it waits for listeners only.
        """
        if self._left:
            return self.consumption.stop(timeout_ms)
        self._stop_pulling()
        ended = self.consumption.stop(timeout_ms)
        self.invoker.close()
        self.parts.delayed.close()
        self._hand_offsets_over()
        if self.leases is not None:
            self.leases.stop()
            self.leases.unlock_all()
        self._leave_group()
        self._left = True
        if not ended:
            log.warning(
                "listeners of group %s still ran after %d ms: their messages come again",
                self.parts.group,
                timeout_ms,
            )
        return ended

    # --- while it runs ----------------------------------------------------------------------------

    def pause(self, what: Collection[Pausable]) -> None:
        """No further pulls of these, or of anything when nothing is named."""
        if what:
            self.parts.pauses.add(what)
        elif self.puller.pace is PullPace.RUNNING:
            self.puller.pace = PullPace.PAUSED

    def resume(self, what: Collection[Pausable]) -> None:
        """Pull these again, or everything when nothing is named."""
        if what:
            self.parts.pauses.remove(what)
        else:
            self.parts.pauses.clear()
            if self.puller.pace is PullPace.PAUSED:
                self.puller.pace = PullPace.RUNNING
        for work in self.parts.assigned.snapshot().values():
            self.puller.pull(work)
        self.rebalance_now()

    def adjust(self, limits: Mapping[str, int]) -> None:
        """Other limits; see ``PushConsumer.adjust``."""
        for name in limits:
            if name not in ADJUSTABLE:
                raise ConfigError(
                    f"{name!r} cannot be changed while the consumer runs; these can: "
                    f"{', '.join(ADJUSTABLE)}",
                    name,
                )
        self._limits = self._limits.but(**limits)
        self.parts.flow.adjust(self._limits)
        if "concurrency" in limits:
            self.consumption.resize(limits["concurrency"])
        for work in self.parts.assigned.snapshot().values():
            self.puller.resume_if_drained(work)

    def owns_current_thread(self) -> bool:
        """True in a thread that calls listeners: it cannot wait for itself."""
        return self.consumption.owns_current_thread() or self.invoker.owns_current_thread()

    def _hand_offsets_over(self) -> None:
        """Every held queue's offset, answered; a broker that fails once is not asked for its other
        queues.
        """
        deadline = self.parts.clock.monotonic_ms() + PERSIST_TIMEOUT_MS
        failed: set[str] = set()
        for queue, work in sorted(self.parts.assigned.snapshot().items()):
            with work.lock:
                work.process.drop()
            known = queue in self.parts.offsets.clone(queue.topic)
            if (
                known
                and queue.broker_name not in failed
                and self.parts.clock.monotonic_ms() < deadline
                and not self.parts.offsets.persist(queue)
            ):
                failed.add(queue.broker_name)

    # --- queues that come, stay, and are lost -----------------------------------------------------

    def _taken(self, work: AssignedQueue) -> None:
        self.puller.pull(work)
        if isinstance(self.consumption, OrderlyConsumption):
            self.consumption.wake(work)

    def _lock_epoch(self, queue: MessageQueue) -> int:
        """What a commit names; -1 is never in force."""
        work = self.parts.assigned.get(queue)
        return work.lease.epoch if work is not None and work.lease is not None else -1

    def _lock_lost(self, work: AssignedQueue) -> None:
        """Another consumer may have come further: the queue is taken anew, from the offset that the
        broker has.
        """
        with work.lock:
            work.process.drop()
        self.parts.offsets.remove(work.queue)
        self.parts.assigned.remove(work)
        self.rebalance_now()

    def _broker_back(self, broker_name: str) -> None:
        super()._broker_back(broker_name)
        if self.leases is not None:
            self.leases.refresh_soon()

    # --- what the puller tells (PullEvents), and operators ----------------------------------------

    def offset_moved(self, work: AssignedQueue, offset: int) -> None:
        """See ``PullEvents``: after 10 s, when listeners of the old offsets are through. An offset
        beyond a cut of the log is not told to anybody meanwhile: what is stored behind the cut was
        not consumed.
        """
        self.offsets_moved += 1
        with work.lock:
            offset = work.process.resume_at(offset)
        self._move(work, offset)

    def reset_offset(self, work: AssignedQueue, offset: int) -> None:
        """See ``ConsumerEngine``: as a moved offset."""
        with work.lock:
            work.process.drop()
        self._move(work, offset)

    def _move(self, work: AssignedQueue, offset: int) -> None:
        """A queue that was dropped goes on at ``offset`` in 10 s. What is told meanwhile is never
        beyond it.
        """
        if self.parts.offsets.read(work.queue, ReadOffset.MEMORY) > offset:
            self.parts.offsets.update(work.queue, offset, increase_only=False)
        self.parts.delayed.after(
            self.parts.config.offset_illegal_delay_ms, partial(self._correct, work, offset)
        )

    def _correct(self, work: AssignedQueue, offset: int) -> None:
        parts = self.parts
        if parts.assigned.get(work.queue) is not work:
            return  # it was given away, or taken anew
        parts.offsets.update(work.queue, offset, increase_only=False)
        parts.offsets.persist(work.queue)
        parts.offsets.remove(work.queue)
        parts.assigned.remove(work)
        self.rebalance_now()

    # --- counters ---------------------------------------------------------------------------------

    def metrics(self) -> list[Family]:
        """Of this member of its group; see docs/metrics.md."""
        total, works = self.parts.assigned.total(), self.parts.assigned.snapshot().values()
        group = {"consumer_group": self.parts.group}
        ended = tuple(
            Sample({**group, "invocation_status": status}, float(total[name]))
            for status, name in (("success", "consumed_ok"), ("failure", "consumed_failed"))
        )
        times = [
            sample
            for topic, found in list(self.consumption.times.items())
            for sample in found.samples({"topic": topic, **group})
        ]
        gauges = {
            "rocketmq_consumer_cached_messages": sum(work.process.count for work in works),
            "rocketmq_consumer_cached_bytes": sum(work.process.body_bytes for work in works),
            "rmq_ray_consumer_queues": len(works),
            "rmq_ray_consumer_behind_messages": sum(work.lag for work in works),
            "rmq_ray_consumer_pauses": int(self.consumption.pauses),
        }
        counts = {
            "rmq_ray_consumer_pulled_messages_total": total["pulled"],
            "rmq_ray_consumer_retries_total": total["sent_back"],
        }
        return [
            Family("rmq_ray_consumer_messages_total", "counter", HELP["messages"], ended),
            Family("rocketmq_process_time", "histogram", HELP["times"], tuple(times)),
            *(
                Family(name, kind, HELP[name], (Sample(group, float(value)),))
                for kind, found in (("gauge", gauges), ("counter", counts))
                for name, value in found.items()
            ),
        ]

    def stats(self) -> dict[str, Any]:
        """Messages: ``pulled, filtered, consumed_ok, consumed_failed, sent_back, in_flight``
        (pulled and not finished), ``lag`` (to the queues' ends as last told); ``held_back``: pulls
        by threshold; ``listener_pauses``: whether its breaker is open; ``queues``: one entry for
        each held queue, of an ordered consumer with ``lock_epoch`` and ``lock_trusted_ms``;
        ``waiting_for_locks``: an entry for each queue that
        is this consumer's share and that another one still holds: ``holder``, ``ends_in_ms``,
        ``left`` (its connection has closed).
        """
        assigned = self.parts.assigned
        works = assigned.snapshot()
        total = assigned.total()
        now_ms = self.parts.clock.monotonic_ms()
        queues = [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue_id": queue.queue_id,
                "next_offset": work.process.next_offset,
                "commit_offset": work.process.commit_offset,
                "min_offset": work.min_offset,
                "max_offset": work.max_offset,
                "lag": work.lag,
                "in_flight": work.process.count,
                **({} if work.lease is None else work.lease.status(now_ms)),
            }
            for queue, work in sorted(works.items())
        ]
        waiting = {} if self.leases is None else self.leases.waiting()
        return {
            **total,
            "in_flight": sum(work.process.count for work in works.values()),
            "in_flight_bytes": sum(work.process.body_bytes for work in works.values()),
            "lag": sum(work.lag for work in works.values()),
            "balanced": self.rebalancer.balanced,
            "refused": self.parts.client.refused,
            "rebalances": self.rebalancer.runs,
            "offsets_moved": self.offsets_moved,
            "listener_faults": self.consumption.listener_faults,
            "listener_pauses": self.consumption.pauses,
            "waiting_for_keys": self.consumption.waiting_for_keys,
            "held_back": {
                pressure.value: count for pressure, count in self.parts.flow.held_back.items()
            },
            "queues": queues,
            "waiting_for_locks": [
                {
                    "topic": queue.topic,
                    "broker": queue.broker_name,
                    "queue_id": queue.queue_id,
                    "holder": holder.client_id,
                    "ends_in_ms": holder.ends_in_ms,
                    "left": holder.left,
                }
                for queue, holder in sorted(waiting.items())
            ],
        }
