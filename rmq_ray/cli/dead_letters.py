"""``dlq list | show | resend | export``: messages that a group gave up."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import islice
from typing import IO, Any

import click

from rmq_ray.cli.base import output
from rmq_ray.cli.base.context import Options, pass_options, told
from rmq_ray.cli.messages import plain_row
from rmq_ray.cli.shell.completion import group_names
from rmq_ray.cli.shell.progress import progress
from rmq_ray.client.admin.dead_letters import DeadLetters, SendRate, origin_topic
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.errors import BodyUnreadable

COLUMNS = ["died", "topic", "message_id", "reconsume_times", "failed_with", "failed_on", "tag"]
COLUMNS += ["keys", "properties", "body"]
DETAILS = ["broker", "queue", "queue_offset", "born_ms", "store_ms"]
NEW = "Only those that were not resent yet."


@click.group()
def dlq() -> None:
    """Dead letters of groups: list, show, resend, export."""


@dlq.command("list")
@pass_options
@told
def list_groups(options: Options) -> None:
    """Groups with dead letters: how many lie there, and how many of them were not resent."""
    rows = [{**row, "last": _time(row["last_ms"])} for row in _dead(options).dead_letter_groups()]
    output.rows(
        rows,
        ["group", "messages", "left", "last"] + (["last_ms"] if options.style == "json" else []),
        options.style,
    )


@dlq.command()
@click.argument("group", shell_complete=group_names)
@click.option(
    "--max",
    "limit",
    default=20,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="How many, oldest first.",
)
@click.option("--new", is_flag=True, help=NEW)
@pass_options
@told
def show(options: Options, group: str, limit: int, new: bool) -> None:
    """Dead letters of GROUP: the topic that each was sent to at first, and why it died: what its
    listener failed with, on which client.
    """
    rows = [
        _row(message)
        for message in islice(_dead(options).dead_letters(group, all_of_them=not new), limit)
    ]
    output.rows(rows, COLUMNS if options.style == "table" else COLUMNS + DETAILS, options.style)


@dlq.command()
@click.argument("group", shell_complete=group_names)
@click.option(
    "--id",
    "message_ids",
    multiple=True,
    metavar="MESSAGE_ID",
    help="Only this one, resent before or not; may be given several times.",
)
@click.option(
    "--max",
    "limit",
    default=None,
    type=click.IntRange(min=1),
    help="At most so many, oldest first.",
)
@click.option("--again", is_flag=True, help="Also those that were resent before.")
@click.option("--rate", type=float, default=None, help="At most so many messages a second.")
@click.option(
    "--execute", is_flag=True, help="Send them; without this only what would happen is shown."
)
@pass_options
@told
def resend(
    options: Options,
    group: str,
    message_ids: tuple[str, ...],
    limit: int | None,
    again: bool,
    rate: float | None,
    execute: bool,
) -> None:
    """Send dead letters of GROUP to the topics that they came from, as new messages: every group of
    these gets them. A dry run unless --execute.
    """
    if message_ids and (again or limit is not None or rate is not None):
        raise click.UsageError("--id names the messages: leave --again, --max and --rate out")
    pace = None if rate is None else SendRate(rate)
    with progress(f"{'sending' if execute else 'counting'} dead letters of {group}"):
        counts = _dead(options).resend_dead_letters(
            group, message_ids=message_ids, again=again, limit=limit, execute=execute, pace=pace
        )
    output.rows(
        [{"topic": topic, "messages": counts[topic]} for topic in sorted(counts)],
        ["topic", "messages"],
        options.style,
    )
    if not execute:
        click.echo("nothing was sent: say --execute to do it", err=True)


@dlq.command()
@click.argument("group", shell_complete=group_names)
@click.option(
    "--out",
    default="-",
    show_default=True,
    type=click.File("w", encoding="utf-8", lazy=True),
    help="File to write; - = standard output.",
)
@click.option("--new", is_flag=True, help=NEW)
@pass_options
@told
def export(options: Options, group: str, out: IO[str], new: bool) -> None:
    """Every dead letter of GROUP as an object a line (JSON); a body that is not UTF-8 as
    base64:... How many they were, and where they are now, is told on standard error.
    """
    written = 0
    with progress("dead letters written") as shown:
        for message in _dead(options).dead_letters(group, all_of_them=not new):
            out.write(json.dumps(output.plain(_row(message)), ensure_ascii=False) + "\n")
            written += 1
            shown.count = written
    out.flush()
    where = "standard output" if out.name == "-" else out.name
    click.echo(f"{written} dead letters of {group} were written to {where}", err=True)


def _dead(options: Options) -> DeadLetters:
    found = DeadLetters(options.discovery, timeout_ms=options.timeout_ms)
    click.get_current_context().call_on_close(found.close)
    return found


def _row(message: MessageExt) -> dict[str, Any]:
    try:
        row = plain_row(message)
    except BodyUnreadable:
        row = plain_row(message, message.stored_body)
    return {
        **row,
        "topic": origin_topic(message),
        "died": _time(message.store_ms),
        "failed_with": message.failed_with,
        "failed_on": message.failed_on,
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
