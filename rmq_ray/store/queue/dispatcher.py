"""From records that are in the log to entries of consume queues and items of the index
(docs/file-format.md#from-the-log-to-queues-and-index).

    transaction type of SYSFLAG    NOT    PREPARED    COMMIT    ROLLBACK
    consume queue                  yes    no          yes       no
    index                          yes    yes         yes       no

Half messages carry NOT: they live in a topic of their own. Decides which records are queued and
indexed, under which keys, with which tags code and bit map. Does not decide when (``visibility``).
For records; ``server.core.dispatch`` is another thing, for requests.

Invariants: a record that was dispatched before changes nothing, so recovery may begin earlier than
needed; a record is queued before it is indexed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rmq_ray.arrays import MANY, Array
from rmq_ray.codec.record_batch import CheckedFrame
from rmq_ray.codec.store_files import ENTRIES, ENTRY
from rmq_ray.model.message import SysFlag
from rmq_ray.model.topics import TIMER_TOPIC
from rmq_ray.store.frames.mixed_frame import MixedFrame
from rmq_ray.store.queue.bit_maps import BitMapper
from rmq_ray.store.queue.index_service import (
    IndexService,
    hash_hashed_keys,
    hash_keys,
    hash_unique_keys,
)
from rmq_ray.store.queue.queue_table import QueueTable

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
    if frame.count < MANY:
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
