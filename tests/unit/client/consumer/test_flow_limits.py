"""Thresholds of a queue, a topic and a group, and how they change while a consumer runs."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_ray.client.consumer.flow_control import FlowControl, Pressure
from rmq_ray.config import MIB, ConsumerConfig
from rmq_ray.errors import ConfigError
from rmq_ray.protocol.process_queue import Batch, ProcessQueue


def flow(span_max: float | None = None, **settings: Any) -> FlowControl:
    return FlowControl(ConsumerConfig("g", **settings), span_max)


def holding(count: int, body_bytes: int = 0) -> ProcessQueue:
    process = ProcessQueue(0, 0)
    process.put(Batch(0, count - 1, count, body_bytes))
    return process


def limits(of: FlowControl, topic: str) -> tuple[int, int]:
    found = of.thresholds(topic)
    return found.messages, found.body_bytes // MIB


@pytest.mark.parametrize(
    ("settings", "orders", "bills"),
    [
        ({}, (1_000, 100), (1_000, 100)),
        ({"threshold_messages_topic": 900}, (300, 100), (900, 100)),
        ({"threshold_mib_topic": 2}, (1_000, 1), (1_000, 2)),
        ({"threshold_messages_group": 400, "threshold_mib_group": 40}, (100, 10), (100, 10)),
        ({"threshold_messages_topic": 90, "threshold_messages_group": 400}, (30, 100), (90, 100)),
        ({"threshold_messages": 50, "threshold_messages_group": 6_553_500}, (50, 100), (50, 100)),
        ({"threshold_messages_group": 1}, (1, 100), (1, 100)),
    ],
)
def test_the_smallest_of_queue_topic_and_group_counts_divided_among_the_queues_held(
    settings: dict[str, Any], orders: tuple[int, int], bills: tuple[int, int]
) -> None:
    found = flow(**settings)
    found.divide("orders", 3)
    found.divide("bills", 1)
    assert (limits(found, "orders"), limits(found, "bills")) == (orders, bills)


def test_a_groups_threshold_is_divided_anew_when_any_topics_queues_change() -> None:
    found = flow(threshold_messages_group=1_200)
    found.divide("orders", 2)
    assert limits(found, "orders")[0] == 600
    found.divide("bills", 2)
    assert limits(found, "orders")[0] == 300
    found.divide("bills", 0)
    assert limits(found, "orders")[0] == 600


def test_other_limits_count_at_once_for_every_topic_and_for_those_to_come() -> None:
    found = flow()
    found.divide("orders", 2)
    process = holding(200)
    assert found.pressure("orders", process) is None
    found.adjust(ConsumerConfig("g", threshold_messages_topic=100, max_span=150))
    assert (
        found.pressure("orders", process) is Pressure.MESSAGES and limits(found, "orders")[0] == 50
    )
    found.adjust(ConsumerConfig("g", max_span=150))
    assert found.pressure("orders", process) is Pressure.SPAN
    assert found.pressure("never divided", process) is Pressure.SPAN
    found.adjust(ConsumerConfig("g", threshold_mib=1))
    assert found.pressure("orders", holding(2, 2 * MIB)) is Pressure.BYTES


def test_a_span_without_limit_stays_without() -> None:
    found = flow(span_max=float("inf"))
    found.adjust(ConsumerConfig("g", max_span=1, threshold_messages=500))
    assert found.pressure("orders", holding(400)) is None


@pytest.mark.parametrize("name", ["threshold_messages_group", "threshold_mib_group"])
@pytest.mark.parametrize("value", [0, -2, 6_553_501])
def test_group_thresholds_out_of_range_are_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be -1 or 1 to"):
        ConsumerConfig("g", **{name: value})
