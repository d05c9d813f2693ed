"""What ``up`` would do with slaves: their nodes and disks are looked at as the masters' are, and
copies that would die together are refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.actors import gateway, placement
from rmq_ray.actors.control import survey
from rmq_ray.actors.control.plan import ClusterPlan, plan_of
from rmq_ray.actors.control.survey import Disk, judge, judge_ledger
from rmq_ray.actors.placement import Node
from rmq_ray.errors import ConfigError, StoreForeign, StoreMissing, StoreUnwritable
from rmq_ray.topology.reader import parse_topology

FILE = """\
[controller]
store = "/data/controller"
[[brokers]]
name = "broker-a"
resource = "store_a"
store = { path = "/data/rmq" }
[[brokers.replicas]]
resource = "store_b"
store = { path = "/data/rmq" }
"""
HEAD, ONE, TWO = (
    Node("10.0.0.1", frozenset(), head=True),
    Node("10.0.0.2", frozenset({"store_a"})),
    Node("10.0.0.3", frozenset({"store_b"})),
)
EMPTY, FULL = (
    Disk(True, True, free_bytes=5 << 30),
    Disk(True, True, identity="5f", owner="broker-a"),
)


class Cluster:
    """What Ray would answer: nodes, disks by resource, the plan of a message cluster that runs."""

    def __init__(self) -> None:
        self.nodes = [HEAD, ONE, TWO]
        self.disks: dict[str, Disk] = {}
        self.running: ClusterPlan | None = None

    def run_on(
        self, resource: str, _function: Any, _arguments: tuple[str], *, timeout_s: float
    ) -> Disk:
        assert timeout_s > 0
        return self.disks.get(resource, EMPTY)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(gateway, "nodes", lambda: made.nodes)
    monkeypatch.setattr(gateway, "find", lambda _name: made.running)
    monkeypatch.setattr(
        gateway,
        "call",
        lambda _handle, method, **_limits: made.running if method == "plan" else None,
    )
    monkeypatch.setattr(gateway, "run_on", made.run_on)
    return made


def surveyed(folder: Path, text: str = FILE, **known: str) -> survey.Survey:
    (folder / "rmq.stores.json").write_text(
        json.dumps(
            {
                name.replace("_", "-").replace("--", "/"): identity
                for name, identity in known.items()
            }
        )
    )
    return survey.survey(parse_topology(text, str(folder / "rmq.toml")))


def test_slaves_and_the_controllers_directory_are_looked_at_on_their_own_nodes(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.disks = {"store_a": FULL, placement.HEAD: Disk(True, True, others=("broker-a.json",))}
    found = surveyed(tmp_path)
    found.check()
    assert [(step.actor, step.node, step.store) for step in found.steps[1:]] == [
        ("controller", "10.0.0.1", "found, 0 GiB free"),
        ("broker-a", "10.0.0.2", "found 5f, 0 GiB free"),
        ("broker-a/1", "10.0.0.3", "made new, 5 GiB free"),
    ]


def test_two_disks_of_one_node_hold_no_two_copies_unless_that_is_meant(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.nodes = [HEAD, Node("10.0.0.2", frozenset({"store_a", "store_b"}))]
    text = FILE.replace('store = { path = "/data/rmq" }\n', 'store = { path = "/data/other" }\n', 1)
    with pytest.raises(
        ConfigError,
        match="line 8: this copy of broker-a is on the same node as that of line 5.*allow_same",
    ):
        surveyed(tmp_path, text).check()
    surveyed(
        tmp_path, text.replace("[[brokers.rep", "allow_same_node = true\n[[brokers.rep")
    ).check()


def test_a_slaves_empty_disk_is_refused_with_the_line_to_remove_when_it_was_replaced(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.disks = {"store_a": FULL}
    said = (
        r"line 9, on 10.0.0.3: /data/rmq is empty, expected is store 6e of broker-a/1: .* remove "
        r"broker-a/1 from .*rmq.stores.json to copy them from its master"
    )
    with pytest.raises(StoreMissing, match=said):
        surveyed(tmp_path, broker_a="5f", broker_a__1="6e").check()
    surveyed(tmp_path, broker_a="5f").check()
    with pytest.raises(
        StoreForeign,
        match="line 6, on 10.0.0.2: .* expected is 6e of broker-a: mount the right disk",
    ):
        surveyed(tmp_path, broker_a="6e").check()  # the disks of master and slave were exchanged


def test_a_node_that_has_not_joined_is_awaited_for_the_controller_too(
    cluster: Cluster, tmp_path: Path
) -> None:
    text = FILE.replace(
        'store = "/data/controller"', 'store = "/data/controller"\nresource = "store_c"'
    )
    (step,) = [step for step in surveyed(tmp_path, text).steps if step.error is not None]
    assert (
        step.actor == "controller"
        and step.awaited
        and "line 3: no node of this Ray cluster offers the resource 'store_c'" in str(step.error)
    )


def test_what_a_file_says_otherwise_of_slaves_and_fail_over_is_told(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.running = plan_of(
        parse_topology(FILE, str(tmp_path / "rmq.toml")), b"s", one_node=False
    )
    assert surveyed(tmp_path).changes == ()
    changed = FILE.replace(
        '"store_b"\nstore = { path = "/data/rmq" }',
        '"store_c"\nport = 5\nstore = { path = "/data/b" }',
    ).replace("/controller", "/c")
    found = surveyed(tmp_path, "[failover]\nautomatic = false\n" + changed).changes
    assert [f"{change.part}: {change.what}" for change in found] == [
        "controller: store /data/controller -> /data/c",
        "broker-a/1: path /data/rmq -> /data/b",
        "broker-a/1: resource store_b -> store_c",
        "controller: automatic True -> False",
        "broker-a/1: port 0 -> 5",
    ]
    gone = surveyed(tmp_path, FILE.partition("[[brokers.rep")[0]).changes
    assert ("broker-a/1", "is gone from the file") in [(one.part, one.what) for one in gone]


@pytest.mark.parametrize(
    ("disk", "error"),
    [
        (FULL, StoreForeign),
        (Disk(True, False), StoreUnwritable),
        (Disk(True, True, has_log=True), StoreForeign),
    ],
)
def test_a_directory_that_cannot_be_the_controllers_is_refused(
    cluster: Cluster, tmp_path: Path, disk: Disk, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"\[controller\] store = "):
        judge_ledger(disk, "/data/controller")
    cluster.disks = {placement.HEAD: disk}
    with pytest.raises(error, match="line 2, on 10.0.0.1"):
        surveyed(tmp_path).check()


def test_a_slaves_store_belongs_to_its_broker() -> None:
    assert judge(FULL, "broker-a/1", "/data", None) == "found 5f"
    with pytest.raises(StoreForeign, match="belongs to broker 'broker-a', not 'broker-b'"):
        judge(FULL, "broker-b/1", "/data", None)
