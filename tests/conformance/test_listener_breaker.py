"""A listener whose downstream is gone: it waits, no message loses a try, and it goes on by itself;
on real brokers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.admin.dead_letters import DeadLetters
from rmq_ray.client.messages.listener import RECONSUME_LATER
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.errors import ClientError
from rmq_ray.protocol.breaker import Breaker
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.outcomes import judging
from tests.support.waiting import eventually

BREAKER = Breaker(window=5, pause=0.05)
COUNT = 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path_factory.mktemp("breaker")) as running:
        yield running


class Downstream:
    """What a listener needs. ``calls``: how often it was asked while it was gone."""

    def __init__(self, *poison: bytes) -> None:
        self.gone = False
        self.calls = 0
        self.done: list[bytes] = []
        self._poison = poison
        self._lock = threading.Lock()

    def __call__(self, messages: list[Any], _ctx: Any) -> Any:
        with self._lock:
            if self.gone:
                self.calls += 1
                raise ConnectionError("the database is gone")
            if messages[0].body in self._poison:
                return RECONSUME_LATER
            self.done += [message.body for message in messages]
            return None


def consumer(
    cluster: LiveCluster, topic: str, listener: Downstream, **options: Any
) -> PushConsumer:
    return PushConsumer(
        f"g-{topic}",
        listener=listener,
        subscriptions={topic: "*"},
        discovery=cluster,
        start_from="first",
        breaker=BREAKER,
        **options,
    )


def send(cluster: LiveCluster, topic: str, queues: int = 4) -> list[bytes]:
    bodies = [b"%d" % number for number in range(COUNT)]
    with closing(Admin(cluster)) as admin, Producer("p", discovery=cluster) as producer:
        admin.create_topic(topic, queues=queues)
        for body in bodies:
            producer.send(topic, body)
    return bodies


def pauses(running: PushConsumer) -> bool:
    return bool(running.stats()["listener_pauses"])


@pytest.mark.parametrize("orderly", [False, True])
def test_an_outage_costs_no_dead_letter_and_it_goes_on_by_itself(
    cluster: LiveCluster, orderly: bool
) -> None:
    topic = f"outage-{orderly}"
    bodies = send(cluster, topic, queues=1 if orderly else 4)
    downstream = Downstream()
    downstream.gone = True
    options = {"orderly": True} if orderly else {"max_reconsume_times": 16}
    with consumer(cluster, topic, downstream, **options) as running:
        eventually(lambda: pauses(running))
        eventually(lambda: downstream.calls >= BREAKER.window + 5)
        failed = running.stats()["consumed_failed"]
        downstream.gone = False
        eventually(lambda: len(downstream.done) >= len(bodies) - (0 if orderly else failed))
        assert not pauses(running)
        assert failed < BREAKER.window, "what fails while it waits is no try of a message"
        assert running.stats()["consumed_failed"] == failed
        with judging():
            assert set(downstream.done) <= set(bodies)
            assert len(set(downstream.done)) == len(downstream.done)
            assert not orderly or downstream.done == bodies


def test_a_poisonous_message_becomes_a_dead_letter_and_holds_nobody_up(
    cluster: LiveCluster,
) -> None:
    bodies = send(cluster, "poison")
    downstream = Downstream(b"7")
    with consumer(cluster, "poison", downstream, max_reconsume_times=0) as running:
        eventually(lambda: len(downstream.done) == len(bodies) - 1)
        eventually(lambda: running.stats()["sent_back"] == 1)
        assert not pauses(running)
    with closing(DeadLetters(cluster)) as dead:
        eventually(lambda: len(list(dead.dead_letters("g-poison"))) == 1)


def test_a_consumer_that_waits_can_be_stopped(cluster: LiveCluster) -> None:
    send(cluster, "stopped")
    downstream = Downstream()
    downstream.gone = True
    running = consumer(cluster, "stopped", downstream)
    running.start()
    eventually(lambda: pauses(running))
    assert running.stop(20_000)
    calls = downstream.calls
    with pytest.raises(ClientError):
        running.start()
    assert downstream.calls == calls
