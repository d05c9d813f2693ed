"""Offsets of groups and bounds of queues: through a whole broker core."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from rmq_ray.model.fastjson import loads
from rmq_ray.model.topics import TopicConfig
from rmq_ray.remoting.wire import bodies_admin
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.tables.broker_tables import FIRST_POSITIONS_MS
from rmq_ray.server.tables.offset_table import OffsetTable, Tables
from tests.support.brokers.broker_bench import Bench, unpacked
from tests.support.faults.fake_peer import FakePeer


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    yield made
    made.close()


def query(bench: Bench, group: str = "billing", queue_id: int = 0) -> Command:
    return bench.ask(
        Code.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": group, "topic": "orders", "queueId": str(queue_id)},
    )


def update(
    bench: Bench,
    offset: int,
    group: str = "billing",
    peer: FakePeer | None = None,
    oneway: bool = False,
    queue_id: int = 0,
) -> Command | None:
    if bench.core.tables.topics.get("orders") is None:
        bench.send(bodies_=[b"x"] * 400)
    fields = {
        "consumerGroup": group,
        "topic": "orders",
        "queueId": str(queue_id),
        "commitOffset": str(offset),
    }
    return bench.core.handle(
        bench.command(Code.UPDATE_CONSUMER_OFFSET, fields, oneway=oneway), peer or FakePeer()
    )


def saved(bench: Bench) -> dict[int, int]:
    """What the file says of the group."""
    path = Path(bench.config.store.path) / "config" / "consumerOffset.json"
    found: dict[int, int] = loads(path.read_text())["offsetTable"]["orders@billing"]
    return found


@pytest.mark.parametrize(("epoch", "taken"), [("1", None), ("2", "8")])
def test_what_was_read_of_a_log_that_was_cut_since_is_not_committed_though_the_queue_has_grown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, epoch: str, taken: str | None
) -> None:
    """Read up to 8, cut to 5, grown to 10: nobody of epoch 1 has seen 5, 6 and 7."""
    bench.send(bodies_=[b"x"] * 5)
    store = bench.core.keeper.store
    assert store is not None
    monkeypatch.setattr(type(store), "epochs", ((1, 0), (2, store.end_offset)))
    monkeypatch.setattr(type(store), "epoch", 2)
    bench.send(bodies_=[b"y"] * 5)
    fields = {"consumerGroup": "billing", "topic": "orders", "queueId": "0"}
    named = {**fields, "rmqClient": "reader", "rmqLogEpoch": epoch}
    bench.ask(Code.UPDATE_CONSUMER_OFFSET, {**named, "commitOffset": "8"})
    stored = bench.core.tables.offsets.query("orders", "billing", 0)
    assert stored == (None if taken is None else int(taken))
    bench.ask(Code.UPDATE_CONSUMER_OFFSET, {**named, "commitOffset": "5"})
    assert bench.core.tables.offsets.query("orders", "billing", 0) == (stored or 5)


def test_a_group_that_only_commits_is_known_and_stays_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path).open()
    answer = update(bench, 7, "spark")
    assert answer is not None and answer.code == 0 and "spark" in bench.core.tables.groups
    update(bench, 1_000_000, "beyond", FakePeer(), oneway=True)
    assert query(bench, "beyond").fields == {"offset": "0"}, "refused"
    assert "beyond" not in bench.core.tables.groups
    bench.close()
    bench = Bench(tmp_path).open()
    assert "spark" in bench.core.tables.groups
    bench.close()


def test_a_commit_makes_no_group_where_they_are_made_by_hand(tmp_path: Path) -> None:
    bench = Bench(tmp_path, auto_create_groups=False).open()
    answer = update(bench, 7, "spark")
    assert answer is not None and answer.code == 0
    assert "spark" not in bench.core.tables.groups and query(bench, "spark").fields == {
        "offset": "7"
    }
    bench.close()


@pytest.mark.seed("S4-032")
def test_a_new_group_begins_at_zero_while_the_queue_is_still_in_memory(bench: Bench) -> None:
    bench.send()
    answer = query(bench)
    assert answer.code == 0 and answer.fields == {"offset": "0"}


def test_who_wants_to_know_whether_a_group_ever_committed_is_told_as_by_rocketmq_5(
    bench: Bench,
) -> None:
    bench.send()
    asked = {"consumerGroup": "billing", "topic": "orders", "queueId": "0"}
    for zero, code in (("false", ResponseCode.QUERY_NOT_FOUND), ("true", ResponseCode.SUCCESS)):
        assert (
            bench.ask(Code.QUERY_CONSUMER_OFFSET, {**asked, "setZeroIfNotFound": zero}).code == code
        )
    update(bench, 0)
    assert bench.ask(
        Code.QUERY_CONSUMER_OFFSET, {**asked, "setZeroIfNotFound": "false"}
    ).fields == {"offset": "0"}


@pytest.mark.seed("S4-222")
def test_a_new_group_on_a_queue_that_lost_its_beginning_is_told_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.core.keeper.store
    monkeypatch.setattr(type(store), "bounds", lambda self, topic, queue_id: (100, 200))
    assert query(bench).code == ResponseCode.QUERY_NOT_FOUND
    monkeypatch.undo()


@pytest.mark.seed("S4-213", "S4-223", "S3-146")
def test_committed_offsets_are_answered_to_any_member(bench: Bench) -> None:
    answer = update(bench, 335)
    assert answer is not None and answer.code == 0 and answer.fields == {}
    assert query(bench).fields == {"offset": "335"}


def test_oneway_commits_get_no_answer(bench: Bench) -> None:
    assert update(bench, 5, oneway=True) is None
    assert query(bench).fields == {"offset": "5"}


def test_an_administrator_may_lower_with_an_answered_request_and_a_stranger_oneway_may_not(
    bench: Bench,
) -> None:
    update(bench, 100)
    update(bench, 50, oneway=True)
    assert query(bench).fields == {"offset": "100"}
    answer = update(bench, 50)
    assert answer is not None and answer.code == 0 and query(bench).fields == {"offset": "50"}


def test_a_consumer_is_no_administrator_of_its_group_even_after_it_left(bench: Bench) -> None:
    peer = FakePeer()
    bench.heartbeat(peer, client_id="c1")
    update(bench, 100, peer=peer)
    bench.ask(Code.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "billing"}, peer=peer)
    answer = update(bench, 50, peer=peer)
    assert (
        answer is not None
        and answer.code == ResponseCode.SYSTEM_ERROR
        and query(bench).fields == {"offset": "100"}
    )


@pytest.mark.seed("S4-226", "S4-026", "S3-145", "S3-146", "S4-113")
def test_offsets_are_written_after_ten_seconds_and_then_each_five(bench: Bench) -> None:
    update(bench, 0)
    update(bench, 1)
    bench.clock.advance_ms(9_999)
    bench.core.tick()
    assert saved(bench) == {0: 0}
    bench.clock.advance_ms(1)
    bench.core.tick()
    assert saved(bench) == {0: 1}
    update(bench, 2)
    bench.clock.advance_ms(5_000)
    bench.core.tick()
    assert saved(bench) == {0: 2}


def test_the_first_position_of_a_group_in_a_queue_is_written_at_once(bench: Bench) -> None:
    """A broker that is killed before the next write would take the group for a new one, which may
    begin at the end.
    """
    update(bench, 3)
    assert saved(bench) == {0: 3}
    bench.clock.advance_ms(FIRST_POSITIONS_MS)
    update(bench, 0, queue_id=1)
    assert saved(bench) == {0: 3, 1: 0}


def test_groups_that_begin_together_are_written_together(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write is one of the whole table."""
    snapshot, written = OffsetTable.snapshot, []

    def counted(table: OffsetTable) -> Tables:
        written.append(snapshot(table))
        return written[-1]

    monkeypatch.setattr(bench.core.tables._offsets_saver, "_snapshot", lambda: counted(offsets))
    offsets = bench.core.tables.offsets
    for queue_id in range(100):
        offsets.commit("orders", "billing", queue_id, 1, "c")
    assert len(written) == 1
    bench.clock.advance_ms(FIRST_POSITIONS_MS)
    for _ in range(2):
        bench.core.tick()
    assert [len(found["orders", "billing"]) for found in written] == [1, 100]


def test_a_group_that_is_set_back_is_written_at_once(bench: Bench) -> None:
    """A broker that is killed before the next write would know the reset no more."""
    update(bench, 10)
    update(bench, 100)
    assert saved(bench) == {0: 10}
    update(bench, 50)
    assert saved(bench) == {0: 50}


@pytest.mark.seed("S4-227")
def test_the_file_has_rocketmqs_form_and_is_read_back(tmp_path: Path) -> None:
    table = {
        "TopicTest@please_rename_unique_group_name_4": {0: 1, 1: 0, 2: 0, 3: 0},
        "TopicTest@TopicTest-Consumer": {0: 335, 1: 335, 2: 333},
        "%RETRY%rocket-mq-consumer-demo@rocket-mq-consumer-demo": {0: 0},
        "rocket-mq-topic@rocket-mq-consumer-demo": {0: 0, 1: 0, 2: 1, 3: 1},
    }
    bench = Bench(tmp_path).open()
    for key, queues in table.items():
        topic, group = key.split("@")
        bench.core.tables.topics.put(TopicConfig(topic, 4, 4))
        for queue_id, offset in queues.items():
            for _ in range(offset):
                bench.send(topic, queue_id) if offset < 10 and not topic.startswith("%") else None
            bench.core.tables.offsets.commit(topic, group, queue_id, offset, "c")
    bench.close()
    path = Path(bench.config.store.path) / "config" / "consumerOffset.json"
    assert loads(path.read_text()) == {"offsetTable": table}
    assert "{0:335,1:335,2:333}" in "".join(path.read_text().split())
    again = Bench(tmp_path).open(create=False)
    expected = {**table, "TopicTest@TopicTest-Consumer": {0: 1, 1: 0, 2: 0}}
    found = bodies_admin.decode_offset_table(again.ask(Code.GET_ALL_CONSUMER_OFFSET).body)
    assert found == expected, "offsets beyond the log's end were clamped to it"
    assert again.core.tables.offsets.clamped == 3
    again.close()


def test_bounds_of_queues(bench: Bench) -> None:
    bench.send(bodies_=[b"x"] * 3)

    def ask(
        code: int, queue_id: int = 0, topic: str = "orders", **more: str
    ) -> dict[str, str] | None:
        return bench.ask(code, {"topic": topic, "queueId": str(queue_id), **more}).fields

    assert ask(Code.GET_MAX_OFFSET) == {"offset": "3"} and ask(Code.GET_MIN_OFFSET) == {
        "offset": "0"
    }
    assert ask(Code.GET_MAX_OFFSET, topic="absent") == {"offset": "0"}, (
        "what does not exist is empty, not an error"
    )
    assert ask(Code.GET_EARLIEST_MSG_STORETIME) == {"timestamp": str(bench.clock.now_ms())}
    assert ask(Code.GET_EARLIEST_MSG_STORETIME, queue_id=1) == {"timestamp": "-1"}


def test_offsets_by_time_are_nearest_and_never_beyond_the_last_message(bench: Bench) -> None:
    start = bench.clock.now_ms()
    for _ in range(4):
        bench.send()
        bench.clock.advance_ms(1_000)

    def at(ms: int) -> str:
        fields = bench.ask(
            Code.SEARCH_OFFSET_BY_TIMESTAMP,
            {"topic": "orders", "queueId": "0", "timestamp": str(ms)},
        ).fields
        assert fields is not None
        return fields["offset"]

    assert [at(start + delta) for delta in (-5_000, 0, 1_000, 3_000, 99_000)] == [
        "0",
        "0",
        "1",
        "3",
        "3",
    ]


def test_bounds_of_many_topics_in_one_request(bench: Bench) -> None:
    bench.send("orders", 1)
    found = unpacked(bench.ask(Code.QUEUE_BOUNDS, None, msgpack.packb(["orders", "absent"])))
    assert found == {"orders": {0: [0, 0], 1: [0, 1], 2: [0, 0], 3: [0, 0]}}
    assert set(unpacked(bench.ask(Code.QUEUE_BOUNDS, None, msgpack.packb([])))) == set(
        bench.core.tables.topics.names()
    )
    assert (
        bench.ask(Code.QUEUE_BOUNDS, None, json.dumps("x").encode()).code
        == ResponseCode.SYSTEM_ERROR
    )


def test_a_commit_that_only_rises_leaves_what_is_higher(bench: Bench) -> None:
    """Two members hold a queue for a moment after an election, and one is behind."""
    ahead, behind = FakePeer(port=1), FakePeer(port=2)
    bench.heartbeat(ahead, client_id="c1")
    bench.heartbeat(behind, client_id="c2")
    update(bench, 100, peer=ahead)
    bench.core.tables.offsets.pulled("orders", "billing", 0, "c2")
    refused = bench.core.tables.offsets.refused
    fields = {"consumerGroup": "billing", "topic": "orders", "queueId": "0", "rmqClient": "c2"}
    for offset, stored in (("60", "100"), ("120", "120")):
        rising = {**fields, "commitOffset": offset, "rmqIncreaseOnly": "true"}
        answer = bench.ask(Code.UPDATE_CONSUMER_OFFSET, rising, peer=behind)
        assert answer.code == 0 and query(bench).fields == {"offset": stored}
    assert bench.core.tables.offsets.refused == refused + 1
    bench.ask(Code.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": "60"}, peer=behind)
    assert query(bench).fields == {"offset": "60"}, "who says nothing may go back"


def test_all_offsets_or_those_that_changed_since(bench: Bench) -> None:
    update(bench, 5)
    first = bench.ask(Code.GET_ALL_CONSUMER_OFFSET)
    assert "rmqSince" not in first.fields
    update(bench, 7, group="other")
    later = bench.ask(Code.GET_ALL_CONSUMER_OFFSET, {"rmqSince": first.fields["rmqChange"]})
    assert later.fields["rmqSince"] == first.fields["rmqChange"] != later.fields["rmqChange"]
    assert bodies_admin.decode_offset_table(later.body) == {"orders@other": {0: 7}}
    lost = bench.ask(Code.GET_ALL_CONSUMER_OFFSET, {"rmqSince": "1000"})
    assert "rmqSince" not in lost.fields
    assert len(bodies_admin.decode_offset_table(lost.body)) == 2


def test_a_stored_offset_names_the_epoch_if_asked_and_is_not_told_while_the_log_is_read_again(
    bench: Bench,
) -> None:
    """It may lie beyond what is left of the log: who began there would skip what is stored next."""
    update(bench, 100)
    fields = {"consumerGroup": "billing", "topic": "orders", "queueId": "0"}
    store = bench.core.keeper.store
    assert store is not None and query(bench).fields == {"offset": "100"}
    told = bench.ask(Code.QUERY_CONSUMER_OFFSET, {**fields, "rmqWithEpoch": "true"})
    assert told.fields == {
        "offset": "100",
        "rmqLogEpoch": str(store.epoch),
        "rmqKnownMs": "0",
    }
    bench.core.keeper.store = None
    try:
        assert query(bench).code not in (0, ResponseCode.QUERY_NOT_FOUND)
    finally:
        bench.core.keeper.store = store
