"""A topic that holds only so much for its consumers, with real producers and consumers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.errors import ClientError, TopicFull
from rmq_ray.model.ids import MessageQueue
from tests.support.brokers.live_cluster import LiveCluster

QUEUE = MessageQueue("buffer", "broker-a", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, brokers=1) as running:
        yield running


def test_a_sender_waits_for_room_and_gets_topic_full_at_its_time_out(cluster: LiveCluster) -> None:
    admin = Admin(cluster)
    admin.create_topic("buffer", queues=1, slots=4, slots_group="trainer")
    with (
        Producer("p", discovery=cluster) as producer,
        PullConsumer("trainer", discovery=cluster, auto_commit=False) as consumer,
    ):
        for number in range(4):
            producer.send("buffer", b"%d" % number)
        with pytest.raises(TopicFull, match="wait for group 'trainer'"):
            producer.send("buffer", b"too many", timeout=1.5)
        with pytest.raises(TopicFull):
            producer.send_async("buffer", b"too many", timeout=1.5).result()
        consumer.assign([QUEUE])
        consumer.seek(QUEUE, 0)
        consumer.commit(consumer.poll(4, timeout=5))

        def take() -> None:
            assert blocked.wait(5)
            consumer.commit(consumer.poll(4, timeout=5))

        blocked = threading.Event()
        taker = threading.Thread(target=take)
        taker.start()
        for number in range(4, 8):
            producer.send("buffer", b"%d" % number)
        blocked.set()
        assert producer.send("buffer", b"8", timeout=10).queue_offset == 8, "nothing was dropped"
        taker.join()
        admin.alter_topic("buffer", slots=0)
        for number in range(10):
            producer.send("buffer", b"%d" % number)


@pytest.mark.parametrize("settings", [{"slots": -1}, {"slot_bytes": 1.5}, {"slots_group": "a b"}])
def test_bounds_that_are_none_are_refused(cluster: LiveCluster, settings: dict[str, int]) -> None:
    with pytest.raises(ClientError):
        Admin(cluster).create_topic("buffer", queues=1, **settings)
