"""Messages that no consumer sees yet: those with a level or a time, and halves without an end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.responses import Response

from rmq_ray.console import messages
from rmq_ray.console.page import ConsolePage, Show, Visit
from rmq_ray.console.source import Answers
from rmq_ray.model.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from rmq_ray.remoting.wire.browse import WAITING, BrowseHeader

COUNT = 50
PARTS = (("levels", SCHEDULE_TOPIC), ("times", TIMER_TOPIC), ("halves", HALF_TOPIC))


def waiting(visit: Visit) -> Response:
    """The first due of each kind; a half waits for its producer, the oldest first."""
    source = visit.source
    asked: dict[str, Callable[[], Any]] = {
        name: partial(source.browse, BrowseHeader(topic, None, WAITING, count=COUNT))
        for name, topic in PARTS
    }
    asked["status"] = lambda: source.overview(["status"])
    told, silent = source.together(**asked)
    missing = dict(silent)
    for answers in told.values():
        missing |= answers.missing
    parts = {name: _part(told.get(name)) for name, _ in PARTS}
    status = [one["status"] for one in told["status"].found.values()] if "status" in told else []
    complete = "status" in told and not told["status"].missing
    return visit.page(
        "waiting.html",
        Answers({}, missing),
        parts=parts,
        now_ms=source.clock.now_ms(),
        counts={
            "times": _sum(status, "timing_messages"),
            "halves": _sum(status, "half_messages"),
        },
        at_least=not complete,
    )


def _sum(status: list[dict[str, Any]], name: str) -> int | None:
    found = [one[name] for one in status if name in one]
    return sum(found) if found else None


def _part(answers: Answers | None) -> dict[str, Any] | None:
    """None = unknown."""
    if answers is None or (answers.missing and not answers.found):
        return None
    rows = messages.rows(answers)
    rows.sort(key=lambda row: (row["due_ms"] or 0, row["store_ms"], row["log_offset"]))
    return {"rows": rows[:COUNT], "more": messages.more(answers) or len(rows) > COUNT}


PAGES: tuple[ConsolePage, ...] = (Show("/waiting", waiting, nav="Waiting"),)
