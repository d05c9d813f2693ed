"""A host without power: its address takes no connection and refuses none. Another broker is tried
within the send's own time.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import BrokerUnreachable, SendError
from rmq_ray.model.ids import Address, MessageQueue
from tests.support.brokers.tiny_cluster import TinyCluster
from tests.support.faults.stopwatch import Stopwatch, within


@contextlib.contextmanager
def silence() -> Iterator[Address]:
    """An address whose backlog is full: the kernel drops what else wants to connect."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        address = Address(*server.getsockname())
        for _ in range(64):  # ends: the backlog is full long before
            knock = stack.enter_context(socket.socket())
            knock.settimeout(0.2)
            try:
                knock.connect((address.host, address.port))
            except TimeoutError:
                break
        yield address


@pytest.fixture
def pair() -> Iterator[TinyCluster]:
    with silence() as address, TinyCluster(brokers=2) as running:
        alive, dead = running.brokers
        running.stop(dead)
        dead.address = address
        running.add_topic("orders", 1)
        alive.arrivals.clear()
        yield running


def test_a_send_finds_the_broker_that_is_there_within_its_time(pair: TinyCluster) -> None:
    with Producer("web", discovery=pair, send_timeout_ms=5_000) as producer:
        for n in range(3):  # each broker's turn comes
            watch = Stopwatch()
            assert producer.send("orders", b"%d" % n).queue.broker_name == pair.broker.name
            assert watch.lived_s < 4.9
    assert sorted(
        record.body for arrival in pair.broker.arrivals for record in arrival.records
    ) == [b"0", b"1", b"2"]


def test_so_does_a_send_of_an_event_loop_and_one_with_a_future(pair: TinyCluster) -> None:
    async def main() -> None:
        async with AsyncProducer("web", discovery=pair, send_timeout_ms=5_000) as producer:
            for n in range(2):
                result = await within(4.9, producer.send("orders", b"%d" % n))
                assert result.queue.broker_name == pair.broker.name

    asyncio.run(main())
    with Producer("futures", discovery=pair, send_timeout_ms=5_000) as producer:
        for n in range(2):
            assert (
                producer.send_async("orders", b"%d" % n).result(20).queue.broker_name
                == pair.broker.name
            )


def test_who_must_send_there_is_told_in_time_that_nothing_was_sent(pair: TinyCluster) -> None:
    with Producer("web", discovery=pair, send_timeout_ms=800) as producer:
        watch = Stopwatch()
        with pytest.raises(SendError) as told:
            producer.send("orders", b"x", queue=MessageQueue("orders", pair.brokers[1].name, 0))
        assert isinstance(told.value, BrokerUnreachable) and watch.lived_s < 1.6
