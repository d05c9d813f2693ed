"""What Spark and Ray Data refuse alike, each with errors of its own."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_ray.client.scan.bulk_arguments import checked_columns, frame_timeout_ms, topic_or_pattern
from rmq_ray.errors import ClientError, RmqError, SparkError
from rmq_ray.model.arrow import COLUMNS

BOTH = pytest.mark.parametrize("error", [ClientError, SparkError])


@BOTH
def test_columns_are_checked_before_anything_is_read(error: type[RmqError]) -> None:
    assert checked_columns(None, error) == list(COLUMNS) and checked_columns(
        ("body", "tag"), error
    ) == ["body", "tag"]
    wrong: tuple[tuple[Any, str], ...] = (
        (["value"], "unknown column 'value'; a topic has topic, broker"),
        ([], "list of different names"),
        (["tag", "tag"], "different"),
        ("body", "list of different names, not 'body'"),
    )
    for columns, message in wrong:
        with pytest.raises(error, match=message):
            checked_columns(columns, error)


@BOTH
def test_either_a_topic_or_a_pattern_is_given(error: type[RmqError]) -> None:
    assert topic_or_pattern("orders", None, error) == "orders" and topic_or_pattern(
        ["a", "b"], None, error
    ) == ["a", "b"]
    assert topic_or_pattern(None, "orders-.*", error) == "orders-.*"
    for topic, pattern in ((None, None), ("orders", "orders-.*")):
        with pytest.raises(error, match="either topic= .* or pattern="):
            topic_or_pattern(topic, pattern, error)


@BOTH
def test_a_frames_timeout_is_a_millisecond_to_an_hour(error: type[RmqError]) -> None:
    assert frame_timeout_ms(0.001, error) == 1 and frame_timeout_ms(3_600, error) == 3_600_000
    for wrong in (0, -1, 3_601, float("nan")):
        with pytest.raises(error, match="timeout must be a millisecond to an hour"):
            frame_timeout_ms(wrong, error)
