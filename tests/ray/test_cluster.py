"""A cluster of actors: starting, attaching, isolation, sending and consuming, bad arguments; bulk
reads around the death of a broker, whose queues are never silently missing.
"""

from __future__ import annotations

import logging
import os
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import ray

import rmq_ray as rmq
from rmq_ray.actors import gateway, names
from rmq_ray.client.scan.scan_plan import ScanPlan, plan_scan
from tests.support.brokers.failing_over import store_of
from tests.support.clients.bulk_reading import elsewhere, offsets, table_of
from tests.support.clients.collecting import Collector
from tests.support.outcomes import judging
from tests.support.waiting import eventually

COUNT = 300


def group() -> str:
    return f"g{uuid.uuid4().hex[:8]}"


@pytest.mark.seed("S0-003", "S0-007")
def test_what_a_producer_sends_a_listener_gets(mq: rmq.Cluster) -> None:
    mq.admin.create_topic("first", queues=2)
    collector = Collector()
    with (
        rmq.PushConsumer(
            group(),
            listener=collector,
            subscriptions={"first": "*"},
            start_from="first",
            cluster=mq.name,
        ),
        rmq.Producer(cluster=mq.name) as p,
    ):
        result = p.send(
            "first", b"hello world", tag="greeting", keys=["k1", "k2"], properties={"region": "eu"}
        )
        assert result.status is rmq.SendStatus.SEND_OK
        assert collector.wait_for(1) == [b"hello world"]
    (message,) = collector.messages
    assert (message.topic, message.tag, list(message.keys), message.properties) == (
        "first",
        "greeting",
        ["k1", "k2"],
        {"region": "eu"},
    )
    with judging():
        assert (message.queue, message.queue_offset, message.message_id) == (
            result.queue,
            result.queue_offset,
            result.message_id,
        )


def test_starting_twice_attaches(mq: rmq.Cluster) -> None:
    second = rmq.start(mq.name)
    assert mq.addresses == second.addresses == rmq.connect(mq.name).addresses


def test_settings_that_a_running_cluster_does_not_have_are_told_by_who_attaches(
    mq: rmq.Cluster, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.WARNING, logger="rmq_ray.cluster"):
        rmq.start(mq.name)
        assert not caplog.records
        rmq.start(mq.name, brokers=2, flush="sync", store_path=str(tmp_path), replicas=0)
    assert (
        len(caplog.messages) == 1
        and "brokers='1', not '2'; flush='async', not 'sync'; store_path=" in caplog.text
        and "replicas" not in caplog.text
    )


def test_clusters_of_different_names_do_not_see_each_other(
    mq: rmq.Cluster, wide: rmq.Cluster
) -> None:
    mq.admin.create_topic("only-here")
    assert "only-here" in mq.admin.topics() and "only-here" not in wide.admin.topics()
    one_address, two_address = mq.discovery.lookup(), wide.discovery.lookup()
    assert set(one_address.name_servers).isdisjoint(two_address.name_servers)
    crossed = rmq.Producer(
        name_servers=list(one_address.name_servers), secret=two_address.secret, cluster=mq.name
    )
    with pytest.raises(rmq.RmqError, match="secret"):
        crossed.send("only-here", b"x")
    crossed.close()


@pytest.mark.seed("S0-043", "S0-044", "S0-045", "S0-046", "S0-047")
def test_two_brokers_with_eight_queues_each_give_a_route_of_sixteen(wide: rmq.Cluster) -> None:
    template = wide.admin.route("TBW102")
    assert [
        (q.broker_name, q.permission, q.read_queues, q.write_queues) for q in template.queues
    ] == [("broker-a", 7, 8, 8), ("broker-b", 7, 8, 8)]
    wide.admin.create_topic("sixteen", queues=8)
    with rmq.Producer(cluster=wide.name) as p:
        queues = [p.send("sixteen", b"x").queue for _ in range(16)]
    assert sorted((q.broker_name, q.queue_id) for q in queues) == [
        (f"broker-{b}", i) for b in "ab" for i in range(8)
    ]


def test_with_one_of_two_brokers_stopped_what_needs_it_says_how_it_is_started(
    wide: rmq.Cluster,
) -> None:
    wide.admin.create_topic("orders", queues=1)
    queue = rmq.MessageQueue("orders", "broker-a", 0)
    helps = "broker-a stopped: start it with `rmq-ray broker start broker-a`"
    with wide.producer() as producer:
        producer.send("orders", b"x", queue=queue)
        wide.stop_broker("broker-a")
        began = time.monotonic()
        with pytest.raises(rmq.SendError, match=helps):
            producer.send("orders", b"x", queue=queue, timeout=60)
        with pytest.raises(rmq.AdminError, match=helps):
            wide.admin.drain_broker("broker-a")
        assert time.monotonic() - began < 20, "neither waits for its time-out"
        assert producer.send("orders", b"x").queue.broker_name == "broker-b"
        wide.start_broker("broker-a")
        assert producer.send("orders", b"x", queue=queue, timeout=60).queue == queue


@pytest.mark.seed("S0-010")
def test_name_servers_are_independent_and_one_is_enough(wide: rmq.Cluster) -> None:
    wide.admin.create_topic("two-servers")
    found = wide.discovery.lookup()
    assert len(set(found.name_servers)) == 2
    for address in found.name_servers:
        with rmq.Producer(name_servers=[address], secret=found.secret, cluster=wide.name) as p:
            assert p.send("two-servers", b"x").status is rmq.SendStatus.SEND_OK


def plan(mq: rmq.Cluster, topic: str) -> ScanPlan:
    """As Spark plans it."""
    return plan_scan(mq.discovery, topic, "earliest", "latest", 4, mq.discovery.broker_names())


def test_reading_right_behind_kill_9_waits_for_the_broker_and_lacks_nothing(
    wide: rmq.Cluster,
) -> None:
    assert gateway.broker_names(wide.name) == ("broker-a", "broker-b")
    queues = [rmq.MessageQueue("both", f"broker-{letter}", 0) for letter in "ab"]
    with rmq.Producer(cluster=wide.name) as p:
        for queue in queues:
            p.send_batch([rmq.Message("both", b"%d" % n + bytes(500)) for n in range(COUNT)], queue)
    early = plan(wide, "both")
    os.kill(eventually(lambda: wide.status()["broker-b/0"].get("pid")), signal.SIGKILL)
    late = plan(wide, "both")
    expected = {(queue.broker_name, 0): list(range(COUNT)) for queue in queues}
    for one in (early, late, elsewhere(early), elsewhere(late)):
        with judging():
            assert offsets(table_of(one)) == expected


def test_a_topic_can_be_read_as_soon_as_its_first_send_was_acknowledged(mq: rmq.Cluster) -> None:
    with rmq.Producer(cluster=mq.name) as p:
        for number in range(5):
            p.send(f"just-made-{number}", b"x")
            with judging():
                assert plan(mq, f"just-made-{number}").rows == 1


def test_a_topic_is_created_by_the_first_send_with_four_queues(mq: rmq.Cluster) -> None:
    with rmq.Producer(cluster=mq.name) as p:
        p.send("made-by-send", b"x")
    assert len(mq.admin.describe_topic("made-by-send")) == 4


def test_a_pickled_producer_works_in_a_task(mq: rmq.Cluster) -> None:
    producer = rmq.Producer(cluster=mq.name)

    @ray.remote(num_cpus=0)
    def send(p: rmq.Producer) -> str:
        with p:
            return p.send("from-a-task", b"x").status.name

    assert ray.get(send.remote(producer)) == "SEND_OK"
    producer.close()


def test_producer_and_consumer_actors_do_the_work_of_a_script(mq: rmq.Cluster) -> None:
    mq.admin.create_topic("actors", queues=4)

    class Adder:
        def __init__(self) -> None:
            self.total = 0

        def __call__(self, messages: list, ctx: object) -> None:
            self.total += sum(int(m.body) for m in messages)

        def value(self) -> int:
            return self.total

    consumer = rmq.ConsumerActor.options(num_cpus=0).remote(
        group(), Adder, {"actors": "*"}, start_from="first", concurrency=1, cluster=mq.name
    )
    producer = rmq.ProducerActor.options(num_cpus=0).remote("adders", cluster=mq.name)
    results = ray.get(
        producer.send_batch.remote([rmq.Message("actors", b"%d" % i) for i in range(100)])
    )
    assert sum(result.count for result in results) == 100
    assert eventually(lambda: ray.get(consumer.ask.remote("value")) == sum(range(100)))
    ray.get([consumer.stop.remote(), producer.close.remote()])
    with pytest.raises(rmq.ClientError, match="no public method"):
        ray.get(consumer.ask.remote("_listener"))


@pytest.mark.seed("S4-229")
def test_lag_counts_down_to_zero(mq: rmq.Cluster) -> None:
    mq.admin.create_topic("lagging", queues=1)
    name, collector = group(), Collector()
    with rmq.Producer(cluster=mq.name) as p:
        p.send_batch([rmq.Message("lagging", b"x") for _ in range(10)])
    with rmq.PushConsumer(
        name,
        listener=collector,
        subscriptions={"lagging": "*"},
        start_from="first",
        cluster=mq.name,
    ):
        collector.wait_for(10)
    (row,) = [row for row in mq.admin.group_lag(name) if row["topic"] == "lagging"]
    assert (row["committed"], row["max_offset"], row["lag"]) == (10, 10, 0)
    assert name in mq.admin.groups()
    with pytest.raises(rmq.GroupNotFound):
        mq.admin.group_lag("nobody-knows-it")


def test_a_deleted_topic_is_gone(mq: rmq.Cluster) -> None:
    mq.admin.create_topic("short-lived")
    mq.admin.delete_topic("short-lived")
    assert "short-lived" not in mq.admin.topics()
    with pytest.raises(rmq.TopicNotFound):
        mq.admin.describe_topic("short-lived")


def test_a_store_in_use_is_refused_and_nothing_is_left_running(
    wide: rmq.Cluster, start: Callable[..., rmq.Cluster]
) -> None:
    home = store_of(wide, 0).parent
    with pytest.raises(rmq.StoreError, match="name-server-0: stop its cluster first") as caught:
        start(name="second-user", store_path=str(home))
    assert type(caught.value).__name__ == "StoreInUse"
    kept = (home / "name-server-0" / "port").read_text()
    assert wide.discovery.lookup().name_servers[0].endswith(f":{kept}"), (
        "where the first one comes back after a kill"
    )
    assert gateway.find(names.controller("second-user")) is None
    assert gateway.find(names.broker("second-user", "broker-a", 0)) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"brokers": 0}, "brokers"),
        ({"flush": "often"}, "flush"),
        ({"foreign": "maybe"}, "foreign"),
        ({"name": "a/b"}, "cluster name"),
        ({"broker_port": 70000}, "broker_port"),
        ({"brokers": 2, "broker_port": 20000}, "broker_port"),
        ({"replicas": -1}, "replicas"),
        ({"replication": "sync"}, "replicas=1"),
        ({"failover_settings": {"after": 1}}, "after"),
        ({"store_settings": {"speed": 11}}, "speed"),
        ({"broker_settings": {"colour": "red"}}, "colour"),
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(
    settings: dict, message: str, tmp_path: Path
) -> None:
    arguments = {"name": "never-there", "store_path": str(tmp_path), **settings}
    with pytest.raises(rmq.ConfigError, match=message):
        rmq.start(arguments.pop("name"), **arguments)
    assert gateway.find("never-there/controller") is None


def test_connecting_to_a_cluster_that_does_not_run_says_what_to_do() -> None:
    with pytest.raises(rmq.ClusterError, match="rmq-ray up"):
        rmq.connect("nowhere")
    with pytest.raises(rmq.ClusterError, match="nowhere-either"):
        rmq.Producer(cluster="nowhere-either").send("t", b"x")
    with pytest.raises(rmq.ClusterError, match="no cluster 'nowhere' runs here"):
        gateway.broker_names("nowhere")
