"""A listener whose downstream is gone: it waits, no message loses a try, and it goes on by itself;
on real brokers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.admin.dead_letters import DeadLetters
from rmq_ray.client.messages.listener import RECONSUME_LATER
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.config import ConsumerConfig
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

    def __init__(self, *poison: bytes, gone: bool = False) -> None:
        self.gone = gone
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
    options.setdefault("config", ConsumerConfig(f"g-{topic}", suspend_queue_ms=50))
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
    downstream = Downstream(gone=True)
    options = {"orderly": True} if orderly else {"max_reconsume_times": 16}
    with consumer(cluster, topic, downstream, **options) as running:
        eventually(lambda: pauses(running))
        eventually(lambda: downstream.calls >= BREAKER.window + 5)
        downstream.gone = False

        def failed() -> int:
            return int(running.stats()["consumed_failed"])

        eventually(lambda: len(downstream.done) >= len(bodies) - (0 if orderly else failed()))
        assert not pauses(running)
        assert failed() < BREAKER.window, "what fails while it waits is no try of a message"
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


@pytest.mark.parametrize("orderly", [False, True])
def test_a_consumer_that_is_stopped_while_it_waits_leaves_all_to_the_next_one(
    cluster: LiveCluster, orderly: bool
) -> None:
    topic = f"stopped-{orderly}"
    bodies = send(cluster, topic, queues=1 if orderly else 4)
    downstream = Downstream(gone=True)
    running = consumer(cluster, topic, downstream, orderly=orderly)
    running.start()
    eventually(lambda: pauses(running))
    assert running.stop(20_000)
    sent_back = running.stats()["sent_back"]
    assert sent_back < BREAKER.window, "who waits has called nothing yet"
    downstream.gone = False
    with consumer(cluster, topic, downstream, orderly=orderly):
        eventually(lambda: len(downstream.done) >= len(bodies) - sent_back)
    with judging():
        assert len(set(downstream.done)) == len(downstream.done) and set(downstream.done) <= set(
            bodies
        )
        assert not orderly or downstream.done == bodies


def test_a_broadcasting_consumer_that_is_stopped_while_it_waits_drops_nothing(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    bodies = send(cluster, "broadcast")
    downstream = Downstream(gone=True)
    config = ConsumerConfig("g-broadcast", local_offset_dir=str(tmp_path))

    def member() -> PushConsumer:
        return consumer(
            cluster, "broadcast", downstream, model="broadcasting", config=config, client_id="one"
        )

    with member() as running:
        eventually(lambda: pauses(running))
        eventually(lambda: downstream.calls >= BREAKER.window + 5)
    dropped = running.stats()["dropped"]
    assert dropped < BREAKER.window
    downstream.gone = False
    with member():
        eventually(lambda: len(downstream.done) >= len(bodies) - dropped)


def test_a_queue_that_is_given_away_does_not_wait_for_its_turn(cluster: LiveCluster) -> None:
    send(cluster, "given-away")
    gone, well = Downstream(gone=True), Downstream()
    with consumer(cluster, "given-away", gone, orderly=True) as first:
        eventually(lambda: pauses(first) and len(first.assignment()) >= 4)
        with consumer(cluster, "given-away", well, orderly=True):
            eventually(lambda: well.done)
            assert pauses(first)
