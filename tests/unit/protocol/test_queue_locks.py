"""Locks of queues for ordered consumption."""

from __future__ import annotations

from rmq_ray.model.groups import LockHolder
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol import queue_locks
from rmq_ray.protocol.queue_locks import Grant, HeldLock, QueueLocks

A, B = (MessageQueue("orders", "broker-a", n) for n in range(2))


def queues(granted: list[Grant]) -> list[MessageQueue]:
    return [grant.queue for grant in granted]


def epoch(granted: list[Grant]) -> int:
    (grant,) = granted
    return grant.epoch


def test_the_first_client_gets_the_queue_and_others_do_not() -> None:
    locks = QueueLocks()
    assert queues(locks.lock("g", "one", [A], 0)) == [A]
    assert queues(locks.lock("g", "two", [A, B], 10)) == [B]
    assert queues(locks.lock("h", "two", [A], 10)) == [A], "locks belong to a group"


def test_a_silent_holder_is_replaced_after_sixty_seconds() -> None:
    locks = QueueLocks()
    locks.lock("g", "one", [A], 0)
    assert locks.lock("g", "two", [A], 60_000) == []
    assert queues(locks.lock("g", "two", [A], 60_001)) == [A]
    assert locks.holder("g", A, 60_001) == "two"


def test_a_refresh_keeps_the_lock_and_its_epoch() -> None:
    locks = QueueLocks()
    first = epoch(locks.lock("g", "one", [A], 0))
    assert locks.lock("g", "one", [A], 50_000, {A: first}) == [Grant(A, first, False)]
    assert locks.lock("g", "two", [A], 100_000) == []


def test_only_the_holder_unlocks() -> None:
    locks = QueueLocks()
    locks.lock("g", "one", [A, B], 0)
    assert locks.unlock("g", "two", [A]) == []
    assert locks.holder("g", A, 1) == "one"
    assert locks.unlock("g", "one", [A]) == [A]
    assert locks.holder("g", A, 1) is None and locks.holder("g", B, 1) == "one"


def test_each_change_of_hands_has_an_epoch_of_its_own_and_ends_the_one_before() -> None:
    locks = QueueLocks()
    first = epoch(locks.lock("g", "one", [A], 0))
    assert (
        locks.admits("g", A, first)
        and not locks.admits("g", B, first)
        and not locks.admits("h", A, first)
    )
    second = epoch(locks.lock("g", "two", [A], 60_001, {}))
    assert second > first and locks.admits("g", A, second) and not locks.admits("g", A, first)
    locks.unlock("g", "two", [A])
    assert not locks.admits("g", A, second)
    assert epoch(locks.lock("g", "one", [A], 60_002, {})) > second


def test_a_late_refresh_takes_no_queue_back() -> None:
    locks = QueueLocks()
    first = epoch(locks.lock("g", "one", [A], 0))
    locks.unlock("g", "one", [A])
    assert locks.lock("g", "one", [A], 1, {A: first}) == [] and not len(locks)
    second = epoch(locks.lock("g", "two", [A], 2))
    assert locks.lock("g", "one", [A], 100_000, {A: first}) == [], (
        "not even when the next holder is silent, too"
    )
    assert locks.unlock("g", "two", [A], {A: first}) == [] and locks.unlock(
        "g", "two", [A], {A: second}
    ) == [A]


def test_a_client_id_that_does_not_know_its_epoch_is_another_life_of_that_client() -> None:
    locks = QueueLocks()
    first = epoch(locks.lock("g", "one", [A], 0, {A: 0}))
    second = epoch(locks.lock("g", "one", [A], 1, {A: 0}))
    assert second > first and not locks.admits("g", A, first)
    assert locks.lock("g", "one", [A], 2) == [Grant(A, second, False)], (
        "RocketMQ's own clients know no epochs"
    )


def test_a_lock_that_ran_out_unnoticed_still_admits_its_holder_and_is_refreshed() -> None:
    locks = QueueLocks()
    first = epoch(locks.lock("g", "one", [A], 0))
    assert locks.holder("g", A, 100_000) is None and locks.admits("g", A, first)
    assert locks.lock("g", "one", [A], 100_000, {A: first}) == [Grant(A, first, False)]
    assert locks.holder("g", A, 100_001) == "one"


def test_locks_of_clients_that_are_gone_for_good_are_forgotten() -> None:
    locks = QueueLocks()
    locks.lock("g", "one", [A], 0)
    locks.lock("g", "one", [B], 30_000)
    assert [lock.queue for lock in locks.expire(600_001)] == [A]
    assert len(locks) == 1 and locks.held()[0].queue == B


def test_after_a_restart_the_holders_keep_their_queues_and_epochs_go_on() -> None:
    locks = QueueLocks()
    locks.load([HeldLock("g", A, "one", 7)], 5, now_ms=1_000)
    locks.left("one", 1_000)  # it may be one that knows no epochs: such a lock ends by itself only
    assert locks.lock("g", "two", [A], 61_000) == []
    assert locks.lock("g", "one", [A], 2_000, {A: 7}) == [Grant(A, 7, False)]
    assert epoch(locks.lock("g", "two", [B], 2_000)) == 8
    lost = QueueLocks()
    lost.load([], 5_000, now_ms=0)
    assert epoch(lost.lock("g", "two", [B], 0)) == 5_001


def test_the_table_has_a_limit_and_takes_no_names_without_end() -> None:
    locks = QueueLocks()
    long = "x" * (queue_locks.NAME_LENGTH_MAX + 1)
    assert (
        locks.lock(long, "one", [A], 0)
        == locks.lock("g", long, [A], 0)
        == locks.lock("g", "", [A], 0)
        == locks.lock("", "one", [A], 0)
        == []
    )
    assert locks.lock("g", "one", [MessageQueue(long, "b", 0), MessageQueue("t", long, 0)], 0) == []
    many = [MessageQueue("t", "b", number) for number in range(queue_locks.LOCKS_MAX)]
    assert len(locks.lock("g", "one", many, 0)) == queue_locks.LOCKS_MAX
    assert locks.lock("g", "one", [A], 0) == [] and len(locks.lock("g", "one", many[:3], 1)) == 3


# --- a client that leaves -------------------------------------------------------------------------


def test_the_locks_of_a_client_whose_last_connection_was_closed_end_after_a_grace() -> None:
    locks = QueueLocks()
    first = epoch(locks.lock("g", "one", [A], 0, {}))
    locks.left("one", 10_000)
    assert locks.lock("g", "two", [A], 15_000, {}) == [] and locks.holder("g", A, 15_000) == "one"
    (grant,) = locks.lock("g", "two", [A], 15_001, {})
    assert grant.epoch > first and not locks.admits("g", A, first)
    assert locks.lock("g", "one", [A], 15_002, {A: first}) == [], "it is refused when it returns"


def test_a_client_that_comes_back_within_the_grace_keeps_its_locks() -> None:
    locks = QueueLocks()
    first = epoch(locks.lock("g", "one", [A, B], 0, {})[:1])
    locks.left("one", 10_000)
    locks.returned("one")
    assert locks.lock("g", "two", [A], 16_000, {}) == []
    locks.left("one", 20_000)
    assert locks.lock("g", "one", [A], 24_999, {A: first}) == [Grant(A, first, False)]
    assert locks.lock("g", "two", [A, B], 60_000, {}) == [], "a refresh is a sign of life"


def test_what_nobody_took_meanwhile_is_still_the_returned_clients() -> None:
    locks = QueueLocks()
    first = epoch(locks.lock("g", "one", [A], 0, {}))
    locks.left("one", 0)
    assert locks.holder("g", A, 5_001) is None and locks.admits("g", A, first)
    assert locks.lock("g", "one", [A], 9_000, {A: first}) == [Grant(A, first, False)]


def test_clients_that_know_no_epochs_keep_their_sixty_seconds() -> None:
    """RocketMQ's own: they trust a lock for 30 s whatever becomes of their connection."""
    locks = QueueLocks()
    locks.lock("g", "java", [A], 0)
    locks.left("java", 0)
    assert locks.lock("g", "two", [A], 60_000, {}) == []
    assert queues(locks.lock("g", "two", [A], 60_001, {})) == [A]


def test_leaving_never_makes_a_lock_longer_and_is_forgotten_with_it() -> None:
    locks = QueueLocks(life_ms=2_000)
    locks.lock("g", "one", [A], 0, {})
    locks.left("one", 1_999)
    assert queues(locks.lock("g", "two", [A], 2_001, {})) == [A]
    locks.expire(4_000)
    assert locks._left_ms == {}


def test_who_holds_what_until_when_is_told() -> None:
    locks = QueueLocks()
    locks.lock("g", "one", [A], 0, {})
    locks.lock("h", "two", [B], 0, {})
    assert locks.holding("g", A, 3_000) == LockHolder("one", 57_000)
    locks.left("one", 3_000)
    assert locks.of_group("g", 4_000) == {A: LockHolder("one", 4_000, left=True)}
    assert locks.holding("g", A, 8_001) is None and locks.of_group("g", 8_001) == {}
    assert locks.holding("g", B, 0) is None
