"""What a running push and a running pull consumer share: their parts, and the events between them.

    Rebalancer ── takes, leaves queues ──> AssignedQueues
        │ taken                                 │
      Puller ── batches ──> push: the listener; pull: what the next poll returns
        │ lost        drained, resume │    │ done
    Reconnector                       └    OffsetStore

Decides what happens when a broker is lost or comes back. Each kind of consumer says what becomes of
batches, and of an offset that is not in the log. Implements ``PullEvents``, so that the puller
knows neither threads nor rebalancing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from rmq_ray.client.consumer.assigned_queue import AssignedQueue, ReadyBatch
from rmq_ray.client.consumer.consumer_parts import ConsumerParts
from rmq_ray.client.consumer.operator_requests import OperatorRequests
from rmq_ray.client.consumer.puller import Pace, Puller
from rmq_ray.client.consumer.rebalancer import Rebalancer
from rmq_ray.client.consumer.reconnector import Reconnector
from rmq_ray.client.consumer.subscriptions import check_sql_filters
from rmq_ray.model.groups import ConsumerData
from rmq_ray.model.ids import Address
from rmq_ray.remoting.wire.frame import Command


class ConsumerEngine(ABC):
    """Of one started consumer. ``data``: what the heartbeat says of it; ``inline``: see
    ``Puller``.
    """

    rebalancer: Rebalancer
    operator_requests: OperatorRequests

    def __init__(
        self, parts: ConsumerParts, data: Callable[[], ConsumerData], *, inline: bool = False
    ) -> None:
        self.client = parts.client
        self.parts = parts
        self.offsets_moved = 0
        self.puller = Puller(parts, self, inline=inline)
        self.reconnector = Reconnector(parts.client, data, self._topic_of, self._broker_back)

    def connect(self) -> None:
        """Start the client instance, and have brokers check SQL92 filters."""
        self.client.start()
        check_sql_filters(self.client, self.parts.group, self.parts.subscriptions.all())

    def rebalance_now(self) -> None:
        """Routes, members or subscriptions changed; returns at once."""
        self.rebalancer.wake()

    def persist_offsets(self) -> None:
        """Hand the offsets of the held queues over without waiting."""
        self.parts.offsets.persist_all(self.parts.assigned.snapshot().keys())

    def handle_request(self, command: Command, address: Address) -> Command | None:
        """Of an operator; see ``OperatorRequests``."""
        return self.operator_requests.handle(command, address)

    @abstractmethod
    def reset_offset(self, work: AssignedQueue, offset: int) -> None:
        """An operator moves the group on this queue. In a reader thread: must be quick."""

    def _stop_pulling(self) -> None:
        self.puller.pace = Pace.STOPPED
        self.reconnector.stop()
        self.rebalancer.stop()

    def _leave_group(self) -> None:
        self.client.unregister_consumer(self.parts.group)
        self.client.release()

    # --- what the puller asks and tells (PullEvents) ----------------------------------------------

    @abstractmethod
    def submit(self, batches: Sequence[ReadyBatch]) -> None:
        """See ``PullEvents``."""

    @abstractmethod
    def offset_moved(self, work: AssignedQueue, offset: int) -> None:
        """See ``PullEvents``."""

    def broker_lost(self, broker_name: str) -> None:
        """See ``PullEvents``."""
        self.reconnector.lost(broker_name)

    def broker_down(self, broker_name: str) -> bool:
        """See ``PullEvents``."""
        return self.reconnector.is_down(broker_name)

    def tell_brokers(self) -> None:
        """See ``PullEvents``."""
        self.rebalancer.beat()

    # --- what the reconnector asks and tells ------------------------------------------------------

    def _topic_of(self, broker_name: str) -> str | None:
        return next((work.queue.topic for work in self.parts.assigned.of_broker(broker_name)), None)

    def _broker_back(self, broker_name: str) -> None:
        for work in self.parts.assigned.of_broker(broker_name):
            self.puller.pull(work)
        self.rebalance_now()
