"""What a cluster consists of: the plan that the controller keeps and builds every actor from.

Made once by the driver that starts it; later ones get it from the controller: all use one secret.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from rmq_ray.actors import names
from rmq_ray.config import (
    BrokerConfig,
    FailoverConfig,
    FlushMode,
    ForeignClients,
    NameServerConfig,
    ReplicationMode,
    StoreConfig,
    TlsSettings,
)
from rmq_ray.errors import ConfigError, StoreForeign
from rmq_ray.topology.rules import BrokerSpec, Topology

E = TypeVar("E", bound=Enum)
BROKER_LETTERS = "abcdefghijklmnopqrstuvwxyz"
SOCKET_PATH_BYTES_MAX = 107  # what the kernel takes, less the ending zero
REPLICAS_MAX = 9
ACCOUNTS = "accounts"
"""The controller's directory of them below ``store_path``, or behind the ledger's name."""
RAYS_OWN = ("session_", "runtime_resources")
"""Below a directory that begins so Ray keeps the working directories and modules of jobs."""
CONTROLLER = "controller"
"""The controller's key among the resources, and its directory below ``store_path``."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """``brokers``: replica 0 of each; ``replicas``: broker name -> its replicas 1 to n, where it
    has some. A replica's config has its number as ``broker_id``: the id it begins with.
    ``resources``: key (``names.replica_key``, name-server-0, controller) -> custom Ray resource
    that only its node has; needed where there are several nodes. ``identities``: key -> the store
    that must be there; who has none here may make a new store. ``ledger_path``: directory in which
    the controller keeps who is master while there are slaves. ``home``: directory in which it keeps
    the accounts; ``accounts``: path of the file that they come from, None = commands change them.
    """

    cluster: str
    name_servers: tuple[NameServerConfig, ...]
    brokers: tuple[BrokerConfig, ...]
    secret: bytes
    resources: Mapping[str, str] = field(default_factory=dict)
    identities: Mapping[str, str] = field(default_factory=dict)
    replicas: Mapping[str, tuple[BrokerConfig, ...]] = field(default_factory=dict)
    ledger_path: str | None = None
    failover: FailoverConfig = field(default_factory=FailoverConfig)
    home: str | None = None
    accounts: str | None = None

    @property
    def ledger(self) -> str | None:
        """Where the controller keeps who is master; None where there are no slaves."""
        return self.ledger_path if self.replicas else None

    @property
    def has_accounts(self) -> bool:
        """Whether connections need an account."""
        return self.name_servers[0].foreign is ForeignClients.ACL

    @property
    def tls(self) -> TlsSettings:
        """The same for all members."""
        return self.name_servers[0].tls

    def with_name_servers(self, addresses: tuple[str, ...]) -> ClusterPlan:
        """The plan once the name servers listen: brokers are told where."""
        told = {
            name: tuple(config.but(name_servers=addresses) for config in configs)
            for name, configs in self.replicas.items()
        }
        return replace(
            self,
            brokers=tuple(broker.but(name_servers=addresses) for broker in self.brokers),
            replicas=told,
        )

    def copies(self, broker_name: str) -> tuple[BrokerConfig, ...]:
        """All replicas of a broker, by number."""
        first = next(config for config in self.brokers if config.broker_name == broker_name)
        return (first, *self.replicas.get(broker_name, ()))

    def listeners(self) -> list[str]:
        """Actors that listen on a port: name servers, and every replica of every broker."""
        found = [names.name_server(self.cluster, i) for i in range(len(self.name_servers))]
        return found + [
            names.broker(self.cluster, config.broker_name, config.broker_id)
            for _, config in self.all_copies()
        ]

    def all_copies(self) -> Iterator[tuple[str, BrokerConfig]]:
        """(key, config) of every replica of every broker."""
        for broker in self.brokers:
            for config in self.copies(broker.broker_name):
                yield names.replica_key(config.broker_name, config.broker_id), config

    def paths(self) -> Iterator[str]:
        """Of all that must outlive who starts the cluster."""
        yield from (config.store.path for _, config in self.all_copies())
        yield from (config.directory for config in self.name_servers)
        kept = (self.ledger, *((self.home, self.accounts) if self.has_accounts else ()))
        yield from (path for path in kept if path is not None)


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What ``rmq_ray.start`` was asked for, as it was given: ``make_plan`` checks it."""

    brokers: int
    name_servers: int
    store_path: str | os.PathLike[str]
    flush: str
    foreign: str
    replicas: int = 0
    replication: str = "async"
    resources: Mapping[str, str] | None = None
    broker_settings: Mapping[str, Any] | None = None
    store_settings: Mapping[str, Any] | None = None
    failover_settings: Mapping[str, Any] | None = None
    tls: TlsSettings | None = None
    accounts: str | os.PathLike[str] | None = None


def make_plan(
    cluster: str, asked: StartOptions, *, host: str, ports: tuple[int, int], secret: bytes
) -> ClusterPlan:
    """Build and check a plan. ``ports`` = (name server's, broker's), 0 = any free one, kept over
    restarts.

    Brokers are named broker-a, broker-b, ...; each has its store under ``store_path``, its slaves
    have theirs beside it: broker-a.replica-1.
    """
    failover = FailoverConfig.from_mapping(asked.failover_settings or {})
    names.check_cluster_name(cluster)
    _check_path(asked.store_path)
    _check_mappings(asked)
    _check_counts(asked, ports)
    root = Path(asked.store_path).expanduser().absolute()
    _check_root(root)
    allowed = _enum(ForeignClients, asked.foreign, "foreign")
    tls = asked.tls or TlsSettings()
    servers = tuple(
        NameServerConfig(
            host=host,
            port=ports[0],
            cluster_name=cluster,
            directory=str(root / f"name-server-{i}"),
            foreign=allowed,
            tls=tls,
        )
        for i in range(asked.name_servers)
    )
    common = {
        "host": host,
        "port": ports[1],
        "cluster_name": cluster,
        "foreign": allowed,
        "tls": tls,
        "replication": _enum(ReplicationMode, asked.replication, "replication"),
    }
    made = {
        name: _replicas(name, root, asked, common)
        for name in (f"broker-{letter}" for letter in BROKER_LETTERS[: asked.brokers])
    }
    plan = ClusterPlan(
        cluster,
        servers,
        tuple(replicas[0] for replicas in made.values()),
        secret,
        dict(asked.resources or {}),
        replicas={name: replicas[1:] for name, replicas in made.items() if asked.replicas},
        ledger_path=str(root / CONTROLLER),
        failover=failover,
        home=str(root / ACCOUNTS),
        accounts=_accounts_file(asked.accounts, allowed),
    )
    _check_kept(plan)
    return plan


def _accounts_file(given: str | os.PathLike[str] | None, foreign: ForeignClients) -> str | None:
    if given is None:
        return None
    if foreign is not ForeignClients.ACL:
        raise ConfigError(
            f"accounts={str(given)!r} needs foreign='acl', not {foreign.value!r}", str(given)
        )
    return str(Path(given).expanduser().absolute())


def _replicas(
    name: str, root: Path, asked: StartOptions, common: Mapping[str, Any]
) -> tuple[BrokerConfig, ...]:
    """A broker and its slaves, by number. ``common``: what all brokers of the cluster have."""
    made = []
    for number in range(asked.replicas + 1):
        path = str(root / (f"{name}.replica-{number}" if number else name))
        flush = _enum(FlushMode, asked.flush, "flush")
        store = StoreConfig.from_mapping(
            {"path": path, "flush": flush, **(asked.store_settings or {})}
        )
        base = BrokerConfig(store=store, broker_name=name, broker_id=number).but(
            **common, hold_link=_hold_link(number, path)
        )
        made.append(base.but(**(asked.broker_settings or {})))
    _check_replicas(made[0], asked.replicas)
    return tuple(made)


def plan_of(
    topology: Topology,
    secret: bytes,
    *,
    one_node: bool,
    identities: Mapping[str, str] | None = None,
) -> ClusterPlan:
    """The plan that a topology file describes. ``one_node``: who names no host listens on loopback,
    else on its node's address.
    """
    host = "127.0.0.1" if one_node else ""

    def placed(spec: BrokerSpec) -> BrokerConfig:
        config = spec.config
        return config.but(
            host=config.host or host, hold_link=_hold_link(config.broker_id, config.store.path)
        )

    made = ClusterPlan(
        names.check_cluster_name(topology.cluster),
        tuple(spec.config.but(host=spec.config.host or host) for spec in topology.name_servers),
        tuple(placed(spec) for spec in topology.brokers),
        secret,
        topology.resources,
        dict(identities or {}),
        replicas={
            spec.config.broker_name: tuple(placed(copy) for copy in spec.replicas)
            for spec in topology.brokers
            if spec.replicas
        },
        ledger_path=topology.controller.ledger,
        failover=topology.failover,
        home=f"{topology.controller.ledger}.{ACCOUNTS}",
        accounts=topology.accounts,
    )
    _check_kept(made)
    return made


def not_used(running: ClusterPlan, asked: StartOptions, defaults: Mapping[str, Any]) -> list[str]:
    """What was asked for and a running cluster does not have. What has its default value was not
    asked for.
    """
    first = running.brokers[0]
    has = {
        "brokers": len(running.brokers),
        "replicas": len(running.replicas.get(first.broker_name, ())),
        "name_servers": len(running.name_servers),
        "flush": first.store.flush.value,
        "replication": first.replication.value,
        "foreign": first.foreign.value,
        "store_path": Path(first.store.path).parent,
        "accounts": None if running.accounts is None else Path(running.accounts),
    }
    given = {key: getattr(asked, key) for key in has}
    given = {key: value for key, value in given.items() if value != defaults[key]}
    for name in ("store_path", "accounts"):
        if name in given:
            given[name] = Path(str(given[name])).expanduser().absolute()
    return [
        f"{key}={str(has[key])!r}, not {str(value)!r}"
        for key, value in given.items()
        if value != has[key]
    ]


def _hold_link(copy: int, store_path: str) -> str | None:
    """Only the copy that a broker begins with has a hold service: slaves are pulled from for
    moments, and one that became master wakes pulls itself.
    """
    return None if copy else hold_socket(store_path)


def hold_socket(store_path: str) -> str:
    """Path of the Unix socket between a broker and its hold service: private, and short enough
    whatever TMPDIR is.
    """
    name = f"rmq_ray-{os.getuid()}/{hashlib.sha256(store_path.encode()).hexdigest()[:24]}.sock"
    path = f"{tempfile.gettempdir()}/{name}"
    return path if len(path.encode()) <= SOCKET_PATH_BYTES_MAX else f"/tmp/{name}"


def _enum(kind: type[E], value: str, what: str) -> E:
    try:
        return kind(value)
    except ValueError:
        allowed = ", ".join(repr(member.value) for member in kind)
        raise ConfigError(f"{what} must be one of {allowed}, not {value!r}", value) from None


def _check_path(store_path: object) -> None:
    if not isinstance(store_path, str | os.PathLike) or not str(store_path).strip():
        raise ConfigError(
            f"store_path must be a directory, like 'rmq-data', not {store_path!r:.80}",
            repr(store_path)[:80],
        )


def _check_kept(plan: ClusterPlan) -> None:
    """Ray deletes a job's directory once nobody uses it."""
    session, copies = RAYS_OWN
    for path in plan.paths():
        if any(
            above.startswith(session) and part == copies
            for above, part in pairwise(Path(path).parts)
        ):
            raise ConfigError(
                f"{path} is below a directory that Ray copied for a job and deletes after it: give "
                f"an absolute path",
                path,
            )


def _check_root(root: Path) -> None:
    """A new store inside of a broker's own would be empty, and in its way."""
    if (root / "commitlog").is_dir() or (root / "rmq_ray" / "identity").is_file():
        what = (
            f"{root} is a broker's own store; store_path is the directory that holds the "
            f"brokers' stores, named broker-a, broker-b and so on"
        )
        raise StoreForeign(
            f"{what}: give the one above it, or another one (an rmq.toml can name any store)",
            str(root),
        )


def _check_mappings(asked: StartOptions) -> None:
    for name in ("broker_settings", "store_settings", "resources"):
        given: object = getattr(asked, name)
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(
                f"{name} must map names to values, not {given!r:.80}", repr(given)[:80]
            )


def _check_counts(asked: StartOptions, ports: tuple[int, int]) -> None:
    limits: tuple[tuple[Any, int, int, str], ...] = (
        (asked.brokers, 1, len(BROKER_LETTERS), "brokers"),
        (asked.name_servers, 1, 9, "name_servers"),
        (asked.replicas, 0, REPLICAS_MAX, "replicas"),
    )
    for count, low, high, what in limits:
        if not isinstance(count, int) or not low <= count <= high:
            raise ConfigError(f"{what} must be {low} to {high}, not {count!r}", count)
    for count, port, what in (
        (asked.name_servers, ports[0], "name_server_port"),
        (asked.brokers * (1 + asked.replicas), ports[1], "broker_port"),
    ):
        if not 0 <= port < 65536:
            raise ConfigError(f"{what} must be 0 (any free port) to 65535, not {port!r}", port)
        if port and count > 1:
            raise ConfigError(
                f"{what}={port} serves one actor, but {count} are asked for: leave it 0", port
            )


def _check_replicas(broker: BrokerConfig, replicas: int) -> None:
    """SYNC_MASTER that could never acknowledge anything is a mistake."""
    if broker.replication is ReplicationMode.SYNC_MASTER and broker.copies_min > 1 + replicas:
        raise ConfigError(
            f"replication='sync' needs {broker.copies_min} copies (copies_min), but there "
            f"are {1 + replicas}: give replicas={broker.copies_min - 1} or more",
            replicas,
        )
