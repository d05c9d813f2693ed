"""Parked pulls: every one is answered once, whatever the hold does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from rmq_ray.errors import TooManyRequests
from rmq_ray.server.pull.parked_pulls import OnWake, ParkedPulls
from tests.support.clients.inline_hold import InlineHold
from tests.support.faults.fake_peer import FakePeer

QUEUE = ("orders", 0)


class SilentHold(InlineHold):
    """A hold service that hangs; tests wake by hand."""

    def __init__(self, on_wake: OnWake) -> None:
        super().__init__(on_wake)
        self.calls: list[tuple[object, ...]] = []
        self.late: list[int] = []

    def park(
        self,
        token: int,
        topic: str,
        queue_id: int,
        from_offset: int,
        deadline_ms: float,
        codes: frozenset[int] | None,
    ) -> None:
        self.calls.append(("park", token, topic, queue_id, from_offset, deadline_ms, codes))

    def forget(self, token: int) -> None:
        self.calls.append(("forget", token))

    def overdue(self, late_ms: float) -> list[int]:
        tokens, self.late = self.late, []
        self.calls.append(("overdue", late_ms))
        return tokens

    def arrived(
        self, topic: str, queue_id: int, max_offset: int, codes: Sequence[int] | None
    ) -> None:
        self.calls.append(("arrived", topic, queue_id, max_offset, codes))


def no_offset(_topic: str, _queue_id: int) -> int:
    return 0


def inline(on_wake: OnWake, _max_offset: object) -> InlineHold:
    return InlineHold(on_wake)


def pulls(parked_max: int = 100) -> tuple[ParkedPulls[str], list[str]]:
    answered: list[str] = []
    return ParkedPulls(
        lambda request, peer: answered.append(request), inline, no_offset, parked_max
    ), answered


def silent_pulls() -> tuple[ParkedPulls[str], list[str], SilentHold]:
    answered: list[str] = []
    holds: list[SilentHold] = []

    def make(on_wake: OnWake, _max_offset: object) -> SilentHold:
        holds.append(SilentHold(on_wake))
        return holds[0]

    return (
        ParkedPulls(lambda request, peer: answered.append(request), make, no_offset, 100),
        answered,
        holds[0],
    )


@pytest.mark.seed("S4-135", "S4-138", "S4-147")
def test_an_arrival_wakes_the_pulls_of_its_queue_at_once() -> None:
    parked, answered = pulls()
    parked.park("a", FakePeer(), QUEUE, 5, 10_000, None)
    parked.park("b", FakePeer(), ("orders", 1), 5, 10_000, None)
    parked.arrived("orders", 0, 6, [0])
    assert answered == ["a"] and len(parked) == 1


@pytest.mark.seed("S4-141", "S4-144")
def test_a_message_with_another_tag_leaves_the_pull_parked() -> None:
    parked, answered = pulls()
    parked.park("a", FakePeer(), QUEUE, 5, 10_000, frozenset([7]))
    parked.arrived("orders", 0, 6, [8])
    assert answered == []
    parked.arrived("orders", 0, 7, [7])
    assert answered == ["a"]


@pytest.mark.seed("S4-131", "S4-143")
def test_the_deadline_ends_the_wait() -> None:
    parked, answered = pulls()
    parked.park("a", FakePeer(), QUEUE, 5, 10_000, None)
    hold = cast(InlineHold, parked.hold)
    hold.tick(9_999)
    assert answered == []
    hold.tick(10_000)
    assert answered == ["a"] and parked.late == 0


def test_a_hold_that_hangs_costs_one_second() -> None:
    parked, answered, hold = silent_pulls()
    parked.park("a", FakePeer(), QUEUE, 5, 10_000, frozenset([1]))
    parked.tick()
    assert answered == []
    hold.late = [1]
    parked.tick()
    assert answered == ["a"] and parked.late == 1
    asked = ("overdue", 1_000)
    assert hold.calls == [("park", 1, "orders", 0, 5, 10_000, frozenset([1])), asked, asked]
    parked.wake(1)
    assert answered == ["a"], "a late wake does nothing"


def test_arrivals_are_told_only_while_pulls_are_parked() -> None:
    parked, _, hold = silent_pulls()
    parked.arrived("orders", 0, 1, [0])
    parked.park("a", FakePeer(), QUEUE, 5, 10_000, None)
    parked.arrived("orders", 0, 2, [0])
    parked.wake(1)
    parked.arrived("orders", 0, 3, [0])
    assert [call for call in hold.calls if call[0] == "arrived"] == [
        ("arrived", "orders", 0, 2, [0])
    ]


def test_a_closed_connections_pulls_go() -> None:
    parked, answered, hold = silent_pulls()
    gone, stays = FakePeer(), FakePeer()
    parked.park("a", gone, QUEUE, 5, 10_000, None)
    parked.park("b", stays, QUEUE, 5, 10_000, None)
    parked.closed(gone)
    hold.late = [1, 2]
    parked.tick()
    assert answered == ["b"] and ("forget", 1) in hold.calls and len(parked) == 0


def test_there_is_a_limit() -> None:
    parked, _ = pulls(parked_max=2)
    peer = FakePeer()
    for name in "ab":
        parked.park(name, peer, QUEUE, 5, 10_000, None)
    with pytest.raises(TooManyRequests):
        parked.park("c", FakePeer(), QUEUE, 5, 10_000, None)
    parked.closed(peer)
    parked.park("c", FakePeer(), QUEUE, 5, 10_000, None)
    assert len(parked) == 1


def test_many_answered_pulls_leave_no_deadlines_behind() -> None:
    parked, answered = pulls(10_000)
    for n in range(5_000):
        parked.park(str(n), FakePeer(), QUEUE, n, 10_000, None)
        parked.arrived("orders", 0, n + 1, None)
    table = cast(InlineHold, parked.hold)._table
    assert len(answered) == 5_000 and len(parked) == 0 and len(table._deadlines) < 2_000


def test_a_stop_answers_all() -> None:
    parked, answered = pulls()
    for name in "abc":
        parked.park(name, FakePeer(), QUEUE, 5, 10_000, None)
    parked.wake_all()
    assert answered == ["a", "b", "c"]
