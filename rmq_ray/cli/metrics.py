"""``metrics``: where Prometheus scrapes the cluster."""

from __future__ import annotations

import click

from rmq_ray.cli import output
from rmq_ray.cli.context import Options, pass_options, told


@click.command(short_help="Where Prometheus scrapes the cluster; starts the exporter.")
@click.option("--host", default="", help="What it listens on.  [default: the node's address]")
@click.option(
    "--port",
    default=5557,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="0 = any free one. An exporter that runs keeps its own.",
)
@click.option("--stop", is_flag=True, help="End the exporter.")
@pass_options
@told
def metrics(options: Options, host: str, port: int, stop: bool) -> None:
    """Start the cluster's exporter where none runs, and print the address to scrape."""
    mq = options.connect()
    if stop:
        from rmq_ray.actors import exporter

        was = exporter.stop(mq.name)
        output.record({"exporter": "stopped" if was else "was not running"}, options.style)
        return
    address = mq.metrics(host=host, port=port)
    if options.style == "json":
        output.record({"address": address}, options.style)
    else:
        click.echo(address)
