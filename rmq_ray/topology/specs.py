"""What a topology file describes, once read: values only. Made by ``topology.reader``, checked by
``topology.rules``; called by ``actors``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rmq_ray.config import BrokerConfig, FailoverConfig, NameServerConfig
from rmq_ray.topology.source import Key, Source


@dataclass(frozen=True, slots=True)
class NameServerSpec:
    """``key``: where it stands in the file. ``resource``: Ray resource of its node, None = any.
    ``config.host``: "" = the node's.
    """

    config: NameServerConfig
    resource: str | None
    key: Key


@dataclass(frozen=True, slots=True)
class BrokerSpec:
    """A broker, or one of its slaves, as the file describes it; its config has no hold service and
    no name servers yet.

    ``config.broker_id`` is the replica's number: 0 stands in the file as [[brokers]] itself, 1 to n
    are its ``replicas``.
    """

    config: BrokerConfig
    resource: str | None
    key: Key
    replicas: tuple[BrokerSpec, ...] = ()
    allow_same_node: bool = False

    @property
    def actor(self) -> str:
        """``broker-a``, and ``broker-a/1`` for its first slave: the key of resources and known
        stores.
        """
        number = self.config.broker_id
        return f"{self.config.broker_name}/{number}" if number else self.config.broker_name


@dataclass(frozen=True, slots=True)
class ControllerSpec:
    """Where the controller keeps who reigns. ``resource`` None = the head node."""

    ledger: str
    resource: str | None = None
    key: Key = ("controller",)


@dataclass(frozen=True, slots=True)
class Topology:
    """A file that was read and holds nothing wrong by itself."""

    source: Source
    cluster: str
    name_servers: tuple[NameServerSpec, ...]
    brokers: tuple[BrokerSpec, ...]
    controller: ControllerSpec
    failover: FailoverConfig = field(default_factory=FailoverConfig)

    @property
    def copies(self) -> Iterator[BrokerSpec]:
        """Every broker and behind it its slaves."""
        for spec in self.brokers:
            yield spec
            yield from spec.replicas

    @property
    def has_slaves(self) -> bool:
        """Whether somebody must decide who is master."""
        return any(spec.replicas for spec in self.brokers)

    @property
    def resources(self) -> dict[str, str]:
        """Actor -> Ray resource of its node: ``broker-a``, ``broker-a/1``, ``name-server-0``,
        ``controller``.
        """
        found = {spec.actor: spec.resource for spec in self.copies}
        found |= {f"name-server-{i}": spec.resource for i, spec in enumerate(self.name_servers)}
        found["controller"] = self.controller.resource
        return {name: resource for name, resource in found.items() if resource is not None}
