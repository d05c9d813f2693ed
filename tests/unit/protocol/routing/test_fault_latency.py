"""Which brokers a producer keeps away from (protocol-behaviour 7.2)."""

from __future__ import annotations

import itertools

import pytest

from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.routing.queue_selection import (
    LATENCY_MAX_MS,
    NOT_AVAILABLE_MS,
    FaultItem,
    LatencyFaults,
    not_available_ms,
)

QUEUES = [MessageQueue("T", name, number) for name in ("a", "b", "c") for number in (0, 1)]


@pytest.mark.seed("S3-047", "S3-048", "S3-049")
def test_seven_levels_of_latency_have_seven_durations() -> None:
    assert LATENCY_MAX_MS == (50, 100, 550, 1000, 2000, 3000, 15000)
    assert NOT_AVAILABLE_MS == (0, 0, 30000, 60000, 120000, 180000, 600000)


@pytest.mark.seed("S3-052", "S3-055", "S3-056")
def test_the_highest_level_that_was_reached_decides_how_long_a_broker_is_kept_away_from() -> None:
    found = {
        latency: not_available_ms(latency)
        for latency in (0, 49, 50, 549.9, 550, 999, 1000, 2999, 3000, 14_999, 15_000, 1e9)
    }
    assert found == {
        0: 0,
        49: 0,
        50: 0,
        549.9: 0,
        550: 30_000,
        999: 30_000,
        1000: 60_000,
        2999: 120_000,
        3000: 180_000,
        14_999: 180_000,
        15_000: 600_000,
        1e9: 600_000,
    }


@pytest.mark.seed("S3-051", "S3-053", "S3-054")
def test_an_isolated_broker_counts_as_one_that_took_30_s_and_is_away_for_600_s() -> None:
    faults = LatencyFaults()
    faults.update("a", 3.0, True, 1_000.0)
    assert faults.items() == [FaultItem("a", 30_000.0, 601_000.0, True)]
    assert not faults.available("a", 600_999.9) and faults.available("a", 601_000.0)
    assert faults.available("never heard of", 0.0)


@pytest.mark.seed("S3-033")
def test_a_success_replaces_what_was_known_of_its_broker() -> None:
    faults = LatencyFaults()
    faults.update("a", 0.0, True, 0.0)
    faults.update("a", 7.0, False, 10.0)
    assert faults.available("a", 10.0) and faults.isolated(10.0) == []
    faults.update("a", 700.0, False, 20.0)
    assert not faults.available("a", 30_019.0) and faults.available("a", 30_020.0)


@pytest.mark.seed("S3-059", "S3-068", "S3-069")
def test_selection_walks_the_queues_in_turn_for_a_broker_that_is_available() -> None:
    faults, turn = LatencyFaults(), itertools.count(0).__next__
    faults.update("b", 0.0, True, 0.0)
    chosen = [faults.select(QUEUES, turn, 1.0) for _ in range(8)]
    assert [queue.broker_name for queue in chosen] == ["a", "a", "c", "c", "a", "a", "c", "c"]
    faults.update("b", 10.0, False, 2.0)
    turn = itertools.count(2).__next__
    assert faults.select(QUEUES, turn, 3.0, last_broker="b").broker_name == "b", (
        "the broker that failed before is chosen again once it is available"
    )


@pytest.mark.seed("S3-060", "S3-061")
def test_when_all_are_kept_away_from_one_of_the_better_half_is_taken_on_a_queue_by_turn() -> None:
    faults = LatencyFaults()
    for name, latency in (("a", 16_000.0), ("b", 600.0), ("c", 1_200.0), ("d", 20_000.0)):
        faults.update(name, latency, False, 0.0)
    turn = itertools.count(0).__next__
    chosen = [faults.select(QUEUES, turn, 1.0) for _ in range(24)]
    assert {queue.broker_name for queue in chosen} == {"b", "c"}, "half of four"
    assert {
        queue.queue_id
        for queue in (faults.select(QUEUES, itertools.count(n).__next__, 1.0) for n in range(4))
    } == {0, 1}


def test_the_better_half_is_those_available_then_faster_then_free_earlier() -> None:
    faults = LatencyFaults()
    faults.update("slow but free", 700.0, False, 0.0)
    faults.update("fast but away", 560.0, False, 40_000.0)
    assert {faults.pick_one_at_least(41_000.0) for _ in range(4)} == {"slow but free"}
    assert {faults.pick_one_at_least(1.0) for _ in range(4)} == {"fast but away"}
    assert LatencyFaults().pick_one_at_least(0.0) is None


@pytest.mark.seed("S3-060", "S3-062", "S3-070")
def test_a_broker_without_queues_is_forgotten_and_plain_rotation_follows() -> None:
    faults, turn = LatencyFaults(), itertools.count(0).__next__
    faults.update("gone", 560.0, False, 0.0)
    for name in ("a", "b", "c"):
        faults.update(name, 0.0, True, 0.0)
    picked = faults.select(QUEUES, turn, 1.0)
    for _ in range(4):
        assert picked in QUEUES
        picked = faults.select(QUEUES, turn, 1.0)
    assert "gone" not in {item.broker_name for item in faults.items()}


def test_an_answered_probe_ends_isolation_and_a_slow_one_keeps_away() -> None:
    faults = LatencyFaults()
    faults.update("a", 0.0, True, 0.0)
    faults.update("b", 800.0, False, 0.0)
    assert faults.isolated(1.0) == ["a"], "a slow broker is not probed"
    faults.reached("a", 900.0, 5.0)
    assert not faults.available("a", 30_004.0) and faults.available("a", 30_005.0)
    faults.update("a", 0.0, True, 40_000.0)
    faults.reached("a", 1.0, 40_005.0)
    assert faults.available("a", 40_005.0)
    faults.reached("unknown", 1.0, 0.0)
    faults.reached("b", 1.0, 6.0)
    assert not faults.available("b", 7.0)
