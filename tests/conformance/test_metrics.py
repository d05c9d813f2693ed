"""What a broker says of itself in numbers, and when a series ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rmq_ray.actors.exporter import controller_families
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.model.metrics import Family, page_of, text_of
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

        for family in text_string_to_metric_families(page_of(text_of(families))):
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


def test_latencies_and_sizes_are_told_in_buckets(cluster: LiveCluster) -> None:
    with Producer("p", discovery=cluster) as producer:
        producer.send_batch("orders", [b"x" * 2_000] * 5)
        producer.send("orders", b"y", delay=timedelta(minutes=5))
        with closing(Admin(cluster)) as admin:
            admin.topic_stats("orders")
    families = {one.name: one for one in cluster.run(cluster.brokers[0].metrics())}
    sizes = buckets(families["rocketmq_message_size"], topic="orders")
    assert (sizes["1024"], sizes["4096"], sizes["+Inf"]) == (0, 5, 5)
    sends = buckets(families["rocketmq_rpc_latency"], request_code="send_records")
    assert sends["+Inf"] == 1 and sends["3000"] == 1
    asked = buckets(families["rocketmq_rpc_latency"], request_code="get_topic_stats_info")
    assert asked["+Inf"] == 1, "an answer that came later"
    waits = buckets(families["rocketmq_delay_message_latency"], topic="orders")
    assert (waits["60"], waits["600"]) == (0, 1)


def buckets(family: Family, **labels: str) -> dict[str, float]:
    """``le`` -> count, of the series with these labels."""
    return {
        sample.labels["le"]: sample.value
        for sample in family.samples
        if sample.part == "_bucket" and labels.items() <= sample.labels.items()
    }


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
    members = {"c/broker-a/0": {"creations": 2, "kills": 1, "stopped": 0}}
    controller = controller_families("c", members, {"broker-a": {"master_epoch": 3}})
    assert [one.samples[0].value for one in controller] == [2, 1, 0, 3]
    told |= {family.name for family in controller}
    row = re.compile(r"^\| `(\w+)` \| (counter|gauge|histogram) \|", re.MULTILINE)
    listed = dict(row.findall(PAGE.read_text()))
    measured = {"rmq_ray_disk_free_bytes", "rmq_ray_disk_used_ratio"}  # from the first look on
    doors = {  # where clients are accounts (test_access)
        "rmq_ray_refused_requests_total",
        "rmq_ray_name_server_refused_requests_total",
    }
    of_tables = {name for name in listed if name.startswith("rmq_table_")}  # tests/ray/test_tables
    clients = PAGE.read_text().split("\n## Clients\n")[1].split("\n## ")[0]
    of_clients = {name for name, _ in row.findall(clients)}  # test_client_counters
    assert set(listed) == told | measured | doors | of_tables | of_clients | {"rmq_ray_up"}
    kinds = {family.name: family.kind for family in families}
    assert all(listed[name] == kind for name, kind in kinds.items())
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in kinds.items())
