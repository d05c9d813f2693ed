"""The sending half of a connection of threads: whoever holds the lock also sends what the others
queued meanwhile.

    put: queue empty and lock free -> send at once  else -> queue, and whoever releases the lock
                                                    looks again

Decides how frames are combined into system calls and when a peer counts as not reading. Invariants:
a frame leaves whole and frames of one thread leave in its order; a waiter is marked ``sent`` before
the first byte of its frame can leave; no frame stays behind in the queue; a stopped peer holds a
writer 3 s at most, then the connection ends.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from rmq_ray.errors import TooManyRequests
from rmq_ray.remoting.waiting import Waiter
from rmq_ray.remoting.wire.frame import Buffer

if TYPE_CHECKING:
    from rmq_ray.remoting.tls_socket import Stream


JOIN_BYTES_MAX = 64 << 10
BATCH_FRAMES_MAX = 256
BATCH_BYTES_MAX = 1 << 20
STALLS_MAX = 3
"""Sends that time out (a second each) without a byte moved before the connection is given up."""
_IOV_MAX = 512


class Outbox:
    """``on_broken`` is called with the reason when a send fails; it must set ``closed`` first."""

    def __init__(
        self,
        sock: Stream,
        unsent_bytes_max: int,
        peer: str,
        on_broken: Callable[[str], None],
    ) -> None:
        self._sock = sock
        self._peer = peer
        self._on_broken = on_broken
        self._unsent_bytes_max = unsent_bytes_max
        self._queue: deque[tuple[list[Buffer], int, Waiter | None]] = deque()
        self._queued_bytes = 0
        self._count_lock = threading.Lock()
        self.lock = threading.Lock()
        """Held while bytes leave; the socket may be closed only by its holder."""
        self.closed = False
        self.active = False
        """Something was sent since this was last set to False."""

    def put(self, parts: list[Buffer], waiter: Waiter | None, stalls_max: int = STALLS_MAX) -> None:
        """Send one frame, now or with another thread's. Raises ``TooManyRequests`` when too much is
        queued (nothing was sent).
        """
        if not self._queue and self.lock.acquire(blocking=False):
            try:
                if waiter is not None:
                    waiter.sent = True
                if not self.closed:
                    self._transmit(parts, _size(parts), stalls_max)
            finally:
                self.lock.release()
        else:
            self._enqueue(parts, waiter)
        if self._queue:
            self._work_off()

    def clear(self) -> None:
        """Forget what is queued; the connection is dead and its waiters have been told."""
        with self._count_lock:
            self._queue.clear()
            self._queued_bytes = 0

    def _enqueue(self, parts: list[Buffer], waiter: Waiter | None) -> None:
        size = _size(parts)
        with self._count_lock:
            if self._queued_bytes + size > self._unsent_bytes_max and self._queue:
                raise TooManyRequests(
                    f"{self._queued_bytes} bytes to {self._peer} are unsent; nothing was "
                    f"sent, try later",
                    self._peer,
                )
            self._queued_bytes += size
            self._queue.append((parts, size, waiter))

    def _work_off(self) -> None:
        while self._queue and self.lock.acquire(
            blocking=False
        ):  # asked again after each release: no frame is left behind
            try:
                if self.closed:
                    self.clear()
                else:
                    self._send_batch()
            finally:
                self.lock.release()

    def _send_batch(self) -> None:
        buffers: list[Buffer] = []
        total = 0
        for _ in range(BATCH_FRAMES_MAX):
            if not self._queue or total > BATCH_BYTES_MAX:
                break
            parts, size, waiter = self._queue.popleft()
            if waiter is not None:
                waiter.sent = True
            buffers += parts
            total += size
        with self._count_lock:
            self._queued_bytes -= total
        if buffers and not self.closed:
            self._transmit(buffers, total, STALLS_MAX)

    def _transmit(self, buffers: list[Buffer], size: int, stalls_max: int) -> None:
        self.active = True
        try:
            if len(buffers) == 1:
                data = buffers[0]
            elif size <= JOIN_BYTES_MAX:
                data = b"".join(buffers)
            else:
                self._send_long(buffers, stalls_max)
                return
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                sent = 0
                stalls_max -= 1
            if sent < len(data):
                self._send_long([memoryview(data)[sent:]], stalls_max)
        except OSError as error:
            self._on_broken(str(error) or type(error).__name__)

    def _send_long(self, buffers: list[Buffer], stalls_max: int) -> None:
        views = [memoryview(buffer) for buffer in buffers if len(buffer)]
        at = 0
        while at < len(views):
            try:
                sent = self._sock.sendmsg(views[at : at + _IOV_MAX])
            except BlockingIOError:
                stalls_max -= 1
                if self.closed or stalls_max <= 0:
                    raise TimeoutError("the peer does not read") from None
                continue
            while at < len(views) and sent >= len(views[at]):
                sent -= len(views[at])
                at += 1
            if sent:
                views[at] = views[at][sent:]


def _size(parts: list[Buffer]) -> int:
    return len(parts[0]) if len(parts) == 1 else sum([len(part) for part in parts])
