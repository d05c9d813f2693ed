"""Who is connected: consumers and producers, with the brokers that they reach."""

from __future__ import annotations

from starlette.responses import Response

from rmq_ray.console import figures
from rmq_ray.console.page import ConsolePage, Show, Visit

ROWS_MAX = 500


def clients(visit: Visit) -> Response:
    """All clients, a row for each group that one is in."""
    answers = visit.source.overview(["clients"])
    wanted = visit.query("q").strip().lower()
    found = [
        row
        for row in figures.client_rows(answers)
        if wanted in f"{row['group']} {row['client_id']} {row['address']}".lower()
    ]
    return visit.page("clients.html", answers, rows=found[:ROWS_MAX], found=len(found), q=wanted)


PAGES: tuple[ConsolePage, ...] = (Show("/clients", clients, nav="Clients"),)
