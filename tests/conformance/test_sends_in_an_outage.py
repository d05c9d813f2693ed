"""A topic has nobody to write to for a moment: its master died, or is drained before a hand-over.
Sends that begin then wait for the next one; one that is read-only by its own permission is not
waited for.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.config import ReplicationMode
from rmq_ray.errors import NoRoute, ResponseError, TopicNotWritable
from rmq_ray.model.message import Message, SendResult, SendStatus
from tests.support.brokers.elected_cluster import ElectedCluster
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.faults.stopwatch import Stopwatch
from tests.support.waiting import eventually

SYNC = {"replication": ReplicationMode.SYNC_MASTER, "slave_timeout_ms": 2_000}
KINDS: dict[str, Callable[[Producer], list[SendResult]]] = {
    "send": lambda producer: [producer.send("orders", b"x")],
    "send_async": lambda producer: [producer.send_async("orders", b"x").result(20)],
    "send_batch": lambda producer: list(producer.send_batch([Message("orders", b"x")])),
}


def without_queues(producer: Producer, topic: str) -> bool:
    """The producer has learnt that the topic can be written nowhere."""
    core = producer._core
    assert core is not None
    core.instance.routes.refresh(topic)
    info = core.instance.routes.publish(topic)
    return info is not None and not info.queues


def begun(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("kind", KINDS)
def test_sends_that_begin_while_there_is_no_master_reach_the_next_master(
    tmp_path: Path, kind: str
) -> None:
    with (
        ElectedCluster(tmp_path, 3, SYNC) as cluster,
        Producer("p", discovery=cluster, send_timeout_ms=15_000) as producer,
    ):
        cluster.settled()
        producer.send("orders", b"0")
        cluster.kill(0)
        eventually(lambda: without_queues(producer, "orders"))
        sent: list[SendResult] = []
        thread = begun(lambda: sent.extend(KINDS[kind](producer)))
        cluster.elect()
        thread.join(20)
        assert [result.status for result in sent] == [SendStatus.SEND_OK]


def test_a_producer_that_starts_while_there_is_no_master_waits_for_the_next_master(
    tmp_path: Path,
) -> None:
    with ElectedCluster(tmp_path, 3, SYNC) as cluster:
        cluster.settled()
        Admin(cluster).create_topic("orders", queues=1)
        cluster.settled()
        eventually(lambda: len(Admin(cluster).route("orders").brokers[0].addresses) == 3)
        cluster.kill(0)
        with Producer("p", discovery=cluster, send_timeout_ms=15_000) as producer:
            sent: list[SendResult] = []
            thread = begun(lambda: sent.append(producer.send("orders", b"x")))
            eventually(lambda: without_queues(producer, "orders"))
            cluster.elect()
            thread.join(20)
        assert [result.status for result in sent] == [SendStatus.SEND_OK]


def test_sends_wait_for_the_end_of_a_drain_as_long_as_their_time_out_and_fail_as_not_stored_then(
    tmp_path: Path,
) -> None:
    with (
        LiveCluster(tmp_path) as cluster,
        Producer("p", discovery=cluster, send_timeout_ms=10_000) as producer,
    ):
        admin = Admin(cluster)
        producer.send("orders", b"0")
        admin.drain_broker("broker-a")
        eventually(lambda: without_queues(producer, "orders"))
        with pytest.raises(NoRoute, match="after 300 ms"):
            producer.send("orders", b"too late", timeout=0.3)
        sent: list[SendResult] = []
        thread = begun(lambda: sent.append(producer.send("orders", b"1")))
        admin.undrain_broker("broker-a")
        thread.join(20)
        assert [result.status for result in sent] == [SendStatus.SEND_OK]
        admin.close()


def open_again(producer: Producer) -> list[SendResult]:
    try:
        return KINDS["send"](producer)
    except TopicNotWritable:
        return []


async def send_in_loop(cluster: LiveCluster) -> None:
    async with AsyncProducer("loop", discovery=cluster, send_timeout_ms=10_000) as producer:
        await producer.send("orders", b"x")


@pytest.mark.parametrize("auto_create", [False, True])
def test_sends_to_a_topic_that_became_read_only_fail_at_once_and_go_on_when_it_is_writable_again(
    tmp_path: Path, auto_create: bool
) -> None:
    with (
        LiveCluster(tmp_path, broker={"auto_create_topics": auto_create}) as cluster,
        Producer("p", discovery=cluster, send_timeout_ms=10_000) as producer,
        Producer("new", discovery=cluster, send_timeout_ms=10_000) as new,
    ):
        admin = Admin(cluster)
        admin.create_topic("orders", queues=2)
        producer.send("orders", b"0")
        admin.create_topic("orders", queues=2, permission=4)
        with pytest.raises(TopicNotWritable):
            producer.send("orders", b"the broker says so")
        eventually(lambda: without_queues(producer, "orders"))
        costs = []
        for send in (*KINDS.values(), lambda producer: asyncio.run(send_in_loop(cluster))):
            for asking in (producer, new):
                watch = Stopwatch()
                with pytest.raises(
                    TopicNotWritable, match="rmq-ray topic create orders --queues 2 --perm 6"
                ):
                    send(asking)  # type: ignore[no-untyped-call]
                costs.append(watch.lived_s)
        assert max(costs) < 5 and sorted(costs)[len(costs) // 2] < 0.5, (
            f"a send time-out is 10 s, these took {costs}"
        )
        admin.create_topic("orders", queues=2)
        assert eventually(lambda: len(open_again(producer))) == 1
        assert [len(send(producer)) for send in KINDS.values()] == [1, 1, 1]
        admin.close()


def test_sends_to_a_read_only_topic_wait_while_a_master_is_away_that_took_its_messages(
    tmp_path: Path,
) -> None:
    with (
        LiveCluster(tmp_path, brokers=2, broker={"auto_create_topics": False}) as cluster,
        Producer("p", discovery=cluster) as producer,
    ):
        admin = Admin(cluster)
        admin.create_topic("orders", queues=1)
        producer.send("orders", b"0")
        cluster.run(cluster.brokers[1].stop())
        admin.create_topic("orders", queues=1, permission=4)
        eventually(lambda: without_queues(producer, "orders"))
        with pytest.raises(NoRoute, match="after 300 ms"):
            producer.send("orders", b"broker-b may be back in a moment", timeout=0.3)
        admin.close()


def test_a_topic_is_created_at_a_master_that_may_lead_only_a_moment_later(tmp_path: Path) -> None:
    with ElectedCluster(tmp_path, 3, SYNC) as cluster:
        cluster.settled()
        leads = cluster.replicas[0]._leadership.hold_sends(cluster.told.master_epoch, 400)
        assert leads.master_epoch == cluster.told.master_epoch
        admin, began = Admin(cluster), time.monotonic()
        admin.create_topic("orders", queues=1)
        assert time.monotonic() - began > 0.2 and "orders" in admin.topics()
        with pytest.raises(ResponseError, match="may not lead now"):
            cluster.replicas[0]._leadership.hold_sends(cluster.told.master_epoch, 5_000)
            Admin(cluster, timeout_ms=2_000).create_topic("too-late", queues=1)
        admin.close()
