"""The end of a producer on an event loop with calls under way: what was not sent by then never is,
and no connection is opened any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.sending.loop_sender import LoopSender
from rmq_ray.errors import ClientError, SendError, SendUnknown
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message
from rmq_ray.remoting.async_connection import AsyncConnection
from rmq_ray.remoting.wire.codes import RequestCode
from tests.support.brokers.tiny_cluster import TinyCluster
from tests.support.faults.stopwatch import within
from tests.support.waiting import eventually

PAIR = [Message("orders", b"1"), Message("orders", b"2")]
CALLS: dict[str, Callable[[AsyncProducer], Coroutine[Any, Any, object]]] = {
    "send": lambda producer: producer.send("orders", b"late", timeout=30.0),
    "special": lambda producer: producer.send(
        "orders", b"late", delay=timedelta(seconds=9), timeout=30.0
    ),
    "batch": lambda producer: producer.send_batch(PAIR, timeout=30.0),
    "request": lambda producer: producer.request("orders", b"late", timeout=3.0),
    "request to a queue": lambda producer: producer.request(
        "orders", b"late", selector=lambda queues, _message, _arg: queues[0], timeout=3.0
    ),
}


@pytest.fixture
def cluster() -> Iterator[TinyCluster]:
    with TinyCluster(topics={"orders": 2, "first": 1}) as running:
        yield running


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[AsyncConnection]:
    """Connections of event loops."""
    found: list[AsyncConnection] = []
    original = AsyncConnection.open.__func__  # type: ignore[attr-defined]

    async def opening(cls: type[AsyncConnection], *args: Any) -> AsyncConnection:
        found.append(await original(cls, *args))
        return found[-1]

    monkeypatch.setattr(AsyncConnection, "open", classmethod(opening))
    return found


def frames_of(producer: AsyncProducer) -> LoopSender:
    assert producer._sender is not None
    return producer._sender


def test_of_a_table_whose_producer_is_closed_no_other_frame_leaves(
    cluster: TinyCluster, opened: list[AsyncConnection]
) -> None:
    rows = pa.table({"body": [b"body %d" % number for number in range(400)]})

    async def main() -> None:
        producer = AsyncProducer(
            "web", discovery=cluster, send_timeout_ms=100, batch_bytes_max=2_000
        )
        await producer.send("first", b"0", timeout=20.0)
        cluster.broker.fault = lambda _arrival, number: "lose" if number == 4 else None
        sending = asyncio.create_task(
            producer.send_arrow(
                "orders", rows, queue=MessageQueue("orders", cluster.broker.name, 0), timeout=30.0
            )
        )
        await asyncio.to_thread(eventually, lambda: len(cluster.broker.arrivals) == 5)
        await producer.close()
        arrived = len(cluster.broker.arrivals)
        with pytest.raises(SendUnknown, match="closed") as caught:
            await within(5.0, sending)
        told = sum(end - begin for begin, end in caught.value.args[2])
        bodies = [record.body for record in cluster.broker.stored["orders", 0]]
        assert len(cluster.broker.arrivals) == arrived and len(opened) == 1 and not opened[0].alive
        assert 0 < told < len(bodies) < 400 and bodies == rows["body"].to_pylist()[: len(bodies)]

    asyncio.run(main())


def test_a_request_that_waits_to_be_introduced_is_told_at_once(
    cluster: TinyCluster, opened: list[AsyncConnection]
) -> None:
    async def main() -> None:
        producer = AsyncProducer("web", discovery=cluster)
        await producer.send("orders", b"0")
        answers = cluster.broker.handle
        cluster.broker.handle = lambda command, peer: (
            None if command.code == RequestCode.HEART_BEAT else answers(command, peer)
        )  # type: ignore[method-assign]
        asking = asyncio.create_task(producer.request("orders", b"late", timeout=6.0))
        while producer._requests is None or producer._requests._telling is None:
            await asyncio.sleep(0)
        closing = asyncio.create_task(producer.close())
        with pytest.raises(ClientError, match="nothing was sent"):
            await within(1.0, asking)
        cluster.broker.handle = answers  # type: ignore[method-assign]
        await closing
        assert len(cluster.broker.arrivals) == 1 and len(opened) == 1 and not opened[0].alive

    asyncio.run(main())


@pytest.mark.parametrize("call", CALLS)
def test_a_call_of_the_turn_in_which_the_producer_is_closed_ends_and_leaves_nothing_open(
    cluster: TinyCluster, opened: list[AsyncConnection], call: str
) -> None:
    async def main() -> None:
        producer = AsyncProducer("web", discovery=cluster)
        await producer.start()
        core = producer._core
        assert core is not None
        await asyncio.to_thread(core.instance.routes.refresh, "orders")
        calling = asyncio.create_task(CALLS[call](producer))
        await asyncio.gather(asyncio.sleep(0), producer.close())
        (end,) = await within(2.0, asyncio.gather(calling, return_exceptions=True))
        arrived = len(cluster.broker.arrivals)
        assert isinstance(end, ClientError) or arrived, end
        assert not any(connection.alive for connection in opened)
        await asyncio.sleep(0.05)
        assert len(cluster.broker.arrivals) == arrived

    asyncio.run(main())


@pytest.mark.parametrize("call", ["send", "special", "batch", "request to a queue"])
def test_frames_that_are_closed_begin_nothing(
    cluster: TinyCluster, opened: list[AsyncConnection], call: str
) -> None:
    """The call found the producer open."""

    async def main() -> None:
        producer = AsyncProducer("web", discovery=cluster)
        await producer.send("orders", b"0")
        await frames_of(producer).close(100.0)
        with pytest.raises(ClientError, match="nothing was sent"):
            await within(2.0, CALLS[call](producer))
        assert len(cluster.broker.arrivals) == 1 and len(opened) == 1
        await producer.close()

    asyncio.run(main())


def test_a_message_that_was_out_when_its_producer_was_closed_may_be_stored(
    cluster: TinyCluster, opened: list[AsyncConnection]
) -> None:
    async def main() -> None:
        producer = AsyncProducer("web", discovery=cluster, send_timeout_ms=100)
        await producer.send("first", b"0", timeout=20.0)
        cluster.broker.hold.clear()
        calling = asyncio.create_task(CALLS["batch"](producer))
        await asyncio.to_thread(eventually, lambda: len(cluster.broker.arrivals) == 2)
        await producer.close()
        with pytest.raises(SendUnknown, match="may be stored"):
            await within(2.0, calling)
        assert len(cluster.broker.arrivals) == 2 and len(opened) == 1

    asyncio.run(main())


def test_a_batch_whose_producer_is_closed_on_its_way_tells_what_is_stored(
    cluster: TinyCluster,
) -> None:
    async def main() -> None:
        producer = AsyncProducer("web", discovery=cluster, batch_bytes_max=400)
        await producer.send("first", b"0", timeout=20.0)
        frames = frames_of(producer)
        original = frames.resolve
        shipped: list[Any] = []

        async def resolve(*args: Any) -> Any:
            if shipped:
                await frames.close(100.0)
            shipped.append(await original(*args))
            return shipped[-1]

        frames.resolve = resolve  # type: ignore[method-assign, assignment]
        with pytest.raises(
            SendError, match="was closed.* the first . messages are stored"
        ) as caught:
            await producer.send_batch([Message("orders", b"x" * 100)] * 9)
        assert caught.value.args[2] == cluster.broker.messages - 1 > 0
        await producer.close()

    asyncio.run(main())


def test_who_closes_a_producer_and_does_not_wait_for_what_is_out_leaves_nothing_open(
    cluster: TinyCluster, opened: list[AsyncConnection]
) -> None:
    async def run() -> None:
        producer = AsyncProducer("web", discovery=cluster, send_timeout_ms=30_000)
        await producer.send("orders", b"first")
        cluster.broker.fault = lambda _arrival, _number: "lose"
        out = asyncio.create_task(producer.send("orders", b"out"))
        await asyncio.to_thread(eventually, lambda: len(cluster.broker.arrivals) == 2)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises((SendUnknown, asyncio.CancelledError)):
            await out
        assert opened and not any(connection.alive for connection in opened)
        assert cluster.broker.unregistered
        await producer.close()

    asyncio.run(run())
