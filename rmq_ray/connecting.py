"""``rmq.connect``: the handle of a cluster that runs, through Ray or over the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from rmq_ray.actors.access_keys import SecretKey, keywords
from rmq_ray.actors.cluster_clients import ClusterClients
from rmq_ray.actors.discovery import (
    StaticDiscovery,
    discovery_for,
    has_joined_ray,
    meant_cluster,
)
from rmq_ray.config import Tls
from rmq_ray.errors import ConfigError
from rmq_ray.extras import load

if TYPE_CHECKING:
    from rmq_ray.cluster import Cluster


@overload
def connect(
    name: str | None = None, *, access_key: str = "", secret_key: SecretKey = ""
) -> Cluster: ...


@overload
def connect(
    name: str | None = None,
    *,
    name_servers: Sequence[str] | str,
    secret: bytes = b"",
    tls: Tls | None = None,
    access_key: str = "",
    secret_key: SecretKey = "",
) -> ClusterClients: ...


def connect(
    name: str | None = None,
    *,
    name_servers: Sequence[str] | str | None = None,
    secret: bytes = b"",
    tls: Tls | None = None,
    access_key: str = "",
    secret_key: SecretKey = "",
) -> ClusterClients:
    """Attach to a running cluster: of this Ray cluster, or, without Ray, to one behind
    ``name_servers`` ("host:port;host:port", or a list), whose handle has the clients and ``admin``.
    A process that has not joined Ray needs no addresses on a machine where `rmq-ray` has met the
    cluster as the same user.

    Through Ray ``ClusterError`` that lists those that run where none runs under this name; calls of
    this process that name no cluster mean it from now on. Over the network ``secret`` is the
    cluster's, ``tls`` else as ``RMQ_TLS_CA`` says; a ``RemotingError`` says what cannot be reached,
    and why. ``access_key``, ``secret_key``: the handle and its clients are this account, and not
    members as everybody else with Ray; else as ``RMQ_ACCESS_KEY`` says. What asks the controller
    (status, stop, promote) stays open to all who have Ray. ``CredentialsInvalid`` for one of both.
    """
    if name_servers is None:
        if secret or tls is not None:
            raise ConfigError(
                "secret and tls are for a cluster that is reached over the network: give "
                "name_servers='host:port', too"
            )
        from rmq_ray.actors import remembered

        meant = meant_cluster(name)
        if not has_joined_ray() and remembered.find(meant) is not None:
            noted = discovery_for(meant, None, b"", None, access_key, secret_key)
            return ClusterClients(meant, noted, keywords(noted.account))
        attach = load("rmq_ray.cluster").attach
        found: Cluster = attach(name, access_key=access_key, secret_key=secret_key)
        return found
    discovery = discovery_for(name, name_servers, secret, tls, access_key, secret_key)
    assert isinstance(discovery, StaticDiscovery)
    where = discovery.lookup()
    settings: dict[str, Any] = {"name_servers": list(where.name_servers), "tls": where.tls}
    settings |= keywords(discovery.account) if discovery.account else {"secret": secret}
    reached = ClusterClients(where.cluster, discovery, settings)
    reached.admin.brokers()
    return reached
