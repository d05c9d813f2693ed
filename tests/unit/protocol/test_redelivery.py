"""What becomes of a message that was sent back."""

from __future__ import annotations

import pytest

from rmq_ray.model.topics import GroupConfig
from rmq_ray.protocol.redelivery import (
    Redelivery,
    copy_properties,
    decide,
    group_of_retry_topic,
    max_times,
)

GROUP = GroupConfig("billing")


@pytest.mark.seed("S4-208")
def test_the_broker_chooses_level_three_plus_the_count() -> None:
    assert [decide(GROUP, count, 0, 16).delay_level for count in range(16)] == list(range(3, 19))


@pytest.mark.seed("S4-189", "S4-207")
def test_the_seventeenth_failure_goes_to_the_dead_letter_topic() -> None:
    assert not decide(GROUP, 15, 0, 16).dead
    assert decide(GROUP, 16, 0, 16) == Redelivery("%DLQ%billing", True, 0, 17)


@pytest.mark.seed("S4-207")
def test_a_negative_level_is_a_dead_letter_at_once() -> None:
    assert decide(GROUP, 0, -1, 16) == Redelivery("%DLQ%billing", True, 0, 1)


def test_an_asked_level_is_used() -> None:
    assert decide(GROUP, 5, 2, 16) == Redelivery("%RETRY%billing", False, 2, 6)


@pytest.mark.seed("S4-206")
def test_the_clients_limit_is_used_and_else_the_groups() -> None:
    assert [max_times(GROUP, asked) for asked in (None, -1, 0, 3)] == [16, 16, 0, 3]


@pytest.mark.seed("S4-205", "S4-210")
def test_the_copy_keeps_its_first_topic_and_first_message_id() -> None:
    first = copy_properties(
        {"KEYS": "k", "DELAY": "3", "WAIT": "true"}, "orders", "OFFSETID", "UNIQUE"
    )
    assert first == {"KEYS": "k", "RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "UNIQUE"}
    assert copy_properties(first, "%RETRY%billing", "OTHER", "OTHER") == first
    assert copy_properties({}, "orders", "OFFSETID", None)["ORIGIN_MESSAGE_ID"] == "OFFSETID"


def test_the_group_is_read_from_its_retry_topic() -> None:
    assert group_of_retry_topic("%RETRY%billing") == "billing"
    assert group_of_retry_topic("billing") is None
