"""Whether a client reaches its cluster, as a load balancer asks: in time, and never by an error."""

from __future__ import annotations

from pathlib import Path

import rmq_ray as rmq
from rmq_ray.actors.discovery import StaticDiscovery
from rmq_ray.client.admin.admin import Admin
from tests.support.brokers.live_cluster import CLUSTER, SECRET, LiveCluster
from tests.support.faults.stopwatch import Stopwatch
from tests.support.wire import scripted


def test_a_cluster_is_healthy_until_its_broker_goes(tmp_path: Path) -> None:
    with LiveCluster(tmp_path) as cluster:
        (server,) = cluster.lookup().name_servers
        mq = rmq.connect(CLUSTER, name_servers=server, secret=SECRET)
        healthy = mq.admin.health()
        assert healthy and (healthy.broker, healthy.problem) == ("broker-a", "")
        cluster.run(cluster.brokers[0].stop())
        ill = mq.admin.health(timeout=0.5)
        assert not ill and "broker" in ill.problem
        mq.admin.close()


def test_a_name_server_that_says_nothing_is_told_in_time() -> None:
    with scripted(lambda sock: None) as address:
        handle = Admin(StaticDiscovery(str(address), SECRET))
        watch = Stopwatch()
        ill = handle.health(timeout=0.5)
        assert not ill and "no answer to the handshake in time" in ill.problem
        assert watch.lived_s < 2
        handle.close()
