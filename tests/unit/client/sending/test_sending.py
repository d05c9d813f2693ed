"""What sends of one producer share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rmq_ray.client.outgoing.queue_choice import QueueChoice
from rmq_ray.client.sending.sending import Delivery, Sending, Turns
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.routing.publish_info import PublishInfo


@pytest.mark.seed("S0-035", "S0-055", "S3-065")
def test_each_topic_has_a_counter_of_its_own_that_starts_anywhere_and_only_counts_on() -> None:
    turns = Turns()
    first, other = turns.of("orders")(), turns.of("bills")()
    assert [turns.of("orders")() for _ in range(3)] == [first + 1, first + 2, first + 3]
    assert turns.of("bills")() == other + 1
    assert len({Turns().of("orders")() for _ in range(10)}) > 5


@pytest.mark.parametrize(
    ("brokers", "pinned", "alone"),
    [
        (("broker-a",), False, True),
        (("broker-a", "broker-b"), False, False),
        (("broker-a", "broker-b"), True, True),
        ((), False, True),
        (
            ("broker-b",),
            False,
            False,
        ),  # drained or gone since the queue was chosen: the route shows the other one only
        (None, False, True),
    ],
)
def test_a_retry_has_another_broker_unless_the_route_shows_none_but_that_of_the_queue(
    brokers: tuple[str, ...] | None, pinned: bool, alone: bool
) -> None:
    info = (
        None
        if brokers is None
        else PublishInfo(
            "orders", tuple(MessageQueue("orders", name, 0) for name in brokers), brokers=brokers
        )
    )
    instance: Any = SimpleNamespace(
        clock=None, routes=SimpleNamespace(publish={"orders": info}.get)
    )
    sending = Sending(instance, SimpleNamespace(), Turns(), SimpleNamespace())  # type: ignore[arg-type]
    assert sending.alone(MessageQueue("orders", "broker-a", 0), pinned) is alone


def test_a_load_stays_where_it_is_while_the_route_shows_no_queue_at_all() -> None:
    queue, choice = (
        MessageQueue("orders", "broker-a", 0),
        QueueChoice(SYSTEM_CLOCK, latency_fault=False),
    )
    load: Any = SimpleNamespace(topic="orders")
    delivery = Delivery(load, queue, SimpleNamespace(), False)  # type: ignore[arg-type]
    delivery.move(lambda _topic: [], Turns().of("orders"), choice)
    assert delivery.queue is queue
    other = MessageQueue("orders", "broker-b", 1)
    delivery.move(lambda _topic: [queue, other], Turns().of("orders"), choice)
    assert delivery.queue is other
