"""What a recovered store answers: records by queue offset, log offset, key and time; bounds, pins,
retention, status.

Decides: that nothing invisible is answered, and nothing at all after the log has failed. Does not
decide: how a read is done (``reading``, ``querying``). Called by: the broker, as a part of
``MessageStore``. Reads may come from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np

from rmq_ray.codec.record_batch import Array
from rmq_ray.config import StoreConfig
from rmq_ray.errors import StoreFailed, StoreNotReady
from rmq_ray.store.queue.consume_queue import BLANK_SIZE, ENTRIES, ENTRY, ConsumeQueue
from rmq_ray.store.queue.extended_queue import Hit
from rmq_ray.store.reading.filtered_reading import Matches, get_matching
from rmq_ray.store.reading.querying import offset_by_time, query_by_key, store_ms_of
from rmq_ray.store.reading.reading import GetResult, Recent
from rmq_ray.store.reading.retention import RetentionReport
from rmq_ray.store.recovery.restart import StoreParts


class StoreState(Enum):
    """CLOSED --open--> OPEN --recover--> RECOVERED --start--> READY --shutdown--> CLOSED;
    READY --failed write or sync--> FAILED --reopen--> READY.
    """

    CLOSED = "closed"
    OPEN = "open"
    RECOVERED = "recovered"
    READY = "ready"
    FAILED = "failed"


class StoreReads:
    """The reading half of ``MessageStore``."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._state = StoreState.CLOSED
        self._parts: StoreParts | None = None
        self._visible = 0
        self.identity = ""
        self._frames = self._records = self._bytes = self._repeats = 0

    @property
    def counters(self) -> dict[str, int]:
        """What was appended since the store was made, and how many repeats were answered."""
        return {
            "frames": self._frames,
            "records": self._records,
            "bytes": self._bytes,
            "repeats": self._repeats,
        }

    @property
    def state(self) -> StoreState:
        """Where it is in its life; ``FAILED`` after a failed write or sync."""
        if self._parts is not None and self._parts.log.failure is not None:
            return StoreState.FAILED
        return self._state

    @property
    def epoch(self) -> int:
        """The log's newest epoch."""
        return self.opened.epochs.current

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """All (epoch, log offset where it starts)."""
        return self.opened.epochs.entries

    @property
    def flushed_offset(self) -> int:
        """Log offset up to which everything is fdatasynced, in either mode."""
        return self.opened.log.durable

    @property
    def visible_offset(self) -> int:
        """Log offset up to which readers see."""
        return self._visible

    @property
    def end_offset(self) -> int:
        """Log offset behind the last written byte."""
        return self.opened.log.end

    @property
    def written_offset(self) -> int:
        """Log offset behind the last byte that the kernel has: what slaves may be given."""
        return self.opened.log.committed

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(minimum, maximum) queue offset; (0, 0) for a queue that holds nothing."""
        queue = self.opened.queues.find(topic, queue_id)
        return (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> Array:
        """Up to ``count`` consume queue entries from ``offset`` on, as ``ENTRIES``; fewer at the
        queue's end or at the end of what is there.
        """
        queue = self.readable().queues.find(topic, queue_id)
        return np.frombuffer(queue.read(offset, count) if queue is not None else b"", ENTRIES)

    def get_messages(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        codes: frozenset[int] | None,
        foreign: bool = False,
    ) -> GetResult:
        """See ``LogReader.get_messages``. ``StoreFailed`` after a failure: what lies behind it is
        not known.
        """
        return self.readable().reader.get_messages(
            topic, queue_id, offset, max_count, max_bytes, codes, foreign
        )

    def just_written(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int
    ) -> tuple[Recent, int, int] | None:
        """See ``LogReader.recent_from``. ``StoreFailed`` after a failure."""
        return self.readable().reader.recent_from(topic, queue_id, offset, max_count, max_bytes)

    def get_matching(  # noqa: PLR0913 - get_messages and the condition
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        matches: Matches,
        foreign: bool = False,
        hit: Hit | None = None,
    ) -> GetResult:
        """See ``filtered_reading.get_matching``: the records whose property string (UTF-8) passes
        ``matches``.
        """
        return get_matching(
            self.readable().reader,
            topic,
            queue_id,
            offset,
            max_count,
            max_bytes,
            matches,
            foreign,
            hit,
        )

    def record_at(self, log_offset: int) -> bytes | None:
        """The visible record that begins at ``log_offset``; None when there is none, or its CRC is
        wrong.
        """
        return self.readable().reader.record_at(log_offset, self._visible)

    def records_at(self, log_offsets: Sequence[int], bytes_max: int) -> list[bytes | None]:
        """The same of each, until ``bytes_max`` bytes were read: the list ends there."""
        return self.readable().reader.records_at(log_offsets, self._visible, bytes_max)

    def query(self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int) -> list[bytes]:
        """Whole records with a key, stored in [begin, end], newest first, at most 64. Slow on a
        cold disk.
        """
        parts = self.readable()
        if parts.index is None:
            return []
        return query_by_key(
            parts.reader, parts.index, self._visible, topic, key, max_num, begin_ms, end_ms
        )

    def offset_by_time(self, topic: str, queue_id: int, at_ms: int) -> int:
        """Queue offset for a store time (store-format 3); 0 for an empty queue."""
        parts = self.readable()
        queue = parts.queues.find(topic, queue_id)
        return 0 if queue is None else offset_by_time(parts.reader, queue, self._visible, at_ms)

    def earliest_store_ms(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time of the first record of the log, or of a queue; -1 when there is none."""
        parts = self.readable()
        log_offset = parts.log.begin
        if topic is not None:
            queue = parts.queues.find(topic, queue_id)
            log_offset = _log_offset_at(queue, queue.min_offset if queue is not None else 0)
        record = parts.reader.record_at(log_offset, self._visible) if log_offset >= 0 else None
        return -1 if record is None else store_ms_of(record)

    def log_offset_of(self, topic: str, queue_id: int, offset: int) -> int:
        """Where the record of a queue offset begins in the log; -1 when the queue does not
        have it.
        """
        return _log_offset_at(self.opened.queues.find(topic, queue_id), offset)

    def topics(self) -> set[str]:
        """Topics that have a queue."""
        return self.opened.queues.topics()

    def queues(self) -> dict[tuple[str, int], tuple[int, int]]:
        """(topic, queue id) -> (minimum, maximum) of every queue."""
        return {
            (topic, queue_id): (queue.min_offset, queue.max_offset)
            for topic, queue_id, queue in self.opened.queues.all()
        }

    @property
    def begin_offset(self) -> int:
        """Log offset of the first byte that is still there."""
        return self.opened.log.begin

    def pin(self, from_log_offset: int, deadline_ms: int) -> int:
        """Keep the log from there on until ``deadline_ms``; returns the pin's id."""
        return self.opened.retention.pins.pin(from_log_offset, deadline_ms)

    def unpin(self, pin_id: int) -> None:
        """Give a pin back."""
        self.opened.retention.pins.unpin(pin_id)

    def request_cleaning(self) -> None:
        """Expired segments go with the next cycles, whatever the hour."""
        self.opened.retention.request()

    def clean(self, now_ms: int) -> RetentionReport:
        """One cycle of retention; slow, in a thread of the caller. What was not synced stays: the
        file that a sync is about to open must be there.
        """
        parts = self.readable()
        return parts.retention.run(now_ms, parts.log.durable)

    def status(self) -> dict[str, Any]:
        """Plain values for administration."""
        parts = self.opened
        return {
            "state": self.state.value,
            "identity": self.identity,
            "epoch": parts.epochs.current,
            "begin": parts.log.begin,
            "end": parts.log.end,
            "durable": parts.log.durable,
            "visible": self._visible,
            "quarantined": parts.quarantine.count,
            "producers": len(parts.windows),
            "disk_full": parts.retention.disk_full,
            **self.counters,
        }

    @property
    def opened(self) -> StoreParts:
        """The parts; ``StoreNotReady`` before recovery is done."""
        if self._parts is None:
            raise StoreNotReady(
                f"the store at {self._config.path} is {self._state.value}; try again when it "
                f"is recovered",
                self._config.path,
            )
        return self._parts

    def readable(self) -> StoreParts:
        """The same; ``StoreFailed`` after a failure."""
        parts = self.opened
        if parts.log.failure is not None:
            raise StoreFailed(
                f"the log failed and must be read again: {parts.log.failure.message}",
                self._config.path,
            )
        return parts


def _log_offset_at(queue: ConsumeQueue | None, offset: int) -> int:
    raw = queue.read(offset, 1) if queue is not None else b""
    log_offset, size, _ = ENTRY.unpack(raw) if raw else (-1, BLANK_SIZE, 0)
    return -1 if size == BLANK_SIZE else int(log_offset)
