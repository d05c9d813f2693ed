"""The parts of a push consumer on a scripted client and a clock that stands still: no threads,
every step is the test's.

``submitted`` holds the batches that the puller handed over; ``consume`` runs the listener on them;
``advance`` moves the clock and runs what is due.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rmq_ray.client.consumer.assigned_queue import AssignedQueue, AssignedQueues, ReadyBatch
from rmq_ray.client.consumer.consumer_parts import ConsumerParts
from rmq_ray.client.consumer.flow_control import FlowControl
from rmq_ray.client.consumer.offset_store import RemoteOffsetStore
from rmq_ray.client.consumer.puller import Puller
from rmq_ray.client.consumer.rebalancer import Rebalancer
from rmq_ray.client.consumer.subscriptions import SubscriptionTable
from rmq_ray.client.instance.timers import DelayedCalls
from rmq_ray.client.messages.listener import ConsumeContext
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.client.push.consume_concurrently import ConcurrentConsumption
from rmq_ray.client.push.send_back import RetrySender
from rmq_ray.config import ConsumerConfig
from rmq_ray.model.groups import ConsumeFromWhere, MessageModel
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.allocation.strategies import AllocationStrategy, Averagely
from rmq_ray.protocol.rebalance import Membership
from rmq_ray.remoting.wire.codes import RequestCode
from tests.support.clients.scripted_client import ScriptedClient, WaitingPull, record

Listener = Callable[[list[MessageExt], ConsumeContext], Any]


class ConsumerRig:
    """See the module. It is the puller's ``PullEvents`` itself."""

    def __init__(
        self,
        topic: str = "orders",
        expression: str | None = "*",
        listener: Listener = lambda _messages, _ctx: None,
        start_from: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        strategy: AllocationStrategy | None = None,
        cut_messages: int = 0,
        **settings: Any,
    ) -> None:
        self.client = ScriptedClient()
        self.clock: Any = self.client.clock
        self.topic = topic
        self.submitted: list[ReadyBatch] = []
        self.lost: list[str] = []
        self.down: set[str] = set()
        self.told = 0
        self.moved: list[tuple[AssignedQueue, int]] = []
        config = ConsumerConfig("g", **settings)
        subscriptions = SubscriptionTable()
        subscriptions.put(topic, expression, self.clock.now_ms())
        offsets, delayed = RemoteOffsetStore("g", self.client), DelayedCalls(self.clock, "later")
        self.parts = ConsumerParts(
            "g",
            config,
            self.clock,
            self.client,
            offsets,
            delayed,
            FlowControl(config),
            subscriptions,
            AssignedQueues(),
            cut_messages=cut_messages,
        )
        self.puller = Puller(self.parts, self)
        self.puller.begin(self.submit)
        self.send_back = RetrySender(self.client, "g", self.parts.retries_max, self.clock)
        self.consumption = ConcurrentConsumption(
            self.parts, listener, self.send_back, self.puller.resume_if_drained
        )
        member = Membership(
            "g", self.client.client_id, MessageModel.CLUSTERING, strategy or Averagely()
        )
        self.rebalancer = Rebalancer(
            self.parts, member, start_from, self.puller.pull, self.consumption.clean_overdue
        )

    def take(self, offset: int = 0, queue_id: int = 0, slave: bool = False) -> AssignedQueue:
        """Hold a queue as a rebalance would, without pulling."""
        queue = self.client.add_topic(self.topic, slave=slave)[queue_id]
        work = AssignedQueue(queue, offset, self.clock.now_ms())
        assert self.parts.assigned.put(work)
        return work

    def pull(self, work: AssignedQueue) -> WaitingPull:
        """Pull, and the request that went out."""
        before = len(self.client.pulls)
        self.puller.pull(work)
        assert len(self.client.pulls) == before + 1
        return self.client.pulls[-1]

    def found(
        self,
        work: AssignedQueue,
        offsets: Sequence[int],
        next_offset: int | None = None,
        body: bytes = b"body",
        properties: str = "",
    ) -> list[ReadyBatch]:
        """Answer the latest pull with these messages; the batches they became."""
        before = len(self.submitted)
        records = [record(work.queue, offset, body, properties) for offset in offsets]
        self.client.pulls[-1].reply(
            0, offsets[-1] + 1 if next_offset is None else next_offset, records
        )
        return self.submitted[before:]

    def consume(self, *batches: ReadyBatch) -> None:
        """The listener, in this thread."""
        for batch in batches:
            self.consumption.consume(batch)

    def advance(self, duration_ms: float) -> int:
        """Move the clock; how many delayed calls ran."""
        self.clock.advance_ms(duration_ms)
        return self.parts.delayed.run_due()

    def offset(self, queue: MessageQueue) -> int | None:
        """What the offset store has in memory."""
        return self.parts.offsets.clone().get(queue)

    # --- PullEvents -------------------------------------------------------------------------------

    def submit(self, batches: Sequence[ReadyBatch]) -> None:
        self.submitted.extend(batches)

    def broker_lost(self, broker_name: str) -> None:
        self.lost.append(broker_name)

    def broker_down(self, broker_name: str) -> bool:
        return broker_name in self.down

    def tell_brokers(self) -> None:
        self.told += 1

    def offset_moved(self, work: AssignedQueue, offset: int) -> None:
        self.moved.append((work, offset))


class KeepingListener:
    """Keeps what it got; answers ``answer`` (raises it when it is an exception)."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.calls: list[list[MessageExt]] = []
        self.contexts: list[ConsumeContext] = []

    def __call__(self, messages: list[MessageExt], ctx: ConsumeContext) -> Any:
        self.calls.append(messages)
        self.contexts.append(ctx)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return (
            self.answer(messages, ctx)
            if callable(self.answer) and not isinstance(self.answer, type)
            else self.answer
        )


def rig_with(answer: Any = None, **settings: Any) -> tuple[ConsumerRig, KeepingListener]:
    listener = KeepingListener(answer)
    return ConsumerRig(listener=listener, **settings), listener


def claim_rig(
    answer: Any = None, count: int = 5
) -> tuple[ConsumerRig, KeepingListener, AssignedQueue]:
    """A page of ``count`` messages as one claim; a listener known to be quick."""
    rig, listener = rig_with(answer, cut_messages=32)
    rig.consumption.call_mean_ms = 0.0
    work = rig.take()
    rig.pull(work)
    (claim,) = rig.found(work, list(range(count)))
    assert claim.count == count
    rig.consumption.submit([claim])
    return rig, listener, work


def handle_next(rig: ConsumerRig) -> None:
    """What a consuming thread does with the first item of the ready queue."""
    item = rig.consumption._ready.get_nowait()
    assert item is not None
    rig.consumption._handle(item)


def sent_back(rig: ConsumerRig) -> list[dict[str, str]]:
    """The fields of each request."""
    asked = rig.client.requests(RequestCode.CONSUMER_SEND_MSG_BACK)
    return [command.fields or {} for command in asked]
