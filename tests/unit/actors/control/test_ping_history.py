"""When a member is killed or created again: three silences, a grace period, never while Ray
restarts it.
"""

from __future__ import annotations

import pytest

from rmq_ray.actors.control.supervisor import GRACE_MS, MISSES_MAX, PingHistory
from rmq_ray.actors.control.supervisor import SupervisorAction as Action
from rmq_ray.actors.gateway import Ping

A, U, S, M = Ping.ANSWERED, Ping.UNAVAILABLE, Ping.SILENT, Ping.MISSING


def watched(pings: list[Ping], every_ms: float = 1_000) -> tuple[list[Action], PingHistory]:
    watch = PingHistory()
    return [watch.observe(ping, i * every_ms) for i, ping in enumerate(pings)], watch


def test_a_member_that_answers_is_left_alone() -> None:
    actions, watch = watched([A] * 100)
    assert set(actions) == {Action.NONE} and (watch.kills, watch.creations) == (0, 0)


def test_three_silences_in_a_row_are_a_kill_and_two_are_not() -> None:
    assert watched([S] * MISSES_MAX)[0] == [
        Action.NONE,
        Action.NONE,
        Action.KILL,
    ]
    assert watched([S, S, A, S, S, A])[1].kills == 0


def test_a_process_that_ray_restarts_is_not_killed() -> None:
    assert watched([S, S, U, S, S, U, A])[1].kills == 0


def test_after_a_kill_it_has_a_grace_period_and_then_is_killed_again() -> None:
    in_grace = int(GRACE_MS / 1_000)
    actions, watch = watched([S] * (MISSES_MAX + in_grace + MISSES_MAX))
    assert watch.kills == 2
    assert actions.index(Action.KILL) == 2 and actions[3:17] == [Action.NONE] * 14


def test_answering_within_the_grace_period_starts_the_count_anew() -> None:
    watch = PingHistory()
    for second in range(3):
        watch.observe(S, second * 1_000)
    assert watch.observe(A, 4_000) is Action.NONE
    later = 3_000 + GRACE_MS
    assert [watch.observe(S, later + i * 1_000) for i in range(3)] == [
        Action.NONE,
        Action.NONE,
        Action.KILL,
    ]


def test_a_member_that_may_be_making_its_store_is_not_killed_before_its_first_answer() -> None:
    watch = PingHistory(makes_store_until_ms=30_000)
    assert {watch.observe(S, second * 1_000) for second in range(30)} == {Action.NONE}
    assert watch.observe(M, 29_500) is Action.CREATE
    watch = PingHistory(makes_store_until_ms=30_000)
    watch.observe(A, 1_000)
    assert [watch.observe(S, second * 1_000) for second in (2, 3, 4)][-1] is Action.KILL
    watch = PingHistory(makes_store_until_ms=30_000)
    assert [watch.observe(S, second * 1_000) for second in (30, 31, 32)][-1] is Action.KILL


def test_a_member_that_is_gone_is_created_once_a_grace_period() -> None:
    actions, watch = watched([M] * 20)
    assert actions.count(Action.CREATE) == watch.creations == 2
    assert actions[0] is Action.CREATE and actions[int(GRACE_MS / 1_000)] is Action.CREATE


@pytest.mark.parametrize("ping", list(Ping))
def test_every_outcome_has_an_answer(ping: Ping) -> None:
    assert isinstance(PingHistory().observe(ping, 0), Action)
