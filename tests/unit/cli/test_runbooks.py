"""The runbooks: their commands are commands of ours, their alerts are rules of ours."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from rmq_ray.cli.main import main
from tests.support.pages import all_blocks

ROOT = Path(__file__).resolve().parents[3]
PAGE = "docs/runbooks.md"
COMMANDS = [line for _, text in all_blocks(PAGE) for line in text.splitlines()]
COMMANDS += [
    line
    for language, text in all_blocks("docs/tutorial.md")
    for line in text.splitlines()
    if language == ""
]


def parsed(words: list[str]) -> list[str]:
    """The names of the command that is meant; ``click.UsageError`` for what is none of ours."""
    command: click.Command = main
    found: list[str] = []
    parent: click.Context | None = None
    while True:
        context = command.make_context(command.name, list(words), parent=parent)
        found.append(str(command.name))
        if not isinstance(command, click.Group):
            return found
        rest = [*context._protected_args, *context.args]
        name, next_command, words = command.resolve_command(context, rest)
        assert next_command is not None, name
        command, parent = next_command, context


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_is_understood(line: str) -> None:
    program, *words = shlex.split(line)
    assert program == "rmq-ray" and len(parsed(words)) >= 2


def test_a_command_that_is_none_is_seen() -> None:
    for line in ("group lag", "dlq resend billing --speed 3", "group heal billing"):
        with pytest.raises(click.UsageError):
            parsed(shlex.split(line))


def test_alerts_are_rules() -> None:
    rules = yaml.safe_load((ROOT / "deploy/monitoring/alerts.yml").read_text())["groups"][0]
    known = {rule["alert"] for rule in rules["rules"]}
    named = set(re.findall(r"\*\*(RmqRay\w+)\*\*", (ROOT / PAGE).read_text()))
    assert len(named) >= 5 and named <= known, named - known
