"""``console`` runs commands one after the other, and ``client`` shows each consumer once; the
cluster is a fragment that is told what to say.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rmq_ray.cli import context
from rmq_ray.cli.main import main


class Fragment:
    """What the commands ask of an admin."""

    joined = 0

    def topics(self, *, system: bool) -> list[str]:
        return ["orders", "TBW102"] if system else ["orders"]

    def groups(self, *, system: bool) -> list[str]:
        return ["billing", "idle"]

    def group_clients(self, group: str) -> list[dict[str, Any]]:
        one = {"client_id": "c1@h", "address": "h:5", "language": "PYTHON"}
        return (
            [{"broker": name, **one} for name in ("broker-b", "broker-a")]
            if group == "billing"
            else []
        )

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


def test_a_console_runs_line_after_line_with_its_own_options(cluster: Fragment) -> None:
    done = run(
        "--format",
        "json",
        "console",
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
    done = run("console", text="topic nonsense\ntopic 'list\ntopic list\n")
    assert (
        done.exit_code == 1
        and "No such command 'nonsense'" in done.stderr
        and "No closing quotation: topic 'list" in done.stderr
    )
    assert done.stdout.endswith("orders\n")
    assert (
        run("console", text="topic 'list\n").exit_code == 1
        and run("console", text="\n").exit_code == 0
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
