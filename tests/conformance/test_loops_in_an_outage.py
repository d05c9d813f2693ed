"""Columns, requests and recalls of an event loop while a topic has no master, its broker or the
name servers do not answer: nobody else is held up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from rmq_ray.client.outgoing.send_request import SendRequest
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.sending.loop_sender import MessageFrame
from rmq_ray.errors import (
    BrokerBusy,
    BrokerUnreachable,
    ClientError,
    NoRoute,
    RequestTimeout,
    RmqError,
    SendTimeout,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import DEFAULT_TOPIC
from rmq_ray.protocol.timer import RecallHandle
from rmq_ray.remoting.wire.codes import RequestCode
from tests.support.brokers.tiny_cluster import TinyCluster
from tests.support.faults.stopwatch import Stopwatch, within
from tests.support.waiting import eventually

TABLE = pa.table({"body": [b"1", b"2"]})
MANY = [f"t{number}" for number in range(12)]
CALLS: dict[str, Callable[[AsyncProducer, str, float], Coroutine[Any, Any, object]]] = {
    "send_arrow": lambda producer, topic, timeout: producer.send_arrow(
        topic, TABLE, timeout=timeout
    ),
    "request": lambda producer, topic, timeout: producer.request(topic, b"x", timeout=timeout),
    "recall": lambda producer, topic, timeout: producer.recall_message(
        topic, handle(topic), timeout=timeout
    ),
}


def handle(topic: str) -> str:
    return RecallHandle(topic, "broker-away", "A" * 32, 1, 1).encode()


@pytest.fixture
def cluster() -> Iterator[TinyCluster]:
    with TinyCluster(topics={name: 4 for name in ("good", *MANY)}) as running:
        running.name_servers[0].routes.pop(DEFAULT_TOPIC, None)
        yield running


async def lose_masters(cluster: TinyCluster, producer: AsyncProducer) -> None:
    """The producer has learnt that slaves are left of all topics but one."""
    routes = cluster.name_servers[0].routes
    core = producer._core
    assert core is not None
    for topic in MANY:
        full = routes[topic]
        broker = full.brokers[0]
        routes[topic] = replace(
            full, queues=(), brokers=(replace(broker, addresses={1: broker.addresses[0]}),)
        )
        await asyncio.to_thread(core.instance.routes.refresh, topic)


async def silence_name_servers(cluster: TinyCluster, _producer: AsyncProducer) -> None:
    cluster.name_servers[0].silent = True


OUTAGES = {"no master": lose_masters, "no name server": silence_name_servers}


@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize("call", CALLS)
def test_many_calls_in_an_outage_hold_up_nobody_else(
    cluster: TinyCluster, outage: str, call: str
) -> None:
    async def main() -> None:
        producer = AsyncProducer("web", discovery=cluster, send_timeout_ms=30_000)
        await producer.send("good", b"0")
        await OUTAGES[outage](cluster, producer)
        stuck = [asyncio.create_task(CALLS[call](producer, topic, 30.0)) for topic in MANY]
        await asyncio.sleep(0.2)
        watch = Stopwatch()
        await asyncio.to_thread(int)  # a thread of the loop's executor is free
        assert sum(result.count for result in await producer.send_arrow("good", TABLE)) == 2
        with pytest.raises(RequestTimeout, match="was sent"):
            await producer.request("good", b"x", timeout=2.5)
        assert watch.lived_s < 4.0 and not any(task.done() for task in stuck)
        cluster.stop(
            cluster.name_servers[0]
        )  # else closing waits for what the producer asks by itself
        watch = Stopwatch()
        await producer.close()
        ends = await within(5.0, asyncio.gather(*stuck, return_exceptions=True))
        assert watch.lived_s < 2 and all(
            isinstance(end, ClientError) and "nothing was sent" in str(end) for end in ends
        )

    asyncio.run(main())


@pytest.mark.parametrize("call", CALLS)
def test_a_call_in_an_outage_ends_at_its_own_time_out(cluster: TinyCluster, call: str) -> None:
    async def main() -> None:
        async with AsyncProducer("web", discovery=cluster, send_timeout_ms=30_000) as producer:
            await producer.send("t0", b"0")
            await lose_masters(cluster, producer)
            watch = Stopwatch()
            with pytest.raises(NoRoute, match="after 600 ms"):
                await CALLS[call](producer, "t0", 0.6)
            assert watch.passed_s > 0.5 and watch.lived_s < 2

    asyncio.run(main())


@pytest.mark.parametrize("call", ["send_arrow", "request"])
def test_waiting_for_a_master_is_part_of_an_awaited_calls_time_out(
    cluster: TinyCluster, call: str
) -> None:
    """The master is back after 1 of 2 s, and answers nothing: with a time-out of its own what
    follows would end at 3 s.
    """

    async def main() -> None:
        async with AsyncProducer("web", discovery=cluster, send_timeout_ms=2_000) as producer:
            await producer.send("t0", b"0")
            full = cluster.name_servers[0].routes["t0"]
            await lose_masters(cluster, producer)
            cluster.broker.fault = lambda _arrival, _number: "lose"
            asyncio.get_running_loop().call_later(
                1.0, lambda: cluster.name_servers[0].routes.update(t0=full)
            )
            watch = Stopwatch()
            with pytest.raises((SendTimeout, RequestTimeout)):
                await CALLS[call](producer, "t0", 2.0)
            assert watch.passed_s > 0.95 and watch.lived_s < 2.7
            cluster.broker.fault = lambda _arrival, _number: None

    asyncio.run(main())


def test_tables_for_a_broker_that_hangs_hold_no_threads_and_go_on_when_it_answers(
    cluster: TinyCluster,
) -> None:
    async def main() -> None:
        async with AsyncProducer("web", discovery=cluster, send_timeout_ms=20_000) as producer:
            await producer.send("good", b"0")
            cluster.broker.hold.clear()
            calls = [asyncio.create_task(producer.send_arrow(topic, TABLE)) for topic in MANY]
            await asyncio.sleep(0.2)
            await within(2.0, asyncio.to_thread(int))
            assert not any(call.done() for call in calls)
            await asyncio.to_thread(cluster.release, cluster.broker)
            assert [
                sum(result.count for result in results)
                for results in await within(5.0, asyncio.gather(*calls))
            ] == [2] * len(MANY)

    asyncio.run(main())


def without_answers_to_heartbeats(cluster: TinyCluster) -> None:
    answers = cluster.broker.handle
    cluster.broker.handle = lambda command, peer: (
        None if command.code == RequestCode.HEART_BEAT else answers(command, peer)
    )  # type: ignore[method-assign]


def test_a_broker_that_does_not_answer_heartbeats_takes_half_of_a_requests_time(
    cluster: TinyCluster,
) -> None:
    without_answers_to_heartbeats(cluster)
    with Producer("web", discovery=cluster) as producer:
        producer.send("good", b"0")
        watch = Stopwatch()
        with pytest.raises(RequestTimeout, match="was sent, but no reply came within 2000 ms"):
            producer.request("good", b"x", timeout=2.0)
        assert watch.lived_s < 2.8


def test_so_it_does_for_requests_of_a_loop_which_wait_for_it_together(cluster: TinyCluster) -> None:
    without_answers_to_heartbeats(cluster)

    async def main() -> None:
        async with AsyncProducer("web", discovery=cluster) as producer:
            await producer.send("good", b"0")
            watch = Stopwatch()
            ends = await asyncio.gather(
                *(producer.request(topic, b"x", timeout=2.0) for topic in ("good", *MANY)),
                return_exceptions=True,
            )
            assert {type(end) for end in ends} == {RequestTimeout} and "was sent" in str(ends[0])
            assert watch.lived_s < 2.8

    asyncio.run(main())
    eventually(lambda: {arrival.topic for arrival in cluster.broker.arrivals} == {"good", *MANY})


def test_a_request_whose_name_servers_are_silent_says_so(cluster: TinyCluster) -> None:
    async def main() -> None:
        async with AsyncProducer("web", discovery=cluster) as producer:
            await producer.send("good", b"0")
            await silence_name_servers(cluster, producer)
            with pytest.raises(BrokerUnreachable, match="no name server answers"):
                await producer.request("t0", b"x", timeout=0.3)
            cluster.stop(cluster.name_servers[0])

    asyncio.run(main())


def test_a_table_of_a_loop_is_cut_goes_round_the_queues_and_tells_what_is_stored(
    cluster: TinyCluster,
) -> None:
    rows = pa.table({"body": [b"body %d" % n for n in range(1_000)]})

    async def main() -> None:
        async with AsyncProducer("web", discovery=cluster, batch_bytes_max=20_000) as producer:
            results = await producer.send_arrow("good", rows)
            assert len(results) > 4 and {result.queue.queue_id for result in results} == {
                0,
                1,
                2,
                3,
            }
            by_queue = {
                key: [record.body for record in records]
                for key, records in cluster.broker.stored.items()
            }
            found = [
                body
                for r in results
                for body in by_queue["good", r.queue.queue_id][
                    r.queue_offset : r.queue_offset + r.count
                ]
            ]
            assert found == rows["body"].to_pylist()
            cluster.broker.fault = lambda arrival, _number: (
                1_009 if any(record.body == b"body 500" for record in arrival.records) else None
            )
            with pytest.raises(RmqError) as caught:
                await producer.send_arrow(
                    "good", rows, queue=MessageQueue("good", cluster.broker.name, 1)
                )
            ((begin, _), *_, (_, end)) = caught.value.args[2]
            assert begin == 0 and 0 < end <= 500
            assert [record.body for record in cluster.broker.stored["good", 1]][-end:] == rows[
                "body"
            ].to_pylist()[:end]
            with pytest.raises(ClientError):
                await producer.send_arrow(
                    "good", rows, queue=MessageQueue("other", cluster.broker.name, 1)
                )

    asyncio.run(main())


def test_an_awaited_send_waits_no_longer_than_its_time_out_for_those_before_it(
    cluster: TinyCluster,
) -> None:
    async def main() -> None:
        async with AsyncProducer(
            "web", discovery=cluster, send_timeout_ms=20_000, frames_in_flight_max=2
        ) as producer:
            await producer.send("good", b"0")
            await producer.send("t1", b"0")
            cluster.broker.hold.clear()
            before = [
                asyncio.create_task(producer.send("good", b"1", message_group="g")),
                asyncio.create_task(producer.send("t0", b"1")),
            ]
            await asyncio.to_thread(eventually, lambda: len(cluster.broker.arrivals) == 4)
            watch = Stopwatch()
            calls = [
                producer.send("t1", b"2", timeout=0.2),
                producer.send("good", b"2", message_group="g", timeout=0.2),
            ]
            ends = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(end) for end in ends] == [BrokerBusy, BrokerBusy] and watch.lived_s < 1.0
            await asyncio.to_thread(cluster.release, cluster.broker)
            assert all(await within(5.0, asyncio.gather(*before)))
            assert await producer.send("good", b"3", message_group="g")

    asyncio.run(main())


def test_who_has_waited_for_a_master_since_long_takes_no_time_from_those_woken_with_it(
    cluster: TinyCluster,
) -> None:
    """The oldest has a second left when the look-up ends, and its message is not answered in time;
    each of the others has seconds.
    """

    async def main() -> None:
        async with AsyncProducer(
            "web", discovery=cluster, send_timeout_ms=8_000, retries=0
        ) as producer:
            await producer.send("t0", b"warm")
            sender = producer._sender
            assert sender is not None
            found: asyncio.Future[list[MessageQueue]] = asyncio.get_running_loop().create_future()
            queues = [MessageQueue("t0", cluster.broker.name, 0)]

            async def woken(_topic: str, timeout_ms: float) -> tuple[list[MessageQueue], float]:
                await asyncio.shield(found)
                return queues, 1_000.0 if timeout_ms < 1_000 else timeout_ms

            sender.queues = woken  # type: ignore[method-assign,assignment]
            cluster.broker.hold.clear()
            late = asyncio.create_task(producer.send("t0", b"late", timeout=0.5))
            await asyncio.sleep(0)
            fresh = [
                asyncio.create_task(producer.send("t0", b"%d" % number)) for number in range(50)
            ]
            await asyncio.sleep(0.01)
            found.set_result(queues)
            with pytest.raises(SendTimeout):
                await late
            await asyncio.to_thread(cluster.release, cluster.broker)
            ends = await within(5.0, asyncio.gather(*fresh, return_exceptions=True))
            assert not [end for end in ends if isinstance(end, BaseException)]
            bodies = [record.body for record in cluster.broker.stored["t0", 0]]
            assert (
                bodies[-51:] == [b"late", *(b"%d" % number for number in range(50))]
                and len(cluster.broker.arrivals) == 3
            )

    asyncio.run(main())


def test_who_comes_while_a_lane_goes_to_the_next_in_line_waits_no_longer_than_its_time_out(
    cluster: TinyCluster,
) -> None:
    async def main() -> None:
        async with AsyncProducer("web", discovery=cluster) as producer:
            await producer.send("good", b"0")
            sender, queue = producer._sender, MessageQueue("good", cluster.broker.name, 0)
            assert sender is not None
            lane = sender._order[queue]
            await lane.acquire()
            following = asyncio.create_task(lane.acquire())
            await asyncio.sleep(0)
            lane.release()
            frame = MessageFrame(queue, queue, 50.0, time.monotonic() * 1000)
            frame.ordered = True
            frame.items.append(SendRequest("good", b"1", ""))
            ends = await within(2.0, sender._ship(frame))
            assert [type(end) for end in ends] == [BrokerBusy] and await following
            lane.release()

    asyncio.run(main())
