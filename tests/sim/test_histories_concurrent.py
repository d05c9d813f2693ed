"""Five hundred random histories of a concurrent group break no promise; the same seed is the same
history.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.simulation.history import History, Plan, violations_of

HISTORIES, CHUNK = 500, 25


@pytest.mark.parametrize("first", range(0, HISTORIES, CHUNK))
def test_random_histories_of_joins_leaves_crashes_and_faults_break_no_promise(first: int) -> None:
    assert violations_of(range(first, first + CHUNK), orderly=False) == []


def test_a_seed_is_a_history() -> None:
    for seed in (3, 11):
        runs = [History(seed) for _ in range(2)]
        assert runs[0].run() == runs[1].run() == []
        assert runs[0].told() == runs[1].told()
    assert History(3).plan != History(11).plan


@pytest.mark.parametrize("seed", range(3))
def test_a_storm_of_fifty_joins_and_leaves_loses_nothing(seed: int) -> None:
    plan = replace(
        Plan.drawn(seed),
        orderly=False,
        popping=False,
        faults=("join", "leave"),
        actions=50,
        consumers=3,
        queues=4,
        messages=120,
        minutes=0.7,
    )
    history = History(f"storm {seed}", plan)
    assert history.run() == []
    assert history.ledger.events["join"] + history.ledger.events["leave"] == 50
    assert len(history.ledger.sent) + len(history.ledger.accepted) == 120, (
        "nothing was lost on the way in, so all of them were looked for"
    )
