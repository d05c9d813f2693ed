"""When gathered appends are committed, and the thread that does it: RocketMQ's
CommitRealTimeService (store-format 8, seed S3-096).

Decides: a commit is due with 4 pages (``commit_least_pages``) or after 200 ms
(``commit_interval_ms``), whichever comes first. Does not decide: when the log is flushed to the
disk (``flusher``). Called by: the flusher, whose life it shares. Invariant: after every commit of
anybody's, ``on_committed`` is called from here within an interval.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from rmq_ray.config import StoreConfig
from rmq_ray.errors import StoreError, StoreFailed
from rmq_ray.store.log.commit_log import CommitLog

logger = logging.getLogger("rmq_ray.store")

PAGE_BYTES = 4096
STOP_WAIT_S = 10.0


class LogCommitter:
    """``on_committed(log offset)`` is called after each commit and once when one failed."""

    def __init__(
        self, log: CommitLog, config: StoreConfig, on_committed: Callable[[int], None]
    ) -> None:
        self._log = log
        self._config = config
        self._on_committed = on_committed
        self._told = log.committed
        self._wake = threading.Lock()
        self._wake.acquire()
        self._wanted = self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="rmq-commit", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Something was gathered: commit at once when that are enough pages. One thread calls
        this.
        """
        if (
            not self._wanted
            and self._log.end // PAGE_BYTES - self._told // PAGE_BYTES
            >= self._config.commit_least_pages
        ):
            self._wanted = True
            self._wake.release()

    def stop(self) -> None:
        """End the thread; what it left is committed by the last flush."""
        self._stopping = True
        with suppress(RuntimeError):  # it is awake already
            self._wake.release()
        if self._thread is not None:
            self._thread.join(STOP_WAIT_S)
            self._thread = None

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

    def _run(self) -> None:
        try:
            while not self._stopping:
                if self._wake.acquire(timeout=self._config.commit_interval_ms / 1000):
                    self._wanted = False  # before the log's end is read: a later append asks again
                if not self.step():
                    return
        except Exception as error:  # noqa: BLE001
            logger.exception("the commit thread ended")
            if self._log.failure is None:
                self._log.failure = StoreFailed(
                    f"the commit thread ended: {error!r}", self._log.chain.directory
                )
                self._on_committed(self._told)
