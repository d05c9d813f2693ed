"""Whether a client reaches its cluster, as a load balancer asks: in time, and never by an error."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import rmq_ray as rmq
from rmq_ray.actors.cluster_clients import ClusterClients
from rmq_ray.actors.discovery import StaticDiscovery
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.instance.client_instance import ClientInstance
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
        ill = mq.admin.health()
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


def test_many_threads_that_ask_first_share_one_client(tmp_path: Path) -> None:
    with LiveCluster(tmp_path) as cluster:
        (server,) = cluster.lookup().name_servers
        before = set(ClientInstance.running())
        for _ in range(10):
            mq = rmq.connect(CLUSTER, name_servers=server, secret=SECRET)
            together = threading.Barrier(8)

            def ask(mq: ClusterClients = mq, together: threading.Barrier = together) -> bool:
                together.wait(10)
                return bool(mq.admin.health(timeout=5.0))

            with ThreadPoolExecutor(8) as threads:
                assert all([each.result() for each in [threads.submit(ask) for _ in range(8)]])
            assert len(set(ClientInstance.running()) - before) == 1
            mq.admin.close()
            assert set(ClientInstance.running()) == before
