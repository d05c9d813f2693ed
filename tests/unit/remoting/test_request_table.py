"""The one table of requests is complete, and servers serve what it says, as it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.config import NameServerConfig
from rmq_ray.remoting.request_table import (
    REQUESTS,
    Action,
    Asker,
    Fence,
    Party,
    Resource,
    Row,
    rows_of,
)
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.namesrv.name_server import NameServer
from tests.support.brokers.broker_bench import Bench
from tests.support.faults.fake_peer import FakePeer

SERVED = {Party.BROKER, Party.NAME_SERVER, Party.CLIENT}
SHARED_BY_RIGHT = {RequestCode.BUNDLE, RequestCode.UNPIN_SEGMENTS}
"""Each part of a bundle needs its own right; a pin is known to who made it only."""


def name_of(row: Row) -> str:
    return f"{row.code.name}-{row.served_by.value}"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    yield made
    made.close()


def test_every_code_has_a_row_and_one_for_each_party_that_serves_it() -> None:
    assert {row.code for row in REQUESTS} == set(RequestCode)
    assert max(Counter((row.code, row.served_by) for row in REQUESTS).values()) == 1


@pytest.mark.parametrize("row", REQUESTS, ids=name_of)
def test_a_row_is_complete(row: Row) -> None:
    assert row.asked_by and bool(row.handler) is (row.served_by is not Party.NOBODY)
    if row.served_by in {Party.BROKER, Party.NAME_SERVER} and row.code not in SHARED_BY_RIGHT:
        assert row.resource is not Resource.NOTHING and row.action is not Action.NONE
    if row.master_only:
        assert row.fence in (Fence.LEADS, Fence.HANDS_OUT), (
            "what only a master may do, only one that leads may"
        )
    if row.audited:
        assert row.action is Action.ADMIN


def test_a_broker_and_a_name_server_serve_their_rows(bench: Bench) -> None:
    assert set(bench.core.dispatch.requests) == set(rows_of(Party.BROKER))
    server = NameServer(NameServerConfig(), ManualClock())
    assert set(server._requests) == set(rows_of(Party.NAME_SERVER))


@pytest.mark.parametrize("code", sorted(set(RequestCode) - set(rows_of(Party.BROKER))))
def test_what_has_no_row_for_brokers_is_not_supported(bench: Bench, code: RequestCode) -> None:
    answer = bench.core.handle(Command(int(code)), FakePeer())
    assert answer is not None and answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.parametrize(
    "code",
    [code for code, row in rows_of(Party.BROKER).items() if Asker.FOREIGN not in row.asked_by],
)
def test_strangers_are_refused_what_is_not_for_them(bench: Bench, code: int) -> None:
    answer = bench.core.handle(Command(code), FakePeer(trusted=False))
    assert answer is not None and answer.code == ResponseCode.NO_PERMISSION
    assert "proved its secret" in (answer.remark or "")
