"""``idempotent=True`` over two brokers that lose a fifth of their answers: no message is stored on
either of them twice, nor on both.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.model.message import Message, SendStatus
from tests.support.brokers.tiny_cluster import Arrival, TinyCluster

COUNT = 80
SETTINGS = {"retries": 16, "send_timeout_ms": 15_000, "linger_ms": 0.0}


@pytest.fixture
def pair() -> Iterator[TinyCluster]:
    with TinyCluster(brokers=2, topics={"orders": 2}) as running:
        chance = random.Random(11)

        def fault(arrival: Arrival, number: int) -> str | None:
            return chance.choice(("drop", "refuse")) if chance.random() < 0.2 else None

        for broker in running.brokers:
            broker.fault = fault
        yield running


async def in_loop(pair: TinyCluster, idempotent: bool) -> list[SendStatus]:
    async with AsyncProducer("web", discovery=pair, idempotent=idempotent, **SETTINGS) as producer:  # type: ignore[arg-type]
        return [(await producer.send("orders", b"%d" % n)).status for n in range(COUNT)]


def send_all(pair: TinyCluster, style: str, idempotent: bool) -> list[SendStatus]:
    if style == "asyncio":
        return asyncio.run(in_loop(pair, idempotent))
    with Producer("web", discovery=pair, idempotent=idempotent, **SETTINGS) as producer:  # type: ignore[arg-type]
        bodies = [b"%d" % n for n in range(COUNT)]
        if style == "send_async":
            return [producer.send_async("orders", body).result(20).status for body in bodies]
        if style == "send_batch":
            return [producer.send_batch([Message("orders", body)])[0].status for body in bodies]
        options = {"send": {}, "ordered": {"message_group": "g"}, "special": {"delay_level": 1}}[
            style
        ]
        return [producer.send("orders", body, **options).status for body in bodies]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "style", ["send", "send_async", "send_batch", "ordered", "special", "asyncio"]
)
def test_no_message_is_stored_twice_anywhere(pair: TinyCluster, style: str) -> None:
    assert set(send_all(pair, style, True)) == {SendStatus.SEND_OK}
    stored = [
        record.body
        for broker in pair.brokers
        for records in broker.stored.values()
        for record in records
    ]
    assert sorted(stored) == sorted(b"%d" % n for n in range(COUNT))
    assert sum(len(broker.arrivals) for broker in pair.brokers) > COUNT + 8, "nothing was repeated"


def test_without_it_another_broker_may_store_a_message_again(pair: TinyCluster) -> None:
    send_all(pair, "send", False)
    stored = [
        record.body
        for broker in pair.brokers
        for records in broker.stored.values()
        for record in records
    ]
    assert len(stored) > len(set(stored)) == COUNT
