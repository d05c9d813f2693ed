"""A slave's store: its log is a byte prefix of its master's, taken over as raw bytes; everything
derived from it is made here.

    bytes of the master ──checked──> commit log ──what the master has confirmed──>
    consume queues, index ──> readers

Decides: which of the received bytes are taken (whole records and frames that follow the log's own
end, every CRC right, broken stretches only where the master names them), and what becomes visible:
what the master has confirmed and this disk keeps as its flush mode demands. Does not decide: where
bytes come from, whom to tell (``server.slave.replica``). ``take`` runs in
one thread, ``check`` and ``advance`` in another, beside readers.

Invariants: the log is a prefix of its master's in every moment, a kill in between leaves a shorter
prefix; clients' appends are refused; epochs are those of the master. To be written to, the store is
opened anew as a ``MessageStore``, which begins an epoch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rmq_ray.arrays import Array
from rmq_ray.codec.record import RECORD_BYTES_OVER_BODY_MAX
from rmq_ray.config import BODY_BYTES_MAX
from rmq_ray.errors import LogDiverged, StoreCorrupt, StoreError, StoreFailed, StoreUnwritable
from rmq_ray.files import Bytes
from rmq_ray.store.frames.frame_tracker import FrameTracker
from rmq_ray.store.frames.log_scan import ScannedRecords
from rmq_ray.store.front.appender import Appender
from rmq_ray.store.front.message_store import MessageStore, StoreState
from rmq_ray.store.log.log_lineage import LogOrigin, absolve, read_origin, write_origin
from rmq_ray.store.recovery.checkpoint import Checkpointer
from rmq_ray.store.recovery.recovery import RecoveryReport
from rmq_ray.store.recovery.redispatch import Redispatcher
from rmq_ray.store.recovery.restart import cut_lists, finish_truncation, mark_truncation
from rmq_ray.store.recovery.store_parts import StoreParts
from rmq_ray.store.replication.follower_check import Broken, CheckedPiece, check_piece
from rmq_ray.store.replication.log_source import Tail, shorter_tails, tail_of
from rmq_ray.store.replication.mending import mend_stretch, mendable
from rmq_ray.store.tables.topic_lives import Lives

logger = logging.getLogger("rmq_ray.store")
CATCH_UP_BYTES = 8 << 20
FRAME_BYTES_MAX = 48 << 20


@dataclass(frozen=True, slots=True)
class Lineage:
    """The log that is to be followed: its identity, (epoch, start) oldest first, where it begins,
    the size of its segments.
    """

    log: str
    epochs: tuple[tuple[int, int], ...]
    begin: int
    segment_bytes: int


class FollowerStore(MessageStore):
    """See the module."""

    follows: ClassVar[bool] = True

    def __init__(self, *args: Any, **named: Any) -> None:
        """As ``MessageStore``."""
        super().__init__(*args, **named)
        self._taking = threading.Lock()
        self._showing = threading.Lock()
        self.opened_end = 0
        """Log offset up to which it was visible when it was opened, whatever is confirmed."""

    # --- following --------------------------------------------------------------------------------

    def origin(self) -> LogOrigin:
        """Whose log this is a copy of; reads a small file."""
        return read_origin(self._around.files, self._config.path, self.identity)

    def tail(self) -> Tail:
        """The last bytes of the log, for the master to compare."""
        return tail_of(self.readable(), self.end_offset, BODY_BYTES_MAX)

    def shorter_tails(self, tail: Tail) -> list[Tail]:
        """What of it to compare where the master has other bytes in it; see ``log_source``."""
        return shorter_tails(self.readable(), tail, BODY_BYTES_MAX)

    def follow(self, lineage: Lineage) -> None:
        """Before the first bytes of a master: take over its epochs; begin where its log does if
        that has left this one behind.

        Raises ``LogDiverged`` when this is a copy of another log, has epochs that the master lacks,
        or other segments. Durable on return.
        """
        with self._taking, self._showing:
            parts, origin = self.readable(), self.origin()
            self._check_lineage(parts, origin, lineage)
            if origin.log != lineage.log:
                write_origin(self._around.files, self._config.path, LogOrigin(lineage.log, True))
            if lineage.begin > parts.log.end:
                self._begin_at(parts, lineage.begin)
            parts.epochs.replace(lineage.epochs)

    def append_raw(self, log_offset: int, data: Bytes, broken: Broken = ()) -> int:
        """Bytes of the master's log that begin exactly at this one's end; returns how many were
        taken: whole records of whole frames, 0 when more are needed to complete one. On return the
        kernel has them. They become visible with ``advance``.

        Raises ``LogDiverged`` (another position), ``StoreCorrupt`` (args[2]: log offset of bytes
        that are no record and that ``broken`` does not name; what lies before them was taken),
        ``StoreFull``, ``StoreFailed``.
        """
        return self.take(self.check(log_offset, data, broken))

    def check(self, log_offset: int, data: Bytes, broken: Broken = ()) -> CheckedPiece:
        """Which of these bytes of the master's log, which begin at ``log_offset``, may be taken.
        Nothing is written; any thread.
        """
        record_max = BODY_BYTES_MAX + RECORD_BYTES_OVER_BODY_MAX
        return check_piece(
            memoryview(data), log_offset, self._config.segment_bytes, record_max, broken
        )

    def take(self, piece: CheckedPiece) -> int:
        """Append what was found good; as ``append_raw`` otherwise."""
        with self._taking:
            parts = self.readable()
            if piece.begin != parts.log.end:
                raise LogDiverged(
                    f"bytes for log offset {piece.begin} do not continue the log, which ends "
                    f"at {parts.log.end}; ask from there",
                    piece.begin,
                )
            for stretch in piece.skipped:
                parts.quarantine.add(*stretch)
            if piece.taken:
                parts.log.extend(piece.view[: piece.taken])
            elif piece.fault:
                raise StoreCorrupt(
                    f"what came for log offset {piece.begin} is no record: {piece.fault}",
                    self._config.path,
                    piece.begin,
                )
            return piece.taken

    def advance(self, confirmed: int, fresh: CheckedPiece | None = None) -> int:
        """Make visible what the master has confirmed up to log offset ``confirmed``, as far as it
        is here and durable; returns the visible offset. ``fresh``: what was taken last and need not
        be read again. The listener of arrivals is called in this thread. May run beside ``take``.
        """
        with self._showing:
            parts = self.readable()
            limit = min(confirmed, self.durable_offset)
            if fresh is not None and fresh.begin == parts.visibility.offset and fresh.end <= limit:
                self._dispatch_pieces(parts, fresh.records, fresh.end)
            while (
                parts.visibility.offset < limit
            ):  # ends: the visible offset rises, or what lies there cannot be dispatched
                before = parts.visibility.offset
                self._catch_up(parts, limit)
                if parts.visibility.offset == before:
                    break
            return parts.visibility.offset

    def take_lives(self, lives: Lives) -> None:
        """Which topics the master has deleted; as ``end_topic``."""
        parts, before = self.readable(), self.lives.snapshot()
        if lives == before:
            return
        with parts.visibility.lock:
            self.lives.replace(lives)
            for topic in {*before, *lives}:  # another master may know of fewer deletions
                if before.get(topic) != lives.get(topic):
                    parts.queues.begin_anew(topic)
            parts.reader.forget()

    def sync(self) -> int:
        """On return everything written is on disk; returns that position. Raises
        ``StoreFailed``.
        """
        position = self.opened.log.sync()
        self._on_durable(position)
        return position

    def truncate(self, log_offset: int) -> int:
        """Cut the log, and all that was derived from it, at ``log_offset``: what lies behind is not
        in the elected master's. Returns how many bytes went.

        Durable on return; a crash on the way is made good by the next start. Raises ``LogDiverged``
        for an offset outside of the log, ``StoreFailed``.
        """
        with self._taking, self._showing:
            parts = self.readable()
            if not parts.log.begin <= log_offset <= parts.log.end:
                raise LogDiverged(
                    f"the log has {parts.log.begin} to {parts.log.end} and cannot be cut at "
                    f"{log_offset}",
                    log_offset,
                )
            removed = parts.log.end - log_offset
            logger.warning(
                "%d bytes of the log at %s, from %d on, are in no elected master's log and "
                "are removed",
                removed,
                self._config.path,
                log_offset,
            )
            self._stop_threads()
            try:
                parts.log.sync()
                mark_truncation(self._around.files, self._config.path, log_offset)
                self._cut(parts, log_offset)
                self._checkpointer = Checkpointer(self._around, parts, self.identity, self._fail)
                self._checkpointer.write(thorough=True)
                finish_truncation(self._around.files, self._config.path)
            except StoreError as error:
                self._fail(error)
                raise StoreFailed(
                    f"the log could not be cut at {log_offset}: {error.message}", self._config.path
                ) from error
            self._state = StoreState.RECOVERED
            self.start(self._on_durable, threads=self._threads)
            return removed

    def broken_stretches(self) -> list[tuple[int, int]]:
        """(log offset, bytes) of what is in quarantine and could be mended with the master's
        bytes.
        """
        return mendable(self.readable())

    def mend(self, log_offset: int, data: bytes) -> int:
        """Put the master's bytes in the place of a broken stretch; how many were taken, see
        ``mend_stretch``.
        """
        with self._taking, self._showing:
            return mend_stretch(self.readable(), log_offset, data, appends=True).taken

    def _cut(self, parts: StoreParts, log_offset: int) -> None:
        visibility = parts.visibility
        with visibility.lock:
            parts.reader.forget()
            visibility.moved_to(min(visibility.offset, log_offset), visibility.last_ms, -1)
            self.opened_end = min(self.opened_end, log_offset)
            parts.queues.truncate_from(log_offset)
            parts.reader.forget()  # what was read meanwhile, too
            parts.windows.cut_from(log_offset)
            cut_lists(log_offset, parts.epochs, parts.quarantine, parts.index)
            parts.chain.cut_from(log_offset)
            parts.log.set_end(log_offset)
            self.lives.cut_to(log_offset)
        self.lives.save(self.lives.snapshot())

    @property
    def sound(self) -> bool:
        """Whether the log has all that was ever acknowledged of it, as far as is known here."""
        return self.report.sound

    def absolve(self) -> None:
        """The log has everything that its master's has."""
        if not self.report.sound:
            absolve(self._around.files, self._config.path)
            self.report.sound = True

    # --- in place of a master's -------------------------------------------------------------------

    def recover(self) -> RecoveryReport:
        """See ``MessageStore.recover``."""
        report = super().recover()
        self.opened_end = report.end
        return report

    def shutdown(self) -> bool:
        """See ``MessageStore.shutdown``; waits for what is being taken or made visible."""
        with self._taking, self._showing:
            return super().shutdown()

    def reopen(self) -> RecoveryReport:
        """See ``MessageStore.reopen``."""
        with self._taking, self._showing:
            return super().reopen()

    def dispatch_durable(self) -> int:
        """Nothing: ``advance`` does it, in the thread that appends."""
        return self.visible_offset

    def _writable(self) -> Appender:
        raise StoreUnwritable(
            f"{self._config.path} is a copy of its master's log; send to the master",
            self._config.path,
        )

    # --- inside -----------------------------------------------------------------------------------

    def _check_lineage(self, parts: StoreParts, origin: LogOrigin, lineage: Lineage) -> None:
        if lineage.segment_bytes != parts.chain.segment_bytes:
            raise LogDiverged(
                f"the master's segments have {lineage.segment_bytes} bytes, ours "
                f"{parts.chain.segment_bytes}; set segment_bytes alike"
            )
        end = parts.log.end
        if end == parts.log.begin:
            return  # nothing that could differ
        if origin.log and origin.log != lineage.log:
            raise LogDiverged(
                f"{self._config.path} is a copy of log {origin.log}, the master has log "
                f"{lineage.log}; give the slave an empty directory",
                end,
            )
        newest, start = max(
            ((epoch, start) for epoch, start in parts.epochs.entries if start < end), default=(0, 0)
        )
        oldest = lineage.epochs[0][0] if lineage.epochs else 0
        if newest and newest >= oldest and dict(lineage.epochs).get(newest) != start:
            raise LogDiverged(
                f"epoch {newest} of this log began at {start}, its master has "
                f"{lineage.epochs}; give the slave an empty directory",
                end,
            )
        until = min((start for epoch, start in lineage.epochs if epoch > newest), default=end)
        if end > until:
            raise LogDiverged(
                f"this log has epoch {newest} up to {end}, its master only up to {until}; "
                f"give the slave an empty directory",
                end,
            )

    def _begin_at(self, parts: StoreParts, log_offset: int) -> None:
        """What is here lies below the master's first byte, or there is nothing: the log goes on at
        a later segment.
        """
        with parts.visibility.lock:
            for topic in parts.queues.topics():
                parts.queues.delete_topic(topic)
            parts.log.sync()
            parts.chain.begin_at(log_offset)
            parts.log.set_end(log_offset)
            parts.visibility.moved_to(log_offset, parts.visibility.last_ms, -1)
        if self._checkpointer is not None:
            self._checkpointer.write(thorough=True)

    def _dispatch_pieces(
        self, parts: StoreParts, pieces: Sequence[ScannedRecords], end: int
    ) -> None:
        """Queue, index, announce; everything below ``end`` is visible then."""
        target, visibility = _Arrivals(parts), parts.visibility
        frames = FrameTracker(parts.windows)
        last_ms, last_record = visibility.last_ms, visibility.last_record
        try:
            with visibility.lock:
                for records in pieces:
                    frames.add(records)
                    target.add(records)
                    self._counters.records += len(records)
                    last_ms = int(records.store_ms[-1])
                    last_record = records.base + int(records.starts[-1])
                self._counters.bytes += end - visibility.offset
                visibility.moved_to(end, last_ms, last_record)
        except StoreError as error:
            self._fail(error)
            raise
        visibility.announce(target.arrivals)

    def _catch_up(self, parts: StoreParts, limit: int) -> None:
        """One read of what is written and not visible yet: what was confirmed later than it
        came.
        """
        at, size = parts.visibility.offset, CATCH_UP_BYTES
        while size <= FRAME_BYTES_MAX:  # ends: the size doubles
            data = parts.log.read(at, min(size, limit - at))
            found = self.check(at, data, parts.quarantine.entries())
            if found.end > at:
                self._dispatch_pieces(parts, found.records, found.end)
                return
            size *= 2


class _Arrivals(Redispatcher):
    """Notes what arrived in which queue."""

    def __init__(self, parts: StoreParts) -> None:
        super().__init__(parts.queues, parts.index, parts.dispatcher, parts.quarantine, parts.lives)
        self.arrivals: list[tuple[str, int, int, list[int]]] = []

    def _queue(
        self, topic: str, queue_id: int, group: ScannedRecords, codes: Array, queued: Array
    ) -> None:
        super()._queue(topic, queue_id, group, codes, queued)
        if queued.any():
            self.arrivals.append(
                (topic, queue_id, int(group.queue_offsets[queued][-1]) + 1, codes[queued].tolist())
            )
