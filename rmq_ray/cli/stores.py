"""``store verify | dump``: look at a store's files without a broker. Read only; the broker must be
stopped for ``verify``.
"""

from __future__ import annotations

import click

from rmq_ray.cli.base import output
from rmq_ray.cli.base.context import Options, pass_options, told
from rmq_ray.store.fsck import inspect

COLUMNS = [
    "log_offset",
    "size",
    "topic",
    "queue",
    "queue_offset",
    "tag",
    "keys",
    "properties",
    "body",
]
DETAILS = ["message_id", "store_ms", "born_ms", "reconsume_times"]


@click.group()
def store() -> None:
    """A store's files on disk."""


@store.command()
@click.argument("path", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--index-slots",
    type=click.IntRange(min=1),
    default=None,
    help="Slots of an index file, where that cannot be told from its size.",
)
@pass_options
@told
def verify(options: Options, path: str, index_slots: int | None) -> None:
    """Check every record, and that queues and index agree with the log.

    PATH is one broker's directory, like rmq-data/broker-a; its broker must be stopped. Exit code 1
    when something is wrong.
    """
    report = inspect.verify(path, index_slots=index_slots)
    output.record(report.as_row(), options.style)
    for fault in report.faults:
        click.echo(fault, err=True)
    if report.fault_count > len(report.faults):
        click.echo(f"... {report.fault_count - len(report.faults)} more", err=True)
    if report.fault_count:
        raise click.exceptions.Exit(1)


@store.command()
@click.argument("path", type=click.Path(exists=True, file_okay=False))
@click.option("--topic", default=None, help="Only this topic.")
@click.option(
    "--from-offset",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Log offset to begin at (bytes); the next record is taken.",
)
@click.option(
    "--max",
    "limit",
    default=20,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many records.",
)
@pass_options
@told
def dump(options: Options, path: str, topic: str | None, from_offset: int, limit: int) -> None:
    """Print records as they lie in the log; a broker may be running on it."""
    found = inspect.dump(path, topic, from_offset, limit)
    output.rows(found, COLUMNS if options.style == "table" else COLUMNS + DETAILS, options.style)
