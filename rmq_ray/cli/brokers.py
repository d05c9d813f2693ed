"""``broker list | promote | stop | start | drain | undrain | clean``."""

from __future__ import annotations

import sys

import click

import rmq_ray
from rmq_ray.actors.control.replica_status import is_last
from rmq_ray.cli import output
from rmq_ray.cli.context import Options, pass_options, told
from rmq_ray.cli.shell.watch import watched

PROMOTE_S = 60.0  # the controller ends it, or says why not, in 50
COLUMNS = [
    "broker",
    "replica",
    "id",
    "role",
    "address",
    "epoch",
    "in_sync",
    "lag_bytes",
    "lag_ms",
    "state",
]


@click.group()
def broker() -> None:
    """Brokers and their copies."""


@broker.command(
    "list", short_help="Every copy of every broker: role, address, epoch, in sync, lag."
)
@pass_options
@watched
@told
def list_brokers(options: Options) -> None:
    """Every copy of every broker. `replica` is its number for ever, `id` what clients see now: 0 is
    the master. `in_sync`: it could take over without loss. Lag is that behind the master.
    """
    columns = COLUMNS if options.style == "table" else [*COLUMNS, "error", "cluster"]
    output.rows(
        [{**row, "cluster": options.cluster} for row in options.connect().replicas()],
        columns,
        options.style,
    )


@broker.command(short_help="Make another copy of a broker its master.")
@click.argument("name")
@click.option(
    "--replica",
    default=None,
    type=click.IntRange(min=0),
    help="Number of the copy, as `broker list` shows.  [default: the one with the most]",
)
@click.option(
    "--force",
    is_flag=True,
    help=(
        "Also a copy that lacks acknowledged messages: they are lost. Asks first, unless -y is "
        "given."
    ),
)
@pass_options
@told
def promote(options: Options, name: str, replica: int | None, force: bool) -> None:
    """Make another copy of broker NAME its master; the old one follows it. Without --force nothing
    that was acknowledged is lost: a copy that has not everything is refused.
    """
    mq: rmq_ray.Cluster = options.connect()
    if force:
        options.confirm(
            f"Promote a copy of {name} even if it lacks acknowledged messages? They would be lost."
        )
    decided = mq.promote(name, replica, force=force, timeout_s=max(PROMOTE_S, options.timeout_s))
    decided.pop("broker_name")
    output.record({"broker": name, **decided}, options.style)


@broker.command(short_help="Stop one copy of a broker; a master hands over first.")
@click.argument("name")
@click.option(
    "--replica",
    default=None,
    type=click.IntRange(min=0),
    help="Number of the copy, as `broker list` shows; needed where there are slaves.",
)
@click.option(
    "--force",
    is_flag=True,
    help=(
        "Also where nobody takes over, or too few copies are left: sends wait, or are not "
        "acknowledged. Needed for the last broker that serves; asks first on a terminal."
    ),
)
@pass_options
@told
def stop(options: Options, name: str, replica: int | None, force: bool) -> None:
    """Stop one copy of broker NAME gracefully until `broker start`, for an upgrade or another disk.
    A master with slaves makes another one master first, and no send fails. A broker without slaves
    is away meanwhile: `drain` it before, if others have its topics.
    """
    mq: rmq_ray.Cluster = options.connect()
    typed = on_terminal()
    if force:
        if typed:
            options.confirm(f"Stop a copy of {name} even if nobody takes over?")
    elif typed and is_last(mq.replicas(), name, replica):
        options.confirm(f"{name} is the last broker that serves: stop it all the same?")
        force = True
    output.record(mq.stop_broker(name, replica, force=force), options.style)


def on_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty()


@broker.command(short_help="End of `stop`.")
@click.argument("name")
@click.option(
    "--replica",
    default=None,
    type=click.IntRange(min=0),
    help="Number of the copy; needed where there are slaves.",
)
@pass_options
@told
def start(options: Options, name: str, replica: int | None) -> None:
    """Start a copy of broker NAME that was stopped, or whose disk was away, on the store that it
    had. Returns when it serves; a copy is in sync a moment later.
    """
    output.record(options.connect().start_broker(name, replica), options.style)


@broker.command(
    short_help="Let a broker take no new messages, as before it is upgraded or removed."
)
@click.argument("name")
@pass_options
@told
def drain(options: Options, name: str) -> None:
    """Broker NAME takes no new messages until `undrain` or its next start. It serves and delivers
    what it has; producers use the other brokers. A topic that only this broker has cannot be sent
    to meanwhile.
    """
    output.record(options.admin.drain_broker(name), options.style)


@broker.command(short_help="End of `drain`.")
@click.argument("name")
@pass_options
@told
def undrain(options: Options, name: str) -> None:
    """Broker NAME takes messages again."""
    output.record(options.admin.undrain_broker(name), options.style)


@broker.command(short_help="Remove expired segments now, whatever the hour.")
@click.argument("name")
@pass_options
@told
def clean(options: Options, name: str) -> None:
    """Broker NAME removes the segments that are older than its `reserved_hours` within the next
    minutes, not only at 4 o'clock.
    """
    options.confirm(f"Remove what broker {name} has stored longer than its reserved_hours?")
    options.admin.delete_expired(name)
    click.echo(f"{name} removes expired segments, 10 every 10 seconds", err=True)
