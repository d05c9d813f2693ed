"""What is made and set here: topics, settings of topics and groups, a message to try something."""

from __future__ import annotations

from starlette.responses import Response

from rmq_ray.client.producer.producer import Producer
from rmq_ray.console import messages
from rmq_ray.console.page import ConsolePage, FormChange, Visit
from rmq_ray.errors import ClientError
from rmq_ray.model.message import Message
from rmq_ray.model.topics import RETENTION_HOURS_MAX
from rmq_ray.protocol.validators import check_group, check_send_topic, check_topic

SENDER = "rmq-ray-console"
PROPERTIES_MAX = 50


def create_topic(visit: Visit) -> Response:
    """On every broker."""
    name = visit.field("topic").strip()
    hours = visit.number("retention_hours", 0, 0, RETENTION_HOURS_MAX)
    visit.source.admin.create_topic(
        name, visit.number("queues", 4, 1, 4_096), retention_hours=hours or None
    )
    return visit.done(f"/topics/{_quoted(name)}", f"Topic {name} is there.")


def alter_topic(visit: Visit) -> Response:
    """Queues, what may be done with it, how long it keeps; an empty field leaves it."""
    name = visit.part("topic")
    check_topic(name)
    queues, hours = visit.field("queues").strip(), visit.field("retention_hours").strip()
    permission = visit.field("permission")
    rest = visit.source.admin.alter_topic(
        name,
        queues=visit.number("queues", 1, 1, 4_096) if queues else None,
        permission=visit.number("permission", 6, 2, 6) if permission else None,
        retention_hours=visit.number("retention_hours", 0, 0, RETENTION_HOURS_MAX)
        if hours
        else None,
    )
    unread = sum(row["messages"] for row in rest)
    told = f" {unread} messages in queues that go are not consumed yet: they can be read."
    return visit.done(
        f"/topics/{_quoted(name)}", f"Topic {name} is set as told.{told if rest else ''}"
    )


def alter_group(visit: Visit) -> Response:
    """Retries, and whether it may consume."""
    name = visit.part("group")
    check_group(name)
    retries, enabled = visit.field("retry_max_times").strip(), visit.field("enabled")
    visit.source.admin.alter_group(
        name,
        retries=visit.number("retry_max_times", 16, -1, 1_000) if retries else None,
        consume=None if enabled not in ("yes", "no") else enabled == "yes",
    )
    return visit.done(f"/groups/{_quoted(name)}", f"Group {name} is set as told.")


def send(visit: Visit) -> Response:
    """One message; the page that comes is its own."""
    topic = visit.part("topic")
    check_send_topic(topic)
    body, tag = visit.field("body").encode(), visit.field("tag").strip() or None
    message = Message(topic, body, tag, visit.field("keys").split(), _properties(visit))
    visit.source.note("send a message", topic=topic, bytes=str(len(body)))
    with Producer(SENDER, discovery=visit.source.discovery) as producer:
        sent = producer.send(message)
    queue = sent.queue
    path = messages.link(topic, queue.broker_name, queue.queue_id, int(sent.queue_offset))
    return visit.done(path, f"Sent as {sent.message_id}.")


def _properties(visit: Visit) -> dict[str, str]:
    """A line for each: ``name=value``."""
    found = {}
    for line in visit.field("properties").splitlines():
        name, equals, value = line.partition("=")
        if not line.strip():
            continue
        if not equals or not name.strip():
            raise ClientError(f"{line[:60]!r} is no property: write name=value, one a line")
        found[name.strip()] = value.strip()
    if len(found) > PROPERTIES_MAX:
        raise ClientError(f"{len(found)} properties are more than {PROPERTIES_MAX}")
    return found


def _quoted(name: str) -> str:
    return name.replace("%", "%25").replace("|", "%7C")


PAGES: tuple[ConsolePage, ...] = (
    FormChange("/topics", create_topic),
    FormChange("/topics/{topic}/settings", alter_topic),
    FormChange("/topics/{topic}/send", send),
    FormChange("/groups/{group}/settings", alter_group),
)
