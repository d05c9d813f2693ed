"""``rmq-ray``: noun and verb, ``rmq-ray topic create orders --queues 4``. Exit code 0 fine, 1
failed, 2 wrong usage.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from rmq_ray.cli import (
    bench,
    brokers,
    clients,
    console,
    dead_letters,
    deploying,
    doctor,
    groups,
    messages,
    planning,
    running,
    stores,
    topics,
)
from rmq_ray.cli.context import Options
from rmq_ray.cli.output import FORMATS
from rmq_ray.config import DEFAULT_CLUSTER

WITH_VALUE = ("--address", "--cluster", "--format", "--timeout")
WITHOUT_VALUE = ("-y", "--yes")


class Anywhere(click.Group):
    """A group whose own options may also stand behind the verb: ``rmq-ray topic list --format
    json``. Nothing behind ``--`` is touched.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move our options to the front, in their order."""
        return super().parse_args(ctx, hoisted(args))


def hoisted(arguments: Sequence[str]) -> list[str]:
    """
    >>> hoisted(["topic", "list", "--format", "json", "-y", "--", "-y"])
    ['--format', 'json', '-y', 'topic', 'list', '--', '-y']
    """
    front: list[str] = []
    rest: list[str] = []
    at = 0
    while at < len(arguments):  # ends: at rises
        argument = arguments[at]
        if argument == "--":
            break
        width = 2 if argument in WITH_VALUE else 1
        own = (
            argument in WITH_VALUE
            or argument in WITHOUT_VALUE
            or argument.startswith(tuple(f"{name}=" for name in WITH_VALUE))
        )
        (front if own else rest).extend(arguments[at : at + width])
        at += width
    return [*front, *rest, *arguments[at:]]


@click.group(
    cls=Anywhere, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.option(
    "--address",
    default="auto",
    show_default=True,
    help="Ray cluster to join; auto = the one on this machine.",
)
@click.option(
    "--cluster", default=DEFAULT_CLUSTER, show_default=True, help="Name of the message cluster."
)
@click.option(
    "--format",
    "style",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="How results are printed.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.001, 86_400),
    default=30.0,
    show_default=True,
    help="Seconds to wait for an answer.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before deleting.")
@click.version_option(package_name="rmq_ray")
@click.pass_context
def main(
    ctx: click.Context, address: str, cluster: str, style: str, timeout_s: float, yes: bool
) -> None:
    """The durable message queue inside a Ray cluster."""
    ctx.obj = Options(address, cluster, style, timeout_s, yes)


for command in (
    planning.plan,
    running.up,
    running.down,
    running.status,
    running.health,
    doctor.doctor,
    topics.topic,
    groups.group,
    messages.produce,
    messages.consume,
    messages.message,
    dead_letters.dlq,
    deploying.run,
    deploying.workers,
    brokers.broker,
    clients.client,
    console.console,
    stores.store,
    bench.bench,
):
    main.add_command(command)

if __name__ == "__main__":
    main()
