"""``send_batch_async`` against real ports: what is out at once, and what its future tells."""

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from rmq_ray.client.interceptors.send_hooks import SendContext
from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import (
    BrokerBusy,
    ClientError,
    MessageIllegal,
    SendError,
    SendTimeout,
    SendUnconfirmed,
    SendUnknown,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message, SendResult, SendStatus
from tests.support.brokers.tiny_cluster import Arrival, TinyCluster
from tests.support.waiting import eventually

QUEUE = MessageQueue("orders", "broker-a", 2)
KB_100 = b"x" * 100_000
"""Ten of them fill a frame."""


@pytest.fixture
def cluster() -> Iterator[TinyCluster]:
    with TinyCluster(topics={"orders": 4}) as running:
        yield running


@pytest.fixture
def producer(cluster: TinyCluster) -> Iterator[Producer]:
    with Producer("web", discovery=cluster) as made:
        yield made


def bodies_of(cluster: TinyCluster, queue: MessageQueue) -> list[bytes]:
    return [record.body for record in cluster.broker.stored["orders", queue.queue_id]]


def test_the_result_is_what_a_batch_that_is_waited_for_gives(
    cluster: TinyCluster, producer: Producer
) -> None:
    bodies = [b"%d" % n for n in range(500)]
    ways: list[dict[str, Any]] = [{}, {"tags": "t", "keys": [f"k{n}" for n in range(500)]}]
    for labels in ways:
        waited = producer.send_batch("orders", bodies, QUEUE, **labels)
        (begun,) = producer.send_batch_async("orders", bodies, QUEUE, **labels).result(5)
        assert (begun.status, begun.count, begun.queue) == (SendStatus.SEND_OK, 500, QUEUE)
        assert begun.queue_offset == waited[0].queue_offset + 500
        assert len(begun.message_id.split(",")) == 500
        first, again = cluster.broker.arrivals[-2:]
        assert [record.body for record in first.records] == bodies
        assert [record.body for record in again.records] == bodies
        assert len(again.records[9].properties) == len(first.records[9].properties)
    (one,) = producer.send_batch_async([Message("orders", b"alone", tag="t")]).result(5)
    assert one.count == 1 and "," not in one.message_id


def test_the_next_batch_is_on_its_way_before_the_last_is_answered_and_they_keep_their_order(
    cluster: TinyCluster, producer: Producer
) -> None:
    cluster.broker.hold.clear()
    futures = [producer.send_batch_async("orders", [b"%d" % n] * 3, QUEUE) for n in range(4)]
    eventually(lambda: len(cluster.broker.arrivals) == 4)
    assert not any(future.done() for future in futures)
    with pytest.raises(SendTimeout):
        producer.flush(timeout=0.05)
    cluster.release(cluster.broker)
    assert [future.result(5)[0].queue_offset for future in futures] == [0, 3, 6, 9]
    assert bodies_of(cluster, QUEUE) == [b"0"] * 3 + [b"1"] * 3 + [b"2"] * 3 + [b"3"] * 3


def test_batches_without_a_queue_go_round_and_what_is_cut_stays_together(
    cluster: TinyCluster, producer: Producer
) -> None:
    futures = [producer.send_batch_async("orders", [b"x", b"y"]) for _ in range(4)]
    assert {future.result(5)[0].queue.queue_id for future in futures} == {0, 1, 2, 3}
    results = producer.send_batch_async("orders", [KB_100] * 25).result(5)
    assert [result.count for result in results] == [10, 10, 5]
    assert len({result.queue for result in results}) == 1
    first = results[0].queue_offset
    assert [result.queue_offset - first for result in results] == [0, 10, 20]


def test_of_a_batch_that_was_cut_the_error_tells_which_messages_are_stored(
    cluster: TinyCluster, producer: Producer
) -> None:
    cluster.broker.fault = lambda _arrival, number: 13 if number == 1 else None
    future = producer.send_batch_async("orders", [KB_100] * 25, QUEUE)
    with pytest.raises(SendError, match="15 messages of other frames are stored") as failed:
        future.result(5)
    assert failed.value.args[2] == [(0, 10), (20, 25)]
    cluster.broker.fault = lambda _arrival, _number: 13
    with pytest.raises(MessageIllegal, match="told to answer 13"):
        producer.send_batch_async("orders", [b"x", b"y"]).result(5)


UNCONFIRMED, LOST, ILLEGAL = 11, "lose", 13  # SLAVE_NOT_AVAILABLE; no answer; refused for good


@pytest.mark.parametrize(
    ("ends", "error", "stored", "unconfirmed"),
    [
        ((ILLEGAL, LOST, None), SendUnknown, [(20, 25)], 0),
        ((UNCONFIRMED, ILLEGAL, None), SendUnknown, [(20, 25)], 0),
        ((UNCONFIRMED, None, UNCONFIRMED), SendUnconfirmed, [(10, 20)], 25),
        ((ILLEGAL, None, ILLEGAL), MessageIllegal, [(10, 20)], 0),
    ],
)
def test_a_batch_that_may_be_stored_in_part_never_ends_as_a_definite_failure(
    cluster: TinyCluster,
    ends: tuple[int | str | None, ...],
    error: type[SendError],
    stored: list[tuple[int, int]],
    unconfirmed: int,
) -> None:
    def fault(arrival: Arrival, _number: int) -> int | str | None:
        return ends[int(arrival.records[0].body[:1])]

    cluster.broker.fault = fault
    bodies = [b"%d" % (n // 10) + KB_100 for n in range(25)]
    with Producer("web", discovery=cluster, retries=0) as producer:
        future = producer.send_batch_async("orders", bodies, QUEUE)
        with pytest.raises(error) as failed:
            future.result(10)
    assert type(failed.value) is error or error is SendUnknown
    assert isinstance(failed.value, SendUnconfirmed) == (error is SendUnconfirmed)
    assert failed.value.args[2] == stored
    if isinstance(failed.value, SendUnconfirmed):
        assert sum(result.count for result in failed.value.results) == unconfirmed


def test_a_lost_answer_is_repeated_and_a_batch_behind_it_waits_for_it(
    cluster: TinyCluster, producer: Producer
) -> None:
    def refuse_once(_arrival: Arrival, number: int) -> int | str | None:
        return "refuse" if number == 0 else None

    cluster.broker.fault = refuse_once
    futures = [producer.send_batch_async("orders", [b"%d" % n] * 2, QUEUE) for n in range(3)]
    assert all(future.result(10) for future in futures)
    assert bodies_of(cluster, QUEUE) == [b"0", b"0", b"1", b"1", b"2", b"2"]


def test_where_the_window_is_full_the_call_waits_or_refuses_and_sends_nothing(
    cluster: TinyCluster,
) -> None:
    cluster.broker.hold.clear()
    with Producer("web", discovery=cluster, frames_in_flight_max=2, on_full="raise") as producer:
        futures = [producer.send_batch_async("orders", [b"x"]) for _ in range(2)]
        with pytest.raises(BrokerBusy, match="nothing was sent"):
            producer.send_batch_async("orders", [b"x"])
        cluster.release(cluster.broker)
        assert all(future.result(5) for future in futures)
        cluster.broker.hold.clear()
        half = producer.send_batch_async("orders", [KB_100] * 25)
        eventually(lambda: len(cluster.broker.arrivals) == 4)
        assert not half.done(), "its other frames are out"
        cluster.release(cluster.broker)
        with pytest.raises(BrokerBusy, match="20 messages of other frames are stored") as failed:
            half.result(5)
        assert failed.value.args[2] == [(0, 10), (10, 20)]
    cluster.broker.hold.clear()
    with Producer("patient", discovery=cluster, frames_in_flight_max=1) as producer:
        first = producer.send_batch_async("orders", [b"1"])
        with pytest.raises(BrokerBusy, match="stayed unanswered for 50 ms"):
            producer.send_batch_async("orders", [b"2"], timeout=0.05)
        threading.Timer(0.05, lambda: cluster.release(cluster.broker)).start()
        assert producer.send_batch_async("orders", [b"3"]).result(5) and first.result(5)


def test_a_wrong_batch_is_refused_by_the_call_and_nothing_of_it_is_sent(
    cluster: TinyCluster, producer: Producer
) -> None:
    for wrong, error in (
        (("orders", b"x"), ClientError),
        (("orders", [b"x", b""]), MessageIllegal),
        (("orders", []), ClientError),
        (([Message("orders", b"x"), Message("bills", b"x")],), MessageIllegal),
        (([b"x"],), ClientError),
        (("orders", [b"x"], MessageQueue("bills", "broker-a", 0)), ClientError),
    ):
        with pytest.raises(error):
            producer.send_batch_async(*wrong)  # type: ignore[arg-type]
        with pytest.raises(error):
            producer.send_batch(*wrong)  # type: ignore[arg-type]
    assert cluster.broker.arrivals == []


def test_callbacks_run_in_the_producers_thread_and_may_send_the_next_but_not_wait_for_it(
    cluster: TinyCluster, producer: Producer
) -> None:
    told: list[object] = []

    def go_on(_ended: Future[list[SendResult]]) -> None:
        cluster.broker.hold.clear()
        following = producer.send_batch_async("orders", [b"2"])
        following.add_done_callback(told.append)
        try:
            following.result(5)
        except ClientError as error:
            told.extend([threading.current_thread(), error])

    cluster.broker.hold.clear()
    producer.send_batch_async("orders", [b"1"]).add_done_callback(go_on)
    cluster.release(cluster.broker)
    eventually(lambda: len(told) == 2)
    cluster.release(cluster.broker)
    thread, refused, following = eventually(lambda: told if len(told) == 3 else None)
    assert thread is not threading.current_thread()
    assert isinstance(refused, ClientError) and isinstance(following, Future)
    assert following.result(5)[0].status is SendStatus.SEND_OK


def test_hooks_see_each_frame_once_with_its_outcome(cluster: TinyCluster) -> None:
    class Watch:
        def __init__(self) -> None:
            self.begun: list[SendContext] = []
            self.ended: list[SendContext] = []

        def before(self, ctx: SendContext) -> None:
            self.begun.append(ctx)
            ctx.add_property("traced", "yes")

        def after(self, ctx: SendContext) -> None:
            self.ended.append(ctx)

    watch = Watch()
    cluster.broker.fault = lambda _arrival, number: 13 if number == 1 else None
    with Producer("web", discovery=cluster, hooks=[watch]) as producer:
        future = producer.send_batch_async("orders", [KB_100] * 15, QUEUE)
        with pytest.raises(SendError):
            future.result(5)
        eventually(lambda: len(watch.ended) == 2)
    assert [ctx.mode for ctx in watch.begun] == ["async", "async"]
    stored, failed = sorted(watch.ended, key=lambda ctx: ctx.count, reverse=True)
    assert stored.result is not None and stored.result.count == 10 and stored.error is None
    assert failed.result is None and isinstance(failed.error, MessageIllegal)
    assert all(
        "traced\x01yes" in record.properties for record in cluster.broker.arrivals[0].records
    )


def test_a_namespace_and_compression_are_applied() -> None:
    settings: dict[str, Any] = {"compression": "zlib", "compress_over_bytes": 1_000}
    with (
        TinyCluster(topics={"shop%orders": 4}) as cluster,
        Producer("web", discovery=cluster, namespace="shop", **settings) as producer,
    ):
        (result,) = producer.send_batch_async("orders", [b"x" * 5_000] * 3, QUEUE).result(5)
    (arrival,) = cluster.broker.arrivals
    assert (result.count, result.queue, arrival.topic) == (3, QUEUE, "shop%orders")
    assert all(len(record.body) < 1_000 for record in arrival.records)


def test_closing_waits_for_the_answers(cluster: TinyCluster) -> None:
    producer = Producer("web", discovery=cluster)
    future = producer.send_batch_async("orders", [b"x", b"y"])
    producer.close()
    assert future.done() and future.result(0)[0].count == 2
    with pytest.raises(ClientError, match="make a new one"):
        producer.send_batch_async("orders", [b"x"])


def test_a_close_ends_what_has_no_answer_and_what_waits_for_room_is_not_sent(
    cluster: TinyCluster,
) -> None:
    cluster.broker.hold.clear()
    settings: dict[str, Any] = {"frames_in_flight_max": 1, "send_timeout_ms": 200}
    producer = Producer("web", discovery=cluster, **settings)
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        call = thread.submit(producer.send_batch_async, "orders", [KB_100] * 25, QUEUE, timeout=60)
        eventually(lambda: len(cluster.broker.arrivals) == 1)
        producer.close()
        with pytest.raises(SendUnknown, match="closed before the broker answered"):
            call.result(30).result(30)
    assert len(cluster.broker.arrivals) == 1


def test_in_a_forked_child_its_future_has_ended(cluster: TinyCluster, producer: Producer) -> None:
    cluster.broker.hold.clear()
    future = producer.send_batch_async("orders", [KB_100] * 25)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = f"{type(future.exception(0)).__name__}: {future.exception(0)}"
        os.write(writing, said.encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reading, 4_096).decode()
    assert said.startswith("ClientError: this future was made before a fork")
    assert not future.done()
    cluster.release(cluster.broker)
    assert sum(result.count for result in future.result(5)) == 25
