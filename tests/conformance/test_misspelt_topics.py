"""Topics whose names were misspelt: what producers, consumers and the brokers say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.errors import TopicNotFound
from rmq_ray.model.message import Message
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.clients.collecting import Collector
from tests.support.waiting import eventually

MEANT = r"rmq-ray topic create ordres --queues 4`; did you mean 'orders'\?"


def test_where_topics_are_made_by_hand_a_send_to_a_misspelt_one_names_the_right_one(
    tmp_path: Path,
) -> None:
    with LiveCluster(tmp_path, broker={"auto_create_topics": False}) as cluster:
        admin = Admin(cluster)
        admin.create_topic("orders", queues=2)
        admin.create_topic("payments", queues=2)
        admin.close()

        async def in_loop() -> None:
            async with AsyncProducer("loop", discovery=cluster) as producer:
                await producer.send("ordres", b"x")

        with Producer("p", discovery=cluster) as producer:
            for send in (
                lambda: producer.send("ordres", b"x"),
                lambda: producer.send_async("ordres", b"x").result(30),
                lambda: producer.send_batch([Message("ordres", b"x")]),
                lambda: asyncio.run(in_loop()),
            ):
                with pytest.raises(TopicNotFound, match=MEANT):
                    send()
            assert producer.send("orders", b"x").queue.topic == "orders"


def test_nobody_meant_the_topics_that_brokers_have_of_their_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LiveCluster(tmp_path) as cluster, Producer("p", discovery=cluster) as producer:
        producer.send("broker-x", b"looks like broker-a")
    assert "'broker-x': it is created" in caplog.text and "did you mean" not in caplog.text


def test_where_a_send_makes_its_topic_producer_and_broker_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LiveCluster(tmp_path) as cluster, Producer("p", discovery=cluster) as producer:
        admin = Admin(cluster)
        admin.create_topic("orders", queues=2)
        admin.close()
        producer.send("orders", b"x")
        assert "automatically" not in caplog.text
        for _ in range(3):
            producer.send("ordres", b"x")
    said = [one.getMessage() for one in caplog.records if "automatically" in one.getMessage()]
    assert [one.split()[0] for one in said] == ["no", "topic"], said
    assert "'ordres'" in said[0] and said[0].endswith("did you mean 'orders'?")
    assert said[1].startswith("topic 'ordres' was created automatically with 4 queues on broker ")


def test_a_consumer_of_a_misspelt_topic_says_which_it_may_mean_and_begins_when_the_topic_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LiveCluster(tmp_path, broker={"auto_create_topics": False}) as cluster:
        admin = Admin(cluster)
        admin.create_topic("orders", queues=1)
        got = Collector()
        with PushConsumer(
            "g",
            listener=got,
            subscriptions={"ordres": "*"},
            discovery=cluster,
            start_from="first",
        ):
            eventually(
                lambda: (
                    "group g gets nothing of topic ordres: no name server knows it; "
                    "did you mean 'orders'?" in caplog.text
                )
            )
            admin.create_topic("ordres", queues=1)
            with Producer("p", discovery=cluster) as producer:
                producer.send("ordres", b"after all")
            assert got.wait_for(1, 90.0) == [b"after all"]
        admin.close()
