"""The simulation sees defects: each of these, put into the product, breaks a promise within a few
histories, and the right one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from rmq_ray.client.consumer import puller
from rmq_ray.client.consumer.assigned_queue import QueueLease
from rmq_ray.client.consumer.offset_store import RemoteOffsetStore
from rmq_ray.client.consumer.rebalancer import Rebalancer
from rmq_ray.client.push.consume_orderly import OrderlyConsumption
from rmq_ray.client.push.send_back import RetrySender
from rmq_ray.protocol.allocation.strategies import Averagely
from rmq_ray.protocol.process_queue import ProcessQueue
from rmq_ray.protocol.queue_locks import QueueLocks
from rmq_ray.server.groups.membership import GroupMembership
from rmq_ray.server.send import send_back
from rmq_ray.server.tables.broker_tables import BrokerTables
from rmq_ray.server.tables.offset_table import OffsetTable
from tests.support.faults.crash_fs import CrashFileSystem, keep_none
from tests.support.simulation.history import History

HISTORIES_MAX = 60
Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Fault:
    """``told``: what the checkers must say. ``changes``: of the plans drawn, so that it does not
    take many of them.
    """

    plant: Plant
    told: str
    changes: dict[str, Any]


def commit_past_unfinished(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProcessQueue, "commit_offset", property(lambda queue: queue._end))


def lose_the_end_of_a_page(patch: pytest.MonkeyPatch) -> None:
    cut = puller.cut
    patch.setattr(
        puller,
        "cut",
        lambda *arguments: (
            cut(*arguments)[:-1] if arguments[0].process.next_offset % 3 == 0 else cut(*arguments)
        ),
    )


def skip_the_retry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RetrySender, "send_back", lambda *_: True)


def skip_what_failed_in_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OrderlyConsumption, "_kept", lambda *_: False)


def lock_for_whoever_asks(patch: pytest.MonkeyPatch) -> None:
    lock = QueueLocks.lock

    def steal(locks: QueueLocks, group: str, client_id: str, queues: Any, *more: Any) -> Any:
        for queue in queues:
            held = locks._locks.get((group, queue))
            if held is not None and held.client_id != client_id:
                held.refreshed_ms = float("-inf")
        return lock(locks, group, client_id, queues, *more)

    patch.setattr(QueueLocks, "lock", steal)


def take_the_commits_of_zombies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupMembership, "is_fenced", lambda *_: False)


def trust_a_lock_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueLease, "is_held", lambda *_: True)


def let_go_without_telling(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RemoteOffsetStore, "persist", lambda *_: True)


def let_anybody_go_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OffsetTable, "is_behind", lambda *_: False)
    commit = OffsetTable.commit
    patch.setattr(
        OffsetTable,
        "commit",
        lambda table, *said, **more: commit(
            table, *said[:6], True, **{k: v for k, v in more.items() if k != "administrator"}
        ),
    )


def forget_offsets_at_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BrokerTables, "save_offsets", lambda _: None)


def forget_what_was_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CrashFileSystem, "after_kill", lambda disk: disk.survivor(keep_none))


def leave_a_queue_to_nobody(patch: pytest.MonkeyPatch) -> None:
    allocate = Averagely.allocate
    patch.setattr(
        Averagely,
        "allocate",
        lambda rule, group, client, queues, ids: [
            q for q in allocate(rule, group, client, queues, ids) if q != queues[-1]
        ],
    )


def give_a_queue_to_two(patch: pytest.MonkeyPatch) -> None:
    allocate = Averagely.allocate
    patch.setattr(
        Averagely,
        "allocate",
        lambda rule, group, client, queues, ids: list(
            {*allocate(rule, group, client, queues, ids), queues[0]}
        ),
    )


def give_up_too_early(patch: pytest.MonkeyPatch) -> None:
    decide = send_back.decide
    patch.setattr(
        send_back,
        "decide",
        lambda group, times, level, limit: decide(group, times, level, limit - 1),
    )


def begin_at_the_end(patch: pytest.MonkeyPatch) -> None:
    first_offset = Rebalancer.first_offset
    patch.setattr(
        Rebalancer,
        "first_offset",
        lambda rebalancer, queue: (found := first_offset(rebalancer, queue)) and found + 1,
    )


CONCURRENT: dict[str, Any] = {"orderly": False}
ORDERLY: dict[str, Any] = {"orderly": True}
ZOMBIES = ORDERLY | {"faults": ("join", "long pause", "partition"), "messages": 120, "actions": 8}
DEATHS = CONCURRENT | {"faults": ("broker",), "messages": 60, "minutes": 0.5, "actions": 4}
CHANGES = CONCURRENT | {"faults": ("join", "leave")}

FAULTS = {
    "commits pass unfinished work": Fault(
        commit_past_unfinished, "which nobody is done with", CONCURRENT
    ),
    "the last message of a page is lost in the client": Fault(
        lose_the_end_of_a_page, "which nobody is done with", CONCURRENT
    ),
    "a failed message is not sent back": Fault(
        skip_the_retry, "which nobody is done with", CONCURRENT
    ),
    "ordered: a failed message is skipped": Fault(skip_what_failed_in_order, "is settled", ORDERLY),
    "a lock is granted to whoever asks": Fault(lock_for_whoever_asks, "locked for", ORDERLY),
    "ordered: commits of zombies are taken": Fault(
        take_the_commits_of_zombies, "although the lock is", ZOMBIES
    ),
    "ordered: a lock is never checked by its holder": Fault(
        trust_a_lock_for_ever, "is handed out by", ZOMBIES
    ),
    "a queue is let go without telling its offset": Fault(
        let_go_without_telling, "let go at", CHANGES
    ),
    "anybody may put an offset back": Fault(let_anybody_go_back, "put the offset back", CONCURRENT),
    "offsets are forgotten when a broker dies": Fault(
        forget_offsets_at_restart, "after the restart the offset is", DEATHS
    ),
    "what was acknowledged is gone when a broker dies": Fault(
        forget_what_was_written, "the next free one is", DEATHS
    ),
    "a queue has no owner": Fault(leave_a_queue_to_nobody, "has 0 owners", CHANGES),
    "a queue has two owners": Fault(
        give_a_queue_to_two, "owners at rest", CHANGES | {"consumers": 3, "actions": 2}
    ),
    "dead letters come too early": Fault(
        give_up_too_early, "is a dead letter after", CONCURRENT | {"failing": 0.6, "messages": 40}
    ),
    "a new owner begins behind the offset": Fault(
        begin_at_the_end, "which nobody is done with", CONCURRENT
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    fault.plant(monkeypatch)
    assert any(is_told(fault, seed) for seed in range(HISTORIES_MAX)), (
        f"{HISTORIES_MAX} histories did not see that {name}"
    )


def is_told(fault: Fault, seed: int) -> bool:
    plan = replace(History(seed).plan, strategy=Averagely(), **fault.changes)
    try:
        violations = History(seed, plan).run()
    except AssertionError:
        return False  # the defect stopped the broker itself: seen, but not by a checker
    return any(fault.told in what for what in violations)
