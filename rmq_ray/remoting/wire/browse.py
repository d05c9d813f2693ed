"""The bytes of BROWSE_MESSAGES and NOTE_CHANGE: what a console asks beside BROKER_OVERVIEW.

    question   ext fields of ``BrowseHeader``
    answer     msgpack {"queues": QUEUE rows, "messages": MESSAGE rows, "more": true = there are
               more that fit}

Of the messages of one broker that fit: the newest (``pick`` "newest"), the first ones from a time
or from an offset of one queue on ("from"), or those that wait for something ("waiting": halves,
levels, timers, by the topic). A record is in store layout, nil where it cannot be read.

    NOTE_CHANGE    ext fields topic or group, and what is done to it: a line of the audit log
"""

from __future__ import annotations

from typing import Any

import msgpack

from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Buffer, Command
from rmq_ray.remoting.wire.header import Header, Int32

COUNT_MAX = 500
NEWEST, FROM, WAITING = "newest", "from", "waiting"
PICKS = (NEWEST, FROM, WAITING)
QUEUE = ("queue", "low", "high", "at", "committed")
"""``at``: where the question begins in it; ``committed``: of the group that was named, or nil."""
MESSAGE = ("queue", "offset", "due_ms", "record")
"""``due_ms``: of messages that wait for a time, else nil."""


class BrowseHeader(Header, frozen=True):
    """BROWSE_MESSAGES 20100. ``queue_id`` -1: all; ``offset`` and ``time_ms`` -1: none; ``count``
    0: the queues only. ``committed_of``: a group whose progress is told, for who may consume with
    it.
    """

    topic: str
    committed_of: str | None = None
    pick: str = NEWEST
    queue_id: Int32 = -1
    offset: int = -1
    time_ms: int = -1
    count: Int32 = 50


def ask_browse(header: BrowseHeader) -> Command:
    """The question."""
    return Command(RequestCode.BROWSE_MESSAGES, fields=header.to_fields())


def read_browse(body: Buffer) -> dict[str, Any]:
    """The answer."""
    found: dict[str, Any] = msgpack.unpackb(body, use_list=False)
    return found
