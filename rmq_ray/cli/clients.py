"""``client list | describe``: the consumers that are connected, and what one of them does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from rmq_ray.cli import output
from rmq_ray.cli.context import Options, pass_options, told

COLUMNS = ["group", "client_id", "address", "language", "brokers"]


@click.group()
def client() -> None:
    """Connected consumers: list, describe."""


@client.command("list")
@click.option("--group", "only", default=None, help="Only this consumer group.")
@click.option("--system", is_flag=True, help="Also the system's own groups.")
@pass_options
@told
def list_clients(options: Options, only: str | None, system: bool) -> None:
    """Consumers that run now, a line for each group that a client consumes with."""
    groups = [only] if only is not None else sorted(options.admin.groups(system=system))
    output.rows(
        [row for group in groups for row in _of_group(options, group)], COLUMNS, options.style
    )


@client.command()
@click.argument("group")
@click.argument("client_id")
@pass_options
@told
def describe(options: Options, group: str, client_id: str) -> None:
    """What the consumer CLIENT_ID of GROUP says of itself: subscriptions, queues, what waits
    in it.
    """
    output.record(options.admin.running_info(group, client_id), options.style)


def _of_group(options: Options, group: str) -> Iterator[dict[str, Any]]:
    """Once for each client, with the brokers that it is connected to."""
    found = options.admin.group_clients(group)
    for client_id in dict.fromkeys(row["client_id"] for row in found):
        mine = [row for row in found if row["client_id"] == client_id]
        yield {
            "group": group,
            **{key: mine[0][key] for key in COLUMNS[1:4]},
            "brokers": sorted(row["broker"] for row in mine),
        }
