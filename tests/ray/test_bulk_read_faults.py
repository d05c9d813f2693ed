"""Bulk reads around the death of a broker: its queues are never silently missing, neither from the
plan nor from what is read.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

import rmq_ray as rmq
from rmq_ray.actors import gateway
from rmq_ray.client.scan.scan_plan import ScanPlan, plan_scan
from tests.support.clients.bulk_reading import elsewhere, offsets, table_of
from tests.support.outcomes import judging
from tests.support.waiting import eventually

COUNT = 300


def plan(mq: rmq.Cluster, topic: str) -> ScanPlan:
    """As Spark plans it."""
    return plan_scan(mq.discovery, topic, "earliest", "latest", 4, mq.discovery.broker_names())


def test_reading_right_behind_kill_9_waits_for_the_broker_and_lacks_nothing(
    start: Callable[..., rmq.Cluster],
) -> None:
    mq = start(brokers=2)
    assert set(mq.addresses) == {"name_servers", "broker-a", "broker-b"}, (
        "start returns when name servers know every broker"
    )
    assert gateway.broker_names(mq.name) == ("broker-a", "broker-b")
    queues = [rmq.MessageQueue("both", f"broker-{letter}", 0) for letter in "ab"]
    with rmq.Producer(cluster=mq.name) as p:
        for queue in queues:
            p.send_batch([rmq.Message("both", b"%d" % n + bytes(500)) for n in range(COUNT)], queue)
    early = plan(mq, "both")
    os.kill(eventually(lambda: mq.status()["broker-b/0"].get("pid")), signal.SIGKILL)
    late = plan(mq, "both")
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


def test_a_cluster_that_does_not_run_cannot_be_read() -> None:
    with pytest.raises(rmq.ClusterError, match="no cluster 'nowhere' runs here"):
        gateway.broker_names("nowhere")
