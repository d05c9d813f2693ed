"""Rebalance, computation only: what a whole group spends on dividing a topic anew. ``python
benchmarks/bench_rebalance.py``.

Every consumer computes the division by itself (sort, allocate, compare with what it holds), so the
group's cost is that of one consumer times their number. One process plays all of them, one after
the other; the ring of consumers, which each would make for itself, is forgotten in between. One
consumer joins a group that was balanced before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rmq_ray.model.groups import MessageModel
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import BrokerData, QueueData, TopicRoute
from rmq_ray.protocol.allocation import consistent_hash
from rmq_ray.protocol.allocation.strategies import (
    AllocationStrategy,
    Averagely,
    AveragelyByCircle,
    ConsistentHash,
    MachineRoomNearby,
    OnlyHosts,
    RoomTable,
)
from rmq_ray.protocol.process_queue import ProcessQueue
from rmq_ray.protocol.rebalance import Membership, allot, is_balanced, plan
from rmq_ray.protocol.routing.route_queues import subscribe_queues

if TYPE_CHECKING:
    from benchmarks.scene import Scene

QUEUES, CONSUMERS, BROKERS, ROOMS = 10_000, 100, 20, 4
ROUNDS = 3
LIMIT_S = 1.0


def strategies() -> list[AllocationStrategy]:
    """Each one with settings that use all of it."""
    rooms = RoomTable(
        {f"10.0.0.{n}": f"room-{n % ROOMS}" for n in range(CONSUMERS)},
        {f"broker-{n:02}": f"room-{n % ROOMS}" for n in range(BROKERS)},
    )
    hosts = {f"10.0.0.{n}" for n in range(0, CONSUMERS, 2)}
    return [
        Averagely(),
        AveragelyByCircle(),
        ConsistentHash(),
        MachineRoomNearby(Averagely(), rooms),
        OnlyHosts(Averagely(), hosts),
    ]


def group_seconds(
    strategy: AllocationStrategy, clock: Callable[[], float] = time.process_time
) -> float:
    """CPU seconds that a group of 100 spends when its last member joins a topic of 10,000
    queues.
    """
    brokers = [f"broker-{n:02}" for n in range(BROKERS)]
    route = TopicRoute(
        tuple(QueueData(name, QUEUES // BROKERS, QUEUES // BROKERS, 6) for name in brokers),
        tuple(BrokerData("c", name, {}) for name in brokers),
    )
    queues = subscribe_queues("orders", route)
    ids = [f"10.0.0.{n}@{1_000 + n}#{n}" for n in range(CONSUMERS)]
    total = 0.0
    owned = 0
    for client_id in ids:
        member = Membership("billing", client_id, MessageModel.CLUSTERING, strategy)
        before = _share(member, queues, ids[:-1])
        held = {queue: ProcessQueue(0, 0) for queue in before}
        consistent_hash._ring.cache_clear()
        started = clock()
        allotment = allot(member, queues, ids)
        steps = plan(allotment.queues, held, 1, 120_000)
        balanced = is_balanced(allotment, [*steps.keep, *steps.add])
        total += clock() - started
        assert balanced
        owned += len(allotment.queues)
    assert owned == QUEUES, "every queue has one owner"
    return total


def _share(
    member: Membership, queues: Sequence[MessageQueue], ids: Sequence[str]
) -> frozenset[MessageQueue]:
    return allot(member, queues, ids).queues if member.client_id in ids else frozenset()


def run(scene: Scene) -> None:
    """As a part of ``python -m benchmarks``."""
    from benchmarks.report import Figure

    for strategy in strategies():
        seconds = min(group_seconds(strategy) for _ in range(ROUNDS))
        scene.report.add(
            Figure(
                f"rebalance, {QUEUES:,} queues, {CONSUMERS} consumers, {strategy.name}",
                seconds,
                "s of CPU",
                "limit",
                LIMIT_S,
                1.0,
                True,
            )
        )


def main() -> None:
    """Every strategy, best of three rounds."""
    for strategy in strategies():
        seconds = min(group_seconds(strategy) for _ in range(ROUNDS))
        print(
            f"{QUEUES:,} queues, {CONSUMERS} consumers, {strategy.name:<28}{seconds:7.3f} s "
            f"of the group, {seconds / CONSUMERS * 1e3:6.2f} ms a consumer"
        )


if __name__ == "__main__":
    main()
