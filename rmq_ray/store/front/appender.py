"""The order of things in an append: check, repeat?, place, patch, one write, remember, make visible
or let wait.

    append_frame          records that a producer encoded, patched in place
    append_message        one message that the broker encodes itself
    append_batch_body     Apache RocketMQ's batch
    append_mixed          messages for several queues in one write

Decides that order. Does not decide: whether the store takes appends at all (``message_store``),
permissions, topics, acknowledgements to producers. One thread (the broker's loop).

Invariants: queue offsets are dense per queue and assigned in log order; a frame that was refused
left nothing behind; one of which it is not known whether it was stored is told so
(``AppendUnknown``), and the log takes nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.clock import Clock
from rmq_ray.codec.record import pack_host_v4
from rmq_ray.codec.record_batch import CheckedFrame
from rmq_ray.codec.record_properties import split_facts
from rmq_ray.config import StoreConfig
from rmq_ray.errors import AppendUnknown, StoreError, StoreFailed, StoreFull
from rmq_ray.files import Bytes
from rmq_ray.model.ids import FrameId
from rmq_ray.store.frames.batch_body import encode_batch_in_bulk
from rmq_ray.store.frames.deduplication import StoredFrame
from rmq_ray.store.frames.frame_check import PartsOf, check_frame, is_queued, patch_frame
from rmq_ray.store.frames.mixed_frame import encode_mixed, measure
from rmq_ray.store.frames.single_message import (
    EncodedMessages,
    StoredMessage,
    encode_batch,
    encode_message,
    patch_messages,
)
from rmq_ray.store.log.flusher import LogFlusher
from rmq_ray.store.queue.visibility import Written
from rmq_ray.store.reading.log_reader import RECENT_BYTES_MAX, Recent
from rmq_ray.store.recovery.checkpoint import Checkpointer
from rmq_ray.store.recovery.store_parts import StoreParts

Admit = Callable[[str, int], None]
"""(topic, queue offset of its first record): asked before a frame is written that is no repeat;
what it raises refuses the frame.
"""


@dataclass(slots=True)
class AppendResult:
    """Where records were stored. ``end_log_offset``: durable when ``durable_offset`` has reached
    it. ``repeat``: stored by an earlier append of the same frame, whose values these are.
    ``log_offsets``: of every record (batches of the single path only).
    """

    topic: str
    queue_id: int
    base_queue_offset: int
    base_log_offset: int
    end_log_offset: int
    store_ms: int
    repeat: bool
    count: int
    log_offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MixedResult:
    """Where the messages of one write were stored: message ``n`` at log offset ``log_offset +
    starts[n]``, queue offset ``offsets[n]``.
    """

    log_offset: int
    end_log_offset: int
    starts: Sequence[int]
    offsets: Sequence[int]
    store_ms: int


@dataclass(slots=True)
class AppendCounters:
    """What was appended since a store was made, and how many repeats were answered."""

    frames: int = 0
    records: int = 0
    bytes: int = 0
    repeats: int = 0


class Appender:
    """Of one life of a store. ``on_written``: called after each write, when the log is longer than
    before and nothing of it visible yet.
    """

    def __init__(
        self,
        parts: StoreParts,
        config: StoreConfig,
        clock: Clock,
        store_host: tuple[str, int],
        counters: AppendCounters,
        flusher: LogFlusher,
        checkpointer: Checkpointer,
        on_written: Callable[[], None],
    ) -> None:
        self._parts = parts
        self._path = config.path
        self._body_bytes_max = config.body_bytes_max
        self._checkpoint_bytes = config.checkpoint_bytes
        self._clock = clock
        self._counters = counters
        self._flusher = flusher
        self._checkpointer = checkpointer
        self._on_written = on_written
        self._next_offsets = parts.lives.begins() | parts.queues.maxima()
        self.set_store_host(store_host)

    def configure(self, config: StoreConfig) -> None:
        """Settings were changed."""
        self._body_bytes_max = config.body_bytes_max

    def set_store_host(self, store_host: tuple[str, int]) -> None:
        """The address that records written from now on carry."""
        self._store_host = store_host
        self._store_host_bytes = pack_host_v4(*store_host)

    def end_topic(self, topic: str) -> None:
        """The topic is deleted: should it be made again, its queues go on behind the end of every
        topic of that name. The caller holds the lock of what is visible.
        """
        parts = self._parts
        ends: dict[int, int] = {}
        for (name, queue_id), offset in self._next_offsets.items():
            if name == topic:
                if parts.queues.bounds(topic, queue_id)[1] < offset:
                    parts.queues.get_or_create(topic, queue_id)  # for what waits to be visible
                ends[queue_id] = max(offset, parts.lives.begin(topic, queue_id))
        self._next_offsets |= {(topic, queue_id): end for queue_id, end in ends.items()}
        parts.lives.end(topic, parts.log.end, ends, parts.log.begin)

    def append_frame(
        self,
        records: bytearray | memoryview,
        sizes: Array | Sequence[int],
        born_host: tuple[str, int],
        parts_of: PartsOf = split_facts,
        admit: Admit | None = None,
    ) -> AppendResult:
        """Check, patch in place and write a frame. On return the kernel has all of it; durable at
        ``end_log_offset``. ``parts_of``: see ``check_frame``.

        Raises ``MessageIllegal``, ``MessageTooLarge``, ``DuplicateMismatch``, ``StoreFull``,
        ``StoreFailed`` (nothing is stored), ``AppendUnknown`` (the disk failed while it was written
        or queued).
        """
        parts = self._parts
        frame = check_frame(records, sizes, self._body_bytes_max, parts_of)
        if frame.frame_id is not None:
            known = parts.windows.find(frame.frame_id, frame.crc)
            if known is not None:
                return self._repeat(known)
        queue_offset = self._next_offsets.get((frame.topic, frame.queue_id), 0)
        if admit is not None:
            admit(frame.topic, queue_offset)
        log_offset = parts.log.place(frame.length)
        store_ms = self._clock.now_ms()
        patch_frame(
            records,
            frame,
            (queue_offset, log_offset),
            store_ms,
            (pack_host_v4(*born_host), self._store_host_bytes),
        )
        result = self._write(records, frame, (queue_offset, log_offset), store_ms, 0)
        if frame.length <= RECENT_BYTES_MAX:
            parts.reader.recent = Recent(
                frame.topic, frame.queue_id, queue_offset, frame.sizes, bytes(records)
            )
        return result

    def append_message(
        self, message: StoredMessage, frame_id: FrameId | None = None
    ) -> AppendResult:
        """The single-message path: encode, write, dispatch one message of any kind. ``frame_id``:
        the record is marked as a frame of one, so that a repeat is answered with the first result,
        after a crash too. Raises as ``append_frame``.
        """
        parts = self._parts
        encoded = encode_message(message, self._store_host, self._body_bytes_max, frame_id)
        known = parts.windows.find(frame_id, encoded.frame.crc) if frame_id is not None else None
        return self._append_encoded(encoded) if known is None else self._repeat(known)

    def append_batch_body(self, batch: StoredMessage) -> AppendResult:
        """RocketMQ's batch: ``batch.body`` as clients send it, stored as records with consecutive
        queue offsets (docs/file-format.md#batch-body).
        """
        host, most = self._store_host, self._body_bytes_max
        return self._append_encoded(
            encode_batch_in_bulk(batch, host, most) or encode_batch(batch, host, most)
        )

    def append_mixed(self, messages: Sequence[StoredMessage]) -> MixedResult:
        """Write ordinary or committed messages for any queues with one call, in this order: a crash
        leaves all of them or a beginning. No repeats are recognised. Raises as ``append_frame``.
        """
        parts = self._parts
        items = measure(messages, self._body_bytes_max)
        log_offset = parts.log.place(sum([item.size for item in items]))
        store_ms = self._clock.now_ms()
        records, mixed = encode_mixed(
            items,
            log_offset,
            store_ms,
            self._store_host,
            self._next_offsets,
            parts.dispatcher.own_code,
        )
        try:
            parts.log.write(records, log_offset, mixed.length)
            for place, piece in mixed.pieces.items():
                self._next_offsets[place] = piece.queue_offset + piece.frame.count
            self._spread(mixed, 0, log_offset, store_ms, 0)
        except Exception as error:
            raise self._left_open(error) from error
        return MixedResult(
            log_offset, log_offset + mixed.length, mixed.starts, mixed.offsets, store_ms
        )

    def _repeat(self, known: StoredFrame) -> AppendResult:
        self._counters.repeats += 1
        return AppendResult(
            known.topic,
            known.queue_id,
            known.queue_offset,
            known.log_offset,
            known.end_log_offset,
            known.store_ms,
            True,
            known.records,
        )

    def _append_encoded(self, encoded: EncodedMessages) -> AppendResult:
        parts, frame = self._parts, encoded.frame
        log_offset = parts.log.place(frame.length)
        store_ms = self._clock.now_ms()
        queue_offset = (
            self._next_offsets.get((frame.topic, frame.queue_id), 0)
            if is_queued(encoded.sys_flag)
            else 0
        )
        patch_messages(encoded, queue_offset, log_offset, store_ms)
        if encoded.delay is not None:
            frame.tag_codes[0] = (
                parts.dispatcher.own_code(frame.topic, encoded.delay, store_ms)
                or frame.tag_codes[0]
            )
        result = self._write(
            encoded.records, frame, (queue_offset, log_offset), store_ms, encoded.sys_flag
        )
        result.log_offsets = tuple((np.asarray(frame.starts) + log_offset).tolist())
        return result

    def _write(
        self,
        records: Bytes,
        frame: CheckedFrame,
        offsets: tuple[int, int],
        store_ms: int,
        sys_flag: int,
    ) -> AppendResult:
        """Write it, remember it, make it visible or let it wait. From the first byte on a failure
        leaves it open whether the frame is found when the disk is read again.
        """
        parts = self._parts
        queue_offset, log_offset = offsets
        end, count = log_offset + frame.length, frame.count
        try:
            parts.log.write(records, log_offset, frame.length)
            if is_queued(sys_flag):
                self._next_offsets[frame.topic, frame.queue_id] = queue_offset + count
            if frame.frame_id is not None:
                stored = StoredFrame(
                    frame.crc,
                    frame.topic,
                    frame.queue_id,
                    queue_offset,
                    log_offset,
                    end,
                    store_ms,
                    count,
                )
                with parts.visibility.lock:
                    parts.windows.add(frame.frame_id, stored)
            self._spread(frame, queue_offset, log_offset, store_ms, sys_flag)
        except Exception as error:
            raise self._left_open(error) from error
        return AppendResult(
            frame.topic, frame.queue_id, queue_offset, log_offset, end, store_ms, False, count
        )

    def _left_open(self, error: Exception) -> StoreError:
        """What a failed write is for its caller: of a disk that was full, all that was written is
        removed again. Where something else than the disk failed (no memory, say), the message may
        be in the log and in no queue: only reading the log again makes that whole.
        """
        if isinstance(error, StoreFull):
            return error
        why = error.message if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
        if not isinstance(error, StoreError):
            self._parts.visibility.fail(StoreFailed(f"an append ended half way: {why}", self._path))
        return AppendUnknown(
            f"a message that was being stored may be in the log or not: {why}", self._path
        )

    def _spread(
        self,
        frame: Written,
        queue_offset: int,
        log_offset: int,
        store_ms: int,
        sys_flag: int,
    ) -> None:
        """The log is longer: count it, make it visible or let it wait, wake the threads that have
        to do with it.
        """
        self._on_written()
        counters = self._counters
        counters.frames += 1
        counters.records += frame.count
        counters.bytes += frame.length
        if self._parts.visibility.let_in(frame, queue_offset, log_offset, store_ms, sys_flag):
            self._flusher.request()
        checkpointer = self._checkpointer
        if log_offset + frame.length - checkpointer.position > self._checkpoint_bytes:
            checkpointer.request()
