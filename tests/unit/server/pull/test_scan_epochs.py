"""A scan that was planned before a cut of the log never gets what was written behind the cut
afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.records import ScanRecords, pack_scan
from tests.support.brokers.broker_bench import Bench, bodies_of, page_of


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Five messages of epoch 1; then the log was cut behind them and others were written in epoch
    2.
    """
    running = Bench(tmp_path).open()
    running.send(bodies_=[b"old"] * 5)
    yield running
    running.close()


@pytest.mark.parametrize(
    ("start", "end", "epoch", "code", "found"),
    [
        (0, 5, 1, 0, [b"old"] * 5),
        (0, 8, 1, 0, [b"old"] * 5),
        (4, 8, 1, 0, [b"old"]),
        (5, 8, 1, 21, []),
        (6, 8, 1, 21, []),
        (0, 8, 2, 0, [b"old"] * 5 + [b"new"] * 3),
        (0, 8, 0, 0, [b"old"] * 5 + [b"new"] * 3),
    ],
)
def test_a_scan_of_an_older_epoch_ends_at_the_cut(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    start: int,
    end: int,
    epoch: int,
    code: int,
    found: list[bytes],
) -> None:
    store = bench.core.keeper.store
    assert store is not None
    monkeypatch.setattr(type(store), "epochs", ((1, 0), (2, store.end_offset)))
    monkeypatch.setattr(type(store), "epoch", 2)
    bench.send(bodies_=[b"new"] * 3)
    answer = bench.ask(
        RequestCode.SCAN_RECORDS,
        None,
        pack_scan(ScanRecords("orders", 0, start, end, 1 << 20, epoch)),
    )
    page = page_of(answer)
    assert page is not None and (answer.code, bodies_of(page)) == (code, found)
    assert page.next_offset == (5 if code == 21 else start + len(found)) and page.epoch == 2
