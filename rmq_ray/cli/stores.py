"""``store verify | dump``: look at a store's files without a broker. Read only; the broker must be stopped for ``verify``."""

from __future__ import annotations

import click

from rmq_ray.cli import output
from rmq_ray.cli.context import Options, pass_options, told
from rmq_ray.store import inspect


@click.group()
def store() -> None:
    """A store's files on disk."""


@store.command()
@click.argument("path", type=click.Path(exists=True, file_okay=False))
@pass_options
@told
def verify(options: Options, path: str) -> None:
    """Check every record, and that queues and index agree with the log. Exit code 1 when something is wrong."""
    report = inspect.verify(path)
    output.record(report.as_row(), options.style)
    for fault in report.faults:
        click.echo(fault, err=True)
    if report.faults:
        raise click.exceptions.Exit(1)


@store.command()
@click.argument("path", type=click.Path(exists=True, file_okay=False))
@click.option("--topic", default=None, help="Only this topic.")
@click.option("--from-offset", default=0, show_default=True, help="Log offset of a record to begin at (bytes).")
@click.option("--max", "limit", default=20, show_default=True, help="How many records.")
@pass_options
@told
def dump(options: Options, path: str, topic: str | None, from_offset: int, limit: int) -> None:
    """Print records as they lie in the log."""
    columns = ["log_offset", "size", "topic", "queue", "queue_offset", "tag", "keys", "properties", "body"]
    output.rows(inspect.dump(path, topic, from_offset, limit), columns, options.style)
