"""Round robin, leaving a broker that failed, and selectors (protocol-behaviour 7.1, 7.3)."""

from __future__ import annotations

import itertools

import pytest

from rmq_ray.errors import ClientError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.routing.queue_selection import (
    checked_choice,
    position,
    select_by_group,
    select_by_hash,
    select_by_random,
    select_queue,
)

QUEUES = [
    MessageQueue("T", name, number)
    for name in ("Broker_A", "Broker_B", "Broker_C")
    for number in (1, 2)
]


@pytest.mark.seed("S0-053", "S0-056")
def test_without_a_failure_every_queue_comes_in_turn() -> None:
    turn = itertools.count(6).__next__
    chosen = [select_queue(QUEUES, turn) for _ in range(12)]
    assert chosen == QUEUES * 2


@pytest.mark.seed("S0-052", "S0-057")
def test_after_a_failure_the_next_queue_is_on_another_broker() -> None:
    turn = itertools.count(0).__next__
    failed = select_queue(QUEUES, turn)
    assert failed == MessageQueue("T", "Broker_A", 1)
    assert select_queue(QUEUES, turn, failed.broker_name) == MessageQueue("T", "Broker_B", 1)


@pytest.mark.seed("S3-063", "S3-066", "S3-067")
def test_a_counter_at_one_that_meets_a_failed_broker_goes_on_to_the_next_queue_elsewhere() -> None:
    four = [
        MessageQueue("T", name, number) for name in ("Broker_A", "Broker_B") for number in (0, 1)
    ]
    turn = itertools.count(1).__next__
    failed = select_queue(four, turn)
    assert failed == four[1 % 4]
    assert (
        select_queue(four, turn, failed.broker_name)
        == four[2 % 4]
        == MessageQueue("T", "Broker_B", 0)
    )


@pytest.mark.seed("S0-054")
def test_a_topic_of_one_broker_is_retried_there_on_the_plainly_next_queue() -> None:
    alone = QUEUES[:2]
    turn = itertools.count(0).__next__
    assert (
        select_queue(alone, turn, "Broker_A") == alone[0]
    )  # turns 0 and 1 are used up in the search, turn 2 is taken


@pytest.mark.seed("S0-054")
def test_the_position_is_the_absolute_value_and_never_negative() -> None:
    assert [position(index, 4) for index in (0, 1, 5, -1, -5)] == [0, 1, 1, 1, 1]
    assert position(-(1 << 31), 7) == 0
    assert all(0 <= position(index, 7) < 7 for index in range((1 << 31) - 10, (1 << 31) + 10))


def test_a_hash_selects_as_java_does_for_negative_hashes() -> None:
    assert select_by_hash(QUEUES, -2147483648) == QUEUES[2147483648 % 6]
    assert select_by_hash(QUEUES, -7) == QUEUES[1]
    assert select_by_random(QUEUES, 13) == QUEUES[1]


@pytest.mark.seed("S3-073")
def test_one_message_group_always_has_one_queue_and_groups_spread() -> None:
    chosen = {group: select_by_group(QUEUES, group) for group in (f"user-{n}" for n in range(60))}
    assert all(select_by_group(QUEUES, group) == queue for group, queue in chosen.items())
    assert set(chosen.values()) == set(QUEUES)


@pytest.mark.parametrize("chosen", [None, "queue 1", MessageQueue("other", "Broker_A", 1)])
def test_a_selector_must_return_a_queue_of_the_topic(chosen: object) -> None:
    with pytest.raises(ClientError, match="must return one of the 6 queues"):
        checked_choice(chosen, "T", QUEUES)
    assert checked_choice(QUEUES[3], "T", QUEUES) is QUEUES[3]
