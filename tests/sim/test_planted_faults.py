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
from rmq_ray.client.consumer.known_group import KnownGroup
from rmq_ray.client.consumer.offset_store import RemoteOffsetStore
from rmq_ray.client.consumer.rebalancer import Rebalancer
from rmq_ray.client.instance import route_cache
from rmq_ray.client.push.consume_orderly import OrderlyConsumption
from rmq_ray.client.push.send_back import RetrySender
from rmq_ray.protocol.allocation.strategies import Averagely
from rmq_ray.protocol.process_queue import ProcessQueue
from rmq_ray.protocol.queue_locks import QueueLocks
from rmq_ray.server.groups import beginning
from rmq_ray.server.groups.membership import GroupMembership
from rmq_ray.server.pop import pop_handlers
from rmq_ray.server.send import send_back
from rmq_ray.server.send.own_writes import OwnWrites
from rmq_ray.server.tables.broker_tables import BrokerTables
from rmq_ray.server.tables.offset_table import OffsetTable
from rmq_ray.store.front import message_store
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.queue.queue_table import QueueTable
from rmq_ray.store.tables.topic_lives import TopicLives
from tests.support.faults.crash_fs import CrashFileSystem, keep_none
from tests.support.simulation.history import History, Plan
from tests.support.simulation.threads import quiet

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


def begin_new_queues_at_their_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(beginning, "_is_younger", lambda *_: False)


def ask_no_other_broker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KnownGroup, "elsewhere_ms", lambda *_: None)


def save_first_positions_later(patch: pytest.MonkeyPatch) -> None:
    init = OffsetTable.__init__
    patch.setattr(OffsetTable, "__init__", lambda table, clock, *_: init(table, clock))


def take_no_queue_for_young(patch: pytest.MonkeyPatch) -> None:
    first_offset = beginning.first_offset

    def late(store: MessageStore, *asked: Any) -> int | None:
        with pytest.MonkeyPatch.context() as inner:
            if asked[-1] is not None:
                inner.setattr(MessageStore, "is_young", lambda *_: False)
            return first_offset(store, *asked)

    patch.setattr(pop_handlers, "first_offset", late)


def begin_always_at_the_first_message(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MessageStore, "is_young", lambda *_: True)


def begin_made_again_queues_at_zero(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopicLives, "begin", lambda *_: 0)
    patch.setattr(TopicLives, "begins", lambda _: {})


def keep_the_old_queues(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueTable, "begin_anew", lambda *_: False)


def forget_deletions_at_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopicLives, "save", lambda *_: None)


def send_back_what_was_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(message_store, "alive", lambda _, record: record)


def write_to_deleted_topics(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OwnWrites, "is_gone", lambda *_: False)


def write_to_queues_that_are_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OwnWrites, "queue", lambda _own, _topic, queue_id, _log_offset: queue_id)


def read_only_what_is_written(patch: pytest.MonkeyPatch) -> None:
    subscribe_queues = route_cache.subscribe_queues
    patch.setattr(
        route_cache,
        "subscribe_queues",
        lambda topic, route: subscribe_queues(
            topic,
            replace(
                route,
                queues=tuple(replace(data, read_queues=data.write_queues) for data in route.queues),
            ),
        ),
    )


CONCURRENT: dict[str, Any] = {"orderly": False}
ORDERLY: dict[str, Any] = {"orderly": True}
ZOMBIES = ORDERLY | {"faults": ("join", "long pause", "partition"), "messages": 120, "actions": 8}
DEATHS = CONCURRENT | {"faults": ("broker",), "messages": 60, "minutes": 0.5, "actions": 4}
CHANGES = CONCURRENT | {"faults": ("join", "leave")}
TOPICS = CONCURRENT | {"messages": 60, "minutes": 0.5, "actions": 12, "consumers": 2}
GROWING = TOPICS | {"faults": ("away", "grow", "leave", "join"), "start_from": "last", "queues": 1}
SHRINKING = TOPICS | {"faults": ("shrink", "join"), "queues": 4, "later": 0.4}
DELETED = TOPICS | {"faults": ("delete", "join"), "actions": 6, "later": 0.4}

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
    "a new queue begins at its end for a group that was away": Fault(
        begin_new_queues_at_their_end, "which nobody is done with", GROWING
    ),
    "a group is new at each broker": Fault(
        ask_no_other_broker,
        "which nobody is done with",
        GROWING | {"brokers": 2, "faults": ("away", "grow", "delete")},
    ),
    "the first position of a group is saved with the others": Fault(
        save_first_positions_later,
        "which nobody is done with",
        GROWING | {"faults": ("away", "broker", "crash")},
    ),
    "a pop takes no queue for young of which another broker knows the group": Fault(
        take_no_queue_for_young,
        "which nobody is done with",
        GROWING | {"brokers": 2, "faults": ("delete",), "queues": 4, "popping": True},
    ),
    "a new group begins everywhere at the first message": Fault(
        begin_always_at_the_first_message,
        "instead of the end",
        GROWING | {"faults": ("away", "delete"), "consumers": 1, "later": 0.0, "popping": False},
    ),
    "the queues of a topic that is made again begin at 0": Fault(
        begin_made_again_queues_at_zero,
        "the next free one is",
        DELETED | {"faults": ("delete", "broker")},
    ),
    "a topic that is made again has the old queues": Fault(
        keep_the_old_queues, "of the topic that was deleted", DELETED
    ),
    "a restarted broker has forgotten what was deleted": Fault(
        forget_deletions_at_restart,
        "of the topic that was deleted",
        DELETED | {"faults": ("delete", "broker")},
    ),
    "a message of a deleted topic is sent back": Fault(
        send_back_what_was_deleted, "is stored in %RETRY%", DELETED | {"failing": 0.5}
    ),
    "the broker's own writes go to a topic that was deleted": Fault(
        write_to_deleted_topics, "is stored in orders", DELETED
    ),
    "the broker's own writes go to queues that are gone": Fault(
        write_to_queues_that_are_gone, "is stored in queue", SHRINKING
    ),
    "the queues that a topic is to lose are not read": Fault(
        read_only_what_is_written, "was never processed", SHRINKING
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    fault.plant(monkeypatch)
    with quiet():
        told = any(is_told(fault, seed) for seed in range(HISTORIES_MAX))
    assert told, f"{HISTORIES_MAX} histories did not see that {name}"


def is_told(fault: Fault, seed: int) -> bool:
    plan = replace(Plan.drawn(seed), strategy=Averagely(), **fault.changes)
    try:
        violations = History(seed, plan).run()
    except AssertionError:
        return False  # the defect stopped the broker itself: seen, but not by a checker
    return any(fault.told in what for what in violations)
