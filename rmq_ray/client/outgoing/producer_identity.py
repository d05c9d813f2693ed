"""Who a producer is on the wire: producer id, sequence numbers and unique keys.

A producer id is 128 random bits per producer and process: never pickled, made anew after a fork. A
frame keeps its sequence through all repeats. Decides when ``take`` waits: brokers remember the last
1,024 frames of a producer, so no frame may stay unresolved while that many newer ones go out.

Invariants: a sequence is given out once; keys do not repeat while fewer than 65,536 are made in a
millisecond.
"""

from __future__ import annotations

import itertools
import os
import threading

from rmq_ray.clock import local_month_ms
from rmq_ray.codec.key_range import KeyRange
from rmq_ray.codec.record import pack_host_v4
from rmq_ray.errors import BrokerBusy
from rmq_ray.model.ids import FrameId
from rmq_ray.remoting.sockets import process_id

SEQUENCE_SPAN_MAX = 800
"""Newest less oldest unresolved sequence at which ``take`` begins to wait; looked at every
``LOOK_EVERY`` sequences, so that it stays below the broker's window of 1,024 with up to 96 threads
sending at once."""
LOOK_EVERY = 128
WAIT_SLICE_S = 0.5  # cancellation reaches a thread between waits only

_HEX = [f"{value:02X}" for value in range(256)]


class ProducerIdentity:
    """Frame ids and unique keys of one producer in one process. Thread-safe."""

    def __init__(self, host: str) -> None:
        self.producer_id = os.urandom(16)
        self._sequences = itertools.count()
        self._unresolved: dict[int, None] = {}
        self._resolved = threading.Condition(threading.Lock())
        self._holding = 0  # callers that wait for an old frame
        self._crowded = (
            False  # the last look found one, and nobody has seen it gone: every caller looks
        )
        self._keys = UniqueKeys(host, process_id(), int.from_bytes(os.urandom(4)))
        self._keys_lock = threading.Lock()
        self._keys_ms = -1
        self._head = ""
        self._key_count = 0

    def take(self, timeout_ms: float) -> FrameId:
        """The next frame's id. Waits while the oldest unresolved frame is too far behind;
        ``BrokerBusy`` after ``timeout_ms``.
        """
        sequence = next(self._sequences)
        self._unresolved[sequence] = None
        if not sequence % LOOK_EVERY or self._holding or self._crowded:
            self._hold_back(sequence, timeout_ms)
        return FrameId(self.producer_id, sequence)

    def release(self, frame_id: FrameId) -> None:
        """The frame is stored or given up: it will not be sent again. Ids that were made elsewhere
        are none of this producer's.
        """
        if frame_id.producer_id != self.producer_id:
            return
        self._unresolved.pop(frame_id.sequence, None)
        if self._holding:
            with self._resolved:
                self._resolved.notify_all()

    def unique_key(self, now_ms: int) -> str:
        """One UNIQ_KEY of 32 hex digits."""
        with self._keys_lock:
            if now_ms != self._keys_ms:
                self._keys_ms, self._head = now_ms, self._keys.next(now_ms)[:-4]
            count = self._key_count
            self._key_count = count + 1
            return self._head + _HEX[count >> 8 & 255] + _HEX[count & 255]

    def unique_keys(self, now_ms: int, count: int) -> KeyRange:
        """``count`` keys in a row."""
        with self._keys_lock:
            if now_ms != self._keys_ms:
                self._keys_ms, self._head = now_ms, self._keys.next(now_ms)[:-4]
            first, head = self._key_count, self._head
            self._key_count = first + count
        return KeyRange(head, first, count)

    def _hold_back(self, sequence: int, timeout_ms: float) -> None:
        """Wait until no unresolved frame is further behind than the span. A caller that gives up
        leaves no trace.
        """
        if self._near(sequence):
            self._crowded = False
            return
        self._crowded = True
        with self._resolved:
            self._holding += 1
            try:
                for _ in range(int(timeout_ms / 1000 / WAIT_SLICE_S) + 1):
                    if self._resolved.wait_for(
                        lambda: self._near(sequence), min(WAIT_SLICE_S, timeout_ms / 1000)
                    ):
                        self._crowded = False
                        return
            finally:
                self._holding -= 1
        self._unresolved.pop(sequence, None)
        raise BrokerBusy(
            f"a frame has been unanswered while {SEQUENCE_SPAN_MAX} newer ones went out; "
            f"nothing was sent, send again later"
        )

    def _near(self, sequence: int) -> bool:
        return sequence - min(list(self._unresolved)) < SEQUENCE_SPAN_MAX


class UniqueKeys:
    """RocketMQ's UNIQ_KEY: 4 address bytes, 2 of the process id, 4 that tell instances apart, 4 of
    time, 2 of a counter, as 32 upper-case hex digits (store-format 9.2). Time is ms since the local
    month began. Not thread-safe.

    >>> UniqueKeys("192.168.0.10", 15956, 0x18B4AAC2).fixed
    'C0A8000A3E5418B4AAC2'
    """

    __slots__ = ("_counter", "_month_end_ms", "_month_start_ms", "fixed")

    def __init__(self, host: str, process_id: int, discriminator: int) -> None:
        address = pack_host_v4(host, 0)[:4]
        self.fixed = (
            (address + (process_id & 0xFFFF).to_bytes(2) + (discriminator & 0xFFFFFFFF).to_bytes(4))
            .hex()
            .upper()
        )
        self._counter = 0
        self._month_start_ms = self._month_end_ms = 0

    def next(self, now_ms: int) -> str:
        """One key."""
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        return f"{self.fixed}{self._since_month(now_ms):08X}{counter:04X}"

    def take(self, now_ms: int, count: int) -> list[str]:
        """``count`` keys in a row (up to 65,536)."""
        head = f"{self.fixed}{self._since_month(now_ms):08X}"
        first = self._counter
        self._counter = (first + count) & 0xFFFF
        return [f"{head}{n & 0xFFFF:04X}" for n in range(first, first + count)]

    def _since_month(self, now_ms: int) -> int:
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._month_start_ms, self._month_end_ms = local_month_ms(now_ms)
        return (now_ms - self._month_start_ms) & 0xFFFFFFFF
