"""Bulk reads where a broker has slaves: planned at the master, read on at a slave while it is
away.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.scan.scan_copies import group_positions
from rmq_ray.client.scan.scan_plan import ScanOptions, ScanPlan, plan_scan
from rmq_ray.client.scan.stream_split_reader import StreamSplitReader
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import ClusterError, ConnectFailed, GroupNotFound, RemotingError
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import Message
from rmq_ray.protocol.scan.scan_positions import LikeGroup, Where
from tests.support.brokers.replicated import ReplicatedCluster
from tests.support.faults.stopwatch import Stopwatch


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path) as cluster:
        yield cluster


def streamed(plan: ScanPlan) -> int:
    """How many rows the scan stream gives, not beside the log."""
    reader = StreamSplitReader(plan.credentials, SYSTEM_CLOCK, 10_000)
    try:
        return sum(len(sizes) for split in plan.splits for _, sizes in reader.read(split, 1 << 20))
    finally:
        reader.close()


def test_a_plan_names_every_copy_and_a_dead_masters_splits_are_read_at_the_slave(
    pair: ReplicatedCluster,
) -> None:
    with Producer("p", discovery=pair) as producer:
        producer.send_batch([Message("orders", b"%d" % number) for number in range(1_000)])
        producer.send("orders", b"last")
    pair.caught_up()
    plan = plan_scan(pair, "orders", "earliest", "latest", 4)
    assert {len(split.addresses) for split in plan.splits} == {2} and len(
        {split.addresses for split in plan.splits}
    ) == 1
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
    watch = Stopwatch()
    with plan_scan(pair, "orders", "earliest", "latest", 4, ("broker-a",), at_once) as plan:
        assert watch.lived_s < 3.0
        assert (
            {split.addresses[0] for split in plan.splits}
            == {slave}
            == {address for address, _ in plan.pins}
        )
        assert streamed(plan) == plan.rows == 1_000
    assert plan_scan(pair, "orders", LikeGroup("daily"), "latest", 4, (), at_once).rows == 995
    assert (
        plan_scan(pair, "orders", 0, {queue: 7}, 4, (), at_once).rows
        == 1_000 - pair.slave_store().bounds("orders", queue.queue_id)[1] + 7
    )


def test_a_slave_that_lacks_the_rows_that_are_named_is_not_asked_for_a_plan(
    pair: ReplicatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer("p", discovery=pair) as producer:
        producer.send_batch([Message("orders", b"%d" % number) for number in range(8)])
    pair.caught_up()
    queue = plan_scan(pair, "orders", "earliest", "latest", 1).splits[0].queue
    high = pair.store().bounds("orders", queue.queue_id)[1]
    unreachable(pair)
    monkeypatch.setattr("rmq_ray.client.scan.scan_copies.PATIENCE_MS", 500)
    with pytest.raises(RemotingError):
        plan_scan(
            pair, "orders", "earliest", {queue: high + 1}, 1, (), ScanOptions(master_alone_ms=0)
        )
    with pytest.raises(ConnectFailed):
        plan_scan(pair, "orders", "earliest", "latest", 1)
    assert (
        plan_scan(
            pair, "orders", "earliest", {queue: high}, 1, (), ScanOptions(master_alone_ms=0)
        ).rows
        == 8
    )


AT_ONCE = ScanOptions(master_alone_ms=0)


def address_of_slave(pair: ReplicatedCluster) -> str:
    return str(Address.parse(pair.slaves[1].status()["address"]))


def lagging(pair: ReplicatedCluster) -> list[MessageQueue]:
    """Topics orders and bills of a queue each, 5 messages a queue that the slave has, 5 more that
    it never gets.
    """
    queues = [MessageQueue(topic, "broker-a", 0) for topic in ("bills", "orders")]
    admin = Admin(pair)
    for queue in queues:
        admin.create_topic(queue.topic, queues=1)
    admin.close()
    with Producer("p", discovery=pair) as producer:
        for half in range(2):
            for queue in queues:
                producer.send_batch(
                    [Message(queue.topic, b"%d" % number) for number in range(5)], queue=queue
                )
            if half == 0:
                pair.caught_up()
                pair.tables_synced()
                pair.stop_slave()
    pair.start_slave(master="127.0.0.1:9")
    return queues


def commit(pair: ReplicatedCluster, group: str, queue: MessageQueue, offset: int) -> None:
    admin = Admin(pair)
    admin._commit(group, queue, offset)
    admin.close()


def test_where_a_time_or_a_group_is_that_ends_a_read_is_not_told_by_a_slave(
    pair: ReplicatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = lagging(pair)[1]
    commit(pair, "daily", queue, 9)
    SYSTEM_CLOCK.sleep_ms(5)
    ends: list[tuple[Where, int]] = [(SYSTEM_CLOCK.now_ms(), 10), (LikeGroup("daily"), 9)]
    for end, rows in ends:
        assert plan_scan(pair, "orders", "earliest", end, 1, (), AT_ONCE).rows == rows
    unreachable(pair)
    monkeypatch.setattr("rmq_ray.client.scan.scan_copies.PATIENCE_MS", 300)
    for end, _ in ends:
        with pytest.raises(
            ClusterError,
            match=(
                "the master of broker-a does not answer .* or end the read at 'latest' or at "
                "offsets"
            ),
        ):
            plan_scan(pair, "orders", "earliest", end, 1, (), AT_ONCE)
    assert plan_scan(pair, "orders", "earliest", "latest", 1, (), AT_ONCE).rows == 5


def test_several_topics_are_planned_at_one_copy_which_has_what_any_of_them_needs(
    pair: ReplicatedCluster,
) -> None:
    bills, orders = lagging(pair)
    with plan_scan(pair, ["bills", "orders"], "earliest", {bills: 10}, 1, (), AT_ONCE) as plan:
        assert {address for address, _ in plan.pins}.isdisjoint({address_of_slave(pair)})
        assert {split.queue: split.end for split in plan.splits} == {bills: 10, orders: 10}
        assert streamed(plan) == 20


def test_a_silent_master_is_waited_for_once_however_many_topics_are_read(
    pair: ReplicatedCluster,
) -> None:
    names = [f"orders-{number}" for number in range(8)]
    admin = Admin(pair)
    for name in names:
        admin.create_topic(name, queues=1)
    admin.close()
    with Producer("p", discovery=pair) as producer:
        for name in names:
            producer.send(name, b"one")
    pair.caught_up()
    pair.tables_synced()
    unreachable(pair)
    watch = Stopwatch()
    plan = plan_scan(
        pair,
        "orders-.*",
        "earliest",
        "latest",
        1,
        (),
        ScanOptions(pattern=True, master_alone_ms=1_000),
    )
    assert plan.rows == 8 and {address for address, _ in plan.pins} == {address_of_slave(pair)}
    assert watch.passed_s >= 1.0 and watch.lived_s < 4


def test_a_group_that_a_slave_does_not_know_yet_is_asked_for_at_its_master(
    pair: ReplicatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = lagging(pair)[1]
    commit(pair, "young", queue, 3)
    at_slave = {"broker-a": Address.parse(address_of_slave(pair))}
    instance = ClientInstance.get_or_create(pair)
    instance.start()
    try:
        instance.routes.find_subscribe("orders")
        assert group_positions(instance, "young", at_slave, [queue]) == {queue: 3}
        assert group_positions(instance, "misspelt", at_slave, [queue]) == {queue: None}
    finally:
        instance.release()
    with pytest.raises(GroupNotFound):
        plan_scan(pair, "orders", LikeGroup("misspelt"), "latest", 1, (), AT_ONCE)
    unreachable(pair)
    monkeypatch.setattr("rmq_ray.client.scan.scan_copies.PATIENCE_MS", 300)
    with pytest.raises(
        ClusterError, match="group 'young' is not known at .* because it is new there"
    ):
        plan_scan(pair, "orders", LikeGroup("young"), "latest", 1, (), AT_ONCE)


def test_a_slave_that_gets_the_group_meanwhile_tells_it(pair: ReplicatedCluster) -> None:
    lagging(pair)
    unreachable(pair)
    core = pair.slaves[1]._core
    assert core is not None
    synced = Timer(0.3, core.tables.offsets.load, ({("orders", "young"): {0: 3}},))
    synced.start()
    assert plan_scan(pair, "orders", LikeGroup("young"), "latest", 1, (), AT_ONCE).rows == 2
    synced.join(5)
