"""A disk that takes 0.3 s for each write: the broker answers busy instead of queueing, producers
back off, and everything is stored once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.store.front.message_store import MessageStore
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.faults.chaos import Acknowledged, check_log, place_of, read_log

WRITE_S = 0.3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path) as running:
        admin = Admin(running)
        admin.create_topic("orders", queues=2)
        admin.close()
        yield running


def test_a_slow_disk_refuses_what_gathers_and_loses_and_doubles_nothing(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, slow = MessageStore.append_frame, threading.Event()

    def late(*arguments: Any, **named: Any) -> Any:
        if slow.is_set():
            time.sleep(WRITE_S)
        return real(*arguments, **named)

    monkeypatch.setattr(MessageStore, "append_frame", late)
    acknowledged = Acknowledged()
    producers = [
        Producer(f"web-{n}", discovery=cluster, send_timeout_ms=15_000) for n in range(6)
    ]  # a connection each
    for producer in producers:
        producer.send("orders", producer.group.encode())

    def send(n: int) -> float:
        began = time.monotonic()
        result = producers[n % 6].send("orders", b"%d" % n)
        acknowledged.places[b"%d" % n] = place_of(result)
        return time.monotonic() - began

    slow.set()
    threading.Timer(1.2, slow.clear).start()
    with ThreadPoolExecutor(12) as threads:
        costs = list(threads.map(send, range(36)))
    status = cluster.brokers[0].status()
    for producer in producers:
        producer.close()
    assert status["refused_busy"] > 0, "the broker queued instead of refusing"
    assert max(costs) < 6.0
    admin = Admin(cluster)
    check_log(
        read_log(cluster, "orders"),
        acknowledged,
        {queue: stats.max_offset for queue, stats in admin.topic_stats("orders").items()},
    )
    admin.close()
    assert len(acknowledged.places) == 36
