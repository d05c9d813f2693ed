"""A broker that has a message, but not as safely as its mode demands: whoever sent it is told, in
every way of sending, and nothing is sent again because of it.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from rmq_ray.cli.base import context
from rmq_ray.cli.main import main
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import SendUnconfirmed, SendUnknown
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message, SendResult, SendStatus
from tests.support.brokers.tiny_cluster import TinyCluster

NO_SLAVE = SendStatus.SLAVE_NOT_AVAILABLE
TABLE = pa.table({"body": [b"1", b"2", b"3"]})
QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture
def cluster() -> Iterator[TinyCluster]:
    with TinyCluster(topics={"orders": 2}) as running:
        running.broker.fault = lambda arrival, number: NO_SLAVE.value
        yield running


def in_loop(
    cluster: TinyCluster, send: Callable[[AsyncProducer], Awaitable[Any]], settings: dict[str, Any]
) -> Any:
    async def run() -> Any:
        async with AsyncProducer("web", discovery=cluster, **settings) as producer:
            return await send(producer)

    return asyncio.run(run())


def in_thread(
    cluster: TinyCluster, send: Callable[[Producer], Any], settings: dict[str, Any]
) -> Any:
    with Producer("web", discovery=cluster, **settings) as producer:
        return send(producer)


BATCH = [Message("orders", b"1"), Message("orders", b"2")]
WAYS: dict[str, Callable[[TinyCluster, dict[str, Any]], Any]] = {
    "send": lambda c, s: in_thread(c, lambda p: p.send("orders", b"x"), s),
    "to a queue": lambda c, s: in_thread(c, lambda p: p.send("orders", b"x", queue=QUEUE), s),
    "in order": lambda c, s: in_thread(c, lambda p: p.send("orders", b"x", message_group="g"), s),
    "delayed": lambda c, s: in_thread(c, lambda p: p.send("orders", b"x", delay_level=1), s),
    "send_async": lambda c, s: in_thread(c, lambda p: p.send_async("orders", b"x").result(20), s),
    "delayed, async": lambda c, s: in_thread(
        c, lambda p: p.send_async("orders", b"x", delay_level=1).result(20), s
    ),
    "send_batch": lambda c, s: in_thread(c, lambda p: p.send_batch(BATCH)[0], s),
    "send_arrow": lambda c, s: in_thread(c, lambda p: p.send_arrow("orders", TABLE)[0], s),
    "arrow to a queue": lambda c, s: in_thread(
        c, lambda p: p.send_arrow("orders", TABLE, queue=QUEUE)[0], s
    ),
    "with steps": lambda c, s: in_thread(
        c, lambda p: p.send("orders", b"x" * 9_000), s | {"compression": "zlib"}
    ),
    "await send": lambda c, s: in_loop(c, lambda p: p.send("orders", b"x"), s),
    "await delayed": lambda c, s: in_loop(c, lambda p: p.send("orders", b"x", delay_level=1), s),
    "await send_batch": lambda c, s: in_loop(c, lambda p: p.send_batch(BATCH), s),
    "await send_arrow": lambda c, s: in_loop(c, lambda p: p.send_arrow("orders", TABLE), s),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_sending_raises_with_the_result_and_sends_once(
    cluster: TinyCluster, way: str
) -> None:
    with pytest.raises(
        SendUnconfirmed, match=r"SLAVE_NOT_AVAILABLE .*rmq-ray status.*raise_on_status"
    ) as caught:
        WAYS[way](cluster, {})
    error = caught.value
    assert isinstance(error, SendUnknown) and error.args[1] == "orders"
    assert [result.status for result in error.results] == [NO_SLAVE]
    assert error.result is error.results[-1] and error.result.message_id and error.result.unknown
    assert pickle.loads(pickle.dumps(error)).results == error.results  # noqa: S301 - our own bytes
    assert len(cluster.broker.arrivals) == 1, "sent again, it would be stored twice"


@pytest.mark.parametrize("way", WAYS)
def test_with_raise_on_status_off_every_way_returns_the_status(
    cluster: TinyCluster, way: str
) -> None:
    found = WAYS[way](cluster, {"raise_on_status": False})
    result = found[0] if isinstance(found, list) else found
    assert isinstance(result, SendResult) and result.status is NO_SLAVE
    assert len(cluster.broker.arrivals) == 1


@pytest.mark.parametrize("status", [10, 11, 12])
def test_the_error_says_which_status_what_it_means_and_what_to_do(
    cluster: TinyCluster, status: int
) -> None:
    cluster.broker.fault = lambda arrival, number: status
    with Producer("web", discovery=cluster) as producer, pytest.raises(SendUnconfirmed) as caught:
        producer.send("orders", b"x")
    said = str(caught.value)
    assert SendStatus(status).name in said and SendStatus(status).meaning in said
    assert "broker-a" in said and "send again where twice is better than never" in said


@pytest.mark.parametrize("run", [in_thread, in_loop])
def test_a_request_that_no_consumer_gets_fails_before_its_time_is_over(
    cluster: TinyCluster, run: Any
) -> None:
    with pytest.raises(SendUnconfirmed):
        run(cluster, lambda producer: producer.request("orders", b"x", timeout=60.0), {})


def test_each_message_that_shared_a_frame_has_its_own_result(cluster: TinyCluster) -> None:
    with Producer("web", discovery=cluster, linger_ms=20.0) as producer:
        futures = [producer.send_async("orders", b"%d" % number) for number in range(5)]
        errors = [future.exception(20) for future in futures]

    async def gathered() -> list[Any]:
        async with AsyncProducer("loop", discovery=cluster) as producer:
            sends = [producer.send("orders", b"%d" % number) for number in range(5)]
            return await asyncio.gather(*sends, return_exceptions=True)

    for told in (errors, asyncio.run(gathered())):
        assert all(isinstance(error, SendUnconfirmed) for error in told)
        assert len({error.results[0].message_id for error in told}) == 5
        assert all(error.results[0].count == 1 for error in told)


def test_threads_that_share_frames_are_told_each(cluster: TinyCluster) -> None:
    gate = threading.Barrier(12)

    def send(number: int) -> str:
        gate.wait(20)
        with pytest.raises(SendUnconfirmed) as caught:
            producer.send("orders", b"%d" % number)
        (result,) = caught.value.results
        return str(result.message_id)

    with Producer("web", discovery=cluster) as producer, ThreadPoolExecutor(12) as threads:
        assert len(set(threads.map(send, range(12)))) == 12
    assert sum(len(arrival.records) for arrival in cluster.broker.arrivals) == 12


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_batch_of_several_frames_tells_what_was_confirmed_before(
    cluster: TinyCluster, asynchronous: bool
) -> None:
    cluster.broker.fault = lambda arrival, number: None if number == 0 else 10
    settings = {"batch_bytes_max": 4_000}
    batch = [Message("orders", b"x" * 3_000) for _ in range(3)]
    run: Any = in_loop if asynchronous else in_thread
    with pytest.raises(SendUnconfirmed, match="the first 1 messages are stored") as caught:
        run(cluster, lambda producer: producer.send_batch(batch), settings)
    assert caught.value.args[2] == 1
    assert [result.status.value for result in caught.value.results] == [0, 10]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_table_tells_which_rows_were_confirmed(cluster: TinyCluster, asynchronous: bool) -> None:
    cluster.broker.fault = lambda arrival, number: None if number == 0 else 12
    settings = {"batch_bytes_max": 4_000}
    table = pa.table({"body": [b"x" * 3_000] * 2})
    run: Any = in_loop if asynchronous else in_thread
    with pytest.raises(SendUnconfirmed, match="1 rows of other frames are stored") as caught:
        run(cluster, lambda producer: producer.send_arrow("orders", table, queue=QUEUE), settings)
    assert caught.value.args[2] == [(0, 1)]
    assert [result.status.value for result in caught.value.results] == [0, 12]


@pytest.mark.parametrize("text", [None, "one\ntwo\n"], ids=["one message", "lines"])
def test_the_command_line_fails_and_says_it_on_one_line(
    cluster: TinyCluster, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    monkeypatch.setattr(context.Options, "admin", SimpleNamespace(masters=dict))
    monkeypatch.setattr(context.Options, "discovery", cluster)
    arguments = ["produce", "orders"] if text else ["produce", "orders", "x"]
    result = CliRunner().invoke(main, arguments, input=text)
    assert result.exit_code == 1 and result.output.count("\n") == 1
    assert "SLAVE_NOT_AVAILABLE from broker-a" in result.output
    assert result.output.rstrip().endswith("returns the status [SendUnconfirmed]"), "not cut off"
