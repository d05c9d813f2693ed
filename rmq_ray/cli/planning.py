"""``plan --config rmq.toml``: what ``up --config`` would do, said before anything is done.

The file itself is checked without Ray; which nodes and disks there are is asked of the Ray cluster
that runs. Decides nothing (``actors.control.survey``).
"""

from __future__ import annotations

import click
from click.core import ParameterSource

from rmq_ray.cli import output, ray_head
from rmq_ray.cli.context import Options, first_line, pass_options, told
from rmq_ray.topology.reader import read_topology
from rmq_ray.topology.rules import Topology

DESCRIBING = (
    "brokers",
    "name_servers",
    "store_path",
    "flush",
    "foreign",
    "host",
    "name_server_port",
    "broker_port",
)
"""Options of ``up`` that a topology file stands for."""
COLUMNS = ("actor", "action", "node", "resource", "port", "path", "store")


@click.command(short_help="What `up --config` would do, without doing it.")
@click.option(
    "--config",
    type=click.Path(dir_okay=False),
    default="rmq.toml",
    show_default=True,
    help="Topology file.",
)
@click.option(
    "--ray-port",
    type=int,
    default=None,
    help="Port of the Ray head on this machine.  [default: the one that runs]",
)
@pass_options
@told
def plan(options: Options, config: str, ray_port: int | None) -> None:
    """Say what `rmq-ray up --config` would do: actors, their nodes and ports, which stores are made
    and which are found, and what the file says otherwise than the running cluster. Changes nothing.
    Exit code 1 where `up` would refuse.
    """
    topology = use_topology(options, config)
    if ray_head.find(options.address, ray_port) is None:
        output.record(
            {
                "cluster": topology.cluster,
                "file": "nothing wrong",
                "ray": "does not run: `up` starts a head on this machine",
            },
            options.style,
        )
        return
    options.connect_ray(ray_port)
    from rmq_ray.actors.control.survey import survey

    found = survey(topology)
    rows = [
        {column: getattr(step, column) or None for column in COLUMNS}
        | {"port": step.port or "kept or free"}
        for step in found.steps
    ]
    output.rows(rows, COLUMNS, options.style)
    for step in found.steps:
        if step.note:
            click.echo(f"note: {step.actor}: {step.note}", err=True)
    refusals = [
        f"{first_line(step.error)} [{type(step.error).__name__}]"
        for step in found.steps
        if step.error is not None
    ]
    refusals += [f"changed, needs `rmq-ray down` first: {change}" for change in found.changes]
    for refusal in refusals:
        click.echo(f"refused: {refusal}", err=True)
    if refusals:
        raise click.exceptions.Exit(1)


def use_topology(options: Options, config: str) -> Topology:
    """Read the file and mean its cluster. ``UsageError`` for options that say the same as the
    file.
    """
    context = click.get_current_context()
    given = [
        name
        for name in DESCRIBING
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if given:
        names = ", ".join(
            "--store" if name == "store_path" else f"--{name.replace('_', '-')}" for name in given
        )
        raise click.UsageError(
            f"{names}: the topology file says that, leave it out or leave --config out"
        )
    topology = read_topology(config)
    above = context.find_root()
    if (
        above.get_parameter_source("cluster") is ParameterSource.COMMANDLINE
        and options.cluster != topology.cluster
    ):
        raise click.UsageError(
            f"--cluster {options.cluster} is not the cluster of {config}, "
            f"{topology.cluster!r}: leave --cluster out"
        )
    options.cluster = topology.cluster
    return topology
