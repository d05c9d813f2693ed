"""BROWSE_MESSAGES through a whole broker core: newest, from a time, from an offset, what waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.codec.record import decode_record
from rmq_ray.codec.record_row import record_row
from rmq_ray.model.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, TopicConfig
from rmq_ray.remoting.wire.browse import FROM, WAITING, BrowseHeader, ask_browse, read_browse
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.headers import SendHeader, UpdateOffsetHeader
from tests.support.brokers.broker_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    made.core.tables.topics.put(TopicConfig("orders", 2, 2))
    yield made
    made.close()


def browse(bench: Bench, topic: str = "orders", **asked: Any) -> dict[str, Any]:
    command = ask_browse(BrowseHeader(topic, **asked))
    answer = bench.ask(Code.BROWSE_MESSAGES, dict(command.fields or {}))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return read_browse(answer.body)


def bodies(found: dict[str, Any]) -> list[bytes]:
    return [record_row(decode_record(row[3]))["body"] for row in found["messages"]]


def test_the_newest_of_all_queues_come_first(bench: Bench) -> None:
    bench.send(queue_id=0, bodies_=[b"1", b"2"])
    bench.send(queue_id=1, bodies_=[b"3"])
    bench.send(queue_id=0, bodies_=[b"4"])
    found = browse(bench, count=3)
    assert bodies(found) == [b"4", b"3", b"2"] and found["more"]
    assert [row[:2] for row in found["messages"]] == [(0, 2), (1, 0), (0, 1)]
    assert bodies(browse(bench, count=4)) == [b"4", b"3", b"2", b"1"]
    assert not browse(bench, count=4)["more"]


def test_from_a_time_or_an_offset_they_come_in_their_order(bench: Bench) -> None:
    bench.send(queue_id=0, bodies_=[b"1"])
    bench.clock.advance_ms(5_000)
    later_ms = bench.clock.now_ms()
    bench.send(queue_id=1, bodies_=[b"2"])
    bench.send(queue_id=0, bodies_=[b"3", b"4"])
    found = browse(bench, pick=FROM, time_ms=later_ms)
    assert bodies(found) == [b"2", b"3", b"4"]
    assert [row[3] for row in found["queues"]] == [1, 0], "where the time is in each queue"
    found = browse(bench, pick=FROM, queue_id=0, offset=1, count=1)
    assert bodies(found) == [b"3"] and found["more"] and len(found["queues"]) == 1


def test_it_tells_where_a_group_is_and_takes_nothing(bench: Bench) -> None:
    bench.send(queue_id=0, bodies_=[b"1", b"2"])
    fields = UpdateOffsetHeader("billing", "orders", 0, 1).to_fields()
    assert bench.ask(Code.UPDATE_CONSUMER_OFFSET, fields).code == ResponseCode.SUCCESS
    for _ in range(2):
        found = browse(bench, committed_of="billing", count=0)
        assert found["queues"] == ((0, 0, 2, 0, 1), (1, 0, 0, 0, None))
        assert found["messages"] == ()


def test_a_topic_that_is_not_there_and_a_question_without_sense(bench: Bench) -> None:
    fields = BrowseHeader("nothing").to_fields()
    assert bench.ask(Code.BROWSE_MESSAGES, fields).code == ResponseCode.TOPIC_NOT_EXIST
    for wrong in (BrowseHeader("orders", pick="all"), BrowseHeader("orders", pick=WAITING)):
        answer = bench.ask(Code.BROWSE_MESSAGES, wrong.to_fields())
        assert answer.code not in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)


def send(bench: Bench, **properties: str) -> None:
    """As Apache RocketMQ's producer does."""
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    header = SendHeader("web", "orders", 0, 2, bench.clock.now_ms(), 0, properties=text)
    answer = bench.ask(Code.SEND_MESSAGE, header.to_fields(), properties["UNIQ_KEY"].encode())
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def test_what_waits_for_an_end_a_level_or_a_time(bench: Bench) -> None:
    for topic in (HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC):
        assert not browse(bench, topic, pick=WAITING)["messages"]
    now_ms = bench.clock.now_ms()
    send(bench, UNIQ_KEY="half", TRAN_MSG="true", PGROUP="web")
    send(bench, UNIQ_KEY="level 5", DELAY="5")
    send(bench, UNIQ_KEY="level 3", DELAY="3")
    for seconds in (60, 30, 90):
        send(bench, UNIQ_KEY=f"in {seconds} s", TIMER_DELIVER_MS=str(now_ms + seconds * 1_000))
    assert bodies(browse(bench, HALF_TOPIC, pick=WAITING)) == [b"half"]
    levels = browse(bench, SCHEDULE_TOPIC, pick=WAITING)
    assert bodies(levels) == [b"level 3", b"level 5"], "the first due of all levels first"
    assert [row[2] - now_ms for row in levels["messages"]] == [10_000, 60_000]
    timers = browse(bench, TIMER_TOPIC, pick=WAITING)
    assert bodies(timers) == [b"in 30 s", b"in 60 s", b"in 90 s"]
    first = browse(bench, TIMER_TOPIC, pick=WAITING, count=1)
    assert bodies(first) == [b"in 30 s"] and first["more"]
