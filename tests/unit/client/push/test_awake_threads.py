"""How many threads call a slow listener: against models of what their calls wait for."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from rmq_ray.client.push.awake_threads import (
    MEASURED_CALLS,
    QUICK_THREADS,
    REST_MIN,
    AwakeThreads,
)

MOST = 20
LOOK_MS = 10.0
Rate = Callable[[int], float]
"""Threads -> calls that end in a millisecond."""


def waits(each_ms: float) -> Rate:
    """For a network: nobody waits for another one."""
    return lambda threads: threads / each_ms


def takes_turns(each_ms: float) -> Rate:
    """At one interpreter; who is given it, and when, costs more the more there are."""
    return lambda threads: 1 / (each_ms * (1 + 0.05 * (threads - QUICK_THREADS)))


class Model:
    """``noise``: a look sees up to so much more or less of the rate."""

    def __init__(self, noise: float = 0.1) -> None:
        self.awake = AwakeThreads()
        self.counts: list[int] = []
        self.sufficed: list[bool] = []
        self.long = False
        self._noise, self._chance, self._part = noise, random.Random(1), 0.0

    def look(self, rate: Rate, looks: int) -> list[int]:
        """The counts of so many looks."""
        for _ in range(looks):
            noise = self._chance.uniform(1 - self._noise, 1 + self._noise)
            self._part += rate(self.awake.count) * LOOK_MS * noise
            calls = int(self._part)
            self._part -= calls
            mean_ms = self.awake.count / rate(self.awake.count)
            long = self.long or mean_ms >= 0.9 * LOOK_MS
            self.awake.looked(calls, LOOK_MS, MOST, waiting=True, long=long)
            self.counts.append(self.awake.count)
            self.sufficed.append(self.awake.suffice)
        return self.counts[-looks:]


def mean(counts: Sequence[float]) -> float:
    return sum(counts) / len(counts)


@pytest.mark.parametrize("each_ms", [0.2, 1.0, 5.0, 9.0])
def test_calls_that_wait_for_a_network_get_all_threads_and_keep_them(each_ms: float) -> None:
    model = Model()
    assert model.look(waits(each_ms), 4) == [4, 8, 16, MOST]
    assert mean(model.look(waits(each_ms), 1_000)) > 0.95 * MOST


@pytest.mark.parametrize("each_ms", [0.06, 0.1, 0.2])
def test_calls_that_take_turns_get_two_threads_which_suffice(each_ms: float) -> None:
    model = Model()
    model.look(takes_turns(each_ms), 600)
    rate = takes_turns(each_ms)
    rates = [rate(count) for count in model.look(rate, 1_000)]
    assert mean(rates) > 0.93 * rate(QUICK_THREADS)
    assert sum(model.sufficed[-1_000:]) > 900


def test_what_was_slow_by_itself_and_takes_turns_now_gets_fewer_and_all_again() -> None:
    model = Model()
    model.look(waits(1.0), 300)
    assert model.awake.count == MOST and not model.awake.suffice
    assert QUICK_THREADS in model.look(takes_turns(0.2), 600)
    model.look(takes_turns(0.2), 1_000)
    assert MOST in model.look(waits(1.0), 400)


def test_calls_that_last_longer_than_a_look_are_slow_without_a_trial() -> None:
    model = Model()
    model.look(takes_turns(0.2), 500)
    assert model.awake.suffice
    model.long = True
    assert model.look(takes_turns(0.2), 5)[-1] == MOST and not model.awake.suffice
    assert set(model.look(takes_turns(0.2), 500)) == {MOST}


def test_where_all_wait_long_for_one_another_the_trial_ends_by_its_rate() -> None:
    model = Model()
    model.look(takes_turns(0.2), 500)
    assert model.awake.suffice
    counts = model.look(takes_turns(0.5), 1_000)
    assert MOST in counts and mean(counts) < 5


def test_what_was_no_use_is_tried_ever_less_often() -> None:
    model = Model(noise=0.0)
    counts = model.look(takes_turns(0.2), 2_000)
    begins = [at for at in range(5, 2_000) if counts[at] > counts[at - 1] == QUICK_THREADS]
    gaps = [later - earlier for earlier, later in zip(begins, begins[1:], strict=False)]
    assert gaps == sorted(gaps) and gaps[-1] > 3 * gaps[0]


def test_few_calls_decide_nothing_until_there_are_enough() -> None:
    awake = AwakeThreads()
    for _ in range(4):
        awake.looked(1, LOOK_MS, MOST, waiting=True, long=False)
    for _ in range(REST_MIN * MEASURED_CALLS * MOST):
        assert awake.count == MOST
        awake.looked(1, LOOK_MS, MOST, waiting=True, long=False)
    assert awake.count == QUICK_THREADS


def test_one_thread_is_never_more_than_there_are() -> None:
    awake = AwakeThreads()
    for _ in range(50):
        awake.looked(100, LOOK_MS, 3, waiting=True, long=False)
        assert awake.count <= 3
