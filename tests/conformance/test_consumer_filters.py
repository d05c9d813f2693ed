"""Filters of a running consumer: what they take out is consumed, with its offset, and never
seen.
"""

from __future__ import annotations

from pathlib import Path

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.model.message import Message
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.clients.collecting import Collector
from tests.support.waiting import eventually


def test_what_a_filter_takes_out_is_consumed_unseen(tmp_path: Path) -> None:
    with LiveCluster(tmp_path) as cluster:
        admin = Admin(cluster)
        admin.create_topic("orders", queues=1)
        with Producer("web", discovery=cluster) as producer:
            producer.send_batch(
                [
                    Message("orders", b"%d" % n, properties={"region": "eu" if n % 3 else "us"})
                    for n in range(30)
                ]
            )
        collector = Collector()
        options = {
            "filters": [lambda message: message.properties["region"] == "eu"],
            "batch_size": 4,
        }
        with PushConsumer(
            "billing",
            listener=collector,
            subscriptions={"orders": "*"},
            discovery=cluster,
            start_from="first",
            **options,
        ) as consumer:  # type: ignore[arg-type]
            assert sorted(collector.wait_for(20)) == sorted(b"%d" % n for n in range(30) if n % 3)
            eventually(lambda: consumer.stats()["consumed_ok"] == 30)
        assert len(collector.bodies) == 20
        admin.close()
