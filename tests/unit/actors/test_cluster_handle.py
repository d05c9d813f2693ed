"""The handle of a cluster, without Ray."""

from __future__ import annotations

import pytest

from rmq_ray.actors import gateway
from rmq_ray.cluster import Cluster
from rmq_ray.errors import ClusterError


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
