"""A group that was away while its topic grew: whatever it consumes with, it skips nothing of the
new queues, and begins nowhere anew. Nor does a new group skip anything of a young topic.

``READERS`` has a row for each public name that consumes as a group: how it is run here, or what it
is made of.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import rmq_ray
import rmq_ray.data
import rmq_ray.serve
import rmq_ray.spark
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.client.pull.queue_queries import OnePull, QueueQueries
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.client.scan.topic_state import TopicState
from rmq_ray.config import ConsumerConfig
from rmq_ray.model.groups import SUBSCRIBE_ALL
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.filters.subscriptions import parse_subscription
from rmq_ray.store.front.message_store import MessageStore
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.clients.pop_rig import Worker
from tests.support.waiting import eventually

TOPIC, GROUP = "orders", "billing"
Seen = Counter[bytes]
Reader = Callable[[LiveCluster, Path, Seen], AbstractContextManager[None]]


@contextmanager
def pushed(cluster: LiveCluster, path: Path, seen: Seen, **options: Any) -> Iterator[None]:
    def listen(messages: list[Any], _ctx: Any) -> None:
        seen.update(message.body for message in messages)

    config = ConsumerConfig(GROUP, local_offset_dir=str(path / "local"))
    with PushConsumer(
        GROUP,
        listener=listen,
        subscriptions={TOPIC: "*"},
        config=config,
        discovery=cluster,
        **options,
    ) as running:
        eventually(lambda: running.balanced)
        yield


def in_order(cluster: LiveCluster, path: Path, seen: Seen) -> AbstractContextManager[None]:
    return pushed(cluster, path, seen, orderly=True)


def broadcast(cluster: LiveCluster, path: Path, seen: Seen) -> AbstractContextManager[None]:
    return pushed(cluster, path, seen, model="broadcasting")


def since_a_moment(cluster: LiveCluster, path: Path, seen: Seen) -> AbstractContextManager[None]:
    return pushed(cluster, path, seen, start_at=1 << 45)  # of the next millennium: all is older


class Polling(PullConsumer):
    """Polls in the steps of the test: ``seen`` is asked in between."""

    def count_into(self, seen: Seen) -> None:
        seen.update(message.body for message in self.poll(100, timeout=0.2))
        self.commit()


@contextmanager
def pulled(cluster: LiveCluster, _path: Path, seen: Seen, assigned: bool = False) -> Iterator[None]:
    with Polling(GROUP, discovery=cluster, auto_commit=False) as consumer:
        if assigned:
            consumer.assign(consumer.fetch_message_queues(TOPIC))
        else:
            consumer.subscribe(TOPIC)
        count = len(consumer.fetch_message_queues(TOPIC))
        eventually(lambda: consumer.stats()["queues"][count - 1 :] != [])
        looks[id(seen)] = lambda: consumer.count_into(seen)
        yield
        del looks[id(seen)]


def assigned(cluster: LiveCluster, path: Path, seen: Seen) -> AbstractContextManager[None]:
    return pulled(cluster, path, seen, assigned=True)


@contextmanager
def popped(cluster: LiveCluster, _path: Path, seen: Seen) -> Iterator[None]:
    worker = Worker(TOPIC, GROUP, cluster)
    worker.done = seen
    worker.start()
    try:
        assert worker.consumer is not None
        eventually(lambda: set(brokers_of(cluster)) <= worker.consumer._begun)
        yield
    finally:
        worker.end()
        worker.join(20)


@contextmanager
def tables(cluster: LiveCluster, _path: Path, seen: Seen) -> Iterator[None]:
    told = cluster.lookup()
    with rmq_ray.data.iter_batches(
        TOPIC,
        group=GROUP,
        start_from="last",
        max_wait_s=0.2,
        idle_s=0.2,
        commit="manual",
        cluster=told.cluster,
        name_servers=told.name_servers,
        secret=told.secret,
    ) as batches:

        def look() -> None:
            table = next(batches._tables)
            if table is not None:
                seen.update(table["body"].to_pylist())
                batches.commit()

        look()
        consumer = batches._run.consumer
        assert consumer is not None
        count = len(consumer.fetch_message_queues(TOPIC))
        eventually(lambda: look() or consumer.stats()["queues"][count - 1 :] != [])
        looks[id(seen)] = look
        yield
        del looks[id(seen)]


@contextmanager
def positions(cluster: LiveCluster, _path: Path, seen: Seen) -> Iterator[None]:
    """A batch of Spark, without Spark: the driver's questions and commits."""
    with TopicState(cluster, TOPIC) as asked:
        state, questions = asked.now(), QueueQueries(asked._instance, GROUP)
        if all(questions.position(queue) is None for queue in state.bounds):
            asked.commit(GROUP, state.ends())

        def look() -> None:
            at, state = asked.positions(GROUP, asked.now()), asked.now()
            reader = QueueQueries(asked._instance, "reader")
            everything = parse_subscription(TOPIC, SUBSCRIBE_ALL, 0)
            for queue, (_, high) in state.bounds.items():
                if at[queue] < high:
                    found = reader.pull(queue, everything, OnePull(at[queue], 32, 1 << 20))
                    assert found.next_offset == high
                    seen.update(message.body for message in found.messages)
            asked.commit(GROUP, state.ends())

        looks[id(seen)] = look
        yield
        del looks[id(seen)]


looks: dict[int, Callable[[], None]] = {}
"""What has to be asked for what has come: the reader's next look, by its counter."""

READERS: dict[str, dict[str, Reader] | str] = {
    "PushConsumer": {
        "push": pushed,
        "orderly": in_order,
        "broadcasting": broadcast,
        "since a moment": since_a_moment,
    },
    "PullConsumer": {"subscribe": pulled, "assign": assigned},
    "SimpleConsumer": {"pop": popped},
    "iter_batches": {"tables": tables},
    "batch": {"positions": positions},
    "consumer": "push consumers in actors",
    "Workers": "push consumers in actors",
    "ConsumerApp": "a push consumer in a replica of Serve",
    "ReplayBuffer": "its reader begins with the first message",
    "stream": "where a queue without a position begins is in its checkpoint",
    "read_stream": "where a queue without a position begins is in its checkpoint",
    "TrainSource": "iter_batches of each worker",
    "train_source": "iter_batches of each worker",
}
OTHERS = (
    "AsyncProducer Producer ProducerConfig TransactionProducer SendContext ConsumeContext "
    "ConsumeHookContext OrderlyContext ConsumerConfig LikeGroup"
)
"""Public names with a group that consume nothing."""
ROWS = [
    pytest.param(reader, id=name)
    for kinds in READERS.values()
    if not isinstance(kinds, str)
    for name, reader in kinds.items()
]


def test_every_public_name_that_consumes_as_a_group_has_a_row() -> None:
    public = {
        name
        for module in (rmq_ray, rmq_ray.data, rmq_ray.spark, rmq_ray.serve)
        for name in module.__all__
        if callable(made := getattr(module, name)) and "group" in parameters(made)
    }
    assert public == {*READERS, *OTHERS.split()}


def parameters(made: Any) -> set[str]:
    try:
        return set(inspect.signature(made).parameters)
    except ValueError:
        return set()


def brokers_of(cluster: LiveCluster) -> list[str]:
    return sorted({queue.broker_name for queue in queues_of(cluster)})


def queues_of(cluster: LiveCluster) -> list[MessageQueue]:
    with PullConsumer("looking", discovery=cluster) as looking:
        return looking.fetch_message_queues(TOPIC)


def send(cluster: LiveCluster, name: bytes, queues: list[MessageQueue]) -> Seen:
    bodies = {queue: b"%s-%s" % (name, str(queue).encode()) for queue in queues}
    with Producer("web", discovery=cluster) as producer:
        for queue, body in bodies.items():
            producer.send(TOPIC, body, queue=queue)
    return Counter(bodies.values())


def expect(seen: Seen, expected: Seen) -> None:
    def complete() -> bool:
        looks.get(id(seen), lambda: None)()
        return expected <= seen.copy()  # it is counted in at this moment

    eventually(complete)
    assert seen == expected


@pytest.mark.parametrize("grown_by", ["queues", "a broker"])
@pytest.mark.parametrize("reader", ROWS)
def test_a_group_that_comes_back_begins_new_queues_with_their_first_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Reader, grown_by: str
) -> None:
    monkeypatch.setattr(MessageStore, "is_young", lambda *_: False)
    with LiveCluster(tmp_path, brokers=2) as cluster, closing(Admin(cluster)) as admin:
        masters = admin.masters()
        with monkeypatch.context() as of_one:
            of_one.setattr(admin, "masters", lambda: {"broker-a": masters["broker-a"]})
            admin.create_topic(TOPIC, queues=2)
        first = queues_of(cluster)
        send(cluster, b"before the group began", first)
        seen: Seen = Counter()
        with reader(cluster, tmp_path, seen):
            expected = send(cluster, b"first", first)
            expect(seen, expected)
        if grown_by == "queues":
            admin.alter_topic(TOPIC, queues=4)
        else:
            admin.create_topic(TOPIC, queues=2)
        assert len(grown := queues_of(cluster)) == 4
        expected += send(cluster, b"while it was away", grown)
        with reader(cluster, tmp_path, seen):
            expected += send(cluster, b"again", grown)
            expect(seen, expected)


@pytest.mark.parametrize(
    "reader",
    [row for row in ROWS if row.values != (positions,)],  # it is told to begin at the end here
)
def test_a_new_group_begins_a_young_topic_with_its_first_message(
    tmp_path: Path, reader: Reader
) -> None:
    with LiveCluster(tmp_path) as cluster, closing(Admin(cluster)) as admin:
        admin.create_topic(TOPIC, queues=2)
        queues = queues_of(cluster)
        seen: Seen = Counter()
        expected = send(cluster, b"before the group began", queues)
        with reader(cluster, tmp_path, seen):
            expect(seen, expected)
        expected += send(cluster, b"while it was away", queues)
        with reader(cluster, tmp_path, seen):
            expect(seen, expected)
