"""The producer of threads as users call it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmq_ray.actors.access_keys import SecretKey
from rmq_ray.actors.discovery import discovery_for
from rmq_ray.client.producer import producer
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
