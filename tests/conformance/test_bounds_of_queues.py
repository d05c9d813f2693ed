"""The bound of a queue of values: exact for putters at the same time, and nothing of a batch that
has no room is there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ray.util.queue import Full

import rmq_ray as rmq
from rmq_ray.client.pop.simple_consumer import SimpleConsumer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.config import FlushMode
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.outcomes import judging
from tests.support.waiting import eventually

WAIT_S = 60


@pytest.fixture(scope="module", params=[FlushMode.ASYNC_FLUSH, FlushMode.SYNC_FLUSH])
def cluster(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[LiveCluster]:
    store = {"flush": request.param, "segment_bytes": 16 << 20}
    with LiveCluster(tmp_path_factory.mktemp("live"), brokers=2, **store) as live:
        yield live


def queue(cluster: LiveCluster, name: str, maxsize: int, **settings: Any) -> rmq.Queue:
    told = cluster.lookup()
    where = {"cluster": told.cluster, "name_servers": told.name_servers, "secret": told.secret}
    return rmq.Queue(name, maxsize, **where, **settings)


def at_once(count: int, work: Callable[[int], None]) -> None:
    """``work(number)`` in so many threads."""
    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads)


def test_putters_at_the_same_time_do_not_pass_the_bound(cluster: LiveCluster) -> None:
    handles = [queue(cluster, "many", 25) for _ in range(4)]
    kept, refused = list[int](), list[int]()

    def put(number: int) -> None:
        for item in range(number * 10, number * 10 + 10):
            try:
                handles[number % 4].put_nowait(item)
                kept.append(item)
            except Full:
                refused.append(item)

    handles[0].empty()
    at_once(8, put)
    with judging():
        assert len(kept) == 25 and len(refused) == 55
        assert sorted(handles[1].get_nowait_batch(25)) == sorted(kept)
        assert handles[2].empty()
    for handle in handles:
        handle.shutdown()


def test_batches_at_the_same_time_are_there_whole_or_not_at_all(cluster: LiveCluster) -> None:
    with queue(cluster, "batches", 20) as jobs:
        kept = list[int]()

        def put(number: int) -> None:
            try:
                jobs.put_nowait_batch([number] * 7)
                kept.append(number)
            except Full:
                pass

        jobs.empty()
        at_once(6, put)
        with judging():
            assert len(kept) == 2 and jobs.size() == 14
            assert sorted(jobs.get_nowait_batch(14)) == sorted(kept * 7)


def test_who_waits_for_room_puts_once_and_within_the_bound(cluster: LiveCluster) -> None:
    with queue(cluster, "waiting", 3) as jobs, queue(cluster, "waiting", 0) as getter:
        jobs.put_nowait_batch([b"a", b"b", b"c"])
        sizes, got = list[int](), list[Any]()

        def work(number: int) -> None:
            if number:
                jobs.put(number, timeout=WAIT_S)
                return
            while len(got) < 11:
                got.append(getter.get(timeout=WAIT_S))
                sizes.append(getter.size())

        at_once(9, work)
        with judging():
            assert max(sizes) <= 3
            assert sorted(got[3:]) == list(range(1, 9)) and getter.empty()


def test_a_full_queue_says_so_and_a_batch_above_the_bound_never_has_room(
    cluster: LiveCluster,
) -> None:
    with queue(cluster, "full", 2) as jobs:
        with pytest.raises(Full, match="no room for 3 more, of 2"):
            jobs.put_nowait_batch([1, 2, 3])
        assert jobs.empty()
        jobs.put_nowait_batch([1, 2])
        for wait in ({"block": False}, {"timeout": 0}, {"timeout": 0.05}):
            with pytest.raises(Full):
                jobs.put(3, **wait)
        assert jobs.get() == 1
        jobs.put_nowait(3)
        assert jobs.get_nowait_batch(2) == [2, 3]


def test_what_this_handle_and_other_brokers_hold_takes_room(cluster: LiveCluster) -> None:
    with queue(cluster, "elsewhere", 5, prefetch=2) as jobs:
        jobs.put_nowait_batch(range(4))
        assert jobs.get() == 0 and jobs.size() == 3
        first = jobs._connected().queue.broker_name
        with Producer("others", discovery=cluster) as others:
            for broker_queue in jobs._connected().admin.topic_stats("elsewhere"):
                if broker_queue.broker_name != first:
                    others.send("elsewhere", b"there", queue=broker_queue)
        assert eventually(lambda: jobs.size() == 4)
        jobs.put_nowait("last")
        with pytest.raises(Full):
            jobs.put_nowait("over")


def test_a_batch_of_several_frames_is_judged_as_one(cluster: LiveCluster) -> None:
    items = [bytes([number]) * (1 << 20) for number in range(6)]
    with queue(cluster, "frames", 6) as jobs:
        jobs.put(b"one")
        with pytest.raises(Full):
            jobs.put_nowait_batch(items)
        assert jobs.size() == 1 and jobs.get() == b"one"
        jobs.put_nowait_batch(items)
        with judging():
            assert jobs.full() and jobs.get_nowait_batch(6) == items


def test_a_batch_of_which_a_part_is_stored_is_not_called_full(cluster: LiveCluster) -> None:
    items = [bytes([number]) * (1 << 20) for number in range(6)]
    with queue(cluster, "slots", 20) as jobs:
        jobs.empty()
        jobs._connected().admin.alter_topic("slots", slots=1)
        with pytest.raises(rmq.TopicFull, match="stored"):
            jobs.put_nowait_batch(items)
        assert 0 < jobs.size() < 6


def test_a_broker_of_an_earlier_release_is_asked_before(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimpleConsumer, "untaken", lambda _self, but="": None)
    with queue(cluster, "earlier", 2) as jobs:
        jobs.put_nowait_batch([1, 2])
        with pytest.raises(Full, match="has 2 items"):
            jobs.put(3, timeout=0.05)
        assert jobs.get_nowait_batch(2) == [1, 2]


def test_a_send_without_a_bound_into_the_same_queue_is_not_refused(cluster: LiveCluster) -> None:
    with queue(cluster, "both", 1) as bounded, queue(cluster, "both", 0) as free:
        bounded.put(1)
        free.put(2)
        with pytest.raises(Full):
            bounded.put_nowait(3)
        assert bounded.get_nowait_batch(2) == [1, 2]
