"""Master and slave on real ports: copies, acknowledgements, what is seen when; each party stopped
and started.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.pop.simple_consumer import SimpleConsumer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.client.scan.scan_plan import plan_scan
from rmq_ray.config import (
    BrokerConfig,
    ClientAuth,
    ConsumerConfig,
    FlushMode,
    ReplicationMode,
    StoreConfig,
    TlsSettings,
)
from rmq_ray.errors import RmqError, SendUnconfirmed, SendUnknown
from rmq_ray.model.message import Message, SendStatus
from rmq_ray.protocol.scan.derived_frames import DerivedFrames
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import BINARY, Command
from rmq_ray.remoting.wire.records import pack_send
from tests.support.brokers.replicated import ReplicatedCluster
from tests.support.brokers.store_rig import make_frame
from tests.support.brokers.valve import Valve
from tests.support.certificates import Certificates
from tests.support.clients.bulk_reading import elsewhere, table_of
from tests.support.clients.collecting import Collector
from tests.support.waiting import eventually

SYNC = {"replication": ReplicationMode.SYNC_MASTER}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path) as cluster:
        yield cluster


def same_log(cluster: ReplicatedCluster, number: int = 1) -> bool:
    ours, theirs = cluster.store(), cluster.slave_store(number)
    end = ours.visible_offset
    segments = [segment.start for segment in theirs.opened.chain.segments() if segment.start < end]
    return all(
        theirs.opened.log.read(start, 1 << 18)[: end - start]
        == ours.opened.log.read(start, 1 << 18)[: end - start]
        for start in segments
    )


@pytest.mark.seed("S3-148")
def test_a_slave_fetches_progress_as_often_as_it_is_told_and_that_is_every_ten_seconds(
    tmp_path: Path,
) -> None:
    assert BrokerConfig(StoreConfig("/nowhere"), "broker-a").replica_sync_ms == 10_000
    with ReplicatedCluster(tmp_path, 1, {"replica_sync_ms": 1_000}) as cluster:
        eventually(lambda: cluster.replica()["tables_synced"] >= 1)
        begun_s, before = time.monotonic(), cluster.replica()["tables_synced"]
        eventually(lambda: cluster.replica()["tables_synced"] >= before + 3)
        assert time.monotonic() - begun_s > 1.9, "not more often"


def test_each_session_of_a_slave_begins_with_all_tables(tmp_path: Path) -> None:
    """However often it is cut off, that does not put off what it fetches."""
    with ReplicatedCluster(tmp_path, 1, {"replica_sync_ms": 3_600_000}) as cluster:
        for session in range(1, 4):
            assert eventually(lambda fetched=session: cluster.replica()["tables_synced"] == fetched)
            for peer in list(cluster.brokers[0]._listener.peers):
                cluster._loop.call_soon_threadsafe(peer.abort, "cut off")


def test_a_slave_gets_the_log_byte_for_byte_and_the_tables(pair: ReplicatedCluster) -> None:
    with Producer("p", discovery=pair) as producer:
        for number in range(60):
            producer.send("orders", b"%d" % number * 200, keys=[f"k{number}"])
        producer.send_batch([Message("other", b"b%d" % number) for number in range(500)])
    collector = Collector()
    with PushConsumer(
        "billing",
        listener=collector,
        subscriptions={"orders": "*"},
        discovery=pair,
        start_from="first",
    ):
        collector.wait_for(60)
    pair.caught_up()
    assert same_log(pair) and pair.slave_store().queues() == pair.store().queues()
    pair.tables_synced()
    ours, theirs = pair.brokers[0]._core, pair.slaves[1]._core
    assert ours is not None and theirs is not None
    assert (
        theirs.tables.topics.snapshot() == ours.tables.topics.snapshot()
        and theirs.tables.groups.snapshot() == ours.tables.groups.snapshot()
    )
    eventually(lambda: theirs.tables.offsets.tables() == ours.tables.offsets.tables() != {})
    assert pair.slave_store().query("orders", "k7", 5, 0, 1 << 60), (
        "keys are indexed on a slave, too"
    )


def test_a_slave_has_nothing_of_a_topic_that_was_deleted_and_made_again(
    pair: ReplicatedCluster,
) -> None:
    admin = Admin(pair)
    admin.create_topic("orders", queues=1)
    with Producer("p", discovery=pair) as producer:
        for _ in range(3):
            producer.send("orders", b"old", keys=["k"])
        pair.caught_up()
        assert len(pair.slave_store().query("orders", "k", 5, 0, 1 << 60)) == 3
        admin.delete_topic("orders")
        admin.create_topic("orders", queues=1)
        producer.send("orders", b"new")

    def is_told() -> bool:
        lives = pair.slave_store().lives.snapshot()
        return lives == pair.store().lives.snapshot() != {}

    pair.caught_up()
    eventually(is_told)
    for _ in range(2):
        assert pair.slave_store().query("orders", "k", 5, 0, 1 << 60) == []
        eventually(lambda: pair.slave_store().bounds("orders", 0) == (3, 4))
        pair.stop_slave()
        pair.start_slave()
        eventually(is_told)
    admin.close()


def test_a_slave_follows_a_master_that_takes_tls_only_and_one_without_it_does_not(
    tmp_path: Path,
) -> None:
    files = Certificates(tmp_path / "pem")
    certificate, key = files.client_pair
    tls = files.settings(client_auth=ClientAuth.REQUIRE)
    tls = tls.but(client_certificate=certificate, client_key=key)
    with ReplicatedCluster(tmp_path, 1, SYNC | {"slave_timeout_ms": 20_000}, tls) as cluster:
        cluster.in_sync()
        with Producer("p", discovery=cluster, send_timeout_ms=20_000) as producer:
            sent = [producer.send("orders", b"%d" % number * 2_000) for number in range(40)]
        assert {result.status for result in sent} == {SendStatus.SEND_OK}
        cluster.caught_up()
        assert same_log(cluster) and cluster.replica()["connected"]
        cluster.tables_synced()
        cluster.stop_slave()
        master = cluster.brokers[0].status()["address"]
        cluster.start_slave(tls=TlsSettings(), name_servers=(), master=master)
        eventually(lambda: "TLS" in str(cluster.replica()["fault"]))
        assert not cluster.replica()["connected"]


def test_a_slave_that_was_away_or_lost_its_disk_catches_up_while_the_master_serves(
    pair: ReplicatedCluster,
) -> None:
    with Producer("p", discovery=pair, send_timeout_ms=60_000) as producer:
        producer.send("orders", b"first")
        pair.caught_up()
        pair.stop_slave()
        for number in range(300):
            producer.send("orders", b"%d" % number * 500)
        pair.start_slave()
        pair.caught_up()
        assert same_log(pair)
        pair.stop_slave()
        shutil.rmtree(pair.slave_path())
        stop = threading.Event()
        sender = threading.Thread(
            target=lambda: [
                producer.send("orders", b"meanwhile") for _ in range(200) if not stop.is_set()
            ]
        )
        sender.start()
        pair.start_slave()
        sender.join()
        stop.set()
        pair.caught_up()
    assert same_log(pair) and pair.slave_store().queues() == pair.store().queues()


def test_a_master_that_restarts_goes_on_being_followed(pair: ReplicatedCluster) -> None:
    with Producer("p", discovery=pair) as producer:
        producer.send("orders", b"before")
    pair.caught_up()
    pair.stop_master()
    assert pair.replica()["connected"] is False or eventually(
        lambda: not pair.replica()["connected"]
    )
    pair.start_master()
    with Producer("p", discovery=pair) as producer:
        producer.send("orders", b"after")
    pair.caught_up()
    assert same_log(pair) and pair.slave_store().epochs == pair.store().epochs


@pytest.mark.parametrize("flush", list(FlushMode))
def test_a_sync_master_acknowledges_what_its_slaves_have(tmp_path: Path, flush: FlushMode) -> None:
    with ReplicatedCluster(
        tmp_path, 2, SYNC | {"copies_min": 3, "slave_timeout_ms": 5_000}, flush=flush
    ) as cluster:
        cluster.in_sync()
        with Producer("p", discovery=cluster) as producer:
            for number in range(30):
                result = producer.send("orders", b"%d" % number)
                assert result.status is SendStatus.SEND_OK
                for slave in (1, 2):
                    store = cluster.slave_store(slave)
                    assert (
                        store.flushed_offset if flush is FlushMode.SYNC_FLUSH else store.end_offset
                    ) >= cluster.store().visible_offset


@pytest.mark.seed("S3-135")
def test_without_slaves_a_sync_master_says_so_and_shows_nothing_until_one_is_back(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def told(words: str) -> int:
        return sum(words in record.getMessage() for record in caplog.records)

    with (
        ReplicatedCluster(tmp_path, 1, SYNC) as cluster,
        Producer("p", discovery=cluster) as producer,
    ):
        cluster.in_sync()
        assert producer.send("orders", b"one").status is SendStatus.SEND_OK
        cluster.stop_slave()
        eventually(lambda: not cluster.replication()["enough"])
        collector = Collector()
        with PushConsumer(
            "g",
            listener=collector,
            subscriptions={"orders": "*"},
            discovery=cluster,
            start_from="first",
        ):
            collector.wait_for(1)
            with pytest.raises(SendUnconfirmed, match="SLAVE_NOT_AVAILABLE"):
                producer.send("orders", b"two")
            eventually(lambda: told("acknowledged, not delivered: no slave in sync") == 1)
            assert not _within(0.3, lambda: len(collector.bodies) > 1), "visible means replicated"
            cluster.start_slave()
            assert sorted(collector.wait_for(2)) == [b"one", b"two"]
            eventually(lambda: told("acknowledges and delivers again") == 1)
        cluster.in_sync()
        assert producer.send("orders", b"three").status is SendStatus.SEND_OK
        assert told("not delivered") == told("delivers again") == 1


@pytest.mark.parametrize("reader", ["pushes", "pops", "scans"])
def test_a_restarted_sync_master_shows_nothing_that_its_slaves_have_not_confirmed(
    tmp_path: Path, reader: str
) -> None:
    """Neither by a pull, nor by a pop or a bulk read; all of it once a slave has it."""
    with ReplicatedCluster(tmp_path, 1, SYNC) as cluster:
        cluster.in_sync()
        with Producer("p", discovery=cluster) as producer:
            producer.send("orders", b"one")
            cluster.stop_slave()
            eventually(lambda: not cluster.replication()["enough"])
            with pytest.raises(SendUnconfirmed):
                producer.send("orders", b"two")
            cluster.stop_master()
            cluster.start_master()
            with Reading(cluster, reader) as reading:
                assert not _within(3.0, lambda: reading.bodies), "no slave has confirmed anything"
                cluster.start_slave()
                eventually(lambda: len(reading.bodies) >= 2)
                assert sorted(reading.bodies) == [b"one", b"two"]


def test_a_repeat_is_acknowledged_by_a_restarted_sync_master_once_a_slave_has_what_it_repeats(
    tmp_path: Path,
) -> None:
    rows = pa.table({"body": [b"one", b"two"]})
    with ReplicatedCluster(tmp_path, 1, SYNC) as cluster:
        cluster.in_sync()
        with Producer("p", discovery=cluster) as producer:
            (first,) = producer.send_arrow("orders", rows)

            def send() -> object:
                place = DerivedFrames("job/1", 0, [first.queue]).place
                return producer.send_arrow("orders", rows, place=place)

            cluster.stop_slave()
            eventually(lambda: not cluster.replication()["enough"])
            with pytest.raises(SendUnconfirmed):
                send()
            cluster.stop_master()
            cluster.start_master()
            with pytest.raises(SendUnconfirmed):
                send()
            cluster.start_slave()
            cluster.in_sync()
            assert send()
            queue = first.queue
            assert cluster.store().bounds("orders", queue.queue_id)[1] == 4, "stored once"


class Reading:
    """Somebody who reads the topic from its beginning, again and again; ``bodies``: what it got."""

    def __init__(self, cluster: ReplicatedCluster, kind: str) -> None:
        self._stop = threading.Event()
        self._cluster = cluster
        self.bodies: list[bytes] = []
        run = {"pushes": self._pushes, "pops": self._pops, "scans": self._scans}[kind]
        self._thread = threading.Thread(target=run)

    def __enter__(self) -> Reading:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join(20)

    def _pushes(self) -> None:
        collector = Collector()
        with PushConsumer(
            "g",
            listener=collector,
            subscriptions={"orders": "*"},
            discovery=self._cluster,
            start_from="first",
        ):
            while not self._stop.wait(0.05):
                self.bodies = list(collector.bodies)

    def _pops(self) -> None:
        with SimpleConsumer("orders", "s", discovery=self._cluster, start_from="first") as consumer:
            while not self._stop.is_set():
                with contextlib.suppress(RmqError):
                    received = consumer.receive(10, wait=0.2)
                    self.bodies += [message.body for message in received]
                    consumer.ack_all(received)

    def _scans(self) -> None:
        while not self._stop.wait(0.05):
            with contextlib.suppress(RmqError):
                plan = elsewhere(plan_scan(self._cluster, "orders", "earliest", "latest", 1))
                self.bodies = table_of(plan, ("body",))["body"].to_pylist()


def test_with_copies_min_1_a_master_goes_on_alone_and_waits_for_its_slave_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def told(words: str) -> int:
        return sum(words in record.getMessage() for record in caplog.records)

    collector = Collector()
    with (
        ReplicatedCluster(tmp_path, 1, SYNC | {"copies_min": 1}) as cluster,
        Producer("p", discovery=cluster) as producer,
        PushConsumer(
            "g",
            listener=collector,
            subscriptions={"orders": "*"},
            discovery=cluster,
            start_from="first",
        ),
    ):
        cluster.in_sync()
        producer.send("orders", b"one")
        cluster.stop_slave()
        sent = 1
        assert producer.send("orders", b"alone").status is SendStatus.SEND_OK
        collector.wait_for(2)
        eventually(lambda: told("goes on alone (copies_min=1)") == 1)
        assert cluster.replication()["alone"]
        cluster.start_slave()
        while not cluster.replication()["slaves"].get(1, {}).get("in_sync"):
            assert producer.send("orders", b"meanwhile").status is SendStatus.SEND_OK
            sent += 1
        assert not cluster.replication()["alone"]
        producer.send("orders", b"last")
        confirmed = cluster.replication()["confirmed"]
        assert cluster.slave_store().written_offset >= confirmed >= cluster.store().visible_offset
        collector.wait_for(sent + 2)
        eventually(lambda: told("acknowledges and delivers again with its slaves") == 1)


def test_a_slave_that_hangs_costs_a_timeout_and_then_its_place_in_the_set(tmp_path: Path) -> None:
    with (
        ReplicatedCluster(tmp_path, 0, SYNC | {"slave_timeout_ms": 400}) as cluster,
        Valve(cluster) as valve,
        Producer("p", discovery=cluster, raise_on_status=False) as producer,
    ):
        cluster.start_slave(1, master=valve.address)
        cluster.in_sync(1)
        eventually(lambda: producer.send("orders", b"one").status is SendStatus.SEND_OK)
        valve.shut()
        assert producer.send("orders", b"two").status is SendStatus.FLUSH_SLAVE_TIMEOUT
        eventually(lambda: not cluster.replication()["enough"])
        assert producer.send("orders", b"three").status is SendStatus.SLAVE_NOT_AVAILABLE
        slave = cluster.replication()["slaves"].get(1)
        assert slave is None or slave["lag_bytes"] > 0
        valve.open()
        eventually(lambda: producer.send("orders", b"x").status is SendStatus.SEND_OK)
        cluster.caught_up()
        assert same_log(cluster)


def test_a_master_that_stops_acknowledges_nothing_that_its_slaves_lack(tmp_path: Path) -> None:
    with (
        ReplicatedCluster(tmp_path, 0, SYNC | {"in_sync_lag_ms": 60_000}) as cluster,
        Valve(cluster) as valve,
        Producer("p", discovery=cluster) as producer,
    ):
        cluster.start_slave(1, master=valve.address)
        cluster.in_sync(1)
        producer.send("orders", b"one")
        valve.shut()
        found = producer.send_async("orders", b"two")
        eventually(lambda: cluster.store().end_offset > cluster.store().visible_offset)
        cluster.stop_master()
        assert isinstance(found.exception(5), SendUnknown)


def test_with_two_slaves_one_that_hangs_holds_up_nobody_for_long(tmp_path: Path) -> None:
    settings = SYNC | {"in_sync_lag_ms": 1_500, "slave_timeout_ms": 20_000}
    with (
        ReplicatedCluster(tmp_path, 1, settings) as cluster,
        Valve(cluster) as valve,
        Producer("p", discovery=cluster, send_timeout_ms=20_000) as producer,
    ):
        cluster.start_slave(2, master=valve.address)
        cluster.in_sync(2)
        valve.shut()
        assert producer.send("orders", b"one").status is SendStatus.SEND_OK, (
            "once the slave that hangs left the set"
        )
        assert [
            number for number, slave in cluster.replication()["slaves"].items() if slave["in_sync"]
        ] == [1]


def test_a_foreign_log_is_refused_by_both_sides_and_left_alone(tmp_path: Path) -> None:
    with ReplicatedCluster(tmp_path / "other") as other:
        with Producer("p", discovery=other) as producer:
            producer.send("orders", b"theirs")
        other.caught_up()
        other.stop_slave()
        shutil.copytree(other.slave_path(), tmp_path / "ours" / "broker-a-slave-1")
    with ReplicatedCluster(tmp_path / "ours", 0) as cluster:
        with Producer("p", discovery=cluster) as producer:
            producer.send("orders", b"ours")
        cluster.start_slave()
        eventually(lambda: "empty directory" in str(cluster.replica()["fault"]))
        assert cluster.replica()["sessions"] == 0
        record = cluster.slave_store().record_at(0)
        assert record is not None and b"theirs" in record


@pytest.mark.seed("S3-136", "S3-149", "S3-150", "S3-134")
def test_a_consumer_goes_on_from_the_slave_without_repeats_and_tells_the_returning_master(
    pair: ReplicatedCluster,
) -> None:
    collector = Collector()
    with Producer("p", discovery=pair) as producer:
        for number in range(40):
            producer.send("orders", b"%d" % number)
    config = ConsumerConfig("g", offset_persist_ms=200, offset_persist_first_ms=200)
    with PushConsumer(
        "g",
        listener=collector,
        subscriptions={"orders": "*"},
        discovery=pair,
        start_from="first",
        config=config,
    ) as consumer:
        collector.wait_for(40)
        pair.caught_up()
        pair.tables_synced()
        with Producer("p", discovery=pair) as producer:
            for number in range(40, 50):
                producer.send("orders", b"%d" % number)
        pair.caught_up()
        pair.stop_master()
        collector.wait_for(50)
        eventually(lambda: consumer.stats()["lag"] == 0)
        pair.start_master()
        consumer._engine.client.routes.refresh("orders")  # what happens every 30 s
        with Producer("p", discovery=pair) as producer:
            producer.send("orders", b"50")
        collector.wait_for(51)
        assert sorted(collector.bodies, key=int) == [b"%d" % number for number in range(51)], (
            "each once"
        )
        core = pair.brokers[0]._core
        assert core is not None
        eventually(lambda: sum(core.tables.offsets.tables()["orders", "g"].values()) == 51)


@pytest.mark.seed("S3-151")
def test_a_consumer_that_starts_while_the_master_is_away_begins_where_the_slave_knows(
    pair: ReplicatedCluster,
) -> None:
    with Producer("p", discovery=pair) as producer:
        for number in range(20):
            producer.send("orders", b"%d" % number)
    first = Collector()
    with PushConsumer(
        "g", listener=first, subscriptions={"orders": "*"}, discovery=pair, start_from="first"
    ):
        first.wait_for(20)
    pair.caught_up()
    pair.tables_synced()
    pair.stop_master()
    again = Collector()
    with PushConsumer(
        "g", listener=again, subscriptions={"orders": "*"}, discovery=pair, start_from="first"
    ):
        assert not _within(1.0, lambda: again.bodies != []), (
            "what was told to the master before is known to the slave"
        )


def test_a_master_that_does_not_answer_is_left_for_its_slave_until_it_does(tmp_path: Path) -> None:
    with ReplicatedCluster(tmp_path, 1) as cluster, Valve(cluster) as valve:
        with Producer("p", discovery=cluster) as producer:
            producer.send("orders", b"one")
        cluster.caught_up()
        collector = Collector()
        with PushConsumer(
            "g",
            listener=collector,
            subscriptions={"orders": "*"},
            discovery=valve.leading_to(cluster, "orders"),
            start_from="first",
        ) as consumer:
            collector.wait_for(1)
            valve.shut(break_connections=True)
            with Producer(
                "p", discovery=cluster
            ) as producer:  # its own connections lead to the master directly
                producer.send("orders", b"two")
            assert collector.wait_for(2, 15)[1] == b"two"
            valve.open()
            with Producer("p", discovery=cluster) as producer:
                producer.send("orders", b"three")
            collector.wait_for(3)
            assert sorted(collector.bodies) == [b"one", b"three", b"two"]
            eventually(lambda: not consumer._engine.client.routes._avoided)


def test_a_slave_refuses_writes_and_names_the_master(pair: ReplicatedCluster) -> None:
    with Producer("p", discovery=pair) as producer:
        producer.send("orders", b"x")
        address = pair.slaves[1].address
        assert address is not None
        pair.tables_synced()
        for code in (
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            RequestCode.LOCK_BATCH_MQ,
            RequestCode.UPDATE_CONSUMER_OFFSET,
        ):
            answer = producer._core.instance.invoke(address, Command(code, fields={}), 3_000)
            assert answer.code == 16 and "slave" in (answer.remark or "")
        records, sizes = make_frame([b"y"], topic="orders")
        answer = producer._core.instance.invoke(
            address,
            Command(RequestCode.SEND_RECORDS, body=pack_send(records, sizes), serialize=BINARY),
            3_000,
        )
        assert answer.code == 16 and "slave" in (answer.remark or "")
        assert pair.slave_store().end_offset <= pair.store().end_offset


def _within(seconds: float, check: Callable[[], bool]) -> bool:
    try:
        eventually(check, seconds)
    except AssertionError:
        return False
    return True
