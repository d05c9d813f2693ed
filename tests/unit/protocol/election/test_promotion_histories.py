"""Random histories of a controller and its replicas: kills, hangs, lost power, partitions, lost and
late calls. No promise breaks, in any of them.

A few of them here; thousands with ``python -m tests.support.faults.election_model 4000``.
"""

from __future__ import annotations

import pytest

from tests.support.faults.election_model import Flaws, World, WorldBroken

HISTORIES = 12


@pytest.mark.parametrize(
    ("synchronous", "durable"),
    [(True, True), (True, False), (False, False)],
    ids=["sync, on disk", "sync", "async"],
)
@pytest.mark.parametrize("count", [2, 3])
def test_no_history_breaks_a_promise(count: int, synchronous: bool, durable: bool) -> None:
    epochs = acknowledged = 0
    for seed in range(HISTORIES):
        world = World(seed, synchronous=synchronous, durable=durable, count=count).run()
        epochs += len(world.begins)
        acknowledged += len(world.acknowledged)
    assert epochs > 2 * HISTORIES  # masters did change
    assert acknowledged > 20 * HISTORIES


@pytest.mark.parametrize(
    ("flaw", "synchronous", "durable", "count", "first"),
    [
        ("no_promise_wait", False, False, 2, 18),
        ("outside_the_set", True, True, 3, 60),
        ("tell_before_fsync", True, False, 3, 20),
        ("lease_of_approved_only", False, False, 2, 18),
        ("shrink_before_fsync", True, False, 2, 10),
        ("trust_every_disk", True, False, 2, 25),
        ("begin_again", True, False, 2, 0),
        ("reuse_epoch", True, False, 3, 0),
    ],
)
def test_a_rule_that_is_not_kept_is_found(
    flaw: str, synchronous: bool, durable: bool, count: int, first: int
) -> None:
    with pytest.raises(WorldBroken):
        for seed in range(first, first + 60):
            World(
                seed,
                synchronous=synchronous,
                durable=durable,
                count=count,
                flaws=Flaws(**{flaw: True}),
            ).run()
