"""What a cluster consists of: the plan that the controller keeps and builds every actor from.

Made once by the driver that starts the cluster; later drivers get it from the controller, so that all use one secret.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TypeVar

from rmq_ray.actors import names
from rmq_ray.config import BrokerConfig, FlushMode, ForeignClients, NameServerConfig, StoreConfig
from rmq_ray.errors import ConfigError
from rmq_ray.topology import Topology

E = TypeVar("E", bound=Enum)
BROKER_LETTERS = "abcdefghijklmnopqrstuvwxyz"
SOCKET_PATH_BYTES_MAX = 107  # what the kernel takes, less the ending zero


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """``resources``: broker name, or name-server-0 -> custom Ray resource that only its node has; needed where there are several nodes.
    ``identities``: broker name -> the store that must be there; who has none here may make a new store.
    """

    cluster: str
    name_servers: tuple[NameServerConfig, ...]
    brokers: tuple[BrokerConfig, ...]
    secret: bytes
    resources: Mapping[str, str] = field(default_factory=dict)
    identities: Mapping[str, str] = field(default_factory=dict)

    def with_name_servers(self, addresses: tuple[str, ...]) -> ClusterPlan:
        """The plan once the name servers listen: brokers are told where."""
        return replace(self, brokers=tuple(broker.but(name_servers=addresses) for broker in self.brokers))


def make_plan(  # noqa: PLR0913 - the arguments of the outermost call
    cluster: str,
    *,
    brokers: int,
    name_servers: int,
    store_path: str,
    flush: str,
    foreign: str,
    host: str,
    ports: tuple[int, int],
    secret: bytes,
    resources: Mapping[str, str] | None = None,
    broker_settings: Mapping[str, object] | None = None,
    store_settings: Mapping[str, object] | None = None,
) -> ClusterPlan:
    """Build and check a plan. ``ports`` = (name server's, broker's), 0 = any free one, kept over restarts.

    Brokers are named broker-a, broker-b, ...; each has its store under ``store_path``.
    """
    names.check_cluster_name(cluster)
    _check_counts(brokers, name_servers, ports)
    root = Path(store_path).expanduser().absolute()
    allowed = _enum(ForeignClients, foreign, "foreign")
    servers = tuple(
        NameServerConfig(host=host, port=ports[0], cluster_name=cluster, directory=str(root / f"name-server-{i}"), foreign=allowed) for i in range(name_servers)
    )
    parties = []
    for i in range(brokers):
        name = f"broker-{BROKER_LETTERS[i]}"
        store = StoreConfig.from_mapping({"path": str(root / name), "flush": _enum(FlushMode, flush, "flush"), **(store_settings or {})})
        base = BrokerConfig(store=store, broker_name=name, cluster_name=cluster, host=host, port=ports[1], foreign=allowed, hold_link=hold_socket(store.path))
        parties.append(base.but(**(broker_settings or {})))
    return ClusterPlan(cluster, servers, tuple(parties), secret, dict(resources or {}))


def plan_of(topology: Topology, secret: bytes, *, one_node: bool, identities: Mapping[str, str] | None = None) -> ClusterPlan:
    """The plan that a topology file describes. ``one_node``: who names no host listens on loopback, else on its node's address."""
    host = "127.0.0.1" if one_node else ""
    servers = tuple(spec.config.but(host=spec.config.host or host) for spec in topology.name_servers)
    brokers = tuple(spec.config.but(host=spec.config.host or host, hold_link=hold_socket(spec.config.store.path)) for spec in topology.brokers)
    return ClusterPlan(names.check_cluster_name(topology.cluster), servers, brokers, secret, topology.resources, dict(identities or {}))


def hold_socket(store_path: str) -> str:
    """Path of the Unix socket between a broker and its hold service: private, and short enough whatever TMPDIR is."""
    name = f"rmq_ray-{os.getuid()}/{hashlib.sha256(store_path.encode()).hexdigest()[:24]}.sock"
    path = f"{tempfile.gettempdir()}/{name}"
    return path if len(path.encode()) <= SOCKET_PATH_BYTES_MAX else f"/tmp/{name}"


def _enum(kind: type[E], value: str, what: str) -> E:
    try:
        return kind(value)
    except ValueError:
        allowed = ", ".join(repr(member.value) for member in kind)
        raise ConfigError(f"{what} must be one of {allowed}, not {value!r}", value) from None


def _check_counts(brokers: int, name_servers: int, ports: tuple[int, int]) -> None:
    if not 1 <= brokers <= len(BROKER_LETTERS):
        raise ConfigError(f"brokers must be 1 to {len(BROKER_LETTERS)}, not {brokers!r}", brokers)
    if not 1 <= name_servers <= 9:
        raise ConfigError(f"name_servers must be 1 to 9, not {name_servers!r}", name_servers)
    for count, port, what in ((name_servers, ports[0], "name_server_port"), (brokers, ports[1], "broker_port")):
        if not 0 <= port < 65536:
            raise ConfigError(f"{what} must be 0 (any free port) to 65535, not {port!r}", port)
        if port and count > 1:
            raise ConfigError(f"{what}={port} serves one actor, but {count} are asked for: leave it 0", port)
