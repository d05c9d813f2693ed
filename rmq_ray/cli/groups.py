"""``group list | describe | alter | lag | seek | skip | clone | delete``; and ``client list |
describe``: the consumers of groups that are connected, and what one of them does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import click

from rmq_ray.cli.base import output
from rmq_ray.cli.base.context import Options, pass_options, told
from rmq_ray.cli.shell.completion import group_names, topic_names
from rmq_ray.cli.shell.watch import watched
from rmq_ray.client.admin.admin_groups import Offset, SeekTarget
from rmq_ray.model.moments import moment_ms
from rmq_ray.model.topics import retry_topic
from rmq_ray.protocol.scan.scan_positions import LikeGroup
from rmq_ray.remoting.wire.overview import DELAYED, UNCOMMITTED

DESCRIBED = ["broker", "client_id", "address", "language"]
LOCK_COLUMNS = ["topic", "broker", "queue", "holder", "ends_in_ms", "left"]
CLIENT_COLUMNS = ["group", "client_id", "address", "language", "brokers"]


@click.group()
def group() -> None:
    """Consumer groups: list, describe, alter, lag, seek, skip, clone, delete."""


@group.command("list")
@click.option("--system", is_flag=True, help="Also the system's own groups.")
@pass_options
@watched
@told
def list_groups(options: Options, system: bool) -> None:
    """Names of all groups that the brokers know, and how many messages each failed on that wait for
    their retry; - where a broker does not know yet.
    """
    delayed = options.admin.waiting().get(DELAYED)
    rows = [
        {"group": name, "retries": None if delayed is None else delayed.get(retry_topic(name), 0)}
        for name in options.admin.groups(system=system)
    ]
    output.rows(rows, ["group", "retries"], options.style)


@group.command()
@click.argument("name", shell_complete=group_names)
@pass_options
@watched
@told
def describe(options: Options, name: str) -> None:
    """Running consumers of a group, a line for each broker that they are connected to; who holds
    which queue's lock until when, if it is consumed in order; who subscribes differently, if they
    do; how many messages wait for their retry.

    In JSON the locks stand with their holders; a holder that is not connected has a line of its
    own.
    """
    found = options.admin.group_clients(name)
    locks = options.admin.group_locks(name) if found else []
    if options.style == "json":
        output.rows(_with_locks(found, locks), [*DESCRIBED, "locks"], options.style)
    else:
        output.rows(found, DESCRIBED, options.style)
        if locks:
            click.echo()
            output.rows(locks, LOCK_COLUMNS, options.style)
    if not found:
        click.echo(
            f"no consumer of {name} is connected now; readers that only commit, as Spark's, are "
            f"none: `rmq-ray group lag {name}` tells when they did",
            err=True,
        )
    for conflict in options.admin.group_conflicts(name) if found else ():
        click.echo(
            f"subscribed differently: {conflict['topic']} as {conflict['expression']} by "
            f"{', '.join(conflict['client_ids'])}",
            err=True,
        )
    _tell_waiting(options, name)


@group.command()
@click.argument("name", shell_complete=group_names)
@click.option(
    "--retries",
    default=None,
    type=click.IntRange(-1, 10_000),
    help="Deliveries after the first before a message is a dead letter.",
)
@click.option(
    "--retry-queues",
    default=None,
    type=click.IntRange(1, 64),
    help="Queues of its retry topic on each broker.",
)
@click.option("--consume/--no-consume", default=None, help="Whether it may consume at all.")
@click.option("--broadcast/--no-broadcast", default=None, help="Whether it may do so that way.")
@pass_options
@told
def alter(
    options: Options,
    name: str,
    retries: int | None,
    retry_queues: int | None,
    consume: bool | None,
    broadcast: bool | None,
) -> None:
    """Change what is given of a group, on every broker that has it, and leave the rest."""
    given = {
        "retries": retries,
        "retry_queues": retry_queues,
        "consume": consume,
        "broadcast": broadcast,
    }
    changed: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if not changed:
        raise click.UsageError(
            "say what to change: --retries, --retry-queues, --consume or --broadcast"
        )
    options.admin.alter_group(name, **changed)
    output.record({"group": name, **changed}, options.style)


@group.command()
@click.argument("name", shell_complete=group_names)
@pass_options
@watched
@told
def lag(options: Options, name: str) -> None:
    """How far a group is behind, a line each queue, as of its consumers' last commits; and what
    waits for its retry, or is on its way to the topics: delayed, or of transactions.
    """
    found = options.admin.group_lag(name)
    output.rows(
        found,
        ["topic", "broker", "queue", "max_offset", "committed", "lag", "committed_age_ms"],
        options.style,
    )
    if options.style == "table":
        click.echo(
            "committed_age_ms: since a consumer last committed the queue; what it finished since "
            "then counts as lag. -: not since the broker began",
            err=True,
        )
    _tell_waiting(options, name, sorted({row["topic"] for row in found}))


def _tell_waiting(options: Options, name: str, topics: Sequence[str] = ()) -> None:
    """Beside the rows: what no queue of theirs has yet."""
    waiting, own = options.admin.waiting(), retry_topic(name)
    unknown = [part for part in (DELAYED, UNCOMMITTED) if part not in waiting]
    delayed, uncommitted = (waiting.get(part, {}) for part in (DELAYED, UNCOMMITTED))
    if delayed.get(own):
        click.echo(f"{delayed[own]} messages that {name} failed on wait for their retry", err=True)
    for topic in topics:
        counts = ((delayed, "delayed"), (uncommitted, "uncommitted"))
        said = [f"{found[topic]} {words}" for found, words in counts if found.get(topic)]
        if said and topic != own:
            click.echo(f"{topic}: {' and '.join(said)} messages are not in it yet", err=True)
    if unknown:
        click.echo(
            f"{' and '.join(unknown)} messages: not every broker knows now how many there are",
            err=True,
        )


@group.command()
@click.argument("name", shell_complete=group_names)
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "--to",
    required=True,
    metavar="first|last|TIME|offset:N|group:NAME",
    help="TIME like 2024-05-01T12:00:00 (local, or with +02:00), or ms since the epoch.",
)
@click.option(
    "--execute", is_flag=True, help="Move it; without this only what would happen is shown."
)
@pass_options
@told
def seek(options: Options, name: str, topic: str, to: str, execute: bool) -> None:
    """Move where a group goes on in a topic. A dry run unless --execute.

    Running push consumers are told and go on there about 10 s later; members that pull or pop must
    be stopped first.
    """
    target = _target(to)  # before anything is connected
    _moved(options, options.admin.seek_group(name, topic, target, execute=execute), execute)


@group.command()
@click.argument("name", shell_complete=group_names)
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "--execute", is_flag=True, help="Do it; without this only what would happen is shown."
)
@pass_options
@told
def skip(options: Options, name: str, topic: str, execute: bool) -> None:
    """Give up a group's backlog in a topic: it goes on behind the last message. A dry run unless
    --execute.
    """
    _moved(options, options.admin.skip_group(name, topic, execute=execute), execute)


@group.command()
@click.argument("source", shell_complete=group_names)
@click.argument("target", shell_complete=group_names)
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "--execute", is_flag=True, help="Do it; without this only what would happen is shown."
)
@pass_options
@told
def clone(options: Options, source: str, target: str, topic: str, execute: bool) -> None:
    """Let group TARGET go on where SOURCE is in a topic; nobody may consume with TARGET. A dry run
    unless --execute.
    """
    _moved(options, options.admin.clone_group(source, target, topic, execute=execute), execute)


@group.command()
@click.argument("name", shell_complete=group_names)
@click.option("--keep-dead-letters", is_flag=True, help="Its dead letters stay.")
@pass_options
@told
def delete(options: Options, name: str, keep_dead_letters: bool) -> None:
    """Forget a group: its positions, what waits to be consumed again, its dead letters; its
    consumers must be stopped.
    """
    dead = "" if keep_dead_letters else " and its dead letters"
    options.confirm(f"Delete group {name}, its positions, what it was to retry{dead}?")
    gone = options.admin.delete_group(name, keep_dead_letters=keep_dead_letters)
    output.record({"group": name, "state": "deleted", "topics": gone}, options.style)


def _with_locks(clients: list[dict[str, Any]], locks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    connected = {(row["broker"], row["client_id"]) for row in clients}
    gone = {(lock["broker"], lock["holder"]) for lock in locks} - connected
    rows = clients + [{"broker": broker, "client_id": holder} for broker, holder in sorted(gone)]
    return [
        row
        | {
            "locks": [
                {key: lock[key] for key in ("topic", "queue", "ends_in_ms", "left")}
                for lock in locks
                if (lock["broker"], lock["holder"]) == (row["broker"], row["client_id"])
            ]
        }
        for row in rows
    ]


def _moved(options: Options, rows: list[dict[str, Any]], executed: bool) -> None:
    output.rows(rows, ["broker", "queue", "committed", "target", "moved_by"], options.style)
    if not executed:
        click.echo("nothing was moved: say --execute to do it", err=True)


def _target(text: str) -> SeekTarget:
    kind, _, value = text.partition(":")
    if kind == "group" and value:
        return LikeGroup(value)
    if kind == "offset" and value.isdigit():
        return Offset(int(value))
    if text in ("first", "last"):
        return text
    if text.isdigit():
        return int(text)
    try:
        return moment_ms(datetime.fromisoformat(text))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither first, last, offset:N, group:NAME, ms since the epoch nor "
            f"a time like 2024-05-01T12:00:00",
            param_hint="--to",
        ) from None


@click.group()
def client() -> None:
    """Connected consumers: list, describe."""


@client.command("list")
@click.option(
    "--group", "only", default=None, help="Only this consumer group.", shell_complete=group_names
)
@click.option("--system", is_flag=True, help="Also the system's own groups.")
@pass_options
@watched
@told
def list_clients(options: Options, only: str | None, system: bool) -> None:
    """Consumers that run now, a line for each group that a client consumes with."""
    groups = [only] if only is not None else sorted(options.admin.groups(system=system))
    output.rows(
        [row for group in groups for row in _of_group(options, group)],
        CLIENT_COLUMNS,
        options.style,
    )


@client.command("describe")
@click.argument("group", shell_complete=group_names)
@click.argument("client_id")
@pass_options
@watched
@told
def describe_client(options: Options, group: str, client_id: str) -> None:
    """What the consumer CLIENT_ID of GROUP says of itself: subscriptions, queues, what waits
    in it.
    """
    output.record(options.admin.running_info(group, client_id), options.style)


def _of_group(options: Options, group: str) -> Iterator[dict[str, Any]]:
    """Once for each client, with the brokers that it is connected to."""
    found = options.admin.group_clients(group)
    for client_id in dict.fromkeys(row["client_id"] for row in found):
        mine = [row for row in found if row["client_id"] == client_id]
        yield {
            "group": group,
            **{key: mine[0][key] for key in CLIENT_COLUMNS[1:4]},
            "brokers": sorted(row["broker"] for row in mine),
        }
