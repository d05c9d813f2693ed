"""The producer on an event loop against real ports: the same rules, awaited."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import Awaitable, Callable, Iterator

import pytest

from rmq_ray.client.instance.managed import ServiceState
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.errors import (
    BrokerBusy,
    BrokerUnreachable,
    ClientError,
    MessageIllegal,
    SendTimeout,
    TopicNotFound,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message, SendStatus, decode_properties
from tests.support.brokers.tiny_cluster import TinyCluster
from tests.support.waiting import eventually


@pytest.fixture
def cluster() -> Iterator[TinyCluster]:
    with TinyCluster(topics={"orders": 4}) as running:
        yield running


def with_producer(
    cluster: TinyCluster, work: Callable[[AsyncProducer], Awaitable[object]], **settings: object
) -> object:
    """Run ``work`` with a started producer in a loop of its own."""

    async def main() -> object:
        async with AsyncProducer("web", discovery=cluster, **settings) as producer:  # type: ignore[arg-type]
            return await asyncio.wait_for(work(producer), 30)

    return asyncio.run(main())


def test_a_send_is_awaited_and_says_where_the_message_is(cluster: TinyCluster) -> None:
    async def work(producer: AsyncProducer) -> None:
        result = await producer.send("orders", b"x", tag="t", keys=["k"], properties={"a": "b"})
        record = cluster.broker.stored["orders", result.queue.queue_id][result.queue_offset]
        found = decode_properties(record.properties)
        assert (record.body, found["TAGS"], found["KEYS"], found["a"]) == (b"x", "t", "k", "b")
        assert found["UNIQ_KEY"] == result.message_id and result.status is SendStatus.SEND_OK
        assert producer.state is ServiceState.RUNNING

    with_producer(cluster, work)
    assert cluster.broker.unregistered[0]["producerGroup"] == "web"


def test_sends_of_one_turn_of_the_loop_share_a_frame_and_each_has_its_own_place(
    cluster: TinyCluster,
) -> None:
    async def work(producer: AsyncProducer) -> None:
        await producer.send("orders", b"warm")
        results = await asyncio.gather(*(producer.send("orders", b"%d" % n) for n in range(300)))
        for n, result in enumerate(results):
            assert (
                cluster.broker.stored["orders", result.queue.queue_id][result.queue_offset].body
                == b"%d" % n
            )

    with_producer(cluster, work)
    assert [len(arrival.records) for arrival in cluster.broker.arrivals] == [1, 300]


def test_every_way_of_sending_works(cluster: TinyCluster) -> None:
    queue = MessageQueue("orders", "broker-a", 3)

    async def work(producer: AsyncProducer) -> None:
        assert (await producer.send("orders", b"x", queue=queue)).queue == queue
        assert (
            await producer.send("orders", b"x", selector=lambda queues, message, arg: queues[0])
        ).queue.queue_id == 0
        groups = {(await producer.send("orders", b"x", message_group="g")).queue for _ in range(3)}
        assert len(groups) == 1
        await producer.send(Message("orders", b"later", delay_level=2))
        results = await producer.send_batch(
            [Message("orders", b"x" * 200_000) for _ in range(9)], queue
        )
        assert [result.count for result in results] == [5, 4] and {
            result.queue for result in results
        } == {queue}
        (mixed,) = await producer.send_batch("orders", [b"1", Message("orders", b"2")], queue)
        assert (mixed.count, mixed.queue) == (2, queue)
        with pytest.raises(ClientError, match="call send_batch"):
            await producer.send_batch([b"1", b"2"])  # type: ignore[list-item]
        assert await producer.send_oneway("orders", b"gone") is None  # type: ignore[func-returns-value]
        await producer.send("orders", b"last")
        with pytest.raises(MessageIllegal):
            await producer.send("orders", b"")
        with pytest.raises(ClientError, match="give one of them"):
            await producer.send("orders", b"x", queue=queue, message_group="g")

    with_producer(cluster, work)
    assert cluster.broker.requests[310] == 1
    assert any(arrival.oneway for arrival in cluster.broker.arrivals)


def test_ordered_sends_keep_their_order_while_connections_break(cluster: TinyCluster) -> None:
    chance = random.Random(5)
    cluster.broker.fault = lambda arrival, number: "drop" if chance.random() < 0.3 else None

    async def work(producer: AsyncProducer) -> None:
        sends = []
        for n in range(20):
            sends.append(
                asyncio.ensure_future(producer.send("orders", b"%02d" % n, message_group="g"))
            )
            await asyncio.sleep(0)
        await asyncio.gather(*sends)

    with_producer(cluster, work, retries=16, send_timeout_ms=20_000)
    (stored,) = [records for records in cluster.broker.stored.values() if records]
    assert [record.body for record in stored] == [b"%02d" % n for n in range(20)]


def test_a_fifth_of_the_answers_lost_stores_every_message_once(cluster: TinyCluster) -> None:
    chance = random.Random(7)
    cluster.broker.fault = lambda arrival, number: "drop" if chance.random() < 0.2 else None

    async def work(producer: AsyncProducer) -> None:
        for n in range(40):
            await asyncio.gather(*(producer.send("orders", b"%d-%d" % (n, i)) for i in range(3)))

    with_producer(cluster, work, retries=16, send_timeout_ms=10_000)
    bodies = [record.body for records in cluster.broker.stored.values() for record in records]
    assert len(bodies) == len(set(bodies)) == 120
    assert len(cluster.broker.arrivals) > len(
        {arrival.frame_id for arrival in cluster.broker.arrivals}
    )


def test_failures_are_typed_and_each_caller_gets_a_copy(cluster: TinyCluster) -> None:
    async def work(producer: AsyncProducer) -> None:
        cluster.broker.fault = lambda arrival, number: 17
        errors = await asyncio.gather(
            *(producer.send("orders", b"x") for _ in range(3)), return_exceptions=True
        )
        assert {type(error) for error in errors} == {TopicNotFound} and len(
            set(map(id, errors))
        ) == 3
        cluster.broker.fault = lambda arrival, number: "lose"
        with pytest.raises(SendTimeout):
            await producer.send("orders", b"x", timeout=0.2)
        await asyncio.to_thread(cluster.stop, cluster.broker)
        await asyncio.sleep(0.1)  # the loop notices that its connection ended
        with pytest.raises(BrokerUnreachable):
            await producer.send("orders", b"x", timeout=0.2)
        with pytest.raises(BrokerUnreachable):
            await producer.send_oneway("orders", b"x")
        cluster.broker.fault = lambda arrival, number: None
        asyncio.get_running_loop().call_later(
            0.3, lambda: asyncio.ensure_future(asyncio.to_thread(cluster.start, cluster.broker))
        )
        assert (await producer.send("orders", b"x", timeout=10)).status is SendStatus.SEND_OK

    with_producer(cluster, work)


def test_a_cancelled_send_is_forgotten_and_the_others_go_on(cluster: TinyCluster) -> None:
    async def work(producer: AsyncProducer) -> None:
        await producer.send("orders", b"warm")
        cluster.broker.hold.clear()
        first, second = (
            asyncio.ensure_future(producer.send("orders", b"a")),
            asyncio.ensure_future(producer.send("orders", b"b")),
        )
        await asyncio.sleep(0.05)
        first.cancel()
        await asyncio.to_thread(cluster.release, cluster.broker)
        assert (await second).status is SendStatus.SEND_OK and first.cancelled()

    with_producer(cluster, work)
    assert cluster.broker.messages == 3


def test_frames_in_flight_are_bounded_by_waiting_or_by_refusing(cluster: TinyCluster) -> None:
    async def fill(producer: AsyncProducer) -> list[asyncio.Future[object]]:
        await producer.send("orders", b"warm")
        cluster.broker.hold.clear()
        sends: list[asyncio.Future[object]] = []
        for _ in range(3):
            sends.append(asyncio.ensure_future(producer.send("orders", b"x")))
            await asyncio.sleep(0.02)
        return sends

    async def waiting(producer: AsyncProducer) -> None:
        sends = await fill(producer)
        await asyncio.to_thread(eventually, lambda: len(cluster.broker.arrivals) == 3)
        await asyncio.to_thread(cluster.release, cluster.broker)
        await asyncio.gather(*sends)

    async def refusing(producer: AsyncProducer) -> None:
        sends = await fill(producer)
        with pytest.raises(BrokerBusy, match="frames_in_flight_max"):
            await sends[2]
        await asyncio.to_thread(cluster.release, cluster.broker)
        await asyncio.gather(*sends[:2])

    with_producer(cluster, waiting, frames_in_flight_max=2)
    cluster.broker.arrivals.clear()
    with_producer(cluster, refusing, frames_in_flight_max=2, on_full="raise")


def test_it_starts_at_the_first_send_belongs_to_its_loop_and_ends_for_good(
    cluster: TinyCluster,
) -> None:
    producer = AsyncProducer("web", discovery=cluster)

    async def first() -> None:
        await asyncio.gather(*(producer.send("orders", b"x") for _ in range(5)))
        with pytest.raises(ClientError, match="cannot start"):
            await producer.start()

    async def elsewhere() -> None:
        with pytest.raises(ClientError, match="another event loop"):
            await producer.send("orders", b"x")

    async def ended() -> None:
        loop_bound = AsyncProducer("other", discovery=cluster)
        await loop_bound.send("orders", b"x")
        await loop_bound.close()
        await loop_bound.close()
        with pytest.raises(ClientError, match="closed"):
            await loop_bound.send("orders", b"x")

    with asyncio.Runner() as runner:
        runner.run(first())
        asyncio.run(elsewhere())
        runner.run(producer.close())
    asyncio.run(ended())
    assert cluster.broker.messages == 6


def test_a_pickled_one_carries_its_settings_only(cluster: TinyCluster) -> None:
    async def work(producer: AsyncProducer) -> None:
        await producer.send("orders", b"one")
        copy: AsyncProducer = pickle.loads(pickle.dumps(producer))
        assert copy.state is ServiceState.CREATE_JUST
        await copy.send("orders", b"two")
        await copy.close()

    with_producer(cluster, work)
    assert (
        len(
            {
                arrival.frame_id.producer_id
                for arrival in cluster.broker.arrivals
                if arrival.frame_id
            }
        )
        == 2
    )
