"""What makes a producer's frames and messages recognisable: producer id, sequence numbers, unique keys.

A producer id is 128 random bits per producer and process: never pickled, made anew after a fork. A frame keeps its sequence
through all repeats. Brokers remember the last 1,024 frames of a producer, so no frame may stay unresolved while that many newer
ones go out: ``take`` waits then.

Called by ``client.producer`` and ``client.async_producer``. Invariant: a sequence is given out once; keys never repeat within 65,536 a millisecond.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

from rmq_ray.errors import BrokerBusy
from rmq_ray.model.ids import FrameId
from rmq_ray.remoting.local_address import process_id
from rmq_ray.store.record import UniqueKeys

SEQUENCE_SPAN_MAX = 1_000
"""Newest less oldest unresolved sequence; below the broker's window of 1,024."""
WAIT_SLICE_S = 0.5  # cancellation reaches a thread between waits only


class ProducerIdentity:
    """Frame ids and unique keys of one producer in one process. Thread-safe."""

    def __init__(self, host: str) -> None:
        self.producer_id = os.urandom(16)
        self._keys = UniqueKeys(host, process_id(), int.from_bytes(os.urandom(4)))
        self._keys_lock = threading.Lock()
        self._resolved = threading.Condition(threading.Lock())
        self._unresolved: OrderedDict[int, None] = OrderedDict()
        self._next = 0

    def take(self, timeout_ms: float) -> FrameId:
        """The next frame's id. Waits while the oldest unresolved frame is ``SEQUENCE_SPAN_MAX`` behind; ``BrokerBusy`` after ``timeout_ms``."""
        with self._resolved:
            unresolved = self._unresolved
            if unresolved and self._next - next(iter(unresolved)) >= SEQUENCE_SPAN_MAX:
                self._wait(timeout_ms)
            sequence = self._next
            self._next = sequence + 1
            unresolved[sequence] = None
        return FrameId(self.producer_id, sequence)

    def release(self, frame_id: FrameId) -> None:
        """The frame is stored or given up: it will not be sent again."""
        with self._resolved:
            self._unresolved.pop(frame_id.sequence, None)
            self._resolved.notify_all()

    def unique_key(self, now_ms: int) -> str:
        """One UNIQ_KEY of 32 hex digits."""
        with self._keys_lock:
            return self._keys.next(now_ms)

    def unique_keys(self, now_ms: int, count: int) -> list[str]:
        """``count`` keys in a row."""
        with self._keys_lock:
            return self._keys.take(now_ms, count)

    def _wait(self, timeout_ms: float) -> None:
        slices = max(1, round(timeout_ms / 1000 / WAIT_SLICE_S + 0.5))
        for _ in range(slices):
            self._resolved.wait(min(WAIT_SLICE_S, timeout_ms / 1000))
            if not self._unresolved or self._next - next(iter(self._unresolved)) < SEQUENCE_SPAN_MAX:
                return
        raise BrokerBusy(f"a frame has been unanswered while {SEQUENCE_SPAN_MAX} newer ones went out; nothing was sent, send again later")
