"""``rmq-ray``: noun and verb, ``rmq-ray topic create orders --queues 4``. Exit code 0 fine, 1 failed, 2 wrong usage."""

from __future__ import annotations

import click

from rmq_ray.cli import bench, brokers, doctor, groups, messages, running, stores, topics
from rmq_ray.cli.context import Options
from rmq_ray.cli.output import FORMATS
from rmq_ray.config import DEFAULT_CLUSTER


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--address", default="auto", show_default=True, help="Ray cluster to join; auto = the one on this machine.")
@click.option("--cluster", default=DEFAULT_CLUSTER, show_default=True, help="Name of the message cluster.")
@click.option("--format", "style", type=click.Choice(FORMATS), default="table", show_default=True, help="How results are printed.")
@click.option("--timeout", "timeout_s", type=float, default=30.0, show_default=True, help="Seconds to wait for an answer.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before deleting.")
@click.version_option(package_name="rmq_ray")
@click.pass_context
def main(ctx: click.Context, address: str, cluster: str, style: str, timeout_s: float, yes: bool) -> None:
    """The durable message queue inside a Ray cluster."""
    ctx.obj = Options(address, cluster, style, timeout_s, yes)


for command in (
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
    brokers.broker,
    stores.store,
    bench.bench,
):
    main.add_command(command)

if __name__ == "__main__":
    main()
