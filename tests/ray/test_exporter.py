"""What watches a cluster from an actor of its own: the exporter, as Prometheus fetches it, with the
metrics of clients, which are at Ray's endpoint, too; the console, as whoever types its command.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.request import urlopen

import httpx
import pytest
import ray
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

import rmq_ray as rmq
from rmq_ray.actors import exporter, gateway, names
from rmq_ray.cli.main import main
from tests.support.waiting import eventually

OWN = {"brokers": 2}


def scraped(address: str) -> dict[tuple[str, str, str], float]:
    """(name, topic, group or actor, status) -> the sum of the series."""
    with urlopen(address, timeout=20) as answer:
        text = answer.read().decode()
    found: dict[tuple[str, str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            who = labels.get("topic") or labels.get("consumer_group") or labels.get("actor", "")
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


def test_actors_are_seen_by_the_exporter_and_by_rays_prometheus(own: rmq.Cluster) -> None:
    ours = own.metrics(host="127.0.0.1", port=0)
    node = ray.nodes()[0]
    rays = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    producer = rmq.ProducerActor.options(num_cpus=0).remote("web", cluster=own.name)
    consumer = rmq.ConsumerActor.options(num_cpus=0).remote(
        "billing", FailsOnce, {"orders": "*"}, cluster=own.name, start_from="first"
    )
    ray.get(producer.send_batch.remote("orders", [b"x"] * 40))

    @rmq.consumer("orders", group="audit", start_from="first")
    def audit(_message: rmq.MessageExt) -> None:
        return None

    workers = audit.deploy(2, cluster=own.name, num_cpus=0)
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


def test_the_exporter_tells_what_all_servers_say_and_who_is_silent(
    own: rmq.Cluster, mq: rmq.Cluster
) -> None:
    with own.producer() as producer:
        producer.send_batch("orders", [b"x"] * 20)
    address = own.metrics(host="127.0.0.1", port=0)
    assert own.metrics(host="127.0.0.1", port=0) == address, "the one that runs"
    found = scraped(address)
    assert found["rmq_ray_up", "broker-a/0", ""] == found["rmq_ray_up", "name-server-0", ""] == 1
    assert found["rocketmq_messages_in_total", "orders", ""] > 0
    assert found["rmq_ray_name_server_brokers", "", ""] == 2
    own.stop_broker("broker-b")
    eventually(lambda: scraped(address)["rmq_ray_up", "broker-b/0", ""] == 0, 30)
    assert scraped(address)["rmq_ray_up", "broker-a/0", ""] == 1
    port = int(address.split(":")[2].split("/")[0])
    exporter.stop(mq.name)  # other tests ask for it
    with pytest.raises(rmq.ConfigError, match="another port"):
        mq.metrics(host="127.0.0.1", port=port)
    assert mq.metrics(host="127.0.0.1", port=0) != address
    assert exporter.stop(mq.name)
    own.start_stopped()


def run(mq: rmq.Cluster, *arguments: str) -> dict[str, str]:
    words = ["--cluster", mq.name, "--format", "json", "console", *arguments]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_the_command_prints_where_an_actor_serves_the_cluster(own: rmq.Cluster) -> None:
    own.admin.create_topic("orders")
    address = run(own, "--port", "0")["address"]
    assert run(own, "--port", "0")["address"] == address, "the one that runs"
    base, _, token = address.partition("/sign-in?token=")
    assert len(token) > 40
    with httpx.Client(base_url=base, timeout=20) as browser:
        assert browser.get("/").status_code == 303
        assert browser.get("/sign-in", params={"token": token}).status_code == 200

        def whole() -> str:
            """A broker has two seconds to answer, and may need more on a busy machine."""
            page = browser.get("/").text
            return page if "did not answer" not in page else ""

        page = eventually(whole)
        assert "controller: serving" in page and "broker-a" in page and "broker-b" in page
        assert "orders" in browser.get("/topics").text
        audit = browser.get("/audit", params={"request": "UPDATE_AND_CREATE_TOPIC"})
        assert "topic:orders" in audit.text
        own.stop_broker("broker-b")
        eventually(lambda: "did not answer: broker-b" in browser.get("/groups").text, 30)
    assert run(own, "--stop") == {"console": "stopped"}
    assert run(own, "--stop") == {"console": "was not running"}
    run(own, "--port", "0")
    own.metrics(host="127.0.0.1", port=0)
    own.stop()
    for actor in (names.console(own.name), names.exporter(own.name)):
        eventually(lambda actor=actor: gateway.find(actor) is None, 30)
