"""Messages as pages show them: rows out of what brokers answered to BROWSE_MESSAGES.

Decides how they are sorted over brokers, and what a message was before it failed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

from rmq_ray.codec.record import decode_record, offset_message_id
from rmq_ray.codec.record_row import record_row
from rmq_ray.console.bodies import preview
from rmq_ray.console.source import Answers
from rmq_ray.model.message import FAILED_ON, FAILED_WITH, REAL_TOPIC, RETRY_TOPIC
from rmq_ray.remoting.wire.browse import MESSAGE, QUEUE
from rmq_ray.remoting.wire.overview import named


def rows(answers: Answers) -> list[dict[str, Any]]:
    """Of all brokers, as ``record_row`` has them, with ``broker``, ``due_ms``, ``preview``,
    ``origin``, ``failed_with``, ``failed_on``, ``link``. A record that cannot be read is left out.
    """
    found = []
    for broker, told in answers.found.items():
        for one in named(MESSAGE, told["messages"]):
            if one["record"] is not None:
                found.append(row(broker, one["record"], one["due_ms"]))
    return found


def row(broker: str, record: bytes, due_ms: int | None = None) -> dict[str, Any]:
    """One of them. ``StoreCorrupt`` for bytes that are none."""
    found = decode_record(record)
    told = record_row(found) | {"broker": broker, "due_ms": due_ms}
    told["offset_message_id"] = offset_message_id(*found.store_host, found.log_offset)
    return seen(told)


def seen(told: Mapping[str, Any]) -> dict[str, Any]:
    """With what lists show of it."""
    properties = told["properties"]
    return {
        **told,
        "preview": preview(told["body"]),
        "origin": properties.get(RETRY_TOPIC) or properties.get(REAL_TOPIC),
        "failed_with": properties.get(FAILED_WITH),
        "failed_on": properties.get(FAILED_ON),
        "link": link(told["topic"], told["broker"], told["queue"], told["queue_offset"]),
    }


def link(topic: str, broker: str, queue: int, offset: int, **more: str) -> str:
    """Of the page of one message.

    >>> link("a", "broker-a", 0, 7)
    '/messages/at?topic=a&broker=broker-a&queue=0&offset=7'
    """
    where = {"topic": topic, "broker": broker, "queue": queue, "offset": offset}
    return "/messages/at?" + urlencode(where | more)


def queues(answers: Answers) -> list[dict[str, Any]]:
    """QUEUE rows of all brokers, with ``broker``."""
    return [
        {**one, "broker": broker}
        for broker, told in sorted(answers.found.items())
        for one in named(QUEUE, told["queues"])
    ]


def more(answers: Answers) -> bool:
    """Whether a broker has more of what was asked for."""
    return any(told["more"] for told in answers.found.values())


def newest_first(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """By store time."""
    return sorted(found, key=lambda one: (-one["store_ms"], one["broker"], -one["log_offset"]))


def oldest_first(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """By store time."""
    return sorted(found, key=lambda one: (one["store_ms"], one["broker"], one["log_offset"]))
