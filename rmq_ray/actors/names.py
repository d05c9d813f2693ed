"""Names of the system's actors: one fixed Ray namespace, cluster and role in the name, so that two
clusters never meet.
"""

from __future__ import annotations

import re
from uuid import uuid4

from rmq_ray.errors import ConfigError

NAMESPACE = "rmq_ray"
_CLUSTER = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_cluster_name(cluster: str) -> str:
    """The name itself; ``ConfigError`` where it does not fit."""
    if not isinstance(cluster, str):
        raise ConfigError(
            f"cluster must be a cluster's name, like 'default', not {cluster!r:.80}; of a "
            f"Cluster give its name",
            repr(cluster)[:80],
        )
    if not _CLUSTER.fullmatch(cluster):
        raise ConfigError(
            f"cluster name {cluster!r} must be 1 to 64 letters, digits, '_' or '-'", cluster
        )
    return cluster


def controller(cluster: str) -> str:
    """The one controller of a cluster."""
    return f"{check_cluster_name(cluster)}/controller"


def cluster_of_controller(actor: str) -> str | None:
    """The cluster whose controller has this name; None for any other actor.

    >>> cluster_of_controller("default/controller"), cluster_of_controller("default/broker-a/0")
    ('default', None)
    """
    cluster, _, role = actor.partition("/")
    return cluster if role == "controller" else None


def name_server(cluster: str, index: int) -> str:
    """Name servers are numbered from 0."""
    return f"{check_cluster_name(cluster)}/name-server-{index}"


def broker(cluster: str, broker_name: str, replica: int) -> str:
    """A copy of a broker: the number stays with its store, whoever is master now."""
    return f"{check_cluster_name(cluster)}/{broker_name}/{replica}"


def hold_service(cluster: str, key: str) -> str:
    """The PullRequestHoldService beside a broker ("broker-a"); its slaves have none."""
    return f"{check_cluster_name(cluster)}/{key}/hold"


def exporter(cluster: str) -> str:
    """What Prometheus scrapes."""
    return f"{check_cluster_name(cluster)}/exporter"


def archivist(cluster: str, topic: str) -> str:
    """What keeps a topic's table."""
    return f"{archivists(cluster)}{topic}"


def archivists(cluster: str) -> str:
    """How the names of a cluster's archivists begin."""
    return f"{check_cluster_name(cluster)}/table/"


def console(cluster: str) -> str:
    """What serves the cluster's web pages."""
    return f"{check_cluster_name(cluster)}/console"


def replica_key(broker_name: str, replica: int) -> str:
    """How resources and known stores are named; without slaves it is the broker's name.

    >>> replica_key("broker-a", 0), replica_key("broker-a", 1)
    ('broker-a', 'broker-a/1')
    """
    return f"{broker_name}/{replica}" if replica else broker_name


def fleet(cluster: str, name: str) -> str:
    """A deployed group of consumer actors."""
    if not _CLUSTER.fullmatch(name):
        raise ConfigError(
            f"name of workers {name!r} must be 1 to 64 letters, digits, '_' or '-'", name
        )
    return f"{fleets(cluster)}{name}"


def fleet_of_program(cluster: str) -> str:
    """One that was deployed without a name: nobody looks for it by this one."""
    return f"{fleets(cluster)}~{uuid4().hex}"


def fleets(cluster: str) -> str:
    """How the names of a cluster's deployed groups begin."""
    return f"{check_cluster_name(cluster)}/workers/"
