"""``/metrics`` of a cluster, as Prometheus fetches it."""

from __future__ import annotations

from collections.abc import Callable
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

import rmq_ray as rmq
from rmq_ray.actors import gateway, names
from tests.support.waiting import eventually


def scraped(address: str) -> dict[tuple[str, str], float]:
    """(name, topic or actor) -> value."""
    with urlopen(address, timeout=20) as answer:
        text = answer.read().decode()
    return {
        (sample.name, sample.labels.get("topic") or sample.labels.get("actor", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_exporter_tells_what_all_servers_say_and_who_is_silent(
    start: Callable[..., rmq.Cluster],
) -> None:
    mq = start(brokers=2)
    with mq.producer() as producer:
        producer.send_batch("orders", [b"x"] * 20)
    address = mq.metrics(host="127.0.0.1", port=0)
    assert mq.metrics(host="127.0.0.1", port=0) == address, "the one that runs"
    found = scraped(address)
    assert found["rmq_ray_up", "broker-a/0"] == found["rmq_ray_up", "name-server-0"] == 1
    assert found["rocketmq_messages_in_total", "orders"] > 0
    assert found["rmq_ray_name_server_brokers", ""] == 2
    mq.stop_broker("broker-b")
    eventually(lambda: scraped(address)["rmq_ray_up", "broker-b/0"] == 0, 30)
    assert scraped(address)["rmq_ray_up", "broker-a/0"] == 1
    port = int(address.split(":")[2].split("/")[0])
    other = start()
    with pytest.raises(rmq.ConfigError, match="another port"):
        other.metrics(host="127.0.0.1", port=port)
    assert other.metrics(host="127.0.0.1", port=0) != address
    mq.stop()
    eventually(lambda: gateway.find(names.exporter(mq.name)) is None, 30)
