"""Replicas under a controller: promoted, deposed, fenced, with producers and consumers on them;
real ports and disks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.pop.simple_consumer import SimpleConsumer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.config import ReplicationMode
from rmq_ray.errors import AdminError, ConnectFailed, SendError, SendUnconfirmed, StoreFailed
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import SendStatus
from rmq_ray.model.replica_roles import Role
from rmq_ray.protocol.transaction import LocalTransactionState
from rmq_ray.remoting.request_table import Fence, Party, rows_of
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.broker.broker import Broker
from rmq_ray.server.slave.replica import ReplicaTables
from tests.support.brokers.elected_cluster import ElectedCluster
from tests.support.clients.collecting import Collector
from tests.support.faults.stopwatch import Stopwatch
from tests.support.waiting import eventually

SYNC = {"replication": ReplicationMode.SYNC_MASTER, "slave_timeout_ms": 2_000}
ASYNC = {"copies_min": 2}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ElectedCluster]:
    with ElectedCluster(tmp_path, 2, SYNC) as cluster:
        yield cluster


def test_a_first_election_makes_one_master_whom_the_other_follows(pair: ElectedCluster) -> None:
    pair.settled()
    assert [pair.report(number).role for number in (0, 1)] == [
        Role.MASTER,
        Role.SLAVE,
    ] and pair.report(0).master_epoch == 1
    with Producer("p", discovery=pair) as producer:
        assert producer.send("orders", b"one").status is SendStatus.SEND_OK
    pair.settled()
    assert pair.replica_store(1).end_offset == pair.replica_store(0).end_offset > 0


def test_the_slave_of_a_killed_master_is_master_and_has_everything_acknowledged(
    pair: ElectedCluster,
) -> None:
    pair.settled()
    collector = Collector()
    with (
        Producer("p", discovery=pair) as producer,
        PushConsumer(
            "g",
            listener=collector,
            subscriptions={"orders": "*"},
            discovery=pair,
            start_from="first",
        ),
    ):
        for number in range(20):
            assert producer.send("orders", b"%d" % number).status is SendStatus.SEND_OK
        collector.wait_for(20)
        pair.kill(0)
        assert pair.elect() == 1
        with pytest.raises(
            SendUnconfirmed, match=r"SLAVE_NOT_AVAILABLE .* once a slave is in sync"
        ):
            producer.send("orders", b"20")
        pair.start(0)
        pair.settled()
        assert producer.send("orders", b"21").status is SendStatus.SEND_OK
        collector.wait_for(22)
        assert {int(body) for body in collector.bodies} == set(range(22))
    eventually(lambda: pair.report(0).role is Role.SLAVE and pair.report(0).log_epoch == 2)


def test_what_waits_is_told_alike_by_the_slave_that_was_promoted(pair: ElectedCluster) -> None:
    pair.settled()
    never = timedelta(hours=1)
    with Producer("p", discovery=pair) as producer, closing(Admin(pair)) as admin:
        for number in range(3):
            producer.send("orders", b"%d" % number, delay=never)
        producer.send("orders", b"at a level", delay_level=18)

        def waiting() -> dict[str, int] | None:
            try:
                return admin.waiting().get("delayed")
            except AdminError:  # while the master changes
                return None

        eventually(lambda: waiting() == {"orders": 4})
        pair.settled()
        pair.kill(0)
        assert pair.elect() == 1
        eventually(lambda: waiting() == {"orders": 4})
        pair.start(0)
        pair.settled()
        producer.send("orders", b"later", delay=never)
        eventually(lambda: waiting() == {"orders": 5})


def test_producers_and_consumers_follow_a_promoted_slave_at_once(tmp_path: Path) -> None:
    with ElectedCluster(tmp_path, 3, SYNC) as cluster:
        cluster.settled()
        collector = Collector()
        acknowledged: list[tuple[float, bytes]] = []
        stop, watch = threading.Event(), Stopwatch()
        with (
            Producer(
                "p", discovery=cluster, send_timeout_ms=15_000, raise_on_status=False
            ) as producer,
            PushConsumer(
                "g",
                listener=collector,
                subscriptions={"orders": "*"},
                discovery=cluster,
                start_from="first",
            ),
        ):

            def send() -> None:
                number = 0
                while not stop.is_set():
                    if producer.send("orders", b"%d" % number).status is SendStatus.SEND_OK:
                        acknowledged.append((watch.lived_s, b"%d" % number))
                    number += 1

            sender = threading.Thread(target=send)
            sender.start()
            eventually(lambda: len(acknowledged) > 50)
            cluster.kill(0)
            killed = watch.lived_s
            cluster.elect()
            promoted = watch.lived_s
            eventually(lambda: acknowledged[-1][0] > promoted, 15)
            stop.set()
            sender.join(20)
            outage = next(at for at, _ in acknowledged if at > promoted) - promoted
            eventually(lambda: {body for _, body in acknowledged} <= set(collector.bodies))
        assert promoted > killed and outage < 1.0, "0.05 s on an idle machine"


def hang(broker: Broker) -> None:
    """It answers nobody any more, and closes nothing."""
    broker.handle = lambda command, peer: None


def test_clients_leave_a_master_that_hangs_once_another_one_is_master(tmp_path: Path) -> None:
    """It keeps its port and its connections, and answers nothing: only the routes tell that it was
    replaced.
    """
    with ElectedCluster(tmp_path, 2, {"copies_min": 2}) as cluster:
        cluster.settled()
        collector = Collector()
        hanging = cluster.replicas[0]
        with Producer("p", discovery=cluster, send_timeout_ms=60_000) as producer:
            producer.send("orders", b"before")
            with PushConsumer(
                "g",
                listener=collector,
                subscriptions={"orders": "*"},
                discovery=cluster,
                start_from="first",
            ):
                collector.wait_for(1)
                cluster.settled()
                del cluster.replicas[0]
                hang(hanging)
                sent = producer.send_async("orders", b"meanwhile")
                assert cluster.elect() == 1
                assert sent.result(15).status is SendStatus.SEND_OK
                collector.wait_for(2, 15)
                assert sorted(collector.bodies) == [b"before", b"meanwhile"]
        cluster.replicas[0] = hanging
        cluster.kill(0)


def test_a_returning_master_gives_up_what_nobody_else_had_and_follows(tmp_path: Path) -> None:
    with (
        ElectedCluster(tmp_path, 2, ASYNC) as cluster,
        Producer("p", discovery=cluster, send_timeout_ms=10_000) as producer,
    ):
        for number in range(10):
            producer.send("orders", b"%d" % number)
        cluster.settled()
        cluster.run(cluster.replicas[1].fence(1))  # no later epoch: nothing happens
        cluster.listening = False  # so that the slave can be elected although it is behind
        cluster.run(cluster.replicas[1].stop_following())
        producer.send("orders", b"lost with its master")
        lost = cluster.replica_store(0).end_offset
        cluster.kill(0)
        cluster.listening = True
        assert cluster.elect() == 1
        shared = cluster.replica_store(1).epochs[-1][1]
        assert shared < lost
        producer.send("orders", b"after")
        cluster.start(0)
        cluster.settled()
        ours, theirs = cluster.replica_store(0), cluster.replica_store(1)
        assert ours.opened.log.read(0, 1 << 18) == theirs.opened.log.read(
            0, 1 << 18
        ) and ours.epochs == theirs.epochs == ((1, 0), (2, shared))
        assert ours.queues() == theirs.queues()
        status = cluster.replicas[0].status()["replica"]
        assert status["removed_bytes"] == lost - shared


def test_a_master_without_the_lease_writes_nothing_and_a_fenced_one_is_deposed(
    tmp_path: Path,
) -> None:
    with (
        ElectedCluster(tmp_path, 2, ASYNC) as cluster,
        Producer("p", discovery=cluster, send_timeout_ms=400) as producer,
    ):
        cluster.settled()
        producer.send("orders", b"one", timeout=20)
        cluster.listening = False
        cluster.kill(1)
        eventually(lambda: not cluster.replicas[0].core.replication.leads)  # type: ignore[union-attr]
        end = cluster.replica_store(0).end_offset
        with pytest.raises(SendError):
            producer.send("orders", b"two")
        assert cluster.replica_store(0).end_offset == end, "refused before anything was written"
        cluster.listening = True
        eventually(lambda: cluster.told.sync_state_set == (0,))
        assert producer.send("orders", b"three", timeout=20).status is SendStatus.SEND_OK
        report = cluster.run(cluster.replicas[0].fence(7))
        assert report.role in (Role.WAITING, Role.SLAVE)
        eventually(lambda: cluster.report(0).role is Role.SLAVE)
        late = replace(cluster.told, version=99)
        assert (
            cluster.run(cluster.replicas[0].attend(late)).role is Role.SLAVE
            and cluster.replicas[0]._leadership.assignment.version < 99
        )  # type: ignore[union-attr]


def test_a_replica_is_no_master_twice_in_one_epoch(tmp_path: Path) -> None:
    with ElectedCluster(tmp_path, 1) as cluster:
        assert cluster.report(0).role is Role.MASTER
        cluster.kill(0)
        cluster.start(0)  # and is told the assignment of the life before
        assert not _within(0.3, lambda: cluster.report(0).role is not Role.SLAVE)
        assert cluster.elect() == 0 and cluster.report(0).master_epoch == 2


def test_a_master_whose_store_fails_is_deposed_and_another_one_goes_on(tmp_path: Path) -> None:
    with (
        ElectedCluster(tmp_path, 3, SYNC) as cluster,
        Producer("p", discovery=cluster, send_timeout_ms=15_000) as producer,
    ):
        cluster.settled()
        assert producer.send("orders", b"one").status is SendStatus.SEND_OK
        core = cluster.replicas[0].core
        assert core is not None

        async def fail() -> None:
            core.keeper.failed(StoreFailed("the disk said so"))

        cluster.run(fail())
        eventually(lambda: cluster.report(0).role is Role.SLAVE)
        assert cluster.elect(wanted=2) == 2
        assert producer.send("orders", b"two").status is SendStatus.SEND_OK
        cluster.settled()
        assert cluster.report(0).log_epoch == 2


def test_orderly_holders_of_an_older_epoch_commit_nothing_in_the_next(tmp_path: Path) -> None:
    with (
        ElectedCluster(tmp_path, 2, ASYNC) as cluster,
        Producer("p", discovery=cluster, send_timeout_ms=10_000) as producer,
    ):
        producer.send("orders", b"one")
        cluster.settled()
        instance = producer._core.instance
        queue = MessageQueue("orders", "broker-a", 0)

        def lock(epoch: int) -> dict[MessageQueue, int]:
            body = bodies.encode_lock("billing", "c1", [queue], [epoch])
            answer = instance.invoke(
                cluster.replicas[cluster.master].address,
                Command(RequestCode.LOCK_BATCH_MQ, body=body),
                3_000,
            )
            assert answer.code == 0, answer.remark
            return bodies.decode_locked_epochs(answer.body)

        first = lock(0)[queue]
        cluster.kill(0)
        assert cluster.elect() == 1
        assert lock(first) == {}, "it is over"
        assert lock(0)[queue] > first > 1 << 44


def test_a_transaction_that_is_open_over_a_fail_over_is_committed_at_the_next_master(
    tmp_path: Path,
) -> None:
    with (
        ElectedCluster(tmp_path, 2, ASYNC) as cluster,
        Producer("p", discovery=cluster, send_timeout_ms=15_000) as producer,
    ):
        cluster.settled()
        collector = Collector()
        with PushConsumer(
            "g",
            listener=collector,
            subscriptions={"orders": "*"},
            discovery=cluster,
            start_from="first",
        ):
            with producer.transaction(
                lambda _message: LocalTransactionState.UNKNOWN
            ) as transaction:
                transaction.send("orders", b"half at the old master")
                cluster.settled()
                eventually(
                    lambda: "orders" in cluster.replicas[1].core.tables.topics
                )  # topics are those of a second ago
                cluster.listening = False
                late = threading.Thread(target=lambda: (time.sleep(1.0), cluster.elect(wanted=1)))
                cluster.run(cluster.replicas[0].fence(cluster.told.master_epoch + 1))
                late.start()  # until then the deposed master is asked to commit what it may not
            late.join()
            collector.wait_for(1)
            assert list(collector.bodies) == [b"half at the old master"]


@pytest.mark.parametrize(
    "code",
    [
        code
        for code, row in rows_of(Party.BROKER).items()
        if row.fence in (Fence.LEADS, Fence.HANDS_OUT)
    ],
)
def test_a_follower_asks_every_writer_to_come_again(pair: ElectedCluster, code: int) -> None:
    pair.settled()
    with Producer("p", discovery=pair) as producer:
        answer = producer._core.instance.invoke(
            pair.replicas[1].address, Command(RequestCode(code)), 3_000
        )
    assert answer.code == ResponseCode.STILL_RECOVERING


def test_a_topic_that_was_made_a_moment_ago_is_known_to_the_next_master(tmp_path: Path) -> None:
    with ElectedCluster(
        tmp_path, 2, ASYNC | {"replica_sync_ms": 60_000, "auto_create_topics": False}
    ) as cluster:
        cluster.settled()
        admin = Admin(discovery=cluster)
        admin.create_topic("made-by-hand", queues=3)
        admin.close()
        slave = cluster.replicas[1].core
        assert slave is not None
        eventually(lambda: "made-by-hand" in slave.tables.topics)
        cluster.settled()
        cluster.kill(0)
        assert cluster.elect() == 1
        with Producer("p", discovery=cluster, send_timeout_ms=10_000) as producer:
            assert producer.send("made-by-hand", b"two").status is SendStatus.SEND_OK


def test_messages_whose_topic_the_slave_was_never_told_of_come_from_the_next_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ElectedCluster(tmp_path, 2, SYNC) as cluster:
        cluster.settled()

        async def fails(_tables: ReplicaTables, _connection: object) -> None:
            raise ConnectFailed("the master is about to die")

        monkeypatch.setattr(ReplicaTables, "sync", fails)
        with Producer("p", discovery=cluster) as producer:
            for number in range(20):
                found = producer.send("made-by-a-send", b"%d" % number)
                assert found.status is SendStatus.SEND_OK
        cluster.kill(0)
        assert cluster.elect() == 1
        collector = Collector()
        with PushConsumer(
            "g",
            listener=collector,
            subscriptions={"made-by-a-send": "*"},
            discovery=cluster,
            start_from="first",
        ):
            assert sorted(map(int, collector.wait_for(20))) == list(range(20))


def test_a_producer_goes_on_in_queues_that_the_next_master_was_never_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ElectedCluster(tmp_path, 2, ASYNC) as cluster:
        cluster.settled()

        async def fails(_tables: ReplicaTables, _connection: object) -> None:
            raise ConnectFailed("the master is about to die")

        monkeypatch.setattr(ReplicaTables, "sync", fails)
        with Producer("p", discovery=cluster, send_timeout_ms=10_000) as producer:
            first = producer.send("made-by-a-send", b"one", selector=lambda queues, *_: queues[0])
            ahead = MessageQueue("made-by-a-send", first.queue.broker_name, 3)
            assert first.queue.queue_id == 0
            cluster.settled()
            cluster.kill(0)
            assert cluster.elect() == 1
            assert producer.send("made-by-a-send", b"two", queue=ahead).queue == ahead


def test_what_waits_for_its_time_and_what_was_popped_comes_from_the_next_master(
    tmp_path: Path,
) -> None:
    with ElectedCluster(tmp_path, 3, SYNC) as cluster:
        cluster.settled()
        late = Collector()
        with Producer("p", discovery=cluster, send_timeout_ms=10_000) as producer:
            for number in range(6):
                assert producer.send("tasks", b"%d" % number).status is SendStatus.SEND_OK
            popped = SimpleConsumer("tasks", "workers", discovery=cluster)
            popped.start()
            taken = popped.receive(6, wait=5.0)
            while len(taken) < 6:
                taken += popped.receive(6, wait=5.0)
            acknowledged = {message.body for message in taken[:3]}
            for message in taken[:3]:
                message.ack()
            producer.send("late", b"at once")
            with PushConsumer(
                "g",
                listener=late,
                subscriptions={"late": "*"},
                discovery=cluster,
                start_from="first",
            ):
                late.wait_for(1)
                began = time.time()
                for number in range(4):
                    producer.send("late", b"%d" % number, delay=timedelta(seconds=3))
                producer.send("late", b"by level", delay_level=1)
                cluster.kill(0)
                assert cluster.elect() != 0
                eventually(
                    lambda: set(late.bodies) == {b"at once", b"0", b"1", b"2", b"3", b"by level"}
                )
                assert time.time() - began >= 3
            again = {message.body for message in taken[3:]}
            got: set[bytes] = set()
            eventually(
                lambda: got.update(m.body for m in popped.receive(6, wait=1.0)) or again <= got
            )  # type: ignore[func-returns-value]
            assert got <= again | acknowledged
            popped.close()


def _within(seconds: float, check: Callable[[], bool]) -> bool:
    try:
        eventually(check, seconds)
    except AssertionError:
        return False
    return True


def test_a_promoted_slave_knows_what_groups_committed_a_moment_ago(tmp_path: Path) -> None:
    """Though it fetches everything once an hour only."""
    settings = {**SYNC, "replica_sync_ms": 3_600_000}
    queue = MessageQueue("orders", "broker-a", 0)

    def offset_at(replica: int) -> int | None:
        core = cluster.replicas[replica].core
        return None if core is None else core.tables.offsets.query("orders", "g", 0)

    with (
        ElectedCluster(tmp_path, 2, settings) as cluster,
        Producer("p", discovery=cluster) as producer,
        PullConsumer("g", discovery=cluster, auto_commit=False) as consumer,
    ):
        cluster.settled()
        for number in range(10):
            producer.send("orders", b"%d" % number, queue=queue)
        consumer.assign([queue])
        for offset in (4, 7):
            eventually(lambda offset=offset: consumer.commit({queue: offset}))
            eventually(lambda offset=offset: offset_at(1) == offset)
        cluster.settled()
        cluster.kill(0)
        assert cluster.elect() == 1
        assert offset_at(1) == 7
