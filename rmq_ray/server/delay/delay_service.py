"""Delivers delayed messages: reads the schedule topic and stores what is due under its real topic
(protocol-behaviour 19).

Decides: when each level's next message is looked at, how many are delivered in one turn, which
offsets may be saved. Does not decide delays or targets (``protocol.delay``). Its state is
level -> next offset of queue level - 1.

Invariants: never early; a level's messages keep their order; a saved offset never covers a copy
that is not on disk, so a crash may repeat copies but loses none.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field

from rmq_ray.codec.record import Record, decode_record
from rmq_ray.errors import RecordAwaited, RmqError, StoreError
from rmq_ray.model.message import REAL_TOPIC, RETRY_TOPIC, decode_properties
from rmq_ray.model.topics import SCHEDULE_TOPIC
from rmq_ray.protocol.delay import queue_of_level, release
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.send.message_writer import Origin
from rmq_ray.server.send.writers import Writers
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.server.tables.waiting_counts import Budget, Look, WaitingCounts, together
from rmq_ray.store.front.message_store import MessageStore

log = logging.getLogger("rmq_ray.server")
RETRY_MS = 100  # after a message could not be stored
PAGE_RECORDS = 32
PAGE_BYTES = 256 << 10
TURN_RECORDS_MAX = 256  # of one level in one tick; the loop serves others in between


@dataclass(slots=True)
class _Level:
    level: int
    next_offset: int = 0
    safe_offset: int = 0
    """Everything below was copied, and the copies are on disk."""
    wait_until_ms: int = 0
    failing: bool = False
    page: deque[Record] = field(default_factory=deque)
    page_end: int = 0
    unsafe: deque[tuple[int, int]] = field(default_factory=deque)
    """(offset behind a delivered message, log offset behind its copy)."""


class DelayService:
    """All levels of one broker."""

    def __init__(self, runtime: BrokerRuntime, storage: BrokerStorage, writers: Writers) -> None:
        self._counters = runtime.counters
        self._keeper = storage.keeper
        self._writer, self._own, self._delays = writers.writer, writers.own, writers.levels
        self._levels = [_Level(level) for level in range(1, writers.levels.highest + 1)]
        self._away: dict[int, int] = {}  # offsets of levels that are not set now, for their return
        self._waiting = [
            WaitingCounts(
                SCHEDULE_TOPIC, queue_of_level(state.level), writers.own.is_gone, by_origin=True
            )
            for state in self._levels
        ]

    def load(self, offsets: dict[int, int]) -> None:
        """Take over saved offsets, and forget what was read ahead: the log may have been cut."""
        for state in self._levels:
            offset = max(0, offsets.get(state.level, 0))
            self._levels[state.level - 1] = _Level(state.level, offset, offset)
            self._waiting[state.level - 1].reset()
        self._away = {level: at for level, at in offsets.items() if level > len(self._levels)}

    def counting(self, store: MessageStore, budget: Budget) -> Look:
        """Messages that wait at any level, by the topic that they are for."""
        return together(
            [
                waiting.look(store, state.next_offset, lambda _: range, budget)
                for state, waiting in zip(self._levels, self._waiting, strict=True)
            ]
        )

    def tick(self, now_ms: int) -> bool:
        """Deliver what is due at ``now_ms`` (wall clock). True when more is due already: call again
        soon.
        """
        store = self._keeper.store
        if store is None:
            return False
        more = False
        for state in self._levels:
            most_ms = max(self._delays.delays_ms[state.level - 1], RETRY_MS)
            # further ahead: the clock was set back
            if not now_ms < state.wait_until_ms <= now_ms + most_ms:
                try:
                    more = self._run(state, store, now_ms) or more
                except StoreError as error:
                    # of reading: a log that has failed is read again, anything else with the next
                    # tick
                    log.warning(
                        "delayed messages of level %d cannot be read: %s", state.level, error
                    )
                    state.wait_until_ms = now_ms + RETRY_MS
                    self._keeper.check(error)
                    return False
        return more

    def offsets(self) -> dict[int, int]:
        """Level -> next offset, as far as copies are on disk; levels that never delivered are left
        out.
        """
        store = self._keeper.store
        flushed = -1 if store is None else self._keeper.covered(int(store.status()["durable"]))
        for state in self._levels:
            while state.unsafe and state.unsafe[0][1] <= flushed:
                state.safe_offset = state.unsafe.popleft()[0]
        return {
            state.level: state.safe_offset for state in self._levels if state.safe_offset
        } | self._away

    def settled(self) -> dict[int, int]:
        """Level -> next offset when the whole log is on disk."""
        return {
            state.level: state.next_offset for state in self._levels if state.next_offset
        } | self._away

    def _run(self, state: _Level, store: MessageStore, now_ms: int) -> bool:
        for _ in range(TURN_RECORDS_MAX):
            record = self._peek(state, store)
            if record is None:
                return False
            due_ms = self._delays.due_ms(
                state.level, self._delays.deliver_at_ms(state.level, record.store_ms), now_ms
            )
            if due_ms > now_ms:
                state.wait_until_ms = due_ms
                return False
            if not self._deliver(state, record, store, now_ms):
                return False
        return True

    def _peek(self, state: _Level, store: MessageStore) -> Record | None:
        """The level's next message, ``None`` when there is none yet."""
        if state.page:
            return state.page[0]
        queue_id = queue_of_level(state.level)
        low, high = store.bounds(SCHEDULE_TOPIC, queue_id)
        if not low <= state.next_offset <= high:
            corrected = min(max(state.next_offset, low), high)
            log.warning(
                "delay level %d: offset %d is outside %d..%d and becomes %d",
                state.level,
                state.next_offset,
                low,
                high,
                corrected,
            )
            state.next_offset = state.safe_offset = corrected
            state.unsafe.clear()
            self._waiting[state.level - 1].reset()
        if state.next_offset >= high:
            return None
        try:
            found = store.get_messages(
                SCHEDULE_TOPIC, queue_id, state.next_offset, PAGE_RECORDS, PAGE_BYTES, None
            )
        except RecordAwaited:
            return None  # the next tick looks again
        data = b"".join(found.parts)
        at = 0
        for size in found.sizes.tolist():
            state.page.append(decode_record(data, at))
            at += size
        state.page_end = found.next_offset
        if not state.page:
            self._moved(state, found.next_offset, 0)
            self._waiting[state.level - 1].reset()
            return None
        return state.page[0]

    def _deliver(self, state: _Level, record: Record, store: MessageStore, now_ms: int) -> bool:
        held = decode_properties(record.properties)
        target, end_offset = release(held), 0
        counted = True
        if target is None:
            self._counters.delayed_dropped += 1
            log.error(
                "delayed message at log offset %d names no lawful target and is dropped",
                record.log_offset,
            )
        else:
            try:
                end_offset = self._store(record, target)
            except StoreError as error:
                log.log(
                    logging.DEBUG if state.failing else logging.WARNING,
                    "delayed messages of level %d wait: %s",
                    state.level,
                    error,
                )
                state.failing = True
                self._keeper.check(error)
                state.wait_until_ms = now_ms + RETRY_MS
                return False
            except RmqError as error:
                self._counters.delayed_dropped += 1
                log.error(
                    "delayed message at log offset %d cannot be stored and is dropped: %s",
                    record.log_offset,
                    error,
                )
            else:
                counted = end_offset > 0
                state.failing = False
        state.page.popleft()
        self._moved(state, state.page[0].queue_offset if state.page else state.page_end, end_offset)
        waiting = self._waiting[state.level - 1]
        if state.next_offset != record.queue_offset + 1:
            waiting.reset()  # records behind it cannot be read any more
        elif counted:
            waiting.left(record.queue_offset, held.get(REAL_TOPIC, ""))
        return True

    def _store(self, record: Record, target: tuple[str, int, dict[str, str]]) -> int:
        """The log offset behind the copy; 0 for a message of a topic that is gone, which is
        dropped. A copy for a retry topic goes with the topic of the message, too. Raises
        ``RmqError``.
        """
        topic, queue_id, properties = target
        origin = properties.get(RETRY_TOPIC, topic)
        queue = self._own.queue(topic, queue_id, record.log_offset)
        if queue is None or self._own.is_gone(origin, record.log_offset):
            self._own.dropped(topic if queue is None else origin)
            return 0
        told = Origin(
            record.born_ms, record.born_host, record.flag, record.sys_flag, record.reconsume_times
        )
        end_offset = self._writer.put(topic, queue, record.body, properties, told).end_log_offset
        self._counters.delayed_delivered += 1
        return end_offset

    def _moved(self, state: _Level, next_offset: int, end_log_offset: int) -> None:
        state.next_offset = next_offset
        state.unsafe.append((next_offset, end_log_offset))
