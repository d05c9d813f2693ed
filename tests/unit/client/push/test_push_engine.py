"""The parts of a started consumer: what each gets, in which order they begin, and that an illegal
offset is corrected later.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import inf
from typing import Any

import pytest

from rmq_ray.client.consumer.assigned_queue import AssignedQueue
from rmq_ray.client.consumer.consumer_options import push_settings
from rmq_ray.client.consumer.offset_store import RemoteOffsetStore
from rmq_ray.client.consumer.rebalancer import Rebalancer
from rmq_ray.client.consumer.subscriptions import SubscriptionTable
from rmq_ray.client.instance.timers import DelayedCalls
from rmq_ray.client.push.consume_concurrently import ConcurrentConsumption
from rmq_ray.client.push.push_engine import PushEngine
from rmq_ray.model.groups import ConsumeFromWhere, ConsumerData, ConsumeType, MessageModel
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.process_queue import Batch
from rmq_ray.protocol.rebalance import Membership
from rmq_ray.remoting.wire.bodies import encode_consumer_ids
from rmq_ray.remoting.wire.codes import RequestCode
from tests.support.clients.scripted_client import ScriptedClient

IDS, QUERY, UPDATE = (
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
)


class FirstQueue:
    """Takes one queue and remembers what it was asked."""

    name = "FIRST_QUEUE"

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, list[MessageQueue], list[str]]] = []

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        self.calls.append((group, client_id, list(queues), list(client_ids)))
        return list(queues[:1])


class EngineClient(ScriptedClient):
    """Lets go of its consumer."""

    def unregister_consumer(self, group: str) -> None: ...

    def release(self) -> None: ...


def engine_of(**options: Any) -> tuple[PushEngine, Any, list[MessageQueue]]:
    client: Any = EngineClient()
    queues = client.add_topic("orders", 4)
    client.answer(
        IDS,
        lambda command, _address: command.answer(
            body=encode_consumer_ids([client.client_id, "zzz"])
        ),
    )
    client.answer(QUERY, lambda command, _address: command.answer(fields={"offset": "10"}))
    subscriptions = SubscriptionTable()
    subscriptions.put("orders", "*", client.clock.now_ms())
    data = ConsumerData(
        "g",
        ConsumeType.CONSUME_PASSIVELY,
        MessageModel.CLUSTERING,
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        (),
    )
    return (
        PushEngine(
            client,
            push_settings("g", None, options),
            subscriptions,
            lambda _messages, _ctx: None,
            lambda: data,
        ),
        client,
        queues,
    )


@pytest.mark.seed("S3-113", "S4-053", "S3-115", "S4-213")
def test_the_balance_gets_group_client_model_and_strategy_and_offsets_lie_at_the_brokers() -> None:
    strategy = FirstQueue()
    engine, client, queues = engine_of(allocate=strategy)
    assert engine.rebalancer._member == Membership(
        "g", client.client_id, MessageModel.CLUSTERING, strategy
    )
    assert engine.rebalancer.rebalance()
    assert strategy.calls == [("g", client.client_id, queues, [client.client_id, "zzz"])]
    assert list(engine.parts.assigned.snapshot()) == queues[:1]
    assert client.requests(QUERY)[0].fields == {
        "consumerGroup": "g",
        "topic": "orders",
        "queueId": "0",
        "rmqWithEpoch": "true",
    }


@pytest.mark.seed("S3-116")
def test_offsets_are_loaded_and_brokers_told_before_any_part_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, client, _ = engine_of()
    events: list[str] = []
    monkeypatch.setattr(RemoteOffsetStore, "load", lambda _self: events.append("load"))
    monkeypatch.setattr(EngineClient, "heartbeat", lambda _self: events.append("heartbeat"))
    for part in (DelayedCalls, ConcurrentConsumption, Rebalancer):
        monkeypatch.setattr(part, "start", lambda _self, name=part.__name__: events.append(name))
    engine.begin()
    assert events == ["load", "heartbeat", "DelayedCalls", "ConcurrentConsumption", "Rebalancer"]
    assert client.routes.topics() == ["orders"]


@pytest.mark.seed("S4-168", "S4-022")
def test_a_running_consumer_has_a_pool_a_timer_and_a_thread_that_balances_and_cleans() -> None:
    engine, _, _ = engine_of(concurrency=3)
    assert engine.rebalancer._clean == engine.consumption.clean_overdue
    mine = {
        "rmq-consume-g-0",
        "rmq-consume-g-1",
        "rmq-consume-g-2",
        "rmq-later-g",
        "rmq-rebalance-g",
    }
    engine.begin()
    assert mine <= {thread.name for thread in threading.enumerate()}
    assert engine.end(timeout_ms=5_000)
    assert not mine & {thread.name for thread in threading.enumerate()}


def test_a_commit_names_the_epoch_of_the_log_that_was_read() -> None:
    engine, client, queues = engine_of()
    work = AssignedQueue(queues[0], 900, client.clock.now_ms())
    engine.parts.assigned.put(work)
    engine.parts.offsets.update(work.queue, 900)
    engine.parts.offsets.persist(work.queue)
    work.epoch = 3
    engine.parts.offsets.persist(work.queue)
    told = [(command.fields or {}).get("rmqLogEpoch") for command in client.requests(UPDATE)]
    assert told == [None, "3"]


def test_what_listeners_end_after_the_program_is_over_is_not_handed_over() -> None:
    engine, client, queues = engine_of()
    for queue in queues[:2]:
        engine.parts.assigned.put(AssignedQueue(queue, 5, client.clock.now_ms()))
        engine.parts.offsets.update(queue, 5)
    engine.parts.offsets.update(queues[2], 5)  # given away
    hand_over = engine.halt()
    engine.parts.offsets.update(queues[0], 9)
    engine.puller.pull(engine.parts.assigned.snapshot()[queues[0]])
    assert client.sent == [], "a pull carries the offset, too"
    hand_over(inf)
    told = [command.fields["commitOffset"] for command in client.requests(UPDATE)]
    assert told == ["5", "5"]


def test_where_the_log_was_cut_behind_unfinished_messages_these_come_first() -> None:
    engine, client, queues = engine_of()
    work = AssignedQueue(queues[0], 85, client.clock.now_ms())
    engine.parts.assigned.put(work)
    work.process.put(Batch(85, 89, 5, 50))
    work.process.put(Batch(90, 99, 10, 100))
    work.process.advance(100)
    engine.offset_moved(work, 90)
    client.clock.advance_ms(10_000)
    assert engine.parts.delayed.run_due() == 1
    assert [command.fields["commitOffset"] for command in client.requests(UPDATE)] == ["85"]


@pytest.mark.seed("S4-125", "S4-127")
def test_an_illegal_offset_is_corrected_saved_and_its_queue_removed_after_ten_seconds() -> None:
    engine, client, queues = engine_of()
    work = AssignedQueue(queues[0], 900, client.clock.now_ms())
    engine.parts.assigned.put(work)
    engine.parts.offsets.update(work.queue, 900)
    engine.offset_moved(work, 30)
    client.clock.advance_ms(9_999)
    assert engine.parts.delayed.run_due() == 0 and client.requests(UPDATE) == []
    client.clock.advance_ms(1)
    assert engine.parts.delayed.run_due() == 1
    assert [command.fields["commitOffset"] for command in client.requests(UPDATE)] == ["30"]
    assert engine.parts.offsets.clone() == {} and not engine.parts.assigned.snapshot()
    assert engine.rebalancer._wanted and engine.offsets_moved == 1
