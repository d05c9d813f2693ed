"""Messages of a topic: the newest, from a time or an offset on, by key or id; live; one message
with its body decoded; the trace of one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from rmq_ray.client.admin.admin import trace_rows
from rmq_ray.console import bodies, messages
from rmq_ray.console.page import ConsolePage, Live, Show, Visit
from rmq_ray.console.source import Answers
from rmq_ray.errors import AdminError, ClientError
from rmq_ray.model.moments import moment_ms, unless_seconds
from rmq_ray.model.topics import DLQ_PREFIX, TRACE_TOPIC
from rmq_ray.protocol.validators import check_topic
from rmq_ray.remoting.wire.browse import FROM, NEWEST, BrowseHeader

COUNT, COUNT_MAX = 50, 500
FOUND_MAX = 64
TAIL_ROWS = 50


def listed(visit: Visit) -> Response:
    """Messages of one topic."""
    topic, key = visit.query("topic").strip(), visit.query("key").strip()
    asked = {name: visit.query(name).strip() for name in ("key", "time", "broker", "queue")}
    asked["offset"] = visit.query("offset").strip()
    if not topic:
        answers = visit.source.overview(["topics"])
        topics = sorted({row[0] for told in answers.found.values() for row in told["topics"]})
        return visit.page("messages.html", answers, topic="", topics=topics, asked=asked, rows=None)
    check_topic(topic)
    links: dict[str, str] = {}
    if key:
        answers = visit.source.find(topic, key, FOUND_MAX)
        found = [
            messages.seen({**row, "broker": broker})
            for broker, told in answers.found.items()
            for row in told["rows"]
        ]
        rows, more = messages.newest_first(found), len(found) >= FOUND_MAX
    else:
        answers, rows, more, links = _browsed(visit, topic, asked)
    return visit.page(
        "messages.html",
        answers,
        topic=topic,
        topics=(),
        asked=asked,
        rows=rows,
        more=more,
        links=links,
        tail=visit.query("tail") == "1" and not key,
    )


def _browsed(
    visit: Visit, topic: str, asked: dict[str, str]
) -> tuple[Answers, list[dict[str, Any]], bool, dict[str, str]]:
    """``links``: words -> where to go on."""
    count = visit.number("count", COUNT, 1, COUNT_MAX)
    time_ms, queue = time_ms_of(asked["time"]), visit.number("queue", -1, -1)
    offset = visit.number("offset", -1, -1)
    if offset >= 0 and (queue < 0 or not asked["broker"]):
        raise ClientError("an offset is one of a queue: give broker and queue, too")
    pick = NEWEST if time_ms < 0 and offset < 0 else FROM
    header = BrowseHeader(topic, None, pick, queue, offset, time_ms, count)
    answers = visit.source.browse(header, asked["broker"])
    found, more = messages.rows(answers), messages.more(answers)
    if pick == NEWEST:
        more = more or len(found) > count
        return answers, messages.newest_first(found)[:count], more, {}
    rows = messages.oldest_first(found)[:count]
    more = more or len(found) > len(rows)
    links = {}
    where = {"topic": topic, "count": count, "broker": asked["broker"]}
    if queue >= 0 and asked["broker"]:
        where["queue"] = queue
        begin = messages.queues(answers)[0]["at"] if messages.queues(answers) else 0
        if begin > 0:
            links["Before"] = _to(where | {"offset": max(0, begin - count)})
        if rows and more:
            links["Behind"] = _to(where | {"offset": rows[-1]["queue_offset"] + 1})
    elif rows and more:
        last_ms = rows[-1]["store_ms"]
        links["Later"] = _to(where | {"time": max(last_ms, time_ms + 1)})
    return answers, rows, more, links


def _to(where: dict[str, Any]) -> str:
    return "/messages?" + urlencode({name: value for name, value in where.items() if value != ""})


def time_ms_of(text: str) -> int:
    """-1 = none. UTC, as a browser's field has it, or ms since 1970."""
    if not text:
        return -1
    if text.isdecimal() and len(text) < 16:
        return unless_seconds(int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ClientError(
            f"{text[:40]!r} is no time: give one like 2026-11-22T10:00, UTC, or ms since 1970"
        ) from None
    return moment_ms(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def tail(visit: Visit) -> str:
    """The newest of a topic, again and again."""
    topic = visit.query("topic")
    check_topic(topic)
    answers = visit.source.browse(BrowseHeader(topic, count=TAIL_ROWS), visit.query("broker"))
    rows = messages.newest_first(messages.rows(answers))[:TAIL_ROWS]
    return visit.fragment("messages_rows.html", answers, rows=rows, asked={"key": ""})


def one(visit: Visit) -> Response:
    """One message. ``group``: who waits for it."""
    topic, broker, form = visit.query("topic"), visit.query("broker"), visit.query("as", "auto")
    queue, offset = visit.number("queue", 0), visit.number("offset", 0)
    check_topic(topic)
    header = BrowseHeader(topic, None, FROM, queue, offset, count=1)
    answers = visit.source.browse(header, broker)
    found = [row for row in messages.rows(answers) if row["queue_offset"] == offset]
    if not found and not answers.missing:
        raise AdminError(
            f"queue {queue} of {topic} on {broker} has no message {offset} now: it was removed "
            f"with an old segment, cannot be read, or was never stored",
            offset,
        )
    message = found[0] if found else None
    group = visit.query("group") or (topic.removeprefix(DLQ_PREFIX) if _dead(topic) else "")
    return visit.page(
        "message.html",
        answers,
        message=message,
        shown=bodies.shown(message["body"], form) if message else None,
        forms=bodies.FORMS,
        form=form if form in bodies.FORMS else bodies.AUTO,
        topic=topic,
        broker=broker,
        queue=queue,
        offset=offset,
        bounds=next(iter(messages.queues(answers)), None),
        group=group,
        dead=_dead(topic),
        again=lambda **more: messages.link(topic, broker, queue, offset, **more),
    )


def _dead(topic: str) -> bool:
    return topic.startswith(DLQ_PREFIX)


def trace(visit: Visit) -> Response:
    """What traced clients wrote of one message."""
    wanted = visit.query("id").strip()
    topic = visit.query("topic").strip() or TRACE_TOPIC
    answers, rows = Answers({}), []
    if wanted:
        check_topic(topic)
        answers = visit.source.find(topic, wanted, FOUND_MAX)
        found = [row for told in answers.found.values() for row in told["rows"]]
        rows = trace_rows(found, wanted)
    begin_ms = rows[0]["time_ms"] if rows else 0
    for row in rows:
        row["after_ms"] = row["time_ms"] - begin_ms
    return visit.page("trace.html", answers, wanted=wanted, topic=topic, rows=rows)


PAGES: tuple[ConsolePage, ...] = (
    Show("/messages", listed, nav="Messages"),
    Live("/live/messages", tail),
    Show("/messages/at", one),
    Show("/trace", trace),
)
