"""Life of a pull consumer, and how its client instance sees it (protocol-behaviour 24, 27).

Decides when it may be used, what closing commits, and what the heartbeat says. What users may ask
of a running one is ``client.pull.pull_consumer``'s, which derives from this. ``ClientInstance``
calls it as a ``ManagedConsumer``.

Invariant: created, running, closed, in this order and once each; nothing runs before ``start`` and
after ``close``.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from typing import Any, Self, Unpack

from rmq_ray.client.consumer.assigned_queue import AssignedQueue
from rmq_ray.client.consumer.consumer_life import ConsumerLife
from rmq_ray.client.consumer.subscriptions import SubscriptionTable, check_sql_filters
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.managed import ServiceState
from rmq_ray.client.pull.pull_engine import PullEngine
from rmq_ray.client.pull.pull_operations import PullOperations
from rmq_ray.client.pull.pull_options import PullOptions, pull_settings
from rmq_ray.clock import SYSTEM_CLOCK, Clock
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import ClientError
from rmq_ray.model.groups import ConsumerData, ConsumeType, MessageModel
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.ports import Discovery
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command

CLOSE_TIMEOUT_MS = 30_000


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
        self._arguments = {
            "discovery": discovery,
            "config": config,
            "client_id": client_id,
            **options,
        }
        self._given_group = group
        self._group = self._settings.config.group
        self._discovery = discovery
        self._client_id = client_id
        self._clock = clock
        self._life = ConsumerLife("pull consumer", self._group, clock, self._end)
        self._polling = (
            threading.RLock()
        )  # a signal handler that closes may have interrupted a poll
        self._commits = True
        self._subscriptions = SubscriptionTable()
        self._subscribing = False
        self._assigned: frozenset[MessageQueue] = frozenset()
        self._engine: PullEngine | None = None
        self._returned: list[AssignedQueue] = []  # queues of the latest poll
        self._auto_due_ms = clock.monotonic_ms()

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect. Raises ``ClientError`` when it was started before, is closed meanwhile or its
        group is taken here, and what the discovery raises.
        """
        self._life.start(self._connect, self._begin)

    def close(self, *, commit: bool = True) -> None:
        """Leave the group. With auto-commit everything that was polled counts as consumed, unless
        ``commit`` is false. A ``start`` of another thread is waited for up to 30 s, one that a
        signal handler interrupts is not: it ends by itself.
        """
        self._commits = self._commits and commit
        self._life.stop(CLOSE_TIMEOUT_MS)

    def _connect(self) -> None:
        client = ClientInstance.get_or_create(self._discovery, self._client_id, clock=self._clock)
        engine = PullEngine(
            client, self._group, self._settings, self._subscriptions, self.consumer_data
        )
        client.register_consumer(self)
        self._life.state = ServiceState.START_FAILED
        try:
            client.start()
            check_sql_filters(client, self._group, self._subscriptions.all())
        except BaseException:
            client.unregister_consumer(self._group)
            client.release()
            raise
        self._engine = engine

    def _begin(self) -> None:
        engine = self._engine
        assert engine is not None
        engine.begin()
        if self._subscribing:
            engine.subscribed()
        elif self._assigned:
            engine.assign(self._assigned)

    def _end(self, _timeout_ms: int) -> bool:
        engine = self._engine
        assert engine is not None
        engine.ready.close()
        with self._polling:
            if self._settings.auto_commit and self._commits:
                self._commit_polled(engine, engine.parts.assigned.snapshot().values())
        engine.end()
        return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        self.close(commit=kind is None)

    def stats(self) -> dict[str, Any]:
        """Counters since ``start``, and the queues held now; see ``PullEngine.stats`` for the
        names.
        """
        found = {"group": self._group, "state": self._life.state.name, "client_id": self.client_id}
        return found | (self._engine.stats() if self._engine is not None else {})

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._group

    @property
    def state(self) -> ServiceState:
        """Where in its life it is."""
        return self._life.state

    @property
    def client_id(self) -> str:
        """This member of the group; empty before ``start``."""
        return self._engine.client.client_id if self._engine is not None else ""

    # --- as the client instance sees it -----------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        """See ``ManagedConsumer``. Assigned queues are no subscription: nobody divides them."""
        subscriptions = self._subscriptions.all() if self._subscribing else ()
        return ConsumerData(
            self._group,
            ConsumeType.CONSUME_ACTIVELY,
            MessageModel.CLUSTERING,
            self._settings.start_from,
            subscriptions,
        )

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
        if self._engine is not None and self._life.state is ServiceState.RUNNING:
            self._engine.offsets.persist_all(self._engine.parts.assigned.snapshot().keys())

    def handle_request(self, command: Command, address: Address) -> Command | None:
        """See ``ManagedConsumer``."""
        if self._engine is None:
            return (
                None
                if command.is_oneway
                else command.answer(
                    ResponseCode.SYSTEM_ERROR,
                    remark=f"group {self._group} is {self._life.state.value}",
                )
            )
        return PullOperations(self._engine).handle(command)

    # --- inside -----------------------------------------------------------------------------------

    def _commit_polled(self, engine: PullEngine, works: Iterable[AssignedQueue]) -> None:
        for work in works:
            if not work.process.dropped:
                engine.offsets.commit(work.queue, work.position)

    def _running(self) -> PullEngine:
        if self._engine is None or self._life.state is not ServiceState.RUNNING:
            what = (
                "start it, or use it as a context manager"
                if self._life.state is ServiceState.CREATE_JUST
                else "make a new one"
            )
            raise ClientError(
                f"pull consumer of group {self._group!r} is {self._life.state.value}: {what}",
                self._group,
            )
        return self._engine
