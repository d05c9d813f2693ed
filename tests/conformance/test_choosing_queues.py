"""Where messages go when a broker is slow, down or changes its queues, on real connections
(protocol-behaviour 7.2, 7.3).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from rmq_ray.client.outgoing import queue_choice
from rmq_ray.client.outgoing.selectors import select_by_hash
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import ClientError, SendError
from rmq_ray.model.hashing import java_hash
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message
from rmq_ray.protocol.routing.queue_selection import select_by_group
from tests.support.brokers.tiny_cluster import TinyCluster
from tests.support.waiting import eventually


@pytest.fixture
def pair() -> Iterator[TinyCluster]:
    with TinyCluster(brokers=2, topics={"orders": 2}) as running:
        yield running


def brokers_of(producer: Producer, sends: int = 8) -> set[str]:
    return {producer.send("orders", b"x").queue.broker_name for _ in range(sends)}


@pytest.mark.seed("S0-015", "S3-058", "S3-068")
def test_a_broker_that_is_down_costs_one_failure_and_is_kept_away_from(
    pair: TinyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_choice, "PROBE_EVERY_MS", 50)
    with Producer("web", discovery=pair, latency_fault=True) as producer:
        assert brokers_of(producer) == {"broker-a", "broker-b"}
        pair.stop(pair.brokers[1])
        assert brokers_of(producer, 20) == {"broker-a"}
        pair.start(pair.brokers[1])
        eventually(lambda: "broker-b" in brokers_of(producer, 4))
    eventually(lambda: "rmq-probe-web" not in [thread.name for thread in threading.enumerate()])


def test_without_probes_isolation_lasts(pair: TinyCluster) -> None:
    with Producer("web", discovery=pair, latency_fault=True, latency_fault_probe=False) as producer:
        brokers_of(producer)
        pair.stop(pair.brokers[1])
        brokers_of(producer)
        pair.start(pair.brokers[1])
        assert brokers_of(producer) == {"broker-a"} and not any(
            thread.name == "rmq-probe-web" for thread in threading.enumerate()
        )


@pytest.mark.parametrize("way", ["send", "send_async", "asyncio"])
def test_a_broker_that_refuses_is_kept_away_from_in_every_mode(pair: TinyCluster, way: str) -> None:
    pair.brokers[0].fault = lambda arrival, number: 14
    settings = {"latency_fault": True, "latency_fault_probe": False, "linger_ms": 0.0}
    if way == "asyncio":

        async def run() -> list[str]:
            async with AsyncProducer("web", discovery=pair, **settings) as producer:
                return [(await producer.send("orders", b"x")).queue.broker_name for _ in range(10)]

        found = asyncio.run(run())
    else:
        with Producer("web", discovery=pair, **settings) as producer:
            found = []
            for _ in range(10):
                try:
                    found.append(
                        (
                            producer.send("orders", b"x")
                            if way == "send"
                            else producer.send_async("orders", b"x").result(5)
                        ).queue.broker_name
                    )
                except SendError:
                    assert way == "send_async", "an asynchronous send hands a refusal to the caller"
    assert set(found) == {"broker-b"} and len(pair.brokers[0].arrivals) <= 1


@pytest.mark.seed("S3-071")
def test_a_fixed_queue_waits_for_its_broker_to_come_back(pair: TinyCluster) -> None:
    queue = MessageQueue("orders", "broker-b", 1)
    with Producer("web", discovery=pair, send_timeout_ms=8_000, latency_fault=True) as producer:
        producer.send("orders", b"1", queue=queue)
        pair.stop(pair.brokers[1])
        starter = threading.Timer(0.3, lambda: pair.start(pair.brokers[1]))
        starter.start()
        assert producer.send("orders", b"2", queue=queue).queue == queue
        starter.join()
    assert [record.body for record in pair.brokers[1].stored["orders", 1]] == [
        b"1",
        b"2",
    ] and not pair.brokers[0].messages


@pytest.mark.seed("S3-072", "S3-073", "S3-074", "S3-075")
def test_keys_of_a_lost_broker_go_elsewhere_when_the_route_says_so_and_others_stay_in_order(
    pair: TinyCluster,
) -> None:
    both = [
        MessageQueue("orders", broker, number)
        for broker in ("broker-a", "broker-b")
        for number in (0, 1)
    ]
    names = [f"order-{n}" for n in range(40)]
    moved = next(name for name in names if select_by_group(both, name).broker_name == "broker-a")
    stays = next(
        name
        for name in names
        if select_by_group(both, name) == select_by_group(both[2:], name) == both[3]
    )
    with Producer("web", discovery=pair, send_timeout_ms=300) as producer:
        for name in (moved, stays):
            producer.send("orders", b"1 " + name.encode(), message_group=name, timeout=20)
        pair.stop(pair.brokers[0])
        with pytest.raises(SendError):
            producer.send("orders", b"2 " + moved.encode(), message_group=moved)
        route = pair.routes["orders"]
        pair.routes["orders"] = type(route)(
            route.queues[1:], route.brokers[1:]
        )  # the name servers have noticed
        assert producer._core is not None
        producer._core.instance.routes.refresh("orders")
        later = producer.send("orders", b"3 " + moved.encode(), message_group=moved, timeout=20)
        assert (
            later.queue.broker_name == "broker-b"
            and producer.send(
                "orders", b"2 " + stays.encode(), message_group=stays, timeout=20
            ).queue
            == both[3]
        )
        pair.start(pair.brokers[0])
    bodies = [record.body.decode() for record in pair.brokers[1].stored["orders", 1]]
    assert [body for body in bodies if stays in body] == [f"1 {stays}", f"2 {stays}"]
    first = [record.body for records in pair.brokers[0].stored.values() for record in records]
    assert first == [b"1 " + moved.encode()], (
        "the broker that comes back holds an older message of the key than the one that is "
        "read already"
    )


@pytest.mark.parametrize("way", ["send", "send_async"])
def test_a_group_stays_on_its_queue_until_what_is_out_has_ended_although_the_topic_grew(
    pair: TinyCluster, way: str
) -> None:
    few = [
        MessageQueue("orders", broker, number)
        for broker in ("broker-a", "broker-b")
        for number in (0, 1)
    ]
    more = [
        MessageQueue("orders", broker, number)
        for broker in ("broker-a", "broker-b")
        for number in (0, 1, 2)
    ]
    group = next(
        name
        for name in map(str, range(100))
        if select_by_group(few, name) == few[0] and select_by_group(more, name) not in few[:2]
    )
    with Producer("web", discovery=pair, linger_ms=0.0) as producer:
        producer.send("orders", b"0", message_group=group)
        pair.brokers[0].hold.clear()
        first = producer.send_async("orders", b"1", message_group=group)
        pair.add_topic("orders", 3)
        assert producer._core is not None
        producer._core.instance.routes.refresh("orders")
        second = producer.send_async("orders", b"2", message_group=group)
        time.sleep(0.05)
        pair.release(pair.brokers[0])
        assert first.result(5).queue == second.result(5).queue == few[0]
        third = (
            producer.send("orders", b"3", message_group=group)
            if way == "send"
            else producer.send_async("orders", b"3", message_group=group).result(5)
        )
        assert third.queue == select_by_group(more, group) != few[0]


def test_a_selector_that_returns_a_queue_it_was_not_given_is_refused_before_anything_is_sent(
    pair: TinyCluster,
) -> None:
    with Producer("web", discovery=pair) as producer:
        assert (
            producer.send("orders", b"x", selector=select_by_hash, arg="user-7").queue.queue_id
            == abs(java_hash("user-7")) % 4 % 2
        )
        for foreign in (
            MessageQueue("orders", "broker-a", 9),
            MessageQueue("bills", "broker-a", 0),
            None,
            "orders",
        ):
            for send in (producer.send, producer.send_async, producer.send_oneway):
                with pytest.raises(ClientError, match="one of the 4 queues"):
                    send("orders", b"x", selector=lambda *_, foreign=foreign: foreign)
        with pytest.raises(ZeroDivisionError):
            producer.send("orders", b"x", selector=lambda *_: 1 // 0)
    assert sum(broker.messages for broker in pair.brokers) == 1


def test_a_selector_sees_the_message_as_its_sender_gave_it(pair: TinyCluster) -> None:
    seen: list[Message] = []

    def by_tag(queues: Sequence[MessageQueue], message: Message, _arg: object) -> MessageQueue:
        seen.append(message)
        return queues[0]

    with Producer("seeing", discovery=pair) as producer:
        producer.send(
            "orders",
            b"x",
            tag="paid",
            keys=["a", "b"],
            properties={"region": "eu"},
            selector=by_tag,
        )
        producer.send(Message("orders", b"y", flag=7), selector=by_tag)
    assert seen == [
        Message("orders", b"x", "paid", ["a", "b"], {"region": "eu"}),
        Message("orders", b"y", flag=7),
    ]
