"""The parts of an ordered consumer on a scripted client and a clock that stands still; the broker's
lock table is a real one.

``work_off`` runs the listener in the test's thread until the queue rests or pauses; ``advance``
moves the clock and runs what is due.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rmq_ray.client.consumer.assigned_queue import AssignedQueue
from rmq_ray.client.consumer.queue_leases import QueueLeases
from rmq_ray.client.consumer.rebalancer import Rebalancer
from rmq_ray.client.messages.listener import OrderlyContext
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.client.push.consume_orderly import OrderlyConsumption
from rmq_ray.model.groups import ConsumeFromWhere, MessageModel
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.protocol.allocation.strategies import Averagely
from rmq_ray.protocol.queue_locks import QueueLocks
from rmq_ray.protocol.rebalance import Membership
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from tests.support.clients.consumer_rig import ConsumerRig

Listener = Callable[[list[MessageExt], OrderlyContext], Any]


class OrderlyRig(ConsumerRig):
    """See the module. ``calls``: offsets of each call of the listener. ``answer``: what it
    returns.
    """

    def __init__(self, answer: Listener = lambda _messages, _ctx: None, **settings: Any) -> None:
        super().__init__(**settings)
        self.calls: list[list[int]] = []
        self.retries: list[list[int]] = []
        self.answer = answer
        self.locks = QueueLocks()
        self.gone: list[AssignedQueue] = []
        self.left: list[AssignedQueue] = []
        self.parts.offsets._lock_epoch = self._epoch  # type: ignore[attr-defined]
        self.leases = QueueLeases(self.parts, self.gone.append)
        self.orderly = OrderlyConsumption(
            self.parts,
            self._listen,
            self.send_back,
            self.leases,
            self.puller.resume_if_drained,
            self.left.append,
        )
        member = Membership("g", self.client.client_id, MessageModel.CLUSTERING, Averagely())
        self.balance = Rebalancer(
            self.parts,
            member,
            ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            self.puller.pull,
            lambda: 0,
            leases=self.leases,
        )
        self.client.answer(RequestCode.LOCK_BATCH_MQ, self._lock)
        self.client.answer(RequestCode.UNLOCK_BATCH_MQ, self._unlock)

    def take_locked(self, offset: int = 0, queue_id: int = 0) -> AssignedQueue:
        """Hold a queue with its lock."""
        work = self.take(offset, queue_id)
        work.lease = self.leases.lock([work.queue])[work.queue]
        return work

    def pulled(self, work: AssignedQueue, *offsets: int) -> None:
        """A pull that brings these messages: the one that is under way, or a new one."""
        if not work.pulling:
            self.pull(work)
        self.orderly.submit(self.found(work, list(offsets)))

    def work_off(self, limit: int = 10) -> int:
        """Every queue that is ready, as a consuming thread would; how many there were."""
        done = 0
        while not self.orderly._ready.empty():
            done += 1
            assert done <= limit
            work = self.orderly._ready.get_nowait()
            assert work is not None
            self.orderly.work_off(work)
        return done

    def later(self, duration_ms: float) -> int:
        """Move the clock, run what is due (also of the refreshing thread), then what became ready;
        how many queues that were.
        """
        self.advance(duration_ms)
        self.leases._timers.run_due()
        self.parts.delayed.run_due()
        return self.work_off()

    def _listen(self, messages: list[MessageExt], ctx: OrderlyContext) -> Any:
        self.calls.append([message.queue_offset for message in messages])
        self.retries.append([message.reconsume_times for message in messages])
        return self.answer(messages, ctx)

    def _epoch(self, queue: MessageQueue) -> int | None:
        work = self.parts.assigned.get(queue)
        return work.lease.epoch if work is not None and work.lease is not None else None

    def _lock(self, command: Command, address: Address) -> Command:
        body: Any = command.body
        group, client_id, queues = bodies.decode_lock(body)
        epochs = dict(zip(queues, bodies.decode_lock_epochs(body) or (), strict=True))
        now_ms = self.clock.monotonic_ms()
        granted = self.locks.lock(group, client_id, queues, now_ms, epochs)
        holders = {queue: self.locks.holding(group, queue, now_ms) for queue in queues}
        return command.answer(
            body=bodies.encode_locked(
                [grant.queue for grant in granted],
                [grant.epoch for grant in granted],
                {
                    queue: holder
                    for queue, holder in holders.items()
                    if holder is not None and holder.client_id != client_id
                },
            )
        )

    def _unlock(self, command: Command, address: Address) -> Command:
        body: Any = command.body
        group, client_id, queues = bodies.decode_lock(body)
        self.locks.unlock(
            group,
            client_id,
            queues,
            dict(zip(queues, bodies.decode_lock_epochs(body) or (), strict=True)),
        )
        return command.answer()
