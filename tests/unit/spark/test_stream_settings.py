"""Wrong settings of streams and writes are told before anything is asked or started. The sessions
are no sessions.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rmq_ray.errors import ClientError, RmqError, SparkError, TopicNotWritable
from rmq_ray.spark import Once, batch, read_stream, read_topic, write_stream_topic, write_topic
from rmq_ray.spark.source import check_version

SESSION: Any = SimpleNamespace(_jvm=object(), version="3.5.7")
WHERE = {"name_servers": "127.0.0.1:1"}


@pytest.mark.parametrize(
    ("topic", "settings", "error", "told"),
    [
        ((), {}, SparkError, "give a topic"),
        ("bad topic", {}, ClientError, "bad topic"),
        ("orders", {"group": "bad group"}, ClientError, "bad group"),
        (
            "orders",
            {"max_rows_per_trigger": 0},
            SparkError,
            "max_rows_per_trigger must be at least 1, not 0",
        ),
        ("orders", {"splits": 0}, SparkError, "splits must be at least 1"),
        ("orders", {"start": "tomorrow"}, ClientError, "'tomorrow'"),
        ("orders", {"start": '{"orders": {"broker-a": 5}}'}, ClientError, "must be a mapping"),
        ("orders", {"columns": ["value"]}, SparkError, "unknown column 'value'"),
        (
            "orders",
            {"columns": ["body"], "kafka_compat": True},
            SparkError,
            "choose among them with select",
        ),
        ("orders", {"columns": "body"}, SparkError, "list of different names, not 'body'"),
        (
            "orders",
            {"key": 5},
            SparkError,
            "key must be one of the messages' keys, a string, not 5",
        ),
        ("orders", {"key": ""}, SparkError, "a string, not ''"),
        (
            "orders",
            {"tags": ["a"]},
            ClientError,
            "tags must be an expression like 'paid || refund'",
        ),
    ],
)
def test_wrong_settings_of_a_stream_are_told_by_read_stream(
    topic: Any, settings: dict[str, Any], error: type[RmqError], told: str
) -> None:
    with pytest.raises(error, match=told):
        read_stream(SESSION, topic, **WHERE, **settings)


def test_sessions_without_a_jvm_and_other_versions_are_told() -> None:
    with pytest.raises(SparkError, match="Spark Connect"):
        read_stream(SimpleNamespace(version="3.5.7"), "orders", **WHERE)  # type: ignore[arg-type]
    with pytest.raises(SparkError, match=r"this is 4\.0\.1: use foreach_batch"):
        read_stream(SimpleNamespace(_jvm=object(), version="4.0.1"), "orders", **WHERE).dataframe()  # type: ignore[arg-type]
    assert check_version("3.5.7") is None


def test_what_is_no_running_session_is_told() -> None:
    stopped = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    for session, told in (
        ("orders", "not 'orders'"),
        (None, "not None"),
        (stopped, "not one that was stopped"),
    ):
        with pytest.raises(
            SparkError, match=f"must be a running SparkSession of this process.*{told}"
        ):
            read_topic(session, "orders", **WHERE)  # type: ignore[arg-type]
        with pytest.raises(SparkError, match=told), batch(session, "orders", group="g", **WHERE):  # type: ignore[arg-type]
            pass
    with pytest.raises(SparkError, match="either topic= .* or pattern="):
        read_topic("orders", **WHERE)  # type: ignore[arg-type]


def test_what_is_no_function_or_no_trigger_is_told_by_foreach_batch() -> None:
    stream = read_stream(SESSION, "orders", **WHERE)
    with pytest.raises(SparkError, match="takes a function"):
        stream.foreach_batch("print", checkpoint="x")  # type: ignore[arg-type]
    with pytest.raises(SparkError, match="trigger_seconds"):
        stream.foreach_batch(print, checkpoint="x", trigger_seconds=-1)


def test_names_and_numbers_of_a_write_are_checked() -> None:
    cases: tuple[tuple[Any, int], ...] = (("", 8), ("job/1", 0), ("job/1", 100_000), (5, 8))
    for write, partitions in cases:
        with pytest.raises(SparkError, match="counts once needs a name"):
            Once(write, partitions)
    fields = [SimpleNamespace(name="body", dataType=SimpleNamespace(simpleString=lambda: "string"))]
    df: Any = SimpleNamespace(
        columns=["body"], schema=SimpleNamespace(fields=fields), isStreaming=False
    )
    with pytest.raises(SparkError, match="timeout must be"):
        write_topic(df, "orders", timeout=0, **WHERE)
    with pytest.raises(SparkError, match="progress must be a function"):
        write_topic(df, "orders", progress=True, **WHERE)  # type: ignore[arg-type]
    with pytest.raises(SparkError, match="write_stream_topic takes streaming ones"):
        write_topic(SimpleNamespace(isStreaming=True), "orders", **WHERE)  # type: ignore[arg-type]
    with pytest.raises(TopicNotWritable, match="belongs to a consumer group"):
        write_topic(df, "%DLQ%orders", **WHERE)
    with pytest.raises(SparkError, match="takes a streaming DataFrame"):
        write_stream_topic(df, "orders", checkpoint="x", **WHERE)
    for wrong in ([1, 2], "rows", None):
        with pytest.raises(
            SparkError, match=f"takes a Spark DataFrame, not a .*{type(wrong).__name__}"
        ):
            write_topic(wrong, "orders", **WHERE)  # type: ignore[arg-type]
    with pytest.raises(SparkError, match="2 columns of that name"):
        write_topic(
            SimpleNamespace(columns=["body", "body"], schema=SimpleNamespace(fields=fields * 2)),
            "orders",
            **WHERE,
        )  # type: ignore[arg-type]
