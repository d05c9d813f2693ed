"""Sends that are written but not yet durable: whose answer waits for fdatasync, and how many bytes
that are (promises: modes).

Decides: when an answer leaves and with which status. Does not decide what durable means: the store
says up to which log offset. Callers: the send handlers add, the store's notice (hopped into the
loop) and the broker's tick take out.

Invariants: each waiter is told exactly once: 0 when the log is settled that far (durable; under
SYNC_MASTER on the slaves, too), 10 (FLUSH_DISK_TIMEOUT) when its time is over or the log failed, 12
(FLUSH_SLAVE_TIMEOUT) when its time is over and only slaves are missing. Waiters are told in the
order of their arrival, so the answers of one connection keep their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rmq_ray.errors import BrokerBusy
from rmq_ray.remoting.wire.codes import ResponseCode

Told = Callable[[int], None]
OK, NOT_FLUSHED, NOT_COPIED = (
    int(ResponseCode.SUCCESS),
    int(ResponseCode.FLUSH_DISK_TIMEOUT),
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT),
)


class Acknowledgements:
    """``timeout_ms``: how long an answer waits (syncFlushTimeout, slaveTimeout). ``bytes_max``:
    unacknowledged bytes before new sends are refused.
    """

    def __init__(self, timeout_ms: int, bytes_max: int) -> None:
        self._timeout_ms = timeout_ms
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[int, float, int, Told]] = deque()
        self.in_flight_bytes = 0
        self.timeouts = 0
        self.slave_timeouts = 0

    def admit(self, size: int) -> None:
        """Raises ``BrokerBusy`` when ``size`` more bytes would exceed the limit; called before
        anything is written.
        """
        if self.in_flight_bytes + size > self._bytes_max:
            raise BrokerBusy(
                f"[REJECTREQUEST]system busy: {self.in_flight_bytes} bytes wait for the "
                f"disk, the limit is {self._bytes_max}; send again later",
                size,
            )

    def oldest_wait_ms(self, now_ms: float, flushed: int = 0) -> float:
        """How long the send that waits longest for the disk has waited; 0 when the log is
        ``flushed`` that far. ``now_ms`` is monotonic.
        """
        return (
            now_ms - self._waiting[0][1] + self._timeout_ms
            if self._waiting and self._waiting[0][0] > flushed
            else 0.0
        )

    def wait(
        self, end_offset: int, settled_offset: int, size: int, now_ms: float, told: Told
    ) -> None:
        """``told(0)`` at once when the log is durable and visible up to ``end_offset``, else when
        it becomes so. ``now_ms`` is monotonic.
        """
        if end_offset <= settled_offset and not self._waiting:
            told(OK)
            return
        self._waiting.append((end_offset, now_ms + self._timeout_ms, size, told))
        self.in_flight_bytes += size

    def durable(self, log_offset: int) -> None:
        """The log is durable up to ``log_offset``."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= log_offset:
            _, _, size, told = waiting.popleft()
            self.in_flight_bytes -= size
            told(OK)

    def expire(self, now_ms: float, flushed: int = 0) -> None:
        """Tell those whose time is over; below log offset ``flushed`` it is slaves that are
        missing.
        """
        waiting = self._waiting
        while waiting and waiting[0][1] <= now_ms:
            self._give_up(NOT_COPIED if waiting[0][0] <= flushed else NOT_FLUSHED)

    def fail_all(self) -> None:
        """The log failed: what waits may or may not be stored."""
        while self._waiting:
            self._give_up(NOT_FLUSHED)

    def abandon(self) -> None:
        """Nobody is told anything: their connections are closed, which leaves open what became of
        their messages.
        """
        self._waiting.clear()
        self.in_flight_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def _give_up(self, code: int) -> None:
        _, _, size, told = self._waiting.popleft()
        self.in_flight_bytes -= size
        self.timeouts += code == NOT_FLUSHED
        self.slave_timeouts += code == NOT_COPIED
        told(code)
