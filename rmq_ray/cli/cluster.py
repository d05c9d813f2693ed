"""``plan``, ``up``, ``down``, ``status``, ``health``, ``metrics``: a cluster on this machine.

``up`` starts a Ray head where none runs and writes down that it did (``ray_head``); ``down`` stops
the message cluster, and the head only if ``up`` started it and no other message cluster lives in
it. ``plan`` says what ``up --config`` would do (``actors.control.survey``): the file itself is
checked without Ray; which nodes and disks there are is asked of the Ray cluster that runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

import rmq_ray
from rmq_ray.actors import names
from rmq_ray.actors.control import replica_status
from rmq_ray.cli import brokers
from rmq_ray.cli.base import output, ray_head
from rmq_ray.cli.base.context import Options, first_line, pass_options, told
from rmq_ray.cli.shell.progress import progress
from rmq_ray.cli.shell.watch import watched
from rmq_ray.cli.tls import tls_of
from rmq_ray.errors import ClusterError
from rmq_ray.topology.reader import REPLICAS_MAX, read_topology
from rmq_ray.topology.rules import Topology

SERVING = "serving"
NOT_ALL_SERVE = "not everything serves"
_MAIN_COLUMNS = ("state", "pid", "address")
DESCRIBING = (
    "brokers",
    "replicas",
    "replication",
    "name_servers",
    "store_path",
    "flush",
    "foreign",
    "accounts",
    "tls_directory",
    "host",
    "name_server_port",
    "broker_port",
)
"""Options of ``up`` that a topology file stands for."""
SHORTER = {"store_path": "--store", "tls_directory": "--tls"}
PLAN_COLUMNS = ("actor", "action", "node", "resource", "port", "path", "store")


@click.command()
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
    for said in replica_status.cautions(
        (spec.config, len(spec.replicas)) for spec in topology.brokers
    ):
        click.echo(f"note: {said}", err=True)
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
        {column: getattr(step, column) or None for column in PLAN_COLUMNS}
        | {"port": step.port or "kept or free"}
        for step in found.steps
    ]
    output.rows(rows, PLAN_COLUMNS, options.style)
    for step in found.steps:
        if step.note:
            click.echo(f"note: {step.actor}: {step.note}", err=True)
    refusals = [
        f"{first_line(step.error)} [{type(step.error).__name__}]"
        for step in found.steps
        if step.error is not None
    ]
    for change in found.changes:
        if change.why:
            refusals.append(str(change))
        else:
            click.echo(f"{change.how.value}: {change}", err=True)
    for refusal in refusals:
        click.echo(f"refused: {refusal}", err=True)
    if refusals:
        raise click.exceptions.Exit(1)


@click.command()
@click.option(
    "--config",
    type=click.Path(dir_okay=False),
    default=None,
    help="Topology file, rmq.toml; instead of the options that describe brokers.",
)
@click.option(
    "--wait",
    "wait_s",
    default=0.0,
    type=click.FloatRange(0, 3600),
    help="With --config: seconds to wait for nodes that `ray up` still starts.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="With --config: only show what would change in the cluster that runs.",
)
@click.option(
    "--brokers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 26),
    help="How many brokers, each with its own store.",
)
@click.option(
    "--replicas",
    default=0,
    show_default=True,
    type=click.IntRange(0, REPLICAS_MAX),
    help="Slaves of each broker, one of which takes over when the master is gone.",
)
@click.option(
    "--replication",
    type=click.Choice(["async", "sync"]),
    default="async",
    show_default=True,
    help="sync: a send counts as stored when every slave in sync has it, too.",
)
@click.option(
    "--name-servers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 9),
    help="How many name servers.",
)
@click.option(
    "--store",
    "store_path",
    default="rmq-data",
    show_default=True,
    type=click.Path(file_okay=False),
    help="Directory of the stores.",
)
@click.option(
    "--flush",
    type=click.Choice(["async", "sync"]),
    default="async",
    show_default=True,
    help="When a send counts as stored.",
)
@click.option(
    "--foreign",
    type=click.Choice(["closed", "open", "acl"]),
    default="closed",
    show_default=True,
    help="Whether Apache RocketMQ's own clients may connect; acl: who has an account.",
)
@click.option(
    "--accounts",
    type=click.Path(dir_okay=False),
    default=None,
    help="With --foreign acl: a plain_acl.yml that accounts come from; default `rmq-ray acl`.",
)
@click.option(
    "--tls",
    "tls_directory",
    default=None,
    type=click.Path(file_okay=False),
    help="TLS connections only, with the files that `rmq-ray tls init` made in this directory.",
)
@click.option(
    "--host", default=None, help="Address to listen on; default loopback on a cluster of one node."
)
@click.option(
    "--name-server-port",
    default=0,
    type=click.IntRange(0, 65535),
    help="0 = any free one, kept over restarts.",
)
@click.option(
    "--broker-port",
    default=0,
    type=click.IntRange(0, 65535),
    help="0 = any free one, kept over restarts.",
)
@click.option(
    "--ray-port",
    type=int,
    default=None,
    help=(
        "Port of the Ray head to join or start.  [default: the one that runs; else 6379, or a "
        "free one]"
    ),
)
@click.option(
    "--ray-dashboard",
    is_flag=True,
    help="Where Ray is started: with its dashboard, on loopback.",
)
@pass_options
@told
def up(
    options: Options,
    /,
    config: str | None,
    wait_s: float,
    dry_run: bool,
    ray_port: int | None,
    ray_dashboard: bool,
    tls_directory: str | None,
    **settings: Any,
) -> None:
    """Start the cluster, or attach to it; starts Ray first where none runs.

    The stores are made in --store, or where --config says, on the first start and found again on
    the next one. Running it twice changes nothing. In a cluster that runs, copies that `broker
    stop` stopped are started, and what --config says otherwise is shown and, once confirmed,
    carried out: brokers and slaves are added, settings are set, and copies are restarted that need
    it, one at a time.
    """
    if dry_run and config is None:
        raise click.UsageError("--dry-run goes with --config; without it nothing is changed")
    if config is not None:
        use_topology(options, config)
    names.check_cluster_name(options.cluster)
    tls = tls_of(tls_directory) if tls_directory is not None else None
    if dry_run and ray_head.find(options.address, ray_port) is None:
        raise ClusterError(f"no Ray cluster runs: {config} starts all of it, see `rmq-ray plan`")
    head = _join_or_start_ray(options, ray_port, ray_dashboard)
    from rmq_ray.actors import gateway

    try:
        was_running = options.cluster in gateway.clusters()
        changed = config is not None and was_running and _changes_wanted(options, config, dry_run)
        if dry_run:
            return
        with progress(f"starting cluster {options.cluster}"):
            if config is None:
                mq = rmq_ray.start(options.cluster, tls=tls, **settings)
                mq.start_stopped()
            else:
                mq = rmq_ray.start_from(
                    config, wait_s=wait_s, start_stopped=True, apply_changes=changed
                )
        addresses = _noted(mq)
    except BaseException:
        if head is not None:
            gateway.leave_ray()
            ray_head.stop(head)
        raise
    output.record(
        {
            "cluster": options.cluster,
            "state": _state_told(was_running, changed, config),
            "ray": "started" if head else "was running",
            **({"ray_dashboard": head.dashboard} if head and ray_dashboard else {}),
            **({"ray_client": head.client} if head and head.client else {}),
            **addresses,
        },
        options.style,
    )


def _noted(mq: rmq_ray.Cluster) -> dict[str, Any]:
    """Where it is; written down for commands and processes that do not join Ray."""
    from rmq_ray.actors import gateway
    from rmq_ray.actors.remembered import directory_of_user, note, remember

    ray_address = gateway.gcs_address()
    remember(note(directory_of_user(), ray_address, mq.name), mq.discovery.lookup())
    addresses = {"ray_address": ray_address, **mq.addresses}
    mq.admin.close()
    return addresses


def _state_told(was_running: bool, changed: bool, config: str | None) -> str:
    if not was_running:
        return "started"
    if changed:
        return "was running, changed as the file says"
    return "was running" if config else "was running, options of this call were not used"


def _changes_wanted(options: Options, config: str, dry_run: bool) -> bool:
    """Show what the file makes of the cluster that runs; whether it is to be carried out."""
    from rmq_ray.actors.control.survey import survey

    found = survey(read_topology(config)).changes
    if not found:
        if dry_run:
            click.echo("nothing changes: the cluster is as the file says", err=True)
        return False
    if dry_run:
        output.rows(
            [change.row() for change in found], ["part", "action", "change", "why"], options.style
        )
        return False
    for change in found:
        why = f" ({change.why})" if change.why else ""
        click.echo(f"{change.how.value} {change.part}: {change.what}{why}", err=True)
    if not any(change.why for change in found):
        options.confirm(f"Change cluster {options.cluster} so?")
    return True


@click.command()
@pass_options
@told
def down(options: Options) -> None:
    """Stop the cluster, its stores cleanly closed, and Ray if `up` started it.

    Data stay on disk. Ray goes on while another message cluster runs in it.
    """
    names.check_cluster_name(options.cluster)
    options.connect_ray()
    from rmq_ray.actors import gateway

    head = ray_head.ours(gateway.gcs_address())
    alive = gateway.clusters()
    if options.cluster not in alive and (head is None or alive):
        raise ClusterError(
            f"no cluster {options.cluster!r} runs here; {', '.join(alive) or 'none'} does: "
            f"name it with --cluster",
            options.cluster,
        )
    state = "did not run"
    if options.cluster in alive:
        with progress(f"stopping cluster {options.cluster}"):
            rmq_ray.Cluster(options.cluster).stop()
        state = "stopped"
    others = [name for name in alive if name != options.cluster]
    outcome = "left running: it was not started by `up`"
    if head is not None and others:
        outcome = f"left running for {', '.join(others)}"
    elif head is not None:
        gateway.leave_ray()
        ray_head.stop(head)
        outcome = "stopped"
    output.record({"cluster": options.cluster, "state": state, "ray": outcome}, options.style)


@click.command()
@pass_options
@watched
@told
def status(options: Options) -> None:
    """Every actor of the cluster and what it says of itself. Exit code as that of `health`: 1 where
    something does not serve, with a line that says what, and which command helps.
    """
    mq = options.connect()
    found = mq.status()
    wrong = _wrong(_parts(options, mq, found))
    if options.style == "json":
        weak = mq.weak_brokers(found)
        told_all = {"cluster": options.cluster, **found, "weak": weak, "wrong": wrong}
        output.record(told_all, options.style)
    else:
        servers = mq.discovery.lookup().name_servers
        addresses = {f"name-server-{i}": address for i, address in enumerate(servers)}
        rows = [
            _summary(name, {"address": addresses.get(name), **state})
            for name, state in _actors(found)
        ]
        serves = found["controller"] != SERVING or not wrong
        click.echo(f"cluster {options.cluster}: {found['controller'] if serves else NOT_ALL_SERVE}")
        for part, said in wrong.items():
            click.echo(f"{part}: {said}")
        output.rows(rows, ["actor", *_MAIN_COLUMNS, "detail"], options.style)
        if found["elections"]:
            click.echo()
            output.rows(found["replicas"], brokers.COLUMNS, options.style)
    if wrong:
        raise click.exceptions.Exit(1)


@click.command()
@pass_options
@watched
@told
def health(options: Options) -> None:
    """Whether everything serves: exit code 0 if so, 1 with the parts that do not."""
    mq = options.connect()
    rows = _parts(options, mq, mq.status())
    output.rows(rows, ["part", "state"], options.style)
    wrong = _wrong(rows)
    if wrong:
        said = "; ".join(f"{part}: {state}" for part, state in wrong.items())
        raise click.ClickException(f"not serving: {said}")


def _parts(options: Options, mq: rmq_ray.Cluster, found: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row for everything that must serve: ``part``, ``state``, ``said`` (what people are told of
    it). Status and health both judge by these.
    """
    actors = _actors(found)
    rows = [{"part": "controller", "state": found["controller"], "said": found["controller"]}]
    rows += [
        {
            "part": name,
            "state": state.get("state", SERVING),
            "said": replica_status.said(name, state),
        }
        for name, state in actors
    ]
    masters = {broker.broker_name for broker in options.admin.brokers() if 0 in broker.addresses}
    names_of_brokers = sorted({row["broker"] for row in found["replicas"]})
    states = {
        f"registration of {name}": SERVING if name in masters else "missing at the name server"
        for name in names_of_brokers
    }
    states |= {
        f"copying of {row['broker']}/{row['replica']}": f"broken: {row['error']}"
        for row in found["replicas"]
        if row["state"] == SERVING and row["error"]
    }
    weak = mq.weak_brokers(found)
    states |= {f"copies of {name}": weak.get(name, SERVING) for name in found["elections"]}
    return [
        *rows,
        *({"part": part, "state": state, "said": state} for part, state in states.items()),
    ]


def _wrong(rows: list[dict[str, str]]) -> dict[str, str]:
    """Parts that do not serve: name -> what is wrong."""
    return {row["part"]: row["said"] for row in rows if row["state"] != SERVING}


def _actors(found: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(name, state) of the members in a status."""
    return [
        (name, state)
        for name, state in found.items()
        if isinstance(state, dict) and name not in ("supervision", "elections")
    ]


def _summary(name: str, state: dict[str, Any]) -> dict[str, Any]:
    detail = {
        key: value
        for key, value in state.items()
        if key not in _MAIN_COLUMNS and isinstance(value, str | int | float | bool)
    }
    return {
        "actor": name,
        "state": SERVING,
        **{key: state[key] for key in _MAIN_COLUMNS if key in state},
        "detail": detail,
    }


def _join_or_start_ray(options: Options, port: int | None, dashboard: bool) -> ray_head.Head | None:
    """The head that this call started, None when it joined one."""
    if port is not None and options.address != ray_head.AUTO:
        raise click.UsageError(
            "--ray-port starts a Ray head here, --address joins one that runs: give one of them"
        )
    with ray_head.alone():
        found = ray_head.find(options.address, port)
        head = ray_head.start(port, dashboard) if found is None else None
    if found is not None and dashboard:
        click.echo("Ray was running: its dashboard is as it was started", err=True)
    try:
        options.connect_ray(head.port if head else port)
    except BaseException:
        if head is not None:
            ray_head.stop(head)
        raise
    return head


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
        names = ", ".join(SHORTER.get(name, f"--{name.replace('_', '-')}") for name in given)
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


@click.command()
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
