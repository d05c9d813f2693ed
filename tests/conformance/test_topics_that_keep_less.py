"""A topic that keeps less than its brokers' stores: set, changed and seen by an administrator, and
what consumers find then.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import AdminError, OffsetOutOfRange, TopicNotFound
from rmq_ray.model.ids import MessageQueue
from tests.support.brokers.live_cluster import LiveCluster

HOUR_MS = 3_600_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, brokers=2) as running:
        yield running


def retention(admin: Admin, topic: str = "orders") -> set[int | None]:
    return {row["retention_hours"] for row in admin.describe_topic(topic)}


def test_a_topics_retention_is_set_changed_alone_and_told(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = Admin(cluster)
    admin.create_topic("orders", queues=2, retention_hours=24)
    with monkeypatch.context() as alone:
        alone.setattr(admin, "topic_configs", lambda: pytest.fail("every topic was asked for"))
        assert retention(admin) == {24}
    admin.alter_topic("orders", permission=4)
    assert retention(admin) == {24} and len(admin.describe_topic("orders")) == 4
    admin.alter_topic("orders", queues=3, retention_hours=48)
    assert retention(admin) == {48} and len(admin.describe_topic("orders")) == 6
    assert {queue.permission for queue in admin.route("orders").queues} == {4}
    admin.alter_topic("orders", retention_hours=0)
    assert retention(admin) == {None}
    with pytest.raises(AdminError, match="1 to 72 are possible.*reserved_hours"):
        admin.alter_topic("orders", retention_hours=73)
    with pytest.raises(AdminError, match="reserved_hours"):
        admin.create_topic("other", retention_hours=1_000)
    with pytest.raises(TopicNotFound):
        admin.alter_topic("absent", queues=2)
    admin.close()


def test_a_consumer_begins_at_the_first_message_that_is_young_enough(cluster: LiveCluster) -> None:
    admin = Admin(cluster)
    admin.create_topic("orders", queues=1, retention_hours=1)
    admin.create_topic("bills", queues=1)
    queues = {topic: MessageQueue(topic, "broker-a", 0) for topic in ("orders", "bills")}
    with Producer("web", discovery=cluster) as producer:
        for topic, queue in queues.items():
            producer.send_batch(topic, [b"old"] * 3, queue)
        now_ms = SYSTEM_CLOCK.now_ms()
        store = cluster.store(0)
        assert store.expire_topics(now_ms + 2 * HOUR_MS, {"orders": 1}) == 1
        for topic, queue in queues.items():
            producer.send(topic, b"new", queue=queue)
    with PullConsumer("reader", discovery=cluster) as reader:
        found = {}
        for topic, queue in queues.items():
            reader.assign([queue])
            reader.seek(queue, reader.watermark_offsets(queue)[0])
            found[topic] = [message.body for message in reader.poll(10, timeout=20.0)]
            found[topic] += [message.body for message in reader.poll(10, timeout=0.5)]
        reader.assign([queues["orders"]])
        with pytest.raises(OffsetOutOfRange):
            reader.seek(queues["orders"], 0)
    assert found == {"orders": [b"new"], "bills": [b"old"] * 3 + [b"new"]}
    rows = {row["broker"]: row for row in admin.describe_topic("orders")}
    assert (rows["broker-a"]["min_offset"], rows["broker-a"]["messages"]) == (3, 1)
    admin.close()
