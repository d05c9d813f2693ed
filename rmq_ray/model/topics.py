"""Topics, groups, permissions and routes: the values that name servers, brokers and clients
exchange.

JSON member names are RocketMQ's and live in ``remoting.wire.bodies`` and
``codec.config_files``; here names are Python's.
"""

from __future__ import annotations

import re
from enum import IntFlag

from msgspec import field

from rmq_ray.value import Value

DEFAULT_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
CODED_TOPICS = frozenset((SCHEDULE_TOPIC, TIMER_TOPIC))
"""Topics whose queue entries carry a number of their own in place of the tag's code: mostly the
time at which they are due.
"""
WAITING_TOPICS = frozenset((SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC))
"""Topics whose messages wait for another one, that REAL_TOPIC names."""
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
REPLY_SUFFIX = "_REPLY_TOPIC"
CLIENT_INNER_GROUP = "CLIENT_INNER_PRODUCER"

SYSTEM_TOPICS = frozenset(
    (
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        TIMER_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        BENCHMARK_TOPIC,
        OFFSET_MOVED_TOPIC,
    )
)
FORBIDDEN_SEND_TOPICS = frozenset(
    (
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        TIMER_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    )
)
RESERVE_TIME = "reserve.time"
ADOPTED = "rmq_ray.adopted"
SLOTS, SLOT_BYTES, SLOTS_GROUP = "rmq_ray.slots", "rmq_ray.slot_bytes", "rmq_ray.slots_group"
BOUND_MAX = 10**15 - 1
RETENTION_HOURS_MAX = 1_000_000
_STORABLE = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
QUEUE_ID_MAX = 65_535


def is_storable(topic: str, queue_id: int) -> bool:
    """Whether a directory of a store may be made for this queue."""
    return _STORABLE.fullmatch(topic) is not None and 0 <= queue_id <= QUEUE_ID_MAX


def retry_topic(group: str) -> str:
    """``%RETRY%group``."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """``%DLQ%group``."""
    return DLQ_PREFIX + group


class Permission(IntFlag):
    """Bits of a topic's or broker's permission (protocol-behaviour 5)."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8
    READ_WRITE = 6


class DataVersion(Value, frozen=True):
    """Changes with every change of the table it belongs to; equality compares both fields."""

    counter: int = 0
    timestamp_ms: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """The version after a change."""
        return DataVersion(self.counter + 1, now_ms)


class TopicBound(Value, frozen=True):
    """How much of a topic may wait on one broker: ``slots`` messages, ``slot_bytes`` of their
    records, 0 = any number. What ``group`` has not acknowledged waits; "" = what the slowest of the
    groups that have a position has not.
    """

    slots: int = 0
    slot_bytes: int = 0
    group: str = ""


class TopicConfig(Value, frozen=True):
    """A topic on one broker. Defaults are those of RocketMQ's TopicConfig class.

    ``retention_hours``: 0 = as long as the store keeps its log; RocketMQ 5's attribute
    ``reserve.time``. ``bound``: None = senders never wait for consumers. ``adopted``: a slave met
    its messages before its master's settings of it, so that more queues may be known to producers.
    """

    name: str
    read_queues: int = 16
    write_queues: int = 16
    permission: int = 6
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    retention_hours: int = 0
    bound: TopicBound | None = None
    adopted: bool = False


def topic_attributes(topic: TopicConfig) -> dict[str, dict[str, str]]:
    """The member ``attributes`` of a TopicConfig in RocketMQ 5's JSON; none where all are as
    usual, so that files and answers are those of 4.9 then.
    """
    found = {RESERVE_TIME: str(topic.retention_hours)} if topic.retention_hours else {}
    if topic.bound is not None:
        bound = topic.bound
        own = {SLOTS: bound.slots, SLOT_BYTES: bound.slot_bytes, SLOTS_GROUP: bound.group}
        found |= {name: str(value) for name, value in own.items() if value}
    if topic.adopted:
        found[ADOPTED] = "true"
    return {"attributes": found} if found else {}


def retention_of(attributes: object) -> int:
    """``retention_hours`` as such a member says it; what is no positive number means none."""
    text = str(attributes.get(RESERVE_TIME, "")) if isinstance(attributes, dict) else ""
    hours = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    return hours if hours <= RETENTION_HOURS_MAX else 0


def bound_of(attributes: object) -> TopicBound | None:
    """``bound`` as such a member says it; what is no positive number bounds nothing.

    >>> bound_of({"rmq_ray.slots": "5", "rmq_ray.slots_group": "trainer"})
    TopicBound(slots=5, slot_bytes=0, group='trainer')
    """
    known = attributes if isinstance(attributes, dict) else {}
    slots, size = (bound_number(str(known.get(name, ""))) for name in (SLOTS, SLOT_BYTES))
    if not slots and not size:
        return None
    return TopicBound(slots, size, str(known.get(SLOTS_GROUP, "")))


def adopted_of(attributes: object) -> bool:
    """``adopted`` as such a member says it."""
    return isinstance(attributes, dict) and attributes.get(ADOPTED) == "true"


def bound_number(text: str) -> int:
    """1 to ``BOUND_MAX``; 0 for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


class GroupConfig(Value, frozen=True):
    """A consumer group on one broker (subscriptionGroup.json)."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queues: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    broker_when_slow: int = 1
    notify_ids_changed: bool = True


class QueueData(Value, frozen=True, order=True):
    """A topic's queues on one broker, as a route tells it."""

    broker_name: str
    read_queues: int
    write_queues: int
    permission: int
    sys_flag: int = 0


class BrokerData(Value, frozen=True):
    """The addresses of one broker name: id 0 is the master, others are slaves. ``addresses``: id ->
    ``host:port``.
    """

    cluster: str
    broker_name: str
    addresses: dict[int, str] = field(default_factory=dict)


class TopicRoute(Value, frozen=True):
    """What a name server knows of a topic."""

    queues: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]
    order_conf: str | None = None
