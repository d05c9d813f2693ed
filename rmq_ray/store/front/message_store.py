"""The store's front door: append, read, query, recover one broker's commit log and everything
derived from it.

Decides: the order of things in an append (check, repeat?, place, patch, one write, remember,
dispatch or wait), and what is visible: visible means durable. ASYNC_FLUSH: a written frame is
dispatched before the append returns. SYNC_FLUSH: it waits until the flush thread's fdatasync
covered it and ``dispatch_durable`` is called; with a transient store pool until its commit. Whole
frames, in log order. Does not decide: permissions, topics, acknowledgements to producers (the
broker compares ``end_log_offset`` with ``durable_offset``). Called by: the broker. ``append_*`` and
``dispatch_durable`` belong to one thread (the broker's loop); reads may come from any thread.

    CLOSED --open--> OPEN --recover--> RECOVERED --start--> READY --shutdown--> CLOSED
                                                              '--failed write or sync--> FAILED --reopen--> READY

Invariants: queue offsets are dense per queue and assigned in log order; nothing is appended after a
failure until the disk was read again; ``visible_offset <= durable_offset`` under SYNC_FLUSH.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import ClassVar

from rmq_ray.clock import Clock
from rmq_ray.codec.record import pack_host_v4
from rmq_ray.codec.record_batch import Array, CheckedFrame
from rmq_ray.codec.record_properties import split_facts
from rmq_ray.config import FlushMode, StoreConfig
from rmq_ray.errors import AppendUnknown, StoreError, StoreFull, StoreNotReady
from rmq_ray.files import Bytes, FileSystem
from rmq_ray.model.ids import FrameId
from rmq_ray.store.frames.append_result import AppendResult, MixedResult
from rmq_ray.store.frames.deduplication import StoredFrame
from rmq_ray.store.frames.frame_check import PartsOf, check_frame, patch_frame
from rmq_ray.store.frames.mixed_frame import encode_mixed, measure
from rmq_ray.store.frames.single_message import (
    EncodedMessages,
    StoredMessage,
    encode_batch,
    encode_message,
    is_queued,
    patch_messages,
)
from rmq_ray.store.io.store_lock import StoreLock
from rmq_ray.store.log.flusher import LogFlusher
from rmq_ray.store.queue.bit_maps import BitMapper
from rmq_ray.store.queue.topic_removal import deleted_topic_directory
from rmq_ray.store.reading.reading import RECENT_BYTES_MAX, GetResult, Recent
from rmq_ray.store.reading.store_reads import StoreState
from rmq_ray.store.reading.visibility import WAITING_FRAMES_MAX, StoreVisibility, Written
from rmq_ray.store.recovery.checkpointer import Checkpointer, Snapshot
from rmq_ray.store.recovery.data_loss_marker import judge
from rmq_ray.store.recovery.recovery import RecoveryReport
from rmq_ray.store.recovery.restart import DelayOfLevel, StoreParts, Surroundings, restart
from rmq_ray.store.recovery.truncation import finish_truncation

__all__ = [
    "AppendResult",
    "GetResult",
    "MessageStore",
    "MixedResult",
    "StoreState",
    "StoredMessage",
]

logger = logging.getLogger("rmq_ray.store")


class MessageStore(StoreVisibility):
    """``store_host``: (address, port) that goes into records. ``delay_ms``: milliseconds of a delay
    level (schedule topic). ``bit_mapper``: the SQL filters that new entries' bit maps are made of,
    None = no bit maps. ``new_epoch``: begun at the log's end when it is recovered.
    """

    follows: ClassVar[bool] = False  # the log is a copy of a master's

    def __init__(  # noqa: PLR0913 - the parts that tests replace
        self,
        config: StoreConfig,
        clock: Clock,
        *,
        broker_name: str,
        store_host: tuple[str, int],
        files: FileSystem | None = None,
        boot_id: str | None = None,
        delay_ms: DelayOfLevel | None = None,
        delay_level_max: int = 18,
        bit_mapper: BitMapper | None = None,
        new_epoch: int | None = None,
    ) -> None:
        files = files or FileSystem()
        boot = files.boot_id() if boot_id is None else boot_id
        self._around = Surroundings(
            config,
            files,
            clock,
            boot,
            delay_ms or (lambda _level: None),
            delay_level_max,
            bit_mapper,
            self.follows,
            new_epoch,
        )
        super().__init__(config)
        self._clock = clock
        self._broker_name = broker_name
        self._lock_file = StoreLock(config.path, files)
        self.on_written: Callable[[], None] = lambda: (
            None
        )  # called after each append: the log is longer than before
        self.admit: Callable[[], None] | None = (
            None  # called before each append; what it raises is raised, and nothing is written
        )
        self._flusher: LogFlusher | None = None
        self._checkpointer: Checkpointer | None = None
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._threads = True
        self.report = RecoveryReport()
        """Of the last recovery."""
        self.set_store_host(store_host)

    # --- life -------------------------------------------------------------------------------------

    def open(self, create: bool, expected_identity: str | None = None) -> None:
        """Lock the directory and identify it. Raises ``StoreInUse``, ``StoreMissing``,
        ``StoreForeign``, ``StoreUnwritable``; nothing is held then.
        """
        if self._state is not StoreState.CLOSED:
            raise StoreError(
                f"the store at {self._config.path} is {self._state.value}; shut it down "
                f"before it is opened again",
                self._config.path,
            )
        self._lock_file.acquire(create)
        try:
            self.identity = self._lock_file.identify(
                create, expected_identity, self._broker_name, self._clock.now_ms()
            )
        except BaseException:
            self._lock_file.release()
            raise
        self._state = StoreState.OPEN

    def recover(self) -> RecoveryReport:
        """Read what the last life left (slow: seconds a GB without our checkpoint). On return
        everything recovered is durable and visible.
        """
        if self._state is not StoreState.OPEN:
            raise StoreError(
                f"recover() follows open(); the store at {self._config.path} is "
                f"{self._state.value}",
                self._config.path,
            )
        unclean = self._lock_file.mark_running()
        parts, self.report = restart(self._around, self.identity, unclean)
        self._parts = parts
        self._next_offsets = parts.queues.maxima()
        self._visible = self.report.end
        self._last_ms, self._last_record = self.report.last_ms, self.report.last_record
        self._waiting.clear()
        self._checkpointer = Checkpointer(
            self._around, parts, self.identity, self._snapshot, self._fail
        )
        self._checkpointer.write(thorough=True)
        finish_truncation(self._around.files, self._config.path)
        self._state = StoreState.RECOVERED
        return self.report

    def start(self, on_durable: Callable[[int], None], *, threads: bool = True) -> None:
        """Start the flush threads; appends are accepted on return. ``on_durable(log offset)`` is
        called from the flush thread, after every sync and once when the log has failed. ``threads``
        False: a simulation calls ``flush_step`` and ``flush`` instead.
        """
        if self._state is not StoreState.RECOVERED or self._checkpointer is None:
            raise StoreError(
                f"start() follows recover(); the store at {self._config.path} is "
                f"{self._state.value}",
                self._config.path,
            )
        self._on_durable = on_durable
        self._flusher = LogFlusher(self.opened.log, self._config, self._clock, on_durable)
        if threads:
            self._flusher.start()
            self._checkpointer.start()
        self._threads = threads
        self._state = StoreState.READY

    def shutdown(self) -> bool:
        """Flush, write the last checkpoint, give the locks back. False: the log failed, its tail is
        not durable; else the next start is clean.
        """
        if self._state is StoreState.CLOSED:
            return True
        durable = True
        if self._parts is not None:
            clean = durable = self._stop_threads()
            if clean and self._checkpointer is not None:
                clean = self._write_last_checkpoint(self._checkpointer)
            if self._parts.log.failure is not None:
                # this host may open it again, as a follower's: what was not synced must not look as
                # if it was
                self._give_up_unsynced(self._parts)
            self._parts.close()
            if clean:
                self._lock_file.mark_stopped()
            self._parts = None
        self._lock_file.release()
        self._state = StoreState.CLOSED
        return durable

    def reopen(self) -> RecoveryReport:
        """After a failure: forget what the page cache says of unsynced bytes, read the disk again,
        go on. Slow as ``recover``.
        """
        if self._parts is not None:
            self._stop_threads()
            self._give_up_unsynced(self._parts)
            self._parts.close()
            self._parts = None
        self._state = StoreState.OPEN
        report = self.recover()
        self.start(self._on_durable, threads=self._threads)
        return report

    def set_store_host(self, store_host: tuple[str, int]) -> None:
        """The address that records written from now on carry (a broker learns its port after the
        store was made).
        """
        self._store_host = store_host
        self._store_host_bytes = pack_host_v4(*store_host)

    # --- append -----------------------------------------------------------------------------------

    def append_frame(
        self,
        records: bytearray | memoryview,
        sizes: Array | Sequence[int],
        born_host: tuple[str, int],
        parts_of: PartsOf = split_facts,
    ) -> AppendResult:
        """Check, patch in place and write a frame. On return the kernel has all of it; durable at
        ``end_log_offset``. ``parts_of``: see ``check_frame``.

        Raises ``MessageIllegal``, ``MessageTooLarge``, ``DuplicateMismatch``, ``StoreFull``,
        ``StoreFailed`` (nothing is stored), ``AppendUnknown`` (the disk failed while it was written
        or queued).
        """
        parts = self._writable()
        frame = check_frame(records, sizes, self._config.body_bytes_max, parts_of)
        if frame.frame_id is not None:
            known = parts.windows.find(frame.frame_id, frame.crc)
            if known is not None:
                return self._repeat(known)
        log_offset = parts.log.place(frame.length)
        store_ms = self._clock.now_ms()
        queue_offset = self._next_offsets.get((frame.topic, frame.queue_id), 0)
        patch_frame(
            records,
            frame,
            (queue_offset, log_offset),
            store_ms,
            (pack_host_v4(*born_host), self._store_host_bytes),
        )
        result = self._write(parts, records, frame, (queue_offset, log_offset), store_ms, 0)
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
        parts = self._writable()
        encoded = encode_message(message, self._store_host, self._config.body_bytes_max, frame_id)
        known = parts.windows.find(frame_id, encoded.frame.crc) if frame_id is not None else None
        return self._append_encoded(parts, encoded) if known is None else self._repeat(known)

    def append_batch_body(self, batch: StoredMessage) -> AppendResult:
        """RocketMQ's batch: ``batch.body`` as clients send it (store-format 10), stored as records
        with consecutive queue offsets.
        """
        parts = self._writable()
        return self._append_encoded(
            parts, encode_batch(batch, self._store_host, self._config.body_bytes_max)
        )

    def append_mixed(self, messages: Sequence[StoredMessage]) -> MixedResult:
        """Write ordinary or committed messages for any queues with one call, in this order: a crash
        leaves all of them or a beginning. No repeats are recognised. Raises as ``append_frame``.
        """
        parts = self._writable()
        items = measure(messages, self._config.body_bytes_max)
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
            self._spread(parts, mixed, 0, log_offset, store_ms, 0)
        except StoreError as error:
            raise self._left_open(error) from error
        return MixedResult(
            log_offset, log_offset + mixed.length, mixed.starts, mixed.offsets, store_ms
        )

    # --- upkeep -----------------------------------------------------------------------------------

    def delete_topic(self, topic: str) -> int:
        """Remove a topic's queues; its records stay in the log until retention takes them. Offsets
        begin at 0 again. Quick: the files go with the next checkpoint, after which a power loss
        does not bring the queues back either. Returns how many queues.
        """
        parts = self.readable()
        parts.reader.recent = None
        self._forget_waiting(topic)
        with self._lock:
            deleted = parts.queues.detach_topic(
                topic, deleted_topic_directory(self._config.path, topic, self._around.files)
            )
            for key in [key for key in self._next_offsets if key[0] == topic]:
                del self._next_offsets[key]
        if deleted and self._checkpointer is not None:
            self._checkpointer.request()
        return deleted

    def flush_step(self) -> bool:
        """What the flush thread does once: sync the log if that is due. False when it has
        failed.
        """
        return self._flusher is not None and self._flusher.step()

    def flush(self) -> None:
        """On return everything written is durable, and derived files are too. Any thread."""
        self.opened.log.sync()
        if self._checkpointer is not None:
            self._checkpointer.write()

    # --- inside -----------------------------------------------------------------------------------

    def _writable(self) -> StoreParts:
        if self._state is not StoreState.READY or self._parts is None:
            raise StoreNotReady(
                f"the store at {self._config.path} is {self._state.value}; try again when it "
                f"is ready",
                self._config.path,
            )
        if self.admit is not None:
            self.admit()
        if self._parts.retention.disk_full:
            ratio = self._config.disk_full_ratio
            raise StoreFull(
                f"the disk of {self._config.path} is fuller than {ratio:.0%}; free space or "
                f"add a larger one",
                self._config.path,
            )
        if len(self._waiting) >= WAITING_FRAMES_MAX:
            self.dispatch_durable()
            if len(self._waiting) >= WAITING_FRAMES_MAX:
                raise StoreFull(
                    f"{WAITING_FRAMES_MAX} frames wait to become visible; the disk is too "
                    f"slow or full",
                    self._config.path,
                )
        return self._parts

    def _repeat(self, known: StoredFrame) -> AppendResult:
        self._repeats += 1
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

    def _append_encoded(self, parts: StoreParts, encoded: EncodedMessages) -> AppendResult:
        frame = encoded.frame
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
            parts, encoded.records, frame, (queue_offset, log_offset), store_ms, encoded.sys_flag
        )
        result.log_offsets = tuple(log_offset + start for start in frame.starts)
        return result

    def _write(
        self,
        parts: StoreParts,
        records: Bytes,
        frame: CheckedFrame,
        offsets: tuple[int, int],
        store_ms: int,
        sys_flag: int,
    ) -> AppendResult:
        """From the first byte on a failure leaves it open whether the frame is found when the disk
        is read again.
        """
        try:
            parts.log.write(records, offsets[1], frame.length)
            return self._written(parts, frame, *offsets, store_ms, sys_flag)
        except StoreError as error:
            raise self._left_open(error) from error

    def _left_open(self, error: StoreError) -> StoreError:
        """What a failed write is for its caller: of a disk that was full, all that was written is
        removed again.
        """
        if isinstance(error, StoreFull):
            return error
        return AppendUnknown(
            f"a message that was being stored may be in the log or not: {error.message}",
            self._config.path,
        )

    def _written(
        self,
        parts: StoreParts,
        frame: CheckedFrame,
        queue_offset: int,
        log_offset: int,
        store_ms: int,
        sys_flag: int,
    ) -> AppendResult:
        """The frame is in the log: remember it, make it visible or let it wait."""
        end = log_offset + frame.length
        count = frame.count
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
            with self._lock:
                parts.windows.add(frame.frame_id, stored, store_ms)
        self._spread(parts, frame, queue_offset, log_offset, store_ms, sys_flag)
        return AppendResult(
            frame.topic, frame.queue_id, queue_offset, log_offset, end, store_ms, False, count
        )

    def _spread(
        self,
        parts: StoreParts,
        frame: Written,
        queue_offset: int,
        log_offset: int,
        store_ms: int,
        sys_flag: int,
    ) -> None:
        """The log is longer: count it, make it visible or let it wait, wake the threads that have
        to do with it.
        """
        self.on_written()
        self._frames += 1
        self._records += frame.count
        self._bytes += frame.length
        if (
            self._let_in(parts, frame, queue_offset, log_offset, store_ms, sys_flag)
            and self._flusher is not None
        ):
            self._flusher.request()
        checkpointer = self._checkpointer
        if (
            checkpointer is not None
            and log_offset + frame.length - checkpointer.position > self._config.checkpoint_bytes
        ):
            checkpointer.request()

    def _snapshot(self, after: int) -> Snapshot | None:
        parts = self.opened
        if self._visible == after:
            return None
        with self._lock:
            parts.windows.expire(self._clock.now_ms())
            return Snapshot(
                self._visible,
                self._last_ms,
                parts.queues.maxima(),
                parts.windows.snapshot(),
                self._last_record,
            )

    def _give_up_unsynced(self, parts: StoreParts) -> None:
        """What the log's failure left unsynced may be lost, of which ASYNC_FLUSH has acknowledged
        some: another copy is to be preferred.
        """
        parts.forget_unsynced()
        if (
            parts.log.failure is None
            or parts.log.durable >= parts.log.end
            or self._config.flush is not FlushMode.ASYNC_FLUSH
        ):
            return
        try:
            judge(self._around.files, self._config.path, lost=True)
        except StoreError as error:
            logger.error(
                "the disk of %s takes no note that acknowledged bytes may be lost: %s",
                self._config.path,
                error,
            )

    def _stop_threads(self) -> bool:
        """True when everything written is durable and visible."""
        if self._checkpointer is not None:
            self._checkpointer.stop()
        if self._flusher is None:
            return True
        self._flusher.stop()
        self._flusher = None
        if self.opened.log.failure is not None:
            return False
        self._replicated = None
        self.dispatch_durable()
        return not self._waiting

    def _write_last_checkpoint(self, checkpointer: Checkpointer) -> bool:
        try:
            if self._parts is not None and self._parts.index is not None:
                # Apache RocketMQ, and a start without our checkpoint, know only the slots on disk
                self._parts.index.flush_slots()
            checkpointer.write(thorough=True)
        except StoreError as error:
            logger.error(
                "the last checkpoint could not be written, the next start recovers: %s", error
            )
            return False
        return True
