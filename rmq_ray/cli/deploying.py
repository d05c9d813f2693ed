"""``run module:consumer`` and ``workers status | scale | stop``: consumers written with
``@rmq.consumer``, started from a shell.

``run`` stays in the foreground and drains the group on Ctrl-C or SIGTERM; with ``--detach`` the
group outlives the command and ``workers`` finds it by its name.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

import click

import rmq_ray
from rmq_ray.cli.base import output
from rmq_ray.cli.base.context import Options, first_line, pass_options, told
from rmq_ray.cli.shell.watch import watched
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import ConfigError

LOOK_MS = 500


@click.command("run")
@click.argument("target", metavar="MODULE:CONSUMER")
@click.option(
    "--actors",
    default=1,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="How many consumer actors.",
)
@click.option(
    "--actors-max", type=click.IntRange(1, 10_000), help="Scale up to so many by the group's lag."
)
@click.option(
    "--lag-per-actor",
    default=10_000,
    show_default=True,
    type=click.IntRange(1),
    help="With --actors-max: backlog that asks for one more.",
)
@click.option(
    "--cpus", default=1.0, show_default=True, type=click.FloatRange(0), help="CPUs of each actor."
)
@click.option(
    "--gpus", default=0.0, show_default=True, type=click.FloatRange(0), help="GPUs of each actor."
)
@click.option("--name", help="Name under which `workers` finds the group.")
@click.option(
    "--detach",
    is_flag=True,
    help="Return when the actors have joined; the group goes on. Needs --name.",
)
@click.option(
    "--wait-for-nodes",
    is_flag=True,
    help="Ray adds nodes on demand: do not refuse what the present ones cannot run.",
)
@pass_options
@told
def run(  # noqa: PLR0913 - its options
    options: Options,
    target: str,
    actors: int,
    actors_max: int | None,
    lag_per_actor: int,
    cpus: float,
    gpus: float,
    name: str | None,
    detach: bool,
    wait_for_nodes: bool,
) -> None:
    """Run a consumer that was written with @rmq.consumer, for example `rmq-ray run billing:bill
    --actors 2`.

    MODULE is imported from the current directory or from what is installed. Ctrl-C lets running
    handlers end.
    """
    if detach and not name:
        raise click.UsageError("--detach needs --name: without one nothing stops the group again")
    options.meant_ray()  # the module may import Ray
    app = load(target)
    options.connect_ray()
    autoscale = (
        {"actors_min": actors, "actors_max": actors_max, "lag_per_actor": lag_per_actor}
        if actors_max
        else None
    )
    workers = app.deploy(
        actors,
        cluster=options.cluster,
        num_cpus=cpus,
        num_gpus=gpus,
        name=name,
        autoscale=autoscale,
        wait_for_nodes=wait_for_nodes,
    )
    output.record(
        {
            "group": app.group,
            "topics": sorted(app.subscriptions),
            "actors": actors,
            "name": name or "",
        },
        options.style,
    )
    if detach:
        return
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while True:  # until it is interrupted
            SYSTEM_CLOCK.sleep_ms(LOOK_MS)
    except KeyboardInterrupt:
        click.echo("draining", err=True)
        if not workers.stop():
            raise click.ClickException(
                "some handlers did not end within 60 s; their messages come again"
            ) from None


@click.group()
def workers() -> None:
    """Groups that run under a name: status, scale, stop."""


@workers.command()
@click.argument("name")
@pass_options
@watched
@told
def status(options: Options, name: str) -> None:
    """A line for each actor of the group."""
    found = _named(options, name).status()
    columns = ["client_id", "state", "queues", "consumed_ok", "consumed_failed", "in_flight", "lag"]
    rows = [
        {
            **worker,
            "queues": len(worker.get("queues", ())),
            "state": worker.get("state", worker.get("error", "")),
        }
        for worker in found["workers"]
    ]
    output.rows(
        [{column: row.get(column, "") for column in columns} for row in rows],
        columns,
        options.style,
    )


@workers.command()
@click.argument("name")
@click.argument("actors", type=click.IntRange(1, 10_000))
@pass_options
@told
def scale(options: Options, name: str, actors: int) -> None:
    """Run so many actors; those that go finish what they have begun."""
    output.record({"name": name, "actors": _named(options, name).scale(actors)}, options.style)


@workers.command()
@click.argument("name")
@click.option(
    "--no-drain", is_flag=True, help="Do not wait for running handlers; their messages come again."
)
@pass_options
@told
def stop(options: Options, name: str, no_drain: bool) -> None:
    """End the group."""
    ended = _named(options, name).stop(drain=not no_drain)
    output.record(
        {
            "name": name,
            "state": "stopped" if ended else "stopped, some handlers did not end in time",
        },
        options.style,
    )


def load(target: str) -> rmq_ray.ConsumerApp:
    """The consumer that ``module:attribute`` names. ``ConfigError`` says what is missing."""
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{target!r} must be MODULE:CONSUMER, like billing:bill", target)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = getattr(importlib.import_module(module_name), attribute, None)
    except ImportError as error:
        raise ConfigError(
            f"module {module_name!r} cannot be imported: {first_line(error)}", target
        ) from error
    if not isinstance(found, rmq_ray.ConsumerApp):
        raise ConfigError(
            f"{attribute!r} of {module_name!r} is "
            f"{'missing' if found is None else 'no consumer'}: decorate it with @rmq.consumer",
            target,
        )
    return found


def _named(options: Options, name: str) -> rmq_ray.Workers:
    options.connect_ray()
    return rmq_ray.workers(name, options.cluster)
