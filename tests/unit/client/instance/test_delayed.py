"""Delayed calls: order, limits, faults."""

from __future__ import annotations

import pytest

from rmq_ray.client.instance import timers
from rmq_ray.client.instance.timers import DelayedCalls
from rmq_ray.clock import ManualClock
from rmq_ray.errors import ClientError


def test_calls_run_when_due_in_the_order_of_their_times() -> None:
    clock, ran = ManualClock(), list[str]()
    calls = DelayedCalls(clock, "t")
    for name, delay in (("late", 30), ("early", 10), ("also early", 10), ("now", 0)):
        calls.after(delay, lambda name=name: ran.append(name))
    assert calls.run_due() == 1
    clock.advance_ms(10)
    assert calls.run_due() == 2
    clock.advance_ms(100)
    assert (calls.run_due(), ran) == (1, ["now", "early", "also early", "late"])


def test_a_call_that_raises_does_not_keep_the_others_from_running() -> None:
    calls, ran = DelayedCalls(ManualClock(), "t"), list[int]()
    calls.after(0, lambda: ran.append(1 // 0))
    calls.after(0, lambda: ran.append(2))
    assert (calls.run_due(), ran) == (2, [2])


def test_after_close_nothing_runs() -> None:
    calls, ran = DelayedCalls(ManualClock(), "t"), list[int]()
    calls.after(0, lambda: ran.append(1))
    calls.close()
    calls.after(0, lambda: ran.append(2))
    assert (calls.run_due(), ran) == (0, [])


def test_the_number_of_waiting_calls_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "CALLS_MAX", 2)
    calls = DelayedCalls(ManualClock(), "t")
    calls.after(1, lambda: None)
    calls.after(1, lambda: None)
    with pytest.raises(ClientError):
        calls.after(1, lambda: None)
