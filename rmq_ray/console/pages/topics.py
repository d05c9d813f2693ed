"""Topics: all of them, and one by queue with the groups that read it."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from rmq_ray.console import figures
from rmq_ray.console.page import ConsolePage, Show, Visit
from rmq_ray.errors import TopicNotFound
from rmq_ray.remoting.wire.overview import DELAYED, TOPIC, TOPIC_QUEUE, UNCOMMITTED, named

ROWS_MAX = 500


def topics(visit: Visit) -> Response:
    """All topics."""
    answers = visit.source.overview(["topics"])
    wanted, system = visit.query("q").strip().lower(), bool(visit.query("system"))
    found = [
        row for row in figures.topic_rows(answers, system=system) if wanted in row.topic.lower()
    ]
    return visit.page(
        "topics.html",
        answers,
        rows=found[:ROWS_MAX],
        found=len(found),
        q=wanted,
        system=system,
    )


def topic(visit: Visit) -> Response:
    """One topic."""
    name = visit.part("topic")
    answers = visit.source.overview(topic=name)
    settings = {
        broker: named(TOPIC, [overview["topic"]])[0]
        for broker, overview in answers.found.items()
        if overview.get("topic")
    }
    if not settings and not answers.missing:
        raise TopicNotFound(f"no broker has the topic {name!r}", name)
    queues: list[dict[str, Any]] = [
        {**row, "broker": broker, "messages": row["high"] - row["low"]}
        for broker, overview in sorted(answers.found.items())
        for row in named(TOPIC_QUEUE, overview.get("topic_queues", ()))
    ]
    known = all("topic_queues" in overview for overview in answers.found.values())
    messages = sum(row["messages"] for row in queues)
    complete = known and not answers.missing
    return visit.page(
        "topic.html",
        answers,
        topic=name,
        settings=settings,
        queues=queues,
        messages=messages if messages or complete else None,
        at_least=not complete,
        first_ms=min((row["first_ms"] for row in queues if row["first_ms"]), default=None),
        last_ms=max((row["last_ms"] for row in queues if row["last_ms"]), default=None),
        groups=figures.lag_rows(answers, "topic_lags"),
        delayed=figures.waits(answers, DELAYED, name),
        uncommitted=figures.waits(answers, UNCOMMITTED, name),
    )


PAGES: tuple[ConsolePage, ...] = (
    Show("/topics", topics, nav="Topics"),
    Show("/topics/{topic}", topic),
)
