"""``topic list | create | describe | delete``."""

from __future__ import annotations

import click

from rmq_ray.cli import output
from rmq_ray.cli.context import Options, pass_options, told
from rmq_ray.client.admin.admin import QUEUES_MAX


@click.group()
def topic() -> None:
    """Topics: list, create, describe, delete."""


@topic.command("list")
@click.option(
    "--system", is_flag=True, help="Also the system's own topics, retry and dead-letter topics."
)
@pass_options
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
@pass_options
@told
def create(options: Options, name: str, queues: int, permission: str) -> None:
    """Create a topic on every broker, or change it."""
    options.admin.create_topic(name, queues=queues, permission=int(permission))
    output.record({"topic": name, "queues": queues, "perm": int(permission)}, options.style)


@topic.command()
@click.argument("name")
@pass_options
@told
def describe(options: Options, name: str) -> None:
    """Queues of a topic: where they are and what they hold."""
    output.rows(
        options.admin.describe_topic(name),
        ["broker", "queue", "min_offset", "max_offset", "messages"],
        options.style,
    )


@topic.command()
@click.argument("name")
@pass_options
@told
def delete(options: Options, name: str) -> None:
    """Delete a topic; its messages become unreadable at once."""
    options.confirm(f"Delete topic {name} and all that it holds?")
    options.admin.delete_topic(name)
    output.record({"topic": name, "state": "deleted"}, options.style)
