"""Trace records as Apache RocketMQ's clients write and read them (protocol-behaviour 25)."""

from __future__ import annotations

import pytest

from rmq_ray.model.trace import (
    EndTransaction,
    Pub,
    SubAfter,
    SubBefore,
    Trace,
    TraceCode,
    TraceMessageType,
    decode,
    encode,
    search_keys,
)

PUB = Pub(
    1_700_000_000_000,
    "DefaultRegion",
    "web",
    "orders",
    "0A00",
    "paid",
    "o-1 o-2",
    "10.0.0.1:10911",
    5,
    3,
    TraceMessageType.NORMAL,
    "0A000001",
    True,
)
BEFORE = SubBefore(1_700_000_000_100, "DefaultRegion", "billing", "REQ", "0A00", 2, "o-1 o-2")
AFTER = SubAfter("REQ", "0A00", 7, False, "o-1 o-2", TraceCode.FAILED, 1_700_000_000_200, "billing")

END = EndTransaction(
    1_700_000_000_300,
    "DefaultRegion",
    "web",
    "orders",
    "0A00",
    "paid",
    "o-1",
    "10.0.0.1:10911",
    2,
    "0A00",
    "COMMIT_MESSAGE",
    True,
)


def test_the_fields_of_each_kind_stand_in_rocketmqs_order() -> None:
    assert encode(PUB) == "\x01".join(
        [
            "Pub",
            "1700000000000",
            "DefaultRegion",
            "web",
            "orders",
            "0A00",
            "paid",
            "o-1 o-2",
            "10.0.0.1:10911",
            "5",
            "3",
            "0",
            "0A000001",
            "true\x02",
        ]
    )
    assert encode(BEFORE) == "\x01".join(
        [
            "SubBefore",
            "1700000000100",
            "DefaultRegion",
            "billing",
            "REQ",
            "0A00",
            "2",
            "o-1 o-2\x02",
        ]
    )
    assert encode(AFTER) == "\x01".join(
        ["SubAfter", "REQ", "0A00", "7", "false", "o-1 o-2", "4", "1700000000200", "billing\x02"]
    )
    assert encode(END) == "\x01".join(
        [
            "EndTransaction",
            "1700000000300",
            "DefaultRegion",
            "web",
            "orders",
            "0A00",
            "paid",
            "o-1",
            "10.0.0.1:10911",
            "2",
            "0A00",
            "COMMIT_MESSAGE",
            "true\x02",
        ]
    )


@pytest.mark.parametrize(
    "record", [PUB, BEFORE, AFTER, END], ids=lambda record: type(record).__name__
)
def test_what_was_written_is_read(record: Trace) -> None:
    assert decode((encode(record) * 2).encode()) == [record, record]


def test_what_java_writes_without_values_or_in_short_is_read() -> None:
    java = (
        "Pub\x011\x01DefaultRegion\x01g\x01T\x01ID\x01null\x01\x01h:1\x015\x013\x010\x01OFF\x01true\x02"
        "SubAfter\x01R\x01ID\x019\x01true\x01k\x010\x02"
    )
    pub, after = decode(java.encode())
    assert isinstance(pub, Pub) and pub.tag == "" and pub.success
    assert after == SubAfter("R", "ID", 9, True, "k", 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x02\x02",
        "EndTransaction\x011\x02",
        "Pub\x01x\x02",
        "Pub" + "\x01x" * 13,
        "SubBefore\x011\x01r\x02",
        "\udcff",
    ],
)
def test_what_is_not_understood_is_left_out(text: str) -> None:
    assert decode(text.encode("utf-8", "surrogateescape")) == []


def test_separators_inside_values_cannot_break_a_record() -> None:
    (found,) = decode(encode(SubBefore(1, "r", "g", "q", "ID", 0, "a\x01b\x02c")).encode())
    assert isinstance(found, SubBefore) and found.keys == "a b c"


def test_a_trace_is_found_by_its_ids_and_keys() -> None:
    assert search_keys([PUB, BEFORE, AFTER]) == ["0A00", "o-1", "o-2"]
