"""Reads a split through a connection to its broker: for readers that do not sit beside the log.

    SCAN_RECORDS [queue, at, end, bytes, epoch]  ->  a page of records from ``at`` on  ->  the next
    ``at``  ...  until ``end``

Decides: what each answer means for the read. Does not decide when to read this way
(``scan_plan.ScanReader``). Runs in any process, needs no Ray. Invariants: rows come in queue order,
each once; a broker that dies in the middle is asked again from the row after the last one that was
handed out, at each of the split's addresses in turn (its master's, then its slaves'), for a minute;
a split that cannot be read to its planned end is an error, never a shorter result.
"""

from __future__ import annotations

from collections.abc import Iterator

from rmq_ray.client.instance.outage import ask_patiently, refused
from rmq_ray.clock import Clock
from rmq_ray.config import RemotingLimits, Tls
from rmq_ray.errors import ConsumeError, OffsetOutOfRange
from rmq_ray.model.ids import Address
from rmq_ray.ports import Split
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.records import (
    PullAnswer,
    ScanRecords,
    Sizes,
    pack_scan,
    unpack_pull_answer,
)

REQUEST_TIMEOUT_MS = 10_000
OUTAGE_MAX_MS = 60_000
_GONE = frozenset((ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED))
_PAGES = _GONE | {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY}


class StreamSplitReader:
    """A ``ports.SplitReader`` over one connection at a time. ``credentials`` None: no handshake,
    for open ports.
    """

    def __init__(
        self,
        credentials: Credentials | None,
        clock: Clock,
        outage_max_ms: float = OUTAGE_MAX_MS,
        tls: Tls | None = None,
    ) -> None:
        self._credentials = credentials
        self._clock = clock
        self._outage_max_ms = outage_max_ms
        self._tls = tls
        self._connection: Connection | None = None

    def read(self, split: Split, chunk_bytes: int) -> Iterator[tuple[memoryview, Sizes]]:
        """Yield (records, sizes) until ``split.end``; damaged records are left out, as everywhere.

        Raises ``OffsetOutOfRange`` where retention overtook the split or the log was cut below its
        end, ``NotAuthorized``, ``ResponseError`` for other refusals, and the connection's error
        when the broker stays away for longer than a minute.
        """
        at = split.start
        while at < split.end:  # ends: at rises
            page = self._page(split, at, chunk_bytes)
            if len(page.sizes):
                yield page.records, page.sizes
            if page.next_offset <= at:
                raise ConsumeError(
                    f"{split.queue} gave nothing at offset {at}, below the planned end "
                    f"{split.end}; plan the read again",
                    at,
                )
            at = page.next_offset

    def close(self) -> None:
        """Close the connection, if any."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _page(self, split: Split, at: int, chunk_bytes: int) -> PullAnswer[Sizes]:
        request = pack_scan(
            ScanRecords(
                split.queue.topic, split.queue.queue_id, at, split.end, chunk_bytes, split.epoch
            )
        )

        def attempt(turn: int) -> Command:
            which = turn % len(split.addresses)
            connection = self._connected(Address.parse(split.addresses[which]))
            answer = connection.request(
                Command(RequestCode.SCAN_RECORDS, body=request, serialize=1), REQUEST_TIMEOUT_MS
            )
            return _later(answer) if which and _lags(answer, split) else answer

        answer = ask_patiently(attempt, self._clock, self._outage_max_ms)
        if answer.code not in _PAGES:
            raise refused(
                f"the broker refused a scan of {split.queue}: {answer.remark or 'no reason given'}",
                answer,
            )
        page = unpack_pull_answer(answer.body)
        if answer.code in _GONE:
            raise OffsetOutOfRange(
                f"{split.queue} no longer holds offset {at} of the planned [{split.start}, "
                f"{split.end}): it has [{page.min_offset}, {page.max_offset}) "
                f"in epoch {page.epoch} of its log, planned in {split.epoch}; plan the read again",
                at,
                page.min_offset,
                page.max_offset,
            )
        return page

    def _connected(self, address: Address) -> Connection:
        if (
            self._connection is None
            or not self._connection.alive
            or self._connection.address != address
        ):
            self.close()
            self._connection = Connection(
                address, self._credentials, RemotingLimits(), self._clock, tls=self._tls
            )
        return self._connection


def _lags(answer: Command, split: Split) -> bool:
    """Whether a slave has not copied the planned rows yet: its log is no other one, only
    shorter.
    """
    if answer.code not in _GONE:
        return False
    page = unpack_pull_answer(answer.body)
    return page.max_offset < split.end and page.epoch <= split.epoch


def _later(answer: Command) -> Command:
    return answer.answer(
        ResponseCode.SERVICE_NOT_AVAILABLE, remark="a slave that has not copied these rows yet"
    )
