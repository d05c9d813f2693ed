"""What clients of a program that is over still owe, in its order: nothing is handed over before
what belongs to it is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from rmq_ray.client.instance.settling import HandOver, drained, settle
from rmq_ray.clock import ManualClock


@dataclass
class Owing:
    """A producer: what lingers is sent by ``ship`` and ends by ``wait_through``, which takes
    ``takes_ms``; then a callback of it runs.
    """

    clock: ManualClock
    events: list[str]
    name: str = "p"
    open: int = 0
    takes_ms: float = 1.0
    due_ms: float = 4_000.0
    callbacks: list[Callable[[], None]] = field(default_factory=list)
    out: int = 0
    admitted: int = 0

    @property
    def outstanding(self) -> int:
        return self.open + self.out

    def ship(self) -> None:
        self.out, self.open, self.admitted = self.out + self.open, 0, self.admitted + self.open

    def wait_through(self, timeout_ms: float) -> None:
        self.clock.sleep_ms(min(self.takes_ms, timeout_ms))
        if self.takes_ms <= timeout_ms and self.out:
            self.events.append(f"{self.name} sent {self.out}")
            self.out = 0
            if self.callbacks:
                self.callbacks.pop()()

    def give_up(self, why: str) -> None:
        self.events.append(f"{self.name} gave up")
        self.out = self.open = 0


def reader(events: list[str]) -> Callable[[], HandOver]:
    def halt() -> HandOver:
        events.append("halted")
        return lambda _until_ms: events.append("handed over")

    return halt


def test_consumers_stop_first_and_hand_over_last() -> None:
    clock, events = ManualClock(), list[str]()
    producers = [Owing(clock, events, "a", open=2), Owing(clock, events, "b", open=1)]
    settle(lambda: producers, [reader(events), reader(events)], clock)
    assert events == [
        "halted", "halted", "a sent 2", "b sent 1", "handed over", "handed over"
    ]  # fmt: skip


def test_what_callbacks_send_by_another_producer_is_sent_too() -> None:
    clock, events = ManualClock(), list[str]()
    first, second = Owing(clock, events, "a"), Owing(clock, events, "b", open=1)

    def more() -> None:
        first.open += 1

    second.callbacks = [more, more]
    first.callbacks = [lambda: setattr(second, "open", 1)]
    assert drained(lambda: [first, second], clock)
    assert events == ["b sent 1", "a sent 1", "b sent 1", "a sent 1"]


def test_a_producer_that_a_callback_starts_is_drained_too() -> None:
    clock, events = ManualClock(), list[str]()
    producers = [Owing(clock, events, "a", open=1)]
    producers[0].callbacks = [lambda: producers.append(Owing(clock, events, "b", open=1))]
    assert drained(lambda: producers, clock)
    assert events == ["a sent 1", "b sent 1"]


def test_a_producer_that_sends_while_the_others_are_looked_at_is_not_missed() -> None:
    clock, events = ManualClock(), list[str]()

    class Looked(Owing):
        looks = 0

        @property
        def outstanding(self) -> int:
            self.looks += 1
            if self.looks == 1:
                first.open = 1  # a callback of it, which has ended when it is counted
            return super().outstanding

    first, second = Owing(clock, events, "a"), Looked(clock, events, "b")
    assert drained(lambda: [first, second], clock)
    assert events == ["a sent 1"]


def test_what_is_not_sent_in_time_ends_and_nothing_is_handed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, events = ManualClock(), list[str]()
    slow = Owing(clock, events, "slow", open=3, takes_ms=1e9, due_ms=30_000.0)
    other, began_ms = Owing(clock, events), clock.monotonic_ms()
    with caplog.at_level(logging.WARNING):
        settle(lambda: [other, slow], [reader(events)], clock)
    assert events == ["halted", "p gave up", "slow gave up"]
    assert "3 batches, messages or callbacks" in caplog.text
    assert 30_000 <= clock.monotonic_ms() - began_ms <= 32_000


def test_a_consumer_that_cannot_be_stopped_does_not_keep_the_others_from_it() -> None:
    clock, events = ManualClock(), list[str]()

    def fails() -> HandOver:
        raise RuntimeError("on purpose")

    producer = Owing(clock, events, open=1)
    settle(lambda: [producer], [fails, reader(events)], clock)
    assert events == ["halted", "p sent 1", "handed over"]
