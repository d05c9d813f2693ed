"""Messages of several calls share frames; a broker that refuses a frame because of one of them
refuses that one only, as far as its callers can tell.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.interceptors.send_hooks import SendContext
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.sending.group_commit import CROWD_MIN
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.errors import MessageIllegal, SendError, SendUnknown
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message
from rmq_ray.protocol.transaction import LocalTransactionState
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.brokers.tiny_cluster import Arrival, TinyCluster
from tests.support.clients.gathering import gathered, patient
from tests.support.faults.chaos import place_of, read_log
from tests.support.faults.killing_process import QUICK
from tests.support.faults.lossy_proxy import LossyProxy
from tests.support.waiting import eventually

ALONE_MAX = CROWD_MIN - 1

BODY_MAX = 1_000
BAD = b"b" * (BODY_MAX + 1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    """Its broker takes shorter bodies than its producers do."""
    with LiveCluster(tmp_path, broker=QUICK, body_bytes_max=BODY_MAX) as running:
        with Producer("warm", discovery=running) as producer:
            producer.send("orders", b"warm")
        yield running


@contextlib.contextmanager
def stalled(cluster: LiveCluster) -> Iterator[None]:
    """The broker answers nobody."""
    end = threading.Event()
    cluster._loop.call_soon_threadsafe(end.wait, 20)
    try:
        yield
    finally:
        end.set()


def core_of(producer: Any) -> ProducerCore:
    core = producer._core
    assert isinstance(core, ProducerCore)
    return core


def bodies_of(count: int, *bad: int) -> list[bytes]:
    return [BAD if n in bad else b"%d" % n for n in range(count)]


def check(
    cluster: LiveCluster, bodies: list[bytes], outcomes: list[Any], topic: str = "orders"
) -> None:
    """Each message has its own end, and exactly the good ones are stored, where their results
    say.
    """
    log = {
        place: bytes(record.body)
        for place, record in read_log(cluster, topic).items()
        if bytes(record.body) != b"warm"
    }
    for body, outcome in zip(bodies, outcomes, strict=True):
        if body == BAD:
            assert isinstance(outcome, MessageIllegal) and f"body of {len(BAD)} bytes" in str(
                outcome
            )
        else:
            assert log.pop(place_of(outcome)) == body
    assert not log


def ended(future: concurrent.futures.Future[Any]) -> Any:
    return future.exception(20) or future.result(20)


def test_of_threads_that_share_a_frame_only_the_one_with_the_bad_message_fails(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(monkeypatch)
    bodies = bodies_of(ALONE_MAX + 20, ALONE_MAX + 5, ALONE_MAX + 6)
    with (
        Producer("web", discovery=cluster) as producer,
        concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool,
    ):
        producer.send("orders", b"warm")
        core = core_of(producer)
        with stalled(cluster):
            sends = []
            for n, body in enumerate(bodies):
                sends.append(pool.submit(producer.send, "orders", body))
                if n < ALONE_MAX:  # these are alone
                    eventually(lambda n=n: core.coalescer._out.get(("orders", "broker-a")) == n + 1)  # type: ignore[misc]
            eventually(lambda: gathered(core.coalescer) == 20)
        outcomes = [ended(send) for send in sends]
        check(cluster, bodies, outcomes)
        assert producer.send("orders", b"warm") and core.coalescer._out == {}


def test_of_a_batch_that_fills_by_itself_only_the_bad_messages_fail_and_the_others_keep_their_order(
    cluster: LiveCluster,
) -> None:
    bodies = bodies_of(100, 0, 31, 32, 99)
    queue = MessageQueue("orders", "broker-a", 0)
    with Producer("web", discovery=cluster, linger_ms=5_000.0) as producer:
        producer.send("orders", b"warm", queue=queue)
        futures = [producer.send_async("orders", body, queue=queue) for body in bodies]
        producer.flush(timeout=20)
        outcomes = [ended(future) for future in futures]
        assert concurrent.futures.wait(futures, 1).not_done == set()
    check(cluster, bodies, outcomes)
    offsets = [outcome.queue_offset for outcome in outcomes if not isinstance(outcome, SendError)]
    assert offsets == list(range(offsets[0], offsets[0] + 96))


def test_of_tasks_that_share_a_frame_only_those_with_bad_messages_fail(
    cluster: LiveCluster,
) -> None:
    bodies = bodies_of(60, 7, 59)

    async def run() -> list[Any]:
        async with AsyncProducer("web", discovery=cluster) as producer:
            await producer.send("orders", b"warm")
            return await asyncio.gather(
                *(producer.send("orders", body) for body in bodies), return_exceptions=True
            )

    check(cluster, bodies, asyncio.run(run()))


def never(_message: Any) -> LocalTransactionState:
    raise AssertionError("nobody should have been asked")


def test_of_threads_whose_halves_share_a_frame_only_the_one_with_the_bad_message_fails(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(monkeypatch)
    bodies = bodies_of(12, 4)

    def one(producer: Producer, body: bytes) -> Any:
        with producer.transaction(never) as tx:
            return tx.send("paid", body)

    with (
        Producer("web", discovery=cluster) as producer,
        concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool,
    ):
        one(producer, b"warm")
        combiner = core_of(producer).transactions.halves._coalescer  # type: ignore[attr-defined]
        with stalled(cluster):
            sends = [pool.submit(one, producer, bodies[0])]
            eventually(lambda: combiner._out == {("paid", "broker-a"): 1})
            sends += [pool.submit(one, producer, body) for body in bodies[1:]]
            eventually(lambda: gathered(combiner) == 11)
        outcomes = [ended(send) for send in sends]
    check_committed(cluster, bodies, outcomes)


def test_of_tasks_whose_halves_share_a_frame_only_the_one_with_the_bad_message_fails(
    cluster: LiveCluster,
) -> None:
    bodies = bodies_of(12, 4, 11)

    async def one(producer: AsyncProducer, body: bytes) -> Any:
        async with producer.transaction(never) as tx:
            return await tx.send("paid", body)

    async def run() -> list[Any]:
        async with AsyncProducer("web", discovery=cluster) as producer:
            await one(producer, b"warm")
            return await asyncio.gather(
                *(one(producer, body) for body in bodies), return_exceptions=True
            )

    check_committed(cluster, bodies, asyncio.run(run()))


def check_committed(cluster: LiveCluster, bodies: list[bytes], outcomes: list[Any]) -> None:
    assert [isinstance(outcome, MessageIllegal) for outcome in outcomes] == [
        body == BAD for body in bodies
    ]
    wanted = sorted([b"warm", *(body for body in bodies if body != BAD)])
    assert eventually(
        lambda: (
            sorted(bytes(record.body) for record in read_log(cluster, "paid").values()) == wanted
        )
    )


def test_a_batch_of_the_user_stays_one_whole(cluster: LiveCluster) -> None:
    before = cluster.store().end_offset

    async def run() -> None:
        async with AsyncProducer("loop", discovery=cluster) as producer:
            await producer.send_batch(batch)

    batch = [Message("orders", body) for body in bodies_of(10, 3)]
    with (
        Producer("web", discovery=cluster) as producer,
        pytest.raises(MessageIllegal, match="record 3"),
    ):
        producer.send_batch(batch)
    with pytest.raises(MessageIllegal, match="record 3"):
        asyncio.run(run())
    assert cluster.store().end_offset == before, "something of a refused frame is stored"


def test_a_batch_that_is_longer_than_a_segment_of_the_log_is_stored_in_pieces(
    tmp_path: Path,
) -> None:
    bodies = [b"%03d" % n * 3_000 for n in range(60)]
    with (
        LiveCluster(tmp_path) as cluster,
        Producer("web", discovery=cluster, linger_ms=5_000.0) as producer,
    ):
        futures = [producer.send_async("orders", body) for body in bodies]
        producer.flush(timeout=20)
        check(cluster, bodies, [ended(future) for future in futures])


def test_lost_answers_do_not_store_messages_twice_beside_refused_ones(cluster: LiveCluster) -> None:
    bodies = bodies_of(240, 23, 70, 71, 100, 201)
    with (
        LossyProxy(cluster, {"orders": 2}, 0.2) as proxy,
        Producer(
            "web",
            discovery=proxy,
            retries=16,
            send_timeout_ms=8_000,
            idempotent=True,
            batch_messages_max=16,
            linger_ms=100.0,
        ) as producer,
    ):
        outcomes = [
            ended(future) for future in [producer.send_async("orders", body) for body in bodies]
        ]
        assert proxy.lost
    log = [
        bytes(record.body)
        for record in read_log(cluster, "orders").values()
        if bytes(record.body) != b"warm"
    ]
    assert len(log) == len(set(log)), "a message is stored twice"
    stored = set(log)
    for body, outcome in zip(bodies, outcomes, strict=True):
        if not isinstance(outcome, SendUnknown):
            assert isinstance(outcome, MessageIllegal) == (body == BAD)
            assert (body in stored) == (body != BAD)
    assert BAD not in stored and len(stored) > 100


# --- against a broker that does as it is told ---


@pytest.fixture
def tiny() -> Iterator[TinyCluster]:
    with TinyCluster(topics={"orders": 1}) as running:
        running.broker.fault = refuses_bad
        yield running


def refuses_bad(arrival: Arrival, _number: int) -> int | None:
    return 20_003 if any(record.body.startswith(b"bad") for record in arrival.records) else None


def settle(producer: Producer, bodies: list[bytes], **how: Any) -> list[Any]:
    futures = [producer.send_async("orders", body, **how) for body in bodies]
    producer.flush(timeout=20)
    return [ended(future) for future in futures]


def test_messages_of_a_group_keep_their_order_while_frames_of_theirs_are_taken_apart(
    tiny: TinyCluster,
) -> None:
    bodies = [b"bad %d" % n if n % 7 == 3 else b"%d" % n for n in range(200)]
    with Producer("web", discovery=tiny, linger_ms=1.0, batch_messages_max=8) as producer:
        outcomes = settle(producer, bodies, message_group="g")
        assert core_of(producer).identity._unresolved == {}, "each number is given back"
    good = [body for body in bodies if not body.startswith(b"bad")]
    assert [record.body for record in tiny.broker.stored["orders", 0]] == good
    assert [
        outcome.queue_offset for outcome in outcomes if not isinstance(outcome, SendError)
    ] == list(range(len(good)))
    frame_ids = [arrival.frame_id for arrival in tiny.broker.arrivals]
    assert len(set(frame_ids)) == len(frame_ids), "a number stands for one content"


def test_newer_messages_wait_for_the_pieces_of_an_older_frame(tiny: TinyCluster) -> None:
    queue = MessageQueue("orders", "broker-a", 0)
    with Producer("web", discovery=tiny, linger_ms=5_000.0) as producer:
        producer.send("orders", b"warm")
        tiny.broker.hold.clear()
        batches = core_of(producer).batches
        futures = [
            producer.send_async("orders", body, queue=queue) for body in (b"1", b"bad", b"3")
        ]
        batches.flush()
        eventually(
            lambda: len(tiny.broker.arrivals) == 3
        )  # the whole, and its first half, which is stored and not answered yet
        futures.append(producer.send_async("orders", b"4", queue=queue))
        batches.flush()
        time.sleep(0.1)
        assert len(tiny.broker.arrivals) == 3
        tiny.release(tiny.broker)
        assert [isinstance(ended(future), MessageIllegal) for future in futures] == [
            False,
            True,
            False,
            False,
        ]
    assert [record.body for record in tiny.broker.stored["orders", 0]] == [
        b"warm",
        b"1",
        b"3",
        b"4",
    ]


def test_pieces_go_where_their_frame_was_refused() -> None:
    with (
        TinyCluster(brokers=2, topics={"orders": 1}) as pair,
        Producer("web", discovery=pair, linger_ms=5_000.0) as producer,
    ):
        busy, refusing = pair.brokers
        busy.fault, refusing.fault = lambda arrival, number: 2, refuses_bad
        producer.send("orders", b"warm")
        before = len(busy.arrivals)
        for _ in range(20):  # until a batch heads for the busy one first
            outcomes = settle(producer, [b"1", b"bad", b"3", b"4"])
            assert [type(outcome).__name__ for outcome in outcomes] == [
                "SendResult",
                "MessageIllegal",
                "SendResult",
                "SendResult",
            ]
            assert {
                outcome.queue.broker_name
                for outcome in outcomes
                if not isinstance(outcome, SendError)
            } == {refusing.name}
            if len(busy.arrivals) > before:
                break
        assert [len(arrival.records) for arrival in busy.arrivals[before:]] == [4]


def test_a_frame_that_may_be_stored_is_not_taken_apart(tiny: TinyCluster) -> None:
    tiny.broker.fault = lambda arrival, number: (
        None if len(arrival.records) < 3 else "drop" if number == 1 else 13
    )
    with Producer("web", discovery=tiny, linger_ms=5_000.0) as producer:
        producer.send("orders", b"warm")
        outcomes = settle(producer, [b"1", b"2", b"3"])
    assert [type(outcome) for outcome in outcomes] == [SendUnknown] * 3
    assert tiny.broker.messages == 4 and len(tiny.broker.arrivals) == 3


def test_a_piece_is_sent_again_while_the_broker_is_busy_and_fails_when_it_stays_so(
    tiny: TinyCluster,
) -> None:
    tiny.broker.fault = lambda arrival, number: (
        refuses_bad(arrival, number) or (2 if number == 3 else None)
    )
    with Producer("web", discovery=tiny, linger_ms=5_000.0) as producer:
        producer.send("orders", b"warm")
        outcomes = settle(producer, [b"1", b"bad", b"3", b"4"])
        assert [type(outcome).__name__ for outcome in outcomes] == [
            "SendResult",
            "MessageIllegal",
            "SendResult",
            "SendResult",
        ]
        assert [len(arrival.records) for arrival in tiny.broker.arrivals] == [1, 4, 2, 1, 1, 1, 2]
    count = len(tiny.broker.arrivals)
    tiny.broker.fault = lambda arrival, number: (
        refuses_bad(arrival, number) or (2 if number > count else None)
    )
    with Producer("hasty", discovery=tiny, linger_ms=5_000.0, send_timeout_ms=1_500) as producer:
        outcomes = settle(producer, [b"1", b"2", b"3", b"bad"])
    assert {type(outcome).__name__ for outcome in outcomes[:3]} == {"BrokerBusy"} and isinstance(
        outcomes[3], SendError
    ), "the time is over"
    assert tiny.broker.messages == 4


def test_a_batch_that_cannot_be_encoded_because_of_one_message_fails_for_that_one(
    tiny: TinyCluster,
) -> None:
    class Adds:
        def before(self, ctx: SendContext) -> None:
            ctx.add_property("by-hook", "h" * 200)

        def after(self, ctx: SendContext) -> None: ...

    with Producer("web", discovery=tiny, linger_ms=5_000.0, hooks=[Adds()]) as producer:
        texts = ["x", "x" * 32_600, "x"]
        futures = [
            producer.send_async("orders", b"%d" % n, properties={"p": text})
            for n, text in enumerate(texts)
        ]
        producer.flush(timeout=20)
        outcomes = [ended(future) for future in futures]
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "SendResult",
        "MessageIllegal",
        "SendResult",
    ]


def test_futures_of_a_batch_in_pieces_end_when_the_producer_is_closed(tiny: TinyCluster) -> None:
    tiny.broker.fault = lambda arrival, number: (
        refuses_bad(arrival, number) or ("lose" if arrival.records[0].body == b"3" else None)
    )
    producer = Producer("web", discovery=tiny, linger_ms=5_000.0, send_timeout_ms=2_000)
    producer.send("orders", b"warm", timeout=20)
    futures = [producer.send_async("orders", body) for body in (b"1", b"bad", b"3", b"4")]
    told: list[Any] = []
    for future in futures:
        future.add_done_callback(told.append)
    producer.close()
    outcomes = [ended(future) for future in futures]
    assert [type(outcome).__name__ for outcome in outcomes[:2]] == ["SendResult", "MessageIllegal"]
    assert all(isinstance(outcome, SendUnknown) for outcome in outcomes[2:])
    assert len(told) == 4


def test_who_waits_for_the_first_failure_of_a_batch_in_pieces_is_woken_by_the_bad_message(
    tiny: TinyCluster,
) -> None:
    with Producer("web", discovery=tiny, linger_ms=5_000.0) as producer:
        futures = [producer.send_async("orders", body) for body in (b"1", b"bad", b"3")]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(
                concurrent.futures.wait, futures, 10, concurrent.futures.FIRST_EXCEPTION
            )
            producer.flush(timeout=20)
            waiting.result(10)
        assert [
            future.exception() is None for future in concurrent.futures.as_completed(futures, 10)
        ].count(False) == 1
