"""``broker list | settings | set | promote | stop | start | drain | undrain | clean``."""

from __future__ import annotations

import sys

import click

import rmq_ray
from rmq_ray.actors.control.replica_status import is_last
from rmq_ray.cli.base import output
from rmq_ray.cli.base.context import Options, pass_options, told
from rmq_ray.cli.shell.progress import progress
from rmq_ray.cli.shell.watch import watched
from rmq_ray.errors import ClientError
from rmq_ray.protocol.rate_limit import BYTES, KINDS, MESSAGES, RATE_MAX, number

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
_KIND = click.argument("kind", type=click.Choice(KINDS))


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


@broker.command(short_help="Settings that change while brokers run: values, sources, limits.")
@click.argument("name", required=False)
@click.option("--changed", is_flag=True, help="Only those that were changed.")
@pass_options
@watched
@told
def settings(options: Options, name: str | None, changed: bool) -> None:
    """Settings that may be changed while brokers run, of broker NAME or of all: the value in
    effect, where it comes from, its limits, and whether a change is live or waits for the next
    start.
    """
    found = options.admin.broker_settings(name)
    output.rows(
        [row for row in found if row["source"] != "configured" or not changed],
        ["broker", "name", "value", "source", "next", "unit", "limits", "live", "rocketmq"],
        options.style,
    )


@broker.command("set", short_help="Change settings of a broker while it runs.")
@click.argument("name")
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE...")
@pass_options
@told
def set_settings(options: Options, name: str, changes: tuple[str, ...]) -> None:
    """Change settings of broker NAME, or of `all`; `KEY=` takes a change back. KEY is a name out of
    `broker settings`, or RocketMQ's. All are taken, or none.
    """
    given = dict(change.partition("=")[::2] for change in changes)
    if any("=" not in change for change in changes):
        raise click.UsageError("settings are given as KEY=VALUE")
    done = options.admin.set_broker(None if name == "all" else name, given)
    waiting = {
        row["name"]: row["next"]
        for row in options.admin.broker_settings(None if name == "all" else name)
        if row["next"] is not None
    }
    output.record({"broker": ", ".join(done), **given}, options.style)
    for key, value in waiting.items():
        click.echo(f"{key}={value} takes effect at the broker's next start", err=True)


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
    with progress(f"another copy of {name} becomes its master"):
        wait_s = max(PROMOTE_S, options.timeout_s)
        decided = mq.promote(name, replica, force=force, timeout_s=wait_s)
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
    with progress(f"stopping {name}"):
        stopped = mq.stop_broker(name, replica, force=force)
    output.record(stopped, options.style)


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
    with progress(f"starting {name}"):
        started = options.connect().start_broker(name, replica)
    output.record(started, options.style)


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


@click.group()
def limit() -> None:
    """Limits of topics, groups and accounts: bytes and messages a second on each broker."""


@limit.command("list")
@pass_options
@watched
@told
def list_limits(options: Options) -> None:
    """Every limit of every broker."""
    output.rows(options.admin.limits(), ["kind", "name", "broker", BYTES, MESSAGES], options.style)


@limit.command("set")
@_KIND
@click.argument("name")
@click.option("--bytes", "size", default=None, metavar="N", help="A second, like 500000 or 10MiB.")
@click.option(
    "--messages", default=None, type=click.IntRange(0, RATE_MAX), metavar="N", help="A second."
)
@pass_options
@told
def set_limit(
    options: Options, kind: str, name: str, size: str | None, messages: int | None
) -> None:
    """Limit what is sent to a topic, what a group is handed, or both of an account, on each broker.
    0 = no limit. Producers over it wait and send again within their time-out; pulls wait.
    """
    try:
        rate = None if size is None else number(size)
    except ValueError:
        raise ClientError(f"--bytes {size}: a whole number like 500000 or 10MiB", size) from None
    if rate is None and messages is None:
        raise click.UsageError("say what to limit: --bytes or --messages")
    options.admin.set_limit(kind, name, bytes_per_s=rate, messages_per_s=messages)
    given = {BYTES: rate, MESSAGES: messages}
    output.record(
        {kind: name, **{key: value for key, value in given.items() if value is not None}},
        options.style,
    )


@limit.command()
@_KIND
@click.argument("name")
@pass_options
@told
def clear(options: Options, kind: str, name: str) -> None:
    """Take both limits of a topic, group or account away."""
    options.admin.set_limit(kind, name, bytes_per_s=0, messages_per_s=0)
    output.record({kind: name, "limit": "none"}, options.style)
