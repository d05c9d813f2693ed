"""Bulk reads where a broker has slaves: planned at the master, read on at a slave while it is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.client.admin import Admin
from rmq_ray.client.producer import Producer
from rmq_ray.client.scan_plan import ScanOptions, ScanPlan, plan_scan
from rmq_ray.client.scan_stream import StreamSplitReader
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import ConnectFailed, RemotingError
from rmq_ray.model.ids import Address
from rmq_ray.model.message import Message
from rmq_ray.protocol.scan_positions import LikeGroup
from tests.support.replicated import ReplicatedCluster


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path) as cluster:
        yield cluster


def streamed(plan: ScanPlan) -> int:
    """How many rows the scan stream gives, not beside the log."""
    reader = StreamSplitReader(plan.cluster, plan.secret, SYSTEM_CLOCK, 10_000)
    try:
        return sum(len(sizes) for split in plan.splits for _, sizes in reader.read(split, 1 << 20))
    finally:
        reader.close()


def test_a_plan_names_every_copy_and_a_dead_masters_splits_are_read_at_the_slave(pair: ReplicatedCluster) -> None:
    with Producer("p", discovery=pair) as producer:
        producer.send_batch([Message("orders", b"%d" % number) for number in range(1_000)])
        producer.send("orders", b"last")
    pair.caught_up()
    plan = plan_scan(pair, "orders", "earliest", "latest", 4)
    assert {len(split.addresses) for split in plan.splits} == {2} and len({split.addresses for split in plan.splits}) == 1
    assert streamed(plan) == plan.rows == 1_001
    pair.stop_master()
    assert streamed(plan) == 1_001


def unreachable(pair: ReplicatedCluster) -> None:
    """The master's host is gone for readers; the name server has not noticed."""
    pair.run(pair.brokers[0]._listener.close())


def test_a_plan_made_while_a_master_is_away_is_made_at_its_slave(pair: ReplicatedCluster) -> None:
    with Producer("p", discovery=pair) as producer:
        producer.send_batch([Message("orders", b"%d" % number) for number in range(1_000)])
    pair.caught_up()
    admin = Admin(pair)
    queues = [split.queue for split in plan_scan(pair, "orders", "earliest", "latest", 1).splits]
    queue = max(queues, key=lambda queue: pair.store().bounds("orders", queue.queue_id)[1])
    admin._commit("daily", queue, 5)
    pair.tables_synced()
    admin.close()
    slave = str(Address.parse(pair.slaves[1].status()["address"]))
    unreachable(pair)
    at_once = ScanOptions(master_alone_ms=0)
    begin = SYSTEM_CLOCK.monotonic_ms()
    with plan_scan(pair, "orders", "earliest", "latest", 4, ("broker-a",), at_once) as plan:
        assert SYSTEM_CLOCK.monotonic_ms() - begin < 3_000
        assert {split.addresses[0] for split in plan.splits} == {slave} == {address for address, _ in plan.pins}
        assert streamed(plan) == plan.rows == 1_000
    assert plan_scan(pair, "orders", LikeGroup("daily"), "latest", 4, (), at_once).rows == 995
    assert plan_scan(pair, "orders", 0, {queue: 7}, 4, (), at_once).rows == 1_000 - pair.slave_store().bounds("orders", queue.queue_id)[1] + 7


def test_a_slave_that_lacks_the_rows_that_are_named_is_not_asked_for_a_plan(pair: ReplicatedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with Producer("p", discovery=pair) as producer:
        producer.send_batch([Message("orders", b"%d" % number) for number in range(8)])
    pair.caught_up()
    queue = plan_scan(pair, "orders", "earliest", "latest", 1).splits[0].queue
    high = pair.store().bounds("orders", queue.queue_id)[1]
    unreachable(pair)
    monkeypatch.setattr("rmq_ray.client.scan_copies.PATIENCE_MS", 500)
    with pytest.raises(RemotingError):
        plan_scan(pair, "orders", "earliest", {queue: high + 1}, 1, (), ScanOptions(master_alone_ms=0))
    with pytest.raises(ConnectFailed):
        plan_scan(pair, "orders", "earliest", "latest", 1)
    assert plan_scan(pair, "orders", "earliest", {queue: high}, 1, (), ScanOptions(master_alone_ms=0)).rows == 8
