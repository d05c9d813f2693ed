"""What a broker tells of its traffic, its queues and its consume queues, through a whole core."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.config import ReplicationMode
from rmq_ray.model.fastjson import loads
from rmq_ray.model.hashing import java_hash
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from tests.support.brokers.broker_bench import Bench
from tests.support.faults.fake_peer import FakePeer


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    yield made
    made.close()


def json_of(bench: Bench, code: Code, fields: dict[str, str]) -> dict[str, Any]:
    answer = bench.ask(code, fields)
    assert answer.code == 0, answer.remark
    found = loads(bytes(answer.body_bytes()).decode())
    assert isinstance(found, dict)
    return found


def passes(bench: Bench, seconds: int) -> None:
    for _ in range(seconds):
        bench.clock.advance_ms(1_000)
        bench.core.tick()


def test_statistics_tell_sums_and_rates_of_topics_and_groups(bench: Bench) -> None:
    bench.send(bodies_=[b"x"] * 20)
    bench.heartbeat(FakePeer())
    bench.pull()
    passes(bench, 10)
    stats = json_of(
        bench, Code.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "orders"}
    )
    assert stats["statsDay"]["sum"] == 20 and stats["statsMinute"]["tps"] == 2.0
    got = {"statsName": "GROUP_GET_NUMS", "statsKey": "orders@billing"}
    assert json_of(bench, Code.VIEW_BROKER_STATS_DATA, got)["statsHour"]["sum"] == 20
    progress = json_of(bench, Code.GET_CONSUME_STATS, {"consumerGroup": "billing"})
    assert progress["consumeTps"] == 2.0
    bench.core.tables.offsets.commit("orders", "billing", 0, 20, "c")
    every = json_of(bench, Code.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    assert every["consumeStatsList"][0]["billing"][0]["consumeTps"] == 2.0


def test_a_statistic_that_nobody_counted_is_refused_by_name(bench: Bench) -> None:
    asked = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "nowhere"}
    answer = bench.ask(Code.VIEW_BROKER_STATS_DATA, asked)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "The stats <TOPIC_PUT_NUMS> <nowhere> not exist"


def test_runtime_values_are_those_of_now(bench: Bench) -> None:
    bench.send(bodies_=[b"x"] * 5)
    table = bodies.decode_table(bench.ask(Code.GET_BROKER_RUNTIME_INFO).body)
    counters = bench.core.counters
    assert table["putMessageSizeTotal"] == str(counters.put_bytes)
    assert float(table["putMessageAverageSize"]) == counters.put_bytes / 5
    assert table["pullThreadPoolQueueSize"] == table["sendThreadPoolQueueSize"] == "0"
    assert table["commitLogDirCapacity"].startswith("Total : ")
    bench.offload.held = True
    key = {"topic": "orders", "key": "k", "maxNum": "1", "beginTimestamp": "0"}
    bench.core.handle(bench.command(Code.QUERY_MESSAGE, {**key, "endTimestamp": "9"}), FakePeer())
    table = bodies.decode_table(bench.ask(Code.GET_BROKER_RUNTIME_INFO).body)
    assert table["queryThreadPoolQueueSize"] == table["pullThreadPoolQueueSize"] == "1"
    bench.offload.run()


def test_the_role_is_told_as_it_is(tmp_path: Path) -> None:
    for mode in ("SYNC_MASTER", "ASYNC_MASTER"):
        bench = Bench(tmp_path / mode, replication=ReplicationMode[mode]).open()
        told = bytes(bench.ask(Code.GET_BROKER_CONFIG).body_bytes()).decode()
        assert f"brokerRole={mode}\n" in told and "listenPort=10911\n" in told
        bench.close()


def test_a_consume_queue_is_shown_from_an_index_on(bench: Bench) -> None:
    bench.send(bodies_=[b"a", b"b", b"c"])
    asked = {"topic": "orders", "queueId": "0", "index": "1", "count": "9"}
    found = json_of(bench, Code.QUERY_CONSUME_QUEUE, asked)
    assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 3)
    assert [row["eval"] for row in found["queueData"]] == [False, False]
    assert found["queueData"][0]["physicOffset"] > 0 and "subscriptionData" not in found
    beyond = json_of(bench, Code.QUERY_CONSUME_QUEUE, {**asked, "index": "77"})
    assert beyond["queueData"] == []
    absent = bench.ask(Code.QUERY_CONSUME_QUEUE, {**asked, "topic": "absent"})
    assert absent.code == ResponseCode.TOPIC_NOT_EXIST


def test_a_consume_queue_says_what_a_groups_tags_let_through(bench: Bench) -> None:
    bench.send(bodies_=[b"a"])
    bench.heartbeat(FakePeer(), expression="paid")
    asked = {"topic": "orders", "queueId": "0", "index": "0", "count": "1"}
    found = json_of(bench, Code.QUERY_CONSUME_QUEUE, {**asked, "consumerGroup": "billing"})
    assert found["subscriptionData"]["codeSet"] == [java_hash("paid")]
    assert [row["eval"] for row in found["queueData"]] == [False]


def test_queues_of_topics_that_are_no_more_go_and_others_stay(bench: Bench) -> None:
    store = bench.core.keeper.store
    assert store is not None
    bench.send(bodies_=[b"x"])
    bench.send(topic="left", bodies_=[b"x"])
    bench.core.tables.topics.delete("left")
    assert store.topics() >= {"orders", "left"}
    bench.offload.held = True
    assert bench.ask(Code.CLEAN_UNUSED_TOPIC).code == 0
    assert store.bounds("left", 0) == (1, 1)
    assert "left" in store.topics(), "until it is on disk that it ended"
    bench.offload.run()
    assert "orders" in store.topics() and "left" not in store.topics()


def test_cleaning_expired_queues_runs_a_cycle_now(bench: Bench) -> None:
    bench.send(bodies_=[b"x"])
    bench.offload.held = True
    assert bench.ask(Code.CLEAN_EXPIRED_CONSUMEQUEUE).code == 0
    assert bench.offload.waiting().count == 1
    bench.offload.run()
    assert bench.pull()[0] == 0
