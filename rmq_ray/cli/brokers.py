"""``broker list``."""

from __future__ import annotations

import click

from rmq_ray.cli import output
from rmq_ray.cli.context import Options, pass_options, told


@click.group()
def broker() -> None:
    """Brokers as the name servers know them."""


@broker.command("list")
@pass_options
@told
def list_brokers(options: Options) -> None:
    """Every broker with its addresses; id 0 is the master."""
    found = [
        {"broker": data.broker_name, "id": broker_id, "address": address, "cluster": data.cluster}
        for data in options.admin.brokers()
        for broker_id, address in sorted(data.addresses.items())
    ]
    output.rows(found, ["broker", "id", "address", "cluster"], options.style)
