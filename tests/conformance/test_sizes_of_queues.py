"""What the size of a queue of values counts: what waits to be got, not what somebody took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ray.util.queue import Empty

import rmq_ray as rmq
from rmq_ray.client.pop.simple_consumer import SimpleConsumer
from rmq_ray.client.producer.producer import Producer
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.waiting import eventually


@pytest.fixture(scope="module", params=["told", "asked"])
def cluster(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[LiveCluster]:
    """Its brokers tell what nobody took, or, as they were before, administration has to ask."""
    with (
        pytest.MonkeyPatch.context() as patch,
        LiveCluster(tmp_path_factory.mktemp("live"), brokers=2) as live,
    ):
        if request.param == "asked":
            patch.setattr(SimpleConsumer, "untaken", lambda _self: None)
        yield live


def queue(cluster: LiveCluster, name: str, **settings: Any) -> rmq.Queue:
    told = cluster.lookup()
    where = {"cluster": told.cluster, "name_servers": told.name_servers, "secret": told.secret}
    return rmq.Queue(name, **where, **settings)


def take(jobs: rmq.Queue, count: int) -> list[Any]:
    """Without saying that they are got, as a getter does who dies."""
    return jobs._connected().consumer.receive(count, invisible=30, wait=5)


def test_what_is_out_and_what_was_got_behind_it_is_not_counted(cluster: LiveCluster) -> None:
    with queue(cluster, "behind", maxsize=5) as jobs:
        jobs.put_nowait_batch(range(5))
        assert jobs.full()
        (out,) = take(jobs, 1)
        assert jobs.size() == len(jobs) == 4 and not jobs.full()
        assert jobs.get_nowait_batch(3) == [1, 2, 3]
        with pytest.raises(Empty):
            jobs.get_nowait_batch(2)
        assert jobs.qsize() == 1 and jobs.get() == 4 and jobs.empty()
        jobs.put("later")
        assert jobs.qsize() == 1
        out.nack()
        assert eventually(lambda: jobs.size() == 2), "it comes again"
        assert sorted(map(str, jobs.get_nowait_batch(2))) == ["0", "later"] and jobs.empty()


def test_what_is_taken_in_advance_counts_for_the_handle_that_has_it(cluster: LiveCluster) -> None:
    with queue(cluster, "ahead") as plain, queue(cluster, "ahead", prefetch=10) as ahead:
        plain.put_nowait_batch(range(20))
        assert ahead.get() == 0
        assert (ahead.size(), plain.size()) == (19, 10)
        assert plain.get_nowait_batch(10) == list(range(10, 20))
        assert plain.empty() and not ahead.empty()
        ahead.shutdown()
        assert eventually(lambda: plain.size() == 9), "it gave them back"
        assert set(plain.get_nowait_batch(9)) == set(range(1, 10)) and plain.empty()


def test_an_item_whose_getter_was_cancelled_is_one_of_the_batch(cluster: LiveCluster) -> None:
    with queue(cluster, "cancelled") as jobs:
        jobs.put_nowait_batch([1, 2])
        jobs._undelivered.append(jobs.get())
        assert jobs.size() == 2
        with pytest.raises(Empty):
            jobs.get_nowait_batch(3)
        assert jobs.get_nowait_batch(2) == [1, 2] and jobs.empty()


def test_a_wait_is_a_number_of_seconds(cluster: LiveCluster) -> None:
    with queue(cluster, "waits", maxsize=1) as jobs:
        jobs.put(1)
        for wrong in (-1, float("nan")):
            with pytest.raises(ValueError, match="a number of seconds"):
                jobs.put(2, timeout=wrong)
            with pytest.raises(ValueError, match="a number of seconds"):
                jobs.get(timeout=wrong)


def test_items_of_every_broker_are_counted(cluster: LiveCluster) -> None:
    with queue(cluster, "everywhere") as jobs:
        jobs.put(b"here")
        with Producer("others", discovery=cluster) as others:
            for broker_queue in jobs._connected().admin.topic_stats("everywhere"):
                others.send("everywhere", b"there", queue=broker_queue)
        assert jobs.size() == 3
        assert sorted(jobs.get_nowait_batch(3)) == [b"here", b"there", b"there"]
        assert jobs.empty()
