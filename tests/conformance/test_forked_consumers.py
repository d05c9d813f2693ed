"""A forked child and its parent's consumers: never the same member twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rmq_ray.actors.durable_queue import Queue
from rmq_ray.client.consumer.consumer_lifecycle import GroupConsumer
from rmq_ray.client.pop.simple_consumer import SimpleConsumer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.errors import ClientError
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.clients.forked import in_child


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path_factory.mktemp("live")) as live:
        yield live


def push(cluster: LiveCluster) -> Any:
    return PushConsumer(
        "push", listener=lambda _messages, _ctx: None, subscriptions={"t": "*"}, discovery=cluster
    )


def pull(cluster: LiveCluster) -> Any:
    consumer = PullConsumer("pull", discovery=cluster)
    consumer.subscribe("t")
    return consumer


def simple(cluster: LiveCluster) -> Any:
    return SimpleConsumer("t", "simple", discovery=cluster, start_from="first")


CALLS: dict[type, tuple[Callable[[LiveCluster], Any], tuple[Callable[[Any], object], ...]]] = {
    PushConsumer: (push, (lambda it: it.start(), lambda it: it.adjust(concurrency=2))),
    PullConsumer: (
        pull,
        (lambda it: it.poll(timeout=0.1), lambda it: it.commit()),
    ),
    SimpleConsumer: (
        simple,
        (lambda it: it.receive(1, wait=0.1), lambda it: it.flush(), lambda it: it.start()),
    ),
}


def test_every_kind_of_consumer_has_its_row() -> None:
    kinds = {kind for kind in GroupConsumer.__subclasses__() if ".client." in kind.__module__}
    assert kinds == {*CALLS}


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_a_child_is_refused_the_parents_consumer_and_starts_its_own(
    cluster: LiveCluster, kind: type
) -> None:
    make, calls = CALLS[kind]
    with Producer("p", discovery=cluster) as producer:
        producer.send("t", b"x")
    used, unused = make(cluster), make(cluster)
    used.start()

    def child() -> str:
        for call in calls:
            with pytest.raises(ClientError, match="fork"):
                call(used)
        used.close()
        with unused:
            return "another" if unused.client_id != used.client_id else "the same"

    assert in_child(child) == "another"
    if kind is SimpleConsumer:
        assert [message.body for message in used.receive(1, wait=20)] == [b"x"]
    used.close()


def test_a_message_is_settled_by_the_process_that_received_it(cluster: LiveCluster) -> None:
    with Producer("p", discovery=cluster) as producer, simple(cluster) as consumer:
        producer.send("t", b"settled")
        (message,) = consumer.receive(1, wait=20)
        ways: tuple[Callable[[], object], ...] = (
            message.ack,
            lambda: message.ack(wait=False),
            message.nack,
            message.reject,
            lambda: message.extend(60),
        )

        def child() -> str:
            for way in ways:
                with pytest.raises(ClientError, match="before a fork"):
                    way()
            return "refused"

        assert in_child(child) == "refused"
        message.ack()


def test_a_queue_begins_anew_in_a_child_and_the_items_taken_in_advance_stay_the_parents(
    cluster: LiveCluster,
) -> None:
    at = cluster.lookup()
    with Queue(
        "q", prefetch=2, cluster=at.cluster, name_servers=at.name_servers, secret=at.secret
    ) as queue:
        queue.put_nowait_batch([1, 2, 3])
        assert queue.get(timeout=20) == 1

        def child() -> str:
            with queue:
                return str(queue.get(timeout=20))

        assert in_child(child) == "3"
        assert queue.get(timeout=20) == 2
