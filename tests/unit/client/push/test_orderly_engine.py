"""The parts of an ordered consumer together: how it is wired, how it loses a queue, and in which
order it leaves.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rmq_ray.client.consumer.consumer_options import push_settings
from rmq_ray.client.consumer.queue_leases import OwnQueues, QueueLeases
from rmq_ray.client.consumer.subscriptions import SubscriptionTable
from rmq_ray.client.push.consume_concurrently import ConcurrentConsumption
from rmq_ray.client.push.consume_orderly import OrderlyConsumption
from rmq_ray.client.push.push_engine import PushEngine
from rmq_ray.model.groups import ConsumeFromWhere, ConsumerData, ConsumeType, MessageModel
from rmq_ray.model.ids import Address
from rmq_ray.protocol.queue_locks import QueueLocks
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from tests.support.clients.scripted_client import ScriptedClient
from tests.support.waiting import eventually

LOCK, UNLOCK, UPDATE, LEAVE = (
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.UNREGISTER_CLIENT,
)


class LockingClient(ScriptedClient):
    """Answers like a broker with a lock table; leaving the group is a request like any other."""

    def __init__(self) -> None:
        super().__init__()
        self.locks = QueueLocks()
        self.answer(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            lambda command, _address: command.answer(
                body=bodies.encode_consumer_ids([self.client_id])
            ),
        )
        self.answer(
            RequestCode.QUERY_CONSUMER_OFFSET,
            lambda command, _address: command.answer(fields={"offset": "10"}),
        )
        self.answer(LOCK, self._lock)
        self.answer(UNLOCK, self._unlock)

    def unregister_consumer(self, group: str) -> None:
        self.sent.append((Address("10.0.0.1", 10911), Command(LEAVE)))

    def release(self) -> None: ...

    def _asked(self, command: Command) -> tuple[str, str, list[Any], dict[Any, int]]:
        body: Any = command.body
        group, client_id, queues = bodies.decode_lock(body)
        return (
            group,
            client_id,
            queues,
            dict(zip(queues, bodies.decode_lock_epochs(body) or (), strict=True)),
        )

    def _lock(self, command: Command, address: Address) -> Command:
        group, client_id, queues, epochs = self._asked(command)
        granted = self.locks.lock(group, client_id, queues, self.clock.monotonic_ms(), epochs)
        return command.answer(
            body=bodies.encode_locked(
                [grant.queue for grant in granted], [grant.epoch for grant in granted]
            )
        )

    def _unlock(self, command: Command, address: Address) -> Command:
        self.locks.unlock(*self._asked(command))
        return command.answer()


def engine_of(**options: Any) -> tuple[PushEngine, Any]:
    client: Any = LockingClient()
    client.add_topic("orders", 2)
    subscriptions = SubscriptionTable()
    subscriptions.put("orders", "*", client.clock.now_ms())
    data = ConsumerData(
        "g",
        ConsumeType.CONSUME_PASSIVELY,
        MessageModel.CLUSTERING,
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        (),
    )
    return PushEngine(
        client,
        push_settings("g", None, options),
        subscriptions,
        lambda _messages, _ctx: None,
        lambda: data,
    ), client


@pytest.mark.seed("S3-117", "S4-054", "S1-046")
def test_the_way_of_consuming_decides_the_service_and_whether_there_are_locks() -> None:
    assert (
        isinstance(engine_of(orderly=True)[0].consumption, OrderlyConsumption)
        and type(engine_of(orderly=True)[0].leases) is QueueLeases
    )
    plain, client = engine_of()
    assert isinstance(plain.consumption, ConcurrentConsumption) and plain.leases is None
    assert plain.rebalancer.rebalance() and client.requests(LOCK) == []


def test_every_commit_names_the_lock_and_one_without_a_queue_names_none_in_force() -> None:
    engine, client = engine_of(orderly=True)
    engine.rebalancer.rebalance()
    for queue, work in engine.parts.assigned.snapshot().items():
        assert work.lease is not None and engine._lock_epoch(queue) == work.lease.epoch > 0
        engine.parts.assigned.remove(work)
        assert engine._lock_epoch(queue) == -1


def test_a_lost_queue_is_dropped_uncommitted_and_taken_anew_by_the_next_balance() -> None:
    engine, client = engine_of(orderly=True)
    engine.rebalancer.rebalance()
    queue, work = next(iter(engine.parts.assigned.snapshot().items()))
    engine.parts.offsets.update(queue, 55)
    client.locks.unlock("g", client.client_id, [queue])
    (theirs,) = client.locks.lock("g", "other", [queue], client.clock.monotonic_ms())
    assert engine.leases is not None
    engine.leases.refresh()
    assert (
        work.process.dropped
        and engine.parts.assigned.get(queue) is None
        and engine.rebalancer._wanted
    )
    assert client.requests(UPDATE) == [] and queue not in engine.parts.offsets.clone()
    client.locks.unlock("g", "other", [queue])
    assert engine.rebalancer.rebalance()
    anew = engine.parts.assigned.get(queue)
    assert (
        anew is not None
        and anew.lease is not None
        and anew.lease.epoch > theirs.epoch
        and anew.process.next_offset == 10
    )


def test_it_leaves_by_telling_offsets_then_unlocking_then_leaving_the_group() -> None:
    engine, client = engine_of(orderly=True, concurrency=1)
    engine.begin()
    eventually(lambda: len(engine.parts.assigned.snapshot()) == 2)
    names = {thread.name for thread in threading.enumerate()}
    assert {"rmq-locks-g", "rmq-consume-g-0", "rmq-rebalance-g", "rmq-later-g"} <= names
    for queue in engine.parts.assigned.snapshot():
        engine.parts.offsets.update(queue, 20)
    assert engine.end(5_000)
    interesting = [
        command.code for _, command in client.sent if command.code in (UPDATE, UNLOCK, LEAVE)
    ]
    assert interesting == [UPDATE, UPDATE, UNLOCK, LEAVE]
    assert len(client.locks) == 0 and "rmq-locks-g" not in {
        thread.name for thread in threading.enumerate()
    }


def test_a_broadcasting_consumer_asks_nobody_for_its_queues() -> None:
    engine, client = engine_of(orderly=True, model="broadcasting")
    assert isinstance(engine.leases, OwnQueues)
    queues = client.add_topic("orders", 2)
    leases = engine.leases.lock(queues)
    assert sorted(leases) == queues and all(
        lease.may_work(client.clock.monotonic_ms()) for lease in leases.values()
    )
    engine.leases.unlock({queue: 0 for queue in queues})
    assert client.sent == []
