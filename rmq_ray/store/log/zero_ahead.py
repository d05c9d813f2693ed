"""Zeros written into the log's segment ahead of its end, so that a sync of an append has no blocks
to mark as written (SYNC_FLUSH only).

    records ... | gap: never zeroed late | piece being zeroed | ... zeros on the disk |
                ^ reached                ^ claimed

A preallocated block that was never written costs the first sync that covers it a commit of the file
system's journal. A thread writes zeros there first, past the page cache (no append's sync has their
pages to write), then has the pages read, so that an append of half a page finds the other half.

Decides: which piece is zeroed when. Does not decide where records go (``commit_log``), when to
sync, or how long this lives (``flusher``).

Invariants: a piece lies behind everything that was ever placed, by a whole piece, when it is
claimed; while it is claimed nothing is written there but its zeros: an append that comes so far
waits. The file system lets no append into a file while a write past its page cache goes on: each of
these is short. After ``stop`` nothing is being zeroed, and nothing will be. A piece that cannot be
zeroed ends it for its segment and is no failure of the log: zeroed or not, those bytes read as
zeros.
"""

from __future__ import annotations

import logging
import sys
import threading

import numpy as np

from rmq_ray.errors import StoreError, StoreNotReady
from rmq_ray.files import File
from rmq_ray.store.log.segment_chain import Segment

logger = logging.getLogger("rmq_ray.store")

PIECE_BYTES_MAX = 1 << 20
PIECES_AHEAD = 8
WRITE_BYTES = 1 << 16
SEGMENT_SHARE = 16
"""A piece is at most this part of a segment: small segments have some, too."""
PAGE_BYTES = 4096
WAIT_S = 5.0  # as for a segment that is being made
_IDLE_S = 1.0
_STOP_WAIT_S = 10.0
_NOWHERE = sys.maxsize


class ZeroAhead:
    """Of one log. ``segment_bytes``: a multiple of 4,096, below 16 pages nothing is zeroed."""

    def __init__(self, segment_bytes: int) -> None:
        self._piece_bytes = min(
            PIECE_BYTES_MAX, segment_bytes // SEGMENT_SHARE // PAGE_BYTES * PAGE_BYTES
        )
        self._zeros = _zeros_in_pages(min(WRITE_BYTES, self._piece_bytes))
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._segment: Segment | None = None
        self._reached = self._zeroed = self._due_at = 0
        self._claimed = self._stuck_at = _NOWHERE
        self._left_alone: Segment | None = None
        self._open: tuple[Segment, File] | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None

    def reach(self, segment: Segment, log_offset: int) -> None:
        """Something is about to be written to ``segment``, up to ``log_offset``. On return nothing
        is zeroed below it, and nothing will be.

        Raises ``StoreNotReady`` where the disk takes 5 s for the piece that is there.
        """
        with self._changed:
            self._segment, self._reached = segment, log_offset
            if log_offset > self._claimed:
                self._wait(segment, log_offset)
            if log_offset >= self._due_at:
                self._changed.notify_all()

    def _wait(self, segment: Segment, log_offset: int) -> None:
        """Who comes after one that waited in vain is refused at once."""
        if self._claimed == self._stuck_at or not self._changed.wait_for(
            lambda: log_offset <= self._claimed, WAIT_S
        ):
            self._stuck_at = self._claimed
            raise StoreNotReady(
                f"the log at {self._claimed} is being zeroed for {WAIT_S:.0f} s; the disk is "
                f"too slow",
                segment.path,
            )

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="rmq-zeros", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """See the invariants; waits for a piece as long as the disk takes for it, as a sync
        does.
        """
        self._stopped = (
            True  # at once: the thread begins no other piece while this waits for its turn
        )
        with self._writing, self._changed:
            self._open = None
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_STOP_WAIT_S)
            self._thread = None

    def step(self) -> bool:
        """Zero the next piece if it is due; whether it was."""
        with self._writing:
            with self._changed:
                piece = None if self._stopped else self._next_piece()
                if piece is None:
                    return False
                segment, start, count = piece
                assert start >= self._reached, "only what lies behind all records is zeroed"
                self._claimed = start
            try:
                self._write(segment, start, count)
            except StoreError as error:
                self._left_alone = segment
                logger.warning(
                    "the rest of a segment is not zeroed ahead, its syncs take longer: %s", error
                )
            finally:
                with self._changed:
                    self._claimed, self._zeroed = _NOWHERE, start + count
                    self._stuck_at = _NOWHERE
                    self._changed.notify_all()
            return True

    def _next_piece(self) -> tuple[Segment, int, int] | None:
        """(segment, log offset, bytes) of what is to be zeroed now; otherwise ``_due_at`` says from
        which end of the log on there is something.
        """
        segment = self._segment
        if segment is None:
            self._due_at = 0
            return None
        page_end = -(-self._reached // PAGE_BYTES) * PAGE_BYTES
        start = max(self._zeroed, page_end + self._piece_bytes)
        count = min(self._piece_bytes, segment.end - start)
        if count <= 0 or segment is self._left_alone:
            self._due_at = segment.end + 1
            return None
        self._due_at = start + count - PIECES_AHEAD * self._piece_bytes
        return (segment, start, count) if page_end >= self._due_at else None

    def _write(self, segment: Segment, start: int, count: int) -> None:
        if self._open is None or self._open[0] is not segment:
            self._open = segment, segment.open_direct()
        file = self._open[1]
        for at in range(start, start + count, WRITE_BYTES):
            if self._stopped:
                return
            file.pwrite(self._zeros[: min(WRITE_BYTES, start + count - at)], at - segment.start)
        file.read_ahead(start - segment.start, count)

    def _run(self) -> None:
        try:
            while not self._stopped:
                if not self.step():
                    with self._changed:
                        self._changed.wait_for(
                            lambda: (
                                self._stopped
                                or (self._segment is not None and self._reached >= self._due_at)
                            ),
                            _IDLE_S,
                        )
        except Exception:  # syncs take longer without this thread, nothing else
            logger.exception("the thread that zeroes ahead of the log ended")


def _zeros_in_pages(count: int) -> memoryview:
    """``count`` bytes of zeros whose address is that of a page, as writes past the page cache
    demand.
    """
    array = np.zeros(count + PAGE_BYTES, np.uint8)
    skipped = -array.ctypes.data % PAGE_BYTES
    return array[skipped : skipped + count].data
