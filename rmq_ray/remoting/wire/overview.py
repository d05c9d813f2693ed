"""The bytes of BROKER_OVERVIEW: one question about a broker, one answer for a whole page.

    question   msgpack {"parts": [...], "group": name, "topic": name}, each may be missing
    answer     msgpack map; of the parts that were asked for:
        status         the broker's status map
        groups         GROUP rows; with them, where the store can be read: lags: LAG rows,
                       dead_letters: [group, messages]
        topics         TOPIC rows; with them messages: {topic: messages that are there}
        clients        CLIENT rows
        group          known, retry_max_times, enabled, ages {topic: {queue: ms since a commit}};
                       of a group that runs members, model, from, subscriptions, conflicts;
                       group_queues: GROUP_QUEUE rows
        topic          the TOPIC row or nil, topic_queues: TOPIC_QUEUE rows, topic_lags: LAG rows
    and with groups, topics, a group or a topic, or to a question that names nothing:
        delayed        {topic: messages that wait at a level or for a time before they are in it};
                       under %RETRY%group those that it failed on, which wait for their retry
        uncommitted    {topic: half messages that wait for their producer's word}
                       A topic without any is not in the map. A broker that does not know yet what
                       waits, as after its start, or is older, leaves the map out.

An account that is no administrator gets rows of what it has a right on, no status, and "limited":
true. What needs the store is missing while it cannot be read: unknown is not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgpack

from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Buffer, Command

PARTS = ("status", "groups", "topics", "clients")
DELAYED, UNCOMMITTED = "delayed", "uncommitted"
GROUP = ("group", "members", "kind", "model", "conflicts")
LAG = ("group", "topic", "lag", "in_flight", "age_ms")
TOPIC = (
    "topic",
    "read_queues",
    "write_queues",
    "permission",
    "order",
    "retention_hours",
    "system",
    "stored_messages",
    "stored_bytes",
)
CLIENT = ("group", "kind", "client_id", "address", "language", "version", "heard_ms")
GROUP_QUEUE = ("topic", "queue", "low", "high", "committed", "age_ms")
TOPIC_QUEUE = ("queue", "low", "high", "first_ms", "last_ms")


def ask_overview(parts: Iterable[str] = (), *, group: str = "", topic: str = "") -> Command:
    """The question."""
    asked = {"parts": list(parts), "group": group, "topic": topic}
    return Command(RequestCode.BROKER_OVERVIEW, body=cast(bytes, msgpack.packb(asked)))


def waiting_for(
    overviews: Iterable[Mapping[str, Any]], part: str, topic: str
) -> tuple[int | None, bool]:
    """(messages that wait for a topic, whether every broker told); None = nobody told of any, and
    one did not tell. ``part``: ``DELAYED`` or ``UNCOMMITTED``.

    >>> waiting_for([{"delayed": {"orders": 2}}, {}], "delayed", "orders")
    (2, False)
    """
    told = [overview.get(part) for overview in overviews]
    count = sum(counts.get(topic, 0) for counts in told if counts is not None)
    complete = None not in told
    return (count if count or complete else None), complete


def read_overview(body: Buffer) -> dict[str, Any]:
    """The answer. Rows are tuples: the garbage collector need not look at thousands of them."""
    found: dict[str, Any] = msgpack.unpackb(body, strict_map_key=False, use_list=False)
    return found


def named(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """
    >>> named(("a", "b"), [[1, 2]])
    [{'a': 1, 'b': 2}]
    """
    return [dict(zip(columns, row, strict=True)) for row in rows]
