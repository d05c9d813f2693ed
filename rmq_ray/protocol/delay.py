"""Delay levels: how long each level waits, where a delayed message is parked, and when it is due
(protocol-behaviour 19).

Decides: the level a message gets, its place in the schedule topic, its delivery time, the property
changes both ways. Does not decide: when to look, how to store. Callers: the broker's send path,
send-back and the delay service.

A delayed message lies in ``SCHEDULE_TOPIC_XXXX``, queue ``level - 1``; its tags code in the consume
queue is the delivery time in ms. REAL_TOPIC and REAL_QID keep its target. Invariant: a message is
never due before ``store time + delay of its level``.

What becomes of a message that a consumer could not process: another try later, or the
dead-letter topic (protocol-behaviour 17).

Decides: destination, delay level, new reconsume count and properties of the copy. Does not decide:
where queues are, how it is stored. Callers: the broker's send-back handler, and its send path for
messages that clients write into ``%RETRY%`` themselves.

Invariant: a message is handed out at most 1 + max_times times, then it lies in ``%DLQ%group``.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmq_ray.errors import ConfigError
from rmq_ray.model.message import (
    DELAY,
    FAILED_ON,
    FAILED_WITH,
    NAME_SEPARATOR,
    ORIGIN_MESSAGE_ID,
    PROPERTY_SEPARATOR,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    RETRY_TOPIC,
    UNIQUE_KEY,
    WAIT,
    encode_properties,
)
from rmq_ray.model.topics import (
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    GroupConfig,
    dlq_topic,
    retry_topic,
)


@dataclass(frozen=True, slots=True)
class Redelivery:
    """Where the copy goes. ``delay_level`` 0 = at once. ``reconsume_times`` is the copy's count."""

    topic: str
    dead: bool
    delay_level: int
    reconsume_times: int


def max_times(group: GroupConfig, asked: int | None) -> int:
    """Retries allowed: what the client asked (it knows its own setting since 3.4.9), else the
    group's 16. Negative = the group's.
    """
    return group.retry_max_times if asked is None or asked < 0 else asked


def is_last_try(group: GroupConfig, reconsume_times: int, asked: int | None) -> bool:
    """Whether a message that came again so often has no further try when this one fails."""
    return group.retry_queues <= 0 or reconsume_times >= max_times(group, asked)


def decide(group: GroupConfig, reconsume_times: int, delay_level: int, limit: int) -> Redelivery:
    """After a failure of a record whose count is ``reconsume_times``.

    ``delay_level`` < 0 = dead letter now, 0 = the broker decides (3 + count), else that level.
    """
    if delay_level < 0 or reconsume_times >= limit:
        return Redelivery(dlq_topic(group.name), True, 0, reconsume_times + 1)
    level = delay_level or SEND_BACK_BASE_LEVEL + reconsume_times
    return Redelivery(retry_topic(group.name), False, level, reconsume_times + 1)


def copy_properties(
    properties: dict[str, str], topic: str, offset_message_id: str, client_message_id: str | None
) -> dict[str, str]:
    """Properties of the copy of a record of ``topic``: the first topic and the first message id
    stay with it for ever.
    """
    kept = dict(properties)
    kept.setdefault(RETRY_TOPIC, topic)
    kept.setdefault(
        ORIGIN_MESSAGE_ID, client_message_id or kept.get(UNIQUE_KEY) or offset_message_id
    )
    kept.pop(WAIT, None)
    kept.pop(DELAY, None)
    return kept


def failure_text(text: str) -> str:
    """What a property can carry of why a listener failed: 512 characters, without separators."""
    clean = text[:FAILURE_CHARS_MAX].encode("utf-8", "replace").decode()  # no half surrogates
    return clean.translate(NO_SEPARATORS)


def with_failure(properties: dict[str, str], why: str | None, client: str | None) -> dict[str, str]:
    """Properties of a copy that tell its last failure, and no earlier one. Nothing is told where
    the consumer said nothing (Apache RocketMQ's own do not), and where it would not fit a record.

    >>> with_failure({"KEYS": "k", "RMQ_FAILED_WITH": "old"}, "ValueError: no amount", "10.0.0.1@7")
    {'KEYS': 'k', 'RMQ_FAILED_WITH': 'ValueError: no amount', 'RMQ_FAILED_ON': '10.0.0.1@7'}
    """
    kept = {
        name: value for name, value in properties.items() if name not in (FAILED_WITH, FAILED_ON)
    }
    if not why:
        return kept
    told = {**kept, FAILED_WITH: failure_text(why)}
    if client:
        told[FAILED_ON] = failure_text(client)
    size = len(encode_properties(told).encode())
    return told if size <= TOLD_BYTES_MAX else kept


def group_of_retry_topic(topic: str) -> str | None:
    """The group whose retry topic this is.

    >>> group_of_retry_topic("%RETRY%billing")
    'billing'
    """
    return topic[len(RETRY_PREFIX) :] if topic.startswith(RETRY_PREFIX) else None


UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
FAILURE_CHARS_MAX = 512
TOLD_BYTES_MAX = 30_000
"""Of all properties: a record takes 32,767 bytes, and the broker adds some of its own."""
NO_SEPARATORS = str.maketrans({NAME_SEPARATOR: " ", PROPERTY_SEPARATOR: " "})
SEND_BACK_BASE_LEVEL = 3  # a first failure waits 10 s: level 3 + reconsumeTimes


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """The table of delays; ``delays_ms[level - 1]``, levels count from 1.

    >>> DelayLevels.parse("1s 5s 10s 30s 1m").delay_ms(5)
    60000
    """

    delays_ms: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> DelayLevels:
        """From ``messageDelayLevel`` (blank-separated numbers with unit s, m, h or d). Raises
        ``ConfigError``.
        """
        delays = []
        for part in text.split():
            unit = UNIT_MS.get(part[-1])
            if unit is None or not part[:-1].isdigit():
                raise ConfigError(
                    f"delay level {part!r} is not a number with unit s, m, h or d", part
                )
            delays.append(int(part[:-1]) * unit)
        if not delays:
            raise ConfigError("delay_levels must name at least one level", text)
        return cls(tuple(delays))

    @property
    def highest(self) -> int:
        """The number of levels."""
        return len(self.delays_ms)

    def clamp(self, level: int) -> int:
        """The level that is used: above the highest counts as the highest, below 1 as none (0)."""
        return max(0, min(level, self.highest))

    def delay_ms(self, level: int) -> int:
        """Milliseconds that ``level`` (1-based) waits."""
        return self.delays_ms[level - 1]

    def deliver_at_ms(self, level: int, store_ms: int) -> int:
        """Delivery time of a record stored at ``store_ms``: what its consume queue entry carries as
        tags code.
        """
        return store_ms + self.delays_ms[level - 1]

    def due_ms(self, level: int, deliver_at_ms: int, now_ms: int) -> int:
        """When to deliver, seen from ``now_ms``: a delivery time further ahead than the level
        allows (clock set back, levels changed) is due now.
        """
        return deliver_at_ms if deliver_at_ms <= now_ms + self.delays_ms[level - 1] else now_ms


def queue_of_level(level: int) -> int:
    """Queue id in the schedule topic."""
    return level - 1


def requested_level(properties: dict[str, str]) -> int:
    """The DELAY property as a number; 0 when absent or not a number."""
    text = properties.get(DELAY, "")
    return int(text) if text.lstrip("-").isdigit() else 0


def park(
    topic: str, queue_id: int, level: int, properties: dict[str, str]
) -> tuple[str, int, dict[str, str]]:
    """(topic, queue id, properties) under which a message of clamped ``level`` >= 1 is stored; its
    target goes into the properties.
    """
    return (
        SCHEDULE_TOPIC,
        queue_of_level(level),
        {**properties, DELAY: str(level), REAL_TOPIC: topic, REAL_QUEUE_ID: str(queue_id)},
    )


def release(properties: dict[str, str]) -> tuple[str, int, dict[str, str]] | None:
    """The opposite of ``park`` for a message that is due; ``None`` when it names no lawful target
    (missing, or the half topic).

    DELAY and WAIT go, everything else stays, REAL_TOPIC and REAL_QID too, as Apache RocketMQ leaves
    them.
    """
    kept = {name: value for name, value in properties.items() if name not in (DELAY, WAIT)}
    topic, queue = kept.get(REAL_TOPIC, ""), kept.get(REAL_QUEUE_ID, "")
    if not topic or topic in (HALF_TOPIC, SCHEDULE_TOPIC) or not queue.isdigit():
        return None
    return topic, int(queue), kept
