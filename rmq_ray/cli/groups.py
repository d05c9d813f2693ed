"""``group list | lag``."""

from __future__ import annotations

import click

from rmq_ray.cli import output
from rmq_ray.cli.context import Options, pass_options, told


@click.group()
def group() -> None:
    """Consumer groups: list, lag."""


@group.command("list")
@pass_options
@told
def list_groups(options: Options) -> None:
    """Names of all groups that the brokers know."""
    output.rows([{"group": name} for name in options.connect().admin.groups()], ["group"], options.style)


@group.command()
@click.argument("name")
@pass_options
@told
def lag(options: Options, name: str) -> None:
    """How far a group is behind, a line each queue."""
    output.rows(options.connect().admin.group_lag(name), ["topic", "broker", "queue", "max_offset", "committed", "lag"], options.style)
