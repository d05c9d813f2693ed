"""The commit log: one sequence of bytes in segments, with one writer, and what of it is on disk.

Decides: where the next frame goes (a frame never crosses a segment: a blank record of at least 8
bytes fills the rest, see docs/file-format.md#record), and that the log stops for good at the first
failed write or sync. Does not decide: what a frame holds, when to sync (``flusher``), what is
visible (``visibility``). One thread appends; any thread reads and syncs.

Under SYNC_FLUSH zeros are written behind the end (``zero_ahead``); who writes them is told of every
frame first. With a pool (``transient_pool``) a write is a copy, and ``commit`` takes it to the
file; a full segment is committed at once.

Invariants: ``begin <= durable <= committed <= end``; bytes below ``committed`` (= ``end`` without a
pool) were written in full; bytes at and behind it read as zeros, or as a part of a frame whose
write failed and after which nothing more is appended.
"""

from __future__ import annotations

import threading

from rmq_ray.codec.record import BLANK, BLANK_BYTES_MIN, BLANK_MAGIC
from rmq_ray.errors import MessageTooLarge, StoreError, StoreFailed, StoreFull
from rmq_ray.files import Bytes
from rmq_ray.store.log.segment_chain import Segment, SegmentChain
from rmq_ray.store.log.transient_pool import TransientPool
from rmq_ray.store.log.zero_ahead import ZeroAhead


class CommitLog:
    """All positions are log offsets (bytes). ``end``: where the next frame goes at the earliest.
    ``durable``: fdatasynced up to here.
    """

    __slots__ = ("_active", "_sync_lock", "ahead", "chain", "durable", "end", "failure", "pool")

    def __init__(self, chain: SegmentChain, pool: TransientPool | None = None) -> None:
        self.chain = chain
        self.pool = pool
        self.ahead: ZeroAhead | None = None
        self.end = 0
        self.durable = 0
        self.failure: StoreError | None = None
        self._active: Segment | None = None
        self._sync_lock = threading.Lock()

    @property
    def begin(self) -> int:
        """The first byte that is still there."""
        return self.chain.begin

    @property
    def committed(self) -> int:
        """What the kernel has: all that was written, except for what the pool still holds."""
        return self.end if self.pool is None else self.pool.committed

    def set_end(self, log_offset: int) -> None:
        """After recovery: the log ends here and all of it is on disk (the caller synced it)."""
        self.end = self.durable = log_offset
        if self.pool is not None:
            self.pool.reset(log_offset)
        self.failure = None
        self._active = None

    def place(self, length: int) -> int:
        """Where a frame of ``length`` bytes will lie; ends the segment when it does not fit.
        Nothing of the frame is written yet.

        Raises ``StoreFailed`` after a failure, ``MessageTooLarge`` when no segment can hold it,
        ``StoreFull`` without room, ``StoreNotReady``.
        """
        if self.failure is not None:
            raise self._failed_before(self.failure)
        active = self._active
        if active is None or self.end + length + BLANK_BYTES_MIN > active.end:
            active = self._roll(length)
        if self.ahead is not None:
            self.ahead.reach(active, self.end + length)
        return self.end

    def write(self, data: Bytes, log_offset: int, length: int) -> None:
        """Write a placed frame with one call. On return ``end`` is behind it, and the kernel has
        it, or the pool.

        On ``StoreFull`` the part that was written is removed again and the log goes on; on any
        other error it has failed.
        """
        active = self._active
        assert active is not None and log_offset == self.end, "place() comes first"
        if self.pool is not None and self._gather(self.pool, active, data, length):
            return
        try:
            active.write(data, log_offset)
        except StoreFull:
            self._wipe(active, log_offset)
            raise
        except StoreError as error:
            self.failure = error
            raise
        self._written_to(log_offset + length)

    def commit(self) -> int:
        """On return the kernel has everything that was written before the call; returns that
        position. Any thread. A failure is final.
        """
        if self.failure is not None:
            raise self._failed_before(self.failure)
        if self.pool is None:
            return self.end
        try:
            return self.pool.commit()
        except StoreError as error:
            self.failure = error
            raise StoreFailed(
                f"gathered records could not be written: {error.message}", self.chain.directory
            ) from error

    def extend(self, data: Bytes) -> None:
        """Bytes of the log that this one is a copy of, behind the end; they do not cross a
        segment's end. On return the kernel has them.

        Raises ``StoreFailed`` after a failure, ``StoreFull`` without room (nothing is left of them
        then), ``StoreNotReady``.
        """
        if self.failure is not None:
            raise self._failed_before(self.failure)
        active = self._active
        if active is None or self.end >= active.end:
            active = self.chain.ensure(self.end)
            active.hold()
            self._active = active
        assert self.end + len(data) <= active.end, "a copy keeps the segments of its log"
        if self.ahead is not None:
            self.ahead.reach(active, self.end + len(data))
        self.write(data, self.end, len(data))

    def read(self, log_offset: int, count: int) -> bytes:
        """Up to ``count`` written bytes from one segment; empty when they were removed or never
        written.
        """
        segment = self.chain.find(log_offset)
        committed = self.committed
        if segment is None or log_offset >= committed:
            return b""
        return segment.read(log_offset, min(count, committed - log_offset))

    def sync(self) -> int:
        """On return everything written before the call survives a power loss; returns that
        position. Any thread.

        The first failure is final: the log has failed, and no sync is tried again.
        """
        with self._sync_lock:
            target = self.commit()
            try:
                for segment in self.chain.segments():
                    if segment.end > self.durable and segment.start < target:
                        segment.file.datasync()
                        if segment.end <= target:
                            segment.release()
            except StoreError as error:
                self.failure = error
                raise
            self.durable = target
            return target

    def _failed_before(self, failure: StoreError) -> StoreFailed:
        return StoreFailed(
            f"the log failed before and must be read again: {failure.message}", self.chain.directory
        )

    def _roll(self, length: int) -> Segment:
        """Go to the segment that can hold the frame; what is left of this one becomes a blank
        record.
        """
        if length + BLANK_BYTES_MIN > self.chain.segment_bytes:
            most = self.chain.segment_bytes - BLANK_BYTES_MIN
            raise MessageTooLarge(
                f"a frame of {length} bytes does not fit a segment; {most} do (segment_bytes)",
                length,
                most,
            )
        segment = self.chain.ensure(self.end)
        if self.end + length + BLANK_BYTES_MIN > segment.end:
            following = self.chain.ensure(segment.end)
            self.commit()
            self._write_blank(segment)
            segment = following
        segment.hold()
        self._active = segment
        return segment

    def _write_blank(self, segment: Segment) -> None:
        room = segment.end - self.end
        if room:
            if self.ahead is not None:
                self.ahead.reach(segment, segment.end)
            try:
                segment.write(BLANK.pack(room, BLANK_MAGIC), self.end)
            except StoreFull:
                self._wipe(segment, self.end)
                raise
            except StoreError as error:
                self.failure = error
                raise
        self._written_to(segment.end)

    def _gather(self, pool: TransientPool, active: Segment, data: Bytes, length: int) -> bool:
        """Whether the pool took the frame; where it has no buffer, what it holds is committed here.
        False: the kernel has the rest and is to get it.
        """
        if not pool.gather(active, data, self.end, length):
            self.commit()
            if not pool.gather(active, data, self.end, length):
                return False
        self.end += length
        return True

    def _written_to(self, log_offset: int) -> None:
        """The kernel has everything below ``log_offset``."""
        self.end = log_offset
        if self.pool is not None:
            self.pool.committed = log_offset

    def _wipe(self, segment: Segment, log_offset: int) -> None:
        """Synced, or a power loss could bring back records of the half-written frame behind what is
        written there next.
        """
        try:
            self.chain.wipe(segment, log_offset)
            segment.file.datasync()
        except StoreError as error:
            self.failure = error
            raise StoreFailed(
                f"a half-written frame could not be removed: {error.message}", segment.path
            ) from error
