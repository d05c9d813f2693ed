"""What becomes of a body that shall be columns: fits, or is rejected with a reason."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from rmq_ray.errors import ConfigError, TableError
from rmq_ray.table.columns import BodyDecoder, check_columns, parse_columns
from rmq_ray.table.rules import check_evolution
from tests.support.tables.table_rig import MemoryTopic

ALL = {
    "s": "string",
    "b": "boolean",
    "i": "int",
    "l": "long",
    "f": "float",
    "d": "double",
    "t": "timestamp",
    "day": "date",
    "raw": "binary",
}
DECLARED = {("x" if name == "day" else name): kind for name, kind in ALL.items()}


def split(decode: str, columns: dict[str, str], bodies: list[bytes]) -> tuple[Any, Any]:
    topic = MemoryTopic(1)
    for body in bodies:
        topic.send(0, body)
    (batch,) = [part for _, _, part, _ in topic.read({topic.queues[0]: (0, len(bodies))})]
    return BodyDecoder(decode, columns).split(batch)


def test_json_becomes_columns_of_every_type() -> None:
    body = {
        "s": "ä",
        "b": True,
        "i": -5,
        "l": 1 << 40,
        "f": 0.5,
        "d": 3,
        "t": "2026-11-25T10:00:00.5Z",
        "x": "2026-11-25",
        "raw": "aGk=",
        "more": [1, {"a": None}],
    }
    good, bad = split("json", DECLARED, [json.dumps(body).encode(), b"{}"])
    assert bad.num_rows == 0
    first, second = ({name: row[name] for name in DECLARED} for row in good.to_pylist())
    assert first == {
        "s": "ä",
        "b": True,
        "i": -5,
        "l": 1 << 40,
        "f": 0.5,
        "d": 3.0,
        "t": datetime(2026, 11, 25, 10, 0, 0, 500_000, tzinfo=UTC),
        "x": date(2026, 11, 25),
        "raw": b"hi",
    }
    assert set(second.values()) == {None}, "missing is null"
    assert good.column("queue_offset").to_pylist() == [0, 1]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"no json", "malformed"),
        (b"[1]", "Expected `object`"),
        (b'{"i": 2147483648}', "$.i"),
        (b'{"i": "5"}', "$.i"),
        (b'{"i": 1.5}', "$.i"),
        (b'{"s": 5}', "$.s"),
        (b'{"t": "yesterday"}', "$.t"),
        (b'{"s": "\xff"}', ""),
        (b'{"s": "a"}{"s": "b"}', "trailing"),
    ],
)
def test_what_does_not_fit_is_rejected_with_its_reason_and_whole(body: bytes, reason: str) -> None:
    good, bad = split("json", DECLARED, [b'{"s": "fits"}', body])
    assert good.column("s").to_pylist() == ["fits"]
    (row,) = bad.to_pylist()
    assert (row["body"], row["queue_offset"]) == (body, 1) and reason in row["_reason"]


def test_msgpack_and_arrow_bodies_follow_the_same_rules() -> None:
    columns = {"n": "long", "raw": "binary"}
    good, bad = split(
        "msgpack",
        columns,
        [msgpack.packb({"n": 1, "raw": b"x", "z": 2}), msgpack.packb({"n": "1"})],
    )
    assert (good.column("n").to_pylist(), good.column("raw").to_pylist()) == ([1], [b"x"])
    assert bad.num_rows == 1
    good, bad = split("arrow", columns, [arrow({"n": [7]}), arrow({"n": [1, 2]}), b"none"])
    assert good.column("n").to_pylist() == [7] and good.column("raw").to_pylist() == [None]
    assert "one row" in bad.column("_reason").to_pylist()[0] and bad.num_rows == 2


def arrow(columns: dict[str, list[Any]]) -> bytes:
    sink, table = io.BytesIO(), pa.table(columns)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_names_and_types_that_cannot_be_are_refused() -> None:
    assert parse_columns("user string,\n amount double") == {"user": "string", "amount": "double"}
    for columns in (
        {"a": "varchar"},
        {"body": "string"},
        {"_x": "int"},
        {"a b": "int"},
        {"day": "date"},
    ):
        with pytest.raises(ConfigError):
            check_columns(columns)
    with pytest.raises(ConfigError, match="twice"):
        parse_columns("a int, a long")


def test_columns_are_added_and_widened_and_nothing_else() -> None:
    old = {"a": "int", "b": "float"}
    check_evolution(old, {"a": "long", "b": "double", "c": "string"})
    for new in ({"a": "int"}, {"a": "string", "b": "float"}, {"a": "int", "b": "int"}):
        with pytest.raises(TableError):
            check_evolution(old, new)
    with pytest.raises(TableError):
        check_evolution({"a": "long"}, {"a": "int"})
