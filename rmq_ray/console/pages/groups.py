"""Consumer groups: all of them with the greatest lag first, and one by queue."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from rmq_ray.console import figures
from rmq_ray.console.messages import link
from rmq_ray.console.page import ConsolePage, Live, Show, Visit
from rmq_ray.console.source import Answers
from rmq_ray.errors import GroupNotFound
from rmq_ray.model.topics import retry_topic
from rmq_ray.remoting.wire.overview import CLIENT, DELAYED, GROUP_QUEUE, UNCOMMITTED, named

ROWS_MAX = 500
"""So many rows are sent; a filter finds the others."""


def groups(visit: Visit) -> Response:
    """All groups."""
    answers = visit.source.overview(["groups"])
    return visit.page("groups.html", answers, **_listed(visit, answers))


def rows(visit: Visit) -> str:
    """Its table, again and again."""
    answers = visit.source.overview(["groups"])
    return visit.fragment("groups_rows.html", answers, **_listed(visit, answers))


def _listed(visit: Visit, answers: Answers) -> dict[str, Any]:
    wanted, system = visit.query("q").strip().lower(), bool(visit.query("system"))
    found = [
        row for row in figures.group_rows(answers, system=system) if wanted in row.group.lower()
    ]
    return {"rows": found[:ROWS_MAX], "found": len(found), "q": wanted, "system": system}


def group(visit: Visit) -> Response:
    """One group."""
    name = visit.part("group")
    answers = visit.source.overview(group=name)
    return visit.page("group.html", answers, **_one(name, answers))


def group_rows(visit: Visit) -> str:
    """The same without its frame, again and again."""
    name = visit.part("group")
    answers = visit.source.overview(group=name)
    return visit.fragment("group_rows.html", answers, **_one(name, answers))


def _one(name: str, answers: Answers) -> dict[str, Any]:
    told = {
        broker: overview["group"]
        for broker, overview in answers.found.items()
        if overview["group"]["known"] or overview.get("group_queues")
    }
    if not told and not answers.missing:
        raise GroupNotFound(f"no broker knows the group {name!r}", name)
    queues = [
        {
            **row,
            "broker": broker,
            "lag": max(0, row["high"] - max(row["low"], row["committed"] or 0)),
            "committed_age_ms": _age_of_commit(told.get(broker, {}), row),
            "waits": _next(name, broker, row),
        }
        for broker, overview in answers.found.items()
        for row in named(GROUP_QUEUE, overview.get("group_queues", ()))
    ]
    members = [
        {**row, "broker": broker}
        for broker, one in told.items()
        for row in named(CLIENT, one.get("members", ()))
    ]
    retries, retries_at_least = figures.waits(answers, DELAYED, retry_topic(name))
    known = all("group_queues" in overview for overview in answers.found.values())
    lag = sum(row["lag"] for row in queues)
    return {
        "group": name,
        "lag": lag if lag or (known and not answers.missing) else None,
        "at_least": bool(answers.missing) or not known,
        "retries": retries,
        "retries_at_least": retries_at_least,
        "topics": _topics(name, answers, queues, told),
        "queues": sorted(queues, key=lambda row: (-row["lag"], row["topic"], row["broker"])),
        "members": sorted(members, key=lambda row: (row["client_id"], row["broker"])),
        "client_ids": sorted({row["client_id"] for row in members}),
        "settings": next(iter(told.values()), {}),
        "subscriptions": sorted({tuple(one) for t in told.values() for one in _subscribed(t)}),
        "conflicts": _conflicts(told),
    }


def _topics(
    group: str, answers: Answers, queues: list[dict[str, Any]], told: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """What waits before it is in the topics that the group reads."""
    names = {row["topic"] for row in queues}
    names |= {one[0] for brokers in told.values() for one in _subscribed(brokers)}
    return [
        {
            "topic": topic,
            "delayed": figures.waits(answers, DELAYED, topic),
            "uncommitted": figures.waits(answers, UNCOMMITTED, topic),
        }
        for topic in sorted(names - {retry_topic(group)})
    ]


def _next(group: str, broker: str, row: dict[str, Any]) -> str:
    """The page of the message that it consumes next; "" = none waits."""
    at = max(row["low"], row["committed"] or 0)
    if at >= row["high"]:
        return ""
    return link(row["topic"], broker, row["queue"], at, group=group)


def _subscribed(told: dict[str, Any]) -> list[list[str]]:
    found: list[list[str]] = told.get("subscriptions", [])
    return found


def _conflicts(told: dict[str, dict[str, Any]]) -> list[tuple[str, str, list[str]]]:
    found: dict[tuple[str, str], set[str]] = {}
    for one in told.values():
        for topic, text, clients in one.get("conflicts", ()):
            found.setdefault((topic, text), set()).update(clients)
    return [(topic, text, sorted(clients)) for (topic, text), clients in sorted(found.items())]


def _age_of_commit(told: dict[str, Any], row: dict[str, Any]) -> int | None:
    age: int | None = told.get("ages", {}).get(row["topic"], {}).get(row["queue"])
    return age


PAGES: tuple[ConsolePage, ...] = (
    Show("/groups", groups, nav="Groups"),
    Show("/groups/{group}", group),
    Live("/live/groups", rows),
    Live("/live/groups/{group}", group_rows),
)
