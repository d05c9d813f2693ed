"""A slave whose disk broke a record gets it back from its master, on real ports and disks; where
the master has it broken, too, it stays and is skipped.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.client.scan.scan_plan import plan_scan
from rmq_ray.codec.record import decode_record
from rmq_ray.errors import RecordAwaited
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.reading.log_reader import GetResult
from tests.support.brokers.replicated import ReplicatedCluster
from tests.support.clients.bulk_reading import elsewhere, table_of
from tests.support.stores.small_store import flip, log_at
from tests.support.waiting import eventually

COUNT = 200
WANTED = [b"%d" % number * 50 for number in range(COUNT)]


def read(store: MessageStore, queue_id: int, offset: int) -> GetResult:
    """Of a record that a slave is asked for a reader waits a moment."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return store.get_messages("orders", queue_id, offset, 1_000, 1 << 24, None)
        except RecordAwaited:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def bodies(store: MessageStore) -> list[bytes]:
    """What a reader gets of all queues, sorted as they were sent."""
    found: list[bytes] = []
    for queue_id in range(4):
        offset, high = store.bounds("orders", queue_id)
        while offset < high:
            result = read(store, queue_id, offset)
            data, at = b"".join(bytes(part) for part in result.parts), 0
            for size in result.sizes.tolist():
                found.append(decode_record(data, at).body)
                at += size
            offset = result.next_offset
    return sorted(found, key=lambda body: int(body[: len(body) // 50]))


def filled(cluster: ReplicatedCluster, offset: int = 20) -> tuple[int, int]:
    """Messages on both; where one of them lies: (log offset, bytes)."""
    with Producer("p", discovery=cluster) as producer:
        for body in WANTED:
            producer.send("orders", body)
    cluster.caught_up()
    entry = cluster.slave_store().entries("orders", 1, offset, 1)[0]
    return int(entry["log_offset"]), int(entry["size"])


def broken(path: Path, place: tuple[int, int]) -> None:
    """One bit of the record's body."""
    file, position = log_at(path, place[0])
    flip(file, position + place[1] // 2)


def like_its_master(cluster: ReplicatedCluster) -> bool:
    cluster.caught_up()
    end, slave = cluster.store().end_offset, cluster.slave_store()
    same = (
        slave.opened.log.read(0, end) == cluster.store().opened.log.read(0, end)
        and slave.queues() == cluster.store().queues()
    )
    return same and bodies(slave) == WANTED and slave.status()["quarantined"] == 0


@pytest.mark.parametrize("offset", [20, 0])
def test_a_record_that_a_reader_finds_broken_comes_back_from_the_master(
    tmp_path: Path, offset: int
) -> None:
    """Also in the last 64 KiB of the log, which master and slave compare before anything else."""
    with ReplicatedCluster(tmp_path) as cluster:
        place = filled(cluster, offset)
        cluster.stop_slave()
        broken(cluster.slave_path(), place)
        cluster.start_slave()
        eventually(lambda: cluster.replica()["connected"])
        cluster.caught_up()
        if (
            offset == 0
        ):  # in front of what is compared: found by who reads it, mended in the next session
            assert (
                len(bodies(cluster.slave_store())) == COUNT - 1
                and cluster.slave_store().status()["quarantined"] == 1
            )
            cluster.stop_slave()
            cluster.start_slave()
        eventually(lambda: cluster.replica()["mended"] == 1)
        assert like_its_master(cluster)


def test_a_record_that_a_start_without_checkpoint_finds_broken_is_copied_again(
    tmp_path: Path,
) -> None:
    with ReplicatedCluster(tmp_path) as cluster:
        place = filled(cluster)
        cluster.stop_slave()
        broken(cluster.slave_path(), place)
        shutil.rmtree(cluster.slave_path() / "consumequeue")
        (cluster.slave_path() / "rmq_ray" / "checkpoint").unlink()
        cluster.start_slave()
        assert like_its_master(cluster)


def rotten_master(cluster: ReplicatedCluster, tmp_path: Path, offset: int) -> None:
    """A record of the running master's log breaks on its disk; the slave's copy is sound."""
    place = filled(cluster, offset)
    broken(tmp_path / "broker-a", place)
    cluster.store().opened.reader.forget()


@pytest.mark.parametrize("offset", [0, 20])
def test_a_reader_of_a_master_gets_a_record_that_broke_there_from_a_slave(
    tmp_path: Path, offset: int
) -> None:
    with ReplicatedCluster(tmp_path) as cluster:
        rotten_master(cluster, tmp_path, offset)
        got: list[bytes] = []
        with PullConsumer("g", discovery=cluster, start_from="first") as consumer:
            consumer.subscribe("orders")
            eventually(lambda: polled(consumer, got))
        assert sorted(got, key=lambda body: int(body[: len(body) // 50])) == WANTED
        eventually(lambda: cluster.replication()["mended"] == 1)
        assert cluster.store().status()["quarantined"] == 0


def polled(consumer: PullConsumer, got: list[bytes], wanted: int = COUNT) -> bool:
    got += [message.body for message in consumer.poll(100, timeout=0.2)]
    return len(got) >= wanted


@pytest.mark.parametrize("at", [15, 88 + len(b"81" * 50) + 1], ids=["queue", "topic"])
def test_a_record_that_names_another_place_in_every_copy_is_passed(tmp_path: Path, at: int) -> None:
    """Nobody can mend it; nobody waits for it for ever."""
    with ReplicatedCluster(tmp_path) as cluster:
        place = filled(cluster)
        for path in (tmp_path / "broker-a", cluster.slave_path()):
            file, position = log_at(path, place[0])
            flip(file, position + at)
        cluster.store().opened.reader.forget()
        got: list[bytes] = []
        with PullConsumer("g", discovery=cluster, start_from="first") as consumer:
            consumer.subscribe("orders")
            eventually(lambda: polled(consumer, got, COUNT - 1))
        assert len(set(got)) == len(got) == COUNT - 1 and set(got) < set(WANTED)
        assert cluster.store().status()["quarantined"] == 1


@pytest.mark.parametrize("beside_the_log", [False, True])
def test_a_bulk_read_of_a_master_gets_it_too(tmp_path: Path, beside_the_log: bool) -> None:
    """Who reads the files beside it asks the master, which asks its slave."""
    with ReplicatedCluster(tmp_path) as cluster:
        rotten_master(cluster, tmp_path, 20)
        plan = plan_scan(cluster, "orders", "earliest", "latest", 2)
        read = table_of(plan if beside_the_log else elsewhere(plan), ("body",))["body"].to_pylist()
        assert sorted(read, key=lambda body: int(body[: len(body) // 50])) == WANTED
        eventually(lambda: cluster.replication()["mended"] == 1)


def test_what_a_master_has_listed_is_mended_when_a_slave_joins(tmp_path: Path) -> None:
    """Also what it found in an earlier life, while nobody could be asked."""
    with ReplicatedCluster(tmp_path) as cluster:
        place = filled(cluster)
        cluster.stop_slave()
        broken(tmp_path / "broker-a", place)
        assert len(bodies(cluster.store())) == COUNT - 1, "nobody is asked, nobody waits"
        cluster.stop_master()
        cluster.start_master()
        assert cluster.store().status()["quarantined"] == 1
        cluster.start_slave()
        eventually(lambda: cluster.replication()["mended"] == 1)
        assert bodies(cluster.store()) == WANTED
        assert cluster.store().status()["quarantined"] == 0


def test_a_master_with_a_broken_record_in_what_is_compared_is_followed(tmp_path: Path) -> None:
    with ReplicatedCluster(tmp_path) as cluster:
        place = filled(cluster)
        cluster.stop_slave()
        broken(tmp_path / "broker-a", place)
        cluster.start_slave()
        eventually(lambda: cluster.replica()["connected"])
        assert len(bodies(cluster.slave_store())) == COUNT
        eventually(lambda: cluster.store().status()["quarantined"] == 0)
        assert bodies(cluster.store()) == WANTED


def test_what_the_master_has_broken_too_stays_and_keeps_nobody_from_following(
    tmp_path: Path,
) -> None:
    with ReplicatedCluster(tmp_path) as cluster:
        place = filled(cluster)
        cluster.stop_slave()
        for path in (cluster.slave_path(), tmp_path / "broker-a"):
            broken(path, place)
        cluster.start_slave()
        cluster.caught_up()
        assert len(bodies(cluster.slave_store())) == COUNT - 1
        cluster.stop_slave()
        cluster.start_slave()
        with Producer("p", discovery=cluster) as producer:
            producer.send("orders", b"%d" % COUNT * 50)
        cluster.caught_up()
        assert (
            cluster.replica()["mended"] == 0 and cluster.slave_store().status()["quarantined"] == 1
        )
        assert len(bodies(cluster.slave_store())) == COUNT
        assert (
            len(bodies(cluster.store())) == COUNT and cluster.store().status()["quarantined"] == 1
        )


def test_a_stretch_that_the_master_has_removed_keeps_nobody_from_following(tmp_path: Path) -> None:
    with ReplicatedCluster(tmp_path, segment_bytes=1 << 16) as cluster:
        with Producer("p", discovery=cluster) as producer:
            for _ in range(200):
                producer.send("orders", b"x" * 1_000)
            cluster.caught_up()
            entry = cluster.slave_store().entries("orders", 1, 2, 1)[0]
            cluster.slave_store().opened.quarantine.add(
                int(entry["log_offset"]), int(entry["size"]), "a reader found a wrong CRC"
            )
            cluster.stop_slave()
            cluster.store().opened.chain.remove_first()
            assert cluster.store().begin_offset > int(entry["log_offset"])
            cluster.start_slave()
            producer.send("orders", b"y" * 1_000)
        cluster.caught_up()
        assert (
            cluster.replica()["fault"] is None
            and cluster.slave_store().end_offset == cluster.store().end_offset
        )
