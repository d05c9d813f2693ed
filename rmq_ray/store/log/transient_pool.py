"""Appends gathered in memory before they go to the log's file: RocketMQ's transientStorePool
(docs/file-format.md#flushing).

    append ──copy──> [buffer being filled] [waiting] [waiting]
                     '--- at most ``size`` buffers, used again and again ---'
           ──commit: one pwrite a buffer──> page cache ──flush──> disk

Decides: which buffer a frame is copied to, and that a commit writes whole buffers in log order.
Does not decide when to commit (``flusher``), what a failed write means (``commit_log``), what is
visible or acknowledged (``visibility``: nothing that is not committed). ``gather`` belongs to
the appending thread; ``commit`` may be called by any.

Invariants: ``committed`` only grows, and everything below it was written to its file; what lies in
a buffer was never told to anybody.
"""

from __future__ import annotations

import threading
from collections import deque

from rmq_ray.files import Bytes
from rmq_ray.store.log.segment_chain import Segment


class _Block:
    """Bytes of one segment from ``log_offset`` on, ``filled`` of them so far."""

    __slots__ = ("buffer", "filled", "log_offset", "segment")

    def __init__(self, buffer: bytearray, segment: Segment, log_offset: int) -> None:
        self.buffer = buffer
        self.segment = segment
        self.log_offset = log_offset
        self.filled = 0


class TransientPool:
    """``size`` buffers of ``buffer_bytes``; each is made when it is needed for the first time."""

    def __init__(self, size: int, buffer_bytes: int) -> None:
        self._buffer_bytes = buffer_bytes
        self._unmade = size
        self._free: list[bytearray] = []
        self._waiting: deque[_Block] = deque()  # the last one may be filled further
        self._listing = threading.Lock()
        self._writing = threading.Lock()
        self.committed = 0

    @property
    def free(self) -> int:
        """How many buffers hold nothing, made or not."""
        return self._unmade + len(self._free)

    def reset(self, log_offset: int) -> None:
        """Everything below ``log_offset`` is in the files, nothing is in a buffer."""
        with self._listing:
            while self._waiting:
                self._free.append(self._waiting.popleft().buffer)
            self.committed = log_offset

    def gather(self, segment: Segment, data: Bytes, log_offset: int, length: int) -> bool:
        """Copy a frame. False when it is larger than a buffer or no buffer is free; nothing
        happened then, and a commit frees them.
        """
        with self._listing:
            block = self._waiting[-1] if self._waiting else None
            if (
                block is None
                or block.segment is not segment
                or block.filled + length > self._buffer_bytes
            ):
                buffer = self._take_buffer() if length <= self._buffer_bytes else None
                if buffer is None:
                    return False
                block = _Block(buffer, segment, log_offset)
                self._waiting.append(block)
            memoryview(block.buffer)[block.filled : block.filled + length] = memoryview(data).cast(
                "B"
            )
            block.filled += length
            return True

    def commit(self) -> int:
        """Write what was gathered before the call, in log order; returns ``committed``. Raises as
        ``Segment.write``; then a part of it is written.
        """
        with self._writing:
            for _ in range(len(self._waiting)):
                with self._listing:
                    block = self._waiting.popleft()
                block.segment.write(memoryview(block.buffer)[: block.filled], block.log_offset)
                with self._listing:
                    self._free.append(block.buffer)
                    self.committed = block.log_offset + block.filled
            return self.committed

    def _take_buffer(self) -> bytearray | None:
        if self._free:
            return self._free.pop()
        if not self._unmade:
            return None
        self._unmade -= 1
        return bytearray(self._buffer_bytes)
