"""Pulling: statuses of the store, of the wire and of the client, and how they map
(protocol-behaviour 10).

What a user may say to subscribe to a topic: a tag expression as text, or ``Sql``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntFlag


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL92 condition over a message's properties, beside tag expressions in ``subscriptions``.
    Made by ``rmq_ray.sql``, which checks it.
    """

    expression: str


Expression = str | Sql | None
"""``"a || b"``, ``"*"``, None (everything), or ``Sql``."""


class GetMessageStatus(Enum):
    """What the store found at an offset (protocol-behaviour 10.3)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class PullStatus(Enum):
    """What a pull means to the client (protocol-behaviour 10.4)."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


class PullSysFlag(IntFlag):
    """Bits of a pull request's sysFlag."""

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4
    CLASS_FILTER = 8
    LITE_PULL = 16
