"""What the ends of sends say about their brokers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from rmq_ray.client.outgoing.queue_choice import BrokerProbe, QueueChoice
from rmq_ray.clock import ManualClock
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import (
    ConnectFailed,
    ConnectionLost,
    FrameTooLarge,
    RemotingError,
    RequestTimeout,
    TooManyRequests,
)
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.remoting.wire.frame import Command

QUEUES = [MessageQueue("T", name, number) for name in ("a", "b") for number in (0, 1)]
ELSEWHERE = [
    ConnectFailed("down"),
    ConnectionLost("broke"),
    RequestTimeout("silent"),
    *(Command(0).answer(code) for code in (1, 2, 14, 16, 17)),
]
INNOCENT = [
    TooManyRequests("ours"),
    FrameTooLarge("ours"),
    *(Command(0).answer(code) for code in (0, 10, 11, 12, 13)),
]


@pytest.mark.seed("S3-050", "S3-057")
def test_switched_off_nothing_is_remembered_and_rotation_goes_on() -> None:
    assert not ProducerConfig().latency_fault
    choice = QueueChoice(ManualClock(), ProducerConfig().latency_fault)
    choice.ended("a", 0.0, ConnectFailed("down"))
    turn = itertools.count(0).__next__
    assert [choice.next(QUEUES, turn) for _ in range(4)] == QUEUES and choice.faults is None
    callback = print
    assert choice.watching("a", callback) is callback


@pytest.mark.parametrize("outcome", ELSEWHERE, ids=str)
@pytest.mark.seed("S3-058")
def test_an_end_that_is_the_brokers_isolates_it(outcome: Command | RemotingError) -> None:
    told: list[str] = []
    choice = QueueChoice(ManualClock(), True, told.append)
    choice.watching("a", lambda _outcome: None)(outcome)
    turn = itertools.count(0).__next__
    assert {choice.next(QUEUES, turn).broker_name for _ in range(6)} == {"b"} and told == ["a"]


@pytest.mark.parametrize("outcome", INNOCENT, ids=str)
def test_a_message_that_no_broker_would_take_speaks_against_none(
    outcome: Command | RemotingError,
) -> None:
    told: list[str] = []
    choice = QueueChoice(ManualClock(), True, told.append)
    choice.ended("a", 0.0, outcome)
    turn = itertools.count(0).__next__
    assert {choice.next(QUEUES, turn).broker_name for _ in range(6)} == {"a", "b"} and not told


@pytest.mark.seed("S3-033")
def test_a_slow_success_keeps_away_for_its_level() -> None:
    clock = ManualClock()
    choice, seen = QueueChoice(clock, True), []
    ended = choice.watching("a", seen.append)
    clock.advance_ms(1_500)
    ended(Command(0).answer(0))
    turn = itertools.count(0).__next__
    assert len(seen) == 1 and {choice.next(QUEUES, turn).broker_name for _ in range(6)} == {"b"}
    clock.advance_ms(60_000)
    assert {choice.next(QUEUES, turn).broker_name for _ in range(6)} == {"a", "b"}


def test_a_probe_asks_isolated_brokers_until_they_answer() -> None:
    clock = ManualClock()
    choice, asked = QueueChoice(clock, True), []
    down: set[Any] = {Address("h", 1)}

    def ask(address: Address, command: Command, timeout_ms: float) -> Command:
        asked.append(address)
        if address in down:
            raise ConnectFailed("down")
        return command.answer(1)

    assert choice.faults is not None
    probe = BrokerProbe("web", clock, choice.faults, {"a": Address("h", 1)}.get, ask)
    assert not probe.probe_all()
    choice.ended("a", 0.0, ConnectFailed("down"))
    choice.ended("unknown to routes", 0.0, ConnectFailed("down"))
    assert probe.probe_all() and not choice.faults.available("a", clock.monotonic_ms())
    down.clear()
    assert probe.probe_all() and choice.faults.available("a", clock.monotonic_ms())
    assert asked == [Address("h", 1)] * 2
