"""Requests that wait for a reply message, over a real broker (protocol-behaviour 25)."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer import request_reply
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.producer.replying import reply
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.errors import ClientError, NotARequest, RequestTimeout, SendError
from rmq_ray.model.message import Message
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.faults.stopwatch import Stopwatch
from tests.support.waiting import eventually

LONG = b"a long request " * 1_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, brokers=2) as running:
        admin = Admin(running)
        admin.create_topic("rpc", queues=2)
        admin.close()
        yield running


class Server:
    """A consumer that answers with the reversed body; ``silent`` bodies get no answer, ``late``
    ones get theirs when told.
    """

    def __init__(self, cluster: LiveCluster) -> None:
        self.seen: list[Any] = []
        self.errors: list[Exception] = []
        self.go_on = threading.Event()
        self.consumer = PushConsumer(
            "servers",
            listener=self.listen,
            subscriptions={"rpc": "*"},
            discovery=cluster,
            start_from="first",
            concurrency=4,
        )

    def listen(self, messages: list[Any], ctx: Any) -> None:
        for message in messages:
            self.seen.append(message)
            if message.body == b"silent":
                continue
            if message.body == b"late":
                self.go_on.wait(10)
            try:
                reply(message, message.body[::-1])
            except (SendError, ClientError) as error:
                self.errors.append(error)


@pytest.fixture
def server(cluster: LiveCluster) -> Iterator[Server]:
    made = Server(cluster)
    with made.consumer:
        yield made


def test_a_request_gets_the_reply_of_a_consumer(cluster: LiveCluster, server: Server) -> None:
    with Producer("web", discovery=cluster, compression="zlib") as producer:
        for n in range(6):  # both brokers
            answer = producer.request(
                "rpc", b"hello %d" % n, timeout=8.0, tag="t", keys=["k"], properties={"a": "b"}
            )
            assert answer.body == (b"hello %d" % n)[::-1]
        assert producer.request("rpc", LONG, timeout=8.0).body == LONG[::-1]
        assert (
            producer.request(Message("rpc", b"abc"), timeout=8.0, message_group="g").body == b"cba"
        )
        futures = [producer.request_async("rpc", b"%03d" % n, timeout=8.0) for n in range(50)]
        assert [future.result(8).body for future in futures] == [
            (b"%03d" % n)[::-1] for n in range(50)
        ]
    asked = server.seen[0]
    assert (asked.tag, asked.keys, asked.properties) == ("t", ["k"], {"a": "b"})
    assert asked.all_properties["REPLY_TO_CLIENT"] and asked.all_properties["TTL"] == "8000"
    assert (
        answer.all_properties["CORRELATION_ID"] == server.seen[5].all_properties["CORRELATION_ID"]
        and answer.topic == "live_REPLY_TOPIC"
    )
    assert not server.errors
    assert {queue.broker_name for queue in (message.queue for message in server.seen)} == {
        "broker-a",
        "broker-b",
    }
    stored = sum(cluster.store(number).bounds("live_REPLY_TOPIC", 0)[1] for number in range(2))
    assert stored == len(server.seen)


def test_an_awaited_request_without_a_reply_is_told_once(
    cluster: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with AsyncProducer("web", discovery=cluster) as producer:
            await producer.send("rpc", b"x", timeout=20.0)
            with pytest.raises(RequestTimeout):
                await producer.request("rpc", b"nobody", timeout=1.0)

    asyncio.run(run())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_an_asyncio_producer_asks_without_blocking_its_loop(
    cluster: LiveCluster, server: Server
) -> None:
    async def run() -> None:
        async with AsyncProducer("web", discovery=cluster) as producer:
            answers = await asyncio.gather(
                *(producer.request("rpc", b"%02d" % n, timeout=8.0) for n in range(10))
            )
            assert [answer.body for answer in answers] == [(b"%02d" % n)[::-1] for n in range(10)]
            with pytest.raises(RequestTimeout):
                await producer.request("rpc", b"silent", timeout=1.0)

    asyncio.run(run())


def test_a_request_without_a_reply_is_a_typed_error_when_its_time_is_over(
    cluster: LiveCluster, server: Server
) -> None:
    with Producer("web", discovery=cluster) as producer:
        watch = Stopwatch()
        with pytest.raises(RequestTimeout, match="was sent, but no reply came within 2500 ms"):
            producer.request("rpc", b"silent", timeout=2.5)
        assert watch.passed_s > 2.4 and watch.lived_s < 3.7
        late = producer.request_async("rpc", b"late", timeout=0.2)
        assert not late.cancel()
        with pytest.raises(RequestTimeout):
            late.result(5)
        server.go_on.set()
        assert producer.request("rpc", b"next", timeout=8.0).body == b"txen", (
            "a reply that comes too late harms nothing"
        )
        assert not server.errors


def test_what_cannot_be_asked_or_answered_is_a_typed_error(
    cluster: LiveCluster, server: Server
) -> None:
    with Producer("web", discovery=cluster) as producer:
        for wrong in (
            Message("rpc", b"x", delay_level=1),
            Message("rpc", b"x", wait_store_ok=False),
        ):
            with pytest.raises(ClientError, match="cannot be delayed"):
                producer.request(wrong)
        with pytest.raises(ClientError):
            producer.request("rpc", b"x", timeout=0)
        with pytest.raises(ClientError, match="takes the message"):
            reply("rpc", b"x")  # type: ignore[arg-type]
        with pytest.raises(ClientError, match="queues"):
            producer.request("rpc", b"x", selector=lambda *_: None)
        assert (
            producer._core is not None
            and len(request_reply.request_reply_of(producer._core)._pending) == 0
        )
        producer.send("rpc", b"plain")
        eventually(lambda: len(server.errors) == 1)
        assert isinstance(server.errors[0], NotARequest) and server.errors[0].code == 10007


def test_a_reply_to_one_who_is_gone_says_so(cluster: LiveCluster, server: Server) -> None:
    producer = Producer("web", discovery=cluster)
    waiting = producer.request_async("rpc", b"late", timeout=30.0)
    eventually(lambda: bool(server.seen))
    producer.close()
    with pytest.raises(ClientError, match="closed"):
        waiting.result(1)
    server.go_on.set()
    eventually(lambda: bool(server.errors))
    assert "not found" in str(server.errors[0])
