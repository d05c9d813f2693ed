"""Delay levels: the table, when a message is due, where it is parked."""

from __future__ import annotations

import pytest

from rmq_ray.config import BrokerConfig, StoreConfig
from rmq_ray.errors import ConfigError
from rmq_ray.protocol.delay import DelayLevels, park, release, requested_level

DEFAULT = BrokerConfig(StoreConfig("unused")).delay_levels
LEVELS = DelayLevels.parse(DEFAULT)
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000


@pytest.mark.seed("S4-187", "S4-188")
def test_the_default_table_has_the_18_levels_of_rocketmq() -> None:
    expected = [
        1 * SECOND,
        5 * SECOND,
        10 * SECOND,
        30 * SECOND,
        *(n * MINUTE for n in range(1, 11)),
        20 * MINUTE,
        30 * MINUTE,
        1 * HOUR,
        2 * HOUR,
    ]
    assert list(LEVELS.delays_ms) == expected
    assert (
        LEVELS.delay_ms(1) == 1_000 and LEVELS.delay_ms(2) == 5_000 and LEVELS.delay_ms(3) == 10_000
    )


def test_all_units_are_read() -> None:
    assert DelayLevels.parse("2s 3m 4h 5d").delays_ms == (2_000, 180_000, 14_400_000, 432_000_000)


@pytest.mark.parametrize("text", ["", "5", "5x", "s", "1s -2s", "1.5s"])
def test_a_broken_table_is_a_configuration_error(text: str) -> None:
    with pytest.raises(ConfigError):
        DelayLevels.parse(text)


def test_levels_above_the_highest_count_as_the_highest_and_below_one_as_none() -> None:
    assert [LEVELS.clamp(level) for level in (-3, 0, 1, 18, 19, 999)] == [0, 0, 1, 18, 18, 18]


def test_a_message_is_due_its_delay_after_it_was_stored_and_never_before() -> None:
    deliver_at = LEVELS.deliver_at_ms(3, 1_000_000)
    assert deliver_at == 1_010_000
    assert LEVELS.due_ms(3, deliver_at, 1_000_500) == deliver_at
    assert LEVELS.due_ms(3, deliver_at, 2_000_000) == deliver_at


def test_a_delivery_time_further_ahead_than_the_level_allows_is_due_now() -> None:
    assert LEVELS.due_ms(1, 5_000_000, 1_000_000) == 1_000_000


def test_parking_and_releasing_restore_target_and_properties() -> None:
    topic, queue_id, properties = park("orders", 2, 4, {"a": "b", "TAGS": "t"})
    assert (topic, queue_id) == ("SCHEDULE_TOPIC_XXXX", 3)
    assert properties == {
        "a": "b",
        "TAGS": "t",
        "DELAY": "4",
        "REAL_TOPIC": "orders",
        "REAL_QID": "2",
    }
    assert release({**properties, "WAIT": "false"}) == (
        "orders",
        2,
        {"a": "b", "TAGS": "t", "REAL_TOPIC": "orders", "REAL_QID": "2"},
    )


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"REAL_TOPIC": "a"},
        {"REAL_QID": "1"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"},
        {"REAL_TOPIC": "SCHEDULE_TOPIC_XXXX", "REAL_QID": "0"},
        {"REAL_TOPIC": "a", "REAL_QID": "x"},
    ],
)
def test_a_parked_message_without_a_lawful_target_is_not_released(
    properties: dict[str, str],
) -> None:
    assert release(properties) is None


@pytest.mark.parametrize(("text", "level"), [("3", 3), ("-1", -1), ("x", 0), ("", 0)])
def test_the_requested_level_is_read_from_the_property(text: str, level: int) -> None:
    assert requested_level({"DELAY": text}) == level
