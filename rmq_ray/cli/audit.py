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
@click.option("--request", default="", help="A part of a request's name, or its code.")
@click.option("--refused", is_flag=True, help="Only refusals.")
@pass_options
@told
def audit(  # noqa: PLR0913 - one a filter
    options: Options, lines: int, since: str, who: str, request: str, refused: bool
) -> None:
    """The newest lines of the audit logs of all brokers and name servers, oldest first. `told`: of
    a change what is new, and what was; of a refusal or failure why. JSON has the lines as they are.
    """
    found = options.connect().audit(
        lines=lines, since=since, who=who, refused=refused, request=request
    )
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
                "told": line.get("reason") or _pairs(line.get("old"), line.get("new")),
            }
            for line in found
        ],
        COLUMNS,
        options.style,
    )


def _pairs(old: object, new: object) -> str:
    """What is new, with what it was; of a change only what differs."""
    before = old if isinstance(old, dict) else {}
    after = new if isinstance(new, dict) else {}
    return " ".join(
        f"{name}={value}" + (f" (was {before[name]})" if name in before else "")
        for name, value in after.items()
        if value != before.get(name)
    )
