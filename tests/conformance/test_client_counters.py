"""What producers and consumers count of themselves, over sockets, and that the page lists it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.errors import SendError
from rmq_ray.model.metrics import Family
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
OK, FAILED = {"invocation_status": "success"}, {"invocation_status": "failure"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path) as found:
        yield found


def value(families: list[Family], name: str, part: str = "", **labels: str) -> float:
    """The sum of what has these labels."""
    return sum(
        sample.value
        for family in families
        if family.name == name
        for sample in family.samples
        if sample.part == part and labels.items() <= sample.labels.items()
    )


def listed() -> dict[str, str]:
    """Name -> type, of the page's tables of clients."""
    section = PAGE.read_text().split("\n## Clients\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE))


@pytest.mark.parametrize("orderly", [False, True])
def test_sends_and_listeners_calls_are_counted_and_the_page_has_every_name(
    cluster: LiveCluster, orderly: bool
) -> None:
    tried: set[bytes] = set()

    def take(messages: list, _context: object) -> None:  # type: ignore[type-arg]
        if messages[0].body == b"poison" and b"poison" not in tried:
            tried.add(b"poison")
            raise ValueError("once")

    with Producer("p", discovery=cluster) as producer:
        producer.send("orders", b"poison")
        producer.send_batch("orders", [b"x"] * 30)
        [future.result(20) for future in [producer.send_async("orders", b"y") for _ in range(9)]]
        with pytest.raises(SendError):
            producer.send("orders", b"x" * (5 << 20))
        sent = producer.metrics()
        with PushConsumer(
            "g",
            listener=take,
            subscriptions={"orders": "*"},
            discovery=cluster,
            start_from="first",
            orderly=orderly,
        ) as consumer:
            name = "rmq_ray_consumer_messages_total"
            eventually(lambda: value(consumer.metrics(), name, **FAILED) == 1)
            eventually(lambda: value(consumer.metrics(), name, **OK) >= 39)
            eventually(lambda: value(consumer.metrics(), "rocketmq_consumer_cached_bytes") == 0)
            got = consumer.metrics()
    assert value(sent, "rmq_ray_producer_messages_total", topic="orders", **OK) == 40
    assert value(sent, "rocketmq_send_cost_time", "_count", topic="orders", **OK) >= 3
    assert value(sent, "rocketmq_send_cost_time", "_sum", topic="orders", **OK) > 0
    assert value(sent, "rmq_ray_producer_bytes_waiting") == 0
    assert value(got, "rmq_ray_consumer_messages_total", consumer_group="g", **FAILED) == 1
    assert value(got, "rocketmq_process_time", "_count", topic="orders", consumer_group="g") >= 40
    assert value(got, "rmq_ray_consumer_pulled_messages_total") >= 40
    assert value(got, "rmq_ray_consumer_queues", consumer_group="g") > 0
    assert value(got, "rmq_ray_consumer_retries_total") == (0 if orderly else 1)
    assert {one.name: one.kind for one in [*sent, *got]} == listed()


def test_a_broker_that_is_away_is_seen_in_failures_and_repeats(cluster: LiveCluster) -> None:
    with Producer("p", discovery=cluster) as producer:
        producer.send("orders", b"first")
        repeats = "rmq_ray_producer_repeats_total"
        assert value(producer.metrics(), repeats, topic="orders") == 0
        cluster.run(cluster.brokers[0].stop())
        with pytest.raises(SendError):
            producer.send("orders", b"second", timeout=1.5)
        found = producer.metrics()
    assert value(found, "rmq_ray_producer_messages_total", topic="orders", **FAILED) == 1
    assert value(found, "rocketmq_send_cost_time", "_count", topic="orders", **FAILED) == 1
    assert value(found, repeats, topic="orders") >= 1
