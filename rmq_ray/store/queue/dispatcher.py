"""From records that are in the log to entries of consume queues and items of the index, and when
readers see them (docs/file-format.md#from-the-log-to-queues-and-index).

    transaction type of SYSFLAG    NOT    PREPARED    COMMIT    ROLLBACK
    consume queue                  yes    no          yes       no
    index                          yes    yes         yes       no

Half messages carry NOT: they live in a topic of their own. Bit maps for extension units are made at
the first dispatch of a frame, of what the log holds, and only where somebody filters the topic by
SQL92; records that are queued again after a crash get none, which means that every filter reads
them.

``Dispatcher`` decides which records are queued and indexed, under which keys, with which tags code
and bit map. ``Visibility`` decides when: whole frames, in log order, nothing before an earlier one.

    ASYNC_FLUSH   in the append itself
    SYNC_FLUSH    when the flush thread's fdatasync covered it and ``dispatch_durable`` is called;
                  with a transient store pool after its commit
    slaves        nothing behind what they have confirmed, where the broker says so (``replicated``)

One thread lets in and dispatches (the broker's loop), beside readers; ``lock`` holds position,
queues' maxima and windows of repeats of one moment together.

Invariants: a record that was dispatched before changes nothing, so recovery may begin earlier than
needed; a record is queued before it is indexed; ``Visibility.offset`` lies behind a whole write,
all of whose records are queued.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rmq_ray.codec.record_batch import Array, CheckedFrame
from rmq_ray.codec.record_layout import RecordLayout
from rmq_ray.codec.store_files import ENTRIES, ENTRY
from rmq_ray.errors import StoreError, StoreFull
from rmq_ray.model.message import SysFlag
from rmq_ray.model.topics import TIMER_TOPIC
from rmq_ray.store.frames.mixed_frame import MixedFrame
from rmq_ray.store.log.commit_log import CommitLog
from rmq_ray.store.queue.index_service import (
    IndexService,
    hash_hashed_keys,
    hash_keys,
    hash_unique_keys,
)
from rmq_ray.store.queue.queue_table import QueueTable

logger = logging.getLogger("rmq_ray.store")

# written and not dispatched: a consume queue without room, or a disk that does not sync
WAITING_FRAMES_MAX = 100_000
ArrivalListener = Callable[[str, int, int, Sequence[int]], None]
"""(topic, queue id, new maximum, tags codes): called where frames are dispatched, from that
thread.
"""
Written = CheckedFrame | MixedFrame


class BitMapper(Protocol):
    """The SQL92 filters of the broker's groups."""

    def has_filters(self, topic: str) -> bool:
        """Whether anybody filters the topic."""
        ...

    def bit_map(self, topic: str, properties: bytes, store_ms: int) -> bytes:
        """Which filters a message with these properties passes."""
        ...


def bit_maps_from(
    log: CommitLog, mapper: BitMapper
) -> Callable[[CheckedFrame, int, int], Sequence[bytes] | None]:
    """What ``Dispatcher.bit_maps`` is set to."""

    def make(frame: CheckedFrame, log_offset: int, store_ms: int) -> Sequence[bytes] | None:
        if not mapper.has_filters(frame.topic):
            return None
        data = log.read(log_offset, frame.length)
        if int(np.sum(frame.sizes)) != frame.length:  # others' records lie between them
            data = b"".join(
                [
                    data[start : start + size]
                    for start, size in zip(frame.starts, frame.sizes, strict=True)
                ]
            )
        layout = RecordLayout(data, np.asarray(frame.sizes, np.int64))
        return [
            mapper.bit_map(frame.topic, data[begin:end], store_ms)
            for begin, end in zip(layout.text_begins.tolist(), layout.ends.tolist(), strict=True)
        ]

    return make


_MANY = 16  # from here numpy's fixed cost is less than a loop's
UNKNOWN_LEVEL_DELAY_MS = 1_000
_CODE_DIGITS_MAX = 19
_QUEUED = (SysFlag.TRANSACTION_NOT, SysFlag.TRANSACTION_COMMIT)


@dataclass(frozen=True, slots=True)
class DispatchRules:
    """What the broker says of how records are queued. ``delay_ms``: milliseconds of a delay level
    (schedule topic), None for an unknown one; ``delay_level_max``: the highest level;
    ``bit_mapper``: the SQL filters that new entries' bit maps are made of, None = no bit maps.
    """

    delay_ms: Callable[[int], int | None] = lambda _level: None
    delay_level_max: int = 18
    bit_mapper: BitMapper | None = None


NO_RULES = DispatchRules()


class Dispatcher:
    """See the module."""

    def __init__(
        self,
        queues: QueueTable,
        index: IndexService | None,
        rules: DispatchRules,
    ) -> None:
        self._queues = queues
        self._index = index
        self._delay_ms = rules.delay_ms
        self._level_max = rules.delay_level_max
        self.bit_maps: Callable[[CheckedFrame, int, int], Sequence[bytes] | None] | None = None
        """Makes the bit maps of a frame's extension units, of (frame, log offset, store time); None
        where there are none.
        """
        self.store_ms = 0
        """Store time of the last queued record: RocketMQ's ``logicsMsgTimestamp``."""

    def dispatch(
        self,
        frame: CheckedFrame,
        queue_offset: int,
        log_offset: int,
        store_ms: int,
        sys_flag: int = 0,
    ) -> int:
        """Queue and index records of one topic, queue and transaction type (in ``sys_flag``) that
        lie back to back from ``log_offset`` on; returns how many were new to the queue. Raises the
        store's errors.
        """
        kind = sys_flag & SysFlag.TRANSACTION_MASK
        new = 0
        if kind in _QUEUED:
            bit_maps = (
                self.bit_maps(frame, log_offset, store_ms) if self.bit_maps is not None else None
            )
            new = self._queues.get_or_create(frame.topic, frame.queue_id).append(
                queue_offset, _entries(frame, log_offset), store_ms, bit_maps
            )
            self.store_ms = store_ms
        if kind != SysFlag.TRANSACTION_ROLLBACK and self._index is not None:
            if frame.hashed_keys or (frame.unique is not None and len(frame.unique)):
                self._index_many(self._index, frame, log_offset, store_ms)
            elif frame.keys:
                self._index_few(self._index, frame, log_offset, store_ms)
        return new

    def dispatch_mixed(self, mixed: MixedFrame, log_offset: int, store_ms: int) -> int:
        """The same for what one write put down for several queues; returns how many of its queues
        got something new.
        """
        new = 0
        for piece in mixed.pieces.values():
            frame = piece.frame
            bit_maps = (
                self.bit_maps(frame, log_offset, store_ms) if self.bit_maps is not None else None
            )
            queue = self._queues.get_or_create(frame.topic, frame.queue_id)
            new += (
                queue.append(piece.queue_offset, _entries(frame, log_offset), store_ms, bit_maps)
                > 0
            )
        self.store_ms = store_ms
        index = self._index
        if index is not None:
            known = index.end_offset
            for start, topic, key in mixed.keys:
                if log_offset + start >= known:
                    index.put(topic, (key,), log_offset + start, store_ms)
        return new

    def own_code(self, topic: str, text: str, store_ms: int) -> int:
        """Code of a record in one of ``CODED_TOPICS``, from the property that decides it; 0 when it
        makes no sense.
        """
        if topic != TIMER_TOPIC:
            return self.delay_tags_code(text, store_ms)
        return (
            int(text) if text.isascii() and text.isdecimal() and len(text) < _CODE_DIGITS_MAX else 0
        )

    def delay_tags_code(self, delay_text: str, store_ms: int) -> int:
        """Tags code of a record in the schedule topic: when it is due, in ms. 0 when the text is no
        level from 1 on.
        """
        level = min(int(delay_text), self._level_max) if delay_text.isdecimal() else 0
        if level <= 0:
            return 0
        delay_ms = self._delay_ms(level)
        return store_ms + (UNKNOWN_LEVEL_DELAY_MS if delay_ms is None else delay_ms)

    def _index_few(
        self, index: IndexService, frame: CheckedFrame, log_offset: int, store_ms: int
    ) -> None:
        known, starts, topic = index.end_offset, frame.starts, frame.topic
        for row, key in frame.keys:
            offset = log_offset + starts[row]
            if offset >= known:  # else it was indexed before a crash
                index.put(topic, (key,), offset, store_ms)

    def _index_many(
        self, index: IndexService, frame: CheckedFrame, log_offset: int, store_ms: int
    ) -> None:
        hashes, rows = _hashes(frame)
        offsets = np.asarray(frame.starts, np.int64)[rows] + log_offset
        if log_offset < index.end_offset:  # after a crash: some of these were indexed before
            new = offsets >= index.end_offset
            hashes, offsets = hashes[new], offsets[new]
        index.put_many(hashes, offsets, store_ms)


def _entries(frame: CheckedFrame, log_offset: int) -> bytes:
    if frame.count == 1:
        return ENTRY.pack(log_offset + frame.starts[0], frame.sizes[0], frame.tag_codes[0])
    if frame.count < _MANY:
        pack = ENTRY.pack
        return b"".join(
            [
                pack(log_offset + start, size, code)
                for start, size, code in zip(
                    frame.starts, frame.sizes, frame.tag_codes, strict=True
                )
            ]
        )
    entries = np.empty(frame.count, ENTRIES)
    entries["log_offset"] = np.asarray(frame.starts) + log_offset
    entries["size"] = frame.sizes
    entries["code"] = frame.tag_codes
    return entries.tobytes()


def _hashes(frame: CheckedFrame) -> tuple[Array, Array]:
    """(hashes of all keys of a frame, the record each belongs to), by record, the unique key before
    others.
    """
    all_rows, all_hashes = [], []
    if frame.unique is not None:
        hashes = hash_unique_keys(frame.topic, frame.unique)
        rows: Array = np.arange(len(hashes)) if frame.unique_rows is None else frame.unique_rows
        if not frame.keys and not frame.hashed_keys:
            return hashes, rows
        all_rows.append(rows)
        all_hashes.append(hashes)
    for keys in frame.hashed_keys:
        all_rows.append(keys.rows)
        all_hashes.append(hash_hashed_keys(frame.topic, keys))
    if frame.keys:
        all_rows.append(np.array([row for row, _ in frame.keys], np.int64))
        all_hashes.append(hash_keys(frame.topic, [key for _, key in frame.keys]))
    rows, hashes = np.concatenate(all_rows), np.concatenate(all_hashes)
    order = np.argsort(rows, kind="stable")
    return hashes[order], rows[order]


class Visibility:
    """Log offset up to which readers see, and the frames that wait behind it. ``is_sync``: only
    what is synced may be seen; else what the kernel has.
    """

    def __init__(self, log: CommitLog, dispatcher: Dispatcher, is_sync: bool) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._is_sync = is_sync
        self._waits = is_sync or log.pool is not None
        self.lock = threading.Lock()
        self.offset = 0
        self.last_ms, self.last_record = 0, -1
        """Store time and log offset of the last visible record; -1 = there is none."""
        self._waiting: deque[tuple[Written, int, int, int, int]] = deque()
        self._replicated: int | None = None
        self._listener: ArrivalListener | None = None
        self._on_failure: Callable[[StoreError], None] = lambda _error: None

    def begin(
        self,
        listener: ArrivalListener | None,
        replicated: int | None,
        on_failure: Callable[[StoreError], None],
    ) -> None:
        """What the broker has said before the store was recovered. ``on_failure``: told when the
        disk failed while a frame was queued.
        """
        self._listener, self._replicated, self._on_failure = listener, replicated, on_failure

    def fail(self, error: StoreError) -> None:
        """What was written may be queued or not: the log has to be read again."""
        self._on_failure(error)

    def moved_to(self, log_offset: int, last_ms: int, last_record: int) -> None:
        """Everything below ``log_offset`` is queued. The caller holds ``lock``."""
        self.offset, self.last_ms, self.last_record = log_offset, last_ms, last_record

    @property
    def durable(self) -> int:
        """Log offset up to which an acknowledgement may be given: synced (SYNC_FLUSH), or in the
        kernel (ASYNC_FLUSH).
        """
        return self._log.durable if self._is_sync else self._log.committed

    @property
    def waiting(self) -> int:
        """How many writes are not visible yet."""
        return len(self._waiting)

    def set_listener(self, listener: ArrivalListener) -> None:
        """Who is told of arrivals from now on."""
        self._listener = listener

    def set_replicated(self, log_offset: int | None) -> None:
        """Nothing behind ``log_offset`` becomes visible; None = no such limit."""
        self._replicated = log_offset

    def let_in(
        self, frame: Written, queue_offset: int, log_offset: int, store_ms: int, sys_flag: int
    ) -> bool:
        """Make visible what was just written, or let it wait. True when it waits for the flush
        thread.
        """
        waits = self._waits
        at_once = not waits and not self._waiting and self._replicated is None
        if not at_once or not self._dispatch(frame, queue_offset, log_offset, store_ms, sys_flag):
            self._waiting.append((frame, queue_offset, log_offset, store_ms, sys_flag))
            if not at_once and not waits:
                self.dispatch_durable()
        return waits

    def dispatch_durable(self) -> int:
        """Make visible what is durable (and replicated) by now; returns ``offset``. Raises
        ``StoreFailed``; after ``StoreFull`` the rest waits for the next call.
        """
        limit = self._limit()
        while self._waiting:  # ends: one less each round
            frame, queue_offset, log_offset, store_ms, sys_flag = self._waiting[0]
            if log_offset + frame.length > limit:
                break
            if not self._dispatch(frame, queue_offset, log_offset, store_ms, sys_flag):
                break
            self._waiting.popleft()
        return self.offset

    def forget_topic(self, topic: str, log_offset: int) -> None:
        """The topic goes: what waits for it below ``log_offset`` stays in the log only."""
        kept: deque[tuple[Written, int, int, int, int]] = deque()
        for waiting in self._waiting:
            frame = waiting[0]
            if waiting[2] >= log_offset:
                pass
            elif isinstance(frame, MixedFrame):
                frame.forget_topic(topic)
            elif frame.topic == topic:
                continue
            kept.append(waiting)
        self._waiting = kept

    def announce(self, arrivals: Sequence[tuple[str, int, int, Sequence[int]]]) -> None:
        """Tell the listener of records that were queued elsewhere (on a slave)."""
        if self._listener is not None:
            for topic, queue_id, maximum, codes in arrivals:
                self._listener(topic, queue_id, maximum, codes)

    def _limit(self) -> int:
        if self._log.failure is not None:
            return -1
        durable = self.durable
        return durable if self._replicated is None else min(durable, self._replicated)

    def _dispatch(
        self, frame: Written, queue_offset: int, log_offset: int, store_ms: int, sys_flag: int
    ) -> bool:
        """Queue, index, announce. False when the disk is full: the frame stays in the log and
        waits. Raises when the disk failed.
        """
        try:
            with self.lock:
                if isinstance(frame, CheckedFrame):
                    new = self._dispatcher.dispatch(
                        frame, queue_offset, log_offset, store_ms, sys_flag
                    )
                else:
                    new = self._dispatcher.dispatch_mixed(frame, log_offset, store_ms)
                self.offset = log_offset + frame.length
                self.last_ms, self.last_record = store_ms, log_offset + int(frame.starts[-1])
        except StoreFull as error:
            logger.warning(
                "records from log offset %d on are not visible yet: %s", log_offset, error
            )
            return False
        except StoreError as error:
            self._on_failure(error)
            raise
        if self._listener is not None and new:
            self._tell(self._listener, frame, queue_offset)
        return True

    @staticmethod
    def _tell(listener: ArrivalListener, frame: Written, queue_offset: int) -> None:
        if isinstance(frame, CheckedFrame):
            codes = frame.tag_codes
            listener(
                frame.topic,
                frame.queue_id,
                queue_offset + frame.count,
                codes if isinstance(codes, list) else codes.tolist(),
            )
            return
        for (topic, queue_id), piece in frame.pieces.items():
            listener(topic, queue_id, piece.queue_offset + piece.frame.count, piece.frame.tag_codes)
