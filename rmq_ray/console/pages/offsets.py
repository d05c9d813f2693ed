"""Where a group goes on: a preview of every queue, then exactly what was shown is done. Also one
message that a group cannot get past: left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from rmq_ray.console import messages
from rmq_ray.console.page import ConsolePage, FormChange, Show, Visit
from rmq_ray.console.pages.messages import time_ms_of
from rmq_ray.console.source import Answers
from rmq_ray.errors import AdminError, ClientError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.validators import check_group, check_topic
from rmq_ray.remoting.wire.browse import FROM, BrowseHeader
from rmq_ray.remoting.wire.overview import GROUP_QUEUE, named

TARGETS = {
    "last": "the end: skip all that waits",
    "first": "the first message that is there",
    "time": "a store time",
    "offset": "an offset, the same in every queue",
}


def preview(visit: Visit) -> Response:
    """What would move, by how much. Nothing moves."""
    group, topic, to = visit.part("group"), visit.query("topic"), visit.query("to")
    check_group(group)
    asked: dict[str, Callable[[], Any]] = {"group": lambda: visit.source.overview(group=group)}
    if topic and to:
        check_topic(topic)
        header = _question(visit, group, topic, to)
        asked["offsets"] = lambda: visit.source.browse(header)
    told, missing = visit.source.together(**asked)
    for answers in told.values():
        missing |= answers.missing
    seen = told["group"].found if "group" in told else {}
    topics = sorted(
        {
            row["topic"]
            for one in seen.values()
            for row in named(GROUP_QUEUE, one.get("group_queues", ()))
        }
    )
    rows = _rows(told["offsets"], to) if "offsets" in told else []
    members = {one for answer in seen.values() for one in _members(answer)}
    return visit.page(
        "offsets.html",
        Answers({}, missing),
        group=group,
        topic=topic,
        topics=topics,
        to=to,
        targets=TARGETS,
        time=visit.query("time"),
        offset=visit.query("offset"),
        rows=rows,
        members=len(members),
        again=sum(max(0, -row["moved_by"]) for row in rows),
        skipped=sum(max(0, row["moved_by"]) for row in rows),
    )


def _members(told: dict[str, Any]) -> list[str]:
    return [row[2] for row in told["group"].get("members", ())]


def _question(visit: Visit, group: str, topic: str, to: str) -> BrowseHeader:
    if to not in TARGETS:
        raise ClientError(f"a group goes to one of {', '.join(TARGETS)}, not {to[:20]!r}")
    time_ms = time_ms_of(visit.query("time")) if to == "time" else -1
    offset = visit.number("offset", -1, 0) if to == "offset" else -1
    if to == "time" and time_ms < 0:
        raise ClientError("give the time from which on the group shall consume")
    return BrowseHeader(topic, group, FROM, offset=offset, time_ms=time_ms, count=0)


def _rows(answers: Answers, to: str) -> list[dict[str, Any]]:
    found = []
    for row in messages.queues(answers):
        now = max(row["low"], row["committed"] or 0)
        target = {"first": row["low"], "last": row["high"]}.get(to, row["at"])
        found.append({**row, "now": now, "target": target, "moved_by": target - now})
    return found


def move(visit: Visit) -> Response:
    """What the preview showed; a queue that it did not show stays."""
    group, topic = visit.part("group"), visit.field("topic")
    check_group(group)
    check_topic(topic)
    targets = dict(_target(topic, text) for text in visit.fields("target"))
    if not targets:
        raise ClientError("there is nothing to move: look at a preview first")
    return _moved(visit, group, topic, targets)


def skip(visit: Visit) -> Response:
    """Go on behind one message that the group has not got past."""
    group, topic = visit.part("group"), visit.field("topic")
    check_group(group)
    check_topic(topic)
    queue = MessageQueue(topic, visit.field("broker"), visit.number("queue", -1))
    offset = visit.number("offset", -1)
    header = BrowseHeader(topic, group, FROM, queue.queue_id, offset, count=0)
    told = messages.queues(visit.source.browse(header, queue.broker_name))
    committed = max(told[0]["low"], told[0]["committed"] or 0) if told else None
    if committed != offset:
        raise AdminError(
            f"{group} waits at {committed} in queue {queue.queue_id} of {topic}, not at message "
            f"{offset}: nothing was skipped",
            offset,
        )
    return _moved(visit, group, topic, {queue: offset + 1})


def _moved(visit: Visit, group: str, topic: str, targets: dict[MessageQueue, int]) -> Response:
    told = " ".join(f"{queue.broker_name}:{queue.queue_id}={at}" for queue, at in targets.items())
    visit.source.note("move offsets", group=group, topic=topic, to=told[:400])
    rows = visit.source.admin.seek_group(group, topic, targets, execute=True)
    moved = sum(1 for row in rows if row["moved_by"])
    path = f"/groups/{group.replace('%', '%25')}"
    return visit.done(path, f"{group} goes on elsewhere in {moved} queues of {topic}.")


def _target(topic: str, text: str) -> tuple[MessageQueue, int]:
    """``broker:queue:offset``, as the preview's form has it."""
    broker, _, rest = text.partition(":")
    queue, _, offset = rest.partition(":")
    if not (broker and queue.isdecimal() and offset.isdecimal()):
        raise ClientError(f"{text[:60]!r} is no target: load the preview again")
    return MessageQueue(topic, broker, int(queue)), int(offset)


PAGES: tuple[ConsolePage, ...] = (
    Show("/groups/{group}/offsets", preview),
    FormChange("/groups/{group}/offsets", move),
    FormChange("/groups/{group}/skip", skip),
)
