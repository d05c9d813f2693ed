"""A fifth of the broker's answers to sends is lost on the way: nothing acknowledged is missing and
nothing is stored twice, on a real store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.config import FlushMode
from rmq_ray.errors import SendUnknown
from rmq_ray.model.message import Message
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.faults.chaos import Acknowledged, SendingThread, check_log, place_of, read_log
from tests.support.faults.lossy_proxy import LossyProxy
from tests.support.waiting import eventually

SETTINGS: dict[str, Any] = {"retries": 16, "send_timeout_ms": 6_000, "idempotent": True}


@pytest.fixture(params=[FlushMode.ASYNC_FLUSH, FlushMode.SYNC_FLUSH], ids=["async", "sync"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, flush=request.param) as running:
        admin = Admin(running)
        admin.create_topic("orders", queues=3)
        admin.close()
        yield running


def send_waiting(proxy: LossyProxy, acknowledged: Acknowledged) -> None:
    with Producer("web", discovery=proxy, **SETTINGS) as producer, ThreadPoolExecutor(8) as threads:
        for body, result in threads.map(
            lambda n: (b"%d" % n, producer.send("orders", b"%d" % n)), range(300)
        ):
            acknowledged.places[body] = place_of(result)


def send_async(proxy: LossyProxy, acknowledged: Acknowledged) -> None:
    with Producer("web", discovery=proxy, linger_ms=0.0, **SETTINGS) as producer:
        futures = {b"%d" % n: producer.send_async("orders", b"%d" % n) for n in range(200)}
        acknowledged.places |= {
            body: place_of(future.result(20)) for body, future in futures.items()
        }


def send_delayed(proxy: LossyProxy, acknowledged: Acknowledged) -> None:
    """Single messages: their places are those in the schedule topic, so only their number
    counts.
    """
    with Producer("web", discovery=proxy, **SETTINGS) as producer, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: producer.send("orders", b"%d" % n, delay_level=1), range(100)))


def send_in_loop(proxy: LossyProxy, acknowledged: Acknowledged) -> None:
    async def run() -> None:
        async with AsyncProducer("web", discovery=proxy, **SETTINGS) as producer:
            for start in range(0, 300, 10):
                bodies = [b"%d" % n for n in range(start, start + 10)]
                results = await asyncio.gather(
                    *(producer.send(Message("orders", body)) for body in bodies)
                )
                acknowledged.places.update(zip(bodies, map(place_of, results), strict=True))

    asyncio.run(run())


@pytest.mark.parametrize("send", [send_waiting, send_async, send_in_loop, send_delayed])
def test_no_message_is_stored_twice_and_none_is_missing(cluster: LiveCluster, send: Any) -> None:
    acknowledged = Acknowledged()
    with LossyProxy(cluster, {"orders": 3}, 0.2) as proxy:
        send(proxy, acknowledged)
        assert proxy.lost["swallowed"] and proxy.lost["closed"]
    store = cluster.store()
    topic = "SCHEDULE_TOPIC_XXXX" if send is send_delayed else "orders"
    if send is send_delayed:
        assert store.bounds(topic, 0)[1] == 100
        return
    admin = Admin(cluster)
    check_log(
        read_log(cluster, "orders"),
        acknowledged,
        {queue: stats.max_offset for queue, stats in admin.topic_stats("orders").items()},
    )
    admin.close()
    assert acknowledged.places and not acknowledged.failed
    assert store.counters["repeats"] > 0


def test_transactions_end_once_whatever_answers_are_lost(cluster: LiveCluster) -> None:
    """Halves, commits and roll-backs are all repeated; none of it is seen."""

    def one(n: int) -> bytes | None:
        tx = producer.transaction(lambda message: int(message.body) % 3 != 0)
        tx.send("orders", b"%d" % n)
        if n % 3:
            tx.commit()
            return b"%d" % n
        tx.rollback()
        return None

    settings = SETTINGS | {"send_timeout_ms": 8_000}
    with (
        LossyProxy(cluster, {"orders": 3}, 0.2) as proxy,
        Producer("web", discovery=proxy, **settings) as producer,
        ThreadPoolExecutor(8) as threads,
    ):
        committed = [body for body in threads.map(one, range(30)) if body is not None]
        assert proxy.lost["swallowed"] + proxy.lost["closed"] > 2
    assert sorted(bytes(record.body) for record in read_log(cluster, "orders").values()) == sorted(
        committed
    )
    assert cluster.run(half_messages(cluster)) == 0


async def half_messages(cluster: LiveCluster) -> int:
    return int(cluster.brokers[0].status()["half_messages"])


@pytest.mark.parametrize("wait", [True, False], ids=["send", "send_async"])
def test_a_send_that_is_given_up_is_unknown_and_never_a_refusal_of_what_is_stored(
    cluster: LiveCluster, wait: bool
) -> None:
    """Nine answers of ten are lost and there is no time for many repeats."""
    with LossyProxy(cluster, {"orders": 3}, 0.9) as proxy:
        producers = [
            Producer(f"web-{n}", discovery=proxy, retries=2, send_timeout_ms=150, linger_ms=0.0)
            for n in range(6)
        ]
        senders = [
            SendingThread(producer, "orders", f"t{n}", wait=wait, pause_s=0.02)
            for n, producer in enumerate(producers)
        ]
        with ExitStack() as stack:
            for sender in senders:
                stack.enter_context(sender)
            eventually(
                lambda: (
                    sum(len(sender.acknowledged.failed) for sender in senders) > 60
                    if wait
                    else proxy.lost.total() > 100
                )
            )
            found = Acknowledged()
            for sender in senders:
                sender.finish()
                found.places |= sender.acknowledged.places
                found.failed |= sender.acknowledged.failed
    admin = Admin(cluster)
    check_log(
        read_log(cluster, "orders"),
        found,
        {queue: stats.max_offset for queue, stats in admin.topic_stats("orders").items()},
    )
    admin.close()
    assert any(isinstance(error, SendUnknown) for error in found.failed.values())
