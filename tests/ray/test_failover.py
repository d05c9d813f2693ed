"""A master dies, hangs or loses its disk: another replica is master, producers and consumers go on,
and nothing acknowledged is lost. Copies are stopped and started by hand.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmq_ray as rmq
from tests.support.brokers.failing_over import (
    BROKER,
    Numbered,
    check_all_came,
    complete,
    controller_pid,
    election,
    pid_of,
    replaced,
    settled,
    store_of,
    without_its_disk,
)
from tests.support.clients.collecting import Collector
from tests.support.outcomes import judging
from tests.support.waiting import eventually

SMALL = {"segment_bytes": 16 << 20}


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rmq.Cluster]:
    """A master and two slaves, SYNC_MASTER: without one of them two copies are left, which an
    acknowledgement needs. Each test takes whoever is master.
    """
    name = f"trio{uuid.uuid4().hex[:6]}"
    cluster = rmq.start(
        name,
        store_path=str(tmp_path_factory.mktemp("store")),
        replicas=2,
        replication="sync",
        store_settings=SMALL,
    )
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rmq.Cluster]:
    """The same, ASYNC_MASTER, and nobody is promoted but by hand."""
    cluster = start_by_hand(f"hand{uuid.uuid4().hex[:6]}", tmp_path_factory.mktemp("store"))
    yield cluster
    cluster.stop()


def start_by_hand(name: str, home: Path) -> rmq.Cluster:
    return rmq.start(
        name,
        store_path=str(home),
        replicas=1,
        store_settings=SMALL,
        failover_settings={"automatic": False},
    )


def consumer(mq: rmq.Cluster, topic: str, collector: Collector) -> rmq.PushConsumer:
    mq.admin.create_topic(topic, queues=2)
    return rmq.PushConsumer(
        f"{topic}-group",
        listener=collector,
        subscriptions={topic: "*"},
        start_from="first",
        cluster=mq.name,
    )


def test_the_first_replica_is_master_at_first_and_the_status_says_so(trio: rmq.Cluster) -> None:
    found = settled(trio)
    assert (found["master"], found["sync_state_set"], found["why"]) == (0, [0, 1, 2], "")
    rows = {row["replica"]: row for row in trio.replicas()}
    assert (rows[0]["role"], rows[1]["role"], rows[1]["in_sync"]) == ("master", "slave", True)
    assert not trio.weak_brokers()


def test_after_kill_9_the_same_replica_is_master_in_another_epoch_and_nothing_is_lost(
    trio: rmq.Cluster,
) -> None:
    before = settled(trio)
    collector = Collector()
    with consumer(trio, "killed", collector), Numbered(trio, "killed") as sender:
        os.kill(pid_of(trio, before["master"]), signal.SIGKILL)
        sender.goes_on()
        after = election(trio)
        check_all_came(sender, collector)
    assert after["master_epoch"] > before["master_epoch"]
    assert not sender.failed


@pytest.mark.seed("S3-135", "S3-136")
def test_a_master_that_does_not_come_back_is_replaced_and_follows_when_it_does(
    trio: rmq.Cluster,
) -> None:
    old = settled(trio)["master"]
    collector = Collector()
    with consumer(trio, "replaced", collector), Numbered(trio, "replaced") as sender:
        with without_its_disk(trio, old):
            replaced(trio, old)
            sender.goes_on()
            assert sender.outage_s() < 15
        found = complete(trio)
        check_all_came(sender, collector)
    assert found["master"] != old
    assert not sender.failed
    assert settled(trio)["master"] == found["master"]


def test_a_hanging_master_is_replaced_and_acknowledges_nothing_when_it_wakes_up(
    trio: rmq.Cluster,
) -> None:
    old = settled(trio)["master"]
    pid = pid_of(trio, old)
    collector = Collector()
    with consumer(trio, "zombie", collector), Numbered(trio, "zombie") as sender:
        os.kill(pid, signal.SIGSTOP)
        try:
            replaced(trio, old)
        finally:
            _wake(pid)
        sender.goes_on()
        assert complete(trio)["master"] != old
        check_all_came(sender, collector)
    assert settled(trio)["master"] != old


def test_a_controller_that_dies_in_the_middle_of_an_election_goes_on_with_it(
    trio: rmq.Cluster,
) -> None:
    old = settled(trio)["master"]
    with Numbered(trio, "replaced") as sender, without_its_disk(trio, old):
        eventually(lambda: election(trio)["master"] != old, every_s=0.005)
        os.kill(controller_pid(trio), signal.SIGKILL)
        replaced(trio, old)
        sender.goes_on()
    assert settled(trio)["master"] != old


def test_a_copy_that_others_need_is_only_stopped_with_force_and_up_starts_what_is_stopped(
    trio: rmq.Cluster,
) -> None:
    found = settled(trio)
    slaves = [replica for replica in (0, 1, 2) if replica != found["master"]]
    pid = pid_of(trio, slaves[0])
    trio.stop_broker(BROKER, slaves[0])
    assert trio.stop_broker(BROKER, slaves[0])["was"] == "stopped"
    eventually(lambda: len(election(trio)["sync_state_set"]) == 2, 20)
    for replica in (slaves[1], found["master"]):
        with pytest.raises(
            rmq.PromotionRefused,
            match=r"1 copies of broker-a are in sync, 2 are needed.*with force",
        ):
            trio.stop_broker(BROKER, replica)
    assert [row["state"] for row in trio.replicas()].count("stopped") == 1
    again = trio.start_broker(BROKER, slaves[0])
    assert (
        again["was"] == "stopped"
        and pid_of(trio, slaves[0]) != pid
        and settled(trio)["master"] == found["master"]
    )
    assert trio.start_broker(BROKER, slaves[0])["was"] == "running"


def test_what_is_stopped_stays_stopped_until_it_is_started(trio: rmq.Cluster) -> None:
    master = settled(trio)["master"]
    slave = (master + 1) % 3
    trio.stop_broker(BROKER, slave)
    time.sleep(3.5)  # the supervisor makes what is gone anew within a second, Ray in one more
    assert trio.replicas()[slave]["state"] == "stopped"
    for wrong, said in (
        ((BROKER, None), "say which one is meant"),
        (("broker-z", 0), "there is no broker 'broker-z' here"),
        ((BROKER, 7), "not 7"),
    ):
        with pytest.raises(rmq.ConfigError, match=said):
            trio.start_broker(*wrong)
    trio.start_broker(BROKER, slave)
    settled(trio)


def test_by_hand_another_replica_is_master_and_the_old_one_follows_without_loss(
    by_hand: rmq.Cluster,
) -> None:
    """ASYNC_MASTER: the old master gives its slave all that it has acknowledged before it goes."""
    old = settled(by_hand)
    collector = Collector()
    with consumer(by_hand, "handed", collector), Numbered(by_hand, "handed") as sender:
        told = by_hand.promote(BROKER)
        sender.goes_on()
        check_all_came(sender, collector)
    assert (told["master"], told["master_epoch"] > old["master_epoch"]) == (1 - old["master"], True)
    assert settled(by_hand)["master"] == 1 - old["master"]
    with pytest.raises(rmq.PromotionRefused, match="master already"):
        by_hand.promote(BROKER, 1 - old["master"])


def test_without_automatic_failover_a_dead_master_is_waited_for_until_somebody_decides(
    by_hand: rmq.Cluster,
) -> None:
    old = settled(by_hand)["master"]
    with without_its_disk(by_hand, old):
        eventually(lambda: "promote another by hand" in election(by_hand)["why"])
        assert election(by_hand)["master"] == old
        assert by_hand.promote(BROKER)["master"] == 1 - old
        with rmq.Producer(cluster=by_hand.name, send_timeout_ms=20_000) as producer:
            assert producer.send("handed", b"1000000").status is rmq.SendStatus.SEND_OK
    assert settled(by_hand)["master"] == 1 - old


def test_a_cluster_that_was_stopped_starts_with_the_same_master_and_all_messages(
    by_hand: rmq.Cluster,
) -> None:
    settled(by_hand)
    home = store_of(by_hand, 0).parent
    told = by_hand.promote(BROKER)
    with rmq.Producer(cluster=by_hand.name, send_timeout_ms=20_000) as producer:
        by_hand.admin.create_topic("kept", queues=1)
        producer.send("kept", b"x")
    settled(by_hand)
    by_hand.stop()
    again = start_by_hand(by_hand.name, home)
    found = election(again)
    assert (found["master"], found["master_epoch"] > told["master_epoch"]) == (told["master"], True)
    collector = Collector()
    with rmq.PushConsumer(
        "kept-group",
        listener=collector,
        subscriptions={"kept": "*"},
        start_from="first",
        cluster=again.name,
    ):
        assert collector.wait_for(1) == [b"x"]


def test_a_ledger_that_another_controller_has_keeps_a_cluster_from_starting(tmp_path: Path) -> None:
    (tmp_path / "controller").mkdir()
    (tmp_path / "controller" / "cluster.json").write_text('{"cluster": "other", "format": 1}')
    with pytest.raises(rmq.StoreError, match="ledger of cluster 'other'"):
        rmq.start("foreign", store_path=str(tmp_path), replicas=1, store_settings=SMALL)


def _wake(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return  # the supervisor was faster


def test_with_one_slave_a_lone_master_tells_everybody_that_nothing_is_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"duo{uuid.uuid4().hex[:6]}"
    cluster = rmq.start(
        name, store_path=str(tmp_path), replicas=1, replication="sync", store_settings=SMALL
    )
    collector = Collector()
    try:
        assert "broker-a has replication='sync', one slave" in caplog.text
        with (
            rmq.Producer(cluster=name, send_timeout_ms=30_000) as producer,
            rmq.PushConsumer(
                "g",
                listener=collector,
                subscriptions={"orders": "*"},
                cluster=name,
                start_from="first",
            ),
        ):
            producer.send("orders", b"one")
            collector.wait_for(1, 30)
            old = int(settled(cluster)["master"])
            cluster.stop_broker("broker-a", replica=old, force=True)
            with pytest.raises(rmq.SendUnconfirmed, match="SLAVE_NOT_AVAILABLE"):
                producer.send("orders", b"two")
            weak = "not acknowledged, not delivered: no slave in sync"
            assert election(cluster)["master"] == 1 - old
            eventually(lambda: weak in cluster.weak_brokers().get("broker-a", ""), 30)
            with judging():
                assert set(collector.bodies) == {b"one"}
            cluster.start_broker("broker-a", replica=old)
            collector.wait_for(2, 60)
            eventually(lambda: not cluster.weak_brokers(), 30)
            assert producer.send("orders", b"three").status is rmq.SendStatus.SEND_OK
    finally:
        cluster.stop()


def test_with_copies_min_1_the_only_copy_goes_on_and_the_next_failover_loses_nothing(
    tmp_path: Path,
) -> None:
    name = f"solo{uuid.uuid4().hex[:6]}"
    cluster = rmq.start(
        name,
        store_path=str(tmp_path),
        replicas=1,
        replication="sync",
        broker_settings={"copies_min": 1},
        store_settings=SMALL,
    )
    collector = Collector()
    try:
        with (
            rmq.Producer(cluster=name, send_timeout_ms=30_000) as producer,
            rmq.PushConsumer(
                "g",
                listener=collector,
                subscriptions={"orders": "*"},
                cluster=name,
                start_from="first",
            ),
        ):
            producer.send("orders", b"one")
            old = int(settled(cluster)["master"])
            cluster.stop_broker("broker-a", replica=old, force=True)
            assert producer.send("orders", b"two").status is rmq.SendStatus.SEND_OK
            collector.wait_for(2, 60)
            assert "none to take over" in cluster.weak_brokers()["broker-a"]
            cluster.start_broker("broker-a", replica=old)
            eventually(lambda: not cluster.weak_brokers(), 60)
            cluster.promote("broker-a", old)
            eventually(lambda: election(cluster)["master"] == old, 30)
            assert producer.send("orders", b"three").status is rmq.SendStatus.SEND_OK
            collector.wait_for(3, 60)
            assert sorted(set(collector.bodies)) == [b"one", b"three", b"two"]
    finally:
        cluster.stop()
