"""Puts into a queue of values with a bound: the broker judges each in the moment in which it would
write.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.config import FlushMode
from rmq_ray.model.groups import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    Heartbeat,
    MessageModel,
)
from rmq_ray.protocol.filters.filter_tag import tag_subscription
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.group_headers import SendWithin
from rmq_ray.remoting.wire.pops import (
    LeasedRecords,
    PopRecords,
    Settle,
    Settlement,
    pack_pop,
    pack_settle,
    unpack_popped,
)
from tests.support.brokers.broker_bench import Bench
from tests.support.faults.fake_peer import FakePeer
from tests.support.waiting import eventually

QUEUE = "jobs"
"""The group that takes has the topic's name."""


@pytest.fixture(params=[FlushMode.ASYNC_FLUSH, FlushMode.SYNC_FLUSH])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(tmp_path, request.param, default_topic_queues=1).open()
    yield made
    made.close()


@pytest.fixture
def getter(bench: Bench) -> FakePeer:
    peer = FakePeer(port=50_001)
    data = ConsumerData(
        QUEUE,
        ConsumeType.CONSUME_POP,
        MessageModel.CLUSTERING,
        ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        (tag_subscription(QUEUE, "*", 1),),
    )
    beat = bodies.encode_heartbeat(Heartbeat("getter", (), (data,)))
    assert bench.ask(Code.HEART_BEAT, None, beat, peer).code == 0
    return peer


def put(bench: Bench, most: Any, count: int = 1, of: int | None = None, **more: Any) -> int:
    """The answer's code; 0 also where it waits for the disk, which is flushed then."""
    frame = more.get("frame") or bench.frame(QUEUE, 0, [b"x" * 100] * count)
    fields = {"rmqUntakenMax": str(most), "rmqUntakenCount": str(count if of is None else of)}
    peer = FakePeer()
    answer = bench.core.handle(bench.command(Code.SEND_RECORDS, fields, frame), peer)
    return 0 if answer is None else answer.code


def flush(bench: Bench) -> None:
    store = bench.core.keeper.store
    assert store is not None
    store.flush()
    bench.offload.run_until(lambda: store.visible_offset == store.end_offset)
    bench.core.tick()
    bench.offload.drain()


def came_again(bench: Bench, untaken: int) -> bool:
    """Whether so many wait; threads of the store are at it, and the clock stands still without
    this.
    """
    bench.clock.advance_ms(50)
    flush(bench)
    return bench.core.pops.handlers.untaken(QUEUE, QUEUE) == untaken


def pop(bench: Bench, getter: FakePeer, count: int) -> list[LeasedRecords]:
    flush(bench)
    body = pack_pop(PopRecords(QUEUE, QUEUE, count, 1 << 20, 30_000))
    answer = bench.ask(Code.POP_RECORDS, None, body, getter)
    return unpack_popped(answer.body) if answer.code == 0 else []


def test_a_batch_is_stored_whole_where_it_has_room_and_else_not_at_all(bench: Bench) -> None:
    assert put(bench, 3, 2) == 0
    assert put(bench, 3, 2) == ResponseCode.NO_ROOM
    assert put(bench, 3) == 0
    assert put(bench, 3) == ResponseCode.NO_ROOM
    assert put(bench, 4) == 0, "each put has a bound of its own"
    assert put(bench, 1, 2) == put(bench, 0) == ResponseCode.NO_ROOM
    flush(bench)
    store = bench.core.keeper.store
    assert store is not None and store.bounds(QUEUE, 0)[1] == 4


def test_what_is_not_visible_yet_takes_room(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FlushMode.SYNC_FLUSH, default_topic_queues=1).open()
    assert [put(bench, 2) for _ in range(3)] == [0, 0, ResponseCode.NO_ROOM]
    store = bench.core.keeper.store
    assert store is not None and store.bounds(QUEUE, 0)[1] == 0
    bench.close()


def test_what_was_taken_leaves_room_and_what_comes_again_takes_it(
    bench: Bench, getter: FakePeer
) -> None:
    assert put(bench, 3, 3) == 0
    (leased,) = pop(bench, getter, 2)
    assert put(bench, 3, 2) == 0, "whether it is acknowledged does not matter"
    assert put(bench, 3) == ResponseCode.NO_ROOM
    head = leased.head
    row = Settlement(QUEUE, 0, head.lease_id, int(Settle.CHANGE), b"\x01", 0)
    assert bench.ask(Code.SETTLE_POPPED, None, pack_settle(QUEUE, [row]), getter).code == 0
    assert eventually(lambda: came_again(bench, 4))
    assert put(bench, 4) == ResponseCode.NO_ROOM
    assert put(bench, 5) == 0


def test_the_first_frame_of_a_batch_speaks_for_all_of_it(bench: Bench) -> None:
    assert put(bench, 5, 2, of=6) == ResponseCode.NO_ROOM
    assert put(bench, 5, 2, of=5) == 0


def test_a_repeat_of_what_is_stored_is_answered_as_the_first_time(bench: Bench) -> None:
    frame = bench.frame(QUEUE, 0, [b"x"])
    assert [put(bench, 1, frame=frame), put(bench, 1, frame=frame)] == [0, 0]
    assert put(bench, 1) == ResponseCode.NO_ROOM


def test_a_group_of_another_name_does_not_count(bench: Bench) -> None:
    assert put(bench, 2, 2) == 0
    flush(bench)
    bench.core.tables.offsets.commit(QUEUE, "other", 0, 2, "c")
    assert put(bench, 2) == ResponseCode.NO_ROOM
    bench.core.tables.offsets.commit(QUEUE, QUEUE, 0, 1, "c")
    assert put(bench, 2) == 0


@pytest.mark.parametrize("most", ["", "many", "1.5", "-1"])
def test_a_bound_that_is_none_is_refused_and_stores_nothing(bench: Bench, most: str) -> None:
    assert put(bench, most) != 0
    flush(bench)
    store = bench.core.keeper.store
    assert store is not None and store.bounds(QUEUE, 0)[1] == 0


def test_the_fields_say_nothing_where_there_is_no_bound(bench: Bench) -> None:
    assert SendWithin().to_fields() == {}
    command: Command = bench.command(Code.SEND_RECORDS, {}, bench.frame(QUEUE, 0, [b"x"] * 9))
    answer = bench.core.handle(command, FakePeer())
    assert answer is None or answer.code == 0
