"""The handle of a cluster, without Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_ray import cluster
from rmq_ray.actors import gateway
from rmq_ray.actors.control.changes import How, PlannedChange
from rmq_ray.actors.control.survey import Survey
from rmq_ray.cluster import Cluster, start, start_from
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


@pytest.fixture
def ray_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has joined Ray by it, as far as it can tell; no cluster runs."""
    monkeypatch.setattr(gateway, "by_ray_client", lambda: True)
    monkeypatch.setattr(gateway, "find", lambda _name: None)


def test_by_ray_client_a_new_cluster_needs_the_path_on_its_own_node(ray_client: None) -> None:
    with pytest.raises(ConfigError, match="store_path 'rmq-data' is relative.*the node that keeps"):
        start("orders")
    with pytest.raises(ConfigError, match="accounts 'plain_acl.yml' is relative"):
        start("orders", store_path="/data", foreign="acl", accounts="plain_acl.yml")


FILE = """\
[controller]
store = "/data/controller"
[[brokers]]
name = "broker-a"
store = { path = "/data/broker-a" }
allow_same_node = true
[[brokers.replicas]]
store = { path = "/data/broker-a.replica-1" }
"""
CHANGE = PlannedChange("broker-a", How.SET, "port 1 -> 2")


@pytest.mark.parametrize("found", [Survey((), False, ()), Survey((), True, (CHANGE,))])
@pytest.mark.parametrize(
    ("absolute", "relative", "said"),
    [
        ("/data/broker-a.r", "r", "line 8: brokers.replicas.store.path lies beside this file"),
        ('store = "/data/controller"\n', "", "line 1: controller.store lies beside this file"),
    ],
)
def test_by_ray_client_a_file_has_the_paths_on_the_nodes(
    ray_client: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    found: Survey,
    absolute: str,
    relative: str,
    said: str,
) -> None:
    monkeypatch.setattr(cluster, "survey", lambda _topology: found)
    file = tmp_path / "rmq.toml"
    file.write_text(FILE.replace(absolute, relative))
    with pytest.raises(ConfigError, match=f"{said}.*give an absolute path"):
        start_from(file)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (FILE, Survey((), False, ())),
        (FILE[FILE.index("[[b") : FILE.index("allow")], Survey((), False, ())),
        (FILE.replace("/data/", ""), Survey((), True, ())),
    ],
)
def test_by_ray_client_absolute_paths_and_a_cluster_that_is_as_the_file_says_are_let_through(
    ray_client: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, found: Survey
) -> None:
    def no_further(_name: str) -> None:
        raise ClusterError("no further")

    monkeypatch.setattr(cluster, "survey", lambda _topology: found)
    monkeypatch.setattr(gateway, "find", no_further)
    file = tmp_path / "rmq.toml"
    file.write_text(text)
    with pytest.raises(ClusterError, match="no further"):
        start_from(file)
