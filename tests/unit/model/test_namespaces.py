"""Names with a namespace in front of them (protocol-behaviour 25)."""

from __future__ import annotations

import pytest

from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.namespaces import (
    queue_with_namespace,
    queue_without_namespace,
    with_namespace,
    without_namespace,
)

PAIRS = [
    ("orders", "ns%orders"),
    ("%RETRY%g", "%RETRY%ns%g"),
    ("%DLQ%g", "%DLQ%ns%g"),
    ("a%b", "ns%a%b"),
]


@pytest.mark.parametrize(("short", "whole"), PAIRS)
@pytest.mark.seed("S3-005", "S3-109")
def test_a_namespace_stands_before_the_name_and_after_the_prefix_of_retries(
    short: str, whole: str
) -> None:
    assert with_namespace("ns", short) == whole == with_namespace("ns", whole)
    assert without_namespace("ns", whole) == short == without_namespace("ns", short)
    assert with_namespace("", short) == short and without_namespace("", whole) == whole
    assert without_namespace("other", whole) == whole


@pytest.mark.parametrize(
    "name",
    [
        "RMQ_SYS_TRACE_TOPIC",
        "rmq_sys_anything",
        "SCHEDULE_TOPIC_XXXX",
        "CID_RMQ_SYS_TRANS",
        "TOOLS_CONSUMER",
        "TBW102",
        "",
    ],
)
def test_the_systems_own_names_have_no_namespace(name: str) -> None:
    assert with_namespace("ns", name) == name


def test_queues_carry_it_in_their_topic() -> None:
    short, whole = MessageQueue("orders", "b", 1), MessageQueue("ns%orders", "b", 1)
    assert (
        queue_with_namespace("ns", short) == whole and queue_without_namespace("ns", whole) == short
    )
    assert queue_with_namespace("", short) is short and queue_without_namespace("", whole) is whole
