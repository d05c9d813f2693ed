"""What keeps recovery short: two checkpoint files, and the thread that writes them
(docs/file-format.md#checkpoints).

    checkpoint             Apache RocketMQ's: store times up to which log, queues, index are on disk
         0 physicMsgTimestamp i64 | 8 logicsMsgTimestamp i64 | 16 indexMsgTimestamp i64
        24 zeros up to 4096 bytes                                             big-endian, ms

    rmq_ray/checkpoint     ours: the position from which recovery reads the log again
         0 "RMQCKPT1" | 8 payload bytes u32 | 12 CRC-32 of the payload u32 | 16 payload, msgpack map

        log_position    all records that begin before it are in the consume queues and the index,
                        and those are synced
        log_ms          store time of the last record before it
        queues          [[topic, queue id, next offset], ...]   exact maxima at log_position
        index           ``IndexService.state()`` at log_position or before it
        deduplication   the windows of producers heard lately, at log_position
        boot_id         the kernel's boot: after another one, unsynced pages are gone
        synced          the log itself was synced up to log_position (always under SYNC_FLUSH)
        identity        of the store it belongs to
        last_record     (log offset, CRC-32 of its first 88 bytes) of the last record before
                        log_position; (-1, 0) = none: tells whether the log is still the same

Every second or 64 MiB everything that was derived from the log is synced, then our file is written;
RocketMQ's follows once a minute, for a log that moves on without ours.

Decides: both forms, when they are written and in which order, and that a checkpoint of ours which
cannot be read counts as none: it is a cache, the log tells the same in more time. Does not decide
whether the log still agrees with it (``restart``).

Invariants: a checkpoint is written after everything that it names was synced, so it is valid after
a power loss too; its values belong to one position of the log.
"""

from __future__ import annotations

import logging
import struct
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgpack

from rmq_ray.codec.record import HEADER_BYTES
from rmq_ray.codec.store_files import OURS
from rmq_ray.errors import StoreError, StoreFailed, StoreFull, StoreMissing
from rmq_ray.files import FileSystem
from rmq_ray.store.queue.queue_table import deleted_topics, remove_deleted_topics
from rmq_ray.store.recovery.store_parts import StoreParts, Surroundings

CHECKPOINT_BYTES = 4096
SAFETY_MS = 3_000  # RocketMQ trusts 3 s less than what was noted
_TIMES = struct.Struct(">qqq")
logger = logging.getLogger("rmq_ray.store")
_FRAME = struct.Struct(">8sII")
_MAGIC = b"RMQCKPT1"
STOP_WAIT_S = 30.0
_ANYWHERE = -2  # no position
# syncing thousands of queues may take longer than the interval: then it gets a fifth of the disk's
# time
_REST = 4
_REST_MAX_MS = 60_000


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Store times in ms; 0 = nothing yet."""

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0

    @property
    def trusted_ms(self) -> int:
        """RocketMQ's getMinTimestamp: a file whose first record is not younger is whole.

        >>> StoreCheckpoint(10_000, 9_000, 0).trusted_ms, StoreCheckpoint(1, 2).trusted_ms
        (6000, 0)
        """
        return max(0, min(self.log_ms, self.queues_ms) - SAFETY_MS)


def load_store_checkpoint(files: FileSystem, path: str) -> StoreCheckpoint:
    """The file's times; a missing or short file counts as zeros, as for RocketMQ."""
    if not files.exists(path):
        return StoreCheckpoint()
    return StoreCheckpoint(
        *_TIMES.unpack(files.read_whole(path)[: _TIMES.size].ljust(_TIMES.size, b"\0"))
    )


def save_store_checkpoint(files: FileSystem, path: str, checkpoint: StoreCheckpoint) -> None:
    """Written in place, as RocketMQ does (24 bytes of one sector); durable on return."""
    new = not files.exists(path)
    file = files.open(path, create=True)
    try:
        if file.size() != CHECKPOINT_BYTES:
            file.truncate(CHECKPOINT_BYTES)
        file.pwrite(_TIMES.pack(checkpoint.log_ms, checkpoint.queues_ms, checkpoint.index_ms), 0)
        file.datasync()
    finally:
        file.close()
    if new:
        files.sync_dir(path.rpartition("/")[0])


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """See the module. ``queues``: (topic, queue id) -> next queue offset. ``index`` and
    ``deduplication`` are plain values.
    """

    log_position: int
    log_ms: int = 0
    queues: dict[tuple[str, int], int] = field(default_factory=dict)
    index: dict[str, Any] = field(default_factory=dict)
    deduplication: Any = None
    boot_id: str = ""
    synced: bool = False
    identity: str = ""
    last_record: tuple[int, int] = (-1, 0)


_FIELDS = tuple(f.name for f in fields(RecoveryPoint))


def encode_recovery_point(checkpoint: RecoveryPoint) -> bytes:
    """The whole file."""
    values: dict[str, Any] = {name: getattr(checkpoint, name) for name in _FIELDS}
    values["queues"] = [
        (topic, queue_id, offset) for (topic, queue_id), offset in checkpoint.queues.items()
    ]
    payload: bytes = msgpack.packb(values)
    return _FRAME.pack(_MAGIC, len(payload), zlib.crc32(payload)) + payload


def decode_recovery_point(data: bytes) -> RecoveryPoint | None:
    """None when the bytes are not a whole checkpoint of this form."""
    if len(data) < _FRAME.size:
        return None
    magic, size, crc = _FRAME.unpack_from(data)
    payload = data[_FRAME.size :]
    if magic != _MAGIC or len(payload) != size or zlib.crc32(payload) != crc:
        return None
    values = msgpack.unpackb(payload, strict_map_key=False)
    values["queues"] = {(topic, queue_id): offset for topic, queue_id, offset in values["queues"]}
    values["last_record"] = tuple(values["last_record"])
    return RecoveryPoint(**values)


def save_recovery_point(files: FileSystem, path: str, checkpoint: RecoveryPoint) -> None:
    """Replace the file atomically; durable on return. Everything it speaks of must be synced
    already.
    """
    files.write_whole(path, encode_recovery_point(checkpoint))


def load_recovery_point(files: FileSystem, path: str) -> RecoveryPoint | None:
    """The checkpoint; None when there is none or it cannot be read (then recovery goes RocketMQ's
    way).
    """
    try:
        checkpoint = decode_recovery_point(files.read_whole(path))
    except StoreMissing:
        return None
    if checkpoint is None:
        logger.warning(
            "checkpoint %s is damaged: recovery reads the log from RocketMQ's checkpoint on", path
        )
    return checkpoint


class Checkpointer:
    """Of one life of a store. ``on_failure``: told once when a sync failed."""

    def __init__(
        self,
        around: Surroundings,
        parts: StoreParts,
        identity: str,
        on_failure: Callable[[StoreError], None],
    ) -> None:
        self._around = around
        self._parts = parts
        self._identity = identity
        self._on_failure = on_failure
        self.position = -1
        """Log position of the last checkpoint."""
        self._times_ms = around.clock.monotonic_ms()
        self._wake = threading.Event()
        self._busy = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="rmq-checkpoint", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Write one soon (much was appended)."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread; no checkpoint is written by this."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(STOP_WAIT_S)
            self._thread = None

    def write_last(self) -> bool:
        """At a clean stop. False: the disk refuses, the next start recovers."""
        try:
            if self._parts.index is not None:
                # Apache RocketMQ, and a start without our checkpoint, know only the slots on disk
                self._parts.index.flush_slots()
            self.write(thorough=True)
        except StoreError as error:
            logger.error(
                "the last checkpoint could not be written, the next start recovers: %s", error
            )
            return False
        return True

    def write(self, thorough: bool = False) -> bool:
        """Sync and write one now. ``thorough``: RocketMQ's file too. False when nothing changed
        since the last. Any thread.
        """
        with self._busy:
            deleted = deleted_topics(
                self._around.root, self._around.files
            )  # before the snapshot, which then is without them
            point = self._snapshot(_ANYWHERE if thorough or deleted else self.position)
            if point is None:
                return False
            parts = self._parts
            parts.queues.flush_all()
            if parts.index is not None and thorough:
                parts.index.flush_slots()  # RocketMQ's file may not claim more than its index keeps
            elif parts.index is not None:
                parts.index.flush()
            if parts.log.durable < point.log_position:
                parts.log.sync()
            self._save(point)
            self.position = point.log_position
            if thorough:
                self._save_times(point.log_ms)
            remove_deleted_topics(deleted, self._around.files)
            return True

    def _snapshot(self, after: int) -> RecoveryPoint | None:
        """The store at one position: everything before it was dispatched, nothing behind it. None
        when that still is ``after``.
        """
        parts, around = self._parts, self._around
        visibility = parts.visibility
        if visibility.offset == after:
            return None
        with visibility.lock:
            parts.windows.expire(around.clock.monotonic_ms())
            return RecoveryPoint(
                visibility.offset,
                visibility.last_ms,
                parts.queues.maxima(),
                {},
                parts.windows.snapshot(),
                around.boot_id,
                True,
                self._identity,
                (visibility.last_record, 0),
            )

    def _save(self, point: RecoveryPoint) -> None:
        around, index, last = self._around, self._parts.index, point.last_record[0]
        crc = zlib.crc32(self._parts.log.read(last, HEADER_BYTES)) if last >= 0 else 0
        point = replace(
            point, index=index.state() if index is not None else {}, last_record=(last, crc)
        )
        save_recovery_point(around.files, f"{around.root}/{OURS}/checkpoint", point)

    def _save_times(self, log_ms: int) -> None:
        parts, around = self._parts, self._around
        index_ms = parts.index.index_ms if parts.index is not None else 0
        times = StoreCheckpoint(log_ms, log_ms, index_ms)
        save_store_checkpoint(around.files, f"{around.root}/checkpoint", times)
        self._times_ms = around.clock.monotonic_ms()

    def _run(self) -> None:
        config, clock = self._around.config, self._around.clock
        while True:
            self._wake.wait(config.checkpoint_interval_ms / 1000)
            self._wake.clear()
            if self._stopping.is_set() or self._parts.log.failure is not None:
                return
            started_ms = clock.monotonic_ms()
            try:
                self.write(
                    clock.monotonic_ms() - self._times_ms >= config.queue_flush_thorough_interval_ms
                )
            except StoreFull as error:
                logger.warning("no checkpoint, the disk is full: %s", error)
            except StoreError as error:
                self._on_failure(error)
            except Exception as error:
                logger.exception("the checkpoint thread met a defect")
                self._on_failure(
                    StoreFailed(f"the checkpoint thread ended: {error!r}", self._around.root)
                )
            took_ms = clock.monotonic_ms() - started_ms
            if took_ms * _REST > config.checkpoint_interval_ms:
                self._stopping.wait(min(took_ms * _REST, _REST_MAX_MS) / 1000)
