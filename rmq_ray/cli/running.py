"""``up``, ``down``, ``status``, ``health``: the life of a cluster on this machine.

``up`` starts a Ray head where none runs and writes down that it did (``ray_head``); ``down`` stops
the message cluster, and the head only if ``up`` started it and no other message cluster lives in
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

import rmq_ray
from rmq_ray.actors import names
from rmq_ray.cli import brokers, output, ray_head
from rmq_ray.cli.context import Options, pass_options, told
from rmq_ray.cli.planning import use_topology
from rmq_ray.errors import ClusterError

SERVING = "serving"
_MAIN_COLUMNS = ("state", "pid", "address")


@click.command(short_help="Start the cluster, or attach to it; starts Ray where none runs.")
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
    "--brokers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 26),
    help="How many brokers, each with its own store.",
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
    type=click.Choice(["closed", "open"]),
    default="closed",
    show_default=True,
    help="Whether Apache RocketMQ's own clients may connect.",
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
@pass_options
@told
def up(
    options: Options, /, config: str | None, wait_s: float, ray_port: int | None, **settings: Any
) -> None:
    """Start the cluster, or attach to it; starts Ray first where none runs.

    The stores are made in --store, or where --config says, on the first start and found again on
    the next one. Running it twice changes nothing. In a cluster that runs, copies that `broker
    stop` stopped are started.
    """
    if config is not None:
        use_topology(options, config)
    names.check_cluster_name(options.cluster)
    head = _join_or_start_ray(options, ray_port)
    from rmq_ray.actors import gateway

    try:
        was_running = options.cluster in gateway.clusters()
        if config is None:
            mq = rmq_ray.start(options.cluster, **settings)
            mq.start_stopped()
        else:
            mq = rmq_ray.start_from(config, wait_s=wait_s, start_stopped=True)
        addresses = {"ray_address": gateway.gcs_address(), **mq.addresses}
        mq.admin.close()
    except BaseException:
        if head is not None:
            gateway.leave_ray()
            ray_head.stop(head)
        raise
    not_used = "was running" if config else "was running, options of this call were not used"
    state = not_used if was_running else "started"
    output.record(
        {
            "cluster": options.cluster,
            "state": state,
            "ray": "started" if head else "was running",
            **addresses,
        },
        options.style,
    )


@click.command(short_help="Stop the cluster, and Ray if `up` started it.")
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
@told
def status(options: Options) -> None:
    """Every actor of the cluster and what it says of itself."""
    found = options.connect().status()
    if options.style == "json":
        output.record({"cluster": options.cluster, **found}, options.style)
        return
    servers = options.connect().discovery.lookup().name_servers
    addresses = {f"name-server-{i}": address for i, address in enumerate(servers)}
    rows = [
        _summary(name, {"address": addresses.get(name), **state}) for name, state in _actors(found)
    ]
    click.echo(f"cluster {options.cluster}: {found['controller']}")
    output.rows(rows, ["actor", *_MAIN_COLUMNS, "detail"], options.style)
    if found["elections"]:
        click.echo()
        output.rows(found["replicas"], brokers.COLUMNS, options.style)


@click.command(short_help="Whether everything serves: exit code 0 or 1.")
@pass_options
@told
def health(options: Options) -> None:
    """Whether everything serves: exit code 0 if so, 1 with the parts that do not."""
    mq = options.connect()
    found = mq.status()
    rows = [{"part": "controller", "state": found["controller"]}]
    rows += [{"part": name, "state": state.get("state", SERVING)} for name, state in _actors(found)]
    masters = {broker.broker_name for broker in options.admin.brokers() if 0 in broker.addresses}
    names_of_brokers = sorted({row["broker"] for row in found["replicas"]})
    rows += [
        {
            "part": f"registration of {name}",
            "state": SERVING if name in masters else "missing at the name server",
        }
        for name in names_of_brokers
    ]
    weak = mq.weak_brokers(found)
    rows += [
        {"part": f"copies of {name}", "state": weak.get(name, SERVING)}
        for name in found["elections"]
    ]
    output.rows(rows, ["part", "state"], options.style)
    bad = [row["part"] for row in rows if row["state"] != SERVING]
    if bad:
        raise click.ClickException(
            f"not serving: {', '.join(bad)}; see `rmq-ray status` and `ray logs`"
        )


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


def _join_or_start_ray(options: Options, port: int | None) -> ray_head.Head | None:
    """The head that this call started, None when it joined one."""
    if port is not None and options.address != ray_head.AUTO:
        raise click.UsageError(
            "--ray-port starts a Ray head here, --address joins one that runs: give one of them"
        )
    with ray_head.alone():
        head = None if ray_head.find(options.address, port) is not None else ray_head.start(port)
    try:
        options.connect_ray(head.port if head else port)
    except ClusterError:
        if head is not None:
            ray_head.stop(head)
        raise
    return head
