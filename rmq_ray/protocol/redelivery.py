"""What becomes of a message that a consumer could not process: another try later, or the
dead-letter topic (protocol-behaviour 17).

Decides: destination, delay level, new reconsume count and properties of the copy. Does not decide:
where queues are, how it is stored. Callers: the broker's send-back handler, and its send path for
messages that clients write into ``%RETRY%`` themselves.

Invariant: a message is handed out at most 1 + max_times times, then it lies in ``%DLQ%group``.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmq_ray.model.message import (
    DELAY,
    FAILED_ON,
    FAILED_WITH,
    NAME_SEPARATOR,
    ORIGIN_MESSAGE_ID,
    PROPERTY_SEPARATOR,
    RETRY_TOPIC,
    UNIQUE_KEY,
    WAIT,
    encode_properties,
)
from rmq_ray.model.topics import RETRY_PREFIX, GroupConfig, dlq_topic, retry_topic

FAILURE_CHARS_MAX = 512
TOLD_BYTES_MAX = 30_000
"""Of all properties: a record takes 32,767 bytes, and the broker adds some of its own."""
NO_SEPARATORS = str.maketrans({NAME_SEPARATOR: " ", PROPERTY_SEPARATOR: " "})
SEND_BACK_BASE_LEVEL = 3  # a first failure waits 10 s: level 3 + reconsumeTimes


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
