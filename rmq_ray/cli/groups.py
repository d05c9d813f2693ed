"""``group list | describe | lag | seek | delete``."""

from __future__ import annotations

from datetime import datetime

import click

from rmq_ray.cli import output
from rmq_ray.cli.context import Options, pass_options, told


@click.group()
def group() -> None:
    """Consumer groups: list, describe, lag, seek, delete."""


@group.command("list")
@click.option("--system", is_flag=True, help="Also the system's own groups.")
@pass_options
@told
def list_groups(options: Options, system: bool) -> None:
    """Names of all groups that the brokers know."""
    output.rows([{"group": name} for name in options.admin.groups(system=system)], ["group"], options.style)


@group.command()
@click.argument("name")
@pass_options
@told
def describe(options: Options, name: str) -> None:
    """Running consumers of a group, a line for each broker that they are connected to; who subscribes differently, if they do."""
    found = options.admin.group_clients(name)
    output.rows(found, ["broker", "client_id", "address", "language"], options.style)
    if not found:
        click.echo(f"nobody consumes with {name} now", err=True)
    for conflict in options.admin.group_conflicts(name) if found else ():
        click.echo(f"subscribed differently: {conflict['topic']} as {conflict['expression']} by {', '.join(conflict['client_ids'])}", err=True)


@group.command()
@click.argument("name")
@pass_options
@told
def lag(options: Options, name: str) -> None:
    """How far a group is behind, a line each queue."""
    output.rows(options.admin.group_lag(name), ["topic", "broker", "queue", "max_offset", "committed", "lag"], options.style)


@group.command()
@click.argument("name")
@click.argument("topic")
@click.option("--to", required=True, metavar="first|last|TIME", help="TIME like 2024-05-01T12:00:00 (local, or with +02:00), or ms since the epoch.")
@click.option("--execute", is_flag=True, help="Move it; without this only what would happen is shown.")
@pass_options
@told
def seek(options: Options, name: str, topic: str, to: str, execute: bool) -> None:
    """Move where a group goes on in a topic. A dry run unless --execute; the group's consumers must be stopped."""
    target = _target(to)
    rows = options.admin.seek_group(name, topic, target, execute=execute)
    output.rows(rows, ["broker", "queue", "committed", "target", "moved_by"], options.style)
    if not execute:
        click.echo("nothing was moved: say --execute to do it", err=True)


@group.command()
@click.argument("name")
@pass_options
@told
def delete(options: Options, name: str) -> None:
    """Forget a group and its positions; its consumers must be stopped."""
    options.confirm(f"Delete group {name} and its positions?")
    options.admin.delete_group(name)
    output.record({"group": name, "state": "deleted"}, options.style)


def _target(text: str) -> str | int:
    if text in ("first", "last"):
        return text
    if text.isdigit():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither first, last, ms since the epoch nor a time like 2024-05-01T12:00:00", param_hint="--to") from None
