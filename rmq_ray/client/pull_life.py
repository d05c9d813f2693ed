"""Life of a pull consumer, and how its client instance sees it (protocol-behaviour 24, 27).

Decides when it may be used, what closing commits, and what the heartbeat says. What users may ask of a running one is
``client.pull_consumer``'s, which derives from this. ``ClientInstance`` calls it as a ``ManagedConsumer``.

Invariant: created, running, closed, in this order and once each; nothing runs before ``start`` and after ``close``.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from typing import Any, Self, Unpack

from rmq_ray.client.assigned_queue import AssignedQueue
from rmq_ray.client.client_instance import ClientInstance
from rmq_ray.client.consumer_parts import SubscriptionTable
from rmq_ray.client.filter_check import check_filters
from rmq_ray.client.managed import ServiceState
from rmq_ray.client.pull_engine import PullEngine
from rmq_ray.client.pull_operations import PullOperations
from rmq_ray.client.pull_options import PullOptions, pull_settings
from rmq_ray.clock import SYSTEM_CLOCK, Clock
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import ClientError
from rmq_ray.model.groups import ConsumerData, ConsumeType, MessageModel
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.ports import Discovery
from rmq_ray.remoting.codes import ResponseCode
from rmq_ray.remoting.frame import Command


class PullLife:
    """The part of ``PullConsumer`` that starts, ends and belongs to a client instance."""

    def __init__(
        self,
        group: str,
        *,
        discovery: Discovery,
        config: ConsumerConfig | None = None,
        client_id: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **options: Unpack[PullOptions],
    ) -> None:
        self._settings = pull_settings(group, config, options)
        self._arguments = {"discovery": discovery, "config": config, "client_id": client_id, **options}
        self._given_group = group
        self._group = self._settings.config.group
        self._discovery = discovery
        self._client_id = client_id
        self._clock = clock
        self._state = ServiceState.CREATE_JUST
        self._life = threading.Lock()
        self._polling = threading.Lock()
        self._subscriptions = SubscriptionTable()
        self._subscribing = False
        self._assigned: frozenset[MessageQueue] = frozenset()
        self._engine: PullEngine | None = None
        self._returned: list[AssignedQueue] = []  # queues of the latest poll
        self._auto_due_ms = clock.monotonic_ms()

    # --- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect. Raises ``ClientError`` when it was started before or the group is taken in this client, and what the discovery raises."""
        with self._life:
            if self._state is not ServiceState.CREATE_JUST:
                raise ClientError(f"pull consumer of group {self._group!r} cannot start: {self._state.value}; make a new one", self._group)
            client = ClientInstance.get_or_create(self._discovery, self._client_id, clock=self._clock)
            engine = PullEngine(client, self._group, self._settings, self._subscriptions, self.consumer_data)
            client.register_consumer(self)
            self._state = ServiceState.START_FAILED
            try:
                client.start()
                check_filters(client, self._group, self._subscriptions.all())
            except BaseException:
                client.unregister_consumer(self._group)
                client.release()
                raise
            self._engine = engine
            self._state = ServiceState.RUNNING
            engine.begin()  # a close from another thread ends what has begun
            if self._subscribing:
                engine.subscribed()
            elif self._assigned:
                engine.assign(self._assigned)

    def close(self, *, commit: bool = True) -> None:
        """Leave the group. With auto-commit everything that was polled counts as consumed, unless ``commit`` is false."""
        with self._life:
            engine, was_running = self._engine, self._state is ServiceState.RUNNING
            self._state = ServiceState.SHUTDOWN_ALREADY
        if not was_running or engine is None:
            return
        engine.ready.close()
        with self._polling:
            if self._settings.auto_commit and commit:
                self._commit_polled(engine, engine.parts.assigned.snapshot().values())
        engine.end()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        self.close(commit=kind is None)

    def stats(self) -> dict[str, Any]:
        """Counters since ``start``, and the queues held now; see ``PullEngine.stats`` for the names."""
        found = {"group": self._group, "state": self._state.name, "client_id": self.client_id}
        return found | (self._engine.stats() if self._engine is not None else {})

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._group

    @property
    def state(self) -> ServiceState:
        """Where in its life it is."""
        return self._state

    @property
    def client_id(self) -> str:
        """This member of the group; empty before ``start``."""
        return self._engine.client.client_id if self._engine is not None else ""

    # --- as the client instance sees it ----------------------------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        """See ``ManagedConsumer``. Assigned queues are no subscription: nobody divides them."""
        subscriptions = self._subscriptions.all() if self._subscribing else ()
        return ConsumerData(self._group, ConsumeType.CONSUME_ACTIVELY, MessageModel.CLUSTERING, self._settings.start_from, subscriptions)

    def subscribed_topics(self) -> Collection[str]:
        """See ``ManagedConsumer``."""
        return self._subscriptions.topics()

    def route_changed(self, topic: str) -> None:
        """See ``ManagedConsumer``."""
        self.rebalance_now()

    def rebalance_now(self) -> None:
        """See ``ManagedConsumer``."""
        if self._engine is not None and self._subscribing:
            self._engine.rebalancer.wake()

    def persist_offsets(self) -> None:
        """See ``ManagedConsumer``."""
        if self._engine is not None and self._state is ServiceState.RUNNING:
            self._engine.offsets.persist_all(self._engine.parts.assigned.snapshot().keys())

    def handle_request(self, command: Command, address: Address) -> Command | None:
        """See ``ManagedConsumer``."""
        if self._engine is None:
            return None if command.is_oneway else command.answer(ResponseCode.SYSTEM_ERROR, remark=f"group {self._group} is {self._state.value}")
        return PullOperations(self._engine).handle(command)

    # --- inside --------------------------------------------------------------------------------------------------------

    def _commit_polled(self, engine: PullEngine, works: Iterable[AssignedQueue]) -> None:
        for work in works:
            if not work.process.dropped:
                engine.offsets.commit(work.queue, work.position)

    def _running(self) -> PullEngine:
        if self._engine is None or self._state is not ServiceState.RUNNING:
            what = "start it, or use it as a context manager" if self._state is ServiceState.CREATE_JUST else "make a new one"
            raise ClientError(f"pull consumer of group {self._group!r} is {self._state.value}: {what}", self._group)
        return self._engine
