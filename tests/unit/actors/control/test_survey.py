"""What ``up`` would do on a Ray cluster of several nodes: nodes are found by resource, and every
fault has its line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmq_ray.actors import gateway
from rmq_ray.actors.control import survey
from rmq_ray.actors.control.plan import ClusterPlan, plan_of
from rmq_ray.actors.control.survey import Disk
from rmq_ray.actors.placement import Node
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import ClusterError, ConfigError
from rmq_ray.topology.reader import parse_topology

FILE = """\
[[name_servers]]
resource = "store_a"
[[brokers]]
name = "broker-a"
resource = "store_a"
port = 10911
store = { path = "/data/rmq" }
[[brokers]]
name = "broker-b"
resource = "store_b"
store = { path = "/data/rmq" }
"""
HEAD, ONE, TWO = (
    Node("10.0.0.1", frozenset()),
    Node("10.0.0.2", frozenset({"store_a"})),
    Node("10.0.0.3", frozenset({"store_b"})),
)


NO_RESOURCE = FILE.replace('resource = "store_b"\n', "").replace(
    'rmq" }\n[[brokers]]', 'a" }\n[[brokers]]'
)


class Cluster:
    """What Ray would answer. ``running``: the plan of a message cluster that runs."""

    def __init__(self) -> None:
        self.nodes = [HEAD, ONE, TWO]
        self.disk: Disk | Exception = Disk(True, True, free_bytes=5 << 30)
        self.running: ClusterPlan | None = None
        self.as_made: dict[str, BrokerConfig] = {}
        self.looked: list[tuple[str | None, str]] = []

    def find(self, name: str) -> str | None:
        return None if self.running is None else name

    def call(self, handle: str, method: str, **_limits: float) -> ClusterPlan | BrokerConfig | None:
        return self.running if method == "plan" else self.as_made.get(handle)

    def run_on(
        self, resource: str | None, _function: Any, arguments: tuple[str], *, timeout_s: float
    ) -> Disk:
        assert timeout_s > 0
        self.looked.append((resource, arguments[0]))
        if isinstance(self.disk, Exception):
            raise self.disk
        return self.disk


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(gateway, "nodes", lambda: made.nodes)
    monkeypatch.setattr(gateway, "find", made.find)
    monkeypatch.setattr(gateway, "call", made.call)
    monkeypatch.setattr(gateway, "run_on", made.run_on)
    return made


def told(found: survey.Survey) -> list[str]:
    return [f"{change.part}: {change.what}" for change in found.changes]


def surveyed(text: str, folder: Path) -> survey.Survey:
    return survey.survey(parse_topology(text, str(folder / "rmq.toml")))


def test_each_broker_goes_to_the_node_that_offers_its_resource_and_its_disk_is_looked_at_there(
    cluster: Cluster, tmp_path: Path
) -> None:
    found = surveyed(FILE, tmp_path)
    assert [(step.actor, step.action, step.node) for step in found.steps] == [
        ("name-server-0", "create", "10.0.0.2"),
        ("broker-a", "create", "10.0.0.2"),
        ("broker-b", "create", "10.0.0.3"),
    ]
    assert cluster.looked == [("store_a", "/data/rmq"), ("store_b", "/data/rmq")]
    assert (
        found.steps[1].store == "made new, 5 GiB free"
        and "10911 lies among those of Ray's workers" in found.steps[1].note
    )
    found.check()


@pytest.mark.parametrize(
    ("text", "nodes", "said", "awaited"),
    [
        (
            FILE,
            [HEAD, ONE],
            "line 10: no node of this Ray cluster offers the resource 'store_b': offered are "
            "store_a",
            True,
        ),
        (
            FILE,
            [HEAD, ONE, TWO, Node("10.0.0.4", frozenset({"store_b"}))],
            r"line 10: 2 nodes offer 'store_b' \(10.0.0.3, 10.0.0.4\)",
            True,
        ),
        (NO_RESOURCE, [HEAD, ONE], "line 8: broker-b has no resource", False),
        (
            FILE,
            [Node("10.0.0.2", frozenset({"store_a", "store_b"}))],
            "line 11: store /data/rmq on 10.0.0.2 is that of line 7",
            False,
        ),
    ],
)
def test_what_ray_does_not_offer_is_refused_with_its_line(
    cluster: Cluster, tmp_path: Path, text: str, nodes: list[Node], said: str, awaited: bool
) -> None:
    cluster.nodes = nodes
    found = surveyed(text, tmp_path)
    (bad,) = [step for step in found.steps if step.error is not None]
    assert (bad.actor, bad.action, bad.awaited) == ("broker-b", "refuse", awaited)
    with pytest.raises(ConfigError, match=said):
        found.check()


def test_a_node_that_does_not_answer_refuses_its_brokers_only(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.disk = ClusterError("look on the node with 'store_a' did not end within 30 s")
    found = surveyed(FILE, tmp_path)
    assert [step.action for step in found.steps] == ["create", "refuse", "refuse"]
    with pytest.raises(ClusterError, match="did not end"):
        found.check()


def test_a_running_cluster_is_compared_with_the_file_and_its_disks_are_left_alone(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.running = plan_of(parse_topology(FILE), b"s", one_node=False)
    same = surveyed(FILE, tmp_path)
    assert (
        same.running
        and same.changes == ()
        and {step.action for step in same.steps} == {"attach"}
        and cluster.looked == []
    )
    changed = (
        FILE.replace("10911", "20911")
        .replace('resource = "store_b"', 'resource = "store_a"')
        .replace('"/data/rmq" }\n[[', '"/data/a", flush = "sync" }\n[[')
    )
    assert told(surveyed(changed, tmp_path)) == [
        "name-server-0: directory /data/rmq.name-server-0 -> /data/a.name-server-0",
        "broker-a: path /data/rmq -> /data/a",
        "broker-b: resource store_b -> store_a",
        "broker-a: port 10911 -> 20911",
        "broker-a: flush async -> sync",
    ]


def test_a_copy_that_a_cut_off_run_did_not_reach_is_still_to_be_changed(
    cluster: Cluster, tmp_path: Path
) -> None:
    new = FILE.replace('"/data/rmq" }', '"/data/rmq", flush = "sync" }')
    cluster.running = plan_of(parse_topology(new), b"s", one_node=False)
    assert told(surveyed(new, tmp_path)) == []
    before = plan_of(parse_topology(FILE), b"s", one_node=False)
    cluster.as_made["default/broker-b/0"] = before.brokers[1]
    assert told(surveyed(new, tmp_path)) == ["broker-b: flush async -> sync"]


def test_a_file_says_the_same_of_a_cluster_that_listens_on_loopback_or_on_the_nodes_addresses(
    cluster: Cluster, tmp_path: Path
) -> None:
    for one_node in (True, False):
        cluster.running = plan_of(parse_topology(FILE), b"s", one_node=one_node)
        assert surveyed(FILE, tmp_path).changes == ()
    found = surveyed(FILE.replace("port = 10911", 'port = 10911\nhost = "10.9.9.9"'), tmp_path)
    assert told(found) == ["broker-a: host  -> 10.9.9.9"]
