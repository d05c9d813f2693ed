"""Subscriptions and heartbeats: what a client tells every broker about itself.

Enum names are RocketMQ's because they travel as text (remoting 2).
"""

from __future__ import annotations

from enum import Enum

from rmq_ray.value import Value

SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
"""Groups that every broker has from the start."""
SYSTEM_GROUP_PREFIXES = ("CID_RMQ_SYS_", "CID_ONS")
TAG = "TAG"
SQL92 = "SQL92"
SUBSCRIBE_ALL = "*"


def is_system_group(group: str) -> bool:
    """Groups of RocketMQ's own tools: never refused, never deleted."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIXES)


class ConsumeType(Enum):
    """Whether the consumer asks (pull), is called (push), or takes messages of any queue for a time
    (pop; RocketMQ 5).
    """

    CONSUME_ACTIVELY = "PULL"
    CONSUME_PASSIVELY = "PUSH"
    CONSUME_POP = "POP"


class MessageModel(Enum):
    """Whether one or every consumer of a group gets a message."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(Enum):
    """Where a group without stored progress begins."""

    CONSUME_FROM_LAST_OFFSET = "last"
    CONSUME_FROM_FIRST_OFFSET = "first"
    CONSUME_FROM_TIMESTAMP = "timestamp"


class Subscription(Value, frozen=True):
    """One topic's filter. ``tags`` and ``codes`` are empty for ``*``; ``version`` is a time in ms,
    newer wins.
    """

    topic: str
    expression: str = SUBSCRIBE_ALL
    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()
    version: int = 0
    expression_type: str = TAG


class ConsumerData(Value, frozen=True):
    """One consumer group of a client."""

    group: str
    consume_type: ConsumeType
    model: MessageModel
    from_where: ConsumeFromWhere
    subscriptions: tuple[Subscription, ...] = ()
    unit_mode: bool = False


class Heartbeat(Value, frozen=True):
    """What a client instance sends to every broker every 30 s. ``without_checker``: those of the
    producer groups that say that they cannot answer for a transaction; who says nothing may.
    """

    client_id: str
    producer_groups: tuple[str, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()
    without_checker: frozenset[str] = frozenset()


class LockHolder(Value, frozen=True):
    """Who holds a queue of a group for ordered consumption. ``ends_in_ms``: when the lock ends
    unless he is heard of. ``left``: his connection has closed, and he is awaited for some seconds.
    """

    client_id: str
    ends_in_ms: int
    left: bool = False
