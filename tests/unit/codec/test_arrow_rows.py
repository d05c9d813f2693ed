"""Predicates of bulk reads, and the columns of Spark's Kafka source."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rmq_ray.codec.arrow.arrow_rows import KAFKA_NEEDS, Rows, kafka_columns, to_rows
from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.model.arrow import COLUMNS

BODIES = [b"%d" % n for n in range(60)]


def records() -> tuple[bytes, Any]:
    """60 messages: tag a, b or none in turn; keys k0..k59, every fourth has two, every fifth
    none.
    """
    properties = []
    for n in range(60):
        keys = "" if n % 5 == 0 else f"k{n} extra" if n % 4 == 0 else f"k{n}"
        text = "" if not keys else f"KEYS\x01{keys}\x02"
        text += ("", "TAGS\x01a\x02", "TAGS\x01b\x02")[n % 3]
        properties.append(f"{text}UNIQ_KEY\x01{n:032X}")
    return encode_frame("orders", 2, BODIES, properties, 1_700_000_000_000, None)


def bodies(rows: Rows) -> list[int]:
    raw, sizes = records()
    return [
        int(body)
        for body in to_rows("orders", "broker-a", raw, sizes, rows).column("body").to_pylist()
    ]


def test_without_predicates_every_row_comes() -> None:
    assert bodies(Rows(COLUMNS)) == list(range(60))


def test_only_the_wanted_tags_come_and_their_column_only_where_it_is_asked_for() -> None:
    assert bodies(Rows(("body",), tags=("a",))) == [n for n in range(60) if n % 3 == 1]
    assert bodies(Rows(("body", "tag"), tags=("a", "b"))) == [n for n in range(60) if n % 3]
    assert bodies(Rows(("body",), tags=("c",))) == []
    raw, sizes = records()
    assert to_rows("orders", "broker-a", raw, sizes, Rows(("body",), tags=("a",))).schema.names == [
        "body"
    ]


def test_a_key_is_found_among_several() -> None:
    assert bodies(Rows(("body",), key="k7")) == [7]
    assert bodies(Rows(("body",), key="extra")) == [n for n in range(60) if n % 4 == 0 and n % 5]
    assert bodies(Rows(("body",), tags=("b",), key="extra")) == [
        n for n in range(60) if n % 4 == 0 and n % 5 and n % 3 == 2
    ]
    assert bodies(Rows(("body",), key="k0")) == []


@pytest.mark.parametrize("count", [60, 0])
def test_kafkas_columns_hold_the_first_key_and_the_queue(count: int) -> None:
    raw, sizes = records() if count else (b"", [])
    found = kafka_columns(to_rows("orders", "broker-a", raw, sizes, Rows(KAFKA_NEEDS)))
    assert found.schema.names == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
    ]
    assert found.schema.field("key").type == pa.binary()
    assert found.column("value").to_pylist() == BODIES[:count]
    assert found.column("key").to_pylist() == [
        None if n % 5 == 0 else b"k%d" % n for n in range(count)
    ]
    assert set(found.column("partition").to_pylist()) <= {2} and set(
        found.column("timestampType").to_pylist()
    ) <= {1}
