"""SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE: sends of Apache RocketMQ's clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from rmq_ray.codec.record import Record, decode_record
from rmq_ray.config import FlushMode
from rmq_ray.model.ids import FrameId
from rmq_ray.model.message import decode_properties
from rmq_ray.model.topics import GroupConfig, TopicConfig
from rmq_ray.remoting.wire.bodies_admin import BatchElement, join_batch
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import SendHeader
from tests.support.brokers.broker_bench import HOST, Bench
from tests.support.faults.fake_peer import FakePeer

HEADER = SendHeader(
    "web",
    "orders",
    0,
    0,
    1_699_999_999_000,
    5,
    properties="KEYS\x01k1\x02UNIQ_KEY\x01ABC\x02WAIT\x01true\x02TAGS\x01TagA",
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    yield made
    made.close()


def send(
    bench: Bench,
    body: bytes = b"hello",
    code: int = Code.SEND_MESSAGE_V2,
    peer: FakePeer | None = None,
    **changes: object,
) -> Command:
    header = replace(HEADER, **changes)
    fields = header.to_fields() if code == Code.SEND_MESSAGE else header.to_v2()
    return bench.ask(code, fields, body, peer or FakePeer(trusted=False))


def record(bench: Bench, topic: str, offset: int = 0, queue_id: int = 0) -> Record:
    store = bench.core.keeper.store
    assert store is not None
    found = store.get_messages(topic, queue_id, offset, 1, 1, None)
    assert found.count == 1, found.status
    return decode_record(bytes(found.parts[0]))


@pytest.mark.seed("S3-084", "S3-086", "S3-089")
@pytest.mark.parametrize("code", [Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2])
def test_a_message_is_stored_with_all_its_fields(bench: Bench, code: int) -> None:
    answer = send(bench, code=code, queue_id=3, peer=FakePeer("10.9.8.7", 4321, trusted=False))
    assert answer.code == 0 and answer.fields == {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "msgId": "0A00000100002A9F0000000000000000",
        "queueId": "3",
        "queueOffset": "0",
    }
    stored = record(bench, "orders", queue_id=3)
    assert (stored.body, stored.flag, stored.sys_flag, stored.born_ms, stored.reconsume_times) == (
        b"hello",
        5,
        0,
        1_699_999_999_000,
        0,
    )
    assert (stored.born_host, stored.store_host, stored.store_ms) == (
        ("10.9.8.7", 4321),
        HOST,
        bench.clock.now_ms(),
    )
    assert decode_properties(stored.properties) == {
        "KEYS": "k1",
        "UNIQ_KEY": "ABC",
        "TAGS": "TagA",
        "CLUSTER": "default",
    }, "WAIT is not stored"


def test_our_frame_mark_in_a_foreign_message_is_not_stored(bench: Bench) -> None:
    send(bench, properties="RMQ_FRAME\x01" + "0" * 72 + "\x02KEYS\x01k")
    assert "RMQ_FRAME" not in record(bench, "orders").properties


def test_a_negative_queue_is_chosen_by_the_broker_in_turn(bench: Bench) -> None:
    queues = [int((send(bench, queue_id=-1).fields or {})["queueId"]) for _ in range(8)]
    assert sorted(queues) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("changes", "body", "code"),
    [
        ({"queue_id": 99}, b"x", ResponseCode.SYSTEM_ERROR),
        ({}, b"x" * (4 * 1024 * 1024 + 1), ResponseCode.MESSAGE_ILLEGAL),
        ({"properties": "a\x01" + "x" * 32_768}, b"x", ResponseCode.MESSAGE_ILLEGAL),
        ({"topic": "absent", "default_topic": "no-template"}, b"x", ResponseCode.TOPIC_NOT_EXIST),
        (
            {"topic": "absent", "default_topic": "SELF_TEST_TOPIC"},
            b"x",
            ResponseCode.TOPIC_NOT_EXIST,
        ),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, b"x", ResponseCode.NO_PERMISSION),
        ({"topic": "bad topic"}, b"x", ResponseCode.SYSTEM_ERROR),
        ({"topic": "../../etc"}, b"x", ResponseCode.SYSTEM_ERROR),
        (
            {"properties": "TRAN_MSG\x01true\x02PGROUP\x01web\x02DELAY\x013"},
            b"x",
            ResponseCode.MESSAGE_ILLEGAL,
        ),
        ({"sys_flag": 4}, b"x", ResponseCode.NO_PERMISSION),
    ],
)
def test_refusals_have_rocketmqs_codes_and_still_tell_region_and_trace(
    bench: Bench, changes: dict[str, object], body: bytes, code: int
) -> None:
    answer = send(bench, body, **changes)
    assert answer.code == code and answer.remark
    assert answer.fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert bench.core.keeper.store is not None and bench.core.keeper.store.end_offset == 0


def test_an_empty_body_is_stored(bench: Bench) -> None:
    assert send(bench, b"").code == 0 and record(bench, "orders").body == b""


def test_a_topic_without_write_permission_is_refused(bench: Bench) -> None:
    bench.core.tables.topics.put(TopicConfig("orders", 4, 4, 4))
    assert send(bench).code == ResponseCode.NO_PERMISSION


def test_a_broker_that_is_closed_for_writing_refuses_ordered_topics_only(bench: Bench) -> None:
    bench.core.identity.permission = 4
    bench.core.tables.topics.put(TopicConfig("ordered", 4, 4, 6, order=True))
    assert send(bench, topic="ordered").code == ResponseCode.NO_PERMISSION
    assert send(bench, topic="orders").code == 0


def test_the_first_send_to_a_new_topic_waits_for_its_file(bench: Bench) -> None:
    bench.offload.held = True
    peer = FakePeer()
    command = bench.command(Code.SEND_MESSAGE_V2, HEADER.to_v2(), b"hello")
    assert bench.core.handle(command, peer) is None and peer.sent == []
    command.body[:] = b"xxxxx"  # type: ignore[index]
    bench.offload.run()
    assert [answer.code for answer in peer.sent] == [0] and record(bench, "orders").body == b"hello"


# --- batches ---


@pytest.mark.seed("S3-085")
@pytest.mark.parametrize("code", [Code.SEND_BATCH_MESSAGE, Code.SEND_MESSAGE_V2])
def test_a_batch_becomes_records_with_consecutive_offsets(bench: Bench, code: int) -> None:
    body = join_batch(
        [
            BatchElement(b"one", "UNIQ_KEY\x01A", 1),
            BatchElement(b"two", "UNIQ_KEY\x01B\x02TAGS\x01t", 2),
        ]
    )
    answer = send(bench, body, code, batch=True, properties="WAIT\x01true")
    assert answer.code == 0 and answer.fields is not None
    first, second = record(bench, "orders"), record(bench, "orders", 1)
    assert (
        answer.fields["msgId"]
        == f"0A00000100002A9F{0:016X},0A00000100002A9F{second.log_offset:016X}"
        and answer.fields["queueOffset"] == "0"
    )
    assert [(found.body, found.flag) for found in (first, second)] == [(b"one", 1), (b"two", 2)]
    assert decode_properties(second.properties) == {
        "UNIQ_KEY": "B",
        "TAGS": "t",
        "WAIT": "true",
        "CLUSTER": "default",
    }


@pytest.mark.parametrize(
    ("topic", "body"),
    [
        ("orders", b"not a batch at all, really"),
        ("orders", join_batch([BatchElement(b"x", "DELAY\x013")])),
        ("orders", join_batch([BatchElement(b"x", "TRAN_MSG\x01true")])),
        ("%RETRY%billing", join_batch([BatchElement(b"x", "")])),
        ("orders", b""),
    ],
)
def test_unlawful_batches_are_refused(bench: Bench, topic: str, body: bytes) -> None:
    assert (
        send(bench, body, Code.SEND_BATCH_MESSAGE, topic=topic).code == ResponseCode.MESSAGE_ILLEGAL
    )


# --- retry topics ---


def test_a_consumer_may_write_into_its_retry_topic_with_its_count(bench: Bench) -> None:
    assert (
        send(
            bench,
            topic="%RETRY%billing",
            reconsume_times=2,
            max_reconsume_times=3,
            properties="DELAY\x013",
        ).code
        == 0
    )
    parked = record(bench, "SCHEDULE_TOPIC_XXXX", queue_id=2)
    assert (
        parked.reconsume_times == 2
        and decode_properties(parked.properties)["REAL_TOPIC"] == "%RETRY%billing"
    )


def test_beyond_the_limit_it_is_a_dead_letter_without_delay(bench: Bench) -> None:
    assert (
        send(
            bench,
            topic="%RETRY%billing",
            reconsume_times=3,
            max_reconsume_times=3,
            properties="DELAY\x013",
        ).code
        == 0
    )
    assert record(bench, "%DLQ%billing").reconsume_times == 3
    assert (
        bench.core.tables.topics.get("%DLQ%billing") == TopicConfig("%DLQ%billing", 1, 1, 6)
        and bench.core.counters.dead_letters == 1
    )


def test_the_groups_limit_counts_where_the_client_names_none(bench: Bench) -> None:
    bench.core.tables.groups.put(GroupConfig("billing", retry_max_times=1))
    send(bench, topic="%RETRY%billing", reconsume_times=1)
    assert record(bench, "%DLQ%billing").body == b"hello"


def test_a_retry_topic_of_no_group_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, auto_create_groups=False).open()
    assert send(bench, topic="%RETRY%billing").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    bench.close()


# --- durability ---


@pytest.mark.seed("S3-094")
def test_sync_flush_waits_unless_the_message_says_not_to(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FlushMode.SYNC_FLUSH).open()
    bench.core.tables.topics.put(TopicConfig("orders", 4, 4))
    peer = FakePeer()
    assert (
        bench.core.handle(bench.command(Code.SEND_MESSAGE_V2, HEADER.to_v2(), b"x"), peer) is None
    )
    hasty = replace(HEADER, properties="WAIT\x01false")
    answer = bench.core.handle(bench.command(Code.SEND_MESSAGE_V2, hasty.to_v2(), b"y"), peer)
    assert answer is not None and answer.code == 0, "acknowledged early"
    assert bench.core.keeper.store is not None and bench.core.keeper.store.bounds("orders", 0) == (
        0,
        0,
    ), "not visible early"
    bench.offload.run_until(lambda: bool(peer.sent))
    assert peer.sent[0].code == 0 and peer.sent[0].fields["queueOffset"] == "0"
    bench.close()


# --- repeats of our own single messages ---


def test_a_repeated_single_message_of_ours_is_answered_with_the_first_result(bench: Bench) -> None:
    frame_id = FrameId(b"p" * 16, 3)
    first = send(bench, frame_id=frame_id, properties="DELAY\x011")
    again = send(bench, frame_id=frame_id, properties="DELAY\x011")
    assert first.code == again.code == 0 and first.fields == again.fields
    assert bench.core.counters.put_messages == 1 and bench.core.counters.put_repeats == 1
    assert (
        send(bench, b"other", frame_id=frame_id, properties="DELAY\x011").code
        == ResponseCode.DUPLICATE_MISMATCH
    )


@pytest.mark.parametrize("properties", ["DELAY\x013", "WAIT\x01false", "TAGS\x01t"])
def test_a_repeat_of_a_single_message_is_known_after_a_crash_too(
    tmp_path: Path, properties: str
) -> None:
    bench = Bench(tmp_path).open()
    frame_id = FrameId(b"p" * 16, 3)
    first = send(bench, frame_id=frame_id, properties=properties)
    bench.close()
    (
        tmp_path / "store" / "rmq_ray" / "checkpoint"
    ).unlink()  # the windows come from the log, as after a crash
    again = Bench(tmp_path, clock=bench.clock).open(create=False)
    assert (
        send(again, frame_id=frame_id, properties=properties).fields == first.fields
        and again.core.counters.put_repeats == 1
    )
    assert send(again, frame_id=FrameId(b"p" * 16, 4), properties=properties).fields != first.fields
    again.close()
