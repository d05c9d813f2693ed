"""A table and the retention of its topic's log, on real brokers: what is held back, what is let go,
and that what went is a gap and no silence.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rmq_ray.actors.discovery import StaticDiscovery
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.scan.scan_plan import ScanPlan
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.arrow.arrow_rows import Rows
from rmq_ray.model.ids import MessageQueue
from rmq_ray.spark.batches import Batches, Reading
from rmq_ray.table.archivist import Archivist
from rmq_ray.table.manifest import ManifestTable
from rmq_ray.table.reading import TablePiece, plan_union
from rmq_ray.table.registry import TableRegistry
from rmq_ray.table.rules import TableSpec
from rmq_ray.table.source import TopicSource
from rmq_ray.table.storage import Storage
from tests.support.brokers.live_cluster import CLUSTER, SECRET, LiveCluster
from tests.support.brokers.replicated import ReplicatedCluster

TOPIC = "kept"
BODY = 10_000


@pytest.fixture
def parts(tmp_path: Path) -> Any:
    """(cluster, source, folder) of a topic with two queues on one broker."""
    with LiveCluster(tmp_path / "store", reserved_hours=1) as cluster:
        admin = Admin(cluster)
        admin.create_topic(TOPIC, queues=2)
        admin.close()
        source = TopicSource(cluster, TOPIC)
        yield cluster, source, tmp_path / "table"
        source.close()
        assert pinned(cluster) == 0


def pinned(cluster: LiveCluster) -> int:
    return len(cluster.store().opened.retention.pins)


def send(cluster: LiveCluster, count: int) -> None:
    with Producer("p", discovery=cluster) as producer:
        for _ in range(count):
            producer.send(TOPIC, os.urandom(BODY))


def archivist(source: TopicSource, folder: Path, **settings: Any) -> Archivist:
    target = ManifestTable(Storage(str(folder)), TOPIC, os.urandom(4).hex())
    return Archivist(TableSpec(TOPIC, str(folder), **settings), source, target, SYSTEM_CLOCK)


def expire(cluster: LiveCluster) -> int:
    """Let retention take what it may; the log's smallest offset of queue 0."""
    store = cluster.store()
    store.flush()
    for file in (cluster.store_path() / "commitlog").iterdir():
        os.utime(file, (0, 0))

    async def clean() -> None:
        store.request_cleaning()
        store.clean(SYSTEM_CLOCK.now_ms())

    cluster.run(clean())
    return int(store.bounds(TOPIC, 0)[0])


def rows(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("day=*/*.parquet"))


def test_retention_waits_for_the_table_and_goes_on_when_it_has_the_rows(parts: Any) -> None:
    cluster, source, folder = parts
    send(cluster, 100)
    one = archivist(source, folder)
    assert not one.turn() and pinned(cluster) == 1 and one.hold.held_bytes > 90 * BODY
    assert expire(cluster) == 0, "nothing of it is committed yet"
    assert one.turn(force=True) and rows(folder) == 100
    assert pinned(cluster) == 1 and one.hold.held_bytes == 0
    assert expire(cluster) > 0
    send(cluster, 1)
    one.turn(force=True)
    assert rows(folder) == 101 and one.opened().gaps == ()


def test_a_table_that_lags_too_far_is_not_waited_for_and_its_gap_is_told(parts: Any) -> None:
    cluster, source, folder = parts
    one = archivist(source, folder, hold_bytes=10 * BODY)
    send(cluster, 10)
    one.turn(force=True)
    send(cluster, 100)
    one.hold.renew()
    assert not one.turn() and pinned(cluster) == 0
    assert one.hold.held_bytes > one.spec.hold_bytes and not one.hold.holding
    assert expire(cluster) > 5
    assert one.turn(), "a gap is told at once"
    gaps = one.opened().gaps
    assert {gap.reason for gap in gaps} == {"retention"}
    assert rows(folder) == 110 - sum(gap.next - gap.first for gap in gaps)


def test_each_copy_of_a_log_is_held_also_after_it_starts_again(tmp_path: Path) -> None:
    with ReplicatedCluster(tmp_path / "store", reserved_hours=1) as pair:
        admin = Admin(pair)
        admin.create_topic(TOPIC, queues=2)
        admin.close()
        send(pair, 100)
        pair.caught_up()
        pair.tables_synced()
        source = TopicSource(pair, TOPIC)
        one = archivist(source, tmp_path / "table")

        def pins() -> list[int]:
            stores = (pair.store(), pair.slave_store())
            return [len(store.opened.retention.pins) for store in stores]

        one.turn()
        assert pins() == [1, 1] and one.hold.held_bytes > 90 * BODY
        pair.stop_master()
        one.hold.renew()
        assert one.hold.held_bytes > 90 * BODY, "it is the same log still"
        pair.start_master()
        assert pins() == [0, 1]
        one.hold.renew()
        assert pins() == [1, 1] and expire(pair) == 0
        assert one.turn(force=True) and one.hold.held_bytes == 0 and pins() == [1, 1]
        assert expire(pair) > 0
        one.hold.close()
        assert pins() == [0, 0] and one.opened().gaps == ()
        source.close()


def test_who_does_not_know_how_far_the_table_is_holds_the_newest_of_the_log(parts: Any) -> None:
    cluster, source, _ = parts
    send(cluster, 100)
    assert 20 * BODY < source.hold(None, 40 * BODY) <= 40 * BODY and pinned(cluster) == 1
    assert 0 < expire(cluster) < 50
    assert source.hold(None, 100 * BODY) < 100 * BODY
    assert source.hold(None, 0) == 0


def test_what_lies_behind_a_cut_of_the_log_is_read_from_the_log_by_unions_and_streams(
    parts: Any,
) -> None:
    cluster, source, folder = parts
    send(cluster, 40)
    one = archivist(source, folder)
    one.turn(force=True)
    TableRegistry(cluster).keep(one.spec)
    queue = MessageQueue(TOPIC, "broker-a", 0)
    store, high = cluster.store(), one.opened().offsets[queue]
    cut = store.log_offset_of(TOPIC, 0, 5)

    async def lose() -> None:  # as a power loss would, in the books
        store.opened.epochs.begin(cut)

    cluster.run(lose())
    send(cluster, 10)

    def told(pieces: list[TablePiece], plan: ScanPlan) -> int:
        """How many rows; those of queue 0 behind the cut come from the log."""
        (piece,) = pieces
        assert ("broker-a", 0, 0, 5) in piece.ranges and high > 5
        first = min(split.start for split in plan.splits if split.queue == queue)
        assert first == 5
        return plan.rows + sum(behind - low for _, _, low, behind in piece.ranges)

    where = StaticDiscovery(cluster.lookup().name_servers, SECRET, CLUSTER)
    pieces, plan = plan_union(where, TOPIC, "earliest", "latest", 1)
    with plan:
        assert told(pieces, plan) == 50
    stream = Batches(None, where, Reading((TOPIC,), Rows(("body",)), source="table+log"))  # type: ignore[arg-type]
    position = stream.begin()
    end = stream.next(position)
    assert told(*stream.planned(position, end, 1)) == 50
    stream.commit(end)
    stream.close()
    TableRegistry(cluster).forget(TOPIC)
