"""The front page: what is wrong first, then brokers, their copies, disks, name servers and the
controller.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse, Response

from rmq_ray.console import figures
from rmq_ray.console.page import ConsolePage, Live, Show, Visit
from rmq_ray.console.source import NAME_SERVER, Answers

WORST_MAX = 8
PARTS = ("status", "groups")


def front(visit: Visit) -> Response:
    """The cluster."""
    answers, data = _seen(visit)
    return visit.page("cluster.html", answers, **data)


def rows(visit: Visit) -> str:
    """The same without its frame, again and again."""
    answers, data = _seen(visit)
    return visit.fragment("cluster_rows.html", answers, **data)


def _seen(visit: Visit) -> tuple[Answers, dict[str, Any]]:
    source = visit.source
    asked = {
        "overview": lambda: source.overview(PARTS),
        "name servers": source.name_servers,
    }
    if source.probe is not None:
        asked["controller"] = source.probe.controller
    told, silent = source.together(**asked)
    answers = told.get("overview") or Answers({}, {NAME_SERVER: silent.get("overview", "")})
    groups = figures.group_rows(answers)
    return answers, {
        "brokers": figures.broker_rows(answers),
        "worst": [row for row in groups if row.state not in ("ok", "not begun")][:WORST_MAX],
        "dead": sorted(
            (row for row in groups if row.dead_letters), key=lambda row: -(row.dead_letters or 0)
        )[:WORST_MAX],
        "groups": len(groups),
        "retries_unknown": any(row.retries is None for row in groups),
        "name_servers": told.get("name servers", {}),
        "name_servers_silent": silent.get("name servers", ""),
        # It is asked as the console, not as the account that signed in.
        "controller": told.get("controller") if answers.found and not answers.limited else None,
        "controller_silent": silent.get("controller", ""),
    }


def rates(visit: Visit) -> Response:
    """For the chart."""
    visit.check_operator()
    return JSONResponse(visit.console.rates.columns())


PAGES: tuple[ConsolePage, ...] = (
    Show("/", front, nav="Cluster"),
    Live("/live/cluster", rows),
    Show("/rates.json", rates),
)
