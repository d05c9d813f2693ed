"""A broker leaves and comes back while others work: drained, stopped, upgraded one at a time, the
whole cluster restarted. No send fails, nothing is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import FlushMode
from rmq_ray.errors import AdminError, BrokerBusy, NoRoute
from rmq_ray.model.message import SendStatus
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.server.broker.broker import Broker
from tests.support.brokers.live_cluster import CLUSTER, SECRET, LiveCluster
from tests.support.clients.collecting import Collector
from tests.support.waiting import eventually


class Sending:
    """A producer that sends one message after another in a thread; what became of each."""

    def __init__(self, producer: Producer, topic: str = "orders") -> None:
        self.sent: list[tuple[str, int, int]] = []
        self.failed: list[BaseException] = []
        self._producer, self._topic = producer, topic
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                result = self._producer.send(self._topic, b"%d" % len(self.sent))
                assert result.status is SendStatus.SEND_OK
                self.sent.append(
                    (result.queue.broker_name, result.queue.queue_id, result.queue_offset)
                )
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                self.failed.append(error)

    def go_on(self, count: int = 20) -> None:
        """Until that many more were acknowledged."""
        target = len(self.sent) + count
        eventually(lambda: len(self.sent) >= target or bool(self.failed), 30)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._end.set()
            self._thread.join(20)
        assert self.failed == []


def restart(cluster: LiveCluster, number: int) -> None:
    """Stop a broker gracefully and start its successor on the same disk: what an upgrade does."""
    old = cluster.brokers[number]
    cluster.run(old.stop())
    cluster.brokers[number] = successor = Broker(
        old._config, SYSTEM_CLOCK, Credentials(CLUSTER, "broker", SECRET)
    )
    cluster.run(successor.start(create=False))
    assert cluster.run(successor.registered(10))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, brokers=2) as cluster:
        Admin(cluster).create_topic("orders", queues=2)
        yield cluster


def test_a_drained_broker_gets_no_message_no_send_fails_and_what_it_has_is_delivered(
    pair: LiveCluster,
) -> None:
    admin, collector = Admin(pair), Collector()
    with (
        Producer("web", discovery=pair) as producer,
        PushConsumer(
            "g",
            listener=collector,
            subscriptions={"orders": "*"},
            discovery=pair,
            start_from="first",
        ),
    ):
        with (sending := Sending(producer)).running():
            sending.go_on()
            assert admin.drain_broker("broker-a") == {
                "broker": "broker-a",
                "address": str(pair.brokers[0].address),
                "draining": True,
                "was": False,
            }
            assert (
                admin.broker_status("broker-a")["draining"]
                and not admin.broker_status("broker-b")["draining"]
            )
            held = pair.store(0).end_offset
            sending.go_on(100)
            assert pair.store(0).end_offset == held
            assert {
                queue.broker_name: queue.permission for queue in admin.route("orders").queues
            } == {"broker-a": 4, "broker-b": 6}
            assert admin.undrain_broker("broker-a")["was"]
            assert {queue.permission for queue in admin.route("orders").queues} == {6}
            core = producer._core
            assert core is not None
            core.instance.refresh_route_soon("orders")  # else within 30 s
            eventually(lambda: pair.store(0).end_offset > held)
            sending.go_on()
        collector.wait_for(len(sending.sent))
    assert set(sending.sent) == set(collector.places) and {name for name, _, _ in sending.sent} == {
        "broker-a",
        "broker-b",
    }
    admin.close()


def test_a_topics_own_permission_survives_drain_and_new_topics_are_shown_without_write(
    tmp_path: Path,
) -> None:
    with LiveCluster(tmp_path) as cluster:
        admin = Admin(cluster)
        admin.create_topic("read-only", queues=1, permission=4)
        admin.drain_broker("broker-a")
        with pytest.raises(AdminError, match="does not show topic"):
            Admin(cluster, timeout_ms=2_000).create_topic("new", queues=1)
        assert admin.route("new").queues[0].permission == 4
        admin.undrain_broker("broker-a")
        assert (
            admin.route("new").queues[0].permission == 6
            and admin.route("read-only").queues[0].permission == 4
        )
        with pytest.raises(AdminError, match="there are broker-a"):
            admin.drain_broker("broker-z")
        admin.close()


def test_a_topic_of_a_drained_broker_alone_is_shown_to_have_nowhere_to_write_until_the_drain_ends(
    tmp_path: Path,
) -> None:
    with (
        LiveCluster(tmp_path) as cluster,
        Producer("web", discovery=cluster, send_timeout_ms=1_500) as producer,
    ):
        admin = Admin(cluster)
        producer.send("orders", b"0", timeout=20)
        admin.drain_broker("broker-a")
        with pytest.raises((BrokerBusy, NoRoute), match=r"drained|no broker takes messages"):
            producer.send("orders", b"refused")
        with pytest.raises((BrokerBusy, NoRoute)):
            producer.send("topic-that-a-drained-broker-must-not-create", b"refused")
        assert "topic-that-a-drained-broker-must-not-create" not in admin.topics()
        admin.undrain_broker("broker-a")
        assert producer.send("orders", b"1", timeout=20).queue_offset >= 0
        admin.close()


def test_a_send_waits_for_the_restart_of_the_only_broker(tmp_path: Path) -> None:
    with (
        LiveCluster(tmp_path) as cluster,
        Producer("web", discovery=cluster, send_timeout_ms=10_000) as producer,
        (sending := Sending(producer)).running(),
    ):
        for _ in range(2):
            sending.go_on()
            restart(cluster, 0)
        sending.go_on()
        assert len(set(sending.sent)) == len(sending.sent)


@pytest.mark.parametrize("flush", list(FlushMode))
def test_brokers_are_upgraded_one_at_a_time_and_no_send_fails(
    tmp_path: Path, flush: FlushMode
) -> None:
    collector = Collector()
    with LiveCluster(tmp_path, brokers=2, flush=flush) as cluster:
        Admin(cluster).create_topic("orders", queues=2)
        with (
            Producer("web", discovery=cluster) as producer,
            PushConsumer(
                "g",
                listener=collector,
                subscriptions={"orders": "*"},
                discovery=cluster,
                start_from="first",
            ),
        ):
            with (sending := Sending(producer)).running():
                for number in (0, 1):
                    sending.go_on()
                    restart(cluster, number)
                    sending.go_on()
            eventually(lambda: set(sending.sent) <= set(collector.places), 10)
    assert len(set(sending.sent)) == len(sending.sent)


def test_a_whole_cluster_is_stopped_and_started_again_on_its_disks(tmp_path: Path) -> None:
    places: list[tuple[str, int, int]] = []
    for life in range(3):
        with LiveCluster(tmp_path, brokers=2) as cluster:
            assert [broker.status()["draining"] for broker in cluster.brokers] == [False, False]
            with Producer("web", discovery=cluster) as producer:
                results = [
                    producer.send("orders", b"%d %d" % (life, number)) for number in range(20)
                ]
            places += [
                (result.queue.broker_name, result.queue.queue_id, result.queue_offset)
                for result in results
            ]
            assert all(
                broker._core is not None and broker._core.keeper.last_recovery.clean
                for broker in cluster.brokers
            )
    collector = Collector()
    with (
        LiveCluster(tmp_path, brokers=2) as cluster,
        PushConsumer(
            "g",
            listener=collector,
            subscriptions={"orders": "*"},
            discovery=cluster,
            start_from="first",
        ),
    ):
        collector.wait_for(60)
    assert sorted(collector.places) == sorted(places)


def test_a_stop_acknowledges_what_waits_for_the_disk_and_hands_held_pulls_back(
    tmp_path: Path,
) -> None:
    with (
        LiveCluster(tmp_path, flush=FlushMode.SYNC_FLUSH) as cluster,
        Producer("web", discovery=cluster, send_timeout_ms=2_500) as producer,
    ):
        producer.send("orders", b"0", timeout=20)
        broker = cluster.brokers[0]
        waiting = [1]
        core = broker._core
        assert core is not None
        real = core.acks.__class__.__len__
        seen: list[bool] = []

        class Waiting(core.acks.__class__):  # type: ignore[name-defined, misc]
            def __len__(self) -> int:
                seen.append(broker._who.draining)
                return real(self) + len(waiting)

        core.acks.__class__ = Waiting
        stopped = threading.Thread(target=lambda: cluster.run(broker.stop()))
        stopped.start()
        eventually(lambda: len(seen) > 5)
        with pytest.raises(BrokerBusy):
            producer.send("orders", b"1")
        assert stopped.is_alive() and all(seen)
        waiting.clear()
        stopped.join(5)
        assert not stopped.is_alive()
