"""What a producer does when answers are lost, brokers refuse, stop and come back: nothing is stored
twice on one broker name.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
import re
import threading
from collections.abc import Iterator

import pytest

from rmq_ray.client.outgoing.producer_identity import LOOK_EVERY, SEQUENCE_SPAN_MAX
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import (
    BrokerBusy,
    BrokerUnreachable,
    DuplicateMismatch,
    MessageIllegal,
    SendError,
    SendTimeout,
    SendUnknown,
    TopicNotFound,
    TopicNotWritable,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message, SendStatus
from tests.support.brokers.tiny_cluster import TinyBroker, TinyCluster
from tests.support.waiting import eventually


@pytest.fixture
def cluster() -> Iterator[TinyCluster]:
    with TinyCluster(topics={"orders": 4}) as running:
        yield running


@pytest.fixture
def pair() -> Iterator[TinyCluster]:
    with TinyCluster(brokers=2, topics={"orders": 2}) as running:
        yield running


def assert_each_stored_once(broker: TinyBroker, bodies: set[bytes]) -> None:
    stored = [record.body for records in broker.stored.values() for record in records]
    assert sorted(stored) == sorted(bodies)


def test_a_lost_connection_is_logged_once_and_says_so_once(
    cluster: TinyCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.broker.fault = lambda arrival, number: "drop" if number == 0 else None
    caplog.set_level(logging.INFO, logger="rmq_ray.client")
    with Producer("web", discovery=cluster, send_timeout_ms=30_000) as producer:
        producer.send("orders", b"x")

        def lost() -> list[str]:
            lines = [record.getMessage() for record in caplog.records]
            return [line for line in lines if line.startswith("connection to")]

        eventually(lost)
    (line,) = lost()
    assert line.count("connection to") == line.count(str(cluster.broker.address)) == 1


@pytest.mark.parametrize("style", ["send", "send_async", "send_batch", "ordered", "delayed"])
def test_a_fifth_of_the_answers_lost_stores_every_message_once(
    cluster: TinyCluster, style: str
) -> None:
    chance = random.Random(7)
    cluster.broker.fault = lambda arrival, number: "drop" if chance.random() < 0.2 else None
    with Producer(
        "web", discovery=cluster, retries=16, send_timeout_ms=10_000, linger_ms=0.0
    ) as producer:
        bodies = {b"%d" % n for n in range(60)}
        if style == "send_async":
            results = [
                future.result(20)
                for future in [producer.send_async("orders", body) for body in sorted(bodies)]
            ]
        elif style == "send_batch":
            results = [producer.send_batch([Message("orders", body)])[0] for body in sorted(bodies)]
        else:
            options = {
                "send": {},
                "ordered": {"message_group": "g"},
                "delayed": {"delay_level": 1},
            }[style]
            results = [producer.send("orders", body, **options) for body in sorted(bodies)]  # type: ignore[arg-type]
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    repeats = len(cluster.broker.arrivals) - len(
        {arrival.frame_id for arrival in cluster.broker.arrivals}
    )
    assert repeats > 5
    assert_each_stored_once(cluster.broker, bodies)


def test_an_answer_that_never_comes_is_asked_for_again_with_the_same_frame_id(
    cluster: TinyCluster,
) -> None:
    cluster.broker.fault = lambda arrival, number: "lose" if number == 0 else None
    with Producer("web", discovery=cluster, send_timeout_ms=6_000) as producer:
        result = producer.send("orders", b"x")
    first, second = cluster.broker.arrivals
    assert first.frame_id == second.frame_id is not None and first.queue_id == second.queue_id
    assert result.queue_offset == 0 and cluster.broker.messages == 1


def test_a_send_that_is_never_answered_ends_as_unknown_within_its_time_out(
    cluster: TinyCluster,
) -> None:
    with Producer("web", discovery=cluster, send_timeout_ms=300) as producer:
        producer.send("orders", b"warm", timeout=20)
        cluster.broker.fault = lambda arrival, number: "lose"
        with pytest.raises(SendTimeout, match="may be stored"):
            producer.send("orders", b"x")
        with pytest.raises(SendTimeout):
            producer.send_async("orders", b"x", timeout=0.3).result(5)
    cluster.broker.fault = lambda arrival, number: "drop"
    with (
        Producer("web", discovery=cluster) as producer,
        pytest.raises(SendUnknown, match=r"Send \[3\] times"),
    ):
        producer.send("orders", b"y")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (13, MessageIllegal),
        (20003, MessageIllegal),
        (20001, DuplicateMismatch),
        (16, TopicNotWritable),
        (17, TopicNotFound),
    ],
)
def test_refusals_come_back_typed_from_every_style(
    cluster: TinyCluster, code: int, error: type[Exception]
) -> None:
    cluster.broker.fault = lambda arrival, number: code
    with Producer("web", discovery=cluster) as producer:
        with pytest.raises(error, match=f"told to answer {code}"):
            producer.send("orders", b"x")
        with pytest.raises(error):
            producer.send_async("orders", b"x").result(5)
        with pytest.raises(error):
            producer.send_batch([Message("orders", b"x")])
        with pytest.raises(error):
            producer.send("orders", b"x", message_group="g")
    assert cluster.broker.messages == 0


@pytest.mark.parametrize("code", [2, 14, 20002])
def test_a_broker_that_recovers_in_time_is_waited_for_and_the_frame_stays_the_same(
    cluster: TinyCluster, code: int
) -> None:
    cluster.broker.fault = lambda arrival, number: code if number < 5 else None
    with Producer("web", discovery=cluster) as producer:
        assert producer.send("orders", b"x").status is SendStatus.SEND_OK
    assert (
        len(cluster.broker.arrivals) == 6
        and len({arrival.frame_id for arrival in cluster.broker.arrivals}) == 1
    )


def test_a_broker_that_stays_busy_is_a_definite_failure(cluster: TinyCluster) -> None:
    cluster.broker.fault = lambda arrival, number: 2
    with Producer("web", discovery=cluster, send_timeout_ms=2_500) as producer:
        with pytest.raises(BrokerBusy) as caught:
            producer.send("orders", b"x")
        with pytest.raises(BrokerBusy):
            producer.send_async("orders", b"x").result(20)
    assert caught.value.retriable and not isinstance(caught.value, SendUnknown)


@pytest.mark.parametrize("style", ["send", "send_async", "send_batch", "in a loop"])
def test_two_brokers_that_refuse_are_asked_as_seldom_as_one(pair: TinyCluster, style: str) -> None:
    """A refusal costs a broker's time, too: with pauses of up to 200 ms a few attempts fit."""
    for broker in pair.brokers:
        broker.fault = lambda arrival, number: 14

    async def in_loop() -> None:
        async with AsyncProducer("web", discovery=pair) as producer:
            await producer.send("orders", b"x", timeout=1.5)

    def send() -> None:
        if style == "in a loop":
            asyncio.run(in_loop())
            return
        with Producer("web", discovery=pair, send_timeout_ms=1_500) as producer:
            if style == "send":
                producer.send("orders", b"x")
            elif style == "send_async":
                producer.send_async("orders", b"x").result(20)
            else:
                producer.send_batch([Message("orders", b"x")])

    with pytest.raises(BrokerBusy, match=r"BrokersSent: \[broker-[ab]") as caught:
        send()
    asked = [len(broker.arrivals) for broker in pair.brokers]
    assert 4 <= sum(asked) <= 14 and min(asked) > 0, asked
    assert all(int(count) <= 7 for count in re.findall(r"\((\d+) times\)", str(caught.value)))


def test_a_restarted_broker_gets_what_was_sent_while_it_was_away(cluster: TinyCluster) -> None:
    with Producer("web", discovery=cluster, send_timeout_ms=10_000) as producer:
        producer.send("orders", b"before")
        cluster.stop(cluster.broker)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(producer.send, "orders", b"%d" % n) for n in range(4)]
            future = producer.send_async("orders", b"async")
            threading.Event().wait(0.3)
            cluster.start(cluster.broker)
            assert all(each.result(10).status is SendStatus.SEND_OK for each in [*waiting, future])
    assert_each_stored_once(cluster.broker, {b"before", b"async", b"0", b"1", b"2", b"3"})


def test_a_broker_that_stays_away_is_a_definite_failure_after_the_time_out(
    cluster: TinyCluster,
) -> None:
    with Producer("web", discovery=cluster, send_timeout_ms=200) as producer:
        producer.send("orders", b"before", timeout=20)
        cluster.stop(cluster.broker)
        reader = f"rmq-reader-{cluster.broker.address}"
        eventually(
            lambda: reader not in {thread.name for thread in threading.enumerate()}
        )  # the client knows: what follows is not sent
        with pytest.raises(BrokerUnreachable, match="nothing was sent"):
            producer.send("orders", b"x")
        with pytest.raises(BrokerUnreachable):
            producer.send_async("orders", b"x").result(20)
        with pytest.raises(BrokerUnreachable):
            producer.send_oneway("orders", b"x")


@pytest.mark.seed("S0-049", "S0-052", "S0-057", "S3-032")
def test_with_two_brokers_a_failed_one_is_left_for_the_other(pair: TinyCluster) -> None:
    first, second = pair.brokers
    first.fault = lambda arrival, number: 1
    with Producer("web", discovery=pair) as producer:
        queues = [producer.send("orders", b"%d" % n).queue.broker_name for n in range(8)]
    assert queues == [second.name] * 8 and first.messages == 0 and len(first.arrivals) >= 2
    assert {topic for topic, _ in second.stored} == {"orders"}


@pytest.mark.seed("S3-030", "S3-042", "S0-048")
def test_the_final_error_names_the_brokers_in_the_order_in_which_they_were_tried(
    pair: TinyCluster,
) -> None:
    for broker in pair.brokers:
        broker.fault = lambda arrival, number: 1
    with Producer("web", discovery=pair) as producer:
        for _ in range(4):
            with pytest.raises(
                SendError,
                match=(
                    r"Send \[3\] times.*Topic: orders, BrokersSent: \[(broker-a, broker-b, "
                    r"broker-a|broker-b, broker-a, broker-b)\]"
                ),
            ):
                producer.send("orders", b"x")


def test_with_two_brokers_one_that_stopped_costs_no_send(pair: TinyCluster) -> None:
    with Producer("web", discovery=pair, send_timeout_ms=5_000) as producer:
        producer.send("orders", b"warm")
        pair.stop(pair.brokers[0])
        results = [producer.send("orders", b"%d" % n) for n in range(8)]
        results += [
            future.result(5)
            for future in [producer.send_async("orders", b"a%d" % n) for n in range(8)]
        ]
    assert {result.queue.broker_name for result in results} == {pair.brokers[1].name}


def test_an_unanswered_send_goes_elsewhere_by_default_and_stays_when_idempotent(
    pair: TinyCluster,
) -> None:
    for broker in pair.brokers:
        broker.fault = lambda arrival, number: "drop" if number == 0 else None
    with Producer("web", discovery=pair, idempotent=True) as producer:
        result = producer.send("orders", b"x")
    touched = [broker for broker in pair.brokers if broker.arrivals]
    assert (
        len(touched) == 1
        and result.queue.broker_name == touched[0].name
        and touched[0].messages == 1
    )
    for broker in pair.brokers:
        broker.arrivals.clear()
        broker.stored.clear()
    with Producer("web", discovery=pair) as producer:
        producer.send("orders", b"y")
    assert sum(broker.messages for broker in pair.brokers) in (2, 3)


def test_a_load_that_returns_to_a_broker_keeps_the_queue_it_had_there(pair: TinyCluster) -> None:
    for broker in pair.brokers:
        broker.fault = lambda arrival, number: "drop" if number == 0 else None
    with Producer("web", discovery=pair) as producer:
        result = producer.send("orders", b"x")
    home = next(broker for broker in pair.brokers if broker.name == result.queue.broker_name)
    assert [arrival.queue_id for arrival in home.arrivals] == [result.queue.queue_id] * 2
    assert home.messages == 1 and result.queue_offset == 0


def test_a_given_queue_is_never_left(pair: TinyCluster) -> None:
    pair.brokers[0].fault = lambda arrival, number: 1
    with (
        Producer("web", discovery=pair) as producer,
        pytest.raises(Exception, match="told to answer 1"),
    ):
        producer.send("orders", b"x", queue=MessageQueue("orders", "broker-a", 0))
    assert len(pair.brokers[0].arrivals) == 3 and not pair.brokers[1].arrivals


@pytest.mark.seed("S0-050", "S3-035", "S3-041")
def test_a_status_below_ok_is_returned_or_tried_elsewhere_as_the_settings_say(
    pair: TinyCluster,
) -> None:
    for broker in pair.brokers:
        broker.fault = lambda arrival, number: 10
    with Producer("web", discovery=pair, raise_on_status=False) as producer:
        assert producer.send("orders", b"x").status is SendStatus.FLUSH_DISK_TIMEOUT
        assert sum(len(broker.arrivals) for broker in pair.brokers) == 1
    pair.brokers[1].fault = lambda arrival, number: None
    with Producer(
        "web",
        discovery=pair,
        retry_another_broker_when_not_store_ok=True,
        raise_on_status=False,
    ) as producer:
        assert {producer.send("orders", b"x").status for _ in range(4)} == {SendStatus.SEND_OK}
        pair.brokers[1].fault = lambda arrival, number: 12
        assert producer.send("orders", b"x").status in (
            SendStatus.FLUSH_DISK_TIMEOUT,
            SendStatus.FLUSH_SLAVE_TIMEOUT,
        )
        assert producer.send_async("orders", b"x").result(5).status is not SendStatus.SEND_OK


def test_a_known_topic_goes_on_without_any_name_server_and_a_new_one_waits_for_it(
    cluster: TinyCluster,
) -> None:
    with Producer("web", discovery=cluster) as producer:
        producer.send("orders", b"x")
        cluster.stop(cluster.name_servers[0])
        assert producer.send("orders", b"y").status is SendStatus.SEND_OK
        with pytest.raises(BrokerUnreachable, match="no name server answers"):
            producer.send("fresh", b"x", timeout=0.2)
        threading.Timer(0.2, lambda: cluster.start(cluster.name_servers[0])).start()
        assert producer.send("fresh", b"x").status is SendStatus.SEND_OK


def test_many_threads_through_a_broker_that_drops_connections_lose_and_double_nothing(
    cluster: TinyCluster,
) -> None:
    chance = random.Random(3)
    cluster.broker.fault = lambda arrival, number: chance.choice(
        ["drop", None, None, None, "refuse", 20002, None, None]
    )
    with (
        Producer("web", discovery=cluster, retries=16, send_timeout_ms=20_000) as producer,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        bodies = {b"%d" % n for n in range(200)}
        results = list(
            pool.map(lambda body: producer.send("orders", body), sorted(bodies), timeout=40)
        )
    places = {(result.queue, result.queue_offset) for result in results}
    assert len(places) == 200
    assert_each_stored_once(cluster.broker, bodies)


def test_a_frame_that_keeps_being_repeated_is_not_held_up_by_those_that_wait_for_it() -> None:
    """One topic's broker is not ready; another topic goes on until no frame id is free. Who waits
    for one must not be the thread that repeats.
    """
    ready = threading.Event()
    with TinyCluster(topics={"stuck": 1, "flow": 1}) as cluster:
        cluster.broker.fault = lambda arrival, number: (
            20_002 if arrival.topic == "stuck" and not ready.is_set() else None
        )
        with Producer("web", discovery=cluster, send_timeout_ms=20_000, linger_ms=1.0) as producer:
            stuck = producer.send_async("stuck", b"x", timeout=100)
            for number in range(SEQUENCE_SPAN_MAX):
                producer.send("flow", b"%d" % number)
            for number in range(2 * LOOK_EVERY):  # a frame each, which the worker thread sends
                last = producer.send_async("flow", b"later %d" % number)
                if concurrent.futures.wait([last], 0.3).not_done:
                    break
            assert not stuck.done() and not last.done(), "the limit is reached"
            ready.set()
            assert stuck.result(15).status is last.result(15).status is SendStatus.SEND_OK


def test_messages_of_many_threads_that_open_a_batch_at_once_do_not_make_it_too_large(
    cluster: TinyCluster,
) -> None:
    """None of the threads finds an open batch, all wait for a slot, and then come one after the
    other to the batch of the first.
    """
    body = b"x" * 3_000_000
    with Producer(
        "web",
        discovery=cluster,
        linger_ms=200.0,
        frames_in_flight_max=16,
        batch_bytes_max=4_000_000,
        send_timeout_ms=20_000,
    ) as producer:
        producer.send("orders", b"warm")
        start = threading.Barrier(12)

        def send(_number: int) -> SendStatus:
            start.wait(10)
            return producer.send_async("orders", body).result(20).status

        with concurrent.futures.ThreadPoolExecutor(12) as threads:
            assert set(threads.map(send, range(12))) == {SendStatus.SEND_OK}
    assert max(len(arrival.records) for arrival in cluster.broker.arrivals) == 1


def test_a_batch_that_is_sent_again_is_not_overtaken_by_later_ones_of_its_queue(
    cluster: TinyCluster,
) -> None:
    cluster.broker.fault = lambda _arrival, number: "refuse" if number < 3 else None
    queue = MessageQueue("orders", cluster.broker.name, 0)
    with Producer(
        "web",
        discovery=cluster,
        retries=16,
        send_timeout_ms=10_000,
        batch_messages_max=5,
        linger_ms=0.5,
    ) as producer:
        futures = [producer.send_async("orders", b"%d" % n, queue=queue) for n in range(200)]
        offsets = [future.result(20).queue_offset for future in futures]
    assert offsets == sorted(offsets)
    assert [record.body for record in cluster.broker.stored["orders", 0]] == [
        b"%d" % n for n in range(200)
    ]


def test_batches_that_linger_and_batches_that_are_full_leave_in_the_order_of_the_calls(
    cluster: TinyCluster,
) -> None:
    queue = MessageQueue("orders", cluster.broker.name, 1)
    pause = threading.Event()
    with Producer("web", discovery=cluster, batch_messages_max=7, linger_ms=0.2) as producer:
        for n in range(3_000):
            producer.send_async("orders", b"%d" % n, queue=queue)
            if n % 50 == 0:
                pause.wait(0.0004)
        producer.flush(20)
    assert [record.body for record in cluster.broker.stored["orders", 1]] == [
        b"%d" % n for n in range(3_000)
    ]
