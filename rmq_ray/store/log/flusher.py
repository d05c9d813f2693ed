"""When the commit log is synced and when gathered appends are committed, and the threads that do it
(docs/file-format.md#flushing).

    SYNC_FLUSH    group commit: one fdatasync covers all that wait, the next begins when it ends
    ASYNC_FLUSH   every 500 ms when 4 pages are unsynced or the segment is full; every 10 s whatever
                  there is
    commit        only with a transient store pool: with 4 pages (``commit_least_pages``) or after
                  200 ms (``commit_interval_ms``), whichever comes first

Decides: whether a sync or a commit is due. What zeroes ahead of the log (``zero_ahead``) and the
committer live and die with the flusher; a sync commits what it finds gathered. Does not decide:
what a failed sync means to those who wait (they look at the store's state).

Invariants: one sync at a time, none after a failure; after every commit of anybody's,
``on_committed`` is called within an interval.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from rmq_ray.clock import Clock
from rmq_ray.config import FlushMode, StoreConfig
from rmq_ray.errors import StoreError, StoreFailed
from rmq_ray.store.log.commit_log import CommitLog
from rmq_ray.store.log.zero_ahead import ZeroAhead

logger = logging.getLogger("rmq_ray.store")

PAGE_BYTES = 4096
STOP_WAIT_S = 10.0
_IDLE_S = 1.0


class _Stepper:
    """A thread that calls ``step`` when it is woken and every ``wait_s``, until that says False. A
    defect in it ends the log: ``on_defect`` is told once.
    """

    def __init__(
        self,
        name: str,
        log: CommitLog,
        wait_s: float,
        step: Callable[[], bool],
        on_defect: Callable[[], None],
    ) -> None:
        self._name = name
        self._log = log
        self._wait_s = wait_s
        self._step = step
        self._on_defect = on_defect
        self._wake = threading.Lock()
        self._wake.acquire()
        self._stopping = False
        self.is_woken = False
        """It was woken and has not looked yet."""
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=f"rmq-{self._name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Step soon. One thread calls this, while ``is_woken`` is False."""
        self.is_woken = True
        self._wake.release()

    def stop(self) -> None:
        """End the thread; no further step is made."""
        self._stopping = True
        with suppress(RuntimeError):  # it is awake already
            self._wake.release()
        if self._thread is not None:
            self._thread.join(STOP_WAIT_S)
            self._thread = None

    def _run(self) -> None:
        try:
            while not self._stopping:
                if self._wake.acquire(timeout=self._wait_s):
                    self.is_woken = False  # before the log's end is read: a later append asks again
                if not self._step():
                    return
        except Exception as error:
            logger.exception("the %s thread ended", self._name)
            if self._log.failure is None:
                self._log.failure = StoreFailed(
                    f"the {self._name} thread ended: {error!r}", self._log.chain.directory
                )
                self._on_defect()


class LogCommitter:
    """``on_committed(log offset)`` is called after each commit and once when one failed."""

    def __init__(
        self, log: CommitLog, config: StoreConfig, on_committed: Callable[[int], None]
    ) -> None:
        self._log = log
        self._least_pages = config.commit_least_pages
        self._on_committed = on_committed
        self._told = log.committed
        self._thread = _Stepper(
            "commit",
            log,
            config.commit_interval_ms / 1000,
            self.step,
            lambda: self._on_committed(self._told),
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def request(self) -> None:
        """Something was gathered: commit at once when that are enough pages. One thread calls
        this.
        """
        if (
            not self._thread.is_woken
            and self._log.end // PAGE_BYTES - self._told // PAGE_BYTES >= self._least_pages
        ):
            self._thread.wake()

    def stop(self) -> None:
        """End the thread; what it left is committed by the last flush."""
        self._thread.stop()

    def step(self) -> bool:
        """Commit whatever there is and tell. False when the log has failed, now or before."""
        try:
            committed = self._log.commit()
        except StoreError as error:
            logger.error("the commit log has failed, nothing more is acknowledged: %s", error)
            self._on_committed(self._told)
            return False
        if committed > self._told:
            self._told = committed
            self._on_committed(committed)
        return True


def is_due(written: int, flushed: int, least_pages: int, segment_bytes: int) -> bool:
    """RocketMQ's page rule. Positions in bytes; ``least_pages`` 0 = whatever there is.

    >>> is_due(16384, 0, 4, 1 << 30), is_due(16383, 0, 4, 1 << 30), is_due(1, 0, 0, 1 << 30)
    (True, False, True)
    """
    if written <= flushed:
        return False
    if least_pages == 0 or written // segment_bytes > flushed // segment_bytes:
        return True
    return written // PAGE_BYTES - flushed // PAGE_BYTES >= least_pages


class LogFlusher:
    """``on_durable(position)`` is called from the flush thread when more is durable than it told
    last, whoever synced it, and once more when a sync failed.
    """

    def __init__(
        self, log: CommitLog, config: StoreConfig, clock: Clock, on_durable: Callable[[int], None]
    ) -> None:
        self._log = log
        self._config = config
        self._clock = clock
        self._on_durable = on_durable
        self._told = log.durable
        self._is_sync = config.flush is FlushMode.SYNC_FLUSH
        self._thorough_ms = clock.monotonic_ms()
        self._thread = _Stepper(
            "flush",
            log,
            _IDLE_S if self._is_sync else config.flush_interval_ms / 1000,
            self.step,
            lambda: self._on_durable(log.durable),
        )
        self._committer = None if log.pool is None else LogCommitter(log, config, on_durable)
        self._ahead = log.ahead = ZeroAhead(config.segment_bytes) if self._is_sync else None

    def start(self) -> None:
        """Start the thread, and those of its companions."""
        if self._committer is not None:
            self._committer.start()
        if self._ahead is not None:
            self._ahead.start()
        self._thread.start()

    def request(self) -> None:
        """Something was written. SYNC_FLUSH: flush as soon as the running sync ends; with a pool:
        commit what is due. One thread calls this.
        """
        if self._committer is not None:
            self._committer.request()
        elif not self._thread.is_woken:
            self._thread.wake()

    def stop(self) -> None:
        """End the thread; what was written is synced first unless the log has failed."""
        if self._committer is not None:
            self._committer.stop()
        if self._ahead is not None:
            self._ahead.stop()
        self._thread.stop()
        self.flush_now()

    def flush_now(self) -> bool:
        """Sync whatever there is. False when the log has failed (now or before)."""
        if self._log.failure is not None:
            return False
        if self._log.end > self._log.durable:
            try:
                self._log.sync()
            except StoreError as error:
                logger.error("the commit log has failed, nothing more is acknowledged: %s", error)
                self._on_durable(self._log.durable)
                return False
        if self._log.durable > self._told:
            self._told = self._log.durable
            self._on_durable(self._told)
        return True

    def step(self) -> bool:
        """One decision: sync if it is due. False when the log has failed."""
        if not self._thread.is_running and self._committer is not None:
            self._committer.step()  # nobody else does
        if not self._thread.is_running and self._ahead is not None:
            self._ahead.step()
        if self._is_sync:
            return self.flush_now()
        now_ms = self._clock.monotonic_ms()
        thorough = now_ms - self._thorough_ms >= self._config.flush_thorough_interval_ms
        if thorough:
            self._thorough_ms = now_ms
        least_pages = 0 if thorough else self._config.flush_least_pages
        if is_due(self._log.end, self._log.durable, least_pages, self._config.segment_bytes):
            return self.flush_now()
        return self._log.failure is None
