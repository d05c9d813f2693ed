"""Messages on their way to the listener where there are limits for each key.

    thread ── has a message ──> its key is free? ─┬─ yes ──> listener ──> ended ──┐
                                                  └─ no: it waits here            │
    ready queue <── the next of that key, behind whatever waits there <───────────┘

Decides who is told when a key is free again: whoever ended a call of it, or a timer. Which message
that is ``client.consumer.key_limits`` decides. Does not call the listener and settles nothing.

Invariants: no thread waits for a key. What waits here is unfinished like anything that was pulled:
it counts against the consumer's thresholds, the commit offset does not pass it, and the next owner
of its queue gets it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from rmq_ray.client.consumer.assigned_queue import ReadyBatch
from rmq_ray.client.consumer.key_limits import KEYS, KeyLimits, KeyTable
from rmq_ray.client.instance.timers import DelayedCalls
from rmq_ray.clock import Clock
from rmq_ray.model.message import KEYS as KEYS_PROPERTY


class KeyLimiter:
    """Of one consumer, whose batches are one message each. ``free``: takes those that may go on."""

    def __init__(
        self,
        limits: KeyLimits,
        clock: Clock,
        delayed: DelayedCalls,
        free: Callable[[Sequence[ReadyBatch]], None],
    ) -> None:
        self._by = KEYS_PROPERTY if limits.by == KEYS else limits.by
        self._clock = clock
        self._delayed = delayed
        self._free = free
        self._lock = threading.Lock()
        self._table: KeyTable[ReadyBatch] = KeyTable(
            limits, lambda batch: batch.owner.process.dropped
        )
        self._begun: set[ReadyBatch] = set()
        """Those that waited and count as begun, on their way to a thread."""

    @property
    def waiting(self) -> int:
        """Messages that wait for their keys."""
        return self._table.waiting

    def hand_out(self, batch: ReadyBatch, consume: Callable[[ReadyBatch], None]) -> None:
        """``consume(batch)``, now or when its key is free."""
        key = self._key(batch)
        if key is None:
            consume(batch)
        elif self._begins(key, batch):
            try:
                consume(batch)
            finally:
                with self._lock:
                    self._table.end(key)
                self._go_on(key)
        else:
            self._go_on(key)

    def _key(self, batch: ReadyBatch) -> str | None:
        (message,) = batch.part_messages(0, 0, 1)
        return message.all_properties.get(self._by) or None

    def _begins(self, key: str, batch: ReadyBatch) -> bool:
        with self._lock:
            if batch in self._begun:
                self._begun.discard(batch)
                return True
            return self._table.begin(key, batch, self._clock.monotonic_ms())

    def _go_on(self, key: str) -> None:
        with self._lock:
            found, again_ms = self._table.ready(key, self._clock.monotonic_ms())
            self._begun.update(found)
        if found:
            self._free(found)
        if again_ms is not None:
            self._delayed.after(again_ms, partial(self._due, key))

    def _due(self, key: str) -> None:
        with self._lock:
            self._table.asking(key)
        self._go_on(key)
