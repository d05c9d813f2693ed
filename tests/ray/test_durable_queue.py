"""`rmq.Queue` does what Ray's own does, and is still there after what ends Ray's."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray
from ray.util.queue import Empty, Full

import rmq_ray as rmq
from rmq_ray.actors import durable_queue
from tests.support.outcomes import judging
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(240)
WAIT_S = 60


@pytest.fixture
def queue(mq: rmq.Cluster, request: pytest.FixtureRequest) -> Iterator[rmq.Queue]:
    with mq.queue(request.node.name[:100]) as made:
        yield made


def test_items_come_once_in_their_order_and_of_their_types(queue: rmq.Queue) -> None:
    items: list[Any] = [b"x", "ü", None, 1.5, {"a": [1, {"b": b""}]}, []]
    for item in items:
        queue.put(item)
    assert len(queue) == queue.qsize() == len(items) and not queue.empty() and not queue.full()
    with judging():
        assert [queue.get(timeout=WAIT_S) for _ in items] == items and queue.empty()
    queue.put_nowait_batch(range(3_000))
    with judging():
        assert queue.get_nowait_batch(2_999) == list(range(2_999))
    with pytest.raises(Empty):
        queue.get_nowait_batch(2)
    assert queue.get_nowait() == 2_999, "they stayed"
    with pytest.raises(Empty):
        queue.get_nowait()
    with pytest.raises(Empty):
        queue.get(timeout=0.05)
    assert queue.get_nowait_batch(0) == []


def test_a_full_queue_refuses_or_waits_for_room(mq: rmq.Cluster) -> None:
    with rmq.Queue("small", 2, cluster=mq.name) as small:
        small.put_nowait_batch([1, 2])
        assert small.full()
        for put in (
            lambda: small.put_nowait(3),
            lambda: small.put(3, timeout=0.05),
            lambda: small.put_nowait_batch([3]),
        ):
            with pytest.raises(Full):
                put()
        putter = threading.Thread(target=small.put, args=(3,), daemon=True)
        putter.start()
        assert small.get(timeout=WAIT_S) == 1
        putter.join(WAIT_S)
        assert not putter.is_alive() and small.get_nowait_batch(2) == [2, 3]


def test_a_message_of_any_producer_is_an_item(mq: rmq.Cluster, queue: rmq.Queue) -> None:
    queue.put("first")
    with mq.producer("others") as others:
        others.send(queue.name, b"plain")
        others.send(queue.name, b"tagged", tag="paid")
    assert [queue.get(timeout=WAIT_S) for _ in range(3)] == ["first", b"plain", b"tagged"]


def test_tasks_and_event_loops_share_it_by_handle_or_by_name(queue: rmq.Queue) -> None:
    @ray.remote(num_cpus=0)
    def double(handle: rmq.Queue) -> None:
        handle.put(handle.get(timeout=WAIT_S) * 2)

    done = double.remote(queue)
    queue.put(np.arange(3))
    ray.get(done, timeout=WAIT_S)
    assert queue.get(timeout=WAIT_S).tolist() == [0, 2, 4]

    async def both() -> Any:
        waiting = asyncio.create_task(queue.get_async(timeout=WAIT_S))
        await queue.put_async("later")
        return await waiting

    assert asyncio.run(both()) == "later"


def test_nothing_is_unpickled_that_a_handle_was_not_told_to(
    mq: rmq.Cluster, queue: rmq.Queue
) -> None:
    with pytest.raises(rmq.ClientError, match="a tuple is no plain value"):
        queue.put((1, 2))
    with rmq.Queue(queue.name, pickle=True, cluster=mq.name) as trusting:
        with pytest.raises(rmq.ClientError, match="a lock cannot be pickled, nothing was put"):
            trusting.put(threading.Lock())
        trusting.put((1, lambda: 7))
        with pytest.raises(rmq.ClientError, match="unpickles nothing; it stays"):
            queue.get(timeout=WAIT_S)
        one, function = trusting.get(timeout=WAIT_S)
        assert one == 1 and function() == 7


def test_what_was_put_is_there_after_the_broker_was_killed(mortal: rmq.Cluster) -> None:
    queue = rmq.Queue("jobs", cluster=mortal.name)
    queue.put_nowait_batch(range(100))
    assert queue.get_nowait_batch(10) == list(range(10))
    os.kill(mortal.status()["broker-a/0"]["pid"], signal.SIGKILL)
    found = [queue.get(timeout=WAIT_S) for _ in range(90)]
    with judging():
        assert found == list(range(10, 100))
    queue.put("after")
    assert queue.get(timeout=WAIT_S) == "after"
    queue.shutdown()


def test_a_queue_is_deleted_only_by_force(mq: rmq.Cluster, queue: rmq.Queue) -> None:
    queue.put(1)
    queue.shutdown()
    assert queue.get(timeout=WAIT_S) == 1, "the next call connects anew"
    queue.put(2)
    queue.shutdown(force=True)
    assert queue.name not in mq.admin.topics() + mq.admin.groups()


def test_wrong_settings_and_topics_are_told(mq: rmq.Cluster) -> None:
    with pytest.raises(rmq.ConfigError, match="maxsize"):
        rmq.Queue("jobs", -1, cluster=mq.name)
    with pytest.raises(rmq.ClientError, match="topic"):
        rmq.Queue("no name", cluster=mq.name)
    mq.admin.create_topic("wide", queues=4)
    with pytest.raises(rmq.TopicExists, match="not first in, first out"):
        rmq.Queue("wide", cluster=mq.name).put(1)
    with rmq.Queue("jobs", cluster=mq.name) as queue:
        for call in (lambda: queue.get(timeout=-1), lambda: queue.put(1, timeout=-1)):
            with pytest.raises(ValueError, match="negative"):
                call()
        assert queue.empty()


def test_taking_in_advance_keeps_order_and_gives_back_what_was_not_got(mq: rmq.Cluster) -> None:
    with rmq.Queue("ahead", cluster=mq.name) as plain:
        plain.put_nowait_batch(range(300))
        with rmq.Queue("ahead", cluster=mq.name, prefetch=100) as ahead:
            with judging():
                assert [ahead.get(timeout=WAIT_S) for _ in range(150)] == list(range(150))
            assert ahead.size() == 150, "what it has in advance nobody got yet"
            assert ahead.get_nowait_batch(20) == list(range(150, 170))
            assert plain.get(timeout=WAIT_S) == 200, "the ones before it are the other handle's"
        rest = {plain.get(timeout=WAIT_S) for _ in range(129)}
        with judging():
            assert rest == set(range(170, 300)) - {200}
        assert eventually(plain.empty)


@pytest.mark.slow
def test_items_taken_in_advance_by_a_process_that_died_come_again(mq: rmq.Cluster) -> None:
    @ray.remote(num_cpus=0, max_restarts=0)
    class Getter:
        def first(self, queue: rmq.Queue) -> Any:
            durable_queue.TAKEN_S = 5.0  # in this process, 30 s otherwise
            got = queue.get(timeout=WAIT_S)
            queue._connected().consumer.flush()
            return got, os.getpid()

    with rmq.Queue("left", cluster=mq.name, prefetch=10) as queue:
        queue.put_nowait_batch(range(10))
        getter = Getter.remote()
        got, pid = ray.get(getter.first.remote(queue), timeout=WAIT_S)
        os.kill(pid, signal.SIGKILL)
        with rmq.Queue("left", cluster=mq.name) as plain:
            with judging():
                assert got == 0
                assert {plain.get(timeout=WAIT_S) for _ in range(9)} == set(range(1, 10))
            assert eventually(plain.empty)


@pytest.mark.parametrize("prefetch", [-1, 1_025, True, 1.0])
def test_a_prefetch_that_cannot_be_is_refused(mq: rmq.Cluster, prefetch: Any) -> None:
    with pytest.raises(rmq.ConfigError, match="prefetch"):
        rmq.Queue("refused", cluster=mq.name, prefetch=prefetch)
