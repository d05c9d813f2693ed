"""What was refused and what was changed, by whom, the newest first."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.responses import Response

from rmq_ray.console.page import ConsolePage, Show, Visit
from rmq_ray.console.source import Answers
from rmq_ray.errors import ClusterError

LINES_MAX = 200
FILTERS = ("who", "request", "since")


def audit(visit: Visit) -> Response:
    """Lines of all servers."""
    visit.check_operator()
    probe, wanted = visit.source.probe, {name: visit.query(name).strip() for name in FILTERS}
    if probe is None:
        raise ClusterError(
            "audit logs are read through the cluster's Ray cluster, which this console does not "
            "reach: each server writes audit.log beside its store"
        )
    refused = bool(visit.query("refused"))
    asked = {"audit": partial(probe.audit, LINES_MAX, refused=refused, **wanted)}
    told, silent = visit.source.together(**asked)
    lines: list[dict[str, Any]] = told.get("audit", [])
    missing = silent | {
        str(line["party"]): str(line["reason"]) for line in lines if line["event"] == "unknown"
    }
    rows = [_row(line) for line in reversed(lines) if line["event"] != "unknown"]
    return visit.page("audit.html", Answers({}, missing), rows=rows, refused=refused, wanted=wanted)


def _row(line: dict[str, Any]) -> dict[str, Any]:
    old, new = line.get("old") or {}, line.get("new") or {}
    told = line.get("reason") or ", ".join(
        f"{name} {value}" + (f" (was {old[name]})" if name in old else "")
        for name, value in new.items()
        if value != old.get(name)
    )
    return {
        "time": line.get("time", ""),
        "event": line["event"],
        "who": line.get("account") or line.get("address", ""),
        "party": line.get("party", ""),
        "request": line.get("request", ""),
        "resources": ", ".join(line.get("resources", ())),
        "told": told,
    }


PAGES: tuple[ConsolePage, ...] = (Show("/audit", audit, nav="Audit"),)
