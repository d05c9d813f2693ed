"""A busy server looks for its next frame; one that is idle, or nearly so, sleeps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, cast

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.config import BrokerConfig, StoreConfig
from rmq_ray.errors import ConfigError
from rmq_ray.remoting import busy_poll
from rmq_ray.remoting.busy_poll import WINDOW_MS, BusyPoll, of_use


class Turns:
    """A loop that runs what is planned when it is told to, each round taking 0.1 ms."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.planned: list[Callable[[], None]] = []
        self.rounds = 0

    def call_soon(self, call: Callable[[], None], *_: Any) -> None:
        self.planned.append(call)

    def run(self) -> int:
        """Until the loop would sleep; the rounds."""
        before = self.rounds
        while self.planned and self.rounds - before < 1_000:
            planned, self.planned = self.planned, []
            self.rounds += 1
            self.clock.advance_ms(0.1)
            for call in planned:
                call()
        return self.rounds - before


@pytest.fixture
def turns() -> Turns:
    return Turns()


def poll_of(turns: Turns, patience_us: int = 1_000) -> BusyPoll:
    return BusyPoll(cast(asyncio.AbstractEventLoop, turns), turns.clock, patience_us)


def serve(poll: BusyPoll, turns: Turns, work_ms: float, pause_ms: float, frames: int) -> list[int]:
    """Frames that take ``work_ms``, ``pause_ms`` apart; how often the loop looked after each."""
    looks = []
    for _ in range(frames):
        turns.clock.advance_ms(pause_ms)
        begun_ms = poll.now_ms()
        turns.clock.advance_ms(work_ms)
        poll.served(begun_ms, poll.now_ms())
        looks.append(turns.run())
    return looks


def test_a_busy_server_polls_for_a_millisecond_after_each_frame(turns: Turns) -> None:
    looks = serve(poll_of(turns), turns, 0.5, 0.5, 100)
    assert looks[0] == 0
    assert all(10 <= count <= 12 for count in looks[-50:])


def test_a_server_that_works_less_than_a_fifth_of_the_time_sleeps(turns: Turns) -> None:
    assert not any(serve(poll_of(turns), turns, 0.1, 0.9, 1_000))


def test_a_single_frame_after_a_pause_is_no_load(turns: Turns) -> None:
    assert not any(serve(poll_of(turns), turns, 5.0, 10 * WINDOW_MS, 20))


def test_a_server_that_was_busy_sleeps_again(turns: Turns) -> None:
    poll = poll_of(turns)
    assert serve(poll, turns, 0.5, 0.5, 100)[-1] >= 10
    assert turns.planned == []
    serve(poll, turns, 0.1, 10.0, 3)
    assert not any(serve(poll, turns, 0.1, 10.0, 100))


def test_frames_that_come_while_it_polls_prolong_the_one_round(turns: Turns) -> None:
    poll = poll_of(turns)
    serve(poll, turns, 0.5, 0.5, 100)
    for _ in range(5):
        poll.served(poll.now_ms() - 0.5, poll.now_ms())
    assert len(turns.planned) == 1
    assert turns.run() <= 12


def test_others_may_run_between_two_looks(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    monkeypatch.setattr(os, "sched_yield", lambda: given.append(True))
    looks = sum(serve(poll_of(turns), turns, 0.5, 0.5, 50))
    assert 0 < len(given) < looks <= len(given) + 50  # the last look of each time ends it


def test_a_single_core_is_never_polled_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_poll.os, "sched_getaffinity", lambda pid: {3})
    assert not of_use()
    monkeypatch.setattr(busy_poll.os, "sched_getaffinity", lambda pid: {3, 4})
    assert of_use()
    monkeypatch.delattr(busy_poll.os, "sched_yield")
    assert not of_use()


@pytest.mark.parametrize("value", [-1, 100_001])
def test_impossible_patience_is_refused(value: int) -> None:
    with pytest.raises(ConfigError, match="busy_poll_us must be 0"):
        BrokerConfig(StoreConfig("x"), busy_poll_us=value)
