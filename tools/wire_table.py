"""Writes the table of requests into docs/wire-protocol.md, from ``rmq_ray.remoting.request_table``.

python -m tools.wire_table            write the page
python -m tools.wire_table --check    fail when the page says something else
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rmq_ray.remoting.request_table import REQUESTS, Asker, Fence, Party, Resource, Row

PAGE = Path(__file__).resolve().parents[1] / "docs" / "wire-protocol.md"
BEGIN, END = "<!-- requests: begin -->\n", "<!-- requests: end -->\n"
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


def rendered() -> str:
    """The section between the two marks."""
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


def replaced(page: str) -> str:
    """The page with the section of today."""
    before, _, rest = page.partition(BEGIN)
    _old, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{rendered()}\n{END}{after}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="the table of requests in docs/wire-protocol.md")
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    page = PAGE.read_text("utf-8")
    wanted = replaced(page)
    if parser.parse_args().check:
        raise SystemExit(
            0 if page == wanted else "docs/wire-protocol.md: python -m tools.wire_table"
        )
    PAGE.write_text(wanted, "utf-8")


if __name__ == "__main__":
    main()
