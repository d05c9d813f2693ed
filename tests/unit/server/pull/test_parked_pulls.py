"""Parked pulls: every one is answered once, whatever the hold service does."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.config import BrokerConfig, StoreConfig
from rmq_ray.errors import TooManyRequests
from rmq_ray.server.pull.parked_pulls import ParkedPulls
from tests.support.brokers.broker_bench import ManualOffload
from tests.support.faults.fake_peer import FakePeer

QUEUE = ("orders", 0)


class Link:
    """The connection to a hold service that only listens."""

    def __init__(self, alive: bool = True) -> None:
        self.alive = alive
        self.told: list[tuple[object, ...]] = []

    def park(self, token: int, max_offset: int) -> None:
        self.told.append(("park", token, max_offset))

    def forget(self, tokens: list[int]) -> None:
        self.told.append(("forget", *tokens))

    def arrived(self, queue: tuple[str, int], max_offset: int, codes: Set[int] | None) -> None:
        self.told.append(("arrived", *queue, max_offset, codes))


class Holding:
    """``ParkedPulls`` with a clock that is set by hand; ``answered``: requests in their order."""

    def __init__(self, link: Link | None = None, **settings: Any) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.answered: list[str] = []
        self.maxima: dict[tuple[str, int], int] = {}
        self.pulls: ParkedPulls[str] = ParkedPulls(
            lambda request, _peer: self.answered.append(request),
            lambda topic, queue_id: self.maxima.get((topic, queue_id), 0),
            self.clock,
            ManualOffload(),
            BrokerConfig(StoreConfig("unused")).but(**settings),
        )
        self.pulls._link = link  # type: ignore[assignment]

    def park(
        self,
        request: str,
        peer: FakePeer | None = None,
        queue: tuple[str, int] = QUEUE,
        codes: frozenset[int] | None = None,
    ) -> None:
        deadline_ms = self.clock.now_ms() + 10_000
        self.pulls.park(request, peer or FakePeer(), queue, 5, deadline_ms, codes)

    def tick(self, passed_ms: int) -> list[str]:
        """What is answered by then."""
        self.clock.advance_ms(passed_ms)
        self.pulls.tick()
        return self.answered


@pytest.mark.seed("S4-135", "S4-138", "S4-147")
def test_an_arrival_wakes_the_pulls_of_its_queue_at_once() -> None:
    held = Holding()
    held.park("a")
    held.park("b", queue=("orders", 1))
    held.pulls.arrived("orders", 0, 6, [0])
    assert held.answered == ["a"] and len(held.pulls) == 1


@pytest.mark.seed("S4-141", "S4-144")
def test_a_message_with_another_tag_leaves_the_pull_parked() -> None:
    held = Holding()
    held.park("a", codes=frozenset([7]))
    held.pulls.arrived("orders", 0, 6, [8])
    assert held.answered == []
    held.pulls.arrived("orders", 0, 7, [7])
    assert held.answered == ["a"]


@pytest.mark.seed("S4-131", "S4-143")
def test_the_deadline_ends_the_wait() -> None:
    held = Holding()
    held.park("a")
    assert held.tick(9_999) == []
    assert held.tick(1) == ["a"] and held.pulls.late == 0


def test_a_hold_service_that_hangs_costs_a_deadline_one_second() -> None:
    link = Link()
    held = Holding(link)
    held.park("a")
    assert held.tick(10_999) == []
    assert held.tick(1) == ["a"] and held.pulls.late == 1
    held.pulls._woken([1])
    assert held.answered == ["a"], "a late wake does nothing"
    assert link.told == [("park", 1, 0), ("forget", 1)]


def test_without_its_hold_service_the_broker_fires_deadlines_on_time() -> None:
    held = Holding(Link(alive=False))
    held.park("a")
    assert held.tick(9_999) == []
    assert held.tick(1) == ["a"] and held.pulls.late == 1


@pytest.mark.seed("S4-139", "S4-140")
def test_the_scan_finds_what_no_arrival_was_told_of() -> None:
    held = Holding(hold_check_ms=5_000)
    held.park("a", codes=frozenset([7]))
    held.maxima[QUEUE] = 6
    assert held.tick(4_999) == []
    assert held.tick(1) == ["a"]


def test_the_service_scans_while_it_answers() -> None:
    held = Holding(Link(), hold_check_ms=5_000)
    held.park("a")
    held.maxima[QUEUE] = 6
    assert held.tick(5_000) == []


def test_few_pulls_are_woken_from_here_and_many_by_the_service() -> None:
    link = Link()
    held = Holding(link)
    for n in range(65):
        held.park(str(n))
    held.park("alone", queue=("orders", 1))
    link.told.clear()
    held.pulls.arrived("orders", 1, 6, [7])
    held.pulls.arrived("orders", 0, 6, [7])
    assert held.answered == ["alone"]
    assert link.told == [("forget", 66), ("arrived", "orders", 0, 6, {7})]


def test_a_dead_service_lets_an_arrival_wake_all_whatever_their_tags() -> None:
    held = Holding(Link(alive=False))
    held.park("a", codes=frozenset([7]))
    held.pulls.arrived("orders", 0, 6, [8])
    assert held.answered == ["a"]


def test_a_pull_that_is_behind_is_answered_and_told_to_nobody() -> None:
    link = Link()
    held = Holding(link)
    held.maxima[QUEUE] = 6
    held.park("a")
    assert held.answered == ["a"] and ("park", 1, 6) not in link.told


def test_arrivals_are_told_only_while_pulls_are_parked() -> None:
    link = Link()
    held = Holding(link)
    held.pulls._wake_here_max = 0
    held.pulls.arrived("orders", 0, 1, [0])
    held.park("a")
    held.pulls.arrived("orders", 0, 2, [0])
    held.pulls._woken([1])
    held.pulls.arrived("orders", 0, 3, [0])
    assert link.told == [("park", 1, 0), ("arrived", "orders", 0, 2, {0})]


def test_a_closed_connections_pulls_go() -> None:
    link = Link()
    held = Holding(link)
    gone = FakePeer()
    held.park("a", gone)
    held.park("b")
    held.pulls.closed(gone)
    assert ("forget", 1) in link.told
    assert held.tick(11_000) == ["b"] and len(held.pulls) == 0


def test_there_is_a_limit() -> None:
    held = Holding(parked_pulls_max=2)
    peer = FakePeer()
    for name in "ab":
        held.park(name, peer)
    with pytest.raises(TooManyRequests):
        held.park("c")
    held.pulls.closed(peer)
    held.park("c")
    assert len(held.pulls) == 1


def test_a_pull_that_cannot_run_again_keeps_no_other_from_its_answer() -> None:
    held = Holding()

    def rerun(request: str, _peer: object) -> None:
        if request == "bad":
            raise ValueError(request)
        held.answered.append(request)

    held.pulls._rerun = rerun
    for name in ("bad", "good"):
        held.park(name)
    held.pulls.arrived("orders", 0, 6, None)
    assert held.answered == ["good"] and len(held.pulls) == 0


def test_many_answered_pulls_leave_no_deadlines_behind() -> None:
    held = Holding()
    for n in range(5_000):
        held.park(str(n))
        held.pulls.arrived("orders", 0, 6, None)
    assert len(held.answered) == 5_000 and len(held.pulls) == 0
    assert len(held.pulls._table._deadlines) < 2_000


def test_a_stop_answers_all() -> None:
    held = Holding()
    for name in "abc":
        held.park(name)
    held.pulls.wake_all()
    assert held.answered == ["a", "b", "c"]


def test_behind_a_stop_nothing_waits() -> None:
    held = Holding()
    held.pulls.wake_all()
    with pytest.raises(TooManyRequests, match="stops"):
        held.park("late")
    assert len(held.pulls) == 0
