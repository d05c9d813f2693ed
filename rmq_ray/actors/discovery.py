"""Where clients learn their name servers: through the controller actor, or from addresses that are
known; and which cluster is meant where a call names none.

    named in the call ─> that one
    this process started or connected to one ─> that one
    to several ─> the one that RMQ_CLUSTER names, else an error that lists them
    to none ─> the one that RMQ_CLUSTER names, else "default"

Ray is loaded by what asks it: a client that is given addresses needs none. A process that a client
actor of ours runs in uses that client's cluster. Who connected as an account (``access_keys``) is
it wherever its calls mean that cluster.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rmq_ray.actors import names
from rmq_ray.actors.access_keys import AccountProof, SecretKey, environments_account, given_account
from rmq_ray.config import CLUSTER_VARIABLE, DEFAULT_CLUSTER, Tls, environment
from rmq_ray.errors import ClusterError, ConfigError, CredentialsInvalid
from rmq_ray.extras import load
from rmq_ray.model.ids import Address
from rmq_ray.ports import ClusterAddress
from rmq_ray.remoting.sockets import LOOPBACK

_used: dict[str, tuple[str, AccountProof | None]] = {}
"""Clusters that this process started or connected to, and did not stop -> by which connection to
Ray, and as which account.
"""


def _gateway() -> Any:
    """What asks Ray; ``ExtraMissing`` where Ray is not installed."""
    return load("rmq_ray.actors.gateway")


def has_joined_ray() -> bool:
    """Whether this process, or the one that it was forked from, has: then that Ray is meant."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def use_cluster(cluster: str, account: AccountProof | None = None) -> None:
    """This process uses it from now on: calls that name none may mean it."""
    _used[cluster] = (_gateway().session(), account)


def forget_cluster(cluster: str) -> None:
    """It was stopped."""
    _used.pop(cluster, None)


def meant_cluster(cluster: str | None, name_servers: Sequence[str] | str | None = None) -> str:
    """The cluster of a call that names this one, or none; of one that gives addresses it is a name
    only. ``ConfigError`` where it could be any of several, or the name does not fit.
    """
    if name_servers is not None:
        return cluster or DEFAULT_CLUSTER
    if cluster is None:
        session = _gateway().session() if _used else ""
        used = [name for name, (by, _) in _used.items() if by == session]
        cluster = choose_cluster(used, environment(CLUSTER_VARIABLE))
    return names.check_cluster_name(cluster)


def choose_cluster(used: Sequence[str], named: str | None) -> str:
    """Of a process that uses these and has ``named`` in its environment; see the module.

    >>> choose_cluster(["orders"], None), choose_cluster([], None), choose_cluster([], "orders")
    ('orders', 'default', 'orders')
    """
    if len(used) == 1:
        return used[0]
    if len(used) > 1 and named not in used:
        raise ConfigError(
            f"this process uses the clusters {', '.join(sorted(used))}: say which one is meant, "
            f"cluster={sorted(used)[0]!r}, or call it on the handle that start or connect returned",
            tuple(sorted(used)),
        )
    return named or DEFAULT_CLUSTER


def account_of(
    cluster: str,
    name_servers: Sequence[str] | str | None = None,
    secret: bytes = b"",
    access_key: str = "",
    secret_key: SecretKey = "",
) -> AccountProof | None:
    """Who a call with these arguments is; None = no account: a member of the cluster, by its
    secret or by Ray. ``CredentialsInvalid`` where the keys have a fault.
    """
    account = given_account(access_key, secret_key, cluster)
    if name_servers is not None and secret:
        if account is not None:
            raise CredentialsInvalid(
                "secret and access_key are given: be a member of the cluster, by its secret, or "
                "an account of it",
                access_key,
            )
        return None
    if account is None and name_servers is None and cluster in _used:
        session, connected = _used[cluster]
        account = connected if session == _gateway().session() else None
    return account or environments_account(cluster)


class RayDiscovery:
    """Finds a cluster through its controller actor; pickles as the cluster's name and what proves
    the account. ``cluster`` None: the one that this process means. ``account`` None: a member.
    """

    def __init__(self, cluster: str | None = None, account: AccountProof | None = None) -> None:
        self.cluster = meant_cluster(cluster)
        self.take_account(account)

    def take_account(self, account: AccountProof | None) -> None:
        """Be this account from now on; None: a member."""
        self.account = account
        self.access_key = account.access_key if account is not None else ""

    def lookup(self) -> ClusterAddress:
        """Through Ray, or, in a process that has not joined it, as a command noted it; nobody else
        does. ``ClusterError`` where the cluster does not run, nothing is known of it, or it listens
        on the loopback of another machine.
        """
        from rmq_ray.actors import remembered

        found: ClusterAddress | None = None if has_joined_ray() else remembered.find(self.cluster)
        if found is None:
            gateway = _gateway()
            found = gateway.cluster_address(self.cluster)
            if gateway.by_ray_client():
                _require_near(found)
        return found if self.account is None else self.account.at(found)

    def broker_names(self) -> tuple[str, ...]:
        """All brokers of the cluster, those included that are down."""
        return tuple(_gateway().broker_names(self.cluster)) if has_joined_ray() else ()

    def stopped_brokers(self) -> dict[str, bool]:
        """Broker -> whether every copy of it was stopped on purpose."""
        return dict(_gateway().stopped_brokers(self.cluster)) if has_joined_ray() else {}

    def ask_accounts(self, method: str, *arguments: Any) -> Any:
        """A method of the controller about accounts, asked by this process's user, as the account
        that it is.
        """
        from rmq_ray.protocol.access.changes import ChangeAuthor

        gateway = _gateway()
        author = ChangeAuthor(
            gateway.user_and_host(), gateway.process_id(), self.access_key, not self.access_key
        )
        return gateway.call(gateway.controller(self.cluster), method, *arguments, author)


def _require_near(found: ClusterAddress) -> None:
    """For a process that has joined by Ray Client: from another machine a loopback is not there."""
    from rmq_ray.actors import remembered

    hosts = {Address.parse(server).host for server in found.name_servers}
    if hosts == {LOOPBACK} and not remembered.answers(found):
        raise ClusterError(
            f"cluster {found.cluster!r} listens on the loopback of its node "
            f"({', '.join(found.name_servers)}), which this process, joined by Ray Client, does "
            f"not reach: start it with host= (`rmq-ray up --host`), the node's address, or send "
            f"and consume inside the cluster: rmq.ProducerActor, workers, tasks, `ray job submit`",
            found.cluster,
        )


class StaticDiscovery:
    """A cluster whose addresses are known: for processes without Ray, and for Apache RocketMQ
    clusters.
    """

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        secret: bytes = b"",
        cluster: str = DEFAULT_CLUSTER,
        tls: Tls | None = None,
        account: AccountProof | None = None,
    ) -> None:
        addresses = _addresses(name_servers)
        if not isinstance(secret, bytes):
            raise ConfigError(
                f"secret must be bytes, not {type(secret).__name__}; "
                f"`Cluster.discovery.lookup().secret` has it where the cluster runs"
            )
        where = ClusterAddress(cluster, addresses, secret, tls)
        self._address = where if account is None else account.at(where)
        self.account = account
        self.access_key = account.access_key if account is not None else ""

    def lookup(self) -> ClusterAddress:
        """Always the same."""
        return self._address

    def broker_names(self) -> tuple[str, ...]:
        """Nothing: nobody here knows which brokers there should be."""
        return ()


def _addresses(name_servers: object) -> tuple[str, ...]:
    """Of "host:port;host:port", or of a list of them; ``ConfigError`` for all else."""
    parts = name_servers.split(";") if isinstance(name_servers, str) else name_servers
    if not isinstance(parts, Iterable) or isinstance(parts, bytes):
        parts = [parts]
    try:
        found = tuple(text for part in parts if (text := _address(part)))
    except ValueError as error:
        raise ConfigError(
            f"name_servers: {error}; give 'host:port' or several, separated by ';'", name_servers
        ) from None
    if not found:
        raise ConfigError(
            "name_servers is empty: give 'host:port' or several, separated by ';'", name_servers
        )
    return found


def _address(part: object) -> str:
    """One without blanks around it, "" for nothing else; ``ValueError`` where it is none."""
    if not isinstance(part, str):
        raise ValueError(f"{part!r:.80} is no text")
    if "/" in part:
        raise ValueError(f"{part!r:.80} is a URL")
    text = part.strip()
    if not text.isprintable() or not {" ", ","}.isdisjoint(text):
        raise ValueError(f"{text!r:.80} is not host:port")
    if text:
        Address.parse(text)
    return text


def discovery_for(
    cluster: str | None,
    name_servers: Sequence[str] | str | None,
    secret: bytes,
    tls: Tls | None = None,
    access_key: str = "",
    secret_key: SecretKey = "",
) -> RayDiscovery | StaticDiscovery:
    """Static where addresses are given, else through Ray, which tells how TLS is spoken. ``tls``
    None: as the environment says (``RMQ_TLS_CA``), and without it plain. ``access_key`` and
    ``secret_key``: of an account, else as ``access_keys`` says. ``CredentialsInvalid`` for one of
    both, and for both beside the cluster's ``secret``.
    """
    meant = meant_cluster(cluster, name_servers)
    account = account_of(meant, name_servers, secret, access_key, secret_key)
    if name_servers is None:
        return RayDiscovery(meant, account)
    return StaticDiscovery(name_servers, secret, meant, tls or _environments_tls(), account)


def _environments_tls() -> Tls | None:
    """``RMQ_TLS_CA``, ``RMQ_TLS_CERTIFICATE`` and ``RMQ_TLS_KEY``; None where none is set."""
    ca, certificate, key = (
        environment(f"RMQ_TLS_{name}") or "" for name in ("CA", "CERTIFICATE", "KEY")
    )
    return Tls(ca, certificate, key) if ca or certificate or key else None
