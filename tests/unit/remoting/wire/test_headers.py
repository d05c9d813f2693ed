"""Ext fields as values: wire names, types, defaults, and clear words about what is missing."""

from __future__ import annotations

import inspect
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.model.ids import FrameId
from rmq_ray.remoting.wire import headers
from rmq_ray.remoting.wire.header import Header, HeaderInvalid
from rmq_ray.remoting.wire.headers import (
    ConsumerGroupHeader,
    CreateTopicHeader,
    EndTransactionHeader,
    PullAnswerHeader,
    PullHeader,
    QueryMessageHeader,
    QueueHeader,
    RegisterBrokerHeader,
    RouteHeader,
    SendAnswerHeader,
    SendBackHeader,
    SendHeader,
    UnregisterClientHeader,
)
from tests.support.stores.golden_frames import GOLDEN

CLASSES = [
    value
    for _, value in inspect.getmembers(headers, inspect.isclass)
    if issubclass(value, Header) and value is not Header
]
BY_NAME = {golden.name.split()[0]: golden.fields for golden in GOLDEN}
VALUES = {
    "int": st.integers(-(1 << 63), (1 << 63) - 1),
    "Int32": st.integers(-(1 << 31), (1 << 31) - 1),
    "str": st.text(max_size=10),
    "bool": st.booleans(),
    "FrameId": st.builds(
        FrameId, st.binary(min_size=16, max_size=16), st.integers(0, (1 << 64) - 1)
    ),
}


@st.composite
def any_header(draw: st.DrawFn) -> Header:
    cls = draw(st.sampled_from(CLASSES))
    values: dict[str, Any] = {}
    for name, annotation in cls.__annotations__.items():
        kind, _, optional = annotation.partition(" | ")
        values[name] = draw(VALUES[kind] | st.none() if optional else VALUES[kind])
    made: Header = cls(**values)
    return made


@settings(deadline=None)
@given(any_header())
def test_every_header_is_read_back_from_its_fields(made: Header) -> None:
    fields = made.to_fields()
    assert all(type(value) is str for value in fields.values()) and list(fields) == sorted(fields)
    assert type(made).from_fields(fields | {"ReqT": "0", "bname2": "x"}) == made


@pytest.mark.seed("S4-083")
def test_a_pull_has_the_eleven_fields_of_rocketmq() -> None:
    made = PullHeader("g", "T", 3, 77, 32, 3, 70, 15_000, 1_795_274_240_373, "TagA", "TAG")
    assert made.to_fields() == {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "3",
        "queueOffset": "77",
        "maxMsgNums": "32",
        "sysFlag": "3",
        "commitOffset": "70",
        "suspendTimeoutMillis": "15000",
        "subscription": "TagA",
        "subVersion": "1795274240373",
        "expressionType": "TAG",
    }


@pytest.mark.seed("S4-104")
def test_a_pulls_answer_tells_next_min_and_max_offset_and_a_broker() -> None:
    assert PullAnswerHeader(1, 8, 0, 90).to_fields() == {
        "suggestWhichBrokerId": "1",
        "nextBeginOffset": "8",
        "minOffset": "0",
        "maxOffset": "90",
    }


@pytest.mark.seed("S4-186")
def test_a_send_back_has_its_seven_fields() -> None:
    made = SendBackHeader(5, "g", 0, "ID", "T", False, 16)
    assert made.to_fields() == {
        "offset": "5",
        "group": "g",
        "delayLevel": "0",
        "originMsgId": "ID",
        "originTopic": "T",
        "unitMode": "false",
        "maxReconsumeTimes": "16",
    }


def test_captured_sends_are_read_and_written_letter_by_letter() -> None:
    fields = BY_NAME["V6"]
    assert fields is not None
    sent = SendHeader.from_v2(fields)
    assert (sent.producer_group, sent.topic, sent.queue_id, sent.born_ms, sent.broker_name) == (
        "gp",
        "LabA",
        3,
        1_795_274_105_562,
        "broker-a",
    )
    assert (sent.batch, sent.unit_mode, sent.reconsume_times, sent.max_reconsume_times) == (
        False,
        False,
        0,
        None,
    )
    assert sent.to_v2() == fields
    short = SendHeader.from_v2(BY_NAME["V10"])
    assert (short.batch, short.broker_name, short.to_v2()) == (None, None, BY_NAME["V10"])


def test_captured_answers_and_requests_are_read() -> None:
    assert SendAnswerHeader.from_fields(BY_NAME["V11"]) == SendAnswerHeader(
        "7F000001000051AF000000026B122947", 0, 9
    )
    assert QueueHeader.from_fields(BY_NAME["V8"]) == QueueHeader("LabPy", 0)
    assert RouteHeader.from_fields(BY_NAME["V13"]) == RouteHeader("LabPy")
    assert ConsumerGroupHeader.from_fields(BY_NAME["V3"]) == ConsumerGroupHeader("cgA")


def test_optional_fields_may_be_absent() -> None:
    sent = SendHeader.from_v2({"a": "g", "b": "T", "e": "-1", "f": "0", "g": "1", "h": "0"})
    assert (sent.default_topic, sent.default_topic_queues, sent.properties, sent.frame_id) == (
        "TBW102",
        4,
        None,
        None,
    )
    assert UnregisterClientHeader.from_fields({"clientID": "c"}) == UnregisterClientHeader("c")
    assert EndTransactionHeader.from_fields(
        {
            "producerGroup": "g",
            "tranStateTableOffset": "1",
            "commitLogOffset": "2",
            "commitOrRollback": "8",
            "fromTransactionCheck": "TRUE",
            "msgId": "m",
        }
    ) == EndTransactionHeader("g", 1, 2, 8, "m", True)


def test_names_that_are_not_camel_case_of_ours_are_rocketmqs() -> None:
    assert QueryMessageHeader("T", "k", 32, 0, 1, True).to_fields() == {
        "topic": "T",
        "key": "k",
        "maxNum": "32",
        "beginTimestamp": "0",
        "endTimestamp": "1",
        "_UNIQUE_KEY_QUERY": "true",
    }
    assert CreateTopicHeader("T", "TBW102", 4, 4, 6).to_fields() == {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    registered = RegisterBrokerHeader(
        "b", "h:1", "C", "h:2", 0, False, zlib.crc32(b"x") & 0x7FFFFFFF
    )
    assert registered.to_fields() == {
        "brokerName": "b",
        "brokerAddr": "h:1",
        "clusterName": "C",
        "haServerAddr": "h:2",
        "brokerId": "0",
        "compressed": "false",
        "bodyCrc32": str(zlib.crc32(b"x") & 0x7FFFFFFF),
    }


@pytest.mark.parametrize("fields", [None, {}, {"topic": "T"}])
def test_a_missing_field_is_named(fields: dict[str, str] | None) -> None:
    with pytest.raises(HeaderInvalid, match="queueId|topic") as caught:
        QueueHeader.from_fields(fields)
    assert caught.value.code == 1


@pytest.mark.parametrize(
    "text", ["", "x", "1.0", "0x10", "1_0", "2147483648", "-2147483649", "9" * 5_000, "None"]
)
def test_what_is_no_integer_of_its_size_is_refused(text: str) -> None:
    with pytest.raises(HeaderInvalid, match="queueId"):
        QueueHeader.from_fields({"topic": "T", "queueId": text})


@pytest.mark.parametrize("text", ["00", "z" * 48, "0" * 47, "0" * 31 + "g" + "0" * 16])
def test_a_broken_frame_id_is_refused(text: str) -> None:
    with pytest.raises(HeaderInvalid, match="rmqFrame"):
        SendHeader.from_v2(
            {"a": "g", "b": "T", "e": "0", "f": "0", "g": "1", "h": "0", "rmqFrame": text}
        )
