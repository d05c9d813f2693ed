"""Writes the tables that pages have from the code: of requests (docs/wire-protocol.md, from
``rmq_ray.remoting.request_table``), of settings that change at run time (docs/settings.md, from
``rmq_ray.protocol.live_settings``).

python -m tools.page_tables
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rmq_ray.protocol.live_settings import SETTINGS, STORE
from rmq_ray.remoting.request_table import REQUESTS, Asker, Fence, Party, Resource, Row

DOCS = Path(__file__).resolve().parents[1] / "docs"
TITLES = {
    Party.BROKER: "Served by brokers",
    Party.NAME_SERVER: "Served by name servers",
    Party.CLIENT: "Sent by brokers to clients",
    Party.PORT: "Served by every port, before any party sees a frame",
    Party.NOBODY: "Known by name and answered with code 3, like every other code",
}
HEAD = "| code | name | header, body | who may ask | right | notes |\n" + "| --- " * 6 + "|"
FENCES = {
    Fence.HANDS_OUT: "writes, confirmed",
    Fence.LEADS: "writes",
    Fence.CONFIRMED: "",
    Fence.NOTHING: "not fenced",
}


def of_requests() -> str:
    """One table for each party."""
    parts = []
    for party, title in TITLES.items():
        rows = [row for row in REQUESTS if row.served_by is party]
        parts.append("\n".join([f"{title}:", "", HEAD, *map(line_of, rows), ""]))
    return "\n".join(parts)


def line_of(row: Row) -> str:
    """One row of the page's table."""
    carried = [row.header.__name__.removesuffix("Header")] if row.header else []
    carried += [row.body] if row.body else []
    askers = ", ".join(
        asker.name.lower() for asker in Asker if asker in row.asked_by and asker.name
    )
    resources = " + ".join(
        resource.name.lower()
        for resource in Resource
        if resource in row.resource and resource is not Resource.NOTHING and resource.name
    )
    right = f"{resources} {row.action.value}" if resources else ""
    notes = [
        FENCES[row.fence] if row.served_by is Party.BROKER else "",
        "master only" if row.master_only else "",
        "any state" if row.any_state and row.served_by is Party.BROKER else "",
        "hooks" if row.hooked else "",
        "audited" if row.audited else "",
    ]
    cells = [
        str(int(row.code)),
        f"`{row.code.name}`",
        "; ".join(carried),
        askers,
        right,
        ", ".join(note for note in notes if note),
    ]
    return f"| {' | '.join(cells)} |"


def of_settings() -> str:
    """Those of brokers that change at run time."""
    lines = ["| setting | RocketMQ's name | limits | takes effect |", "| --- | --- | --- | --- |"]
    for name, one in SETTINGS.items():
        apache = f"`{one.rocketmq}`" if one.rocketmq else ""
        apache += ", in percent" if one.percent else ""
        limits = one.possible.removesuffix(" ratio")
        cells = (f"`{name.removeprefix(STORE)}`", apache, limits, one.known.changes)
        lines.append(f"| {' | '.join(cells)} |".replace("  ", " "))
    return "\n".join(lines) + "\n"


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "wire-protocol.md": ("requests", of_requests),
    "settings.md": ("settings", of_settings),
}
"""Page -> name of its two marks, and what stands between them."""


def begin(page: str) -> str:
    """The mark before the table of a page."""
    return f"<!-- {TABLES[page][0]}: begin -->\n"


def with_table(page: str) -> str:
    """The text of a page with the table of today."""
    name, rendered = TABLES[page]
    before, _, rest = (DOCS / page).read_text("utf-8").partition(begin(page))
    end = f"<!-- {name}: end -->\n"
    _old, _, after = rest.partition(end)
    return f"{before}{begin(page)}\n{rendered()}\n{end}{after}"


def main() -> None:
    """Command line."""
    for page in TABLES:
        (DOCS / page).write_text(with_table(page), "utf-8")


if __name__ == "__main__":
    main()
