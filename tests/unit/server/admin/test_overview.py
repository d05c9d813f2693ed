"""BROKER_OVERVIEW through a whole broker core: each part, one group and one topic in detail, and
what is not told while the store cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from rmq_ray.model.topics import GroupConfig, TopicConfig
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.headers import UpdateOffsetHeader
from rmq_ray.remoting.wire.overview import (
    CLIENT,
    GROUP,
    GROUP_QUEUE,
    LAG,
    PARTS,
    TOPIC,
    TOPIC_QUEUE,
    ask_overview,
    named,
    read_overview,
)
from tests.support.brokers.broker_bench import Bench
from tests.support.faults.fake_peer import FakePeer


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    made.core.tables.topics.put(TopicConfig("orders", 2, 2))
    made.core.tables.groups.put(GroupConfig("billing", retry_max_times=3))
    yield made
    made.close()


def overview(bench: Bench, *parts: str, group: str = "", topic: str = "") -> dict[str, Any]:
    answer = bench.ask(
        Code.BROKER_OVERVIEW, None, ask_overview(parts, group=group, topic=topic).body
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return read_overview(answer.body)


def commit(bench: Bench, queue_id: int, offset: int) -> None:
    fields = UpdateOffsetHeader("billing", "orders", queue_id, offset).to_fields()
    assert bench.ask(Code.UPDATE_CONSUMER_OFFSET, fields).code == ResponseCode.SUCCESS


def test_a_group_has_its_lag_over_all_queues_and_the_age_of_the_oldest(bench: Bench) -> None:
    bench.send(queue_id=0, bodies_=[b"1", b"2", b"3"])
    bench.send(queue_id=1, bodies_=[b"4"])
    commit(bench, 0, 1)
    bench.clock.advance_ms(7_000)
    found = overview(bench, "groups")
    (row,) = named(LAG, found["lags"])
    assert (row["group"], row["topic"], row["lag"]) == ("billing", "orders", 3)
    assert 7_000 <= row["age_ms"] < 8_000
    groups = {row["group"]: row for row in named(GROUP, found["groups"])}
    parts = {"groups", "lags", "dead_letters", "delayed", "uncommitted"}
    assert groups["billing"]["members"] == 0 and set(found) == parts


def test_a_running_group_is_told_with_members_and_subscriptions(bench: Bench) -> None:
    bench.heartbeat(FakePeer(), expression="paid", client_id="me")
    bench.send(queue_id=1, bodies_=[b"1", b"2"])
    commit(bench, 1, 1)
    found = overview(bench, "groups", "clients", group="billing")
    (row,) = [row for row in named(GROUP, found["groups"]) if row["group"] == "billing"]
    assert row["members"] == 1 and row["kind"]
    (client,) = named(CLIENT, found["clients"])
    assert client["client_id"] == "me" and client["group"] == "billing"
    one = found["group"]
    assert one["known"] and one["retry_max_times"] == 3
    assert ("orders", "paid", "TAG") in one["subscriptions"]
    queues = {row["queue"]: row for row in named(GROUP_QUEUE, found["group_queues"])}
    assert (queues[1]["committed"], queues[1]["high"]) == (1, 2)
    assert queues[0]["committed"] is None, "never committed is not 0"


def test_a_topic_is_told_with_its_queues_and_the_times_of_what_it_holds(bench: Bench) -> None:
    bench.send(queue_id=0, bodies_=[b"1"])
    bench.clock.advance_ms(5_000)
    bench.send(queue_id=0, bodies_=[b"2"])
    found = overview(bench, "topics", topic="orders")
    first, second = named(TOPIC_QUEUE, found["topic_queues"])
    assert (first["low"], first["high"]) == (0, 2)
    assert first["last_ms"] - first["first_ms"] >= 5_000
    assert second["first_ms"] is None, "an empty queue holds no time"
    (row,) = named(TOPIC, [found["topic"]])
    assert row["read_queues"] == 2 and row["stored_messages"] == 2
    assert found["messages"]["orders"] == 2


def test_what_is_not_there_is_nil_and_not_an_error(bench: Bench) -> None:
    found = overview(bench, group="nobody", topic="nothing")
    assert found["topic"] is None and found["topic_queues"] == ()
    assert found["group"]["known"] is False and found["group_queues"] == ()


def test_without_a_store_states_are_told_and_no_numbers(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    try:
        found = overview(bench, *PARTS)
        assert found["status"]["state"] != "serving"
        assert "lags" not in found and "messages" not in found
    finally:
        bench.close()


@pytest.mark.parametrize(
    "body",
    [b"\xc1", [], {"parts": ["everything"]}, {"parts": "groups"}, {"group": 7}, {"topic": None}],
    ids=repr,
)
def test_a_question_that_is_none_is_refused(bench: Bench, body: Any) -> None:
    sent = body if isinstance(body, bytes) else msgpack.packb(body)
    answer = bench.ask(Code.BROKER_OVERVIEW, None, sent)
    assert answer.code != ResponseCode.SUCCESS and "BROKER_OVERVIEW" in (answer.remark or "")
