"""Replicas under a controller: promoted, deposed, fenced, with producers and consumers on them; real ports and disks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.client.producer import Producer
from rmq_ray.client.push_consumer import PushConsumer
from rmq_ray.config import ReplicationMode
from rmq_ray.model.message import SendStatus
from rmq_ray.model.reigns import Role
from tests.support.collecting import Collector
from tests.support.reigned import ReignedCluster
from tests.support.waiting import eventually

SYNC = {"replication": ReplicationMode.SYNC_MASTER, "slave_timeout_ms": 2_000}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ReignedCluster]:
    with ReignedCluster(tmp_path, 2, SYNC) as cluster:
        yield cluster


def test_a_first_election_makes_one_master_whom_the_other_follows(pair: ReignedCluster) -> None:
    pair.settled()
    assert [pair.report(number).role for number in (0, 1)] == [Role.MASTER, Role.SLAVE] and pair.report(0).master_epoch == 1
    with Producer("p", discovery=pair) as producer:
        assert producer.send("orders", b"one").status is SendStatus.SEND_OK
    pair.settled()
    assert pair.reigned_store(1).end_offset == pair.reigned_store(0).end_offset > 0


def test_the_slave_of_a_killed_master_reigns_and_has_everything_acknowledged(pair: ReignedCluster) -> None:
    pair.settled()
    collector = Collector()
    with (
        Producer("p", discovery=pair) as producer,
        PushConsumer("g", listener=collector, subscriptions={"orders": "*"}, discovery=pair, start_from="first"),
    ):
        for number in range(20):
            assert producer.send("orders", b"%d" % number).status is SendStatus.SEND_OK
        collector.wait_for(20)
        pair.kill(0)
        assert pair.elect() == 1
        promoted = time.monotonic()
        result = producer.send("orders", b"20")
        took = time.monotonic() - promoted
        assert result.status is SendStatus.SLAVE_NOT_AVAILABLE, "one copy is not two"
        pair.start(0)
        pair.settled()
        assert producer.send("orders", b"21").status is SendStatus.SEND_OK
        collector.wait_for(22)
        assert {int(body) for body in collector.bodies} == set(range(22))
        assert took < 2, took
    eventually(lambda: pair.report(0).role is Role.SLAVE and pair.report(0).log_epoch == 2)
