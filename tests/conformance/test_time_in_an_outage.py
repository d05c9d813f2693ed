"""A topic's master is away: who sends waits for as long as was said, and no longer; other topics go
on.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.producer.producer_base import ProducerBase
from rmq_ray.clock import ManualClock
from rmq_ray.errors import (
    BrokerUnreachable,
    ClientError,
    NoRoute,
    RequestTimeout,
    SendError,
    SendTimeout,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message
from rmq_ray.model.topics import DEFAULT_TOPIC, TopicRoute
from tests.support.brokers.tiny_cluster import TinyCluster
from tests.support.faults.stopwatch import Stopwatch, within
from tests.support.waiting import eventually

TABLE = pa.table({"body": [b"2", b"3"]})
MANY = [f"t{number}" for number in range(20)]


@pytest.fixture
def cluster() -> Iterator[TinyCluster]:
    with TinyCluster(topics={name: 4 for name in ("orders", "good", *MANY)}) as running:
        running.name_servers[0].routes.pop(DEFAULT_TOPIC, None)
        yield running


def loses_its_master(cluster: TinyCluster, producer: ProducerBase, topic: str) -> TopicRoute:
    """The producer has learnt that only a slave is left; the route that was."""
    routes = cluster.name_servers[0].routes
    full = routes[topic]
    broker = full.brokers[0]
    routes[topic] = replace(
        full, queues=(), brokers=(replace(broker, addresses={1: broker.addresses[0]}),)
    )
    core = producer._core
    assert core is not None
    core.instance.routes.refresh(topic)
    return full


def test_an_awaited_send_in_an_outage_ends_at_its_own_time_out(cluster: TinyCluster) -> None:
    async def main() -> None:
        async with AsyncProducer("web", discovery=cluster, send_timeout_ms=10_000) as producer:
            await producer.send("orders", b"1")
            loses_its_master(cluster, producer, "orders")
            watch = Stopwatch()
            calls = [
                producer.send("orders", b"2", timeout=0.2),
                producer.send(
                    "orders", b"3", timeout=0.2, selector=lambda queues, message, arg: queues[0]
                ),
            ]
            ends = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(end) for end in ends] == [NoRoute, NoRoute] and "after 200 ms" in str(
                ends[0]
            )
            assert watch.lived_s < 3

    asyncio.run(main())


def test_an_awaited_send_goes_on_when_the_master_is_back_and_a_shorter_one_before_it_has_given_up(
    cluster: TinyCluster,
) -> None:
    async def main() -> None:
        async with AsyncProducer("web", discovery=cluster, send_timeout_ms=10_000) as producer:
            await producer.send("orders", b"1")
            full = loses_its_master(cluster, producer, "orders")
            long = asyncio.create_task(producer.send("orders", b"3"))
            with pytest.raises(NoRoute):
                await producer.send("orders", b"2", timeout=1.0)
            cluster.name_servers[0].routes["orders"] = full
            assert (await asyncio.wait_for(long, 20)).queue.topic == "orders"
            assert not producer._sender._routes._lookups  # type: ignore[union-attr]

    asyncio.run(main())


def test_topics_without_a_master_hold_up_no_topic_that_is_well(cluster: TinyCluster) -> None:
    async def main() -> None:
        async with AsyncProducer("web", discovery=cluster, send_timeout_ms=10_000) as producer:
            await asyncio.gather(*(producer.send(topic, b"1") for topic in MANY))
            for topic in MANY:
                loses_its_master(cluster, producer, topic)
            stuck = [asyncio.create_task(producer.send(topic, b"2")) for topic in MANY]
            await asyncio.sleep(0.05)
            assert (await within(4.0, producer.send("good", b"x"))).queue.topic == "good"
            for call in stuck:
                call.cancel()

    asyncio.run(main())


def test_closing_ends_awaited_sends_that_wait_for_a_route(cluster: TinyCluster) -> None:
    async def main() -> None:
        producer = AsyncProducer("web", discovery=cluster, send_timeout_ms=30_000)
        await producer.send("orders", b"1")
        loses_its_master(cluster, producer, "orders")
        call = asyncio.create_task(producer.send("orders", b"2"))
        await asyncio.sleep(0.05)
        await producer.close()
        with pytest.raises(
            ClientError,
            match="closed while a send waited for the route of topic 'orders'; nothing was sent",
        ):
            await within(5.0, call)

    asyncio.run(main())


def test_closing_ends_sends_that_wait_for_a_route(cluster: TinyCluster) -> None:
    ends: list[BaseException] = []

    def send(producer: Producer) -> None:
        try:
            producer.send("orders", b"2")
        except ClientError as error:
            ends.append(error)

    producer = Producer("web", discovery=cluster, send_timeout_ms=30_000)
    producer.send("orders", b"1")
    loses_its_master(cluster, producer, "orders")
    asked = len(cluster.name_servers[0].asked)
    thread = threading.Thread(target=send, args=(producer,), daemon=True)
    thread.start()
    eventually(lambda: len(cluster.name_servers[0].asked) > asked)
    producer.close()
    thread.join(5)
    assert "nothing was sent" in str(ends[0])


WAYS: dict[str, Callable[[Producer], object]] = {
    "send": lambda producer: producer.send("orders", b"2"),
    "send to a chosen queue": lambda producer: producer.send(
        "orders", b"2", selector=lambda queues, message, arg: queues[0]
    ),
    "send of one without a queue of its own": lambda producer: producer.send(
        "orders", b"2", delay_level=1
    ),
    "send_async of one without a queue of its own": lambda producer: producer.send_async(
        "orders", b"2", delay_level=1
    ).result(5),
    "send in a group": lambda producer: producer.send("orders", b"2", message_group="g"),
    "send_batch": lambda producer: producer.send_batch([Message("orders", b"2")]),
    "send_arrow": lambda producer: producer.send_arrow("orders", TABLE),
    "send_arrow to a given queue": lambda producer: producer.send_arrow(
        "orders", TABLE, queue=MessageQueue("orders", "broker-a", 0)
    ),
    "request": lambda producer: producer.request(
        "orders", b"2", timeout=producer._timeout_ms / 1000
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_waiting_for_a_master_is_part_of_a_sends_time_out(cluster: TinyCluster, way: str) -> None:
    """The master is back after 1.2 of 1.6 s, and answers nothing: with a time-out of its own the
    send would end at 2.8 s.
    """
    with Producer("web", discovery=cluster, send_timeout_ms=1_600, linger_ms=0) as producer:
        producer.send("orders", b"1")
        full = loses_its_master(cluster, producer, "orders")
        cluster.broker.fault = lambda _arrival, _number: "lose"
        back = threading.Timer(1.2, lambda: cluster.name_servers[0].routes.update(orders=full))
        back.start()
        watch = Stopwatch()
        with pytest.raises((SendError, RequestTimeout)):
            WAYS[way](producer)
        passed_s, lived_s = watch.passed_s, watch.lived_s
        cluster.broker.fault = lambda _arrival, _number: None
    assert passed_s > 1.1 and lived_s < 2.4


@pytest.mark.parametrize("way", WAYS)
def test_name_servers_that_do_not_answer_make_no_send_last_longer(
    cluster: TinyCluster, way: str
) -> None:
    cluster.name_servers[0].silent = True
    with Producer("web", discovery=cluster, send_timeout_ms=400, linger_ms=0) as producer:
        watch = Stopwatch()
        with pytest.raises(BrokerUnreachable, match="no name server answers"):
            WAYS[way](producer)
        assert watch.passed_s > 0.2 and watch.lived_s < 1.0
        cluster.stop(cluster.name_servers[0])  # else closing waits for the producer's own questions


def test_a_name_server_that_does_not_answer_leaves_time_for_the_next_one() -> None:
    with (
        TinyCluster(topics={"orders": 4}, name_servers=2) as cluster,
        Producer("web", discovery=cluster, send_timeout_ms=6_000) as producer,
    ):
        cluster.name_servers[0].silent = True
        assert producer.send("orders", b"1")
        cluster.stop(cluster.name_servers[0])


def test_who_waits_behind_another_topics_look_up_is_told_that_no_name_server_answers(
    cluster: TinyCluster,
) -> None:
    cluster.name_servers[0].silent = True
    with (
        Producer("web", discovery=cluster, send_timeout_ms=3_000) as producer,
        concurrent.futures.ThreadPoolExecutor(1) as other,
    ):
        first = other.submit(producer.send, "orders", b"1", timeout=3.0)
        eventually(
            lambda: cluster.name_servers[0].asked
        )  # by this send, or by the client's own look at its routes
        with pytest.raises(BrokerUnreachable, match="another one's is waited for"):
            producer.send("good", b"2", timeout=0.2)
        assert isinstance(first.exception(20), BrokerUnreachable)
        cluster.stop(cluster.name_servers[0])


def test_threads_that_share_frames_wait_no_longer_than_a_lone_one_for_a_broker_that_hangs(
    cluster: TinyCluster,
) -> None:
    def took(number: int) -> float:
        watch = Stopwatch()
        with pytest.raises(SendError):
            producer.send("orders", b"%d" % number)
        return watch.lived_s

    with (
        Producer("web", discovery=cluster, send_timeout_ms=1_000, retries=0) as producer,
        concurrent.futures.ThreadPoolExecutor(12) as pool,
    ):
        producer.send("orders", b"warm")
        cluster.broker.fault = lambda _arrival, _number: "lose"
        assert max(pool.map(took, range(12), timeout=20)) < 1.8
        cluster.broker.fault = lambda _arrival, _number: None


def test_a_send_of_a_group_behind_one_with_a_longer_time_out_ends_as_unknown(
    cluster: TinyCluster,
) -> None:
    with Producer("web", discovery=cluster, linger_ms=0) as producer:
        producer.send("orders", b"warm")
        cluster.broker.hold.clear()
        first = producer.send_async("orders", b"1", message_group="g", timeout=20)
        watch = Stopwatch()
        with pytest.raises(
            SendTimeout, match=r"no answer within \d+ ms; the message may be stored"
        ):
            producer.send("orders", b"2", message_group="g", timeout=0.1)
        assert watch.lived_s < 1.6
        cluster.release(cluster.broker)
        assert first.result(5)


def test_a_call_that_has_waited_for_a_place_takes_no_time_from_those_after_it(
    cluster: TinyCluster,
) -> None:
    """It gets its place after 2.8 of 5 s, and leaves at once: after ``linger_ms`` with it the next
    one would have no time either.
    """
    with (
        Producer(
            "web",
            discovery=cluster,
            send_timeout_ms=5_000,
            linger_ms=2_500,
            retries=0,
            frames_in_flight_max=1,
        ) as producer,
        concurrent.futures.ThreadPoolExecutor(1) as other,
    ):
        cluster.broker.hold.clear()
        first = producer.send_async("orders", b"1", timeout=20)
        eventually(lambda: cluster.broker.arrivals)
        waiting = other.submit(producer.send_async, "orders", b"2")
        time.sleep(2.8)
        cluster.release(cluster.broker)
        late = waiting.result(20)
        fresh = producer.send_async("orders", b"3")
        assert all(future.result(20) for future in (first, late, fresh))
        assert [
            [record.body for record in arrival.records] for arrival in cluster.broker.arrivals
        ] == [[b"1"], [b"2"], [b"3"]]


def test_a_batch_that_waited_for_its_place_lingers_until_half_of_its_time_is_over(
    cluster: TinyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer("web", discovery=cluster, send_timeout_ms=3_000, linger_ms=5_000) as producer:
        producer.send("orders", b"warm")
        assert producer._core is not None
        batches, clock = producer._core.batches, ManualClock()
        find = batches._find_queues
        lingers: list[float] = []

        def finds(topic: str, timeout_ms: float) -> Sequence[MessageQueue]:
            clock.advance_ms(1_450)
            return find(topic, timeout_ms)

        with monkeypatch.context() as patched:
            patched.setattr(batches, "_clock", clock)
            patched.setattr(batches, "_find_queues", finds)
            patched.setattr(
                batches._worker, "after", lambda delay_ms, action: lingers.append(delay_ms)
            )
            producer.send_async("orders", b"x")
        assert lingers == [50]


def test_a_call_ends_at_its_own_time_out_though_one_with_a_longer_time_out_is_before_it(
    cluster: TinyCluster,
) -> None:
    cluster.broker.fault = lambda _arrival, _number: "lose"
    with Producer("web", discovery=cluster, linger_ms=1_000.0, send_timeout_ms=500) as producer:
        patient = producer.send_async("orders", b"1", timeout=60.0)
        with pytest.raises(SendTimeout):
            producer.send_async("orders", b"2", timeout=0.7).result(10)
        assert not patient.done()
        queue = MessageQueue("orders", "broker-a", 0)
        pinned = [
            producer.send_async("orders", b"3", queue=queue),
            producer.send_async("orders", b"4", queue=queue),
        ]
        assert pinned[0]._outcome is pinned[1]._outcome  # by and large the same

    async def main() -> None:
        async with AsyncProducer("looped", discovery=cluster, send_timeout_ms=500) as looped:
            waits = asyncio.create_task(looped.send("orders", b"1", timeout=60.0))
            with pytest.raises(SendTimeout):
                await asyncio.wait_for(looped.send("orders", b"2", timeout=1.0), 10)
            assert not waits.done()

    asyncio.run(main())
