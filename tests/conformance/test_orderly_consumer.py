"""Ordered consumption with real brokers, connections and disks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.producer import Producer
from rmq_ray.client.push_consumer import PushConsumer
from rmq_ray.config import ConsumerConfig
from tests.support.live_cluster import LiveCluster
from tests.support.ordered import History, check_order
from tests.support.waiting import eventually


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, queue_lock_ms=1_500) as running:
        yield running


def consumer(cluster: Any, history: History, who: str, group: str = "billing", **options: Any) -> PushConsumer:
    options.setdefault("config", ConsumerConfig(group, lock_refresh_ms=300, lock_trusted_ms=1_000, suspend_queue_ms=20))
    return PushConsumer(group, listener=history.listener(who), subscriptions={"orders": "*"}, discovery=cluster, start_from="first", orderly=True, **options)


def send(cluster: LiveCluster, count: int, first: int = 0, queues: int = 4) -> None:
    with Producer("p", discovery=cluster) as producer:
        for number in range(first, first + count):
            producer.send("orders", b"%d" % number, message_group=str(number % queues))


def test_each_queue_comes_in_its_order_and_queues_run_beside_one_another(cluster: LiveCluster) -> None:
    history = History(lambda _messages, _ctx: time.sleep(0.002))
    send(cluster, 400)
    with consumer(cluster, history, "one"):
        history.wait_for(400)
    check_order(history.calls)
    assert len(history.calls) == 400
