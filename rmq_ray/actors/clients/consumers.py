"""Consumers as users call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rmq_ray.actors.access_keys import SecretKey
from rmq_ray.actors.discovery import discovery_for
from rmq_ray.client.messages.listener import Listener
from rmq_ray.client.pop import simple_consumer
from rmq_ray.client.pull import pull_consumer
from rmq_ray.client.push import push_consumer
from rmq_ray.config import Tls


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
