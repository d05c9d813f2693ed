"""Traffic of the last minute, hour and day from plain counts, and totals of days."""

from __future__ import annotations

from datetime import datetime

import pytest

from rmq_ray.server.base.counters import Counters
from rmq_ray.server.base.statistics import Statistics, StatisticWindow

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
MORNING_MS = int(datetime(2026, 3, 4, 8, 0, 0).astimezone().timestamp() * 1000)


@pytest.fixture
def counters() -> Counters:
    return Counters()


def run(statistics: Statistics, begin_ms: int, duration_ms: int, step_ms: int = 1_000) -> int:
    """Let time pass; returns the time then."""
    for now_ms in range(begin_ms, begin_ms + duration_ms + 1, step_ms):
        statistics.sample(now_ms)
    return begin_ms + duration_ms


def test_a_windows_sum_is_what_was_counted_in_it_and_its_rate_that_over_the_time(
    counters: Counters,
) -> None:
    statistics = Statistics(counters, "main")
    statistics.sample(MORNING_MS)
    counters.put("orders", 300, 30_000)
    counters.got("orders", "billing", 120, 12_000)
    now_ms = run(statistics, MORNING_MS, 30_000)
    put = statistics.view("TOPIC_PUT_NUMS", "orders", now_ms)
    assert put is not None and put.minute == put.hour == put.day == StatisticWindow(300, 10.0)
    size = statistics.view("TOPIC_PUT_SIZE", "orders", now_ms)
    assert size is not None and size.minute == StatisticWindow(30_000, 1_000.0)
    assert statistics.group_tps("orders", "billing", now_ms) == 4.0


def test_an_old_burst_leaves_the_minute_then_the_hour_then_the_day(counters: Counters) -> None:
    statistics = Statistics(counters, "main")
    statistics.sample(MORNING_MS)
    counters.put("orders", 60, 600)

    def sums(now_ms: int) -> tuple[int, int, int]:
        found = statistics.view("TOPIC_PUT_NUMS", "orders", now_ms)
        assert found is not None
        return found.minute.sum, found.hour.sum, found.day.sum

    now_ms = run(statistics, MORNING_MS, 2 * MINUTE_MS)
    assert sums(now_ms) == (0, 60, 60)
    now_ms = run(statistics, now_ms, 2 * HOUR_MS, 10_000)
    assert sums(now_ms) == (0, 0, 60)
    now_ms = run(statistics, now_ms, 25 * HOUR_MS, MINUTE_MS)
    assert sums(now_ms) == (0, 0, 0)


def test_what_was_never_counted_has_no_statistics(counters: Counters) -> None:
    statistics = Statistics(counters, "main")
    counters.put("orders", 1, 1)
    for name, key in (
        ("TOPIC_PUT_NUMS", "other"),
        ("GROUP_GET_NUMS", "orders@billing"),
        ("GROUP_GET_NUMS", "orders"),
        ("BROKER_PUT_NUMS", "another cluster"),
        ("NO_SUCH_NUMS", "orders"),
        ("", ""),
    ):
        assert statistics.view(name, key, MORNING_MS) is None, (name, key)


def test_the_broker_and_what_groups_sent_back_have_statistics_of_their_own(
    counters: Counters,
) -> None:
    statistics = Statistics(counters, "main")
    statistics.sample(MORNING_MS)
    counters.put("orders", 5, 50)
    counters.sent_back_by("orders", "billing", 7)
    for name, key, count in (
        ("BROKER_PUT_NUMS", "main", 5),
        ("BROKER_GET_NUMS", "main", 0),
        ("SNDBCK_PUT_NUMS", "orders@billing", 1),
        ("SNDBCK_PUT_SIZE", "orders@billing", 7),
    ):
        found = statistics.view(name, key, MORNING_MS + 1_000)
        assert found is not None and found.day.sum == count, name
    counters.keep(())
    assert statistics.view("SNDBCK_PUT_NUMS", "orders@billing", MORNING_MS) is None


def test_totals_of_days_move_on_at_midnight_of_the_machines_zone(counters: Counters) -> None:
    statistics = Statistics(counters, "main")
    statistics.sample(MORNING_MS)
    counters.put("orders", 10, 1)
    run(statistics, MORNING_MS, 15 * HOUR_MS, MINUTE_MS)
    assert (statistics.put_days.yesterday, statistics.put_days.today) == (0, 0)
    run(statistics, MORNING_MS + 15 * HOUR_MS, 2 * HOUR_MS, MINUTE_MS)
    counters.put("orders", 3, 1)
    assert (statistics.put_days.yesterday, statistics.put_days.today) == (0, 10)
    run(statistics, MORNING_MS + 17 * HOUR_MS, DAY_MS, MINUTE_MS)
    assert (statistics.put_days.yesterday, statistics.put_days.today) == (10, 13)
    assert (statistics.got_days.yesterday, statistics.got_days.today) == (0, 0)
