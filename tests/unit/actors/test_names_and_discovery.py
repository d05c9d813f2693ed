"""Names of actors, and where clients learn their name servers."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from rmq_ray.actors import discovery, gateway, names, remembered
from rmq_ray.actors.clients.producers import Producer
from rmq_ray.actors.discovery import (
    RayDiscovery,
    StaticDiscovery,
    choose_cluster,
    discovery_for,
    forget_cluster,
    use_cluster,
)
from rmq_ray.cluster import Cluster
from rmq_ray.errors import ClusterError, ConfigError
from rmq_ray.ports import ClusterAddress


def test_actors_of_two_clusters_and_roles_never_share_a_name() -> None:
    made = [
        name
        for cluster in ("a", "b")
        for name in (
            names.controller(cluster),
            names.name_server(cluster, 0),
            names.broker(cluster, "broker-a", 0),
            names.broker(cluster, "broker-a", 1),
            names.hold_service(cluster, "broker-a"),
        )
    ]
    assert len(set(made)) == len(made) == 10
    assert [names.cluster_of_controller(name) for name in made] == [
        "a",
        None,
        None,
        None,
        None,
        "b",
        None,
        None,
        None,
        None,
    ]


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 65, "größe", "a\n"])
def test_names_that_would_not_fit_are_refused_everywhere(name: str) -> None:
    for make in (names.check_cluster_name, names.controller, RayDiscovery):
        with pytest.raises(ConfigError, match="cluster name"):
            make(name)


@pytest.mark.parametrize("given", [5, b"default", Cluster("default")])
def test_a_cluster_is_given_by_its_name(given: Any) -> None:
    with pytest.raises(ConfigError, match="a cluster's name"):
        discovery_for(given, None, b"")


@pytest.mark.parametrize(
    "given",
    [
        "10.0.0.1:9876;10.0.0.2:9876",
        ["10.0.0.1:9876", "10.0.0.2:9876"],
        " 10.0.0.1:9876 ; 10.0.0.2:9876; ",
    ],
)
def test_addresses_come_as_text_or_list(given: object) -> None:
    found = StaticDiscovery(given, b"secret", "mine").lookup()  # type: ignore[arg-type]
    assert (found.name_servers, found.secret, found.cluster) == (
        ("10.0.0.1:9876", "10.0.0.2:9876"),
        b"secret",
        "mine",
    )


def test_a_secret_that_is_no_bytes_is_told() -> None:
    with pytest.raises(ConfigError, match="secret must be bytes, not str"):
        discovery_for("default", "127.0.0.1:1", "wrong")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        *("", ";", [], "nonsense", "localhost", "host:", "host:0", "host:99999", ["ok:1", "bad"]),
        *("http://x:9876", "x:9876/", "a b:1", "a\0b:1", "a:1,b:2", b"a:1", 9876, None, [None]),
        *(["a:1", b"b:2"], [("a", 1)]),
    ],
)
def test_addresses_that_are_none_are_refused_at_once(given: object) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        StaticDiscovery(given)  # type: ignore[arg-type]


def test_addresses_win_over_the_cluster_name_and_both_travel() -> None:
    fixed, found = discovery_for("default", "h:1", b""), discovery_for("mine", None, b"")
    assert pickle.loads(pickle.dumps(fixed)).lookup() == fixed.lookup()
    assert pickle.loads(pickle.dumps(found)).cluster == "mine"


def test_without_ray_the_remedy_is_named() -> None:
    with pytest.raises(ClusterError, match=r"ray.init\(\).*name_servers"):
        RayDiscovery("default").lookup()


# --- Ray Client ---


def lookup_by_ray_client(monkeypatch: pytest.MonkeyPatch, server: str) -> ClusterAddress:
    monkeypatch.setattr(discovery, "has_joined_ray", lambda: True)
    monkeypatch.setattr(gateway, "by_ray_client", lambda: True)
    found = ClusterAddress("mine", (server,), b"secret")
    monkeypatch.setattr(gateway, "cluster_address", lambda _cluster: found)
    return RayDiscovery("mine").lookup()


def test_a_loopback_that_is_another_machines_is_told_with_what_works_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ClusterError, match=r"joined by Ray Client.*--host.*rmq.ProducerActor"):
        lookup_by_ray_client(monkeypatch, "127.0.0.1:1")
    monkeypatch.setattr(remembered, "answers", lambda _found: True)
    assert lookup_by_ray_client(monkeypatch, "127.0.0.1:1").name_servers == ("127.0.0.1:1",)


def test_an_address_of_the_network_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "answers", lambda _found: pytest.fail("nobody dials it"))
    assert lookup_by_ray_client(monkeypatch, "10.0.0.5:9876").name_servers == ("10.0.0.5:9876",)


# --- which cluster is meant ---


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is used yet, and the environment names no cluster."""
    monkeypatch.setattr(discovery, "_used", {})
    monkeypatch.delenv("RMQ_CLUSTER", raising=False)


@pytest.mark.parametrize(
    ("clusters", "named", "meant"),
    [
        ([], None, "default"),
        ([], "orders", "orders"),
        (["nb"], None, "nb"),
        (["nb"], "orders", "nb"),
        (["nb", "orders"], "orders", "orders"),
    ],
)
def test_the_cluster_that_is_meant_is_the_one_in_use_or_that_of_the_environment(
    clusters: list[str], named: str | None, meant: str
) -> None:
    assert choose_cluster(clusters, named) == meant


@pytest.mark.parametrize("named", [None, "elsewhere"])
def test_of_several_clusters_one_must_be_named(named: str | None) -> None:
    with pytest.raises(ConfigError, match="uses the clusters nb, orders: say .*cluster='nb'"):
        choose_cluster(["orders", "nb"], named)


@pytest.mark.usefixtures("used")
def test_clients_and_discoveries_mean_the_cluster_in_use_until_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert RayDiscovery().cluster == "default"
    use_cluster("nb")
    assert RayDiscovery().cluster == "nb" and RayDiscovery("default").cluster == "default"
    meant = Producer("web")
    assert pickle.loads(pickle.dumps(meant))._discovery.cluster == "nb", "the name travels"
    use_cluster("orders")
    with pytest.raises(ConfigError, match="uses the clusters nb, orders"):
        Producer("web")
    assert Cluster("orders").producer("web")._discovery.cluster == "orders"
    forget_cluster("nb")
    forget_cluster("nb")
    assert RayDiscovery().cluster == "orders"
    monkeypatch.setattr(gateway, "session", lambda: "another ray.init")
    assert RayDiscovery().cluster == "default", "that was another Ray cluster"


@pytest.mark.usefixtures("used")
def test_the_environment_names_the_cluster_of_tasks_and_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RMQ_CLUSTER", "nb")
    assert RayDiscovery().cluster == "nb"
    monkeypatch.setenv("RMQ_CLUSTER", "n/b")
    with pytest.raises(ConfigError, match="cluster name 'n/b'"):
        RayDiscovery()


@pytest.mark.parametrize(
    "make",
    [
        lambda mq: mq.producer("g"),
        lambda mq: mq.async_producer("g"),
        lambda mq: mq.push_consumer("g", listener=lambda *_: None, subscriptions={"t": "*"}),
        lambda mq: mq.pull_consumer("g"),
        lambda mq: mq.simple_consumer("t", "g"),
    ],
    ids=["producer", "async producer", "push", "pull", "simple"],
)
def test_clients_of_a_handle_are_bound_to_its_cluster(make: Any) -> None:
    use_cluster("other")
    try:
        assert make(Cluster("nb"))._discovery.cluster == "nb"
    finally:
        forget_cluster("other")
