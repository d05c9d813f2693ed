"""The threads that call listeners, whatever they are handed: batches (concurrent consumption) or
queues (ordered consumption).

Decides how many run, how they end, and how a listener's fault is told. Does not decide what is done
with an item: each kind of consumption says so in ``_handle``.

Invariant: a thread ends by ``stop`` or ``resize`` only; ``_handle`` must not raise.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from queue import Empty
from typing import Generic, TypeVar

from rmq_ray.client.consumer.assigned_queue import ReadyBatch
from rmq_ray.client.consumer.consumer_parts import ConsumerParts
from rmq_ray.client.push.ready_queue import ReadyQueue
from rmq_ray.errors import ConsumeError

IDLE_WAIT_S = 5.0

T = TypeVar("T")


class ConsumingThreads(ABC, Generic[T]):
    """Daemon threads that take items off one queue. ``log``: where faults of listeners are told."""

    def __init__(self, parts: ConsumerParts, log: logging.Logger) -> None:
        self._parts = parts
        self._log = log
        self._ready: ReadyQueue[T | None] = ReadyQueue()
        self._threads: list[threading.Thread] = []
        self._size = 0
        self._stopping = False
        self.listener_faults = 0
        """How often the listener raised or returned something that means nothing."""

    def start(self) -> None:
        """Start ``concurrency`` daemon threads."""
        self.resize(self._parts.config.concurrency)

    def resize(self, concurrency: int) -> None:
        """From now on so many threads; those that are too many end after what they are
        working on.
        """
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for number in range(self._size, concurrency):
            thread = threading.Thread(
                target=self._run, name=f"rmq-consume-{self._parts.group}-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        for _ in range(concurrency, self._size):
            self._ready.put(None)
        self._size = concurrency

    def owns_current_thread(self) -> bool:
        """True in a consuming thread, which cannot wait for itself."""
        return threading.current_thread() in self._threads

    def stop(self, timeout_ms: float) -> bool:
        """Let running listeners end and settle; False when some still run after ``timeout_ms``."""
        self._stopping = True
        for _ in self._threads:
            self._ready.put(None)
        deadline = self._parts.clock.monotonic_ms() + timeout_ms
        for thread in self._threads:
            thread.join(max(0.0, (deadline - self._parts.clock.monotonic_ms()) / 1000))
        return not any(thread.is_alive() for thread in self._threads)

    @abstractmethod
    def _handle(self, item: T) -> None:
        """Work on one item, in a consuming thread."""

    def _run(self) -> None:
        while True:
            try:
                item = self._ready.get(timeout=IDLE_WAIT_S)
            except Empty:
                continue
            if item is None:
                return
            self._handle(item)

    def _report(self, batch: ReadyBatch, fault: BaseException) -> None:
        self.listener_faults += 1
        place = f"{batch.count} messages of {batch.owner.queue} from offset {batch.first}"
        if isinstance(fault, ConsumeError):
            self._log.error("listener of group %s, %s: %s", self._parts.group, place, fault)
        else:
            self._log.warning(
                "listener of group %s failed with %s", self._parts.group, place, exc_info=fault
            )
