"""The commit log: one sequence of bytes in segments, with one writer, and what of it is on disk.

Decides: where the next frame goes (a frame never crosses a segment: a blank record of at least 8 bytes fills the rest, see
store-format 2.2), and that the log stops for good at the first failed write or sync.
Does not decide: what a frame holds, when to sync (``flusher``), what is visible (``message_store``).
Called by: message store (append, read), flusher (``sync``), recovery (``set_end``).

Invariants: ``begin <= durable <= end``; bytes below ``end`` were written in full; bytes at and behind ``end`` read as zeros, or
as a part of a frame whose write failed and after which nothing more is appended.
"""

from __future__ import annotations

import threading

from rmq_ray.errors import MessageTooLarge, StoreError, StoreFailed, StoreFull
from rmq_ray.store.files import Bytes
from rmq_ray.store.record import BLANK, BLANK_BYTES_MIN, BLANK_MAGIC
from rmq_ray.store.segment import Segment
from rmq_ray.store.segment_chain import SegmentChain


class CommitLog:
    """All positions are log offsets (bytes). ``end``: where the next frame goes at the earliest. ``durable``: fdatasynced up to here."""

    __slots__ = ("_active", "_sync_lock", "chain", "durable", "end", "failure")

    def __init__(self, chain: SegmentChain) -> None:
        self.chain = chain
        self.end = 0
        self.durable = 0
        self.failure: StoreError | None = None
        self._active: Segment | None = None
        self._sync_lock = threading.Lock()

    @property
    def begin(self) -> int:
        """The first byte that is still there."""
        return self.chain.begin

    def set_end(self, log_offset: int) -> None:
        """After recovery: the log ends here and all of it is on disk (the caller synced it)."""
        self.end = self.durable = log_offset
        self.failure = None
        self._active = None

    def place(self, length: int) -> int:
        """Where a frame of ``length`` bytes will lie; ends the segment when it does not fit. Nothing of the frame is written yet.

        Raises ``StoreFailed`` after a failure, ``MessageTooLarge`` when no segment can hold it, ``StoreFull`` without room.
        """
        if self.failure is not None:
            raise StoreFailed(f"the log failed before and must be read again: {self.failure.message}", self.chain.directory)
        active = self._active
        if active is not None and self.end + length + BLANK_BYTES_MIN <= active.end:
            return self.end
        return self._roll(length)

    def write(self, data: Bytes, log_offset: int, length: int) -> None:
        """Write a placed frame with one call. On return the kernel has all of it and ``end`` is behind it.

        On ``StoreFull`` the part that was written is removed again and the log goes on; on any other error it has failed.
        """
        active = self._active
        assert active is not None and log_offset == self.end, "place() comes first"
        try:
            active.write(data, log_offset)
        except StoreFull:
            self._wipe(active, log_offset)
            raise
        except StoreError as error:
            self.failure = error
            raise
        self.end = log_offset + length

    def read(self, log_offset: int, count: int) -> bytes:
        """Up to ``count`` written bytes from one segment; empty when they were removed or never written."""
        segment = self.chain.find(log_offset)
        if segment is None or log_offset >= self.end:
            return b""
        return segment.read(log_offset, min(count, self.end - log_offset))

    def sync(self) -> int:
        """On return everything written before the call survives a power loss; returns that position. Any thread.

        The first failure is final: the log has failed, and no sync is tried again.
        """
        with self._sync_lock:
            target = self.end
            if self.failure is not None:
                raise StoreFailed(f"the log failed before and must be read again: {self.failure.message}", self.chain.directory)
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

    def _roll(self, length: int) -> int:
        """Go to the segment that can hold the frame; what is left of this one becomes a blank record."""
        if length + BLANK_BYTES_MIN > self.chain.segment_bytes:
            most = self.chain.segment_bytes - BLANK_BYTES_MIN
            raise MessageTooLarge(f"a frame of {length} bytes does not fit a segment; {most} do (segment_bytes)", length, most)
        segment = self.chain.ensure(self.end)
        if self.end + length + BLANK_BYTES_MIN > segment.end:
            following = self.chain.ensure(segment.end)
            self._write_blank(segment)
            segment = following
        segment.hold()
        self._active = segment
        return self.end

    def _write_blank(self, segment: Segment) -> None:
        room = segment.end - self.end
        if room:
            try:
                segment.write(BLANK.pack(room, BLANK_MAGIC), self.end)
            except StoreFull:
                self._wipe(segment, self.end)
                raise
            except StoreError as error:
                self.failure = error
                raise
        self.end = segment.end

    def _wipe(self, segment: Segment, log_offset: int) -> None:
        """Synced, or a power loss could bring back records of the half-written frame behind what is written there next."""
        try:
            self.chain.wipe(segment, log_offset)
            segment.file.datasync()
        except StoreError as error:
            self.failure = error
            raise StoreFailed(f"a half-written frame could not be removed: {error.message}", segment.path) from error
