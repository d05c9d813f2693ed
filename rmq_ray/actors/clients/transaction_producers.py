"""The producer with a transaction listener as users call it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmq_ray.actors.access_keys import SecretKey
from rmq_ray.actors.discovery import discovery_for
from rmq_ray.client.producer import transaction_producer
from rmq_ray.client.transaction.transaction_listener import TransactionListener
from rmq_ray.config import Tls


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
