"""Which message may begin now where there are limits for each key."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_ray.client.consumer.key_limits import KEPT_MIN, KeyLimits, KeyTable
from rmq_ray.errors import ConfigError


class Bench:
    """A table of texts. ``running``: those that have begun; ``over``: those nobody waits for."""

    def __init__(self, **limits: Any) -> None:
        self.over: set[str] = set()
        self.table: KeyTable[str] = KeyTable(KeyLimits(**limits), self.over.__contains__)
        self.now_ms = 0.0
        self.running: list[str] = []
        self.again_ms: float | None = None

    def ask(self, *items: str) -> None:
        """Items, whose first letters are their keys."""
        for item in items:
            if self.table.begin(item[0], item, self.now_ms):
                self.running.append(item)
            else:
                self.ready(item[0])

    def ready(self, key: str) -> None:
        found, again_ms = self.table.ready(key, self.now_ms)
        self.running += found
        self.again_ms = self.again_ms if again_ms is None else again_ms

    def end(self, item: str) -> None:
        self.running.remove(item)
        self.table.end(item[0])
        self.ready(item[0])

    def advance(self, duration_ms: float, key: str) -> None:
        self.now_ms += duration_ms
        self.again_ms = None
        self.table.asking(key)
        self.ready(key)


def test_so_many_of_a_key_run_at_once_and_those_of_others_wait_for_none_of_them() -> None:
    bench = Bench(concurrency=2)
    bench.ask("a1", "a2", "a3", "a4", "b1", "c1", "b2")
    assert bench.running == ["a1", "a2", "b1", "c1", "b2"] and bench.table.waiting == 2
    bench.end("a2")
    assert bench.running[-1] == "a3" and bench.again_ms is None
    bench.end("a1")
    assert bench.running[-1] == "a4" and bench.table.waiting == 0


def test_messages_of_a_key_begin_in_the_order_in_which_they_asked() -> None:
    bench = Bench(concurrency=1)
    bench.ask("a1", "a2", "a3")
    bench.table.end("a")
    bench.ask("a4")  # before anybody was told that the key is free
    assert bench.running == ["a1", "a2"] and bench.table.waiting == 2


def test_a_key_gets_so_many_calls_a_second_evenly() -> None:
    bench = Bench(rate=4)
    bench.ask("a1", "a2", "a3", "b1")
    assert bench.running == ["a1", "b1"] and bench.again_ms == 250
    bench.end("a1")
    assert bench.running == ["b1"], "its end makes it no earlier"
    bench.advance(200, "a")
    assert bench.running == ["b1"] and bench.again_ms == 50
    bench.advance(50, "a")
    assert bench.running == ["b1", "a2"] and bench.again_ms == 250
    bench.advance(10_000, "a")
    assert bench.running == ["b1", "a2", "a3"] and bench.again_ms is None
    bench.ask("a4", "a5")
    assert bench.table.waiting == 2, "what was not used is not saved up"


def test_one_timer_is_asked_for_whoever_comes_meanwhile() -> None:
    bench = Bench(rate=4)
    bench.ask("a1", "a2")
    bench.again_ms = None
    bench.ask("a3", "a4")
    bench.end("a1")
    assert bench.again_ms is None


def test_both_limits_hold_at_once() -> None:
    bench = Bench(rate=4, concurrency=1)
    bench.ask("a1", "a2")
    assert bench.again_ms is None, "an end comes before"
    bench.end("a1")
    assert bench.running == [] and bench.again_ms == 250
    bench.advance(250, "a")
    assert bench.running == ["a2"]


def test_what_nobody_waits_for_any_more_takes_no_turn() -> None:
    bench = Bench(concurrency=1, rate=1)
    bench.ask("a1", "a2", "a3", "a4")
    bench.over |= {"a2", "a3"}
    bench.now_ms = 1_000
    bench.end("a1")
    assert bench.running == ["a4"] and bench.table.waiting == 0


def test_keys_are_forgotten_when_nothing_of_them_runs_or_waits() -> None:
    bench = Bench(concurrency=1)
    bench.ask("a1", "a2")
    bench.end("a1")
    assert len(bench.table) == 1
    bench.end("a2")
    assert len(bench.table) == 0


def test_keys_whose_next_call_is_not_due_are_forgotten_later() -> None:
    table: KeyTable[int] = KeyTable(KeyLimits(rate=1), lambda _item: False)
    for number in range(20 * KEPT_MIN):
        now_ms = float(number)  # a thousand keys a second
        assert table.begin(str(number), number, now_ms)
        table.end(str(number))
        assert table.ready(str(number), now_ms) == ([], None)
        assert len(table) <= 2 * KEPT_MIN + 1


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"concurrency": -1},
        {"concurrency": 1.5},
        {"concurrency": True},
        {"rate": float("nan")},
        {"rate": 1e-9},
        {"rate": "2"},
        {"concurrency": 1, "by": ""},
        {"concurrency": 1, "by": 7},
        {"concurency": 1},
        3,
        True,
    ],
)
def test_what_are_no_limits_is_refused_with_what_to_give(value: object) -> None:
    with pytest.raises(ConfigError, match="key_limits"):
        KeyLimits.of(value)


def test_what_may_be_given() -> None:
    assert KeyLimits.of({"rate": 2}) == KeyLimits.of(KeyLimits(rate=2.0)) == KeyLimits(rate=2)
    assert KeyLimits.of(None) is None
