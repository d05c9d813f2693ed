"""Messages that consumers send back: retry topic by way of the schedule topic, dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.codec.record import Record, decode_record
from rmq_ray.config import FlushMode
from rmq_ray.model.message import decode_properties
from rmq_ray.model.topics import GroupConfig, TopicConfig
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import SendBackHeader
from tests.support.brokers.broker_bench import Bench
from tests.support.faults.fake_peer import FakePeer

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    yield made
    made.close()


def back(
    bench: Bench,
    offset: int,
    level: int = 0,
    limit: int | None = None,
    peer: FakePeer | None = None,
    why: str | None = None,
) -> Command:
    where = "10.0.0.1@7" if why else None
    header = SendBackHeader(offset, "billing", level, "UNIQUE", "orders", False, limit, why, where)
    return bench.ask(Code.CONSUMER_SEND_MSG_BACK, header.to_fields(), peer=peer)


def record(bench: Bench, topic: str, queue_id: int = 0, offset: int = 0) -> Record:
    store = bench.core.keeper.store
    assert store is not None
    found = store.get_messages(topic, queue_id, offset, 1, 1, None)
    assert found.count == 1, found.status
    return decode_record(bytes(found.parts[0]))


def deliver(bench: Bench, seconds: int) -> None:
    bench.clock.advance_ms(seconds * 1_000)
    bench.core.tick()


@pytest.mark.seed("S3-083", "S4-185", "S4-205", "S4-211", "S4-210")
def test_the_copy_waits_in_the_schedule_topic_and_then_lies_in_the_retry_topic(
    bench: Bench,
) -> None:
    sent = bench.send(bodies_=[b"poison"], tag="paid")
    original = record(bench, "orders")
    assert back(bench, sent.base_log_offset).code == 0 and bench.core.counters.sent_back == 1
    parked = record(bench, SCHEDULE, 2)
    assert (parked.body, parked.reconsume_times, parked.born_ms, parked.born_host) == (
        b"poison",
        1,
        original.born_ms,
        original.born_host,
    )
    kept = decode_properties(parked.properties)
    assert (
        kept["RETRY_TOPIC"],
        kept["ORIGIN_MESSAGE_ID"],
        kept["REAL_TOPIC"],
        kept["REAL_QID"],
        kept["DELAY"],
    ) == (
        "orders",
        "UNIQUE",
        "%RETRY%billing",
        "0",
        "3",
    )
    deliver(bench, 9)
    assert bench.core.keeper.store is not None and bench.core.keeper.store.bounds(
        "%RETRY%billing", 0
    ) == (0, 0)
    deliver(bench, 1)
    retried = record(bench, "%RETRY%billing")
    assert (
        retried.body == b"poison"
        and retried.reconsume_times == 1
        and decode_properties(retried.properties)["TAGS"] == "paid"
    )


@pytest.mark.seed("S4-188", "S4-207", "S4-208", "S4-209", "S4-189")
def test_sixteen_retries_with_rising_delays_and_then_the_dead_letter_topic(bench: Bench) -> None:
    offset = bench.send(bodies_=[b"poison"]).base_log_offset
    waits = [10, 30, *(60 * n for n in range(1, 11)), 1_200, 1_800, 3_600, 7_200]
    for n, wait in enumerate(waits):
        assert back(bench, offset).code == 0
        deliver(bench, wait - 1)
        assert bench.core.counters.delayed_delivered == n, "never early"
        deliver(bench, 1)
        retried = record(bench, "%RETRY%billing", 0, n)
        assert retried.reconsume_times == n + 1
        offset = retried.log_offset
    assert sum(waits) == 4 * 3_600 + 45 * 60 + 40
    assert back(bench, offset).code == 0
    dead = record(bench, "%DLQ%billing")
    assert dead.reconsume_times == 17 and bench.core.counters.dead_letters == 1
    properties = decode_properties(dead.properties)
    assert properties["RETRY_TOPIC"] == "orders" and properties["ORIGIN_MESSAGE_ID"] == "UNIQUE"
    assert bench.core.tables.topics.get("%DLQ%billing") == TopicConfig("%DLQ%billing", 1, 1, 6)
    deliver(bench, 10_000)
    assert bench.core.counters.delayed_delivered == 16, "dead letters are not delivered again"


def test_level_minus_one_is_a_dead_letter_at_once(bench: Bench) -> None:
    assert back(bench, bench.send().base_log_offset, -1).code == 0
    assert record(bench, "%DLQ%billing").reconsume_times == 1


@pytest.mark.seed("S4-206")
def test_a_copy_tells_why_its_listener_failed_last(bench: Bench) -> None:
    sent = bench.send(bodies_=[b"poison"])
    assert (
        back(bench, sent.base_log_offset, why="ValueError:\x01no\x02amount" + "!" * 999).code == 0
    )
    deliver(bench, 10)
    retried = record(bench, "%RETRY%billing")
    told = decode_properties(retried.properties)
    assert told["RMQ_FAILED_WITH"].startswith("ValueError: no amount!!")
    assert (len(told["RMQ_FAILED_WITH"]), told["RMQ_FAILED_ON"]) == (512, "10.0.0.1@7")
    assert back(bench, retried.log_offset, level=-1).code == 0, "as Apache RocketMQ's consumers ask"
    dead = decode_properties(record(bench, "%DLQ%billing").properties)
    assert not dead.keys() & {"RMQ_FAILED_WITH", "RMQ_FAILED_ON"}, "no older failure's reason"


def test_a_reason_that_does_not_fit_the_record_is_left_out(bench: Bench) -> None:
    sent = bench.send(bodies_=[b"poison"], long="x" * 29_700)
    assert back(bench, sent.base_log_offset, level=-1, why="y" * 600).code == 0
    dead = decode_properties(record(bench, "%DLQ%billing").properties)
    assert "RMQ_FAILED_WITH" not in dead and len(dead["long"]) == 29_700


def test_the_clients_limit_counts(bench: Bench) -> None:
    assert back(bench, bench.send().base_log_offset, 0, 0).code == 0
    assert record(bench, "%DLQ%billing").body == b"hello"


@pytest.mark.seed("S4-190", "S4-201")
def test_a_missing_group_is_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, auto_create_groups=False).open()
    assert back(bench, 0).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    bench.close()


@pytest.mark.seed("S4-191", "S4-192", "S4-203", "S4-204")
def test_refusals_come_in_their_order(bench: Bench) -> None:
    offset = bench.send().base_log_offset
    bench.core.tables.groups.put(GroupConfig("billing", retry_queues=0))
    bench.core.identity.permission = 4
    assert back(bench, offset).code == ResponseCode.NO_PERMISSION
    bench.core.identity.permission = 6
    assert back(bench, offset).code == 0 and bench.core.counters.sent_back == 0, (
        "no retry queues: done, nothing stored"
    )
    bench.core.tables.groups.put(GroupConfig("billing"))
    missing = back(bench, offset + 1)
    assert missing.code == ResponseCode.SYSTEM_ERROR and "look message by offset failed" in (
        missing.remark or ""
    )
    bench.core.tables.topics.put(TopicConfig("%RETRY%billing", 1, 1, 4))
    assert back(bench, offset).code == ResponseCode.NO_PERMISSION


@pytest.mark.seed("S4-202")
def test_copies_go_to_all_retry_queues_of_the_group(bench: Bench) -> None:
    bench.core.tables.groups.put(GroupConfig("billing", retry_queues=3))
    offset = bench.send().base_log_offset
    for _ in range(6):
        back(bench, offset)
    queues = [
        decode_properties(record(bench, SCHEDULE, 2, n).properties)["REAL_QID"] for n in range(6)
    ]
    assert sorted(queues) == ["0", "0", "1", "1", "2", "2"]


@pytest.mark.seed("S4-212")
def test_under_sync_flush_only_a_durable_copy_is_success(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FlushMode.SYNC_FLUSH).open()
    bench.core.tables.topics.put(TopicConfig("orders", 4, 4))
    peer = FakePeer()
    bench.core.handle(bench.command(Code.SEND_RECORDS, None, bench.frame("orders")), peer)
    bench.offload.run_until(lambda: bool(peer.take()))
    fields = SendBackHeader(0, "billing", 0, "U", "orders").to_fields()
    assert bench.core.handle(bench.command(Code.CONSUMER_SEND_MSG_BACK, fields), peer) is None
    bench.offload.run_until(lambda: bool(peer.sent))
    assert peer.take()[0].code == 0
    bench.core.handle(bench.command(Code.CONSUMER_SEND_MSG_BACK, fields), peer)
    bench.core.acks.fail_all()
    assert [(answer.code, answer.remark) for answer in peer.take()] == [(1, "FLUSH_DISK_TIMEOUT")]
    bench.close()
