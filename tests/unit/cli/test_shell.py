"""``shell`` runs commands one after the other, and ``client`` shows each consumer once; the
cluster is a fragment that is told what to say.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rmq_ray.cli.base import context
from rmq_ray.cli.main import main


class Fragment:
    """What the commands ask of an admin."""

    joined = 0
    waits: dict[str, dict[str, int]] = {"delayed": {}, "uncommitted": {}}

    def topics(self, *, system: bool) -> list[str]:
        return ["orders", "TBW102"] if system else ["orders"]

    def groups(self, *, system: bool) -> list[str]:
        return ["billing", "idle"]

    def group_lag(self, group: str) -> list[dict[str, Any]]:
        return [{"topic": "orders", "broker": "broker-a", "queue": 0, "lag": 0}]

    def group_clients(self, group: str) -> list[dict[str, Any]]:
        one = {"client_id": "c1@h", "address": "h:5", "language": "PYTHON"}
        return (
            [{"broker": name, **one} for name in ("broker-b", "broker-a")]
            if group == "billing"
            else []
        )

    def group_locks(self, group: str) -> list[dict[str, Any]]:
        row = {"topic": "orders", "broker": "broker-a", "left": False}
        return [
            row | {"queue": 0, "holder": "c1@h", "ends_in_ms": 57_000},
            row | {"queue": 1, "holder": "killed@h", "ends_in_ms": 4_000, "left": True},
        ]

    def group_conflicts(self, group: str) -> list[dict[str, Any]]:
        return []

    def waiting(self) -> dict[str, dict[str, int]]:
        return self.waits

    def running_info(self, group: str, client_id: str) -> dict[str, Any]:
        return {"group": group, "client_id": client_id}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Fragment:
    fragment = Fragment()

    def connect(_self: context.Options) -> Fragment:
        fragment.joined += 1
        return fragment

    monkeypatch.setattr(context.Options, "connect", connect)
    monkeypatch.setattr(context.Options, "admin", property(lambda _self: fragment))
    return fragment


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=text)


def test_a_shell_runs_line_after_line_with_its_own_options(cluster: Fragment) -> None:
    done = run(
        "--format",
        "json",
        "shell",
        text=(
            "topic list\n\n# a comment\ntopic list --system --format table\nexit\ntopic nonsense\n"
        ),
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.partition("topic\n")[0]) == [
        {"topic": "orders"}
    ] and done.stdout.endswith("orders\nTBW102\n")
    assert cluster.joined == 1


def test_a_script_with_a_command_that_fails_goes_on_and_ends_with_1(cluster: Fragment) -> None:
    done = run("shell", text="topic nonsense\ntopic 'list\ntopic list\n")
    assert (
        done.exit_code == 1
        and "No such command 'nonsense'" in done.stderr
        and "No closing quotation: topic 'list" in done.stderr
    )
    assert done.stdout.endswith("orders\n")
    assert (
        run("shell", text="topic 'list\n").exit_code == 1 and run("shell", text="\n").exit_code == 0
    )


@pytest.mark.usefixtures("cluster")
def test_a_client_is_one_line_for_each_group_with_all_its_brokers() -> None:
    row = {
        "group": "billing",
        "client_id": "c1@h",
        "address": "h:5",
        "language": "PYTHON",
        "brokers": ["broker-a", "broker-b"],
    }
    assert json.loads(run("client", "list", "--format", "json").stdout) == [row]
    assert json.loads(run("client", "list", "--group", "idle", "--format", "json").stdout) == []
    assert (
        json.loads(run("client", "describe", "billing", "c1@h", "--format", "json").stdout)[
            "client_id"
        ]
        == "c1@h"
    )


@pytest.mark.usefixtures("cluster")
def test_a_group_is_described_with_the_locks_of_its_queues() -> None:
    lines = run("group", "describe", "billing").stdout.splitlines()
    assert [line.split() for line in lines[4:]] == [
        ["topic", "broker", "queue", "holder", "ends_in_ms", "left"],
        ["orders", "broker-a", "0", "c1@h", "57000", "False"],
        ["orders", "broker-a", "1", "killed@h", "4000", "True"],
    ]
    rows = json.loads(run("--format", "json", "group", "describe", "billing").stdout)
    assert [(row["broker"], row["client_id"], row["address"]) for row in rows] == [
        ("broker-b", "c1@h", "h:5"),
        ("broker-a", "c1@h", "h:5"),
        ("broker-a", "killed@h", None),
    ]
    assert [[lock["queue"] for lock in row["locks"]] for row in rows] == [[], [0], [1]]
    assert rows[2]["locks"] == [{"topic": "orders", "queue": 1, "ends_in_ms": 4_000, "left": True}]


def test_what_waits_for_a_group_stands_with_it(cluster: Fragment) -> None:
    delayed = {"%RETRY%billing": 2_000, "orders": 4, "refunds": 9}
    cluster.waits = {"delayed": delayed, "uncommitted": {"orders": 1}}
    rows = json.loads(run("--format", "json", "group", "list").stdout)
    assert rows == [{"group": "billing", "retries": 2_000}, {"group": "idle", "retries": 0}]
    said = "2000 messages that billing failed on wait for their retry\n"
    assert run("group", "describe", "billing").stderr == said
    told = run("group", "lag", "billing").stderr
    assert told.endswith(f"{said}orders: 4 delayed and 1 uncommitted messages are not in it yet\n")
    assert "refunds" not in told and "waits" not in run("group", "lag", "idle").stderr


def test_what_waits_is_unknown_where_a_broker_does_not_tell(cluster: Fragment) -> None:
    cluster.waits = {"uncommitted": {}}
    assert json.loads(run("--format", "json", "group", "list").stdout)[0]["retries"] is None
    said = "delayed messages: not every broker knows now how many there are\n"
    assert run("group", "lag", "billing").stderr.endswith(said)
