"""When readers see records that are in the log: whole frames, in log order, nothing before an
earlier one.

    ASYNC_FLUSH   in the append itself
    SYNC_FLUSH    when the flush thread's fdatasync covered it and ``dispatch_durable`` is called;
                  with a transient store pool after its commit
    slaves        nothing behind what they have confirmed, where the broker says so (``replicated``)

Decides that. Does not decide what is queued (``dispatcher``). One thread lets in and dispatches
(the broker's loop), beside readers; ``lock`` holds position, queues' maxima and windows of repeats
of one moment together.

Invariant: ``offset`` lies behind a whole write, all of whose records are queued.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from rmq_ray.codec.record_batch import CheckedFrame
from rmq_ray.errors import StoreError, StoreFull
from rmq_ray.store.frames.mixed_frame import MixedFrame
from rmq_ray.store.log.commit_log import CommitLog
from rmq_ray.store.queue.dispatcher import Dispatcher

logger = logging.getLogger("rmq_ray.store")

# written and not dispatched: a consume queue without room, or a disk that does not sync
WAITING_FRAMES_MAX = 100_000
ArrivalListener = Callable[[str, int, int, Sequence[int]], None]
"""(topic, queue id, new maximum, tags codes): called where frames are dispatched, from that
thread.
"""
Written = CheckedFrame | MixedFrame


class Visibility:
    """Log offset up to which readers see, and the frames that wait behind it. ``is_sync``: only
    what is synced may be seen; else what the kernel has.
    """

    def __init__(self, log: CommitLog, dispatcher: Dispatcher, is_sync: bool) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._is_sync = is_sync
        self._waits = is_sync or log.pool is not None
        self.lock = threading.Lock()
        self.offset = 0
        self.last_ms, self.last_record = 0, -1
        """Store time and log offset of the last visible record; -1 = there is none."""
        self._waiting: deque[tuple[Written, int, int, int, int]] = deque()
        self._replicated: int | None = None
        self._listener: ArrivalListener | None = None
        self._on_failure: Callable[[StoreError], None] = lambda _error: None

    def begin(
        self,
        listener: ArrivalListener | None,
        replicated: int | None,
        on_failure: Callable[[StoreError], None],
    ) -> None:
        """What the broker has said before the store was recovered. ``on_failure``: told when the
        disk failed while a frame was queued.
        """
        self._listener, self._replicated, self._on_failure = listener, replicated, on_failure

    def fail(self, error: StoreError) -> None:
        """What was written may be queued or not: the log has to be read again."""
        self._on_failure(error)

    def moved_to(self, log_offset: int, last_ms: int, last_record: int) -> None:
        """Everything below ``log_offset`` is queued. The caller holds ``lock``."""
        self.offset, self.last_ms, self.last_record = log_offset, last_ms, last_record

    @property
    def acknowledgeable(self) -> int:
        """Log offset up to which an acknowledgement may be given: synced (SYNC_FLUSH), or in the
        kernel (ASYNC_FLUSH). What is on the disk: ``CommitLog.durable``.
        """
        return self._log.durable if self._is_sync else self._log.committed

    @property
    def waiting(self) -> int:
        """How many writes are not visible yet."""
        return len(self._waiting)

    def set_listener(self, listener: ArrivalListener) -> None:
        """Who is told of arrivals from now on."""
        self._listener = listener

    def set_replicated(self, log_offset: int | None) -> None:
        """Nothing behind ``log_offset`` becomes visible; None = no such limit."""
        self._replicated = log_offset

    def let_in(
        self, frame: Written, queue_offset: int, log_offset: int, store_ms: int, sys_flag: int
    ) -> bool:
        """Make visible what was just written, or let it wait. True when it waits for the flush
        thread.
        """
        waits = self._waits
        at_once = not waits and not self._waiting and self._replicated is None
        if not at_once or not self._dispatch(frame, queue_offset, log_offset, store_ms, sys_flag):
            self._waiting.append((frame, queue_offset, log_offset, store_ms, sys_flag))
            if not at_once and not waits:
                self.dispatch_durable()
        return waits

    def dispatch_durable(self) -> int:
        """Make visible what is durable (and replicated) by now; returns ``offset``. Raises
        ``StoreFailed``; after ``StoreFull`` the rest waits for the next call.
        """
        limit = self._limit()
        while self._waiting:  # ends: one less each round
            frame, queue_offset, log_offset, store_ms, sys_flag = self._waiting[0]
            if log_offset + frame.length > limit:
                break
            if not self._dispatch(frame, queue_offset, log_offset, store_ms, sys_flag):
                break
            self._waiting.popleft()
        return self.offset

    def forget_topic(self, topic: str, log_offset: int) -> None:
        """The topic goes: what waits for it below ``log_offset`` stays in the log only."""
        kept: deque[tuple[Written, int, int, int, int]] = deque()
        for waiting in self._waiting:
            frame = waiting[0]
            if waiting[2] >= log_offset:
                pass
            elif isinstance(frame, MixedFrame):
                frame.forget_topic(topic)
            elif frame.topic == topic:
                continue
            kept.append(waiting)
        self._waiting = kept

    def announce(self, arrivals: Sequence[tuple[str, int, int, Sequence[int]]]) -> None:
        """Tell the listener of records that were queued elsewhere (on a slave)."""
        if self._listener is not None:
            for topic, queue_id, maximum, codes in arrivals:
                self._listener(topic, queue_id, maximum, codes)

    def _limit(self) -> int:
        if self._log.failure is not None:
            return -1
        limit = self.acknowledgeable
        return limit if self._replicated is None else min(limit, self._replicated)

    def _dispatch(
        self, frame: Written, queue_offset: int, log_offset: int, store_ms: int, sys_flag: int
    ) -> bool:
        """Queue, index, announce. False when the disk is full: the frame stays in the log and
        waits. Raises when the disk failed.
        """
        try:
            with self.lock:
                if isinstance(frame, CheckedFrame):
                    new = self._dispatcher.dispatch(
                        frame, queue_offset, log_offset, store_ms, sys_flag
                    )
                else:
                    new = self._dispatcher.dispatch_mixed(frame, log_offset, store_ms)
                self.offset = log_offset + frame.length
                self.last_ms, self.last_record = store_ms, log_offset + int(frame.starts[-1])
        except StoreFull as error:
            logger.warning(
                "records from log offset %d on are not visible yet: %s", log_offset, error
            )
            return False
        except StoreError as error:
            self._on_failure(error)
            raise
        if self._listener is not None and new:
            self._tell(self._listener, frame, queue_offset)
        return True

    @staticmethod
    def _tell(listener: ArrivalListener, frame: Written, queue_offset: int) -> None:
        if isinstance(frame, CheckedFrame):
            codes = frame.tag_codes
            listener(
                frame.topic,
                frame.queue_id,
                queue_offset + frame.count,
                codes if isinstance(codes, list) else codes.tolist(),
            )
            return
        for (topic, queue_id), piece in frame.pieces.items():
            listener(topic, queue_id, piece.queue_offset + piece.frame.count, piece.frame.tag_codes)
