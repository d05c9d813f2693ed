"""``node drain``: before a node of Ray goes."""

from __future__ import annotations

import click

from rmq_ray.cli.base import output
from rmq_ray.cli.base.context import Options, pass_options, told
from rmq_ray.cli.shell.progress import progress
from rmq_ray.clock import SYSTEM_CLOCK

WITHIN_S, WITHIN_S_MIN = 25.0, 1.0
"""The default of ``Cluster.drain_node``, which is not imported for a help text."""


@click.group()
def node() -> None:
    """Nodes of Ray that brokers and workers run on."""


@node.command(short_help="Take brokers and workers off a node that is about to go.")
@click.argument("node_id", metavar="[NODE]", required=False)
@click.option(
    "--within",
    "within_s",
    default=WITHIN_S,
    show_default=True,
    type=click.FloatRange(WITHIN_S_MIN, 3_600),
    help="Seconds after which this command ends, whatever is left.",
)
@pass_options
@told
def drain(options: Options, node_id: str | None, within_s: float) -> None:
    """Take everything of the cluster off NODE, Ray's id or address of it, before it goes; without
    NODE off the one that this machine is. Masters hand over to a slave, brokers flush and stop,
    workers of deployed groups finish what they hold and go on elsewhere. Once the node is gone its
    brokers start by themselves where their disk is next. For a notice of pre-emption and a pod's
    preStop. Exit code 1 where something did not end in time; a second call completes it.
    """
    begun_ms = SYSTEM_CLOCK.monotonic_ms()
    mq = options.connect()
    left_s = within_s - (SYSTEM_CLOCK.monotonic_ms() - begun_ms) / 1000
    with progress("draining the node"):
        found = mq.drain_node(node_id, within_s=max(WITHIN_S_MIN, left_s))
    if not found:
        where = "this node" if node_id is None else node_id
        click.echo(f"nothing of cluster {options.cluster!r} runs on {where}", err=True)
    if found or options.style == "json":
        output.rows(found, ["part", "state", "error"], options.style)
    if any(row["error"] for row in found):
        raise click.exceptions.Exit(1)
