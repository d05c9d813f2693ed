"""Administration through a whole broker core: topics, groups, queries, statistics, what a broker
tells about itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from rmq_ray.codec.record import decode_record
from rmq_ray.model.fastjson import loads
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import GroupConfig, TopicConfig
from rmq_ray.remoting.wire import bodies, bodies_admin, body_json
from rmq_ray.remoting.wire.bodies_admin import Progress, QueueStats
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.headers import CreateTopicHeader, SendHeader
from tests.support.brokers.broker_bench import Bench, unpacked
from tests.support.faults.fake_peer import FakePeer


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    yield made
    made.close()


def create(bench: Bench, topic: str = "orders", **changes: object) -> int:
    values: dict[str, object] = {
        "default_topic": "TBW102",
        "read_queues": 8,
        "write_queues": 8,
        "permission": 6,
        **changes,
    }
    return bench.ask(
        Code.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(topic, **values).to_fields()
    ).code  # type: ignore[arg-type]


def saved(bench: Bench, name: str) -> dict[str, object]:
    found = loads((Path(bench.config.store.path) / "config" / name).read_text())
    assert isinstance(found, dict)
    return found


# --- topics ---


def test_a_created_topic_is_on_disk_when_the_answer_leaves(bench: Bench) -> None:
    bench.offload.held = True
    peer = FakePeer()
    fields = CreateTopicHeader("orders", "TBW102", 8, 4, 6).to_fields()
    assert (
        bench.core.handle(bench.command(Code.UPDATE_AND_CREATE_TOPIC, fields), peer) is None
        and peer.sent == []
    )
    bench.offload.run()
    assert [answer.code for answer in peer.sent] == [0]
    assert saved(bench, "topics.json")["topicConfigTable"]["orders"]["writeQueueNums"] == 4  # type: ignore[index]
    assert bench.core.tables.topics.get("orders") == TopicConfig("orders", 8, 4, 6)


@pytest.mark.parametrize(
    ("topic", "changes"),
    [
        ("two words", {}),
        ("x" * 128, {}),
        ("../escape", {}),
        ("TBW102", {}),
        ("SCHEDULE_TOPIC_XXXX", {}),
        ("broker-a", {}),
        ("rmq_sys_x", {}),
        ("orders", {"write_queues": 100_000}),
        ("orders", {"read_queues": -1}),
        ("orders", {"permission": 64}),
    ],
)
def test_unlawful_topics_are_not_created(
    bench: Bench, topic: str, changes: dict[str, object]
) -> None:
    before = bench.core.tables.topics.version
    assert create(bench, topic, **changes) == ResponseCode.SYSTEM_ERROR
    assert bench.core.tables.topics.version == before


@pytest.mark.parametrize(
    ("attributes", "hours"),
    [
        ("+reserve.time=24", 24),
        ("+message.type=FIFO, +reserve.time=72", 72),
        (None, 5),
        ("", 5),
        ("-message.type", 5),
        ("-reserve.time", 0),
        ("+reserve.time=-1", 0),
    ],
)
def test_a_topics_own_retention_is_kept_until_it_is_changed(
    bench: Bench, attributes: str | None, hours: int
) -> None:
    assert create(bench, attributes="+reserve.time=5") == 0
    assert create(bench, attributes=attributes, write_queues=4) == 0
    topic = bench.core.tables.topics.get("orders")
    assert topic is not None and (topic.retention_hours, topic.write_queues) == (hours, 4)
    kept = saved(bench, "topics.json")["topicConfigTable"]["orders"]  # type: ignore[index]
    assert kept.get("attributes", {}) == ({"reserve.time": str(hours)} if hours else {})


@pytest.mark.parametrize("hours", ["73", "0", "-2", "x", "", "1.5", "9" * 30])
def test_a_retention_that_the_store_cannot_keep_is_refused(bench: Bench, hours: str) -> None:
    header = CreateTopicHeader("orders", "TBW102", 8, 8, 6, attributes=f"+reserve.time={hours}")
    answer = bench.ask(Code.UPDATE_AND_CREATE_TOPIC, header.to_fields())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None and "1 to 72 are possible" in answer.remark
    assert "reserved_hours" in answer.remark and "orders" not in bench.core.tables.topics


def test_a_deleted_topic_and_its_offsets_are_gone_and_new_ones_go_on_behind(bench: Bench) -> None:
    bench.send(bodies_=[b"x"] * 3)
    bench.core.tables.offsets.commit("orders", "billing", 0, 2, "c")
    assert bench.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == 0
    assert (
        bench.pull()[0] == ResponseCode.TOPIC_NOT_EXIST
        and bench.core.tables.offsets.query("orders", "billing", 0) is None
    )
    assert "orders" not in saved(bench, "topics.json")["topicConfigTable"]  # type: ignore[operator]
    assert bench.send().base_queue_offset == 3
    assert bench.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "absent"}).code == 0
    assert "absent" not in bench.core.tables.lives
    assert (
        bench.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "TBW102"}).code
        == ResponseCode.SYSTEM_ERROR
    )


def test_one_topics_settings_are_told_or_that_there_is_none(bench: Bench) -> None:
    create(bench, write_queues=4)
    found = loads(
        bytes(bench.ask(Code.GET_TOPIC_CONFIG, {"topic": "orders"}).body_bytes()).decode()
    )
    assert isinstance(found, dict)
    assert (found["topicName"], found["readQueueNums"], found["writeQueueNums"]) == ("orders", 8, 4)
    absent = bench.ask(Code.GET_TOPIC_CONFIG, {"topic": "absent"})
    assert absent.code == ResponseCode.TOPIC_NOT_EXIST


def test_all_topics_come_with_their_version(bench: Bench) -> None:
    create(bench)
    topics, version = bodies.decode_topic_configs(bench.ask(Code.GET_ALL_TOPIC_CONFIG).body)
    assert (
        topics["orders"] == TopicConfig("orders", 8, 8, 6)
        and version == bench.core.tables.topics.version
    )
    system = bodies.decode_topic_list(bench.ask(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body)
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "default"} <= set(
        system
    ) and "orders" not in system


@pytest.mark.seed("S0-008")
def test_topics_and_groups_survive_a_restart(tmp_path: Path) -> None:
    bench = Bench(tmp_path).open()
    create(bench, "kept", write_queues=2)
    bench.heartbeat(FakePeer())
    bench.close()
    again = Bench(tmp_path).open(create=False)
    assert (
        again.core.tables.topics.get("kept") == TopicConfig("kept", 8, 2, 6)
        and "billing" in again.core.tables.groups
    )
    again.close()


# --- groups ---


@pytest.mark.seed("S4-201")
def test_groups_are_created_listed_and_deleted_with_their_offsets(bench: Bench) -> None:
    config = GroupConfig("billing", retry_max_times=3)
    assert (
        bench.ask(
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            None,
            body_json.write(bodies_admin.encode_group(config)),
        ).code
        == 0
    )
    assert (
        saved(bench, "subscriptionGroup.json")["subscriptionGroupTable"]["billing"]["retryMaxTimes"]
        == 3
    )  # type: ignore[index]
    groups, version = bodies_admin.decode_group_configs(
        bench.ask(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body
    )
    assert groups["billing"] == config and version == bench.core.tables.groups.version
    bench.core.tables.offsets.commit("orders", "billing", 0, 2, "c")
    assert (
        bench.ask(
            Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "billing", "removeOffset": "true"}
        ).code
        == 0
    )
    assert (
        "billing" not in bench.core.tables.groups
        and bench.core.tables.offsets.of_group("billing") == {}
    )
    assert (
        bench.ask(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "TOOLS_CONSUMER"}).code
        == ResponseCode.NO_PERMISSION
    )
    assert (
        bench.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b'{"groupName":"two words"}').code
        == ResponseCode.SYSTEM_ERROR
    )


def test_who_consumes_a_topic_now_or_before(bench: Bench) -> None:
    bench.heartbeat(FakePeer(), "now")
    bench.core.tables.offsets.commit("orders", "before", 0, 1, "c")
    assert bodies_admin.decode_group_list(
        bench.ask(Code.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "orders"}).body
    ) == ["before", "now"]


# --- finding messages ---


@pytest.mark.seed("S0-018")
def test_messages_are_found_by_key_and_by_unique_key(bench: Bench) -> None:
    for n in range(3):
        header = SendHeader(
            "web",
            "orders",
            0,
            0,
            bench.clock.now_ms(),
            0,
            properties=f"KEYS\x01k{n} shared\x02UNIQ_KEY\x01UNIQUE{n}",
        )
        assert bench.ask(Code.SEND_MESSAGE_V2, header.to_v2(), b"%d" % n).code == 0

    def find(key: str, count: int = 32, begin: int = 0, end: int = (1 << 63) - 1) -> list[bytes]:
        answer = bench.ask(
            Code.QUERY_MESSAGE,
            {
                "topic": "orders",
                "key": key,
                "maxNum": str(count),
                "beginTimestamp": str(begin),
                "endTimestamp": str(end),
            },
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        assert answer.code == 0 and set(answer.fields or {}) == {
            "indexLastUpdateTimestamp",
            "indexLastUpdatePhyoffset",
        }
        return [decode_record(bytes(part)).body for part in answer.body]  # type: ignore[arg-type]

    assert find("k1") == [b"1"] and find("UNIQUE2") == [b"2"] and find("absent") == []
    assert find("shared") == [b"2", b"1", b"0"] and find("shared", 2) == [b"2", b"1"]
    assert find("k1", end=1) == []


def test_a_message_is_seen_by_its_physical_offset(bench: Bench) -> None:
    sent = bench.send(bodies_=[b"one"])
    answer = bench.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": str(sent.base_log_offset)})
    assert answer.code == 0 and decode_record(bytes(answer.body)).body == b"one"  # type: ignore[arg-type]
    for offset in (sent.base_log_offset + 1, 1 << 40, -1):
        assert (
            bench.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}).code
            == ResponseCode.SYSTEM_ERROR
        )


def test_slow_queries_do_not_hold_the_loop_and_too_many_are_refused(bench: Bench) -> None:
    sent = bench.send()
    bench.offload.held = True
    peer = FakePeer()
    assert (
        bench.core.handle(
            bench.command(Code.VIEW_MESSAGE_BY_ID, {"offset": str(sent.base_log_offset)}), peer
        )
        is None
    )
    assert peer.sent == [] and bench.pull()[0] == 0, "others are served meanwhile"
    bench.offload.run()
    assert [answer.code for answer in peer.sent] == [0]


# --- statistics ---


@pytest.mark.seed("S4-229")
def test_lag_of_a_group_per_queue(bench: Bench) -> None:
    first_ms = bench.clock.now_ms()
    bench.send(bodies_=[b"a", b"b", b"c"])
    bench.clock.advance_ms(1_000)
    bench.send(bodies_=[b"d"])
    bench.core.tables.offsets.commit("orders", "billing", 0, 3, "c")
    bench.clock.advance_ms(2_500)
    for fields in ({"consumerGroup": "billing", "topic": "orders"}, {"consumerGroup": "billing"}):
        stats = bodies_admin.decode_consume_stats(bench.ask(Code.GET_CONSUME_STATS, fields).body)
        assert stats[MessageQueue("orders", "broker-a", 0)] == Progress(4, 3, first_ms, 2_500)
        assert stats[MessageQueue("orders", "broker-a", 1)] == Progress(0, 0, 0) and len(stats) == 4
    assert (
        bodies_admin.decode_consume_stats(
            bench.ask(Code.GET_CONSUME_STATS, {"consumerGroup": "nobody"}).body
        )
        == {}
    )


def test_offsets_and_last_times_of_a_topic(bench: Bench) -> None:
    bench.send(bodies_=[b"a", b"b"])
    stats = bodies_admin.decode_topic_stats(
        bench.ask(Code.GET_TOPIC_STATS_INFO, {"topic": "orders"}).body
    )
    assert stats[MessageQueue("orders", "broker-a", 0)] == QueueStats(0, 2, bench.clock.now_ms())
    assert stats[MessageQueue("orders", "broker-a", 3)] == QueueStats(0, 0, 0)
    assert (
        bench.ask(Code.GET_TOPIC_STATS_INFO, {"topic": "absent"}).code
        == ResponseCode.TOPIC_NOT_EXIST
    )


# --- the broker itself ---


def test_runtime_info_has_the_names_that_rocketmqs_tools_read(bench: Bench) -> None:
    bench.send(bodies_=[b"x"] * 5)
    for _ in range(11):
        bench.clock.advance_ms(1_000)
        bench.core.tick()
    table = bodies.decode_table(bench.ask(Code.GET_BROKER_RUNTIME_INFO).body)
    assert (
        table["brokerVersionDesc"] == "V4_9_7"
        and table["msgPutTotalTodayNow"] == "5"
        and len(table["putTps"].split()) == 3
    )
    assert (
        int(table["commitLogMaxOffset"]) > 0
        and table["commitLogMinOffset"] == "0"
        and 0 < float(table["commitLogDiskRatio"]) < 1
    )
    assert (
        table["bootTimestamp"] == str(bench.identity.boot_ms)
        and table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 11 seconds ]"
    )


def test_rates_are_messages_a_second_over_the_window(bench: Bench) -> None:
    for _ in range(20):
        bench.clock.advance_ms(1_000)
        bench.core.tick()
        bench.send(bodies_=[b"x"] * 30)
    bench.clock.advance_ms(1_000)
    bench.core.tick()
    assert bench.core.statistics.rate.put_tps() == "30.0 30.0 30.0"


def test_the_configuration_is_told_as_lines(bench: Bench) -> None:
    answer = bench.ask(Code.GET_BROKER_CONFIG)
    lines = dict(line.split("=", 1) for line in bytes(answer.body).decode().splitlines())  # type: ignore[arg-type]
    assert (
        lines["brokerName"] == "broker-a"
        and lines["flushDiskType"] == "ASYNC_FLUSH"
        and lines["autoCreateTopicEnable"] == "true"
    )
    assert (
        lines["rmq_ray.store.segment_bytes"] == str(1 << 20)
        and "secret" not in bytes(answer.body).decode()
    )  # type: ignore[arg-type]
    version = loads((answer.fields or {})["version"])
    assert (
        isinstance(version, dict) and version["counter"] == bench.core.tables.topics.version.counter
    )


def test_status_and_store_info_name_what_readers_and_supervisors_need(bench: Bench) -> None:
    bench.send()
    status = unpacked(bench.ask(Code.BROKER_STATUS))
    store = bench.core.keeper.store
    assert store is not None
    assert (status["state"], status["identity"], status["epoch"], status["address"]) == (
        "serving",
        store.identity,
        1,
        "10.0.0.1:10911",
    )
    assert status["put_messages"] == 1 and status["pid"] > 0
    info = unpacked(bench.ask(Code.STORE_INFO))
    assert {
        key: info[key]
        for key in (
            "identity",
            "epoch",
            "visible_end",
            "segment_bytes",
            "consume_queue_entries",
            "path",
        )
    } == {
        "identity": store.identity,
        "epoch": 1,
        "visible_end": store.visible_offset,
        "segment_bytes": 1 << 20,
        "consume_queue_entries": 1_000,
        "path": bench.config.store.path,
    }
    assert info["host_id"]
    assert (
        bench.ask(Code.STORE_INFO, peer=FakePeer(trusted=False)).code == ResponseCode.NO_PERMISSION
    ), "paths are told to those who know the secret"


def test_pins_keep_segments_until_given_back(bench: Bench) -> None:
    bench.send(bodies_=[b"x"] * 3)
    pin = unpacked(bench.ask(Code.PIN_SEGMENTS, None, msgpack.packb(["orders", {0: 1}, 60_000])))[
        "pin"
    ]
    assert isinstance(pin, int)
    assert bench.ask(Code.UNPIN_SEGMENTS, None, msgpack.packb([pin])).code == 0
    for code, body in ((Code.PIN_SEGMENTS, [1]), (Code.UNPIN_SEGMENTS, ["x"])):
        assert bench.ask(code, None, msgpack.packb(body)).code == ResponseCode.SYSTEM_ERROR


def test_a_pin_lasts_as_long_as_was_asked_for_whatever_the_time_of_day_does(
    bench: Bench,
) -> None:
    bench.send(bodies_=[b"x"] * 3)
    assert bench.core.keeper.store is not None
    retention = bench.core.keeper.store.opened.retention
    bench.ask(Code.PIN_SEGMENTS, None, msgpack.packb(["orders", {0: 0}, 60_000]))
    for jump_ms in (3_600_000, -7_200_000):
        bench.clock.jump_ms(jump_ms)
        assert retention.pinned_from() == 0
    bench.clock.advance_ms(59_999)
    assert retention.pinned_from() == 0
    bench.clock.advance_ms(1)
    assert retention.pinned_from() is None


def test_an_account_gives_back_no_pin_of_others(bench: Bench) -> None:
    bench.send(bodies_=[b"x"] * 3)
    shop, eve = FakePeer(account="web-shop"), FakePeer(port=2, account="eve-shop")
    store = bench.core.keeper.store
    assert store is not None
    asked = msgpack.packb(["orders", {0: 1}, 60_000])
    pin = msgpack.packb([unpacked(bench.ask(Code.PIN_SEGMENTS, None, asked, shop))["pin"]])
    for peer, left in ((eve, 1), (shop, 0)):
        assert bench.ask(Code.UNPIN_SEGMENTS, None, pin, peer).code == 0
        assert len(store.opened.retention.pins) == left


def test_unknown_codes_are_refused_by_name(bench: Bench) -> None:
    answer = bench.ask(9_999)
    assert (
        answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        and answer.remark == " request type 9999 not supported"
    )
