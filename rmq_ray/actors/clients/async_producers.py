"""Producers of event loops as users call them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmq_ray.actors.access_keys import SecretKey
from rmq_ray.actors.discovery import discovery_for
from rmq_ray.client.producer import async_producer
from rmq_ray.config import Tls


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
