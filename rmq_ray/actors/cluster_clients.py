"""What of a cluster's handle needs no Ray: its clients and its administration, over connections."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from rmq_ray.actors.discovery import RayDiscovery, StaticDiscovery
from rmq_ray.extras import load

if TYPE_CHECKING:
    from rmq_ray.actors.clients.async_producers import AsyncProducer
    from rmq_ray.actors.clients.consumers import PullConsumer, PushConsumer, SimpleConsumer
    from rmq_ray.actors.clients.producers import Producer
    from rmq_ray.actors.clients.transaction_producers import TransactionProducer
    from rmq_ray.actors.durable_queue import Queue
    from rmq_ray.client.admin.admin import Admin


class ClusterClients:
    """Makes clients of one cluster, which ``discovery`` finds. ``admin`` offers topics, groups and
    offsets. ``where``: the keywords that make a client one of this cluster, as this account.
    """

    def __init__(
        self, name: str, discovery: RayDiscovery | StaticDiscovery, where: dict[str, Any]
    ) -> None:
        self.name = name
        self.discovery = discovery
        self._where = {"cluster": name, **where}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @cached_property
    def admin(self) -> Admin:
        """Administration over connections; one client instance, made at first use."""
        from rmq_ray.client.admin.admin import Admin

        # the first of several threads; from Python 3.12 on the property has no lock of its own
        made: Admin = self.__dict__.setdefault("admin", Admin(self.discovery))
        return made

    def producer(self, group: str | None = None, **settings: Any) -> Producer:
        """A ``Producer`` of this cluster, whatever others this process uses."""
        from rmq_ray.actors.clients.producers import Producer

        return Producer(group, **self._where | settings)

    def async_producer(self, group: str | None = None, **settings: Any) -> AsyncProducer:
        """An ``AsyncProducer`` of this cluster."""
        from rmq_ray.actors.clients.async_producers import AsyncProducer

        return AsyncProducer(group, **self._where | settings)

    def transaction_producer(self, group: str, **settings: Any) -> TransactionProducer:
        """A ``TransactionProducer`` of this cluster."""
        from rmq_ray.actors.clients.transaction_producers import TransactionProducer

        return TransactionProducer(group, **self._where | settings)

    def push_consumer(self, group: str, **settings: Any) -> PushConsumer:
        """A ``PushConsumer`` of this cluster."""
        from rmq_ray.actors.clients.consumers import PushConsumer

        return PushConsumer(group, **self._where | settings)

    def pull_consumer(self, group: str, **settings: Any) -> PullConsumer:
        """A ``PullConsumer`` of this cluster."""
        from rmq_ray.actors.clients.consumers import PullConsumer

        return PullConsumer(group, **self._where | settings)

    def simple_consumer(self, topic: str, group: str, **settings: Any) -> SimpleConsumer:
        """A ``SimpleConsumer`` of this cluster."""
        from rmq_ray.actors.clients.consumers import SimpleConsumer

        return SimpleConsumer(topic, group, **self._where | settings)

    def queue(
        self, name: str, maxsize: int = 0, *, pickle: bool = False, prefetch: int = 0
    ) -> Queue:
        """A ``Queue`` of this cluster."""
        kind = load("rmq_ray.actors.durable_queue").Queue
        made: Queue = kind(name, maxsize, pickle=pickle, prefetch=prefetch, **self._where)
        return made

    @property
    def addresses(self) -> dict[str, Any]:
        """``{"name_servers": ["host:port"], "broker-a": {0: "host:port"}}``."""
        found: dict[str, Any] = {"name_servers": list(self.discovery.lookup().name_servers)}
        for broker in self.admin.brokers():
            found[broker.broker_name] = dict(broker.addresses)
        return found
