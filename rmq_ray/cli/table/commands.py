"""``table create | list | describe | flush | pause | resume | alter | compact | expire | replay |
verify | drop``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_ray.cli.base import output
from rmq_ray.cli.base.context import Options, pass_options, told
from rmq_ray.cli.shell.completion import topic_names
from rmq_ray.cli.shell.watch import watched

if TYPE_CHECKING:
    from rmq_ray.table.tables import Tables

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
COLUMNS = ["topic", "location", "state", "rows", "lag_messages", "lag_seconds", "error"]
_SCHEMA = click.option(
    "--schema",
    default=None,
    help="Columns of the bodies, like 'user string, amount double'; or @FILE that has them.",
)


def duration(text: str) -> float:
    """``10s``, ``5m``, ``2h``, ``30d`` in seconds; a bare number is seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(text))
    if found is None:
        raise click.BadParameter(f"{text!r} is no time: write 10s, 5m, 2h or 30d")
    return float(found[1]) * _UNITS[found[2]]


@click.group()
def table() -> None:
    """Topics as tables in an object store: create, flush, verify and what keeps them small."""


def _tables(options: Options) -> Tables:
    return options.connect().tables


def _text(schema: str | None) -> str | None:
    if schema is None or not schema.startswith("@"):
        return schema
    return Path(schema[1:]).read_text("utf-8").replace("\n", " ")


@table.command()
@click.argument("topic", shell_complete=topic_names)
@click.option("--location", required=True, help="/data/orders, s3://bucket/orders, gs://, hdfs://")
@click.option(
    "--max-lag",
    default="60s",
    show_default=True,
    type=duration,
    help="10s at least.",
    metavar="TIME",
)
@click.option(
    "--catalog",
    default=None,
    help="Iceberg: a catalog that pyiceberg knows by this name, or its properties, "
    "'type=sql,uri=sqlite:////data/catalog.db'.",
)
@click.option("--namespace", default="default", show_default=True, help="In the catalog.")
@click.option("--decode", type=click.Choice(["json", "msgpack", "arrow"]), default=None)
@_SCHEMA
@click.option("--hold-bytes", type=click.IntRange(0), default=None, help="See docs/tables.md.")
@pass_options
@told
def create(  # noqa: PLR0913 - its options
    options: Options,
    topic: str,
    location: str,
    max_lag: float,
    catalog: str | None,
    namespace: str,
    decode: str | None,
    schema: str | None,
    hold_bytes: int | None,
) -> None:
    """Make a topic a table, from its oldest message on."""
    if "://" not in location:
        location = str(Path(location).absolute())
    settings = {} if hold_bytes is None else {"hold_bytes": hold_bytes}
    made = _tables(options).create(
        topic,
        location,
        max_lag_s=max_lag,
        catalog=catalog,
        namespace=namespace,
        decode=decode or "",
        columns=_text(schema),
        **settings,
    )
    output.record({name: made.get(name, "") for name in COLUMNS}, options.style)


@table.command("list")
@pass_options
@watched
@told
def list_tables(options: Options) -> None:
    """All tables, their rows and how far they lag."""
    found = _tables(options).list()
    output.rows(
        [{name: row.get(name, "") for name in COLUMNS} for row in found], COLUMNS, options.style
    )


@table.command()
@click.argument("topic", shell_complete=topic_names)
@pass_options
@watched
@told
def describe(options: Options, topic: str) -> None:
    """Settings, offsets, lag, gaps, and what keeps it from going on."""
    output.record(_tables(options).describe(topic), options.style)


@table.command()
@click.argument("topic", shell_complete=topic_names)
@pass_options
@told
def flush(options: Options, topic: str) -> None:
    """Return when all that was visible at the call is committed."""
    offsets = _tables(options).flush(topic, options.timeout_s)
    output.record({"topic": topic, "offsets": offsets}, options.style)


@table.command()
@click.argument("topic", shell_complete=topic_names)
@pass_options
@told
def pause(options: Options, topic: str) -> None:
    """Commit nothing until `resume`."""
    _tables(options).pause(topic)
    output.record({"topic": topic, "state": "paused"}, options.style)


@table.command()
@click.argument("topic", shell_complete=topic_names)
@pass_options
@told
def resume(options: Options, topic: str) -> None:
    """The end of `pause`."""
    _tables(options).resume(topic)
    output.record({"topic": topic, "state": "running"}, options.style)


@table.command()
@click.argument("topic", shell_complete=topic_names)
@_SCHEMA
@click.option("--max-lag", default=None, type=duration, help="10s at least.", metavar="TIME")
@click.option("--hold-bytes", type=click.IntRange(0), default=None, help="See docs/tables.md.")
@pass_options
@told
def alter(
    options: Options,
    topic: str,
    schema: str | None,
    max_lag: float | None,
    hold_bytes: int | None,
) -> None:
    """Change what is given; columns may be added and widened."""
    found = _tables(options).alter(
        topic, columns=_text(schema), max_lag_s=max_lag, hold_bytes=hold_bytes
    )
    output.record(found, options.style)


@table.command()
@click.argument("topic", shell_complete=topic_names)
@pass_options
@told
def compact(options: Options, topic: str) -> None:
    """Make large files of small ones, as Ray tasks."""
    output.record({"topic": topic, **_tables(options).compact(topic)}, options.style)


@table.command()
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "--older-than", required=True, type=duration, metavar="TIME", help="30d; whole days go."
)
@pass_options
@told
def expire(options: Options, topic: str, older_than: float) -> None:
    """Forget old days of the table, and old snapshots of its catalog."""
    options.confirm(f"Delete what the table of {topic} has from before {older_than:g} s ago?")
    output.record({"topic": topic, **_tables(options).expire(topic, older_than)}, options.style)


@table.command()
@click.argument("topic", shell_complete=topic_names)
@pass_options
@told
def replay(options: Options, topic: str) -> None:
    """Try rejected rows again with the columns as they are now."""
    output.record({"topic": topic, **_tables(options).replay(topic)}, options.style)


@table.command()
@click.argument("topic", shell_complete=topic_names)
@pass_options
@told
def verify(options: Options, topic: str) -> None:
    """Compare table and log: exit code 1 where they differ."""
    found = _tables(options).verify(topic)
    columns = ["broker", "queue", "first", "next", "table_rows", "log_rows", "equal"]
    output.rows([{name: row[name] for name in columns} for row in found], columns, options.style)
    if not all(row["equal"] for row in found):
        raise click.ClickException(
            "table and log differ: `table describe` tells gaps; the rest is a defect"
        )


@table.command()
@click.argument("topic", shell_complete=topic_names)
@click.option("--delete-files", is_flag=True, help="Else they stay, and may be gone on with.")
@pass_options
@told
def drop(options: Options, topic: str, delete_files: bool) -> None:
    """The topic is no table any more."""
    more = " and delete its files" if delete_files else ""
    options.confirm(f"Drop the table of {topic}{more}?")
    found = _tables(options).drop(topic, delete_files=delete_files)
    output.record({"topic": topic, "state": "dropped", **found}, options.style)
