"""The push consumer: messages come to a listener (protocol-behaviour 10, 13, 15, 27).

    wanted = {"orders": "paid || refund"}
    with PushConsumer("billing", listener=handle, subscriptions=wanted, discovery=...):
        ...

Decides what users may ask; the work is done by the parts that ``client.push.push_engine`` wires
together.

Invariants: a message counts as consumed when the listener is done with it or a broker stored it for
another try. ``stop`` waits for running listeners and hands the offsets over: what was finished does
not come again, what was not comes to the next owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Unpack

from rmq_ray.client.consumer.consumer_lifecycle import GroupConsumer
from rmq_ray.client.consumer.consumer_options import PushOptions, check_listener, push_settings
from rmq_ray.client.consumer.flow_control import Pausable
from rmq_ray.client.consumer.local_offset_store import LocalFileOffsetStore, LocalPlace
from rmq_ray.client.consumer.subscriptions import check_sql_filters, check_subscriptions
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.messages.listener import Listener
from rmq_ray.client.push.push_engine import PushEngine
from rmq_ray.clock import SYSTEM_CLOCK, Clock
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import ClientError
from rmq_ray.files import FileSystem
from rmq_ray.model.groups import ConsumerData, ConsumeType
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.metrics import Family
from rmq_ray.model.pulling import Expression
from rmq_ray.model.topics import retry_topic
from rmq_ray.ports import Discovery
from rmq_ray.protocol.filters.subscriptions import parse_subscription

STOP_TIMEOUT_MS = 30_000


class PushConsumer(GroupConsumer[PushEngine]):
    """Consumes topics of a cluster as a member of a group. Use it as a context manager, or
    ``start`` and ``stop``.

    ``listener(messages, ctx)`` is called by ``concurrency`` threads; see
    ``rmq_ray.client.messages.listener`` for what it may return. ``subscriptions``: topic ->
    ``"*"``, ``"tag || tag"`` or ``rmq_ray.sql("amount > 100")``. ``config`` has the rarer settings;
    options are put over it. Raises ``ConfigError`` or ``ClientError`` for wrong arguments.
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
        anew = partial(
            PushConsumer,
            group,
            listener=listener,
            subscriptions=subscriptions,
            discovery=discovery,
            config=config,
            client_id=client_id,
            **options,
        )
        config = self._settings.config
        group, namespace = config.group, config.namespace
        super().__init__("consumer", group, discovery, client_id, clock, namespace, anew)
        self._listener = listener
        for topic, expression in check_subscriptions(subscriptions).items():
            self._subscriptions.put(self._full_name(topic), expression, clock.now_ms())
        if not self._settings.broadcasting:  # what fails there is dropped
            self._subscriptions.put(retry_topic(group), None, clock.now_ms())
        self._place: LocalPlace | None = None
        self._local: LocalFileOffsetStore | None = None

    # --- life -------------------------------------------------------------------------------------

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

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _connect(self) -> None:
        self._claim_place()
        try:
            self._join(self._client_id if self._place is None else self._place.client_id)
        except BaseException:
            self._leave_place()
            raise

    def _make_engine(self, client: ClientInstance) -> PushEngine:
        return PushEngine(
            client,
            self._settings,
            self._subscriptions,
            self._listener,
            self.consumer_data,
            self._local,
        )

    def _end(self, timeout_ms: int) -> bool:
        ended = super()._end(timeout_ms)
        self._leave_place()
        return ended

    def _claim_place(self) -> None:
        """Where a broadcasting consumer keeps its offsets; its client id is part of the place."""
        if not self._settings.broadcasting:
            return
        files = FileSystem()
        root = self._settings.config.offsets_root
        cluster = self._discovery.lookup()
        place = LocalPlace.claim(root, cluster, self._group, self._client_id, files)
        local = LocalFileOffsetStore(place.directory, files, self._clock)
        try:
            local.load()
        except BaseException:
            place.release()
            raise
        self._place, self._local = place, local

    def _leave_place(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            place.release()

    # --- use --------------------------------------------------------------------------------------

    @property
    def balanced(self) -> bool:
        """True when the last rebalance gave this consumer exactly its share of the queues."""
        return self._engine is not None and self._engine.rebalancer.balanced

    def metrics(self) -> list[Family]:
        """What it counts since its start (docs/metrics.md); nothing before it."""
        return [] if self._engine is None else self._engine.metrics()

    def assignment(self) -> list[MessageQueue]:
        """The queues held now, those of the retry topic included. What is this consumer's share and
        still locked by another one stands in ``stats()["waiting_for_locks"]``.
        """
        return sorted(self._engine.parts.assigned.snapshot()) if self._engine is not None else []

    def subscribe(self, topic: str, expression: Expression = "*") -> None:
        """Add a topic, or change its filter; a running consumer rebalances at once.
        ``SubscriptionInvalid`` changes nothing.
        """
        check_subscriptions({topic: expression})
        topic = self._full_name(topic)
        wanted = parse_subscription(topic, expression)
        if self._engine is not None:
            check_sql_filters(self._engine.client, self._group, (wanted,))
        self._subscriptions.put(topic, expression, self._clock.now_ms())
        if self._engine is not None:
            self._engine.rebalancer.beat()
        self.rebalance_now()

    def unsubscribe(self, topic: str) -> None:
        """Give a topic up: its queues are dropped at the next rebalance, which comes at once."""
        topic = self._full_name(topic)
        if topic == retry_topic(self._group) or not self._subscriptions.remove(topic):
            raise ClientError(f"group {self._group!r} is not subscribed to {topic!r}", topic)
        self.rebalance_now()

    def pause(self, *what: Pausable) -> None:
        """No further pulls of these topics and queues (all, when none is named) until ``resume``;
        what was pulled is still handed out.
        """
        if self._engine is not None:
            self._engine.pause(self._full_names(what))

    def resume(self, *what: Pausable) -> None:
        """Pull these again (everything, when nothing is named), and rebalance."""
        if self._engine is not None:
            self._engine.resume(self._full_names(what))

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
