"""Where clients learn their name servers: through the controller actor, or from addresses that are
known.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmq_ray.actors import gateway, names
from rmq_ray.config import DEFAULT_CLUSTER
from rmq_ray.errors import ConfigError
from rmq_ray.model.ids import Address
from rmq_ray.ports import ClusterAddress


class RayDiscovery:
    """Finds a cluster through its controller actor; pickles as the cluster's name only."""

    def __init__(self, cluster: str = DEFAULT_CLUSTER) -> None:
        self.cluster = names.check_cluster_name(cluster)

    def lookup(self) -> ClusterAddress:
        """``ClusterError`` where the cluster does not run or Ray is not initialised."""
        return gateway.cluster_address(self.cluster)

    def broker_names(self) -> tuple[str, ...]:
        """All brokers of the cluster, those included that are down."""
        return gateway.broker_names(self.cluster)


class StaticDiscovery:
    """A cluster whose addresses are known: for processes without Ray, and for Apache RocketMQ
    clusters.
    """

    def __init__(
        self, name_servers: Sequence[str] | str, secret: bytes = b"", cluster: str = DEFAULT_CLUSTER
    ) -> None:
        parts = name_servers.split(";") if isinstance(name_servers, str) else name_servers
        addresses = tuple(part.strip() for part in parts if part.strip())
        if not addresses:
            raise ConfigError(
                "name_servers is empty: give 'host:port' or several, separated by ';'", name_servers
            )
        for address in addresses:
            try:
                Address.parse(address)
            except ValueError as error:
                raise ConfigError(
                    f"name_servers: {error}; give 'host:port' or several, separated by ';'", address
                ) from None
        if not isinstance(secret, bytes):
            raise ConfigError(
                f"secret must be bytes, not {type(secret).__name__}; "
                f"`Cluster.discovery.lookup().secret` has it where the cluster runs"
            )
        self._address = ClusterAddress(cluster, addresses, secret)

    def lookup(self) -> ClusterAddress:
        """Always the same."""
        return self._address

    def broker_names(self) -> tuple[str, ...]:
        """Nothing: nobody here knows which brokers there should be."""
        return ()


def discovery_for(
    cluster: str, name_servers: Sequence[str] | str | None, secret: bytes
) -> RayDiscovery | StaticDiscovery:
    """Static where addresses are given, else through Ray."""
    return (
        RayDiscovery(cluster)
        if name_servers is None
        else StaticDiscovery(name_servers, secret, cluster)
    )
