"""A topic that is deleted and made again under the readers that run: each of them gets everything
of the new topic and nothing of the old one, whatever it keeps as its position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.pop.simple_consumer import SimpleConsumer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import TopicNotFound
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.clients.collecting import Collector
from tests.support.waiting import eventually

OLD, NEW = [b"old %d" % number for number in range(3)], [b"new %d" % number for number in range(4)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path / "cluster") as running:
        yield running


@pytest.fixture
def admin(cluster: LiveCluster) -> Iterator[Admin]:
    made = Admin(cluster)
    made.create_topic("orders", queues=1)
    yield made
    made.close()


class Pushed:
    """A consumer that is given its messages; ``got`` tells all so far."""

    def __init__(self, cluster: LiveCluster, **options: Any) -> None:
        self._seen = Collector()
        directory = str(cluster.store_path().parent / "offsets")
        self._consumer = PushConsumer(
            "g",
            config=ConsumerConfig("g", local_offset_dir=directory, offset_illegal_delay_ms=100),
            listener=self._seen,
            subscriptions={"orders": "*"},
            discovery=cluster,
            start_from="first",
            **options,
        )

    def __enter__(self) -> Callable[[], list[bytes]]:
        self._consumer.start()
        return lambda: list(self._seen.bodies)

    def __exit__(self, *_exc: object) -> None:
        self._consumer.stop()


class Asking:
    """A consumer that asks for its messages."""

    def __init__(
        self, consumer: PullConsumer | SimpleConsumer, ask: Callable[[], list[bytes]]
    ) -> None:
        self._consumer, self._ask = consumer, ask
        self._got: list[bytes] = []

    def __enter__(self) -> Callable[[], list[bytes]]:
        self._consumer.start()
        return self._more

    def _more(self) -> list[bytes]:
        self._got += self._ask()
        return self._got

    def __exit__(self, *_exc: object) -> None:
        self._consumer.close()


def pulled(cluster: LiveCluster) -> Asking:
    consumer = PullConsumer(
        "g", discovery=cluster, start_from="first", auto_commit_interval_ms=1_000
    )
    consumer.subscribe("orders")
    return Asking(consumer, lambda: [message.body for message in consumer.poll(timeout=0.2)])


def popped(cluster: LiveCluster) -> Asking:
    consumer = SimpleConsumer("orders", "g", discovery=cluster, start_from="first")

    def ask() -> list[bytes]:
        try:
            found = consumer.receive(8, wait=0.2)
        except TopicNotFound:
            return []
        consumer.ack_all(found)
        return [message.body for message in found]

    return Asking(consumer, ask)


Reader = Callable[[LiveCluster], AbstractContextManager[Callable[[], list[bytes]]]]
READERS: dict[str, Reader] = {
    "push": partial(Pushed, concurrency=1),
    "orderly": partial(Pushed, orderly=True),
    "broadcasting": partial(Pushed, model="broadcasting", client_id="one", concurrency=1),
    "pull": pulled,
    "simple": popped,
}


def send(cluster: LiveCluster, bodies: list[bytes]) -> None:
    with Producer("p", discovery=cluster) as producer:
        for body in bodies:
            producer.send("orders", body)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_whoever_reads_gets_all_of_the_topic_that_is_made_again(
    cluster: LiveCluster, admin: Admin, reader: Reader
) -> None:
    send(cluster, OLD)
    with reader(cluster) as got:
        eventually(lambda: got() == OLD)
        admin.delete_topic("orders")
        admin.create_topic("orders", queues=1)
        send(cluster, NEW[:1])
        eventually(lambda: got() == OLD + NEW[:1])
        send(cluster, NEW[1:])
        eventually(lambda: got() == OLD + NEW)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_who_comes_back_gets_all_of_the_topic_that_was_made_again(
    cluster: LiveCluster, admin: Admin, reader: Reader
) -> None:
    send(cluster, OLD)
    with reader(cluster) as got:
        eventually(lambda: got() == OLD)
    admin.delete_topic("orders")
    admin.create_topic("orders", queues=1)
    send(cluster, NEW)
    with reader(cluster) as got:
        eventually(lambda: got() == NEW)
