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

The waiting messages that are due soon, in the order in which they are due: due time, then queue
offset.

    |---- delivered ----|------ window ------|------ only on disk, found by the next scan ------>
                     progress             end_ms

Decides: order, and what leaves the window when it is full: the latest go, ``end_ms`` comes nearer,
and a scan finds them again. Does not decide when to look. Pure; numpy arrays of 24 bytes a message,
and a small heap for what came last.

Invariants: every waiting message below ``end_ms`` that was handed in is inside; ``take`` returns
rising (due, offset); at most ``limit`` messages are kept, more only when all of them are due in one
millisecond.
"""

from __future__ import annotations

import base64
import binascii
import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import rmq_ray.arrays as np
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

Array: TypeAlias = "np.ndarray[Any, Any]"
Due = tuple[int, int, int]
"""(due ms, queue offset, log offset)."""
HEAP_MAX = 20_000
SET_BACK_MS = 1_000
"""A clock that goes back by more was set; less is waited for: a message may be a second late."""


class DueWindow:
    """``limit``: messages kept."""

    def __init__(self, limit: int) -> None:
        self.end_ms = 0
        self._limit = limit
        self._rows = np.empty((0, 3), np.int64)  # sorted by due, offset
        self._head = 0
        self._heap: list[Due] = []

    def __len__(self) -> int:
        return len(self._rows) - self._head + len(self._heap)

    def add(self, rows: Array) -> None:
        """Messages that came (int64 of shape n, 3: due, offset, log offset; offsets greater than
        all before); those behind the end are left out.
        """
        near = rows[rows[:, 0] < self.end_ms]
        if len(near) > HEAP_MAX:
            self._merge(near)
        else:
            for row in near.tolist():
                heapq.heappush(self._heap, (row[0], row[1], row[2]))
        if len(self._heap) > HEAP_MAX:
            self._merge(np.empty((0, 3), np.int64))

    def extend(self, rows: Array, end_ms: int) -> None:
        """All messages from the old end up to ``end_ms``, as a scan found them."""
        self.end_ms = end_ms
        self._merge(rows)

    def take(self, until_ms: int) -> Due | None:
        """The first message, if it is due by ``until_ms``; it stays until ``drop``."""
        first = self._first()
        return first if first is not None and first[0] <= until_ms else None

    def drop(self) -> None:
        """The message that ``take`` returned is done with."""
        if self._heap and (self._head >= len(self._rows) or self._heap[0] < self._row()):
            heapq.heappop(self._heap)
        else:
            self._head += 1

    def _first(self) -> Due | None:
        if self._head >= len(self._rows):
            return self._heap[0] if self._heap else None
        row = self._row()
        return self._heap[0] if self._heap and self._heap[0] < row else row

    def _row(self) -> Due:
        due, offset, log_offset = self._rows[self._head].tolist()
        return due, offset, log_offset

    def _merge(self, rows: Array) -> None:
        fresh = np.array(self._heap, np.int64).reshape(-1, 3)
        self._heap.clear()
        more = np.concatenate((fresh, rows)) if len(fresh) else rows
        more = more[np.lexsort((more[:, 1], more[:, 0]))]
        kept = self._rows[self._head :]
        self._head = 0
        if len(kept) and len(more):
            self._rows = np.insert(
                kept, np.searchsorted(kept[:, 0], more[:, 0], side="right"), more, axis=0
            )
        else:
            self._rows = more.copy() if len(more) else kept.copy()
        if len(self._rows) > self._limit:
            self._cut()

    def _cut(self) -> None:
        dues = self._rows[:, 0]
        end_ms = max(int(dues[self._limit]), int(dues[0]) + 1)
        self._rows = self._rows[: int(np.searchsorted(dues, end_ms))].copy()
        self.end_ms = min(self.end_ms, end_ms)


class OffsetSet:
    """Offsets of messages that wait no more, asked for one at a time, and as an array: a sorted one
    that nobody changes, so that a thread may keep it. Only what is new is sorted into it; what was
    discarded may stay in it until it is half of it.
    """

    def __init__(self) -> None:
        self._offsets: set[int] = set()
        self._sorted: Array = np.empty(0, np.int64)
        self._new: list[int] = []

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, offset: int) -> bool:
        return offset in self._offsets

    def add(self, offset: int) -> None:
        """It waits no more."""
        if offset not in self._offsets:
            self._offsets.add(offset)
            self._new.append(offset)

    def discard(self, offset: int) -> None:
        """It need not be remembered."""
        self._offsets.discard(offset)

    def array(self, begin: int = 0) -> Array:
        """Those from ``begin`` on, rising."""
        if len(self._sorted) + len(self._new) > 2 * len(self._offsets):
            self._sorted = np.sort(np.fromiter(self._offsets, np.int64, len(self._offsets)))
        elif self._new:
            more = np.array(self._new, np.int64)
            self._sorted = np.sort(np.concatenate((self._sorted, more)), kind="stable")
        self._new.clear()
        return self._sorted[np.searchsorted(self._sorted, begin) :]


def nearest(rows: Array, limit: int) -> tuple[Array, int | None]:
    """The ``limit`` messages due first, and the due time from which on messages are missing then
    (None = none is).
    """
    if len(rows) <= limit:
        return rows, None
    end_ms = max(int(np.partition(rows[:, 0], limit)[limit]), int(rows[:, 0].min()) + 1)
    return rows[rows[:, 0] < end_ms], end_ms


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
