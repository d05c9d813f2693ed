"""Dead letters: groups that have some; those of one group, why each died; sent again, some or all
at a rate; as a file.
"""

from __future__ import annotations

import csv
import io
import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from starlette.responses import Response, StreamingResponse

from rmq_ray.client.admin.dead_letters import POSITION_GROUP, origin_topic
from rmq_ray.console import figures, messages
from rmq_ray.console.page import ConsolePage, FormChange, Live, Show, Visit
from rmq_ray.errors import BodyUnreadable, ClientError, TopicNotFound
from rmq_ray.model.topics import dlq_topic
from rmq_ray.protocol.validators import check_group
from rmq_ray.remoting.wire.browse import COUNT_MAX, FROM, NEWEST, BrowseHeader

COUNT = 100
DAY_MS = 24 * 3_600_000
AGES = (("the last hour", 3_600_000), ("today", DAY_MS), ("this week", 7 * DAY_MS))
COLUMNS = (
    "message_id topic died failed_with failed_on reconsume_times tag keys broker queue "
    "queue_offset born_ms store_ms properties body"
).split()


def groups(visit: Visit) -> Response:
    """Groups with dead letters, the most first."""
    answers = visit.source.overview(["groups"])
    rows = [row for row in figures.group_rows(answers) if row.dead_letters]
    rows.sort(key=lambda row: (-(row.dead_letters or 0), row.group))
    return visit.page("dead_letters.html", answers, rows=rows)


def group(visit: Visit) -> Response:
    """Of one group: the newest first, or from an age on."""
    name = visit.part("group")
    check_group(name)
    count, age = visit.number("count", COUNT, 1, COUNT_MAX), visit.number("age", 0, 0, 3)
    since_ms = visit.source.clock.now_ms() - AGES[age - 1][1] if age else -1
    header = BrowseHeader(
        dlq_topic(name),
        POSITION_GROUP if not visit.session.who else None,
        FROM if age else NEWEST,
        time_ms=since_ms,
        count=count,
    )
    try:
        answers = visit.source.browse(header)
    except TopicNotFound:
        return visit.page("dead_letters_none.html", group=name)
    found = messages.rows(answers)
    queues = messages.queues(answers)
    sort = messages.oldest_first if age else messages.newest_first
    positions_known = not visit.session.who and not answers.missing
    return visit.page(
        "dead_letters_group.html",
        answers,
        group=name,
        rows=sort(found)[:count],
        total=sum(row["high"] - row["low"] for row in queues),
        left=sum(_left(row) for row in queues) if positions_known else None,
        more=messages.more(answers) or len(found) > count,
        ages=AGES,
        age=age,
        job=visit.console.resends.of(name),
        again=_at(name),
    )


def _left(row: dict[str, Any]) -> int:
    """Not resent yet."""
    low, high, committed = int(row["low"]), int(row["high"]), int(row["committed"] or 0)
    return high - min(max(low, committed), high)


def progress(visit: Visit) -> str:
    """How far resending is, again and again."""
    name = visit.part("group")
    return visit.fragment("dead_letters_job.html", job=visit.console.resends.of(name), group=name)


def resend(visit: Visit) -> Response:
    """Those that are ticked, at once; or all of them at a rate."""
    name = visit.part("group")
    check_group(name)
    ids, which = visit.fields("id"), visit.field("which", "these")
    if which == "these":
        if not ids:
            raise ClientError("tick the dead letters that shall be resent")
        visit.source.note("resend dead letters", group=name, ids=" ".join(ids)[:400])
        sent = visit.source.admin.resend_dead_letters(name, message_ids=ids, execute=True)
        told = ", ".join(f"{count:,} to {topic}" for topic, count in sorted(sent.items()))
        return visit.done(_at(name), f"Resent {told}.")
    rate = visit.number("rate", 100, 1, 1_000_000)
    visit.source.note("resend dead letters", group=name, which=which, rate=str(rate))
    visit.console.resends.start(
        visit.source.discovery, name, rate, again=which == "all", who=visit.session.who
    )
    return visit.done(_at(name), f"Dead letters of {name} are being resent, {rate} a second.")


def stop(visit: Visit) -> Response:
    """End what was begun."""
    name = visit.part("group")
    visit.source.note("stop resending dead letters", group=name)
    visit.console.resends.stop(name)
    return visit.done(_at(name), "Resending ends after the part that is being sent.")


def _at(name: str) -> str:
    return f"/dead-letters/{name.replace('%', '%25')}"


def export(visit: Visit) -> Response:
    """All of them: an object a line, or a table."""
    name, kind = visit.part("group"), visit.query("format", "jsonl")
    check_group(name)
    if kind not in ("jsonl", "csv"):
        raise ClientError(f"dead letters are exported as jsonl or csv, not {kind[:20]!r}")
    rows = _all(visit, name)
    first = [row for row in (next(rows, None),) if row is not None]  # what is wrong is told now
    told = (_lines if kind == "jsonl" else _table)(chain(first, rows))
    head = {"Content-Disposition": f'attachment; filename="dead-letters-{_safe(name)}.{kind}"'}
    media = "application/jsonl" if kind == "jsonl" else "text/csv"
    return StreamingResponse(told, headers=head, media_type=media)


def _safe(name: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "-_" else "_" for sign in name)


def _all(visit: Visit, name: str) -> Iterator[dict[str, Any]]:
    for message in visit.source.admin.dead_letters(name):
        row = {
            "message_id": message.message_id,
            "topic": origin_topic(message),
            "died": message.store_ms,
            "failed_with": message.failed_with,
            "failed_on": message.failed_on,
            "reconsume_times": message.reconsume_times,
            "tag": message.tag,
            "keys": list(message.keys),
            "broker": message.queue.broker_name,
            "queue": message.queue.queue_id,
            "queue_offset": message.queue_offset,
            "born_ms": message.born_ms,
            "store_ms": message.store_ms,
            "properties": dict(message.all_properties),
        }
        try:
            body = message.body
        except BodyUnreadable:
            body = message.stored_body
        yield row | {"body": _body(body)}


def _body(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return "base64:" + b64encode(body).decode()


def _lines(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        yield json.dumps(row, ensure_ascii=False) + "\n"


def _table(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Texts that a spreadsheet would take for a formula begin with an apostrophe."""
    told = io.StringIO()
    writer = csv.writer(told)
    writer.writerow(COLUMNS)
    for row in rows:
        row["keys"], row["properties"] = " ".join(row["keys"]), json.dumps(row["properties"])
        values = [row[column] for column in COLUMNS]
        writer.writerow(
            [
                f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value
                for value in values
            ]
        )
        yield told.getvalue()
        told.seek(0)
        told.truncate()
    yield told.getvalue()


PAGES: tuple[ConsolePage, ...] = (
    Show("/dead-letters", groups, nav="Dead letters"),
    Show("/dead-letters/{group}", group),
    Show("/dead-letters/{group}/export", export),
    Live("/live/dead-letters/{group}", progress),
    FormChange("/dead-letters/{group}/resend", resend),
    FormChange("/dead-letters/{group}/stop", stop),
)
