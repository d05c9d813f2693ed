"""Names of actors, and where clients learn their name servers."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from rmq_ray.actors import names
from rmq_ray.actors.discovery import RayDiscovery, StaticDiscovery, discovery_for
from rmq_ray.cluster import Cluster
from rmq_ray.errors import ClusterError, ConfigError


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


@pytest.mark.parametrize("given", [None, 5, b"default", Cluster("default")])
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
    "given", ["", ";", [], "nonsense", "host:", "host:0", "host:99999", ["ok:1", "bad"]]
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
