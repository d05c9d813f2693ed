"""What a broker says of itself in numbers, and when a series ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from rmq_ray.actors.exporter import exposed
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.clients.collecting import Collector as Messages
from tests.support.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path) as found:
        yield found


class Scraped(dict[str, dict[tuple[str, ...], float]]):
    """name -> (topic, group) -> value, of one scrape as Prometheus reads it."""

    def __init__(self, cluster: LiveCluster) -> None:
        families = cluster.run(cluster.brokers[0].metrics())

        class Once(Collector):
            def collect(self) -> list[object]:  # type: ignore[override]
                return list(exposed(families))

        registry = CollectorRegistry()
        registry.register(Once())
        text = generate_latest(registry).decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = sample.labels
                assert labels["cluster"] == "live" and labels["node_id"] == "broker-a"
                key = (labels.get("topic", ""), labels.get("consumer_group", ""))
                self.setdefault(sample.name, {})[key] = sample.value


def test_traffic_and_lag_are_told_by_topic_and_group(cluster: LiveCluster) -> None:
    collector = Messages()
    with Producer("p", discovery=cluster) as producer:
        producer.send_batch("orders", [b"x" * 100] * 30)
        with PushConsumer(
            "g",
            listener=collector,
            subscriptions={"orders": "*"},
            discovery=cluster,
            start_from="first",
        ):
            collector.wait_for(30)
            eventually(lambda: Scraped(cluster)["rocketmq_consumer_connections"])
        producer.send_batch("orders", [b"y"] * 12)
    found = Scraped(cluster)
    assert found["rocketmq_messages_in_total"]["orders", ""] == 42
    assert found["rocketmq_throughput_in_total"]["orders", ""] > 3_000
    assert found["rocketmq_messages_out_total"]["orders", "g"] == 30
    assert found["rocketmq_consumer_lag_messages"]["orders", "g"] == 12
    assert found["rocketmq_consumer_lag_latency"]["orders", "g"] >= 0
    assert found["rmq_ray_put_messages_total"]["", ""] == 42
    assert found["rocketmq_storage_size"]["", ""] > 3_000
    assert found["rmq_ray_leads"]["", ""] == 1


def test_a_series_ends_with_its_topic(cluster: LiveCluster) -> None:
    with closing(Admin(cluster)) as admin:
        with Producer("p", discovery=cluster) as producer:
            producer.send("short", b"1")
        assert ("short", "") in Scraped(cluster)["rocketmq_messages_in_total"]
        admin.delete_topic("short")
    eventually(lambda: ("short", "") not in Scraped(cluster).get("rocketmq_messages_in_total", {}))


def test_the_page_lists_every_name_and_no_other(cluster: LiveCluster) -> None:
    with Producer("p", discovery=cluster) as producer:  # an empty log has no age
        producer.send("orders", b"1")
    families = cluster.run(cluster.brokers[0].metrics())
    told = {family.name for family in families} | {
        family.name
        for family in cluster.name_server.server.metrics()  # type: ignore[union-attr]
    }
    row = re.compile(r"^\| `(\w+)` \| (counter|gauge) \|", re.MULTILINE)
    listed = dict(row.findall(PAGE.read_text()))
    measured = {"rmq_ray_disk_free_bytes", "rmq_ray_disk_used_ratio"}  # from the first look on
    doors = {  # where clients are accounts (test_access)
        "rmq_ray_refused_requests_total",
        "rmq_ray_name_server_refused_requests_total",
    }
    assert set(listed) == told | measured | doors | {"rmq_ray_up"}
    kinds = {family.name: family.kind for family in families}
    assert all(listed[name] == kind for name, kind in kinds.items())
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in kinds.items())
