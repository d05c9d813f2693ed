"""Threads that send at once share frames; each still gets its own result, and an interrupted one
holds up nobody for long.
"""

from __future__ import annotations

import concurrent.futures
import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from rmq_ray.client.outgoing.send_request import SendRequest
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.sending.group_commit import (
    CROWD_MIN,
    FRAMES_ALONE_MAX,
    FRAMES_IDLE_MAX,
    MessageGroup,
    SendCoalescer,
)
from rmq_ray.errors import SendError, SendUnknown, TopicNotWritable
from rmq_ray.model.message import Message, decode_properties
from tests.support.brokers.tiny_cluster import TinyCluster
from tests.support.clients.gathering import gathered, patient
from tests.support.waiting import eventually

ALONE_MAX = CROWD_MIN - 1


@pytest.fixture
def cluster() -> Iterator[TinyCluster]:
    with TinyCluster(topics={"orders": 4}) as running:
        yield running


def test_sends_that_find_enough_frames_out_travel_together(
    cluster: TinyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(monkeypatch)
    cluster.broker.hold.clear()
    count = ALONE_MAX + 20
    with (
        Producer("web", discovery=cluster, send_timeout_ms=20_000) as producer,
        concurrent.futures.ThreadPoolExecutor(count) as pool,
    ):
        sends = [
            pool.submit(producer.send, Message("orders", b"%d" % n, flag=n)) for n in range(count)
        ]
        eventually(lambda: len(cluster.broker.arrivals) == ALONE_MAX)
        coalescer = producer._core.coalescer  # type: ignore[union-attr]
        eventually(lambda: gathered(coalescer) == 20)
        cluster.release(cluster.broker)
        results = [send.result(10) for send in sends]
    assert (
        len(cluster.broker.arrivals) == ALONE_MAX + 1
        and len(cluster.broker.arrivals[-1].records) == 20
    )
    for n, result in enumerate(results):
        record = cluster.broker.stored["orders", result.queue.queue_id][result.queue_offset]
        assert record.body == b"%d" % n and record.flag == n
        assert decode_properties(record.properties)["UNIQ_KEY"] == result.message_id
    assert coalescer._out == {} and coalescer._open == {}


def test_while_no_thread_is_awake_more_frames_go_out_than_the_two_that_take_turns(
    cluster: TinyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(monkeypatch, 3.0)
    cluster.broker.hold.clear()
    count = ALONE_MAX + 3 * (FRAMES_IDLE_MAX + 4)
    with (
        Producer("web", discovery=cluster, send_timeout_ms=20_000) as producer,
        concurrent.futures.ThreadPoolExecutor(count) as pool,
    ):
        coalescer = producer._core.coalescer  # type: ignore[union-attr]
        with coalescer._lock:
            coalescer._out["orders", "broker-a"] = (
                FRAMES_ALONE_MAX  # two frames of others that are not answered
            )
            coalescer._inside["orders", "broker-a"] = ALONE_MAX
        sends = [pool.submit(producer.send, "orders", b"x") for _ in range(count - ALONE_MAX)]
        eventually(lambda: coalescer._inside.get(("orders", "broker-a")) == count)
        eventually(lambda: len(cluster.broker.arrivals) == FRAMES_IDLE_MAX - FRAMES_ALONE_MAX)
        assert coalescer._out["orders", "broker-a"] == FRAMES_IDLE_MAX
        cluster.release(cluster.broker)
        assert all(send.result(10) for send in sends)


def test_few_threads_go_alone(cluster: TinyCluster) -> None:
    cluster.broker.hold.clear()
    with (
        Producer("web", discovery=cluster, send_timeout_ms=20_000) as producer,
        concurrent.futures.ThreadPoolExecutor(ALONE_MAX) as pool,
    ):
        sends = [pool.submit(producer.send, "orders", b"x") for _ in range(ALONE_MAX)]
        eventually(lambda: len(cluster.broker.arrivals) == ALONE_MAX)
        cluster.release(cluster.broker)
        assert all(send.result(10) for send in sends)
    assert [len(arrival.records) for arrival in cluster.broker.arrivals] == [1] * ALONE_MAX


@pytest.mark.parametrize(("code", "error"), [(1, SendError), (16, TopicNotWritable)])
def test_a_group_that_fails_for_a_shared_reason_fails_for_all_its_threads(
    cluster: TinyCluster, monkeypatch: pytest.MonkeyPatch, code: int, error: type[SendError]
) -> None:
    patient(monkeypatch)
    cluster.broker.fault = lambda arrival, number: code if len(arrival.records) > 1 else None
    cluster.broker.hold.clear()
    count = ALONE_MAX + 3
    with (
        Producer("web", discovery=cluster, send_timeout_ms=20_000) as producer,
        concurrent.futures.ThreadPoolExecutor(count) as pool,
    ):
        sends = [pool.submit(producer.send, "orders", b"%d" % n) for n in range(count)]
        coalescer = producer._core.coalescer  # type: ignore[union-attr]
        eventually(lambda: gathered(coalescer) == 3)
        cluster.release(cluster.broker)
        outcomes = Counter(type(send.exception(10)) for send in sends)
        assert outcomes == {type(None): ALONE_MAX, error: 3}
        assert producer.send("orders", b"after")
        assert coalescer._out == {}


@pytest.mark.parametrize("threads", [2, 16, 64])
def test_however_many_threads_send_everything_is_stored_once_where_its_result_says(
    cluster: TinyCluster, threads: int
) -> None:
    cluster.broker.fault = lambda arrival, number: "drop" if number % 17 == 16 else None
    with (
        Producer("web", discovery=cluster, retries=16, send_timeout_ms=20_000) as producer,
        concurrent.futures.ThreadPoolExecutor(threads) as pool,
    ):
        bodies = [b"%d" % n for n in range(600)]
        results = list(pool.map(lambda body: producer.send("orders", body), bodies, timeout=40))
    for body, result in zip(bodies, results, strict=True):
        assert (
            cluster.broker.stored["orders", result.queue.queue_id][result.queue_offset].body == body
        )
    assert cluster.broker.messages == 600


def test_groups_that_ended_leave_nothing_to_the_garbage_collector(cluster: TinyCluster) -> None:
    with (
        Producer("web", discovery=cluster) as producer,
        concurrent.futures.ThreadPoolExecutor(16) as pool,
    ):
        producer.send("orders", b"warm")
        gc.collect()
        gc.disable()
        try:
            for _ in pool.map(lambda n: producer.send("orders", b"%d" % n), range(400), timeout=40):
                pass
            assert cluster.broker.messages == 401
            assert len(cluster.broker.arrivals) < 390, "nothing was shared"
            groups = [found for found in gc.get_objects() if isinstance(found, MessageGroup)]
        finally:
            gc.enable()
    assert len(groups) <= 2, "a group lives as long as its threads"


def test_a_group_whose_shipper_never_came_back_ships_itself(cluster: TinyCluster) -> None:
    with Producer("web", discovery=cluster) as producer:
        producer.send("orders", b"warm")
        core = producer._core
        assert core is not None
        for _ in range(ALONE_MAX):
            assert (
                core.coalescer.enter(
                    SendRequest("orders", b"interrupted", ""),
                    core.next_queue("orders", 1000.0),
                    core.clock.monotonic_ms(),
                )
                is None
            )
        assert producer.send("orders", b"rescued")
        assert producer.send("orders", b"alone again")
        assert core.coalescer._out == {}


def test_a_group_that_has_waited_takes_no_time_from_who_comes_later(cluster: TinyCluster) -> None:
    cluster.broker.hold.clear()
    with (
        Producer("web", discovery=cluster, send_timeout_ms=10_000) as producer,
        concurrent.futures.ThreadPoolExecutor(ALONE_MAX) as pool,
    ):
        core = producer._core
        assert core is not None
        sends = [pool.submit(producer.send, "orders", b"%d" % n) for n in range(ALONE_MAX)]
        eventually(lambda: len(cluster.broker.arrivals) == ALONE_MAX)
        queue, now = core.next_queue("orders", 1000.0), core.clock.monotonic_ms()
        began = [now, now + 900, now + 1_100, now + 1_200]
        places = in_threads(
            lambda each: core.coalescer.enter(SendRequest("orders", b"x", ""), queue, each), began
        )
        groups = [place[0] for place in places if place is not None]
        assert [groups.index(group) for group in groups] == [0, 0, 2, 2] and [
            group.began_ms for group in groups[1:3]
        ] == [now, now + 1_100]
        cluster.release(cluster.broker)
        assert all(send.result(10) for send in sends)
        eventually(
            lambda: (
                sorted(len(arrival.records) for arrival in cluster.broker.arrivals)
                == [1] * ALONE_MAX + [2, 2]
            )
        )
        in_threads(lambda place: core.coalescer.wait(*place), places)
        assert (
            core.coalescer._out == {}
            and core.coalescer._open == {}
            and core.coalescer._inside == {}
        )


def in_threads(call: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """The results of calls, one after the other, each in a thread of its own: a thread has one
    lock.
    """
    found: list[Any] = []
    for item in items:
        thread = threading.Thread(target=lambda item=item: found.append(call(item)))
        thread.start()
        thread.join(10)
    return found


def test_closing_ends_the_waits_of_a_group(cluster: TinyCluster) -> None:
    cluster.broker.fault = lambda arrival, number: "lose"
    producer = Producer("web", discovery=cluster, send_timeout_ms=400)
    producer.start()
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        sends = [pool.submit(producer.send, "orders", b"x") for _ in range(12)]
        eventually(lambda: len(cluster.broker.arrivals) >= ALONE_MAX)
        producer.close()
        errors = [send.exception(10) for send in sends]
    assert all(isinstance(error, Exception) for error in errors)
    assert sum(isinstance(error, SendUnknown) for error in errors) >= ALONE_MAX
    assert not [thread for thread in threading.enumerate() if thread.name == "rmq-producer-web"]


def test_a_broker_that_hangs_does_not_hold_up_sends_to_the_other() -> None:
    with (
        TinyCluster(brokers=2, topics={"orders": 1}) as pair,
        Producer("web", discovery=pair, send_timeout_ms=20_000) as producer,
        concurrent.futures.ThreadPoolExecutor(16) as pool,
    ):
        producer.send("orders", b"warm")
        hanging, healthy = pair.brokers
        hanging.hold.clear()
        sends = [pool.submit(producer.send, "orders", b"%d" % n) for n in range(8)]
        eventually(lambda: len([send for send in sends if send.done()]) >= 4)
        assert {send.result(0).queue.broker_name for send in sends if send.done()} == {healthy.name}
        pair.release(hanging)
        assert all(send.result(10) for send in sends)


def abandon(coalescer: SendCoalescer, group: Any, index: int) -> None:
    """The thread of this place waits no more."""
    coalescer._go(group, index, group.members[index], False)


def test_threads_that_wait_no_more_do_not_break_the_chain_of_wake_ups(
    cluster: TinyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(monkeypatch, 3.0)
    cluster.broker.hold.clear()
    count = ALONE_MAX + 9
    with (
        Producer("web", discovery=cluster, send_timeout_ms=20_000) as producer,
        concurrent.futures.ThreadPoolExecutor(count) as pool,
    ):
        sends = [pool.submit(producer.send, "orders", b"%d" % n) for n in range(count)]
        coalescer = producer._core.coalescer  # type: ignore[union-attr]
        eventually(lambda: gathered(coalescer) == 9)
        (group,) = coalescer._open.values()
        for index in (
            0,
            4,
            8,
        ):  # as if their threads had been interrupted: they poll, and abandon their locks
            abandon(coalescer, group, index)
        cluster.release(cluster.broker)
        assert all(send.result(10) for send in sends)
        assert producer.send("orders", b"after")
        eventually(lambda: coalescer._out == {} and coalescer._open == {})


def test_a_group_nobody_waits_for_any_more_leaves_its_place_to_others(cluster: TinyCluster) -> None:
    with Producer("web", discovery=cluster) as producer:
        producer.send("orders", b"warm")
        core = producer._core
        assert core is not None
        queue = core.next_queue("orders", 1000.0)
        for _ in range(ALONE_MAX):
            assert (
                core.coalescer.enter(
                    SendRequest("orders", b"alone", ""), queue, core.clock.monotonic_ms()
                )
                is None
            )
        gate = threading.Barrier(3)  # each in a thread of its own: a thread has one lock

        def enter(n: int) -> object:
            gate.wait(10)
            return core.coalescer.enter(
                SendRequest("orders", b"%d" % n, ""), queue, core.clock.monotonic_ms()
            )

        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            places = list(pool.map(enter, range(3)))
        for _ in range(ALONE_MAX):
            core.coalescer.lone_ended_to(queue)
        for place in places:
            assert place is not None
            group, index = place  # type: ignore[misc]
            abandon(core.coalescer, group, index)
        eventually(lambda: core.coalescer._out == {})
        assert producer.send("orders", b"after")
