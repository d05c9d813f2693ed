"""A consumer crashes and nobody tells the others: they see it with their next round at the
latest.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.allocation.strategies import Averagely
from rmq_ray.server.groups.group_handlers import GroupHandlers
from tests.support.simulation.history import REBALANCE_MS, History, Plan
from tests.support.simulation.wire import SimPool

SETTLED_MS = 4 * REBALANCE_MS
SLACK_MS = 1_500  # of a simulated network: a late frame, a lock that is asked for


class Crash(History):
    """Two consumers; one dies when the queues have been divided. ``before``, ``after``: who held
    which queue then, and one round later.
    """

    def __init__(self, seed: int) -> None:
        plan = replace(
            Plan.drawn(seed),
            orderly=False,
            popping=False,
            strategy=Averagely(),
            brokers=1,
            queues=4,
            consumers=2,
            failing=0.0,
            minutes=1.0,
            messages=0,
            actions=0,
            faults=(),
        )
        super().__init__(seed, plan)
        self.before: dict[MessageQueue, list[str]] = {}
        self.after: dict[MessageQueue, list[str]] = {}
        self.survivor = ""

    def _produce(self) -> None:
        pool = SimPool(self.network, None, lambda *_: None)
        for number in range(40):
            self._send(pool, number)
        self.scheduler.sleep(SETTLED_MS)
        self.before = self.owners()
        self.scheduler.after(0, self._crash)
        self.scheduler.sleep(REBALANCE_MS + SLACK_MS)
        self.survivor = self.members[0].process.name
        self.after = self.owners()


@pytest.mark.seed("S3-131")
@pytest.mark.parametrize("seed", range(4))
def test_a_crash_that_nobody_is_told_of_is_seen_by_the_next_round(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GroupHandlers, "_tell", lambda *_: None)
    history = Crash(seed)
    assert history.run() == []
    held = [names for names in history.before.values()]
    assert len(held) == 4 and {len(names) for names in held} == {1}
    assert len({names[0] for names in held}) == 2, "both had some"
    assert set(map(tuple, history.after.values())) == {(history.survivor,)}
