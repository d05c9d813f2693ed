"""A producer against real ports: the styles of sending, where messages go, and what they carry."""

from __future__ import annotations

import concurrent.futures
import math
import threading
import time
from collections.abc import Iterator

import pytest

from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import (
    BrokerBusy,
    ClientError,
    MessageIllegal,
    MessageTooLarge,
    SendTimeout,
    TopicNotFound,
    TopicNotWritable,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message, SendResult, SendStatus, decode_properties
from rmq_ray.remoting.wire.frame import Command
from tests.support.brokers.tiny_cluster import TinyCluster
from tests.support.waiting import eventually


@pytest.fixture
def cluster() -> Iterator[TinyCluster]:
    with TinyCluster(topics={"orders": 4}) as running:
        yield running


@pytest.fixture
def producer(cluster: TinyCluster) -> Iterator[Producer]:
    with Producer("web", discovery=cluster) as made:
        yield made


@pytest.mark.seed("S0-051")
def test_a_send_returns_where_the_message_is(cluster: TinyCluster, producer: Producer) -> None:
    result = producer.send(
        "orders", b"hello world", tag="paid", keys=["o-1", "o-2"], properties={"region": "eu"}
    )
    assert (
        result.status is SendStatus.SEND_OK
        and result.queue.topic == "orders"
        and result.queue_offset == 0
    )
    (record,) = cluster.broker.stored["orders", result.queue.queue_id]
    found = decode_properties(record.properties)
    assert record.body == b"hello world"
    assert (found["KEYS"], found["TAGS"], found["region"]) == ("o-1 o-2", "paid", "eu")
    assert found["UNIQ_KEY"] == result.message_id and record.properties.endswith(result.message_id)
    assert result.offset_message_id.endswith(f"{result.log_offset:016X}")


@pytest.mark.seed("S3-001", "S3-003")
def test_the_example_of_a_first_producer_sends_and_prints_its_result(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with (
        TinyCluster(topics={"myTopic001": 4}) as cluster,
        Producer("my-producer", discovery=cluster) as producer,
    ):
        result = producer.send("myTopic001", b"hello world")
        print(result)
        producer._core.instance.heartbeat(wait_s=10.0)  # type: ignore[union-attr]
        assert cluster.broker.heartbeats[-1].producer_groups == ("my-producer",)
    (record,) = cluster.broker.stored["myTopic001", result.queue.queue_id]
    assert record.body == b"hello world"
    printed = capsys.readouterr().out
    assert "SEND_OK" in printed and result.message_id in printed and "myTopic001" in printed


@pytest.mark.seed("S3-002")
def test_a_message_without_labels_carries_nothing_but_its_key(
    cluster: TinyCluster, producer: Producer
) -> None:
    result = producer.send(Message("orders", b"x"))
    (record,) = cluster.broker.stored["orders", result.queue.queue_id]
    assert record.flag == 0 and set(decode_properties(record.properties)) == {
        "RMQ_FRAME",
        "UNIQ_KEY",
    }
    assert Message("orders", b"x").wait_store_ok


@pytest.mark.seed("S0-004", "S0-005", "S3-076")
def test_synchronous_asynchronous_ordered_and_one_way_sends_all_arrive(
    cluster: TinyCluster, producer: Producer
) -> None:
    assert producer.send("orders", b"sync").status is SendStatus.SEND_OK
    assert producer.send_async("orders", b"async").result(5).status is SendStatus.SEND_OK
    assert producer.send("orders", b"ordered", message_group="user-7").status is SendStatus.SEND_OK
    assert producer.send_oneway("orders", b"oneway") is None  # type: ignore[func-returns-value]
    producer.send("orders", b"last")
    bodies = {record.body for arrival in cluster.broker.arrivals for record in arrival.records}
    assert bodies == {b"sync", b"async", b"ordered", b"oneway", b"last"}
    assert [arrival.oneway for arrival in cluster.broker.arrivals] == [
        False,
        False,
        False,
        True,
        False,
    ]


def test_messages_of_one_thread_go_round_all_queues(
    cluster: TinyCluster, producer: Producer
) -> None:
    queues = [producer.send("orders", b"x").queue.queue_id for _ in range(8)]
    assert sorted(queues) == [0, 0, 1, 1, 2, 2, 3, 3] and queues[:4] == queues[4:]


def test_futures_of_a_batch_have_consecutive_offsets_in_one_queue(
    cluster: TinyCluster, producer: Producer
) -> None:
    futures = [producer.send_async("orders", b"%d" % n, tag="t") for n in range(50)]
    done, _ = concurrent.futures.wait(futures, timeout=10)
    assert len(done) == 50
    results = [future.result(0) for future in futures]
    for queue in {result.queue for result in results}:
        offsets = [result.queue_offset for result in results if result.queue == queue]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        stored = [
            decode_properties(record.properties)["UNIQ_KEY"]
            for record in cluster.broker.stored["orders", queue.queue_id]
        ]
        assert stored == [result.message_id for result in results if result.queue == queue]


def test_a_full_batch_leaves_without_waiting(cluster: TinyCluster) -> None:
    with Producer("web", discovery=cluster, linger_ms=60_000.0, batch_messages_max=10) as producer:
        futures = [producer.send_async("orders", b"x") for _ in range(25)]
        assert len(concurrent.futures.wait(futures[:20], timeout=5).done) == 20
        assert not futures[20].done()
        producer.flush(timeout=20)
        assert futures[24].done()
        assert [len(arrival.records) for arrival in cluster.broker.arrivals] == [10, 10, 5]


def test_a_batch_leaves_before_it_would_exceed_its_bytes(cluster: TinyCluster) -> None:
    with Producer("web", discovery=cluster, linger_ms=60_000.0, batch_bytes_max=3000) as producer:
        for _ in range(5):
            producer.send_async("orders", b"x" * 1000)
        producer.flush(timeout=20)
    assert [len(arrival.records) for arrival in cluster.broker.arrivals] == [2, 2, 1]


@pytest.mark.seed("S3-078", "S3-079")
def test_a_list_of_messages_is_one_frame_in_one_queue_and_too_long_a_list_is_several(
    cluster: TinyCluster, producer: Producer
) -> None:
    (result,) = producer.send_batch([Message("orders", b"%d" % n) for n in range(500)])
    assert (
        result.count == 500
        and result.queue_offset == 0
        and len(result.message_id.split(",")) == 500
    )
    queue = MessageQueue("orders", "broker-a", 2)
    results = producer.send_batch([Message("orders", b"x" * 100_000) for _ in range(30)], queue)
    assert len(results) == 3 and {result.queue for result in results} == {queue}
    first = results[0].queue_offset
    assert [result.queue_offset - first for result in results] == [0, 10, 20] and sum(
        result.count for result in results
    ) == 30


def test_a_batch_may_be_a_topic_and_bodies(cluster: TinyCluster, producer: Producer) -> None:
    queue = MessageQueue("orders", "broker-a", 2)
    for bodies in ([b"1", b"2"], [Message("orders", b"1"), b"2"]):
        (result,) = producer.send_batch("orders", bodies, queue)
        assert (result.count, result.queue) == (2, queue)
        stored = cluster.broker.stored["orders", 2][result.queue_offset :]
        assert [record.body for record in stored] == [b"1", b"2"]


def test_a_message_can_be_given_its_queue_three_ways(
    cluster: TinyCluster, producer: Producer
) -> None:
    queue = MessageQueue("orders", "broker-a", 3)
    assert producer.send("orders", b"x", queue=queue).queue == queue
    assert (
        producer.send(
            "orders", b"x", selector=lambda queues, message, arg: queues[arg % len(queues)], arg=6
        ).queue.queue_id
        == 2
    )
    groups = {producer.send("orders", b"x", message_group="user-7").queue for _ in range(5)}
    assert len(groups) == 1
    assert producer.send_async("orders", b"x", queue=queue).result(5).queue == queue
    for ways in (
        {"queue": queue, "message_group": "a"},
        {"selector": lambda *_: queue, "message_group": "a"},
    ):
        with pytest.raises(ClientError, match="give one of them"):
            producer.send("orders", b"x", **ways)  # type: ignore[arg-type]
    with pytest.raises(ClientError, match="not a queue of topic"):
        producer.send("orders", b"x", queue=MessageQueue("bills", "broker-a", 0))


def test_ordered_sends_have_one_frame_out_per_queue_and_keep_their_order(
    cluster: TinyCluster, producer: Producer
) -> None:
    cluster.broker.hold.clear()
    futures = []
    for n in range(5):
        futures.append(producer.send_async("orders", b"%d" % n, message_group="g"))
        with pytest.raises(SendTimeout):
            producer.flush(timeout=0.01)  # each message is a frame of its own
    eventually(lambda: len(cluster.broker.arrivals) == 1)
    assert not threading.Event().wait(0.1) and len(cluster.broker.arrivals) == 1
    cluster.release(cluster.broker)
    assert [future.result(5).queue_offset for future in futures] == [0, 1, 2, 3, 4]
    assert [arrival.records[0].body for arrival in cluster.broker.arrivals] == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
    ]


def test_special_kinds_travel_as_single_messages_with_their_frame_id(
    cluster: TinyCluster, producer: Producer
) -> None:
    producer.send("orders", b"later", tag="t", delay_level=3)
    producer.send_async(Message("orders", b"now", wait_store_ok=False)).result(5)
    producer.send("%RETRY%group", b"again")
    singles = [arrival.single for arrival in cluster.broker.arrivals]
    assert all(single is not None and single.frame_id is not None for single in singles)
    texts = [single.properties or "" for single in singles if single is not None]
    assert (
        "DELAY\x013\x02" in texts[0] and "TAGS\x01t\x02" in texts[0] and "WAIT\x01false" in texts[1]
    )
    assert len({single.frame_id for single in singles if single is not None}) == 3


def test_an_unknown_topic_is_made_from_the_template_with_four_queues(
    cluster: TinyCluster, producer: Producer
) -> None:
    assert {producer.send("fresh", b"x").queue.queue_id for _ in range(20)} == {0, 1, 2, 3}
    cluster.routes.clear()
    with pytest.raises(TopicNotFound):
        producer.send("ghost", b"x")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("bad topic", b"x"), ClientError),
        (("SCHEDULE_TOPIC_XXXX", b"x"), TopicNotWritable),
        (("orders", b""), MessageIllegal),
        (("orders", "text"), MessageIllegal),
        (("orders", None), MessageIllegal),
        (("orders", b"x" * (4 * 1024 * 1024 + 1)), MessageTooLarge),
        ((Message("orders", b"x"), b"y"), ClientError),
    ],
)
@pytest.mark.seed("S3-025")
def test_what_is_wrong_is_refused_before_anything_is_sent(
    cluster: TinyCluster, producer: Producer, arguments: tuple[object, ...], error: type[Exception]
) -> None:
    for send in (producer.send, producer.send_async, producer.send_oneway):
        with pytest.raises(error):
            send(*arguments)  # type: ignore[arg-type]
    assert cluster.broker.arrivals == []


def test_frames_in_flight_are_bounded_and_a_caller_may_choose_to_be_refused(
    cluster: TinyCluster,
) -> None:
    cluster.broker.hold.clear()
    with Producer(
        "web", discovery=cluster, frames_in_flight_max=2, on_full="raise", linger_ms=0.0
    ) as producer:
        futures = [producer.send_async("orders", b"x") for _ in range(2)]
        with pytest.raises(BrokerBusy, match="frames_in_flight_max"):
            producer.send_async("orders", b"x")
        cluster.release(cluster.broker)
        assert all(future.result(5) for future in futures)
        assert producer.send_async("orders", b"x").result(5)


def test_a_blocked_caller_goes_on_when_a_frame_is_answered_and_gives_up_at_its_time_out(
    cluster: TinyCluster,
) -> None:
    cluster.broker.hold.clear()
    with Producer("web", discovery=cluster, frames_in_flight_max=1, linger_ms=0.0) as producer:
        first = producer.send_async("orders", b"1")
        with pytest.raises(BrokerBusy, match="stayed unanswered for 50 ms"):
            producer.send_async("orders", b"2", timeout=0.05)
        threading.Timer(0.05, lambda: cluster.release(cluster.broker)).start()
        assert producer.send_async("orders", b"3").result(5) and first.result(5)


def test_flush_tells_when_answers_are_missing(cluster: TinyCluster, producer: Producer) -> None:
    cluster.broker.hold.clear()
    future = producer.send_async("orders", b"x")
    with pytest.raises(SendTimeout, match="within 50 ms"):
        producer.flush(timeout=0.05)
    cluster.release(cluster.broker)
    producer.flush(timeout=20)
    assert future.done()


@pytest.mark.seed("S0-028", "S3-004", "S3-024", "S0-024")
def test_a_group_name_is_enough_and_calls_wait_three_seconds(cluster: TinyCluster) -> None:
    with Producer("web", discovery=cluster) as producer:
        asked: list[tuple[int, float, float]] = []  # code, its time, what has passed, ms
        link = producer._core.instance.link  # type: ignore[union-attr]
        sent, told, caller = link.invoke, link.name_server_invoke, threading.get_ident()

        def note(command: Command, timeout_ms: float) -> None:
            if threading.get_ident() == caller:  # the first heartbeat asks as well
                asked.append((command.code, timeout_ms, (time.monotonic() - began) * 1_000))

        link.invoke = lambda address, command, timeout_ms: (
            note(command, timeout_ms),
            sent(address, command, timeout_ms),
        )[1]  # type: ignore[method-assign]
        link.name_server_invoke = lambda command, timeout_ms, until_ms=math.inf: (
            note(command, timeout_ms),
            told(command, timeout_ms, until_ms),
        )[1]  # type: ignore[method-assign]
        began = time.monotonic()
        producer.send("orders", b"x")
    (route, whole_ms, _), (frame, share_ms, passed_ms) = asked
    assert (route, whole_ms, frame) == (105, 3_000, 20010)
    assert share_ms == pytest.approx((3_000 - passed_ms) / 3, abs=50), (
        "the only broker: each of three attempts has its share of what is left of 3 s"
    )


@pytest.mark.seed("S3-040")
def test_an_interruption_is_passed_on(
    cluster: TinyCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    producer.send("orders", b"x")
    core = producer._core
    assert core is not None
    with monkeypatch.context() as patched:
        patched.setattr(core.instance.link, "invoke", interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.send("orders", b"x")
    assert (
        producer.send("orders", b"x")
        and core.coalescer._out == {}
        and core.identity._unresolved == {}
    )


def test_a_callback_may_send(cluster: TinyCluster, producer: Producer) -> None:
    echoed: list[SendResult] = []
    future = producer.send_async("orders", b"first")
    future.add_done_callback(
        lambda done: echoed.append(producer.send("orders", b"second", timeout=5))
    )
    future.result(5)
    assert eventually(lambda: echoed)[0].status is SendStatus.SEND_OK


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_time_out_must_be_positive(producer: Producer, timeout: float) -> None:
    with pytest.raises(ClientError, match="positive number of seconds"):
        producer.send("orders", b"x", timeout=timeout)
