"""Periodic work."""

from __future__ import annotations

from rmq_ray.server.base.timers import BrokerTimers


def test_tasks_run_after_their_first_delay_and_then_each_period() -> None:
    runs: list[tuple[str, float]] = []
    timers = BrokerTimers(0)
    now = 0.0
    timers.every(30, lambda: runs.append(("a", now)), first_ms=10)
    timers.every(20, lambda: runs.append(("b", now)))
    for now in (0, 10, 20, 30, 40):
        timers.run_due(now)
    assert runs == [("a", 10), ("b", 20), ("a", 40), ("b", 40)]


def test_missed_periods_are_not_made_up_for() -> None:
    runs: list[int] = []
    timers = BrokerTimers(0)
    timers.every(10, lambda: runs.append(1))
    timers.run_due(1_000)
    assert len(runs) == 1
    timers.run_due(1_009)
    assert len(runs) == 1
    timers.run_due(1_010)
    assert len(runs) == 2


def test_a_task_added_later_counts_from_then() -> None:
    runs: list[int] = []
    timers = BrokerTimers(0)
    timers.run_due(100)
    timers.every(10, lambda: runs.append(1))
    timers.run_due(109)
    assert runs == []
    timers.run_due(110)
    assert runs == [1]
