"""When what is in the log becomes visible: queued, indexed, announced.

    ASYNC_FLUSH   in the append itself
    SYNC_FLUSH    when the flush thread's fdatasync covered it and ``dispatch_durable`` is called; with a transient store pool after its commit
    slaves        nothing behind what they have confirmed, where the broker says so (``set_replicated``)

Decides that order: whole frames, in log order, nothing before an earlier one. Does not decide what
an entry holds (``dispatcher``). The middle part of ``MessageStore``. One thread (the broker's
loop), beside readers; ``_lock`` holds position, queues' maxima and windows of one moment together.

Invariant: ``visible_offset`` lies behind a whole write, all of whose records are queued.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from rmq_ray.codec.record_batch import CheckedFrame
from rmq_ray.config import FlushMode, StoreConfig
from rmq_ray.errors import StoreError, StoreFull
from rmq_ray.store.frames.mixed_frame import MixedFrame
from rmq_ray.store.reading.store_reads import StoreReads
from rmq_ray.store.recovery.restart import StoreParts

logger = logging.getLogger("rmq_ray.store")

# written and not dispatched: a consume queue without room, or a disk that does not sync
WAITING_FRAMES_MAX = 100_000
ArrivalListener = Callable[[str, int, int, Sequence[int]], None]
Written = CheckedFrame | MixedFrame


class StoreVisibility(StoreReads):
    """See the module."""

    def __init__(self, config: StoreConfig) -> None:
        super().__init__(config)
        self._lock = threading.Lock()
        self._is_sync = config.flush is FlushMode.SYNC_FLUSH
        self._listener: ArrivalListener | None = None
        self._on_durable: Callable[[int], None] = lambda _position: None
        self._waiting: deque[tuple[Written, int, int, int, int]] = deque()
        self._replicated: int | None = None
        self._last_ms, self._last_record = 0, -1

    def set_arrival_listener(self, listener: ArrivalListener) -> None:
        """``listener(topic, queue id, new maximum, tags codes)``: called where frames are
        dispatched, from that thread.
        """
        self._listener = listener

    def dispatch_durable(self) -> int:
        """Make visible what is durable (and replicated) by now; returns ``visible_offset``. Raises
        ``StoreFailed``; after ``StoreFull`` the rest waits for the next call.
        """
        parts = self.opened
        limit = self._visible_limit(parts)
        while self._waiting:  # ends: one less each round
            frame, queue_offset, log_offset, store_ms, sys_flag = self._waiting[0]
            if log_offset + frame.length > limit:
                break
            if not self._dispatch(parts, frame, queue_offset, log_offset, store_ms, sys_flag):
                break
            self._waiting.popleft()
        return self._visible

    def set_replicated(self, log_offset: int | None) -> None:
        """Nothing behind ``log_offset`` becomes visible (slaves have not confirmed it); None = no
        such limit.
        """
        self._replicated = log_offset

    @property
    def durable_offset(self) -> int:
        """Log offset up to which an acknowledgement may be given: synced (SYNC_FLUSH), or in the
        kernel (ASYNC_FLUSH).
        """
        log = self.opened.log
        return log.durable if self._is_sync else log.committed

    # --- inside -----------------------------------------------------------------------------------

    def _let_in(
        self,
        parts: StoreParts,
        frame: Written,
        queue_offset: int,
        log_offset: int,
        store_ms: int,
        sys_flag: int,
    ) -> bool:
        """Make visible what was just written, or let it wait. True when it waits for the flush
        thread.
        """
        waits = self._is_sync or parts.log.pool is not None
        at_once = not waits and not self._waiting and self._replicated is None
        if not at_once or not self._dispatch(
            parts, frame, queue_offset, log_offset, store_ms, sys_flag
        ):
            self._waiting.append((frame, queue_offset, log_offset, store_ms, sys_flag))
            if at_once is False and not waits:
                self.dispatch_durable()
        return waits

    def _dispatch(
        self,
        parts: StoreParts,
        frame: Written,
        queue_offset: int,
        log_offset: int,
        store_ms: int,
        sys_flag: int,
    ) -> bool:
        """Queue, index, announce. False when the disk is full: the frame stays in the log and
        waits. Raises when the disk failed.
        """
        try:
            with self._lock:
                if isinstance(frame, CheckedFrame):
                    new = parts.dispatcher.dispatch(
                        frame, queue_offset, log_offset, store_ms, sys_flag
                    )
                else:
                    new = parts.dispatcher.dispatch_mixed(frame, log_offset, store_ms)
                self._visible = log_offset + frame.length
                self._last_ms, self._last_record = store_ms, log_offset + int(frame.starts[-1])
        except StoreFull as error:
            logger.warning(
                "records from log offset %d on are not visible yet: %s", log_offset, error
            )
            return False
        except StoreError as error:
            self._fail(error)
            raise
        if self._listener is not None and new:
            self._announce(self._listener, frame, queue_offset)
        return True

    def _announce(self, listener: ArrivalListener, frame: Written, queue_offset: int) -> None:
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

    def _forget_waiting(self, topic: str) -> None:
        """The topic goes: what waits for it stays in the log only."""
        kept: deque[tuple[Written, int, int, int, int]] = deque()
        for waiting in self._waiting:
            frame = waiting[0]
            if isinstance(frame, MixedFrame):
                frame.forget_topic(topic)
            elif frame.topic == topic:
                continue
            kept.append(waiting)
        self._waiting = kept

    def _visible_limit(self, parts: StoreParts) -> int:
        if parts.log.failure is not None:
            return -1
        return (
            self.durable_offset
            if self._replicated is None
            else min(self.durable_offset, self._replicated)
        )

    def _fail(self, error: StoreError) -> None:
        log = self.opened.log
        if log.failure is None:
            log.failure = error
        logger.error("the store has failed, nothing more is acknowledged: %s", error)
        self._on_durable(
            log.durable
        )  # a sync that failed in the checkpoint's thread has set the failure and told nobody
