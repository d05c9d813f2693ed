"""Delivers messages at their exact times, and takes back those that are recalled (store-format 14).

    send ──> rmq_sys_wheel_timer/0 ──scan, read─> DueWindow ─due──> real topic
                      '<── rolled copies                     recalled, rolled: rmq_sys_wheel_timer/1

The timer queue's entries are the index: code = due time. What was delivered is one point:
everything up to (due, offset) is.

Decides: when entries are read and scanned, what is delivered in one turn, which progress may be
saved. Does not decide due times or forms (``protocol.timer``), order (``protocol.due_window``).
Runs in the broker's loop; scans run beside it.

Invariants: never early. A message counts as delivered exactly when its (due, offset) is not behind
the progress: so nothing is written with an earlier due time (``MessageWriter.timer_floor_ms``), and
nothing is delivered before all that was written earlier can be read. Saved progress never covers a
copy that is not on disk: a crash repeats what came since, and loses nothing. A clock that was set
back by more than ``SET_BACK_MS`` takes the progress along: what was delivered ahead of the right
time is noted as taken back, and new messages do not wait until the wrong time comes again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.codec.config_files import TimerProgress, timer_file
from rmq_ray.codec.record import Record, decode_record
from rmq_ray.codec.store_files import BLANK_SIZE
from rmq_ray.config import HOUR_MS, BrokerConfig
from rmq_ray.errors import BrokerBusy, RmqError, StoreError, StoreUnreadable
from rmq_ray.model.message import (
    REAL_TOPIC,
    TIMER_CANCELS,
    TIMER_OUT_MS,
    SysFlag,
    decode_properties,
)
from rmq_ray.model.topics import TIMER_TOPIC
from rmq_ray.protocol.due_window import SET_BACK_MS, Due, DueWindow, OffsetSet, nearest
from rmq_ray.protocol.timer import CANCELLED, DUE_MS_MIN, WAITING, cancelling, release_timed, rolled
from rmq_ray.server.base.config_saver import ConfigSaver
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.send.message_writer import Origin
from rmq_ray.server.send.writers import Writers
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.server.tables.waiting_counts import Budget, Look, WaitingCounts, Waits
from rmq_ray.store.front.message_store import MessageStore

log = logging.getLogger("rmq_ray.server")
TURN_MAX = 256  # delivered in one turn of the loop
RETRY_MS = 100
CANCELLED_MAX = 1_000_000
ROLLED_A_TURN = 256
ROLLED_A_SCAN_MAX = 10_000
CHUNK_ENTRIES = 65_536  # read at once by a scan
NEVER_MS = 1 << 62


@dataclass(slots=True)
class _Unsafe:
    """(due, offset, first) that may be saved once the log is on disk up to ``end``."""

    progress: tuple[int, int, int]
    end: int


class TimerService:
    """Of one broker."""

    def __init__(self, runtime: BrokerRuntime, storage: BrokerStorage, writers: Writers) -> None:
        config, offload = runtime.config, runtime.offload
        self._config = config
        self._keeper, self._topics = storage.keeper, storage.tables.topics
        self._writer, self._own = writers.writer, writers.own
        self._counters = runtime.counters
        self._offload = offload
        self._file = timer_file(runtime.files, f"{config.store.path}/rmq_ray/timer.json")
        self._saver: ConfigSaver[TimerProgress] = ConfigSaver(
            "timer.json", self._snapshot, self._file.save, offload
        )
        self._follower: ConfigSaver[TimerProgress] = ConfigSaver(
            "timer.json", lambda: self._found, self._file.save, offload
        )
        self._saved: TimerProgress | None = None
        self._found = TimerProgress()
        self._gone = 0  # messages that waited and do not any more
        self._life = 0
        self._by_topic = WaitingCounts(TIMER_TOPIC, WAITING, writers.own.is_gone)
        self._reset(TimerProgress())

    def configure(self, config: BrokerConfig) -> None:
        """Settings were changed."""
        self._config = config

    def _reset(self, saved: TimerProgress) -> None:
        self._life += 1  # what a scan of the life before finds is not looked at
        self._by_topic.reset()
        self.window = DueWindow(self._config.timer_window_messages)
        self._progress = (saved.due_ms, saved.offset)
        self._first, self._cancel_from = saved.first, saved.cancel_from
        self._safe = (*self._progress, self._first)
        self._unsafe: deque[_Unsafe] = deque()
        self._cancelled = OffsetSet()
        self._cancel_order: deque[int] = deque()
        self._owed: deque[int] = deque()
        self._old: deque[tuple[int, int]] = deque()
        self._read = 0
        # (end of the log, time) of a moment; until all before it can be read nothing behind it is
        # delivered.
        self._mark = (0, 0)
        self._cap_ms = saved.due_ms
        self._wait_until_ms = 0
        self._scanning = self._failing = False
        self._waiting = 0  # of those read

    # --- life -------------------------------------------------------------------------------------

    def read(self) -> None:
        """In a thread, before ``load``: the file. Raises ``StoreCorrupt``."""
        if self._saved is None:
            self._found = self._file.load() or TimerProgress()

    def load(self, store: MessageStore) -> None:
        """The store was recovered: go on where the file, or what this process knows, says."""
        if self._saved is None:
            self._saved = self._found
            self._reset(self._saved)
        else:
            self._advance(store.end_offset)
            self._reset(self._snapshot())
        low, high = store.bounds(TIMER_TOPIC, WAITING)
        self._first = min(max(self._first, low), high)
        self._safe = (*self._progress, self._first)
        self._read = high
        low, high = store.bounds(TIMER_TOPIC, CANCELLED)
        at = self._cancel_from = min(max(self._cancel_from, low), high)
        while at < high:
            codes = store.entries(TIMER_TOPIC, CANCELLED, at, CHUNK_ENTRIES)["code"].tolist()
            if not codes:
                break
            for offset in codes:
                self._cancelled.add(offset)
            self._cancel_order.extend(codes)
            at += len(codes)
        self._writer.timer_floor_ms = self._cap_ms
        self._mend(store)

    def save(self) -> None:
        """Write the progress if it changed, as far as its copies are on disk."""
        store = self._keeper.store
        if store is None or self._saved is None:
            return
        self._advance(self._keeper.covered(store.flushed_offset))
        while self._cancel_order and self._cancel_order[0] < self._safe[2]:
            self._cancelled.discard(self._cancel_order.popleft())
            self._cancel_from += 1
        now = self._snapshot()
        if now != self._saved:
            self._saved = now
            self._saver.save()

    def _note(self, store: MessageStore) -> None:
        self._unsafe.append(_Unsafe((*self._progress, self._first), store.end_offset))

    def _advance(self, on_disk: int) -> None:
        while self._unsafe and self._unsafe[0].end <= on_disk:
            self._safe = self._unsafe.popleft().progress

    def settle(self) -> None:
        """The whole log is on disk, and nothing more is delivered: write the progress in the
        calling thread.
        """
        self._safe = (*self._progress, self._first)
        self._unsafe.clear()
        if self._saved is not None:
            self._saver.save_now()

    def keep(self) -> None:
        """Nothing more is delivered here, another broker may go on: write what is sure, or what the
        master said, in the calling thread.
        """
        (self._follower if self._saved is None else self._saver).save_now()

    @property
    def saved(self) -> TimerProgress:
        """What the file says: nothing that it covers is missing in the log."""
        return self._found if self._saved is None else self._saved

    def follow(self, progress: TimerProgress) -> None:
        """Of a slave: keep what the master's file says, for the day on which this broker
        delivers.
        """
        if progress != self._found and self._saved is None:
            self._found = progress
            self._follower.save()

    def _snapshot(self) -> TimerProgress:
        return TimerProgress(*self._safe, self._cancel_from)

    @property
    def waiting(self) -> int:
        """Messages that wait; after a start the first scan must have ended."""
        store = self._keeper.store
        return (
            0
            if store is None
            else max(0, self._waiting + store.bounds(TIMER_TOPIC, WAITING)[1] - self._read)
        )

    def finder(self, limit: int) -> Callable[[MessageStore], tuple[list[Due], bool]]:
        """In the loop. The returned work may run in any thread: about ``limit`` messages that wait,
        those due first, and whether there are more.
        """
        cancelled = self._cancelled.array()
        first, read, progress = self._first, self._read, self._progress

        def find(store: MessageStore) -> tuple[list[Due], bool]:
            high = max(read, store.bounds(TIMER_TOPIC, WAITING)[1])
            found = scan(store, ScanOrder(first, high, 0, NEVER_MS, progress, cancelled, limit, 0))
            return [(due, at, log) for due, at, log in found.rows.tolist()], found.end_ms < NEVER_MS

        return find

    def counting(self, store: MessageStore, budget: Budget) -> Look:
        """Messages that wait for their time, by the topic that they are for; not known by who does
        not deliver them.
        """
        if self._saved is None:
            return lambda: None

        def waiting(begin: int) -> Waits:
            cancelled = self._cancelled.array(begin)
            order = ScanOrder(begin, 0, 0, NEVER_MS, self._progress, cancelled, 0, 0)
            return lambda low, high: set(
                (rows := read_rows(store, low, high - low)[0])[_waits(rows, order), 1].tolist()
            )

        return self._by_topic.look(store, self._first, waiting, budget)

    # --- delivery ---------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> bool:
        """Read what came, deliver what is due at ``now_ms`` (wall clock). True when more is due
        already.
        """
        store = self._keeper.store
        if store is None or now_ms < self._wait_until_ms <= now_ms + RETRY_MS:
            return False
        try:
            self._pay()
            if self._cap_ms > now_ms + SET_BACK_MS and not self._set_back(store, now_ms):
                return True
            self._see(store, now_ms)
            more = self._deliver(store, min(now_ms, self._cap_ms))
            self._look_ahead(store, now_ms)
            return more or bool(self._old)
        except StoreError as error:
            log.log(
                logging.DEBUG if self._failing else logging.WARNING,
                "messages with a delivery time wait: %s",
                error,
            )
            self._failing = True
            self._wait_until_ms = now_ms + RETRY_MS
            self._keeper.check(error)
            return False

    def _see(self, store: MessageStore, now_ms: int) -> None:
        """Read new entries; then everything due up to the cap may be delivered."""
        end, visible = store.end_offset, store.visible_offset
        if visible >= self._mark[0]:
            self._cap_ms = max(self._cap_ms, self._mark[1], now_ms if visible >= end else 0)
            self._mark = (end, now_ms)
            self._writer.timer_floor_ms = self._cap_ms
        high = store.bounds(TIMER_TOPIC, WAITING)[1]
        while self._read < high:
            rows, read = read_rows(store, self._read, min(CHUNK_ENTRIES, high - self._read))
            if not read:
                break
            self.window.add(rows)
            self._read += read
            self._waiting += len(rows)

    def _deliver(self, store: MessageStore, until_ms: int) -> bool:
        before = self._progress
        try:
            for _ in range(TURN_MAX):
                due = self.window.take(until_ms)
                if due is None:
                    return False
                if due[1] in self._cancelled:
                    self._cancelled.discard(due[1])
                else:
                    self._deliver_one(store, due)
                    self._leaves()
                self.window.drop()
                self._progress = due[:2]
            return True
        finally:
            if self._progress != before:
                self._note(store)

    def _deliver_one(self, store: MessageStore, due: Due) -> None:
        record = _readable(store, due[2])
        held = {} if record is None else decode_properties(record.properties)
        target = release_timed(held)
        if record is None or target is None:
            self._by_topic.left(due[1], None if record is None else held.get(REAL_TOPIC, ""))
            self._counters.timed_dropped += 1
            log.error(
                "the message with a delivery time at log offset %d %s and is dropped",
                due[2],
                "names no lawful target" if record else "is not there",
            )
            return
        try:
            if (queue := self._own.queue(*target[:2], due[2])) is None:
                self._own.dropped(target[0])
                return
            self._writer.put(target[0], queue, record.body, target[2], _origin(record))
        except StoreError:
            raise
        except RmqError as error:
            self._counters.timed_dropped += 1
            log.error(
                "the message with a delivery time at log offset %d cannot be stored and is "
                "dropped: %s",
                due[2],
                error,
            )
        else:
            self._counters.timed_delivered += 1
            self._failing = False
        self._by_topic.left(due[1], target[0])

    def _set_back(self, store: MessageStore, now_ms: int) -> bool:
        """The clock was: begin again at its time. False while there is more to note before.

        Noted as taken back is what was delivered and is due behind ``now_ms``, more than
        ``CANCELLED_MAX`` of them come a second time.
        """
        high = store.bounds(TIMER_TOPIC, WAITING)[1]
        ahead = self._delivered_ahead(store, now_ms, high)
        room = min(len(ahead), CANCELLED_MAX - len(self._cancelled))
        for offset in ahead[: min(room, TURN_MAX)]:
            self._write_cancel(offset)
            self._cancelled.add(offset)
        if room > TURN_MAX:
            return False
        log.warning(
            "the clock was set back by %d ms or more; messages with a delivery time go by it",
            self._cap_ms - now_ms,
        )
        self._life += 1
        self._scanning = False
        self._by_topic.reset()
        self.window = DueWindow(self._config.timer_window_messages)
        self._old.clear()
        self._read = high
        self._progress = min(self._progress, (now_ms, high - 1))
        self._note(store)
        self._cap_ms = self._writer.timer_floor_ms = now_ms
        self._mark = (store.end_offset, now_ms)
        return True

    def _delivered_ahead(self, store: MessageStore, now_ms: int, high: int) -> list[int]:
        """Offsets of what was delivered, is due later than now, and is not noted yet."""
        found: list[int] = []
        at = self._first
        while at < high:
            rows, read = read_rows(store, at, min(CHUNK_ENTRIES, high - at))
            if not read:
                break
            at += read
            due, offset = rows[:, 0], rows[:, 1]
            last_ms, last = self._progress
            done = (due > now_ms) & ((due < last_ms) | ((due == last_ms) & (offset <= last)))
            found += offset[done].tolist()
        return [offset for offset in found if offset not in self._cancelled]

    # --- looking ahead ----------------------------------------------------------------------------

    def _look_ahead(self, store: MessageStore, now_ms: int) -> None:
        """Roll some, and scan when the window comes to its end."""
        for _ in range(min(ROLLED_A_TURN, len(self._old))):
            self._roll(store, *self._old[0])
            self._old.popleft()
        horizon = self._config.timer_window_ms
        full_enough = len(self.window) > self._config.timer_window_messages // 4
        if (
            self._scanning
            or self.window.end_ms > now_ms + horizon // 2
            or (full_enough and self.window.end_ms > now_ms + horizon // 100)
        ):
            return
        roll_below = self._stored_before(
            store,
            now_ms
            - min(self._config.timer_roll_hours, self._config.store.reserved_hours * 2 // 3)
            * HOUR_MS,
        )
        order = ScanOrder(
            self._first,
            self._read,
            self.window.end_ms,
            now_ms + horizon,
            self._progress,
            self._cancelled.array(),
            self._config.timer_window_messages,
            roll_below,
        )
        life, gone = self._life, self._gone
        self._scanning = True
        try:
            self._offload.submit(
                lambda: scan(store, order), lambda found: self._scanned((life, gone), order, found)
            )
        except BrokerBusy:
            self._scanning = False  # the next tick tries again

    def _scanned(self, when: tuple[int, int], order: ScanOrder, found: Scanned | Exception) -> None:
        """``when``: (life, messages gone) at the scan's beginning."""
        store = self._keeper.store
        if when[0] != self._life:
            return
        self._scanning = False
        if isinstance(found, StoreError):
            log.warning(
                "the timer queue could not be scanned, the next tick tries again: %s", found
            )
            self._keeper.check(found)
            return
        if isinstance(found, Exception):
            raise found
        if store is None or self.window.end_ms != order.start_ms:
            return  # it was cut meanwhile: another scan begins where it ends now
        self.window.extend(found.rows, found.end_ms)
        self._first = found.first
        self._note(store)
        self._waiting = found.waiting + self._read - order.high - (self._gone - when[1])
        self._old.extend(found.old)
        at = order.high
        while at < self._read:  # what came during the scan, and was too far ahead then
            rows, read = read_rows(store, at, min(CHUNK_ENTRIES, self._read - at))
            if not read:
                break
            self.window.add(rows[rows[:, 0] >= order.start_ms])
            at += read

    def _stored_before(self, store: MessageStore, at_ms: int) -> int:
        """The offset from which on messages were stored later than ``at_ms``."""
        return store.first_since(TIMER_TOPIC, WAITING, at_ms + 1)

    def _roll(self, store: MessageStore, offset: int, log_offset: int) -> None:
        """A new record for a message that waits long, so that retention may take the old one."""
        if offset in self._cancelled:
            return
        record = _readable(store, log_offset)
        if record is None:
            return
        properties = decode_properties(record.properties)
        if self._own.is_gone(topic := properties.get(REAL_TOPIC, ""), log_offset):
            self._own.dropped(topic)
            self._rolled(offset)
            return
        try:
            self._writer.put(
                TIMER_TOPIC, WAITING, record.body, rolled(properties, offset), _origin(record)
            )
        except StoreError:
            raise
        except (
            RmqError
        ) as error:  # a record of another broker that cannot be copied: it waits on where it is
            log.error(
                "the waiting message at log offset %d cannot be renewed: %s", log_offset, error
            )
            return
        self._counters.timed_rolled += 1
        self._by_topic.left(offset, topic)
        self._rolled(offset)

    def _rolled(self, offset: int) -> None:
        """Its old record does not count any more."""
        self._leaves()
        self._owed.append(offset)
        self._cancelled.add(offset)
        self._pay()

    # --- taking back ------------------------------------------------------------------------------

    def is_delivered(self, due_ms: int, offset: int) -> bool:
        """Whether the entry with this code and offset was delivered, as far as this process
        knows.
        """
        return (due_ms, offset) <= self._progress

    def is_cancelled(self, offset: int) -> bool:
        """Whether the entry was recalled or rolled, and is remembered."""
        return offset in self._cancelled

    def cancel(self, offset: int, topic: str, log_offset: int) -> int:
        """The message for ``topic`` that waits at ``offset``, its record at ``log_offset``, is
        never delivered; returns the log offset behind the entry that says so. Raises the store's
        errors.
        """
        if len(self._cancelled) >= CANCELLED_MAX:
            raise BrokerBusy(
                f"{CANCELLED_MAX} recalled messages are remembered already; recall more when "
                f"some of them were due",
                CANCELLED_MAX,
            )
        self._pay()
        end = self._write_cancel(offset)
        self._cancelled.add(offset)
        self._counters.timed_recalled += 1
        self._by_topic.left(offset, topic, log_offset)
        self._leaves()
        return end

    def _leaves(self) -> None:
        self._waiting -= 1
        self._gone += 1

    def _pay(self) -> None:
        while self._owed:  # ends: one less each round
            self._write_cancel(self._owed[0])
            self._owed.popleft()

    def _write_cancel(self, offset: int) -> int:
        self._topics.create_internal(TIMER_TOPIC, 2)
        end = self._writer.put(TIMER_TOPIC, CANCELLED, b"-", cancelling(offset)).end_log_offset
        self._cancel_order.append(offset)
        return end

    def _mend(self, store: MessageStore) -> None:
        """The log's last record is a rolled copy, and the old one was not taken out before the
        crash: do it.
        """
        raw = store.record_at(store.report.last_record) if store.report.last_record >= 0 else None
        record = decode_record(raw) if raw is not None else None
        if record is None or record.topic != TIMER_TOPIC or record.queue_id != WAITING:
            return
        old = decode_properties(record.properties).get(TIMER_CANCELS, "")
        if old.isdigit() and int(old) not in self._cancelled:
            self._owed.append(int(old))
            self._cancelled.add(int(old))


def _readable(store: MessageStore, log_offset: int) -> Record | None:
    """None for one that is gone, broken, or lies on a bad sector: the others must not wait
    for it.
    """
    try:
        raw = store.record_at(log_offset)
    except StoreUnreadable as error:
        log.error("a waiting message cannot be read: %s", error)
        return None
    return None if raw is None else decode_record(raw)


def _origin(record: Record) -> Origin:
    return Origin(
        record.born_ms,
        record.born_host,
        record.flag,
        record.sys_flag & ~SysFlag.TRANSACTION_MASK,
        record.reconsume_times,
    )


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
    """Looks through the timer queue's entries for what is due next: which still wait, which belong
    into the window, which must get a new record. Raises the store's errors.

    Runs in a thread: 20 bytes are read for each message since the first that waits, 64 Ki entries
    at a time, so memory does not grow with the queue.
    """
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
