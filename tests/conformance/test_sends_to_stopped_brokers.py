"""A broker that was stopped on purpose is not waited for: sends that need it fail at once with the
command that helps, and others go elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import BrokerUnreachable, NoRoute, SendError
from rmq_ray.model.ids import MessageQueue
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.waiting import eventually

LONG_S = 120.0
"""The time-out of each send: far more than any of them may take."""
HELPS = "broker-{} stopped: start it with `rmq-ray broker start broker-{}`"


class Told(LiveCluster):
    """A cluster whose control plane tells which brokers were stopped."""

    def __init__(self, directory: Path, brokers: int) -> None:
        super().__init__(directory, brokers)
        self.stopped = {f"broker-{'ab'[number]}": False for number in range(brokers)}

    def stopped_brokers(self) -> dict[str, bool]:
        return self.stopped

    def stop(self, name: str) -> None:
        self.run(self.brokers[list(self.stopped).index(name)].stop())
        self.stopped[name] = True


async def _looped(cluster: Told, queue: MessageQueue) -> None:
    async with AsyncProducer("loop", discovery=cluster) as producer:
        await producer.send("orders", b"x", queue=queue, timeout=LONG_S)


SENDS: dict[str, Callable[[Told, Producer, MessageQueue], object]] = {
    "send": lambda _c, p, queue: p.send("orders", b"x", queue=queue, timeout=LONG_S),
    "send_async": lambda _c, p, queue: p.send_async(
        "orders", b"x", queue=queue, timeout=LONG_S
    ).result(LONG_S),
    "send_batch": lambda _c, p, queue: p.send_batch("orders", [b"x"], queue=queue, timeout=LONG_S),
    "async producer": lambda c, _p, queue: asyncio.run(_looped(c, queue)),
}


def refused(send: Callable[[], object]) -> SendError:
    began = time.monotonic()
    with pytest.raises(SendError) as met:
        send()
    assert time.monotonic() - began < LONG_S / 4, "it was waited for"
    return met.value


@pytest.mark.parametrize("kind", SENDS)
def test_a_send_to_a_queue_of_a_stopped_broker_fails_at_once_with_the_command_that_helps(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "rmq_ray.client"),
        Told(tmp_path, 2) as cluster,
        Producer("p", discovery=cluster) as producer,
    ):
        admin = Admin(cluster)
        admin.create_topic("orders", queues=1)
        admin.close()  # the loss of its connection says nothing
        producer.send("orders", b"x", queue=MessageQueue("orders", "broker-a", 0))
        lost = f"connection to {cluster.brokers[0].status()['address']} lost: "
        cluster.stop("broker-a")
        eventually(lambda: lost in caplog.text)  # what goes into it before may be stored
        error = refused(
            lambda: SENDS[kind](cluster, producer, MessageQueue("orders", "broker-a", 0))
        )
        assert isinstance(error, BrokerUnreachable) and HELPS.format("a", "a") in str(error)
        results = [producer.send("orders", b"%d" % number) for number in range(4)]
        assert {result.queue.broker_name for result in results} == {"broker-b"}


def test_a_topic_that_only_stopped_brokers_have_is_not_waited_for(tmp_path: Path) -> None:
    with Told(tmp_path, 1) as cluster, Producer("p", discovery=cluster) as producer:
        producer.send("orders", b"x")
        cluster.stop("broker-a")
        with pytest.raises(SendError, match="`rmq-ray broker start broker-a`"):
            producer.send("orders", b"x", timeout=LONG_S)
        with Producer("late", discovery=cluster) as late:
            error = refused(lambda: late.send("orders", b"x", timeout=LONG_S))
            assert isinstance(error, NoRoute) and HELPS.format("a", "a") in str(error)


def test_a_lost_connection_is_told_once_with_its_address_and_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "rmq_ray.client"),
        Told(tmp_path, 1) as cluster,
        Producer("p", discovery=cluster) as producer,
    ):
        producer.send("orders", b"x")
        address = cluster.brokers[0].status()["address"]
        cluster.stop("broker-a")
        lost = f"connection to {address} lost: "
        eventually(lambda: lost in caplog.text)
    lines = [line.getMessage() for line in caplog.records if lost in line.getMessage()]
    assert len(lines) == 1 and lines[0].count("lost") == 1


def test_a_broker_that_is_started_again_is_waited_for(tmp_path: Path) -> None:
    queue = MessageQueue("orders", "broker-a", 0)
    with Told(tmp_path, 2) as cluster, Producer("p", discovery=cluster) as producer:
        Admin(cluster).create_topic("orders", queues=1)
        cluster.stop("broker-a")
        refused(lambda: producer.send("orders", b"x", queue=queue, timeout=LONG_S))
        cluster.stopped["broker-a"] = False

        def waits() -> bool:
            began = time.monotonic()
            with pytest.raises(BrokerUnreachable) as met:
                producer.send("orders", b"x", queue=queue, timeout=1.5)
            return "rmq-ray broker start" not in str(met.value) and time.monotonic() - began > 1

        eventually(waits)
