"""Where a group begins in a queue without a position of it: the rule, and all who ask the broker
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.model.groups import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    Heartbeat,
    MessageModel,
)
from rmq_ray.protocol.filters.filter_tag import tag_subscription
from rmq_ray.protocol.rebalance import LONG_AGO_MS
from rmq_ray.remoting.wire.bodies import encode_heartbeat
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.headers import GroupKnown
from rmq_ray.remoting.wire.pops import PopRecords, pack_pop
from rmq_ray.store.front.message_store import MessageStore
from tests.support.brokers.broker_bench import Bench
from tests.support.faults.fake_peer import FakePeer

GROUP, TOPIC = "billing", "orders"
SECOND_MS = 1_000


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(MessageStore, "is_young", lambda *_: False)
    made = Bench(tmp_path, default_topic_queues=4).open()
    yield made
    made.close()


def asked(bench: Bench, queue_id: int, known_ms: int | None = None, **more: str) -> int | None:
    """As a push or pull consumer of ours, or with ``rmqWithEpoch`` left out one of RocketMQ's."""
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)} | more
    if known_ms is not None:
        fields["rmqKnownMs"] = str(known_ms)
    answer = bench.ask(Code.QUERY_CONSUMER_OFFSET, fields)
    assert answer.code in (0, ResponseCode.QUERY_NOT_FOUND)
    return int((answer.fields or {})["offset"]) if answer.code == 0 else None


def popped(bench: Bench, queue_id: int, known_ms: int | None = None) -> int | None:
    """As a simple consumer: it begins, and the position that it gets tells; None: the end."""
    peer = FakePeer()
    data = ConsumerData(
        GROUP,
        ConsumeType.CONSUME_POP,
        MessageModel.CLUSTERING,
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        (tag_subscription(TOPIC, "*", 1),),
    )
    bench.ask(Code.HEART_BEAT, None, encode_heartbeat(Heartbeat("w", (), (data,))), peer)
    pop = PopRecords(GROUP, TOPIC, 0, 1, 30_000, from_first=0)
    bench.ask(Code.POP_RECORDS, GroupKnown(known_ms).to_fields(), pack_pop(pop), peer)
    found = bench.core.tables.offsets.query(TOPIC, GROUP, queue_id)
    assert found is not None and bench.core.keeper.store is not None
    return None if found == bench.core.keeper.store.bounds(TOPIC, queue_id)[1] else found


ROADS: dict[str, Callable[..., int | None]] = {
    "QUERY_CONSUMER_OFFSET": asked,
    "POP_RECORDS": popped,
}


def commit(bench: Bench, queue_id: int, offset: int) -> None:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)}
    bench.ask(Code.UPDATE_CONSUMER_OFFSET, fields | {"commitOffset": str(offset)})


@pytest.mark.parametrize("road", ROADS.values(), ids=ROADS)
def test_a_queue_is_new_to_a_group_if_all_of_it_came_since_the_group_began(
    bench: Bench, road: Callable[..., int | None]
) -> None:
    for queue_id in (0, 1):
        bench.send(TOPIC, queue_id, [b"before"] * 3)
    bench.clock.advance_ms(SECOND_MS)
    commit(bench, 0, 3)
    bench.clock.advance_ms(SECOND_MS)
    for queue_id in (1, 2):
        bench.send(TOPIC, queue_id, [b"since"] * 3)
    assert road(bench, 1) is None, "it was there when the group began"
    assert road(bench, 2) == 0


def test_what_retention_took_of_a_new_queue_does_not_make_it_an_old_one(bench: Bench) -> None:
    bench.send(TOPIC, 0, [b"a"])
    commit(bench, 0, 1)
    bench.clock.advance_ms(SECOND_MS)
    bench.send(TOPIC, 2, [b"taken"] * 2)
    bench.clock.advance_ms(2 * 3_600 * SECOND_MS)
    bench.send(TOPIC, 2, [b"left"])
    store = bench.core.keeper.store
    assert store is not None and store.expire_topics(bench.clock.now_ms(), {TOPIC: 1}) >= 1
    assert store.bounds(TOPIC, 2) == (2, 3) and asked(bench, 2) == 2


@pytest.mark.parametrize("road", ROADS.values(), ids=ROADS)
@pytest.mark.parametrize(("known_ms", "first"), [(None, None), (500, None), (2_000, 0)])
def test_what_another_broker_knows_of_the_group_counts(
    bench: Bench, road: Callable[..., int | None], known_ms: int | None, first: int | None
) -> None:
    bench.send(TOPIC, 0, [b"a"] * 3)
    bench.clock.advance_ms(SECOND_MS)
    assert road(bench, 0, known_ms) == first


@pytest.mark.parametrize("road", ROADS.values(), ids=ROADS)
def test_a_young_queue_is_begun_at_its_first_message_though_another_broker_knows_the_group(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, road: Callable[..., int | None]
) -> None:
    """The group began there a moment ago, and asks here next."""
    monkeypatch.setattr(MessageStore, "is_young", lambda *_: True)
    bench.send(TOPIC, 0, [b"a"] * 3)
    bench.clock.advance_ms(SECOND_MS)
    assert road(bench, 0, 500) == 0


def test_a_broker_that_restarts_takes_what_its_file_says_for_as_old_as_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessageStore, "is_young", lambda *_: False)
    bench = Bench(tmp_path, default_topic_queues=4).open()
    for queue_id in (0, 1):
        bench.send(TOPIC, queue_id, [b"a"])
    bench.clock.advance_ms(SECOND_MS)
    commit(bench, 0, 1)
    assert asked(bench, 1) is None
    bench.close()
    bench = Bench(tmp_path, default_topic_queues=4).open()
    assert asked(bench, 1) == 0
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "1", "rmqWithEpoch": "true"}
    told: Any = bench.ask(Code.QUERY_CONSUMER_OFFSET, fields | {"setZeroIfNotFound": "false"})
    assert (told.code, told.fields) == (
        ResponseCode.QUERY_NOT_FOUND,
        {"rmqKnownMs": str(LONG_AGO_MS)},
    ), "who wants what was committed only is told that, and that the group is known"
    bench.close()


def test_a_group_that_was_deleted_is_new_again(bench: Bench) -> None:
    bench.send(TOPIC, 0, [b"a"])
    commit(bench, 0, 1)
    bench.clock.advance_ms(SECOND_MS)
    bench.send(TOPIC, 1, [b"a"])
    assert asked(bench, 1) == 0
    bench.core.tables.offsets.forget_group(GROUP)
    assert asked(bench, 1) is None


def test_the_rule_stands_in_one_place() -> None:
    """Whoever else asks whether a queue is young decides by the queue, not by the group."""
    package = Path(__file__).parents[4] / "rmq_ray"
    asking = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if ".is_young(" in path.read_text()
    }
    assert asking == {"server/groups/beginning.py"}
    using = {
        path.name for path in package.rglob("*.py") if "import first_offset\n" in path.read_text()
    }
    assert using == {"offset_handlers.py", "pop_handlers.py"} and len(ROADS) == len(using)
