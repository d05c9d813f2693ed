"""What is said to a group and to the controller before a node goes, how much time each has, and
what becomes of it in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from rmq_ray.actors import gateway, placement
from rmq_ray.actors.control import node_drain
from rmq_ray.actors.control.node_drain import drain_node
from rmq_ray.cli.base.context import Options
from rmq_ray.cli.main import main
from rmq_ray.clock import ManualClock
from rmq_ray.cluster import Cluster
from rmq_ray.errors import ClusterError, ConfigError

FLEET = "c/workers/billing"


class Ray:
    """``fleet``: what a group answers; ``copies``: what the controller does; ``told``: what they
    were called with; ``restarts``: how often the controller dies first.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fleet: Any = {"group": "billing", "moved": 0, "ended": True}
        self.copies: list[dict[str, Any]] = []
        self.told: list[tuple[Any, ...]] = []
        self.restarts = 0
        self.clock = ManualClock()
        monkeypatch.setattr(node_drain, "SYSTEM_CLOCK", self.clock)
        monkeypatch.setattr(gateway, "controller", lambda _cluster: "controller")
        monkeypatch.setattr(gateway, "fleets", lambda _cluster: [FLEET, "c/workers/gone"])
        monkeypatch.setattr(gateway, "find", {FLEET: "fleet"}.get)
        monkeypatch.setattr(gateway, "my_node", lambda: "here")
        monkeypatch.setattr(gateway, "call_each", self.call_each)
        monkeypatch.setattr(gateway, "call", self.call)
        addresses = {"here": "10.0.0.1", "there": "10.0.0.2", "beside": "10.0.0.1"}
        nodes = [placement.Node(at, frozenset(), id=node) for node, at in addresses.items()]
        monkeypatch.setattr(gateway, "nodes", lambda: nodes)

    def call_each(
        self, found: Mapping[str, Any], method: str, node: str, share: float, timeout_s: float
    ) -> dict[str, Any]:
        self.told.append((method, node, share, timeout_s))
        return dict.fromkeys(found, self.fleet)

    def call(
        self, handle: str, method: str, node: str, within_ms: float, timeout_s: float
    ) -> list[dict[str, Any]]:
        self.told.append((method, node, within_ms / 1000, timeout_s))
        if self.restarts:
            self.restarts -= 1
            raise ClusterError("actor call leave_node failed because the actor died or restarts")
        return self.copies


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    return Ray(monkeypatch)


def copy(was: str, master: int | None, error: str | None = None) -> dict[str, Any]:
    return {"copy": "broker-a", "was": was, "master": master, "error": error}


def test_workers_have_half_of_the_time_and_brokers_what_is_left(ray: Ray) -> None:
    assert drain_node("c", None, 20.0) == []
    (_, node, share, wait), (method, there, within, waits) = ray.told
    assert (node, there, method) == ("here", "here", "leave_node")
    assert share == 9.0 and wait == 10.0
    assert 18.0 < within <= 19.0 and within < waits <= 20.0


@pytest.mark.parametrize(("was", "master", "state"), [
    ("running", None, "stopped"),
    ("running", 1, "stopped, replica 1 is master"),
    ("stopped", 2, "was stopped, replica 2 is master"),
])  # fmt: skip
def test_what_became_of_a_copy_is_told(ray: Ray, was: str, master: int | None, state: str) -> None:
    ray.copies = [copy(was, master)]
    assert drain_node("c", "there", 5.0) == [{"part": "broker-a", "state": state, "error": None}]
    assert {told[1] for told in ray.told} == {"there"}


def test_what_did_not_end_in_time_is_told_and_keeps_nothing_else(ray: Ray) -> None:
    ray.copies = [copy("running", None, "did not stop in time")]
    ray.fleet = {"group": "billing", "moved": 2, "ended": False}
    workers, broker = drain_node("c", "10.0.0.2", 5.0)
    assert workers["part"] == "workers of billing" and workers["state"] == "2 moved"
    assert "come again" in workers["error"] and broker["state"] == "not stopped"
    ray.fleet = ClusterError("no answer", FLEET)
    workers, broker = drain_node("c", "10.0.0.2", 5.0)
    assert (workers["state"], workers["error"]) == ("not moved", "no answer")
    assert broker["error"] == "did not stop in time"


def test_what_looking_for_groups_takes_is_taken_from_their_half(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str) -> str | None:
        ray.clock.advance_ms(1_500)
        return {FLEET: "fleet"}.get(name)

    monkeypatch.setattr(gateway, "find", find)
    drain_node("c", None, 20.0)
    assert [told[2:] for told in ray.told] == [(6.0, 7.0), (16.0, 17.0)]


@pytest.mark.parametrize("within_s", [-1.0, 0.0, float("nan"), float("inf"), 1e9])
def test_a_time_that_is_none_is_refused_before_anything_is_done(ray: Ray, within_s: float) -> None:
    with pytest.raises(ConfigError, match="within_s must be 1 to 3600 seconds"):
        drain_node("c", "there", within_s)
    assert ray.told == []


def test_who_starts_what_was_stopped_says_that_drained_nodes_stay(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[dict[str, Any], str]] = []

    def call_each(found: Mapping[str, Any], method: str, timeout_s: float) -> None:
        told.append((dict(found), method))

    monkeypatch.setattr(gateway, "call_each", call_each)
    monkeypatch.setattr(gateway, "call", lambda *_arguments, **_options: ["c/broker-a/0"])
    assert Cluster("c").start_stopped() == ["c/broker-a/0"]
    assert told == [({FLEET: "fleet"}, "keep_nodes")]


def test_a_controller_that_is_started_again_is_asked_again_while_there_is_time(ray: Ray) -> None:
    ray.copies, ray.restarts = [copy("running", None)], 2
    assert [row["state"] for row in drain_node("c", "there", 5.0)] == ["stopped"]
    assert [told[0] for told in ray.told] == ["leave_node"] * 4


def test_what_workers_did_is_told_also_where_the_controller_does_not_come_back(ray: Ray) -> None:
    ray.fleet, ray.restarts = {"group": "billing", "moved": 2, "ended": True}, 1_000
    workers, brokers = drain_node("c", "there", 5.0)
    assert (workers["state"], brokers["part"]) == ("2 moved", "brokers")
    assert brokers["state"] == "not stopped" and "died or restarts" in brokers["error"]


def test_a_node_that_is_none_and_an_address_of_two_are_refused_before_anything_is_done(
    ray: Ray,
) -> None:
    for named, found in (("elsewhere", "0 living"), ("10.0.0.1", "2 living")):
        with pytest.raises(ConfigError, match=rf"{found} nodes .*10\.0\.0\.2 \(there\)"):
            drain_node("c", named, 5.0)
    assert ray.told == []


def test_by_ray_client_which_is_on_no_node_the_node_must_be_named(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "by_ray_client", lambda: True)
    with pytest.raises(ConfigError, match="name the node: .*ray://"):
        drain_node("c", None, 5.0)
    assert ray.told == []
    drain_node("c", "there", 5.0)
    assert {told[1] for told in ray.told} == {"there"}


def test_the_command_says_that_nothing_runs_there_and_fails_for_what_did_not_end(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Options, "connect", lambda _options: Cluster("c"))
    words = ["--cluster", "c", "node", "drain", "--within", "5"]
    nothing = CliRunner().invoke(main, words)
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "nothing of cluster 'c' runs on this node" in nothing.stderr
    assert CliRunner().invoke(main, [*words, "--format", "json"]).stdout.strip() == "[]"
    ray.copies = [copy("running", 1)]
    moved = CliRunner().invoke(main, [*words, "there"])
    assert moved.exit_code == 0 and "stopped, replica 1 is master" in moved.stdout
    ray.copies = [copy("running", None, "did not stop in time")]
    assert CliRunner().invoke(main, words).exit_code == 1
