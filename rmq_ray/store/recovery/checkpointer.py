"""The thread that keeps recovery short: every second or 64 MiB it syncs what was derived from the
log and notes how far.

Decides: when, and in which order (a checkpoint is written after everything that it names was
synced, so it is valid after a power loss too). Does not decide: what a checkpoint holds
(``short_checkpoint``), what a recovery makes of it. Called by: message store. Invariant: the values
of one checkpoint belong to one position of the log.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rmq_ray.codec.record import HEADER_BYTES
from rmq_ray.errors import StoreError, StoreFailed, StoreFull
from rmq_ray.store.io.store_lock import OURS
from rmq_ray.store.queue.topic_removal import deleted_topics, remove_deleted_topics
from rmq_ray.store.recovery.checkpoint import Checkpoint, save_checkpoint
from rmq_ray.store.recovery.restart import StoreParts, Surroundings
from rmq_ray.store.recovery.short_checkpoint import ShortCheckpoint, save_short_checkpoint

logger = logging.getLogger("rmq_ray.store")

STOP_WAIT_S = 30.0
_ANYWHERE = -2  # no position
# syncing thousands of queues may take longer than the interval: then it gets a fifth of the disk's
# time
_REST = 4
_REST_MAX_MS = 60_000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The store at one position: everything before it was dispatched, nothing behind it.
    ``last_record``: log offset, -1 = none.
    """

    position: int
    log_ms: int
    queues: dict[tuple[str, int], int]
    windows: Any
    last_record: int


class Checkpointer:
    """``take(position)``: makes a snapshot (quick, under the store's lock), None when the store
    still is at that position. ``on_failure``: told once when a sync failed.
    """

    def __init__(
        self,
        around: Surroundings,
        parts: StoreParts,
        identity: str,
        take: Callable[[int], Snapshot | None],
        on_failure: Callable[[StoreError], None],
    ) -> None:
        self._around = around
        self._parts = parts
        self._identity = identity
        self._take = take
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

    def write(self, thorough: bool = False) -> bool:
        """Sync and write one now. ``thorough``: RocketMQ's file too. False when nothing changed
        since the last. Any thread.
        """
        with self._busy:
            deleted = deleted_topics(
                self._around.root, self._around.files
            )  # before the snapshot, which then is without them
            snapshot = self._take(_ANYWHERE if thorough or deleted else self.position)
            if snapshot is None:
                return False
            parts = self._parts
            parts.queues.flush_all()
            if parts.index is not None and thorough:
                parts.index.flush_slots()  # RocketMQ's file may not claim more than its index keeps
            elif parts.index is not None:
                parts.index.flush()
            if parts.log.durable < snapshot.position:
                parts.log.sync()
            self._save(snapshot)
            self.position = snapshot.position
            if thorough:
                self._save_times(snapshot)
            remove_deleted_topics(deleted, self._around.files)
            return True

    def _save(self, snapshot: Snapshot) -> None:
        around, index = self._around, self._parts.index
        checkpoint = ShortCheckpoint(
            snapshot.position,
            snapshot.log_ms,
            snapshot.queues,
            index.state() if index is not None else {},
            snapshot.windows,
            around.boot_id,
            True,
            self._identity,
            self._fingerprint(snapshot.last_record),
        )
        save_short_checkpoint(around.files, f"{around.root}/{OURS}/checkpoint", checkpoint)

    def _fingerprint(self, log_offset: int) -> tuple[int, int]:
        if log_offset < 0:
            return -1, 0
        return log_offset, zlib.crc32(self._parts.log.read(log_offset, HEADER_BYTES))

    def _save_times(self, snapshot: Snapshot) -> None:
        parts, around = self._parts, self._around
        index_ms = parts.index.index_ms if parts.index is not None else 0
        save_checkpoint(
            around.files,
            f"{around.root}/checkpoint",
            Checkpoint(snapshot.log_ms, snapshot.log_ms, index_ms),
        )
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
            except Exception as error:  # noqa: BLE001
                logger.exception("the checkpoint thread met a defect")
                self._on_failure(
                    StoreFailed(f"the checkpoint thread ended: {error!r}", self._around.root)
                )
            took_ms = clock.monotonic_ms() - started_ms
            if took_ms * _REST > config.checkpoint_interval_ms:
                self._stopping.wait(min(took_ms * _REST, _REST_MAX_MS) / 1000)
