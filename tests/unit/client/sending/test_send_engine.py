"""What sends of one producer share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rmq_ray.client.outgoing.queue_choice import QueueChoice, RoundRobin
from rmq_ray.client.sending.send_engine import SendEngine
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import BrokerBusy, BrokerUnreachable, ConnectionLost, SendUnknown
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import SendStatus
from rmq_ray.protocol.retry import SYSTEM_BUSY, Decision, Step
from rmq_ray.protocol.routing.route_queues import PublishInfo
from rmq_ray.remoting.wire.frame import Command

ADDRESSES = {
    name: Address("127.0.0.1", 10911 + n) for n, name in enumerate(("broker-a", "broker-b"))
}


@pytest.mark.seed("S0-035", "S0-055", "S3-065")
def test_each_topic_has_a_counter_of_its_own_that_starts_anywhere_and_only_counts_on() -> None:
    counters = RoundRobin()
    first, other = counters.of("orders")(), counters.of("bills")()
    assert [counters.of("orders")() for _ in range(3)] == [first + 1, first + 2, first + 3]
    assert counters.of("bills")() == other + 1
    assert len({RoundRobin().of("orders")() for _ in range(10)}) > 5


@pytest.mark.parametrize(
    ("brokers", "pinned", "count"),
    [
        (("broker-a",), False, 1),
        (("broker-a", "broker-b"), False, 2),
        (("broker-a", "broker-b"), True, 1),
        ((), False, 1),
        (
            ("broker-b",),
            False,
            2,
        ),  # drained or gone since the queue was chosen: the route shows the other one only
        (None, False, 1),
    ],
)
def test_a_retry_has_another_broker_unless_the_route_shows_none_but_that_of_the_queue(
    brokers: tuple[str, ...] | None, pinned: bool, count: int
) -> None:
    info = (
        None
        if brokers is None
        else PublishInfo(
            "orders", tuple(MessageQueue("orders", name, 0) for name in brokers), brokers=brokers
        )
    )
    instance: Any = SimpleNamespace(
        clock=None, link=None, routes=SimpleNamespace(publish={"orders": info}.get)
    )
    config = ProducerConfig(group="g")
    engine = SendEngine(instance, config, RoundRobin(), SimpleNamespace())  # type: ignore[arg-type]
    assert engine.brokers(MessageQueue("orders", "broker-a", 0), pinned) == count


def test_a_payload_stays_where_it_is_while_the_route_shows_no_queue_at_all() -> None:
    queue, other = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 1)
    shown: list[MessageQueue] = []
    instance: Any = SimpleNamespace(
        clock=SYSTEM_CLOCK,
        link=None,
        watch_route=lambda _topic: None,
        routes=SimpleNamespace(
            broker_address=ADDRESSES.get,
            publish=lambda topic: PublishInfo(
                topic, tuple(shown), brokers=("broker-a", "broker-b")
            ),
        ),
    )
    choice = QueueChoice(SYSTEM_CLOCK, latency_fault=False)
    engine = SendEngine(instance, ProducerConfig(group="g"), RoundRobin(), choice)
    payload: Any = SimpleNamespace(topic="orders", message_ids=("id",))
    send = engine.in_flight(payload, queue, False, 1_000.0, 0.0)
    send.follow(Decision(Step.ELSEWHERE))
    assert send.queue is queue
    shown += [queue, other]
    send.follow(Decision(Step.ELSEWHERE))
    assert send.queue is other and send.address == ADDRESSES["broker-b"]
    assert send.brokers_sent == ["broker-a", "broker-a", "broker-b"]


def answer(code: int) -> Command:
    return Command(0, fields={}).answer(code=code) if code else Command(0).answer()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_is_stored_less_safely_is_the_result_when_no_better_place_is_found(
    elsewhere: bool,
) -> None:
    place = MessageQueue("orders", "broker-a", 0)
    info = PublishInfo(
        "orders", (place, MessageQueue("orders", "broker-b", 0)), brokers=("broker-a", "broker-b")
    )
    instance: Any = SimpleNamespace(
        clock=SYSTEM_CLOCK, link=None, routes=SimpleNamespace(publish=lambda _topic: info)
    )
    config = ProducerConfig(
        group="g", retries=1, idempotent=False, retry_another_broker_when_not_store_ok=elsewhere
    )
    choice = QueueChoice(SYSTEM_CLOCK, latency_fault=False)
    engine = SendEngine(instance, config, RoundRobin(), choice)
    payload: Any = SimpleNamespace(
        topic="orders", message_ids=("id",), stored_at=lambda _answer: (7, 700)
    )
    send = engine.in_flight(payload, place, False, 1_000.0, 0.0)
    send.address = Address("127.0.0.1", 10911)
    decision = send.ended(answer(SendStatus.FLUSH_DISK_TIMEOUT.value), 1.0)
    assert (decision is not None) is elsewhere
    if decision is not None:
        assert send.ended(ConnectionLost("gone"), 2.0) is None, "its one repeat is over"
    assert send.finish(3.0) is None
    assert send.place(3.0).result("id").status is SendStatus.FLUSH_DISK_TIMEOUT
    assert send.place(3.0).queue_offset == 7


def test_what_never_got_to_an_attempt_was_held_up_here_and_what_had_no_answer_may_be_stored() -> (
    None
):
    queue = MessageQueue("orders", "broker-a", 0)
    instance: Any = SimpleNamespace(
        clock=SYSTEM_CLOCK, link=None, routes=SimpleNamespace(publish=lambda _topic: None)
    )
    engine = SendEngine(
        instance,
        ProducerConfig(group="g", retries=0),
        RoundRobin(),
        QueueChoice(SYSTEM_CLOCK, latency_fault=False),
    )
    payload: Any = SimpleNamespace(topic="orders", message_ids=("id",))
    held = engine.in_flight(payload, queue, False, 1_000.0, 0.0)
    assert isinstance(held.finish(1_000.0), BrokerBusy)
    lost = engine.in_flight(payload, queue, False, 1_000.0, 0.0)
    assert lost.ended(ConnectionLost("gone"), 5.0) is None
    assert type(lost.finish(6.0)) is SendUnknown
    with pytest.raises(SendUnknown, match="may be stored"):
        lost.place(6.0)


@pytest.mark.parametrize("refused", [False, True])
def test_a_send_whose_time_ends_before_an_attempt_tells_what_the_attempts_before_it_met(
    refused: bool,
) -> None:
    queue = MessageQueue("orders", "broker-a", 0)
    clock: Any = SimpleNamespace(now=0.0, sleep_ms=lambda _ms: None)

    def monotonic_ms() -> float:  # each look at the clock takes a millisecond
        clock.now += 1.0
        return float(clock.now)

    def refuse_when_it_is_nearly_over(*_: object) -> Command:
        clock.now = 997.5
        return answer(SYSTEM_BUSY)

    clock.monotonic_ms = monotonic_ms
    link = SimpleNamespace(invoke=refuse_when_it_is_nearly_over)
    instance: Any = SimpleNamespace(
        clock=clock,
        link=link,
        watch_route=lambda _topic: None,
        stopped=SimpleNamespace(why=lambda _names: None),
        routes=SimpleNamespace(
            broker_address=ADDRESSES.get,
            publish=lambda topic: PublishInfo(topic, (queue,), brokers=("broker-a", "broker-b")),
        ),
    )
    choice = QueueChoice(clock, latency_fault=False)
    engine = SendEngine(instance, ProducerConfig(group="g"), RoundRobin(), choice)
    payload: Any = SimpleNamespace(
        topic="orders", message_ids=("id",), command=lambda _queue: Command(0)
    )
    with pytest.raises(BrokerBusy if refused else BrokerUnreachable):
        engine.send(payload, queue, False, 1_000.0 if refused else 0.5, 0.0)
