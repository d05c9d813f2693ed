"""``topic list | create | alter | describe | delete``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from rmq_ray.cli.base import output
from rmq_ray.cli.base.context import Options, pass_options, told
from rmq_ray.cli.shell.completion import topic_names
from rmq_ray.cli.shell.watch import watched
from rmq_ray.client.admin.admin import QUEUES_MAX
from rmq_ray.model.topics import BOUND_MAX, RETENTION_HOURS_MAX

_RETENTION = click.option(
    "--retention",
    default=None,
    metavar="HOURS",
    type=click.IntRange(0, RETENTION_HOURS_MAX),
    help="Older messages are not handed out; 0 = as long as the store keeps its log.",
)


def _bounds(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of bounded topics."""
    command = click.option(
        "--slots-group",
        default=None,
        help="What this group has not acknowledged counts; '' = the slowest group.",
    )(command)
    command = click.option(
        "--slot-bytes",
        default=None,
        type=click.IntRange(0, BOUND_MAX),
        help="Senders wait while more bytes of a broker are not acknowledged; 0 = unbounded.",
    )(command)
    return click.option(
        "--slots",
        default=None,
        type=click.IntRange(0, BOUND_MAX),
        help="Senders wait while more messages of a broker are not acknowledged; 0 = unbounded.",
    )(command)


@click.group()
def topic() -> None:
    """Topics: list, create, alter, describe, delete."""


@topic.command("list")
@click.option(
    "--system", is_flag=True, help="Also the system's own topics, retry and dead-letter topics."
)
@pass_options
@watched
@told
def list_topics(options: Options, system: bool) -> None:
    """Names of all topics."""
    found = [{"topic": name} for name in options.admin.topics(system=system)]
    output.rows(found, ["topic"], options.style)


@topic.command()
@click.argument("name")
@click.option(
    "--queues",
    default=4,
    show_default=True,
    type=click.IntRange(1, QUEUES_MAX),
    help="Queues on each broker.",
)
@click.option(
    "--perm",
    "permission",
    default="6",
    show_default=True,
    type=click.Choice(["2", "4", "6"]),
    help="2 = write, 4 = read, 6 = both.",
)
@_RETENTION
@_bounds
@pass_options
@told
def create(
    options: Options,
    /,
    name: str,
    queues: int,
    permission: str,
    retention: int | None,
    **bounds: Any,
) -> None:
    """Create a topic on every broker, or change it."""
    own = _given(retention_hours=retention, **bounds)
    options.admin.create_topic(name, queues=queues, permission=int(permission), **own)
    made = {"topic": name, "queues": queues, "perm": int(permission)}
    output.record(made | own, options.style)


@topic.command()
@click.argument("name", shell_complete=topic_names)
@click.option(
    "--queues", default=None, type=click.IntRange(1, QUEUES_MAX), help="Queues on each broker."
)
@click.option(
    "--perm",
    "permission",
    default=None,
    type=click.Choice(["2", "4", "6"]),
    help="2 = write, 4 = read, 6 = both.",
)
@click.option("--force", is_flag=True, help="Fewer queues, whatever the others still hold.")
@_RETENTION
@_bounds
@pass_options
@told
def alter(
    options: Options,
    /,
    name: str,
    queues: int | None,
    permission: str | None,
    force: bool,
    retention: int | None,
    **bounds: Any,
) -> None:
    """Change what is given of a topic, on every broker that has it, and leave the rest.

    With fewer queues the others take no more messages, and can be read until all is consumed that
    they hold: say it again then, or --force.
    """
    perm = None if permission is None else int(permission)
    own = _given(retention_hours=retention, **bounds)
    changed = _given(queues=queues, perm=perm) | own
    if not changed:
        raise click.UsageError(
            "say what to change: --queues, --perm, --retention, --slots, --slot-bytes or "
            "--slots-group"
        )
    rest = options.admin.alter_topic(name, queues=queues, permission=perm, force=force, **own)
    output.record({"topic": name, **changed}, options.style)
    for row in rest:
        click.echo(
            f"queue {row['queue']} of broker {row['broker']} holds {row['messages']} messages that "
            f"are not consumed: it can be read until then; say it again, or --force",
            err=True,
        )


@topic.command()
@click.argument("name", shell_complete=topic_names)
@pass_options
@watched
@told
def describe(options: Options, name: str) -> None:
    """Queues of a topic: where they are, what they hold, and how many hours a message stays where
    the topic keeps less than the store.
    """
    output.rows(
        options.admin.describe_topic(name),
        ["broker", "queue", "min_offset", "max_offset", "messages", "retention_hours"],
        options.style,
    )


@topic.command()
@click.argument("name", shell_complete=topic_names)
@pass_options
@told
def delete(options: Options, name: str) -> None:
    """Delete a topic; its messages become unreadable at once, its groups' positions go."""
    options.confirm(f"Delete topic {name} and all that it holds?")
    gone = options.admin.delete_topic(name)
    output.record({"topic": name, "state": "deleted", **gone}, options.style)


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
