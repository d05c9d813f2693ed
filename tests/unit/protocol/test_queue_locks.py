"""Locks of queues for ordered consumption."""

from __future__ import annotations

from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.queue_locks import QueueLocks

A, B = (MessageQueue("orders", "broker-a", n) for n in range(2))


def test_the_first_client_gets_the_queue_and_others_do_not() -> None:
    locks = QueueLocks()
    assert locks.lock("g", "one", [A], 0) == [A]
    assert locks.lock("g", "two", [A, B], 10) == [B]
    assert locks.lock("h", "two", [A], 10) == [A], "locks belong to a group"


def test_a_silent_holder_is_replaced_after_sixty_seconds() -> None:
    locks = QueueLocks()
    locks.lock("g", "one", [A], 0)
    assert locks.lock("g", "two", [A], 60_000) == []
    assert locks.lock("g", "two", [A], 60_001) == [A]
    assert locks.holder("g", A, 60_001) == "two"


def test_a_refresh_keeps_the_lock() -> None:
    locks = QueueLocks()
    locks.lock("g", "one", [A], 0)
    assert locks.lock("g", "one", [A], 50_000) == [A]
    assert locks.lock("g", "two", [A], 100_000) == []


def test_only_the_holder_unlocks() -> None:
    locks = QueueLocks()
    locks.lock("g", "one", [A, B], 0)
    locks.unlock("g", "two", [A])
    assert locks.holder("g", A, 1) == "one"
    locks.unlock("g", "one", [A])
    assert locks.holder("g", A, 1) is None and locks.holder("g", B, 1) == "one"


def test_expired_locks_are_forgotten() -> None:
    locks = QueueLocks()
    locks.lock("g", "one", [A], 0)
    locks.lock("g", "one", [B], 30_000)
    locks.expire(70_000)
    assert len(locks) == 1 and locks.holder("g", B, 70_000) == "one"
