"""The push consumer: messages come to a listener (protocol-behaviour 10, 13, 15, 27).

    with PushConsumer("billing", listener=handle, subscriptions={"orders": "paid || refund"}, discovery=...):
        ...

Decides the life cycle and what users may ask; the work is done by the parts that
``client.push.consumer_engine`` wires together. ``ClientInstance`` calls it as a
``ManagedConsumer``.

Invariants: a message counts as consumed when the listener is done with it or a broker stored it for
another try. ``stop`` waits for running listeners and hands the offsets over: what was finished does
not come again, what was not comes to the next owner.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, Self, Unpack

from rmq_ray.client.consumer.consumer_life import ConsumerLife
from rmq_ray.client.consumer.consumer_options import PushOptions, check_listener, push_settings
from rmq_ray.client.consumer.flow_control import Pausable
from rmq_ray.client.consumer.local_offset_store import LocalFileOffsetStore, LocalPlace
from rmq_ray.client.consumer.subscriptions import (
    SubscriptionTable,
    check_sql_filters,
    check_subscriptions,
)
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.managed import ServiceState
from rmq_ray.client.messages.listener import Listener
from rmq_ray.client.push.consumer_engine import ConsumerEngine
from rmq_ray.client.push.operations import Operations
from rmq_ray.clock import SYSTEM_CLOCK, Clock
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import ClientError
from rmq_ray.files import FileSystem
from rmq_ray.model.filters import Expression
from rmq_ray.model.groups import ConsumerData, ConsumeType
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.namespaces import with_namespace
from rmq_ray.model.topics import retry_topic
from rmq_ray.ports import Discovery
from rmq_ray.protocol.filters.subscriptions import parse_subscription
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command

STOP_TIMEOUT_MS = 30_000
PERSIST_TIMEOUT_MS = 10_000

log = logging.getLogger("rmq_ray.client.consumer")


class PushConsumer:
    """Consumes topics of a cluster as a member of a group. Use it as a context manager, or
    ``start`` and ``stop``.

    ``listener(messages, ctx)`` is called by ``concurrency`` threads; see
    ``rmq_ray.client.messages.listener`` for what it may return. ``subscriptions``: topic -> ``"*"``,
    ``"tag || tag"`` or ``rmq_ray.sql("amount > 100")``. ``config`` has the rarer settings; options
    are put over it. Raises ``ConfigError`` or ``ClientError`` for wrong arguments.
    """

    def __init__(
        self,
        group: str,
        *,
        listener: Listener,
        subscriptions: Mapping[str, Any],
        discovery: Discovery,
        config: ConsumerConfig | None = None,
        client_id: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **options: Unpack[PushOptions],
    ) -> None:
        self._settings = push_settings(group, config, options)
        check_listener(listener)
        self._arguments = {
            "listener": listener,
            "subscriptions": subscriptions,
            "discovery": discovery,
            "config": config,
            "client_id": client_id,
            **options,
        }
        self._group = group = self._settings.config.group
        self._listener = listener
        self._discovery = discovery
        self._client_id = client_id
        self._clock = clock
        self._life = ConsumerLife("consumer", group, clock, self._end)
        self._subscriptions = SubscriptionTable()
        for topic, expression in check_subscriptions(subscriptions).items():
            self._subscriptions.put(self._whole(topic), expression, clock.now_ms())
        if not self._settings.broadcasting:  # what fails there is dropped
            self._subscriptions.put(retry_topic(group), None, clock.now_ms())
        self._place: LocalPlace | None = None
        self._engine: ConsumerEngine | None = None
        self._operations: Operations | None = None

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the group and begin to consume; the first messages come when the first rebalance is
        through.

        Raises ``ClientError`` when it was started before, is stopped meanwhile, or the group name
        is taken in this client, and what the discovery raises.
        """
        self._life.start(self._connect, self._begin)

    def stop(self, timeout_ms: int = STOP_TIMEOUT_MS) -> bool:
        """Leave the group: no further pulls, running listeners end, offsets are handed over. False
        when a listener still ran after ``timeout_ms``: its messages come again; or when another
        thread was still starting it, and in a signal handler that interrupted its ``start``: that
        ends it, and raises ``ClientError``. ``ClientError`` when called by the listener itself.
        """
        engine = self._engine
        if engine is not None and engine.owns_current_thread():
            raise ClientError(
                "stop() was called by the listener, which it would wait for; call it from "
                "another thread",
                self._group,
            )
        return self._life.stop(timeout_ms)

    close = stop

    def _connect(self) -> None:
        client_id, local = self._claim_place()
        try:
            self._join(client_id, local)
        except BaseException:
            self._leave_place()
            raise

    def _join(self, client_id: str | None, local: LocalFileOffsetStore | None) -> None:
        client = ClientInstance.get_or_create(self._discovery, client_id, clock=self._clock)
        engine = ConsumerEngine(
            client,
            self._group,
            self._settings,
            self._subscriptions,
            self._listener,
            self.consumer_data,
            local,
        )
        client.register_consumer(self)
        self._life.state = ServiceState.START_FAILED
        self._engine = engine
        try:
            client.start()
            check_sql_filters(client, self._group, self._subscriptions.all())
        except BaseException:
            client.unregister_consumer(self._group)
            client.release()
            raise

    def _begin(self) -> None:
        assert self._engine is not None
        self._engine.begin()

    def _end(self, timeout_ms: int) -> bool:
        assert self._engine is not None
        ended = self._engine.end(timeout_ms)
        self._leave_place()
        return ended

    def _claim_place(self) -> tuple[str | None, LocalFileOffsetStore | None]:
        """The client id, and where a broadcasting consumer keeps its offsets."""
        if not self._settings.broadcasting:
            return self._client_id, None
        files = FileSystem()
        place = LocalPlace.claim(
            self._settings.config.offsets_root,
            self._discovery.lookup(),
            self._group,
            self._client_id,
            files,
        )
        local = LocalFileOffsetStore(place.directory, files)
        try:
            local.load()
        except BaseException:
            place.release()
            raise
        self._place = place
        return place.client_id, local

    def _leave_place(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            place.release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as what it was made from: a new consumer that was not started."""
        return _rebuilt, (self._group, self._arguments)

    # --- use --------------------------------------------------------------------------------------

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

    @property
    def balanced(self) -> bool:
        """True when the last rebalance gave this consumer exactly its share of the queues."""
        return self._engine is not None and self._engine.rebalancer.balanced

    def assignment(self) -> list[MessageQueue]:
        """The queues held now, those of the retry topic included."""
        return sorted(self._engine.parts.assigned.snapshot()) if self._engine is not None else []

    def subscribe(self, topic: str, expression: Expression = "*") -> None:
        """Add a topic, or change its filter; a running consumer rebalances at once.
        ``SubscriptionInvalid`` changes nothing.
        """
        check_subscriptions({topic: expression})
        topic = self._whole(topic)
        wanted = parse_subscription(topic, expression)
        if self._engine is not None:
            check_sql_filters(self._engine.client, self._group, (wanted,))
        self._subscriptions.put(topic, expression, self._clock.now_ms())
        if self._engine is not None:
            self._engine.rebalancer.beat()
        self.rebalance_now()

    def unsubscribe(self, topic: str) -> None:
        """Give a topic up: its queues are dropped at the next rebalance, which comes at once."""
        topic = self._whole(topic)
        if topic == retry_topic(self._group) or not self._subscriptions.remove(topic):
            raise ClientError(f"group {self._group!r} is not subscribed to {topic!r}", topic)
        self.rebalance_now()

    def pause(self, *what: Pausable) -> None:
        """No further pulls of these topics and queues (all, when none is named) until ``resume``;
        what was pulled is still handed out.
        """
        if self._engine is not None:
            self._engine.pause([self._whole_of(item) for item in what])

    def resume(self, *what: Pausable) -> None:
        """Pull these again (everything, when nothing is named), and rebalance."""
        if self._engine is not None:
            self._engine.resume([self._whole_of(item) for item in what])

    def adjust(self, **limits: int) -> None:
        """Other limits from now on, while it runs: ``threshold_messages``, ``threshold_mib``,
        ``threshold_messages_topic``, ``threshold_mib_topic``, ``threshold_messages_group``,
        ``threshold_mib_group``, ``max_span``, ``concurrency``; see ``ConsumerConfig``.
        ``ConfigError`` for others.
        """
        if self._engine is None:
            raise ClientError(
                f"consumer of group {self._group!r} is {self._life.state.value}: give limits "
                f"in its ConsumerConfig",
                self._group,
            )
        self._engine.adjust(limits)

    def stats(self) -> dict[str, Any]:
        """Counters since ``start``, and the queues held now; see ``ConsumerEngine.stats`` for the
        names.
        """
        found = {"group": self._group, "state": self._life.state.name, "client_id": self.client_id}
        return found | (self._engine.stats() if self._engine is not None else {})

    def _whole(self, topic: str) -> str:
        """The topic's name as brokers know it."""
        return with_namespace(self._settings.config.namespace, topic)

    def _whole_of(self, what: Pausable) -> Pausable:
        return self._whole(what) if isinstance(what, str) else what

    # --- as the client instance sees it -----------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        """See ``ManagedConsumer``."""
        settings = self._settings
        return ConsumerData(
            self._group,
            ConsumeType.CONSUME_PASSIVELY,
            settings.model,
            settings.start_from,
            self._subscriptions.all(),
        )

    def subscribed_topics(self) -> Collection[str]:
        """See ``ManagedConsumer``."""
        return self._subscriptions.topics()

    def route_changed(self, topic: str) -> None:
        """See ``ManagedConsumer``."""
        self.rebalance_now()

    def rebalance_now(self) -> None:
        """See ``ManagedConsumer``."""
        if self._engine is not None:
            self._engine.rebalancer.wake()

    def persist_offsets(self) -> None:
        """See ``ManagedConsumer``."""
        if self._engine is not None and self._life.state is ServiceState.RUNNING:
            self._engine.parts.offsets.persist_all(self._engine.parts.assigned.snapshot().keys())

    def handle_request(self, command: Command, address: Address) -> Command | None:
        """See ``ManagedConsumer``."""
        engine = self._engine
        if engine is None:
            return (
                None
                if command.is_oneway
                else command.answer(
                    ResponseCode.SYSTEM_ERROR,
                    remark=f"consumer of group {self._group} is {self._life.state.value}",
                )
            )
        if self._operations is None:
            self._operations = Operations(engine, self._settings.orderly)
        return self._operations.handle(command, address)


def _rebuilt(group: str, arguments: dict[str, Any]) -> PushConsumer:
    return PushConsumer(group, **arguments)
