"""Metrics of clients in actors, at the cluster's exporter and at Ray's own endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

import ray
from prometheus_client.parser import text_string_to_metric_families

import rmq_ray as rmq
from tests.support.waiting import eventually


def scraped(address: str) -> dict[tuple[str, str, str], float]:
    """(name, topic or group, status) -> the sum of the series."""
    with urlopen(address, timeout=20) as answer:
        text = answer.read().decode()
    found: dict[tuple[str, str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            who = labels.get("topic") or labels.get("consumer_group", "")
            key = (sample.name, who, labels.get("invocation_status", ""))
            found[key] = found.get(key, 0.0) + sample.value
    return found


class FailsOnce:
    """A listener."""

    def __init__(self) -> None:
        self.failed = False

    def __call__(self, messages: list[Any], _context: object) -> None:
        if not self.failed:
            self.failed = True
            raise ValueError("once")


def test_actors_are_seen_by_the_exporter_and_by_rays_prometheus(
    start: Callable[..., rmq.Cluster],
) -> None:
    mq = start()
    ours = mq.metrics(host="127.0.0.1", port=0)
    node = ray.nodes()[0]
    rays = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    producer = rmq.ProducerActor.options(num_cpus=0).remote("web", cluster=mq.name)
    consumer = rmq.ConsumerActor.options(num_cpus=0).remote(
        "billing", FailsOnce, {"orders": "*"}, cluster=mq.name, start_from="first"
    )
    ray.get(producer.send_batch.remote("orders", [b"x"] * 40))

    @rmq.consumer("orders", group="audit", start_from="first")
    def audit(_message: rmq.MessageExt) -> None:
        return None

    workers = audit.deploy(2, cluster=mq.name, num_cpus=0)
    sent = "rmq_ray_producer_messages_total"
    done = "rmq_ray_consumer_messages_total"

    def seen() -> bool:
        found = scraped(ours)
        return (
            found.get((sent, "orders", "success")) == 40
            and found.get((done, "billing", "success"), 0) >= 40
            and found.get((done, "billing", "failure"), 0) >= 1
            and found.get((done, "audit", "success")) == 40
            and found.get(("rocketmq_send_cost_time_count", "orders", "success"), 0) >= 1
        )

    eventually(seen, 60, 0.5)
    eventually(lambda: scraped(rays).get((f"ray_{sent}", "orders", "success")) == 40, 60, 0.5)
    eventually(lambda: scraped(rays).get((f"ray_{done}", "audit", "success")) == 40, 60, 0.5)
    workers.stop()
    ray.get([producer.close.remote(), consumer.stop.remote()])
    assert scraped(ours)[sent, "orders", "success"] == 40, "a producer that ends leaves its counts"
