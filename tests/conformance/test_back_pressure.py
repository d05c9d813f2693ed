"""A producer that nobody answers: its memory has a limit, and its caller chooses between waiting
and an error.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from rmq_ray.client.producer.producer import Producer
from rmq_ray.config import MIB, ProducerConfig
from rmq_ray.errors import BrokerBusy, ConfigError
from tests.support.brokers.live_cluster import ROOT
from tests.support.brokers.tiny_cluster import CLUSTER, SECRET, TinyCluster


@pytest.fixture
def cluster() -> Iterator[TinyCluster]:
    with TinyCluster(brokers=2, topics={"orders": 4}) as running:
        for broker in running.brokers:
            broker.hold.clear()
        yield running


@pytest.mark.parametrize("body_bytes", [100, 20_000, 3_000_000])
def test_a_full_producer_holds_no_more_than_its_limit_and_64_mb(
    cluster: TinyCluster, body_bytes: int
) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.support.clients.full_producer",
        str(cluster.name_servers[0].address),
        CLUSTER,
        SECRET.hex(),
        str(body_bytes),
    ]
    found = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=True
    ).stdout.split()
    taken, grown = map(int, found)
    limit = ProducerConfig().buffer_bytes_max
    assert taken * body_bytes <= limit and taken > (5 if body_bytes > MIB else 300)
    assert grown < limit + 64_000_000


def test_a_full_producer_raises_when_told_so_and_has_sent_nothing_of_what_it_refused(
    cluster: TinyCluster,
) -> None:
    with Producer(
        "web",
        discovery=cluster,
        on_full="raise",
        linger_ms=0.0,
        batch_bytes_max=MIB,
        buffer_bytes_max=3 * MIB,
    ) as producer:
        futures = [producer.send_async("orders", b"x") for _ in range(3)]
        with pytest.raises(BrokerBusy, match="buffer_bytes_max"):
            producer.send_async("orders", b"refused")
        for broker in cluster.brokers:
            cluster.release(broker)
        assert all(future.result(5) for future in futures)
        assert producer.send_async("orders", b"later").result(5)
    bodies = [
        record.body
        for broker in cluster.brokers
        for records in broker.stored.values()
        for record in records
    ]
    assert sorted(bodies) == [b"later", b"x", b"x", b"x"]


def test_a_full_producer_waits_when_told_so_until_something_is_answered_or_its_time_is_over(
    cluster: TinyCluster,
) -> None:
    with Producer(
        "web", discovery=cluster, on_full="block", linger_ms=0.0, buffer_bytes_max=MIB
    ) as producer:
        first = producer.send_async("orders", b"1")
        with pytest.raises(BrokerBusy, match="stayed unanswered for 60 ms"):
            producer.send_async("orders", b"2", timeout=0.06)
        threading.Timer(
            0.1, lambda: [cluster.release(broker) for broker in cluster.brokers]
        ).start()
        assert producer.send_async("orders", b"3").result(5) and first.result(5)


def test_a_message_larger_than_the_limit_goes_alone(cluster: TinyCluster) -> None:
    for broker in cluster.brokers:
        cluster.release(broker)
    with Producer(
        "web", discovery=cluster, buffer_bytes_max=MIB, send_timeout_ms=10_000
    ) as producer:
        futures = [producer.send_async("orders", b"x" * (3 * MIB)) for _ in range(3)]
        assert all(future.result(10) for future in futures)


@pytest.mark.parametrize("settings", [{"on_full": "drop"}, {"buffer_bytes_max": 1000}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ProducerConfig(**settings)  # type: ignore[arg-type]
