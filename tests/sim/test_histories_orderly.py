"""Five hundred random histories of a group that consumes in order break no promise, the order of
each queue included.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.simulation.history import History, Plan, violations_of

HISTORIES, CHUNK = 500, 25


@pytest.mark.parametrize("first", range(0, HISTORIES, CHUNK))
def test_random_histories_keep_the_order_of_every_queue_and_every_other_promise(first: int) -> None:
    assert violations_of(range(first, first + CHUNK), orderly=True) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_storm_of_fifty_joins_and_leaves_keeps_the_order_and_loses_nothing(seed: int) -> None:
    plan = replace(
        Plan.drawn(seed),
        orderly=True,
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
    assert len(history.ledger.sent) + len(history.ledger.accepted) == 120
