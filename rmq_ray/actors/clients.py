"""The client classes as users call them: those of ``client`` with a cluster's name in place of a
discovery object.

``cluster`` names a cluster of this Ray cluster (None: ``actors.discovery`` tells which one is
meant); ``name_servers`` (``"host:port;host:port"`` or a list) with ``secret`` reaches one without
Ray, over TLS with ``tls`` (``rmq.Tls``), else as ``RMQ_TLS_CA`` says. ``access_key`` and
``secret_key`` make the client an account of the cluster, else as ``RMQ_ACCESS_KEY`` says
(``actors.access_keys``). Everything else is the client's: settings are those of
``ProducerConfig`` and ``ConsumerConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rmq_ray.actors.access_keys import SecretKey
from rmq_ray.actors.discovery import discovery_for
from rmq_ray.client.messages.listener import Listener
from rmq_ray.client.pop import simple_consumer
from rmq_ray.client.producer import async_producer, producer, transaction_producer
from rmq_ray.client.pull import pull_consumer
from rmq_ray.client.push import push_consumer
from rmq_ray.client.transaction.transaction_listener import TransactionListener
from rmq_ray.config import Tls


class Producer(producer.Producer):
    """Sends messages of one producer group; thread-safe; pickles as its settings and connects anew
    elsewhere; a context manager.

    ``group``: None = one that all such producers share. ``cluster``: one of this Ray cluster, None
    = the one that this process started or connected to (else ``RMQ_CLUSTER``, else "default");
    ``name_servers`` ("host:port;host:port", or a list) with ``secret`` reaches one without Ray,
    over TLS with ``tls`` (``rmq.Tls``), else as ``RMQ_TLS_CA`` says. ``access_key``,
    ``secret_key``: of an account, else of ``RMQ_ACCESS_KEY`` and ``RMQ_SECRET_KEY`` or the file
    that ``RMQ_CREDENTIALS`` names; without any a member of the cluster, where Ray is.
    ``settings``: fields of ``ProducerConfig``, or ``config=``; ``client_id=``: equal ids share
    connections; ``hooks=``, ``checks=``: see each send. Times given to calls are seconds. Raises
    ``ConfigError`` for wrong settings, ``ClusterError`` where there is no such cluster.
    """

    def __init__(
        self,
        group: str | None = None,
        *,
        cluster: str | None = None,
        name_servers: Sequence[str] | str | None = None,
        secret: bytes = b"",
        tls: Tls | None = None,
        access_key: str = "",
        secret_key: SecretKey = "",
        **settings: Any,
    ) -> None:
        super().__init__(
            group,
            discovery=discovery_for(cluster, name_servers, secret, tls, access_key, secret_key),
            **settings,
        )


class TransactionProducer(transaction_producer.TransactionProducer):
    """A producer with a listener that runs local transactions and answers for them: RocketMQ's form
    of ``Producer.transaction``. ``listener``: must be given; its ``check_local_transaction`` is
    what ``checker`` is to a ``Producer``. Arguments and errors otherwise: ``Producer``.
    """

    def __init__(
        self,
        group: str,
        *,
        listener: TransactionListener | None = None,
        cluster: str | None = None,
        name_servers: Sequence[str] | str | None = None,
        secret: bytes = b"",
        tls: Tls | None = None,
        access_key: str = "",
        secret_key: SecretKey = "",
        **settings: Any,
    ) -> None:
        super().__init__(
            group,
            listener=listener,
            discovery=discovery_for(cluster, name_servers, secret, tls, access_key, secret_key),
            **settings,
        )


class AsyncProducer(async_producer.AsyncProducer):
    """A producer on the caller's event loop: ``async with AsyncProducer() as p: await
    p.send("orders", b"x")``.

    It belongs to that loop. What is sent in one turn of it (``asyncio.gather``) travels together;
    cancelling a send forgets its result, not the message. Arguments and errors: ``Producer``.
    """

    def __init__(
        self,
        group: str | None = None,
        *,
        cluster: str | None = None,
        name_servers: Sequence[str] | str | None = None,
        secret: bytes = b"",
        tls: Tls | None = None,
        access_key: str = "",
        secret_key: SecretKey = "",
        **settings: Any,
    ) -> None:
        super().__init__(
            group,
            discovery=discovery_for(cluster, name_servers, secret, tls, access_key, secret_key),
            **settings,
        )


class PushConsumer(push_consumer.PushConsumer):
    """Hands messages to a listener as a member of a group; a context manager.

    ``listener(messages, ctx)`` is called by ``concurrency`` threads, or is a coroutine function:
    None or ``SUCCESS`` = done, ``RECONSUME_LATER`` or an exception = again later, ``Reject`` = dead
    letter. ``subscriptions``: topic -> ``"*"``, ``"tag || tag"`` or ``rmq.sql(...)``. ``settings``:
    ``PushOptions``; rarer ones as ``config=ConsumerConfig(...)``. ``cluster``, ``name_servers``,
    ``secret``, ``access_key``: as of ``Producer``. Raises ``ConfigError`` or ``ClientError`` for
    wrong arguments, ``ClusterError`` where there is no such cluster.
    """

    def __init__(  # noqa: PLR0913 - the public signature
        self,
        group: str,
        *,
        listener: Listener,
        subscriptions: Mapping[str, Any],
        cluster: str | None = None,
        name_servers: Sequence[str] | str | None = None,
        secret: bytes = b"",
        tls: Tls | None = None,
        access_key: str = "",
        secret_key: SecretKey = "",
        **settings: Any,
    ) -> None:
        super().__init__(
            group,
            listener=listener,
            subscriptions=subscriptions,
            discovery=discovery_for(cluster, name_servers, secret, tls, access_key, secret_key),
            **settings,
        )


class PullConsumer(pull_consumer.PullConsumer):
    """Fetches messages when asked: assigned queue by queue, or as a member of a group; a context
    manager.

    ``settings``: ``PullOptions``; rarer ones as ``config=ConsumerConfig(...)``. ``cluster``,
    ``name_servers``, ``secret``, ``access_key``: as of ``Producer``. Any thread may call it; with
    several polling threads commit by ``commit(batch)``. Raises ``ConfigError`` or ``ClientError``
    for wrong arguments, ``ClusterError`` where there is no such cluster.
    """

    def __init__(
        self,
        group: str,
        *,
        cluster: str | None = None,
        name_servers: Sequence[str] | str | None = None,
        secret: bytes = b"",
        tls: Tls | None = None,
        access_key: str = "",
        secret_key: SecretKey = "",
        **settings: Any,
    ) -> None:
        super().__init__(
            group,
            discovery=discovery_for(cluster, name_servers, secret, tls, access_key, secret_key),
            **settings,
        )


class SimpleConsumer(simple_consumer.SimpleConsumer):
    """A worker that takes messages of any queue for a time and settles each of them; a context
    manager.

    ``settings``: ``expression`` (``"*"``, ``"tag || tag"`` or ``rmq.sql(...)``, the same in the
    whole group), ``start_from`` ("last" or "first", where a group begins that never consumed the
    topic; what a young topic holds it gets either way), ``max_reconsume_times`` (retries before the
    dead letters, -1 = the group's, 16).
    ``cluster``, ``name_servers``, ``secret``, ``access_key``: as of ``Producer``. Raises
    ``ConfigError`` or ``ClientError`` for wrong arguments, ``ClusterError`` where there is no such
    cluster.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        *,
        cluster: str | None = None,
        name_servers: Sequence[str] | str | None = None,
        secret: bytes = b"",
        tls: Tls | None = None,
        access_key: str = "",
        secret_key: SecretKey = "",
        **settings: Any,
    ) -> None:
        super().__init__(
            topic,
            group,
            discovery=discovery_for(cluster, name_servers, secret, tls, access_key, secret_key),
            **settings,
        )
