"""``audit``: what was refused and what was changed, by whom."""

from __future__ import annotations

import click

from rmq_ray.cli import output
from rmq_ray.cli.context import Options, pass_options, told

COLUMNS = ["time", "event", "party", "who", "request", "resources", "repeats", "told"]


@click.command(short_help="What was refused and what was changed, by whom.")
@click.option("--lines", default=50, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--since", default="", help="A time (UTC), or its beginning: 2026-11-22T10:00.")
@click.option("--who", default="", help="A part of an account's name or of an address.")
@click.option("--refused", is_flag=True, help="Only refusals.")
@pass_options
@told
def audit(options: Options, lines: int, since: str, who: str, refused: bool) -> None:
    """The newest lines of the audit logs of all brokers and name servers, oldest first. `told`: of
    a change what was asked for, of a refusal or failure why. JSON has the lines as they are.
    """
    found = options.connect().audit(lines=lines, since=since, who=who, refused=refused)
    if options.style == "json":
        output.rows(found, sorted({name for line in found for name in line}), options.style)
        return
    if not found:
        click.echo("nothing was refused or changed yet")
        return
    output.rows(
        [
            {
                **line,
                "who": line.get("account") or line.get("address"),
                "resources": " ".join(line.get("resources", ())),
                "told": line.get("reason") or _pairs(line.get("new")),
            }
            for line in found
        ],
        COLUMNS,
        options.style,
    )


def _pairs(values: object) -> str:
    return (
        " ".join(f"{name}={value}" for name, value in values.items())
        if isinstance(values, dict)
        else ""
    )
