"""What a scan stream makes of each answer of a broker, and of connections that break. The broker is
a script on a real port.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rmq_ray.client.scan.stream_split_reader import StreamSplitReader
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import ForeignClients, RemotingLimits
from rmq_ray.errors import (
    ConnectFailed,
    ConsumeError,
    HandshakeFailed,
    OffsetOutOfRange,
    ResponseError,
)
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.ports import Split, SplitReader
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.listener import Listener
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.records import ScanRecords, pack_pull_answer, unpack_scan
from tests.support.faults.stopwatch import Stopwatch

SECRET = b"k" * 32
QUEUE = MessageQueue("orders", "broker-a", 3)
RECORD = bytes(100)


class ScriptedBroker:
    """Answers scans with ``script(scan, number, peer)``; None closes the connection."""

    def __init__(self) -> None:
        self.scans: list[ScanRecords] = []
        self.script: Callable[[ScanRecords, int], tuple[int, Any]] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listener = Listener(
            self,
            Credentials("c", "broker", SECRET),
            ForeignClients.CLOSED,
            RemotingLimits(),
            SYSTEM_CLOCK,
            "scripted",
        )
        self.address: Address = self._run(self._listener.start("127.0.0.1", 0))

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def handle(self, command: Command, peer: Any) -> Command | None:
        assert command.code == RequestCode.SCAN_RECORDS
        scan = unpack_scan(command.body)
        self.scans.append(scan)
        assert self.script is not None
        code, body = self.script(scan, len(self.scans) - 1)
        if code < 0:
            peer.close("told to")
            return None
        return command.answer(code, body=body, remark=None if body else f"told to answer {code}")

    def closed(self, peer: Any) -> None:
        """Nothing is kept about connections."""

    def stop(self) -> None:
        self._run(self._listener.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    running = ScriptedBroker()
    yield running
    running.stop()


def page(following: int, records: int = 0, low: int = 0, high: int = 100, epoch: int = 4) -> Any:
    sizes = np.full(records, len(RECORD), ">i4") if records else None
    return pack_pull_answer(following, low, high, epoch, 0, sizes, (RECORD * records,))


def a_split(*addresses: Address | str, end: int = 100) -> Split:
    return Split(
        QUEUE,
        10,
        end,
        "elsewhere",
        "/nowhere",
        "0" * 32,
        4,
        tuple(map(str, addresses)),
        1 << 30,
        300_000,
        1 << 40,
    )


def read(split: Split, outage_ms: float = 5_000, secret: bytes = SECRET) -> int:
    """How many records came."""
    reader = StreamSplitReader(Credentials("c", "broker", secret), SYSTEM_CLOCK, outage_ms)
    assert isinstance(reader, SplitReader)
    try:
        return sum(
            len(sizes)
            for records, sizes in reader.read(split, 1_000)
            if len(records) == len(RECORD) * len(sizes)
        )
    finally:
        reader.close()
        reader.close()


def test_pages_are_asked_for_one_behind_the_other_until_the_end(broker: ScriptedBroker) -> None:
    broker.script = lambda scan, _: (
        0,
        page(min(scan.start + 40, scan.end), min(40, scan.end - scan.start)),
    )
    assert read(a_split(broker.address)) == 90
    assert [(scan.start, scan.end) for scan in broker.scans] == [(10, 100), (50, 100), (90, 100)]
    assert all(
        (scan.topic, scan.queue_id, scan.bytes_max, scan.epoch) == ("orders", 3, 1_000, 4)
        for scan in broker.scans
    )


@pytest.mark.parametrize(
    "fault",
    [
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.STILL_RECOVERING,
        -1,
    ],
)
def test_a_broker_that_is_away_for_a_moment_is_asked_again_from_the_same_row(
    broker: ScriptedBroker, fault: int
) -> None:
    broker.script = lambda scan, number: (
        (fault, b"") if number in (1, 2) else (0, page(scan.start + 45, 45))
    )
    assert read(a_split(broker.address)) == 90
    assert [scan.start for scan in broker.scans] == [10, 55, 55, 55]


def test_a_page_of_damaged_records_only_is_passed_over(broker: ScriptedBroker) -> None:
    broker.script = lambda scan, number: (20, page(60)) if number == 0 else (0, page(100, 40))
    assert read(a_split(broker.address)) == 40


@pytest.mark.parametrize(("code", "low", "high"), [(21, 50, 100), (19, 0, 10), (21, 0, 5)])
def test_rows_that_are_no_longer_there_are_an_error_that_tells_what_is(
    broker: ScriptedBroker, code: int, low: int, high: int
) -> None:
    broker.script = lambda _scan, _number: (code, page(low, 0, low, high, epoch=5))
    with pytest.raises(
        OffsetOutOfRange,
        match=rf"offset 10 of the planned \[10, 100\).*\[{low}, {high}\) in epoch 5 .*planned in 4",
    ) as caught:
        read(a_split(broker.address))
    assert caught.value.args[1:] == (10, low, high) and len(broker.scans) == 1


def test_a_slave_that_has_not_copied_the_rows_yet_is_asked_again_and_not_believed(
    broker: ScriptedBroker,
) -> None:
    broker.script = lambda scan, number: (
        (21, page(20, 0, 0, 20)) if number < 2 else (0, page(100, 90))
    )
    assert read(a_split("127.0.0.1:1", broker.address)) == 90 and len(broker.scans) == 3


def test_a_slave_that_was_promoted_without_the_rows_says_so(broker: ScriptedBroker) -> None:
    broker.script = lambda _scan, _number: (21, page(20, 0, 0, 20, epoch=5))
    with pytest.raises(OffsetOutOfRange, match="in epoch 5"):
        read(a_split("127.0.0.1:1", broker.address))


def test_an_answer_that_leads_nowhere_ends_the_read(broker: ScriptedBroker) -> None:
    broker.script = lambda scan, _: (0, page(scan.start))
    with pytest.raises(ConsumeError, match="gave nothing at offset 10"):
        read(a_split(broker.address))


def test_a_refusal_is_raised_at_once_with_its_code(broker: ScriptedBroker) -> None:
    broker.script = lambda _scan, _number: (ResponseCode.NO_PERMISSION, b"")
    with pytest.raises(ResponseError, match="refused a scan of .*told to answer 16") as caught:
        read(a_split(broker.address))
    assert caught.value.response_code == 16 and len(broker.scans) == 1


def test_a_wrong_secret_is_not_tried_again(broker: ScriptedBroker) -> None:
    watch = Stopwatch()
    with pytest.raises(HandshakeFailed):
        read(a_split(broker.address), secret=b"w" * 32)
    assert watch.lived_s < 4.0


def test_each_address_is_tried_in_turn(broker: ScriptedBroker) -> None:
    broker.script = lambda scan, _: (0, page(scan.end, scan.end - scan.start))
    assert read(a_split("127.0.0.1:1", broker.address)) == 90


def test_a_broker_that_stays_away_is_given_up(broker: ScriptedBroker) -> None:
    with pytest.raises(ConnectFailed, match="nothing was sent"):
        read(a_split("127.0.0.1:1"), outage_ms=250)


def test_an_empty_split_asks_nobody() -> None:
    assert read(a_split("127.0.0.1:1", end=10)) == 0
