"""mqadmin's names and options run commands of ours; those commands are watched, not run."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from rmq_ray.cli.main import main
from rmq_ray.cli.shell.mqadmin import CLOSEST, EQUALS, OR


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """(path of the command, its arguments) of each command that would run."""
    found: list[tuple[str, dict[str, Any]]] = []

    def invoke(self: click.Command, ctx: click.Context) -> None:
        path = ctx.command_path.split()
        found.append((" ".join(path[path.index("main") + 1 :]), dict(ctx.params)))

    for name in {way.split()[0] for ours, _ in EQUALS.values() for way in ours.split(OR)}:
        command = main.get_command(click.Context(main), name)
        leaves = command.commands.values() if isinstance(command, click.Group) else [command]
        for leaf in leaves:
            assert leaf is not None
            inner = leaf.commands.values() if isinstance(leaf, click.Group) else [leaf]
            for one in inner:
                monkeypatch.setattr(one, "invoke", invoke.__get__(one))
    return found


@pytest.mark.parametrize(
    ("line", "ours", "given"),
    [
        ("topicList", "topic list", {"system": True}),
        ("updateTopic -t orders", "topic create", {"name": "orders", "queues": 8}),
        (
            "updateTopic -n localhost:9876 -t orders -r 4 -w 4 -p 6 -c DefaultCluster",
            "topic create",
            {"name": "orders", "queues": 4, "permission": "6"},
        ),
        ("deleteTopic -t orders -c DefaultCluster", "topic delete", {"name": "orders"}),
        ("consumerProgress -g billing", "group lag", {"name": "billing"}),
        ("consumerProgress", "group list", {}),
        ("consumerStatus -g billing", "group describe", {"name": "billing"}),
        ("consumerStatus -g billing -i c1", "client describe", {"client_id": "c1"}),
        ("queryMsgById -i 0A00", "message get", {"message_id": "0A00"}),
        ("queryMsgByKey -t orders -k o-1", "message find", {"topic": "orders", "key": "o-1"}),
        (
            "resetOffsetByTime -g billing -t orders -s now -f true",
            "group seek",
            {"name": "billing", "topic": "orders", "execute": True},
        ),
        ("wipeWritePerm -b broker-a", "broker drain", {"name": "broker-a"}),
        ("mqadmin topicList", "topic list", {"system": True}),
    ],
)
def test_what_an_operator_of_rocketmq_types_runs_ours(
    ran: list[tuple[str, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    ours: str,
    given: dict[str, Any],
) -> None:
    monkeypatch.setattr("rmq_ray.cli.shell.mqadmin._check_name_servers", lambda *_given: None)
    done = run(*line.split())
    assert done.exit_code == 0, done.output
    [(path, params)] = ran
    assert path == ours and given.items() <= params.items(), params


@pytest.mark.parametrize("name", EQUALS)
def test_every_name_stands_for_a_command_that_takes_what_it_is_given(
    ran: list[tuple[str, dict[str, Any]]], name: str
) -> None:
    _, takes = EQUALS[name]
    values = {"force": "true", "offline": "true", "brokerName": "broker-a", "perm": "6"}
    values |= dict.fromkeys(("readQueueNums", "writeQueueNums", "interval"), "4")
    line = [
        word
        for pair in takes.split()
        for word in (f"--{pair[2:]}", values.get(pair[2:], "some-name"))
    ]
    done = run(name, *line)
    assert done.exit_code == 0 and len(ran) == 1, done.output


@pytest.mark.parametrize("ours", CLOSEST)
def test_a_name_without_an_equal_says_what_is_closest(ours: str) -> None:
    for name in CLOSEST[ours].split():
        done = run(name, "-t", "orders", "-n", "h:1")
        assert done.exit_code == 2 and f"closest is `rmq-ray {ours}`" in done.output
    assert run(*ours.split()[:2] if "--" not in ours else ours.split()[:1], "-h").exit_code == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("updateTopic -t orders -r 4 -w 8", "give the same number"),
        ("updateTopic -r 4 -w 4", "Missing option '-t'"),
        ("queryMsgById -i 1 -g billing", "Apache's own mqadmin works"),
        ("topicLists", "No such command 'topicLists'"),
    ],
)
def test_what_cannot_run_says_what_to_type(line: str, said: str) -> None:
    done = run(*line.split())
    assert done.exit_code in (1, 2) and said in " ".join(done.output.split())
