"""How far behind the log's end groups read, and the progress of all groups at once, through a whole
broker core.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.model.fastjson import loads
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import TopicConfig
from rmq_ray.remoting.wire import bodies_admin
from rmq_ray.remoting.wire.bodies_admin import Progress
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.headers import DeleteGroupHeader
from rmq_ray.server.groups import consume_stats
from rmq_ray.server.tables import offset_table
from tests.support.brokers.broker_bench import Bench, unpacked
from tests.support.faults.fake_peer import FakePeer


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    yield made
    made.close()


def behind(bench: Bench, group: str = "billing", topic: str = "orders") -> dict[int, int]:
    return bench.core.tables.offsets.behind.of(group, topic)


def begin_of(bench: Bench, offset: int, queue_id: int = 0) -> int:
    store = bench.core.keeper.store
    assert store is not None
    return store.log_offset_of("orders", queue_id, offset)


def end(bench: Bench) -> int:
    store = bench.core.keeper.store
    assert store is not None
    return store.visible_offset


@pytest.mark.seed("S4-101")
def test_each_pull_records_the_bytes_between_its_last_message_and_the_logs_end(
    bench: Bench,
) -> None:
    for _ in range(5):
        bench.send(bodies_=[b"a" * 100, b"b" * 50])
    bench.send("others", bodies_=[b"c" * 1_000])
    assert behind(bench) == {}
    bench.pull(offset=0, count_max=3)
    assert behind(bench) == {0: end(bench) - begin_of(bench, 2)}
    bench.pull(offset=3, count_max=100)
    assert (
        behind(bench) == {0: end(bench) - begin_of(bench, 9)} and 1_000 < behind(bench)[0] < 1_500
    ), "the other topic's message lies behind it"
    told = behind(bench)
    bench.send("others", bodies_=[b"c"])
    bench.pull(offset=10)
    assert behind(bench) == told, "an answer without messages tells nothing new"


@pytest.mark.seed("S4-101")
def test_queues_and_groups_are_told_apart_and_the_worst_come_first(bench: Bench) -> None:
    for queue_id in (0, 1):
        bench.send(queue_id=queue_id, bodies_=[b"x" * 200, b"y" * 200])
    bench.pull(queue_id=0, count_max=1)
    bench.pull(queue_id=1)
    bench.pull(queue_id=1, group="late", count_max=1)
    assert behind(bench) == {
        0: end(bench) - begin_of(bench, 0),
        1: end(bench) - begin_of(bench, 1, 1),
    }
    told: list[dict[str, Any]] = unpacked(bench.ask(Code.BROKER_STATUS))["fall_behind"]
    assert [(row["group"], row["topic"], row["bytes"]) for row in told] == [
        ("billing", "orders", behind(bench)[0]),
        ("late", "orders", behind(bench, "late")[1]),
    ]
    assert told[0]["queues"] == {"0": behind(bench)[0], "1": behind(bench)[1]}
    bench.ask(Code.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader("billing", True).to_fields())
    assert behind(bench) == {} and behind(bench, "late")


@pytest.mark.seed("S4-101")
def test_messages_that_a_filter_passes_over_count_as_read(bench: Bench) -> None:
    bench.send(bodies_=[b"a", b"b"], tag="unwanted")
    bench.pull(expression="wanted")
    assert behind(bench) == {0: end(bench) - begin_of(bench, 1)}


def test_the_table_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_table, "ENTRIES_MAX", 1)
    bench.send()
    bench.pull()
    bench.pull(group="second")
    assert behind(bench) and not behind(bench, "second")


# --- 317 ---


def all_stats(bench: Bench, ordered: bool = False) -> dict[str, Any]:
    found = loads(
        bench.ask(Code.GET_BROKER_CONSUME_STATS, {"isOrder": str(ordered).lower()}).body_bytes()
    )
    assert isinstance(found, dict)
    return found


def test_all_groups_are_told_at_once_with_the_lag_of_all_of_them(bench: Bench) -> None:
    bench.core.tables.topics.put(TopicConfig("sorted", 1, 1, 6, order=True))
    first_ms = bench.clock.now_ms()
    for topic in ("orders", "sorted"):
        bench.send(topic, bodies_=[b"a", b"b", b"c"])
    offsets = bench.core.tables.offsets
    offsets.commit("orders", "billing", 0, 1, "c")
    offsets.commit("sorted", "billing", 0, 3, "c")
    offsets.commit("sorted", "audit", 0, 0, "c")
    offsets.commit("gone", "audit", 0, 7, "c")
    found = all_stats(bench)
    assert (found["brokerAddr"], found["totalDiff"]) == ("10.0.0.1:10911", 2 + 0 + 3)
    assert [list(entry) for entry in found["consumeStatsList"]] == [["audit"], ["billing"]]
    (ordered,) = all_stats(bench, ordered=True)["consumeStatsList"][0]["audit"]
    assert [
        len(entry["billing"]) for entry in all_stats(bench, ordered=True)["consumeStatsList"][1:]
    ] == [1]
    assert len(ordered["offsetTable"]) == 1
    told = bodies_admin.encode_broker_consume_stats(
        "a:1", {"g": [({MessageQueue("orders", "broker-a", 0): Progress(3, 1, first_ms)}, 1.5)]}
    )
    assert told == (
        b'{"brokerAddr":"a:1","consumeStatsList":[{"g":[{"consumeTps":1.5,'
        b'"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:'
        b'{"brokerOffset":3,"consumerOffset":1,"lastTimestamp":%d}}}]}],"totalDiff":2}' % first_ms
    )


def test_what_a_running_group_does_not_subscribe_to_any_more_is_left_out(bench: Bench) -> None:
    bench.send()
    bench.core.tables.offsets.commit("orders", "billing", 0, 1, "c")
    bench.heartbeat(FakePeer(), topics=("other",))
    assert all_stats(bench)["consumeStatsList"] == []


def test_more_queues_than_a_frame_can_tell_are_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume_stats, "QUEUES_MAX", 3)
    bench.send()
    bench.core.tables.offsets.commit("orders", "billing", 0, 1, "c")
    refusal = bench.ask(Code.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    assert refusal.code == 1 and "one group after the other" in (refusal.remark or "")
