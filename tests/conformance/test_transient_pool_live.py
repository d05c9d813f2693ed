"""A broker with a transient store pool, over sockets: answers leave after the commit, every way to
send works, a listener sees what is acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.model.message import Message, SendStatus
from tests.support.brokers.live_cluster import LiveCluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, transient_store_pool=True, transient_buffer_bytes=65_536) as running:
        admin = Admin(running)
        admin.create_topic("orders", queues=1)
        admin.close()
        yield running


def bodies(cluster: LiveCluster, count: int) -> list[bytes]:
    with PullConsumer("readers", discovery=cluster, start_from="first") as consumer:
        consumer.subscribe("orders")
        found: list[bytes] = []
        deadline = time.monotonic() + 10
        while len(found) < count and time.monotonic() < deadline:
            found += [message.body for message in consumer.poll(timeout=0.5)]
        return found


@pytest.mark.seed("S3-096")
def test_a_small_send_is_answered_after_the_commit_and_four_pages_at_once(
    cluster: LiveCluster,
) -> None:
    with Producer("web", discovery=cluster) as producer:
        producer.send("orders", b"first")
        began = time.monotonic()
        assert producer.send("orders", b"small").status is SendStatus.SEND_OK
        small_s = time.monotonic() - began
        costs = []
        for _ in range(5):
            began = time.monotonic()
            producer.send("orders", b"x" * 20_000)
            costs.append(time.monotonic() - began)
    assert small_s > 0.05 and min(costs) < 0.15


def test_every_way_to_send_works_and_all_of_it_is_read(cluster: LiveCluster) -> None:
    with Producer("web", discovery=cluster) as producer:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: producer.send("orders", b"send-%d" % n), range(8)))
        futures = [producer.send_async("orders", b"async-%d" % n) for n in range(50)]
        assert [future.result(10).queue_offset for future in futures] == sorted(
            future.result().queue_offset for future in futures
        )
        producer.send_batch([Message("orders", b"batch-%d" % n) for n in range(5)])
        producer.send_arrow("orders", pa.table({"b": ["arrow-1", "arrow-2"]}), body="b")
        producer.send("orders", b"exactly", delay=timedelta(milliseconds=300))
        with producer.transaction(lambda _message: None) as transaction:
            transaction.send("orders", b"together")
    found = bodies(cluster, 8 + 50 + 5 + 2 + 2)
    assert len(found) == len(set(found)) == 67 and {
        b"exactly",
        b"together",
        b"arrow-2",
        b"batch-4",
        b"async-49",
        b"send-7",
    } <= set(found)
