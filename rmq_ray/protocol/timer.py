"""Messages with an exact delivery time: what is asked for, how they wait, how they are called back
(store-format 14).

    rmq_sys_wheel_timer/0  waiting messages; the code of a consume queue entry is the time in ms at
                           which it is due
    rmq_sys_wheel_timer/1  entries that must not be delivered any more: the code is the queue offset
                           in queue 0

Decides: due times, limits, property changes both ways, the form of a recall handle. Does not decide
when to look or how to store. Callers: the broker's writer, timer service and recall handler;
producers read handles only.

Invariant: a message is never due before the time that was asked for.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

from rmq_ray.errors import ClientError, MessageIllegal
from rmq_ray.model.message import (
    DELAY,
    FRAME,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_CANCELS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SECONDS,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    UNIQUE_KEY,
    WAIT,
)
from rmq_ray.model.topics import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

WAITING, CANCELLED = 0, 1  # queues of the timer topic
DUE_MS_MIN = 100_000_000_000
"""A code below this (1973) is no due time: Apache RocketMQ has built the consume queue anew, from
tags.
"""
_ASKED = (TIMER_DELIVER_MS, TIMER_DELAY_MS, TIMER_DELAY_SECONDS)
_NOT_DELIVERED = frozenset(
    (
        *_ASKED,
        TIMER_OUT_MS,
        TIMER_ROLL_TIMES,
        TIMER_CANCELS,
        REAL_TOPIC,
        REAL_QUEUE_ID,
        DELAY,
        WAIT,
        FRAME,
    )
)
_VERSION = "v1"


def is_timed(properties: Mapping[str, str]) -> bool:
    """Whether a message asks for a delivery time."""
    return (
        TIMER_DELIVER_MS in properties
        or TIMER_DELAY_MS in properties
        or TIMER_DELAY_SECONDS in properties
    )  # for every single message: no loop


def asked_due_ms(properties: Mapping[str, str], now_ms: int, max_delay_ms: int) -> int:
    """When the message is to be delivered. ``MessageIllegal`` for what is no time, or too far
    ahead.
    """
    name = next(name for name in _ASKED if name in properties)
    text = properties[name]
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise MessageIllegal(
            f"property {name} is {text[:32]!r}; it must be a number of "
            f"{'seconds' if name == TIMER_DELAY_SECONDS else 'milliseconds'}",
            name,
        )
    due_ms = (
        int(text)
        if name == TIMER_DELIVER_MS
        else now_ms + int(text) * (1 if name == TIMER_DELAY_MS else 1_000)
    )
    if due_ms - now_ms > max_delay_ms:
        raise MessageIllegal(
            f"timer message illegal: due in {(due_ms - now_ms) // 1_000} s, the limit is "
            f"{max_delay_ms // 1_000} s (timer_max_delay_hours)",
            due_ms,
        )
    return due_ms


def park_until(
    topic: str, queue_id: int, due_ms: int, properties: Mapping[str, str]
) -> tuple[str, int, dict[str, str]]:
    """(topic, queue id, properties) under which a message waits."""
    kept = {name: value for name, value in properties.items() if name not in (DELAY, WAIT, *_ASKED)}
    return (
        TIMER_TOPIC,
        WAITING,
        kept | {TIMER_OUT_MS: str(due_ms), REAL_TOPIC: topic, REAL_QUEUE_ID: str(queue_id)},
    )


def release_timed(properties: Mapping[str, str]) -> tuple[str, int, dict[str, str]] | None:
    """(topic, queue id, properties) of a message that is due; None when it names no lawful
    target.
    """
    topic, queue = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE_ID, "")
    if (
        not topic
        or topic in (HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC)
        or not queue.isdigit()
    ):
        return None
    return (
        topic,
        int(queue),
        {name: value for name, value in properties.items() if name not in _NOT_DELIVERED},
    )


def rolled(properties: Mapping[str, str], queue_offset: int) -> dict[str, str]:
    """Properties of the copy that waits on in place of the message at ``queue_offset``, before its
    segment of the log is too old.
    """
    times = properties.get(TIMER_ROLL_TIMES, "0")
    kept = {name: value for name, value in properties.items() if name != FRAME}
    return kept | {
        TIMER_ROLL_TIMES: str(int(times) + 1 if times.isdigit() else 1),
        TIMER_CANCELS: str(queue_offset),
    }


def cancelling(queue_offset: int) -> dict[str, str]:
    """Properties of the entry in queue 1 that takes the message at ``queue_offset`` out."""
    return {TIMER_OUT_MS: str(queue_offset)}


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """Which waiting message is meant. Offsets are those of its first copy in the timer topic."""

    topic: str
    broker_name: str
    unique_key: str
    queue_offset: int
    log_offset: int

    def encode(self) -> str:
        """Text for ``SendResult.recall_handle``, without padding.

        >>> handle = RecallHandle("orders", "broker-a", "K" * 32, 7, 99)
        >>> RecallHandle.decode(handle.encode()).queue_offset
        7
        """
        text = " ".join(
            (
                _VERSION,
                self.topic,
                self.broker_name,
                self.unique_key,
                str(self.queue_offset),
                str(self.log_offset),
            )
        )
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: object) -> RecallHandle:
        """The reverse. ``ClientError`` for anything else."""
        try:
            if not isinstance(text, str):
                raise ValueError
            raw = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)).decode()
            version, topic, broker_name, key, queue_offset, log_offset = raw.split(" ")
            if version != _VERSION:
                raise ValueError
            return cls(topic, broker_name, key, int(queue_offset), int(log_offset))
        except (ValueError, binascii.Error, UnicodeError):
            raise ClientError(
                f"{text!r:.80} is no recall handle; use SendResult.recall_handle of a "
                f"message with delay or deliver_at"
            ) from None


def names_same(properties: Mapping[str, str], handle: RecallHandle) -> bool:
    """Whether a waiting message is the one that the handle means."""
    return (
        properties.get(UNIQUE_KEY) == handle.unique_key
        and properties.get(REAL_TOPIC) == handle.topic
    )
