"""Looks through the timer queue's entries for what is due next (store-format 14).

Decides: which entries still wait, which of them belong into the window, which must get a new
record. Called by ``timer_service`` in a thread: 20 bytes are read for each message since the first
that waits, 64 Ki entries at a time, so memory does not grow with the queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rmq_ray.codec.record import decode_record
from rmq_ray.model.message import TIMER_OUT_MS, decode_properties
from rmq_ray.model.topics import TIMER_TOPIC
from rmq_ray.protocol.due_window import Array, nearest
from rmq_ray.protocol.timer import DUE_MS_MIN, WAITING
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.queue.consume_queue import BLANK_SIZE

CHUNK_ENTRIES = 65_536
ROLLED_A_SCAN_MAX = 10_000


@dataclass(frozen=True, slots=True)
class ScanOrder:
    """Entries [low, high); due in [start_ms, end_ms) and behind ``progress`` (due, offset).
    ``cancelled``: sorted offsets that wait no more. ``roll_below``: entries before this offset get
    a new record unless they are due in the window.
    """

    low: int
    high: int
    start_ms: int
    end_ms: int
    progress: tuple[int, int]
    cancelled: Array
    limit: int
    roll_below: int


@dataclass(slots=True)
class Scanned:
    """``rows``: (due, offset, log offset); all up to ``end_ms`` are there. ``first``: the first
    offset that waits. ``waiting``: how many do.
    """

    end_ms: int
    first: int
    waiting: int = 0
    rows: Array = field(default_factory=lambda: np.empty((0, 3), np.int64))
    old: list[tuple[int, int]] = field(default_factory=list)
    """(offset, log offset) of what must be rolled."""


def scan(store: MessageStore, order: ScanOrder) -> Scanned:
    """See the module. Raises the store's errors."""
    found = Scanned(order.end_ms, order.high)
    at = order.low
    while at < order.high:
        rows, read = read_rows(store, at, min(CHUNK_ENTRIES, order.high - at))
        if not read:
            break
        at += read
        rows = rows[_waits(rows, order)]
        if not len(rows):
            continue
        found.first = min(found.first, int(rows[0, 1]))
        found.waiting += len(rows)
        near = rows[(rows[:, 0] >= order.start_ms) & (rows[:, 0] < found.end_ms)]
        found.rows = np.concatenate((found.rows, near))
        if len(found.rows) > 2 * order.limit:
            _narrow(found, order.limit)
        if len(found.old) < ROLLED_A_SCAN_MAX:
            old = rows[(rows[:, 1] < order.roll_below) & (rows[:, 0] >= order.end_ms)]
            found.old += [
                (offset, log_offset) for _, offset, log_offset in old[:ROLLED_A_SCAN_MAX].tolist()
            ]
    _narrow(found, order.limit)
    return found


def read_rows(store: MessageStore, offset: int, count: int) -> tuple[Array, int]:
    """(rows of the messages, entries read) from ``offset`` on; entries of records that are lost
    make no row.
    """
    entries = store.entries(TIMER_TOPIC, WAITING, offset, count)
    rows = np.empty((len(entries), 3), np.int64)
    rows[:, 0], rows[:, 1], rows[:, 2] = (
        entries["code"],
        np.arange(offset, offset + len(entries)),
        entries["log_offset"],
    )
    rows = rows[entries["size"] != BLANK_SIZE]
    for at in np.flatnonzero(rows[:, 0] < DUE_MS_MIN).tolist():
        rows[at, 0] = _due_of(store, int(rows[at, 2]))
    return rows, len(entries)


def _due_of(store: MessageStore, log_offset: int) -> int:
    """From the record itself: Apache RocketMQ has built the consume queue anew."""
    raw = store.record_at(log_offset)
    text = (
        decode_properties(decode_record(raw).properties).get(TIMER_OUT_MS, "")
        if raw is not None
        else ""
    )
    return int(text) if text.isdecimal() and len(text) < 19 else 0


def _waits(rows: Array, order: ScanOrder) -> Any:
    due, offset = order.progress
    alive = (rows[:, 0] > due) | ((rows[:, 0] == due) & (rows[:, 1] > offset))
    if len(order.cancelled):
        alive &= ~np.isin(rows[:, 1], order.cancelled)
    return alive


def _narrow(found: Scanned, limit: int) -> None:
    found.rows, end_ms = nearest(found.rows[found.rows[:, 0] < found.end_ms], limit)
    found.end_ms = found.end_ms if end_ms is None else end_ms
