"""Reads a split through a connection to its broker: for readers that do not sit beside the log.

``open_reader`` chooses: local files where host and store identity match, else this. Runs in any process, needs no Ray.
Invariants: rows come in queue order, each once; a broker that dies in the middle is asked again from the row after the last
one that was handed out, at each of the split's addresses, within the time-out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rmq_ray.clock import Clock
from rmq_ray.config import RemotingLimits
from rmq_ray.errors import ConsumeError, OffsetOutOfRange, RemotingError, ResponseError
from rmq_ray.model.ids import Address
from rmq_ray.ports import Split
from rmq_ray.remoting.codes import RequestCode, ResponseCode
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.frame import Command
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.records import ScanRecords, pack_scan, unpack_pull_answer

REQUEST_TIMEOUT_MS = 10_000
OUTAGE_MAX_MS = 60_000
PAUSE_MS = 100
_RETRY_CODES = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.STILL_RECOVERING))


class StreamSplitReader:
    """A ``ports.SplitReader`` over one connection at a time."""

    def __init__(self, cluster: str, secret: bytes, clock: Clock) -> None:
        self._credentials = Credentials(cluster, "broker", secret)
        self._clock = clock
        self._connection: Connection | None = None

    def read(self, split: Split, chunk_bytes: int) -> Iterator[tuple[memoryview, np.ndarray]]:
        """Yield (records, sizes) until ``split.end``; ``OffsetOutOfRange`` where retention overtook the split."""
        at = split.start
        while at < split.end:
            answer = self._ask(split, at, chunk_bytes)
            page = unpack_pull_answer(answer.body)
            if answer.code == ResponseCode.PULL_OFFSET_MOVED:
                raise OffsetOutOfRange(
                    f"{split.queue} no longer holds offset {at}: it has [{page.min_offset}, {page.max_offset}); read again from 'earliest'",
                    at,
                    page.min_offset,
                    page.max_offset,
                )
            if len(page.sizes):
                yield page.records, page.sizes
            if page.next_offset <= at:
                raise ConsumeError(f"{split.queue} gave nothing at offset {at}, below the planned end {split.end}", at)
            at = page.next_offset

    def close(self) -> None:
        """Close the connection, if any."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, split: Split, at: int, chunk_bytes: int) -> Command:
        request = pack_scan(ScanRecords(split.queue.topic, split.queue.queue_id, at, split.end, chunk_bytes, split.epoch))
        give_up = self._clock.monotonic_ms() + OUTAGE_MAX_MS
        turn = 0
        while True:
            address = Address.parse(split.addresses[turn % len(split.addresses)])
            try:
                answer = self._connected(address).request(Command(RequestCode.SCAN_RECORDS, body=request, serialize=1), REQUEST_TIMEOUT_MS)
                if answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED):
                    return answer
                error: RemotingError = ResponseError(answer.remark or "scan refused", answer.code)
                if answer.code not in _RETRY_CODES:
                    raise error
            except ResponseError:
                raise
            except RemotingError as lost:
                error = lost
                self.close()
            if self._clock.monotonic_ms() > give_up:
                raise error
            turn += 1
            self._clock.sleep_ms(PAUSE_MS)

    def _connected(self, address: Address) -> Connection:
        if self._connection is None or not self._connection.alive or self._connection.address != address:
            self.close()
            self._connection = Connection(address, self._credentials, RemotingLimits(), self._clock)
        return self._connection
