"""A table of a topic on several brokers, over connections: all rows once, also when a broker is
killed and comes back, and read back with the log behind it.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.clock import SYSTEM_CLOCK, ManualClock
from rmq_ray.codec.arrow.arrow_rows import Rows
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import Discovery
from rmq_ray.protocol.scan.scan_positions import Where
from rmq_ray.table.archivist import Archivist
from rmq_ray.table.manifest import ManifestTable
from rmq_ray.table.reading import read_union
from rmq_ray.table.registry import TableRegistry
from rmq_ray.table.rules import TableSpec
from rmq_ray.table.source import TopicSource
from rmq_ray.table.storage import Storage
from tests.support.brokers.live_cluster import LiveCluster, LiveProcess

TOPIC = "spread"


def archivist(cluster: Discovery, folder: Path, writer: str) -> tuple[Archivist, TopicSource]:
    source = TopicSource(cluster, TOPIC)
    target = ManifestTable(Storage(str(folder)), TOPIC, writer)
    return Archivist(TableSpec(TOPIC, str(folder)), source, target, SYSTEM_CLOCK), source


def bodies(folder: Path) -> list[int]:
    files = folder.glob("day=*/*.parquet")
    return sorted(int(body) for file in files for body in pq.read_table(file)["body"].to_pylist())


def test_rows_of_every_broker_are_in_the_table_and_read_back_with_the_log(tmp_path: Path) -> None:
    with LiveCluster(tmp_path / "store", brokers=2) as cluster:
        admin = Admin(cluster)
        admin.create_topic(TOPIC, queues=2)
        one, source = archivist(cluster, tmp_path / "t", "w")
        with Producer("p", discovery=cluster) as producer:
            for n in range(100):
                queue = MessageQueue(TOPIC, ("broker-a", "broker-b")[n % 2], n // 2 % 2)
                producer.send(TOPIC, b"%d" % n, queue=queue)
            assert one.turn(force=True) and bodies(tmp_path / "t") == list(range(100))
            for n in range(100, 130):
                producer.send(TOPIC, b"%d" % n)
        TableRegistry(cluster).keep(one.spec)
        assert TableRegistry(cluster).all() == {TOPIC: one.spec}
        found = read_union(
            cluster, TOPIC, "earliest", "latest", Rows(("body",)), "table+log"
        ).column("body")
        assert sorted(int(body) for body in found.to_pylist()) == list(range(130))
        TableRegistry(cluster).forget(TOPIC)
        assert TableRegistry(cluster).all() == {}
        source.close()
        admin.close()


def test_reads_whose_ends_meet_have_each_row_once_also_where_a_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LiveCluster(tmp_path / "store") as cluster:
        admin = Admin(cluster)
        admin.create_topic(TOPIC, queues=1)
        one, source = archivist(cluster, tmp_path / "t", "w")
        TableRegistry(cluster).keep(one.spec)
        clock = ManualClock(SYSTEM_CLOCK.now_ms())
        noon = clock.now_ms()

        def send(minutes: int, first: int) -> None:
            clock.jump_ms(noon + minutes * 60_000 - clock.now_ms())
            for n in range(first, first + 10):
                producer.send(TOPIC, b"%d" % n)

        def read(start: Where, end: Where) -> list[int]:
            found = read_union(cluster, TOPIC, start, end, Rows(("body",)), "table+log")
            return sorted(int(body) for body in found.column("body").to_pylist())

        with Producer("p", discovery=cluster) as producer:
            monkeypatch.setattr(cluster.store()._appender, "_clock", clock)
            send(0, 0)
            one.turn(force=True)
            send(60, 10), send(1, 20), send(90, 30)
        half_past = noon + 30 * 60_000
        before = read("earliest", half_past)
        assert sorted(before + read(half_past, "latest")) == list(range(40))
        one.turn(force=True)
        assert read("earliest", half_past) == before == list(range(10))
        assert sorted(before + read(half_past, "latest")) == list(range(40))
        source.close()
        admin.close()


def test_a_broker_that_is_killed_costs_the_table_nothing(tmp_path: Path) -> None:
    lives = [LiveProcess(tmp_path / "store")]
    try:
        with Producer("p", discovery=lives[0], send_timeout_ms=30_000, retries=8) as producer:
            for n in range(50):
                producer.send(TOPIC, b"%d" % n)
            one, source = archivist(lives[0], tmp_path / "t", "w")
            one.turn(force=True)
            lives[0].kill()
            lives.append(LiveProcess(tmp_path / "store"))
            for n in range(50, 100):
                producer.send(TOPIC, b"%d" % n)
            assert one.turn(force=True)
            assert bodies(tmp_path / "t") == list(range(100)) and one.opened().gaps == ()
            source.close()
    finally:
        for live in lives:
            live.kill()
