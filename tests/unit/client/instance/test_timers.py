"""Repeated and delayed actions run when they are due, and outlive one that fails."""

from __future__ import annotations

import threading

from rmq_ray.client.instance.timers import ClientTimers
from rmq_ray.clock import SYSTEM_CLOCK, ManualClock


def test_actions_run_first_after_their_delay_and_then_each_period() -> None:
    clock, ran = ManualClock(), list[str]()
    timers = ClientTimers(clock, "t")
    timers.every("beat", 100, lambda: ran.append("beat"), first_ms=10)
    timers.run_due()
    assert ran == []
    for _ in range(3):
        clock.advance_ms(100)
        timers.run_due()
        timers.run_due()
    assert ran == ["beat"] * 3


def test_turns_that_were_missed_are_not_made_up() -> None:
    clock, ran = ManualClock(), list[int]()
    timers = ClientTimers(clock, "t")
    timers.every("beat", 100, lambda: ran.append(1))
    clock.advance_ms(1000)
    timers.run_due()
    timers.run_due()
    assert len(ran) == 2  # the late one and the one due at this very moment
    timers.run_due()
    assert len(ran) <= 3


def test_delayed_actions_run_once_in_the_order_of_their_times() -> None:
    clock, ran = ManualClock(), list[str]()
    timers = ClientTimers(clock, "t")
    timers.after(20, lambda: ran.append("late"))
    timers.after(10, lambda: ran.append("early"))
    timers.after(10, lambda: ran.append("early too"))
    clock.advance_ms(15)
    timers.run_due()
    assert ran == ["early", "early too"]
    clock.advance_ms(15)
    timers.run_due()
    timers.run_due()
    assert ran == ["early", "early too", "late"]


def test_asking_for_the_same_action_soon_twice_runs_it_once() -> None:
    ran = list[int]()
    timers = ClientTimers(ManualClock(), "t")
    timers.soon("a", lambda: ran.append(1))
    timers.soon("a", lambda: ran.append(2))
    timers.run_due()
    timers.run_due()
    assert ran == [1]


def test_an_action_that_fails_neither_stops_the_others_nor_its_next_turn() -> None:
    clock, ran = ManualClock(), list[int]()
    timers = ClientTimers(clock, "t")

    def fail() -> None:
        ran.append(0)
        raise ValueError("on purpose")

    timers.every("bad", 10, fail)
    timers.every("good", 10, lambda: ran.append(1))
    for _ in range(2):
        clock.advance_ms(10)
        timers.run_due()
    assert sorted(ran) == [0, 0, 1, 1]


def test_nothing_starts_after_close_and_the_thread_ends() -> None:
    ran = threading.Event()
    timers = ClientTimers(SYSTEM_CLOCK, "rmq-test-timers")
    timers.start()
    timers.soon("a", ran.set)
    assert ran.wait(5)
    timers.close()
    timers.after(0, lambda: ran.clear())
    timers.run_due()
    assert not [thread for thread in threading.enumerate() if thread.name == "rmq-test-timers"]
