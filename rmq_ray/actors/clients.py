"""The client classes as users call them: those of ``client`` with a cluster's name in place of a
discovery object.

``cluster`` names a cluster of this Ray cluster; ``name_servers`` (``"host:port;host:port"`` or a
list) with ``secret`` reaches one without Ray. Everything else is the client's: settings are those
of ``ProducerConfig`` and ``ConsumerConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rmq_ray.actors.discovery import discovery_for
from rmq_ray.client.messages.listener import Listener
from rmq_ray.client.pop import simple_consumer
from rmq_ray.client.producer import async_producer, producer, transaction_producer
from rmq_ray.client.pull import pull_consumer
from rmq_ray.client.push import push_consumer
from rmq_ray.client.transaction.transaction_listener import TransactionListener
from rmq_ray.config import DEFAULT_CLUSTER


class Producer(producer.Producer):
    """Sends messages of one producer group; thread-safe; pickles as its settings and connects anew
    elsewhere.
    """

    def __init__(
        self,
        group: str | None = None,
        *,
        cluster: str = DEFAULT_CLUSTER,
        name_servers: Sequence[str] | str | None = None,
        secret: bytes = b"",
        **settings: Any,
    ) -> None:
        super().__init__(group, discovery=discovery_for(cluster, name_servers, secret), **settings)


class TransactionProducer(transaction_producer.TransactionProducer):
    """A producer with a listener that runs local transactions and answers for them: RocketMQ's form
    of ``Producer.transaction``.
    """

    def __init__(  # noqa: PLR0913 - the public signature
        self,
        group: str,
        *,
        listener: TransactionListener,
        cluster: str = DEFAULT_CLUSTER,
        name_servers: Sequence[str] | str | None = None,
        secret: bytes = b"",
        **settings: Any,
    ) -> None:
        super().__init__(
            group,
            listener=listener,
            discovery=discovery_for(cluster, name_servers, secret),
            **settings,
        )


class AsyncProducer(async_producer.AsyncProducer):
    """The same on the caller's event loop: ``async with AsyncProducer() as p: await
    p.send("orders", b"x")``.
    """

    def __init__(
        self,
        group: str | None = None,
        *,
        cluster: str = DEFAULT_CLUSTER,
        name_servers: Sequence[str] | str | None = None,
        secret: bytes = b"",
        **settings: Any,
    ) -> None:
        super().__init__(group, discovery=discovery_for(cluster, name_servers, secret), **settings)


class PushConsumer(push_consumer.PushConsumer):
    """Hands messages to a listener as a member of a group; a context manager."""

    def __init__(
        self,
        group: str,
        *,
        listener: Listener,
        subscriptions: Mapping[str, Any],
        cluster: str = DEFAULT_CLUSTER,
        name_servers: Sequence[str] | str | None = None,
        secret: bytes = b"",
        **settings: Any,
    ) -> None:
        super().__init__(
            group,
            listener=listener,
            subscriptions=subscriptions,
            discovery=discovery_for(cluster, name_servers, secret),
            **settings,
        )


class PullConsumer(pull_consumer.PullConsumer):
    """Fetches messages when asked: assigned queue by queue, or as a member of a group; a context
    manager.
    """

    def __init__(
        self,
        group: str,
        *,
        cluster: str = DEFAULT_CLUSTER,
        name_servers: Sequence[str] | str | None = None,
        secret: bytes = b"",
        **settings: Any,
    ) -> None:
        super().__init__(group, discovery=discovery_for(cluster, name_servers, secret), **settings)


class SimpleConsumer(simple_consumer.SimpleConsumer):
    """A worker that takes messages of any queue for a time and settles each of them; a context
    manager.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        *,
        cluster: str = DEFAULT_CLUSTER,
        name_servers: Sequence[str] | str | None = None,
        secret: bytes = b"",
        **settings: Any,
    ) -> None:
        super().__init__(
            topic, group, discovery=discovery_for(cluster, name_servers, secret), **settings
        )
