"""Bulk reads where a broker has slaves: planned at the master, read on at a slave while it is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.client.producer import Producer
from rmq_ray.client.scan_plan import ScanPlan, plan_scan
from rmq_ray.client.scan_stream import StreamSplitReader
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.model.message import Message
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
