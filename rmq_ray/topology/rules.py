"""What members of one topology may not share or contradict: names, directories, ports, nodes,
sizes. Called by ``topology.reader``.

Invariant: every refusal names the line, the other line where there are two, and what to do.

What a topology file describes, once read: values only. Made by ``topology.reader``, checked by
``topology.rules``; called by ``actors``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rmq_ray.config import BrokerConfig, FailoverConfig, NameServerConfig, ReplicationMode
from rmq_ray.topology.source import Key, TopologyText


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
    """Where the controller keeps who is master. ``resource`` None = the head node."""

    ledger: str
    resource: str | None = None
    key: Key = ("controller",)


@dataclass(frozen=True, slots=True)
class Topology:
    """A file that was read and holds nothing wrong by itself."""

    source: TopologyText
    cluster: str
    name_servers: tuple[NameServerSpec, ...]
    brokers: tuple[BrokerSpec, ...]
    controller: ControllerSpec
    failover: FailoverConfig = field(default_factory=FailoverConfig)
    accounts: str | None = None
    """Path of the ``plain_acl.yml`` that accounts come from."""
    relative: tuple[Key, ...] = ()
    """Where paths stand that lie beside the file, or would, where the file says nothing."""

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


def check(found: Topology) -> None:
    """``ConfigError`` for the first thing that cannot be."""
    _unique_names(found)
    _unique_stores(found)
    _unique_ports(found)
    for spec in found.brokers:
        _apart(found, spec)
        _same_segments(found, spec)
        _enough_copies(found, spec)


def _unique_names(found: Topology) -> None:
    seen: dict[str, Key] = {}
    for spec in found.brokers:
        name = spec.config.broker_name
        if name in seen:
            line = found.source.line_of((*seen[name], "name"))
            message = (
                f"two masters of the name {name!r}, the first on line {line}: each needs a name "
                f"of its own, slaves are [[brokers.replicas]]"
            )
            raise found.source.wrong((*spec.key, "name"), message, name)
        seen[name] = spec.key


def _unique_stores(found: Topology) -> None:
    stores = [
        ((*spec.key, "store"), spec.config.store.path, spec.resource) for spec in found.copies
    ]
    if found.has_slaves:
        stores.append(
            ((*found.controller.key, "store"), found.controller.ledger, found.controller.resource)
        )
    for at, (key, path, resource) in enumerate(stores):
        for other, its_path, its_resource in stores[:at]:
            if (resource is None or its_resource is None or resource == its_resource) and _overlap(
                path, its_path
            ):
                message = (
                    f"store {path} is shared with the broker on line "
                    f"{found.source.line_of(other)}: each needs a directory of its own"
                )
                raise found.source.wrong(key, message, path)


def _unique_ports(found: Topology) -> None:
    seen: dict[tuple[str | None, int], Key] = {}
    members: list[NameServerSpec | BrokerSpec] = [*found.name_servers, *found.copies]
    for spec in members:
        place = (spec.resource, spec.config.port)
        if spec.config.port and place in seen:
            line = found.source.line_of((*seen[place], "port"))
            message = (
                f"port {spec.config.port} is that of line {line}, on the same node: choose "
                f"another, or 0"
            )
            raise found.source.wrong((*spec.key, "port"), message, place[1])
        seen[place] = spec.key


def _apart(found: Topology, spec: BrokerSpec) -> None:
    """Copies that die together are none; whether different resources are different nodes is seen
    later (``actors.control.survey``).
    """
    copies = (spec, *spec.replicas)
    for at, copy in enumerate(copies):
        same = [other for other in copies[:at] if other.resource == copy.resource]
        if same and not spec.allow_same_node:
            raise found.source.wrong(
                (*copy.key, "resource"), same_node(found, copy, same[0]), copy.resource
            )


def same_node(found: Topology, copy: BrokerSpec, other: BrokerSpec) -> str:
    """What is wrong with two copies on one node."""
    line = found.source.line_of((*other.key, "resource"))
    return (
        f"this copy of {copy.config.broker_name} is on the same node as that of line {line}, "
        f"and would die with it: give it the resource of another node, "
        f"or say allow_same_node = true in [[brokers]]"
    )


def _same_segments(found: Topology, spec: BrokerSpec) -> None:
    wanted = spec.config.store.segment_bytes
    for copy in spec.replicas:
        if copy.config.store.segment_bytes != wanted:
            line = found.source.line_of((*spec.key, "store"))
            message = (
                f"segment_bytes {copy.config.store.segment_bytes} differs from the {wanted} of "
                f"line {line}: copies of one log have the same segments"
            )
            raise found.source.wrong(
                (*copy.key, "store", "segment_bytes"), message, copy.config.store.segment_bytes
            )


def _enough_copies(found: Topology, spec: BrokerSpec) -> None:
    copies = 1 + len(spec.replicas)
    if spec.config.replication is ReplicationMode.SYNC_MASTER and spec.config.copies_min > copies:
        key: Key = (*spec.key, "copies_min")
        said = [
            at
            for at in (
                key,
                ("defaults", "copies_min"),
                (*spec.key, "replication"),
                ("defaults", "replication"),
            )
            if found.source.has(at)
        ]
        message = (
            f"{spec.config.broker_name} has {copies} {'copy' if copies == 1 else 'copies'}, "
            f"replication = 'sync' wants {spec.config.copies_min} (copies_min) "
            "for every acknowledgement: add [[brokers.replicas]], or lower copies_min"
        )
        raise found.source.wrong(said[0] if said else spec.key, message, spec.config.copies_min)


def _overlap(one: str, other: str) -> bool:
    first, second = Path(one), Path(other)
    return first == second or first in second.parents or second in first.parents
