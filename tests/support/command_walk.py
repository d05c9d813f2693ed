"""Calls every command of the command line in this process, once with what it needs alone and once
more with each of its options, and prints what each came to. An import of Ray is refused until the
command has asked which Ray is meant; those that were tried stand with the command.

    python -m tests.support.command_walk      in an empty directory, which it fills

A value is made from the type of its parameter, or by its name where the type says too little.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

import click
from click.testing import CliRunner

from rmq_ray.cli.base import ray_head
from rmq_ray.cli.base.context import Options
from rmq_ray.cli.main import main

KEPT_OUT = ("ray", "pyspark")
ADDRESS = "127.0.0.1:1"
FILE = "rmq.toml"
TOPOLOGY = """[[brokers]]
name = "broker-a"
store = { path = "broker-a" }
"""
BY_NAME = {
    "changes": "flushDiskType=SYNC_FLUSH",
    "to": "first",
    "target": "billing:bill",
    "address": ADDRESS,
    "name_servers": ADDRESS,
    "config": FILE,
    "file": FILE,
    "p": "6",
    "s": "now",
    "properties": "name=value",
}


class Reached(Exception):
    """The command asked which Ray is meant."""


class Border:
    """A finder in front of all others: notes and refuses what must not be imported."""

    def __init__(self) -> None:
        self.tried: list[str] = []

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Of ``sys.meta_path``."""
        if name.partition(".")[0] in KEPT_OUT:
            self.tried.append(name)
            raise ImportError(f"{name} is imported before its Ray is known")
        return None


def leaves(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands that are no groups, mqadmin's names among them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


def value(parameter: click.Parameter) -> str:
    """Something that its type takes."""
    kind = parameter.type
    if parameter.name in BY_NAME:
        return BY_NAME[parameter.name]
    if isinstance(kind, click.Choice):
        return str(kind.choices[0])
    if isinstance(kind, click.types._NumberRangeBase):
        return str(kind.min or 1)
    if isinstance(kind, click.Path):
        return "." if kind.dir_okay else FILE
    return "1"


def calls(command: click.Command) -> Iterator[list[str]]:
    """Arguments: the least, then with one option more, each in its turn."""
    options = [one for one in command.params if isinstance(one, click.Option)]
    least = [text for option in options if option.required for text in given(option)]
    arguments = [
        value(one) for one in command.params if isinstance(one, click.Argument) and one.required
    ]
    yield [*least, *arguments]
    for option in options:
        if not option.required:
            yield [*least, *given(option), *arguments]


def given(option: click.Option) -> Sequence[str]:
    """An option and its value."""
    name = max(option.opts, key=len)
    return [name] if option.is_flag else [f"{name}={value(option)}"]


def outcome(path: Sequence[str], arguments: Sequence[str]) -> str:
    """``reached``, the exit code, or ``raised`` with the error that no command should end with."""
    done = CliRunner().invoke(main, ["-y", *path, *arguments])
    if done.exception is None or isinstance(done.exception, SystemExit):
        return f"{done.exit_code} {done.output[-300:] if done.exit_code else ''}".strip()
    return "reached" if isinstance(done.exception, Reached) else f"raised {done.exception!r}"


def walk() -> list[dict[str, object]]:
    """A row for each call."""
    border = Border()
    sys.meta_path.insert(0, border)
    Path(FILE).write_text(TOPOLOGY)
    Path("billing.py").write_text("import ray\n")
    rows = []
    for path, command in leaves(main):
        for arguments in calls(command):
            border.tried.clear()
            ended = outcome(path, arguments)
            tried = sorted({*border.tried})
            rows.append({"path": path, "arguments": arguments, "outcome": ended, "imported": tried})
    return rows


def refuse(*_: object) -> str:
    """In the place of what asks which Ray is meant, or would start one."""
    raise Reached


if __name__ == "__main__":
    Options.meant_ray = refuse  # type: ignore[method-assign]
    ray_head.start = refuse  # type: ignore[assignment]
    ray_head.find = lambda *_: ADDRESS
    print(json.dumps(walk()))
