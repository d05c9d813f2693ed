"""Bounded topics: a send that does not fit is refused, and fits once a group has acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.model.topics import TopicBound
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.headers import CreateTopicHeader
from rmq_ray.remoting.wire.records import unpack_send_answer
from tests.support.brokers.broker_bench import Bench
from tests.support.faults.fake_peer import FakePeer

FULL = ResponseCode.TOPIC_FULL


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    yield made
    made.close()


def create(bench: Bench, attributes: str | None) -> int:
    header = CreateTopicHeader("orders", "TBW102", 2, 2, 6, attributes=attributes)
    return bench.ask(Code.UPDATE_AND_CREATE_TOPIC, header.to_fields()).code


def put(bench: Bench, count: int = 1, queue_id: int = 0, peer: FakePeer | None = None) -> int:
    bench.clock.advance_ms(10)
    frame = bench.frame("orders", queue_id, [b"x" * 100] * count)
    return bench.ask(Code.SEND_RECORDS, None, frame, peer).code


def ack(bench: Bench, group: str, queue_id: int, offset: int) -> None:
    bench.core.tables.offsets.commit("orders", group, queue_id, offset, "c")


def test_senders_wait_for_the_slowest_group_that_has_a_position(bench: Bench) -> None:
    assert create(bench, "+rmq_ray.slots=3") == 0
    assert [put(bench), put(bench, 2, 1), put(bench)] == [0, 0, FULL]
    ack(bench, "fast", 1, 2)
    ack(bench, "fast", 0, 1)
    assert put(bench, 3) == 0 and put(bench) == FULL
    ack(bench, "fast", 0, 4)
    ack(bench, "slow", 0, 2)
    ack(bench, "slow", 1, 2)
    assert [put(bench), put(bench)] == [0, FULL], "two wait for the slow one, and this one"


def test_one_named_group_counts_and_no_other(bench: Bench) -> None:
    assert create(bench, "+rmq_ray.slots=2,+rmq_ray.slots_group=trainer") == 0
    assert [put(bench, 2), put(bench)] == [0, FULL]
    ack(bench, "other", 0, 2)
    assert put(bench) == FULL
    ack(bench, "trainer", 0, 1)
    assert [put(bench), put(bench)] == [0, FULL]


def test_bytes_bound_a_topic_too_and_a_large_frame_goes_into_an_empty_one(bench: Bench) -> None:
    assert create(bench, "+rmq_ray.slot_bytes=1000") == 0
    assert [put(bench, 30), put(bench)] == [0, FULL]
    ack(bench, "g", 0, 29)
    assert put(bench) == 0
    bench.clock.advance_ms(20_000)
    assert [put(bench), put(bench)] == [0, FULL], "three records of 290 bytes"


def test_what_is_stored_already_is_answered_though_its_topic_is_full(bench: Bench) -> None:
    assert create(bench, "+rmq_ray.slots=1") == 0
    frame = bench.frame("orders", 0, [b"x"])
    first, again = [bench.ask(Code.SEND_RECORDS, None, bytes(frame)) for _ in range(2)]
    assert (first.code, again.code) == (0, 0), "the answer to the first one got lost"
    assert unpack_send_answer(again.body).repeat and put(bench) == FULL


def test_every_way_to_send_is_refused_and_apaches_clients_are_told_to_wait(bench: Bench) -> None:
    assert create(bench, "+rmq_ray.slots=1") == 0
    assert put(bench) == 0
    apache = FakePeer(trusted=False)
    fields = {"a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1"}
    fields |= {"h": "0", "i": "", "j": "0"}
    answer = bench.ask(Code.SEND_MESSAGE_V2, fields, b"x", apache)
    assert answer.code == ResponseCode.SYSTEM_BUSY and "is full: 1 messages" in answer.remark
    ack(bench, "g", 0, 1)
    bench.clock.advance_ms(10)
    assert bench.ask(Code.SEND_MESSAGE_V2, fields, b"x", apache).code == 0


def test_a_bound_is_kept_changed_and_taken_back(bench: Bench) -> None:
    for attributes, bound in (
        ("+rmq_ray.slots=5,+rmq_ray.slots_group=g", TopicBound(5, 0, "g")),
        (None, TopicBound(5, 0, "g")),
        ("+rmq_ray.slot_bytes=9,-rmq_ray.slots_group", TopicBound(5, 9)),
        ("-rmq_ray.slots,-rmq_ray.slot_bytes,+reserve.time=5", None),
    ):
        assert create(bench, attributes) == 0
        topic = bench.core.tables.topics.get("orders")
        assert topic is not None and topic.bound == bound
        sent = bodies.decode_topic_configs(bench.ask(Code.GET_ALL_TOPIC_CONFIG).body)[0]
        assert sent["orders"] == topic
    for wrong in (
        "+rmq_ray.slots=0",
        "+rmq_ray.slot_bytes=x",
        "+rmq_ray.slots=" + "9" * 5_000,
        "+rmq_ray.slots_group=a b",
    ):
        assert create(bench, wrong) == ResponseCode.SYSTEM_ERROR
