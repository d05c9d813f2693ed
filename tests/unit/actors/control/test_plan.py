"""What a cluster consists of: names, paths, ports, settings, and everything that a plan refuses."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from rmq_ray.actors.control.plan import (
    SOCKET_PATH_BYTES_MAX,
    ClusterPlan,
    StartOptions,
    hold_socket,
    make_plan,
    plan_of,
)
from rmq_ray.config import FlushMode, ForeignClients, ReplicationMode
from rmq_ray.errors import ConfigError, StoreForeign
from rmq_ray.topology.reader import parse_topology


def plan(**changes: object) -> ClusterPlan:
    settings: dict = {
        "brokers": 1,
        "name_servers": 1,
        "store_path": "data",
        "flush": "async",
        "foreign": "closed",
        "host": "127.0.0.1",
        "ports": (0, 0),
        "secret": b"s",
    }
    settings |= changes
    cluster = str(settings.pop("cluster", "default"))
    given = {name: settings.pop(name) for name in ("host", "ports", "secret")}
    return make_plan(cluster, StartOptions(**settings), **given)


def test_brokers_have_names_in_order_and_a_store_each() -> None:
    made = plan(brokers=3, store_path="/stores")
    assert [broker.broker_name for broker in made.brokers] == ["broker-a", "broker-b", "broker-c"]
    assert [broker.store.path for broker in made.brokers] == [
        "/stores/broker-a",
        "/stores/broker-b",
        "/stores/broker-c",
    ]
    assert len({broker.hold_link for broker in made.brokers}) == 3
    assert {broker.broker_id for broker in made.brokers} == {0}


@pytest.mark.parametrize("of_a_store", ["commitlog/", "rmq_ray/identity"])
def test_a_brokers_own_store_is_no_place_for_the_stores_of_a_cluster(
    tmp_path: Path, of_a_store: str
) -> None:
    inside = tmp_path / "broker-a" / of_a_store
    (inside if of_a_store.endswith("/") else inside.parent).mkdir(parents=True)
    if not of_a_store.endswith("/"):
        inside.touch()
    with pytest.raises(
        StoreForeign,
        match=(
            f"{tmp_path}/broker-a is a broker's own store; store_path .* named broker-a, "
            f"broker-b and so on: give the one above it"
        ),
    ):
        plan(store_path=tmp_path / "broker-a")
    assert plan(store_path=tmp_path).brokers[0].store.path == f"{tmp_path}/broker-a"


COPIED = "/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_1"
IN_FILES = """\
foreign = "acl"
accounts = "/data/plain_acl.yml"
[controller]
store = "/data/controller"
[[name_servers]]
directory = "/data/name-server"
[[brokers]]
name = "broker-a"
store = { path = "/data/broker-a" }
allow_same_node = true
[[brokers.replicas]]
store = { path = "/data/broker-a.replica-1" }
"""


def test_a_store_in_a_directory_that_ray_deletes_after_a_job_is_refused() -> None:
    with pytest.raises(ConfigError, match="deletes after it: give an absolute path"):
        plan(store_path=f"{COPIED}/rmq-data")
    of_a_user = "/srv/runtime_resources/session_1/stores"
    assert plan(store_path=of_a_user).brokers[0].store.path == f"{of_a_user}/broker-a"


@pytest.mark.parametrize(
    ("absolute", "refused"),
    [
        ('"/data/broker-a"', "broker-a"),
        ('"/data/broker-a.replica-1"', "broker-a.replica-1"),
        ('"/data/name-server"', "name-server"),
        ('store = "/data/controller"\n', "rmq.controller"),
        ('"/data/plain_acl.yml"', "plain_acl.yml"),
    ],
)
def test_so_is_whatever_a_file_puts_there(absolute: str, refused: str) -> None:
    path = f"{COPIED}/rmq.toml"
    assert plan_of(parse_topology(IN_FILES, path), b"", one_node=True).accounts
    text = IN_FILES.replace(absolute, absolute.replace("/data/", "") if "=" not in absolute else "")
    with pytest.raises(ConfigError, match=f"{COPIED}/{refused} is below.*deletes after it"):
        plan_of(parse_topology(text, path), b"", one_node=True)


def test_where_the_controller_keeps_nothing_its_directory_may_be_anywhere() -> None:
    alone = IN_FILES[IN_FILES.index("[[brokers]]") : IN_FILES.index("[[brokers.replicas]]")]
    assert plan_of(parse_topology(alone, f"{COPIED}/rmq.toml"), b"", one_node=True).brokers


def test_relative_and_home_paths_become_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/elsewhere")
    assert plan(store_path="data").brokers[0].store.path == f"{tmp_path}/data/broker-a"
    assert plan(store_path="~/data").brokers[0].store.path == "/elsewhere/data/broker-a"


def test_name_servers_keep_their_files_beside_the_stores() -> None:
    assert [server.directory for server in plan(name_servers=2, store_path="/s").name_servers] == [
        "/s/name-server-0",
        "/s/name-server-1",
    ]


def test_settings_reach_brokers_and_stores() -> None:
    made = plan(
        flush="sync",
        foreign="open",
        ports=(9_876, 10_911),
        broker_settings={"long_polling": False},
        store_settings={"segment_bytes": 1 << 20},
    )
    (broker,) = made.brokers
    assert (broker.store.flush, broker.store.segment_bytes, broker.long_polling) == (
        FlushMode.SYNC_FLUSH,
        1 << 20,
        False,
    )
    assert (
        broker.foreign,
        broker.port,
        made.name_servers[0].foreign,
        made.name_servers[0].port,
    ) == (ForeignClients.OPEN, 10_911, ForeignClients.OPEN, 9_876)
    assert plan(resources={"broker-a": "disk_a"}).resources == {"broker-a": "disk_a"}


def test_brokers_are_told_the_name_servers_and_the_plan_travels() -> None:
    made = plan(brokers=2).with_name_servers(("127.0.0.1:1", "127.0.0.1:2"))
    assert {broker.name_servers for broker in made.brokers} == {("127.0.0.1:1", "127.0.0.1:2")}
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster": "a b"}, "cluster name"),
        ({"cluster": ""}, "cluster name"),
        ({"store_path": 5}, "store_path must be a directory"),
        ({"store_path": " "}, "store_path must be a directory"),
        ({"brokers": 0}, "brokers must be 1 to 26"),
        ({"brokers": 27}, "brokers must be 1 to 26"),
        ({"name_servers": 0}, "name_servers must be 1 to 9"),
        ({"ports": (-1, 0)}, "name_server_port must be 0"),
        ({"ports": (0, 65_536)}, "broker_port must be 0"),
        ({"brokers": 2, "ports": (0, 10_911)}, "broker_port=10911 serves one actor"),
        ({"replicas": -1}, "replicas must be 0 to 9, not -1"),
        ({"replicas": "1"}, "replicas must be 0 to 9, not '1'"),
        ({"replicas": 1, "ports": (0, 10_911)}, "broker_port=10911 serves one actor, but 2"),
        ({"replication": "both"}, "replication must be one of 'async', 'sync'"),
        (
            {"replication": "sync"},
            r"needs 2 copies \(copies_min\), but there are 1: give replicas=1",
        ),
        (
            {"replication": "sync", "replicas": 1, "broker_settings": {"copies_min": 3}},
            "give replicas=2",
        ),
        ({"flush": "often"}, "flush must be one of 'async', 'sync'"),
        ({"accounts": "plain_acl.yml"}, "needs foreign='acl', not 'closed'"),
        ({"store_settings": 5}, "store_settings must map"),
        ({"broker_settings": ["a"]}, "broker_settings must map"),
        ({"resources": "disk"}, "resources must map"),
        ({"foreign": "maybe"}, "foreign must be one of 'closed', 'open', 'acl'"),
        ({"store_settings": {"speed": 1}}, "unknown setting 'speed'"),
        ({"broker_settings": {"colour": 1}}, "unknown setting 'colour'"),
    ],
)
def test_a_wrong_plan_is_refused_with_the_value_and_the_remedy(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(**changes)


def test_the_hold_services_socket_is_the_brokers_own_and_short_enough_for_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert hold_socket("/s/broker-a") == hold_socket("/s/broker-a") != hold_socket("/s/broker-b")
    for directory in ("/tmp", "/" + "long/" * 40):
        monkeypatch.setattr("tempfile.gettempdir", lambda directory=directory: directory)
        assert len(hold_socket("/s/" + "deep/" * 100).encode()) <= SOCKET_PATH_BYTES_MAX


def test_slaves_have_stores_beside_their_masters_and_numbers_of_their_own() -> None:
    made = plan(brokers=2, replicas=2, replication="sync", store_path="/stores")
    assert [key for key, _ in made.all_copies()] == [
        "broker-a",
        "broker-a/1",
        "broker-a/2",
        "broker-b",
        "broker-b/1",
        "broker-b/2",
    ]
    assert [config.store.path for config in made.copies("broker-a")] == [
        "/stores/broker-a",
        "/stores/broker-a.replica-1",
        "/stores/broker-a.replica-2",
    ]
    assert [config.broker_id for config in made.copies("broker-b")] == [0, 1, 2]
    assert {config.replication for _, config in made.all_copies()} == {ReplicationMode.SYNC_MASTER}
    links = {key: config.hold_link for key, config in made.all_copies() if config.hold_link}
    assert list(links) == ["broker-a", "broker-b"] and len(set(links.values())) == 2
    assert made.brokers == tuple(made.copies(name)[0] for name in ("broker-a", "broker-b"))
    assert {config.name_servers for _, config in made.with_name_servers(("h:1",)).all_copies()} == {
        ("h:1",)
    }


def test_only_a_cluster_with_slaves_has_a_ledger() -> None:
    assert (plan().ledger, plan().replicas) == (None, {})
    assert (
        plan(replicas=1, store_path="/s", failover_settings={"automatic": False}).ledger
        == "/s/controller"
    )
