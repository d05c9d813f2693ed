"""Two tenants with the same names in one cluster: each sends, consumes and retries under its own
(protocol-behaviour 25).
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.messages.listener import RECONSUME_LATER
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.clients.collecting import Collector
from tests.support.faults.chaos import read_log
from tests.support.waiting import eventually


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path) as running:
        admin = Admin(running)
        for name in ("a%orders", "b%orders"):
            admin.create_topic(name, queues=2)
        admin.close()
        yield running


@pytest.mark.seed("S3-005", "S3-032", "S3-109")
def test_tenants_do_not_see_one_another_and_know_only_their_own_names(cluster: LiveCluster) -> None:
    collectors = {"a": Collector(), "b": Collector()}
    consumers = [
        PushConsumer(
            "billing",
            listener=collectors[tenant],
            subscriptions={"orders": "*"},
            discovery=cluster,
            start_from="first",
            namespace=tenant,
        )
        for tenant in "ab"
    ]
    with (
        Producer("web", discovery=cluster, namespace="a") as first,
        Producer("web", discovery=cluster, namespace="b") as second,
    ):
        queue = MessageQueue("orders", "broker-a", 1)
        results = [
            first.send("orders", b"a1"),
            first.send("orders", b"a2", queue=queue),
            first.send("orders", b"a3", message_group="g"),
            first.send(
                "orders",
                b"a4",
                selector=lambda queues, message, arg: (
                    queues[0] if message.topic == queues[0].topic == "orders" else None
                ),
            ),
            first.send_async("orders", b"a5").result(5),
            *first.send_batch([Message("orders", b"a6")], queue),
            second.send("orders", b"b1"),
        ]
        first.send_oneway("orders", b"a7")
        assert {result.queue.topic for result in results} == {"orders"} and first.group == "a%web"

    async def run() -> None:
        async with AsyncProducer("loop", discovery=cluster, namespace="b") as looped:
            assert (await looped.send("orders", b"b2", queue=queue)).queue == queue
            assert (await looped.send_batch([Message("orders", b"b3")]))[0].queue.topic == "orders"

    asyncio.run(run())
    with consumers[0], consumers[1]:
        assert sorted(collectors["a"].wait_for(7)) == [b"a%d" % n for n in range(1, 8)]
        assert sorted(collectors["b"].wait_for(3)) == [b"b1", b"b2", b"b3"]
    assert {message.topic for message in collectors["a"].messages} == {"orders"}
    assert pickle.loads(pickle.dumps(collectors["a"].messages[0])).topic == "orders"
    assert {record.topic for record in read_log(cluster, "a%orders").values()} == {"a%orders"}


def test_retries_stay_in_their_namespace(cluster: LiveCluster) -> None:
    seen: list[tuple[str, str, int]] = []

    def listener(messages: list[Any], ctx: Any) -> Any:
        ctx.delay_level_when_next_consume = 1
        seen.extend(
            (message.topic, message.queue.topic, message.reconsume_times) for message in messages
        )
        return RECONSUME_LATER if messages[0].reconsume_times == 0 else None

    with PushConsumer(
        "billing",
        listener=listener,
        subscriptions={"orders": "*"},
        discovery=cluster,
        start_from="first",
        namespace="a",
    ) as consumer:
        with Producer("web", discovery=cluster, namespace="a") as producer:
            producer.send("orders", b"x")
        eventually(lambda: len(seen) == 2, 15)
        assert consumer.group == "a%billing"
        consumer.subscribe("other")
        consumer.unsubscribe("other")
    assert seen == [("orders", "a%orders", 0), ("orders", "%RETRY%a%billing", 1)]
