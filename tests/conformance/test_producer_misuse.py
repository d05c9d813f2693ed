"""What a producer is given by mistake: typed errors that name the value, and nothing is sent."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import (
    ClientError,
    ConfigError,
    MessageIllegal,
    MessageTooLarge,
    RmqError,
    TopicNotWritable,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message
from tests.support.brokers.tiny_cluster import FixedDiscovery, TinyCluster

BAD: list[tuple[tuple[Any, ...], dict[str, Any], type[RmqError]]] = [
    (("orders", {"a": 1}), {}, MessageIllegal),
    (("orders", "text"), {}, MessageIllegal),
    (("orders", 7), {}, MessageIllegal),
    (("orders", b""), {}, MessageIllegal),
    (("orders", None), {}, MessageIllegal),
    (("orders", b"x" * (4 << 20) + b"x"), {}, MessageTooLarge),
    (("", b"x"), {}, ClientError),
    (("a b", b"x"), {}, ClientError),
    ((None, b"x"), {}, ClientError),
    (("t" * 128, b"x"), {}, ClientError),
    (("SCHEDULE_TOPIC_XXXX", b"x"), {}, TopicNotWritable),
    (("orders", b"x"), {"tag": " "}, MessageIllegal),
    (("orders", b"x"), {"tag": "a\x01b"}, MessageIllegal),
    (("orders", b"x"), {"keys": ["a b"]}, MessageIllegal),
    (("orders", b"x"), {"keys": [""]}, MessageIllegal),
    (("orders", b"x"), {"properties": {"KEYS": "a"}}, MessageIllegal),
    (("orders", b"x"), {"properties": {"a": ""}}, MessageIllegal),
    (("orders", b"x"), {"properties": {"a": 1}}, MessageIllegal),
    (("orders", b"x"), {"properties": {"a": "\ud800"}}, MessageIllegal),
    (("orders", b"x"), {"properties": {"a": "x" * 40_000}}, MessageTooLarge),
    (("orders", b"x"), {"message_group": ""}, ClientError),
    (("orders", b"x"), {"message_group": 7}, ClientError),
    (("orders", b"x"), {"queue": MessageQueue("bills", "broker-a", 0)}, ClientError),
    (("orders", b"x"), {"queue": "orders"}, ClientError),
    (("orders", b"x"), {"selector": lambda *_: MessageQueue("orders", "broker-z", 0)}, ClientError),
    ((Message("orders", b"x"), b"y"), {}, ClientError),
    ((Message("orders", b"x"),), {"tag": "t"}, ClientError),
    (("orders", b"x"), {"selector": 7}, ClientError),
    (("orders", b"x"), {"queue": MessageQueue("orders", "broker-a", "0")}, ClientError),  # type: ignore[arg-type]
    (("orders", b"x"), {"properties": ["a"]}, MessageIllegal),
    (("orders", b"x"), {"delay_level": "3"}, ClientError),
    (("orders", b"x"), {"timeout": "3"}, ClientError),
    (("orders", b"x"), {"timeout": float("inf")}, ClientError),
    (("orders", b"x"), {"timeout": np.array([1, 2])}, ClientError),
    ((["orders"], b"x"), {}, ClientError),
    ((Message({}, b"x"),), {}, ClientError),  # type: ignore[arg-type]
    ((Message("orders", b"x", flag="1"),), {}, MessageIllegal),
    ((Message("orders", b"x", flag=1 << 32),), {}, MessageIllegal),  # type: ignore[arg-type]
    (("orders", b"x"), {"tag": 0}, MessageIllegal),
    (("orders", b"x"), {"tag": []}, MessageIllegal),
    (("orders", b"x"), {"tag": False}, MessageIllegal),
    (("orders", b"x"), {"tag": np.array(["a"])}, MessageIllegal),
    (("orders", b"x"), {"tag": np.array(["a", "b"])}, MessageIllegal),
    (("orders", b"x"), {"keys": 0}, MessageIllegal),
    (("orders", b"x"), {"keys": b"k"}, MessageIllegal),
    (("orders", b"x"), {"keys": np.array([1, 2])}, MessageIllegal),
    (("orders", b"x"), {"keys": memoryview(np.zeros((2, 2)))}, MessageIllegal),
    (("orders", b"x"), {"properties": 0}, MessageIllegal),
    (("orders", b"x"), {"properties": ()}, MessageIllegal),
    (("orders", b"x"), {"properties": np.array(["a", "b"])}, MessageIllegal),
    (("orders", b"x"), {"properties": {"a": np.array(["b", "c"])}}, MessageIllegal),
    (("orders", b"x"), {"delay_level": np.array([1, 2])}, ClientError),
    (("orders", b"x"), {"arg": 7}, ClientError),
    (("orders", b"x"), {"arg": 7, "message_group": "g"}, ClientError),
    ((Message("orders", b"x"),), {"keys": np.array(["a", "b"])}, ClientError),
    ((Message("orders", b"x", tag=0),), {}, MessageIllegal),
    ((Message("orders", b"x", keys=0),), {}, MessageIllegal),  # type: ignore[arg-type]
    ((Message("orders", b"x", wait_store_ok=np.array([1, 2])),), {}, MessageIllegal),
    ((Message("orders", b"x", wait_store_ok=""),), {}, MessageIllegal),  # type: ignore[arg-type]
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[TinyCluster]:
    with TinyCluster(topics={"orders": 2}) as running:
        yield running


@pytest.fixture(scope="module", params=["plain", "with steps"])
def producer(request: pytest.FixtureRequest, cluster: TinyCluster) -> Iterator[Producer]:
    steps: dict[str, Any] = (
        {} if request.param == "plain" else {"compression": "lz4", "checks": [lambda ctx: None]}
    )
    with Producer(f"web-{len(steps)}", discovery=FixedDiscovery(cluster.lookup()), **steps) as made:
        yield made


@pytest.mark.parametrize(("arguments", "options", "expected"), BAD, ids=range(len(BAD)))
def test_what_cannot_be_sent_is_a_typed_error_in_every_mode(
    cluster: TinyCluster,
    producer: Producer,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    expected: type[RmqError],
) -> None:
    for send in (producer.send, producer.send_async, producer.send_oneway, producer.request):
        with pytest.raises(
            TypeError if send == producer.send_oneway and "timeout" in options else expected
        ):
            send(*arguments, **options)
    assert cluster.broker.arrivals == []


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_time_out_must_be_positive(producer: Producer, timeout: float) -> None:
    for send in (producer.send, producer.send_async, producer.request):
        with pytest.raises(ClientError, match="timeout"):
            send("orders", b"x", timeout=timeout)


ONE = Message("orders", b"x")


@pytest.mark.parametrize(
    "batch",
    [
        [],
        [ONE, Message("bills", b"x")],
        [Message("orders", b"x", delay_level=1)],
        [Message("orders", b"")],
        [ONE, b"x"],
        [b"x"],
        [None],
        "orders",
        b"x",
        7,
        ONE,
        [b"x", b"y"],
        [ONE, Message("orders", b"x", flag=1 << 32)],
        [Message("orders", b"x", delay=timedelta(1))],
        [Message("orders", b"x", wait_store_ok=False)],
        [Message("orders", b"x", tag=0)],
        [ONE, Message("orders", b"x", keys=0)],  # type: ignore[arg-type]
        [Message("orders", b"x", properties=())],
        [ONE, Message("orders", b"x", tag=np.array(["a", "b"]))],  # type: ignore[arg-type]
        [Message("orders", b"x", wait_store_ok=np.array([1, 2]))],
        [ONE, Message("orders", b"x", wait_store_ok="yes")],  # type: ignore[arg-type]
        [Message("orders", b"x", delay_level=np.array([1, 2]))],
        [Message(np.array(["a", "b"]), b"x"), ONE],  # type: ignore[arg-type]
    ],
)
def test_a_batch_is_checked_as_a_whole(
    cluster: TinyCluster, producer: Producer, batch: list[Message]
) -> None:
    with pytest.raises((ClientError, MessageIllegal)):
        producer.send_batch(batch)
    assert cluster.broker.arrivals == []


def test_a_queue_of_another_kind_is_refused_in_a_namespace_too(cluster: TinyCluster) -> None:
    queue: Any = "broker-a"
    with Producer("spaced", discovery=FixedDiscovery(cluster.lookup()), namespace="ns") as producer:
        for call in (
            lambda: producer.send("orders", b"x", queue=queue),
            lambda: producer.send_batch([ONE], queue),
        ):
            with pytest.raises(ClientError, match="'broker-a'"):
                call()
        with pytest.raises(ClientError, match="cannot be called"):
            producer.send("orders", b"x", selector="by hash")  # type: ignore[arg-type]

    async def run() -> None:
        async with AsyncProducer(
            "spaced-async", discovery=FixedDiscovery(cluster.lookup()), namespace="ns"
        ) as looped:
            for call in (looped.send("orders", b"x", queue=queue), looped.send_batch([ONE], queue)):
                with pytest.raises(ClientError):
                    await call

    asyncio.run(run())


def test_a_request_refuses_what_it_would_ignore(producer: Producer) -> None:
    with pytest.raises(ClientError, match="delay_level"):
        producer.request("orders", b"x", delay_level=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "wrong", [{"hooks": [3]}, {"hooks": 3}, {"hooks": [int]}, {"checks": [3]}, {"checks": None}]
)
def test_hooks_and_checks_that_could_never_be_called_are_refused_at_once(
    cluster: TinyCluster, wrong: dict[str, Any]
) -> None:
    for kind in (Producer, AsyncProducer):
        with pytest.raises(ClientError):
            kind("web", discovery=cluster, **wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"namespace": 3},
        {"namespace": "a b"},
        {"namespace": "a%b"},
        {"namespace": None},
        {"linger_ms": "2"},
        {"linger_ms": None},
        {"retries": True},
        {"retries": 1.5},
        {"trace": "yes"},
        {"trace_topic": ""},
        {"idempotent": 1},
        {"send_timeout_ms": "3"},
        {"compression_level": "9"},
        {"config": 5},
        {"config": {"retries": 3}},
    ],
)
def test_settings_of_another_kind_are_refused(cluster: TinyCluster, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Producer("web", discovery=cluster, **wrong)


def test_closing_twice_does_nothing_and_every_use_after_it_is_refused(cluster: TinyCluster) -> None:
    producer = Producer("closed", discovery=cluster)
    producer.start()
    producer.close()
    producer.close()
    calls: list[Any] = [
        producer.start,
        producer.flush,
        lambda: producer.send_batch([Message("orders", b"x")]),
    ]
    calls += [
        lambda send=send: send("orders", b"x")
        for send in (producer.send, producer.send_async, producer.send_oneway, producer.request)
    ]
    for call in calls:
        with pytest.raises(ClientError, match="closed"):
            call()

    async def run() -> None:
        looped = AsyncProducer("closed", discovery=cluster)
        await looped.start()
        await looped.close()
        await looped.close()
        for use in (looped.send, looped.send_oneway, looped.request):
            with pytest.raises(ClientError, match="closed"):
                await use("orders", b"x")

    asyncio.run(run())
    never = Producer("never-started", discovery=cluster)
    never.close()
    with pytest.raises(ClientError):
        never.send("orders", b"x")


def test_hooks_travel_with_a_pickled_producer_and_what_cannot_be_pickled_says_so(
    cluster: TinyCluster,
) -> None:
    discovery = FixedDiscovery(cluster.lookup())
    copy = pickle.loads(
        pickle.dumps(Producer("pickled", discovery=discovery, checks=[forbid], compression="zstd"))
    )
    with pytest.raises(ClientError, match="not today"):
        copy.send("orders", b"x")
    copy.close()
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(Producer("unpicklable", discovery=discovery, checks=[lambda ctx: None]))


def forbid(ctx: Any) -> None:
    raise ClientError("not today")


@pytest.mark.parametrize(
    "settings",
    [
        {"no_such": 1},
        {"retries": -1},
        {"namespace": "a b"},
        {"group": "DEFAULT_PRODUCER"},
        {"group": ""},
    ],
)
def test_settings_are_checked_before_anything_is_connected(
    cluster: TinyCluster, settings: dict[str, Any]
) -> None:
    with pytest.raises((ConfigError, ClientError)):
        Producer(discovery=cluster, **settings)


def test_a_batch_for_something_that_is_no_queue_of_its_topic_is_refused(
    cluster: TinyCluster, producer: Producer
) -> None:
    async def run(queue: Any) -> None:
        async with AsyncProducer("looped", discovery=cluster) as looped:
            with pytest.raises(ClientError, match="not a queue of topic"):
                await looped.send_batch([Message("orders", b"x")], queue)

    for wrong in ("orders", MessageQueue("bills", "broker-a", 0), 0, "", np.array([1, 2])):
        with pytest.raises(ClientError, match="not a queue of topic"):
            producer.send_batch([Message("orders", b"x")], wrong)  # type: ignore[arg-type]
        asyncio.run(run(wrong))
