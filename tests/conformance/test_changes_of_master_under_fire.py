"""Replicas die at random moments, masters first, while a producer and a consumer go on: what was
acknowledged is there, and read.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.config import ConsumerConfig, ReplicationMode
from rmq_ray.errors import SendError, SendUnknown
from rmq_ray.model.message import SendStatus
from tests.support.brokers.elected_cluster import ElectedCluster
from tests.support.clients.collecting import Collector
from tests.support.waiting import eventually

ROUNDS = 4


class Sender(threading.Thread):
    """Numbers, one after the other; which were acknowledged, and which may be stored."""

    def __init__(self, cluster: ElectedCluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self.stop = threading.Event()
        self.acknowledged: set[bytes] = set()
        self.open: set[bytes] = set()
        self.errors: list[Exception] = []

    def run(self) -> None:
        number = 0
        with Producer("p", discovery=self._cluster, send_timeout_ms=12_000) as producer:
            while not self.stop.is_set():
                body = b"%d" % number
                number += 1
                try:
                    status = producer.send("orders", body).status
                except SendUnknown:
                    self.open.add(body)
                except SendError as error:
                    self.errors.append(error)
                else:
                    (self.acknowledged if status is SendStatus.SEND_OK else self.open).add(body)
                self.stop.wait(0.002)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_acknowledged_message_is_lost_whoever_dies(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    settings = {
        "replication": ReplicationMode.SYNC_MASTER,
        "slave_timeout_ms": 3_000,
        "in_sync_lag_ms": 1_000,
    }
    with ElectedCluster(tmp_path, 3, settings, automatic=True) as cluster:
        cluster.settled()
        sender, collector = Sender(cluster), Collector()
        config = ConsumerConfig("g", offset_persist_ms=200, offset_persist_first_ms=200)
        with PushConsumer(
            "g",
            listener=collector,
            subscriptions={"orders": "*"},
            discovery=cluster,
            start_from="first",
            config=config,
        ):
            sender.start()
            for _ in range(ROUNDS):
                before = len(sender.acknowledged)
                # awaited at once
                eventually(lambda: len(sender.acknowledged) > before + 5)  # noqa: B023
                time.sleep(chance.random() * 0.1)
                victims = chance.sample(sorted(cluster.replicas), 1)
                if chance.random() < 0.7:
                    victims = [cluster.master]
                for victim in victims:
                    cluster.kill(victim)
                time.sleep(chance.random() * 0.5)
                for victim in victims:
                    cluster.start(victim)
            before = len(sender.acknowledged)
            eventually(lambda: len(sender.acknowledged) > before + 5)
            sender.stop.set()
            sender.join(30)
            eventually(lambda: sender.acknowledged <= set(collector.bodies))
        cluster.settled()
        assert set(collector.bodies) <= sender.acknowledged | sender.open and not sender.errors
        stores = [cluster.replica_store(number) for number in range(3)]
        eventually(lambda: len({store.visible_offset for store in stores}) == 1)
        assert (
            stores[0].queues() == stores[1].queues() == stores[2].queues()
            and stores[0].epochs == stores[1].epochs == stores[2].epochs
        )
        twice = len(collector.bodies) - len(set(collector.bodies))
        assert twice <= len(collector.bodies) // 2, (
            "messages come again only where a consumer's progress was lost"
        )
