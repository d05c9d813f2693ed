"""The handle of a cluster, without Ray."""

from __future__ import annotations

import pytest

from rmq_ray.actors import gateway
from rmq_ray.cluster import Cluster, start
from rmq_ray.errors import ClusterError, ConfigError


def test_a_second_stop_does_nothing_and_a_first_one_of_no_cluster_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alive = {"orders"}
    told: list[str] = []

    def controller(cluster: str) -> str:
        if cluster not in alive:
            raise ClusterError(f"no cluster {cluster!r}", cluster)
        return cluster

    def call(handle: str, method: str, **_: object) -> None:
        told.append(f"{handle} {method}")

    monkeypatch.setattr(gateway, "controller", controller)
    monkeypatch.setattr(gateway, "find", lambda _name: next(iter(alive), None))
    monkeypatch.setattr(gateway, "call", call)
    monkeypatch.setattr(gateway, "archivists", lambda _cluster: [])
    monkeypatch.setattr(gateway, "kill", lambda _name, for_good: alive.clear())
    cluster = Cluster("orders")
    cluster.stop()
    cluster.stop()
    assert told == ["orders stop"]
    with pytest.raises(ClusterError, match="no cluster 'orders'"):
        Cluster("orders").stop()


def test_by_ray_client_a_new_cluster_needs_the_path_on_its_own_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway, "by_ray_client", lambda: True)
    monkeypatch.setattr(gateway, "find", lambda _name: None)
    with pytest.raises(ConfigError, match="store_path 'rmq-data' is relative.*the node that keeps"):
        start("orders")
