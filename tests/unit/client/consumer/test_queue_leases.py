"""Locks of queues as a consumer asks for them: before it takes a queue, every 20 s, and when it
gives one away.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from rmq_ray.client.consumer.assigned_queue import LOST_TRUSTED_MS, QueueLease
from rmq_ray.config import BrokerConfig, ConsumerConfig, StoreConfig
from rmq_ray.model.groups import LockHolder
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.queue_locks import LEFT_GRACE_MS
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.bodies import encode_consumer_ids
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from tests.support.clients.orderly_rig import OrderlyRig
from tests.support.clients.scripted_client import ADDRESS, SLAVE

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
IDS, QUERY, UPDATE = (
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
)


def asked(command: Command) -> tuple[list[int], list[int] | None]:
    """(queue ids, epochs) of a request."""
    body: Any = command.body
    return [queue.queue_id for queue in bodies.decode_lock(body)[2]], bodies.decode_lock_epochs(
        body
    )


def joined(*others: str) -> OrderlyRig:
    """A consumer that may rebalance: the group's members are it and ``others``, offsets are 10."""
    rig = OrderlyRig()
    rig.client.add_topic("orders", 4)
    rig.client.answer(
        IDS,
        lambda command, _address: command.answer(
            body=encode_consumer_ids([rig.client.client_id, *others])
        ),
    )
    rig.client.answer(QUERY, lambda command, _address: command.answer(fields={"offset": "10"}))
    return rig


def codes(rig: OrderlyRig) -> list[int]:
    return [command.code for _, command in rig.client.sent]


def held(rig: OrderlyRig) -> list[int]:
    return sorted(queue.queue_id for queue in rig.parts.assigned.snapshot())


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_ray.client.consumer.queue_leases.LEAVE_WAIT_MS", 1)


# --- the lease ------------------------------------------------------------------------------------


def test_a_lock_is_trusted_for_thirty_seconds_from_the_moment_it_was_asked_for() -> None:
    lease = QueueLease(1, 1_000.0, 30_000.0, threading.Lock())
    assert lease.is_held(31_000.0) and not lease.is_held(31_001.0)
    lease.refreshed(20_000.0)
    lease.refreshed(15_000.0)
    assert lease.is_held(50_000.0) and not lease.is_held(50_001.0)
    lease.leaving = True
    assert lease.is_held(50_000.0) and not lease.may_work(50_000.0)


def test_clients_trust_a_lock_for_less_long_than_brokers_keep_it() -> None:
    config = ConsumerConfig("g")
    assert (config.lock_refresh_ms, config.lock_trusted_ms, config.lock_retry_ms) == (
        20_000,
        30_000,
        3_000,
    )
    assert BrokerConfig(StoreConfig("x")).queue_lock_ms == 60_000


# --- taking ---------------------------------------------------------------------------------------


@pytest.mark.seed("S1-035", "S1-046")
def test_a_queue_is_locked_before_its_offset_is_asked_for_and_before_it_is_pulled() -> None:
    rig = joined()
    assert rig.balance.rebalance()
    assert held(rig) == [0, 1, 2, 3]
    interesting = [code for code in codes(rig) if code in (LOCK, QUERY, RequestCode.PULL_RECORDS)]
    assert interesting == [LOCK, *[QUERY] * 4, *[RequestCode.PULL_RECORDS] * 4], (
        "one request for all queues of a broker"
    )
    assert asked(rig.client.requests(LOCK)[0]) == ([0, 1, 2, 3], [0, 0, 0, 0])


@pytest.mark.seed("S1-036")
def test_a_new_queue_begins_with_fresh_offset_process_queue_and_lock() -> None:
    rig = joined()
    queue = MessageQueue("orders", "broker-a", 0)
    rig.parts.offsets.update(queue, 99)
    rig.balance.rebalance()
    work = rig.parts.assigned.get(queue)
    assert work is not None and work.lease is not None
    assert work.process.next_offset == rig.offset(queue) == 10
    assert rig.locks.admits("g", queue, work.lease.epoch) and work.lease.is_held(
        rig.clock.monotonic_ms()
    )


@pytest.mark.seed("S1-035", "S1-040")
def test_queues_whose_lock_is_refused_are_left_and_tried_again_in_half_a_second() -> None:
    rig = joined()
    theirs = MessageQueue("orders", "broker-a", 2)
    (grant,) = rig.locks.lock("g", "other", [theirs], rig.clock.monotonic_ms())
    assert not rig.balance.rebalance()
    assert held(rig) == [0, 1, 3] and rig.balance._refused
    assert len(rig.client.requests(QUERY)) == 3, "nothing is asked about a queue that is not ours"
    rig.locks.unlock("g", "other", [theirs])
    assert rig.balance.rebalance() and held(rig) == [0, 1, 2, 3] and not rig.balance._refused
    work = rig.parts.assigned.get(theirs)
    assert work is not None and work.lease is not None and work.lease.epoch > grant.epoch


@pytest.mark.seed("S1-040")
def test_the_balance_comes_again_after_half_a_second_while_locks_are_refused() -> None:
    rig = joined()
    rig.locks.lock("g", "other", [MessageQueue("orders", "broker-a", 2)], rig.clock.monotonic_ms())
    dues: list[float] = []

    def wait_until(due_ms: float) -> bool:
        dues.append(due_ms - rig.clock.monotonic_ms())
        rig.clock.advance_ms(max(0.0, dues[-1]))
        if len(dues) == 3:
            rig.client.answer(
                IDS, lambda command, _address: command.answer(ResponseCode.SYSTEM_ERROR)
            )
        return len(dues) < 5

    rig.balance._wait_until = wait_until  # type: ignore[method-assign]
    rig.balance._run()
    assert dues == [0, 500, 500, 1_000, 1_000]


def test_a_broker_that_cannot_be_asked_gives_no_queue() -> None:
    rig = joined()
    rig.client.answer(LOCK, lambda command, _address: command.answer(ResponseCode.SYSTEM_ERROR))
    assert not rig.balance.rebalance() and held(rig) == []
    rig.client.answer(LOCK, lambda command, _address: command.answer(body=b"[]"))
    assert not rig.balance.rebalance() and held(rig) == []


def test_a_queue_that_was_locked_but_has_no_known_offset_is_given_back() -> None:
    rig = joined()
    rig.client.answer(QUERY, lambda command, _address: command.answer(ResponseCode.SYSTEM_ERROR))
    assert not rig.balance.rebalance()
    assert (
        held(rig) == []
        and len(rig.locks) == 0
        and asked(rig.client.requests(UNLOCK)[0])[0] == [0, 1, 2, 3]
    )


# --- keeping --------------------------------------------------------------------------------------


def test_all_queues_of_a_broker_are_refreshed_in_one_request_that_names_their_epochs() -> None:
    rig = joined()
    rig.balance.rebalance()
    epochs = [
        work.lease.epoch
        for _, work in sorted(rig.parts.assigned.snapshot().items())
        if work.lease is not None
    ]
    rig.clock.advance_ms(25_000)
    rig.leases.refresh()
    assert (
        asked(rig.client.requests(LOCK)[-1]) == ([0, 1, 2, 3], epochs)
        and len(rig.client.requests(LOCK)) == 2
    )
    rig.clock.advance_ms(25_000)
    assert all(
        work.lease is not None and work.lease.is_held(rig.clock.monotonic_ms())
        for work in rig.parts.assigned.snapshot().values()
    )


def test_the_refreshing_thread_asks_after_one_second_and_then_every_twenty() -> None:
    rig = joined()
    rig.balance.rebalance()
    timers = rig.leases._timers
    rig.leases.start()
    rig.leases.stop()
    timers._closed = False
    rig.leases._timers.every("refresh", 20_000, rig.leases.refresh, first_ms=1_000)
    times = []
    for _ in range(50):
        before = len(rig.client.requests(LOCK))
        rig.clock.advance_ms(1_000)
        timers.run_due()
        if len(rig.client.requests(LOCK)) > before:
            times.append(rig.clock.monotonic_ms())
    assert [b - a for a, b in zip(times, times[1:], strict=False)] == [20_000, 20_000]


def test_however_long_an_answer_takes_a_lock_is_as_old_as_the_question() -> None:
    rig = joined()

    def slowly(command: Command, address: Any) -> Command:
        answer = rig._lock(command, address)
        rig.clock.advance_ms(800)
        return answer

    rig.client.answer(LOCK, slowly)
    asked_ms = rig.clock.monotonic_ms()
    rig.balance.rebalance()
    for _ in range(2):
        leases = [
            work.lease for work in rig.parts.assigned.snapshot().values() if work.lease is not None
        ]
        assert len(leases) == 4 and all(
            lease.is_held(asked_ms + 30_000) and not lease.is_held(asked_ms + 30_001)
            for lease in leases
        )
        asked_ms = rig.clock.monotonic_ms()
        rig.leases.refresh()


def test_a_refresh_that_gets_no_answer_changes_nothing_but_the_age() -> None:
    rig = joined()
    rig.balance.rebalance()
    rig.client.down.add(ADDRESS)
    rig.clock.advance_ms(30_001)
    rig.leases.refresh()
    assert rig.gone == [] and held(rig) == [0, 1, 2, 3]
    assert not any(
        work.lease is not None and work.lease.is_held(rig.clock.monotonic_ms())
        for work in rig.parts.assigned.snapshot().values()
    )


def test_a_queue_that_somebody_else_has_had_is_lost_and_the_others_stay() -> None:
    rig = joined()
    rig.balance.rebalance()
    queue = MessageQueue("orders", "broker-a", 1)
    rig.clock.advance_ms(60_001)
    rig.locks.lock("g", "other", [queue], rig.clock.monotonic_ms())
    rig.locks.unlock("g", "other", [queue])
    rig.leases.refresh()
    assert [work.queue for work in rig.gone] == [queue], "also when it is free again by now"
    assert (
        sum(
            work.lease is not None and work.lease.is_held(rig.clock.monotonic_ms())
            for work in rig.parts.assigned.snapshot().values()
        )
        == 3
    )


# --- a lost connection ----------------------------------------------------------------------------


def test_a_lock_whose_connection_is_lost_is_trusted_for_less_long_than_the_brokers_grace() -> None:
    assert LOST_TRUSTED_MS < LEFT_GRACE_MS
    lease = QueueLease(7, 1_000.0, 30_000.0, threading.Lock())
    lease.connection_lost(2_000.0)
    assert lease.is_held(5_000.0) and not lease.is_held(5_001.0)
    assert lease.status(4_000.0) == {"lock_epoch": 7, "lock_trusted_ms": 1_000}
    lease.refreshed(1_500.0)
    assert not lease.is_held(5_001.0), "it was granted again before that"
    lease.refreshed(4_000.0)
    assert lease.is_held(34_000.0) and lease.status(4_000.0)["lock_trusted_ms"] == 30_000


def test_a_lost_connection_makes_locks_of_its_broker_doubtful_until_they_are_refreshed() -> None:
    rig = joined()
    rig.balance.rebalance()
    rig.client.watch_losses(rig.leases._connection_lost)
    rig.clock.advance_ms(10_000)
    before = len(rig.client.requests(LOCK))
    rig.client._lost(SLAVE)
    rig.leases._timers.run_due()
    assert len(rig.client.requests(LOCK)) == before, "it holds no locks there"
    rig.client.down.add(ADDRESS)
    rig.client._lost(ADDRESS)
    rig.leases._timers.run_due()
    rig.clock.advance_ms(3_001)
    works = list(rig.parts.assigned.snapshot().values())
    leases = [work.lease for work in works if work.lease is not None]
    assert len(leases) == 4
    assert not any(lease.is_held(rig.clock.monotonic_ms()) for lease in leases)
    rig.client.down.clear()
    rig.leases.refresh_soon()
    rig.leases._timers.run_due()
    assert len(rig.client.requests(LOCK)) == before + 1
    assert all(lease.is_held(rig.clock.monotonic_ms()) for lease in leases)


# --- waiting --------------------------------------------------------------------------------------


def test_a_wait_for_a_lock_is_told_once_with_its_holder_and_ends_with_the_lock(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "rmq_ray.client.locks")
    rig = joined()
    theirs, other = MessageQueue("orders", "broker-a", 2), "10.0.0.8@77"
    rig.locks.lock("g", other, [theirs], rig.clock.monotonic_ms(), {})
    rig.clock.advance_ms(4_000)
    for _ in range(3):
        rig.balance.rebalance()
        rig.clock.advance_ms(500)
    assert f"waits for the lock of consumer {other}: 56 s" in caplog.text
    assert caplog.text.count("waits for") == 1
    assert rig.leases.waiting() == {theirs: LockHolder(other, 55_000)}
    rig.locks.left(other, rig.clock.monotonic_ms())
    rig.balance.rebalance()
    assert rig.leases.waiting() == {theirs: LockHolder(other, 5_000, left=True)}
    rig.clock.advance_ms(5_001)
    rig.balance.rebalance()
    assert held(rig) == [0, 1, 2, 3] and rig.leases.waiting() == {}
    assert caplog.text.count("waits for") == 1 and f"came from {other}" in caplog.text


def test_a_queue_that_is_another_consumers_share_by_now_is_not_waited_for() -> None:
    rig = joined()
    theirs = MessageQueue("orders", "broker-a", 2)
    rig.locks.lock("g", "zzz", [theirs], rig.clock.monotonic_ms(), {})
    rig.balance.rebalance()
    assert list(rig.leases.waiting()) == [theirs]
    shared(rig)
    rig.balance.rebalance()
    assert rig.leases.waiting() == {}


# --- leaving --------------------------------------------------------------------------------------


def shared(rig: OrderlyRig) -> None:
    """Another consumer joined: queues 2 and 3 are its."""
    rig.client.answer(
        IDS,
        lambda command, _address: command.answer(
            body=encode_consumer_ids([rig.client.client_id, "zzz"])
        ),
    )


@pytest.mark.seed("S4-162")
def test_a_queue_that_is_given_away_is_unlocked_after_its_offset_was_told() -> None:
    rig = joined()
    rig.balance.rebalance()
    for queue in list(rig.parts.assigned.snapshot()):
        rig.parts.offsets.update(queue, 20 + queue.queue_id)
    rig.client.sent.clear()
    shared(rig)
    assert rig.balance.rebalance() and held(rig) == [0, 1]
    assert [code for code in codes(rig) if code in (UPDATE, UNLOCK)] == [
        UPDATE,
        UNLOCK,
        UPDATE,
        UNLOCK,
    ]
    assert [(command.fields or {})["commitOffset"] for command in rig.client.requests(UPDATE)] == [
        "22",
        "23",
    ]
    assert all((command.fields or {})["rmqLockEpoch"] for command in rig.client.requests(UPDATE))
    assert {lock.queue.queue_id for lock in rig.locks.held()} == {0, 1}


def test_a_queue_whose_listener_runs_stays_locked_until_it_has_ended() -> None:
    rig = joined()
    rig.balance.rebalance()
    queue = MessageQueue("orders", "broker-a", 3)
    work = rig.parts.assigned.get(queue)
    assert work is not None and work.lease is not None
    shared(rig)
    work.lease.gate.acquire()
    before = len(rig.client.requests(UPDATE))
    assert not rig.balance.rebalance(), "and the next one comes soon"
    assert held(rig) == [0, 1, 3] and work.lease.leaving and not work.process.dropped
    assert rig.locks.holder("g", queue, rig.clock.monotonic_ms()) == rig.client.client_id
    work.lease.gate.release()
    assert rig.balance.rebalance() and held(rig) == [0, 1] and work.process.dropped
    assert rig.locks.holder("g", queue, rig.clock.monotonic_ms()) is None
    assert len(rig.client.requests(UPDATE)) > before


def test_a_queue_that_was_to_leave_and_is_ours_again_goes_on() -> None:
    rig = joined()
    rig.balance.rebalance()
    work = rig.parts.assigned.get(MessageQueue("orders", "broker-a", 3))
    assert work is not None and work.lease is not None
    shared(rig)
    work.lease.gate.acquire()
    rig.balance.rebalance()
    rig.client.answer(
        IDS,
        lambda command, _address: command.answer(body=encode_consumer_ids([rig.client.client_id])),
    )
    assert rig.balance.rebalance() and not work.lease.leaving
    work.lease.gate.release()
    assert rig.parts.assigned.get(work.queue) is work


def test_the_gate_of_a_queue_is_one_for_all_its_stays() -> None:
    rig = joined()
    rig.balance.rebalance()
    old = rig.parts.assigned.get(MessageQueue("orders", "broker-a", 0))
    assert old is not None and old.lease is not None
    rig.parts.assigned.remove(old)
    rig.balance.rebalance()
    new = rig.parts.assigned.get(old.queue)
    assert new is not None and new is not old and new.lease is not None
    assert new.lease.gate is old.lease.gate and new.lease.epoch > old.lease.epoch, (
        "no two listeners at once, no commit of the old one"
    )


def test_at_the_end_every_lock_is_given_back_but_those_whose_listener_runs() -> None:
    rig = joined()
    rig.balance.rebalance()
    busy = rig.parts.assigned.get(MessageQueue("orders", "broker-a", 1))
    assert busy is not None and busy.lease is not None
    busy.lease.gate.acquire()
    rig.leases.unlock_all()
    assert [lock.queue for lock in rig.locks.held()] == [busy.queue]
    rig.client.down.add(ADDRESS)
    rig.leases.unlock_all()
    assert len(rig.locks) == 1
