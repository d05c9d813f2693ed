"""The forms in which users say where a bulk read begins and ends."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from rmq_ray.errors import ClientError, GroupNotFound
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.scan.scan_positions import LikeGroup, group_offsets, normal, of_queues

A, B = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ({A: 5, B: np.int64(7)}, {A: 5, B: 7}),
        ('{"orders":{"broker-a":{"0":5,"1":-1}}}', {A: 5, B: -1}),
        ({"orders": {"broker-a": {0: 5, "1": -2}}}, {A: 5, B: -2}),
        (datetime(2024, 5, 1, tzinfo=UTC), 1_714_521_600_000),
        (1_714_521_600_000, 1_714_521_600_000),
        (LikeGroup("daily"), LikeGroup("daily")),
        ({}, {}),
    ],
)
def test_every_form_is_understood(position: Any, expected: Any) -> None:
    assert normal(position) == expected


@pytest.mark.parametrize(
    ("position", "message"),
    [
        ("first", "'first' must be 'earliest', 'latest'"),
        (-5, "must be 'earliest'"),
        (True, "must be"),
        (1.5, "must be"),
        (1_795_834_904, "seconds, perhaps"),
        (None, "must be"),
        ("{", "are no JSON"),
        ('{"orders":5}', "must be given for MessageQueues"),
        ('{"orders":{"broker-a":5}}', "a mapping of brokers to queues"),
        ('{"orders":{"broker-a":{"x":5}}}', "'x' is no queue id"),
        ('{"orders":{"broker-a":{"0":"5"}}}', "must be an integer, not '5'"),
        ('{"orders":{"broker-a":{"0":-3}}}', "-1 for latest or -2 for earliest, not -3"),
        ({A: True}, "must be an integer"),
        ({5: 5}, "must be given for MessageQueues"),
    ],
)
def test_everything_else_is_refused_with_what_would_be_right(position: Any, message: str) -> None:
    with pytest.raises(ClientError, match=message):
        normal(position)


def test_words_among_offsets_are_the_queues_own_bounds() -> None:
    assert of_queues({A: -2, B: -1}, {A: (3, 9), B: (0, 4)}) == {A: 3, B: 4}


def test_a_group_stands_where_it_committed_and_at_the_beginning_of_other_queues() -> None:
    bounds = {A: (0, 9), B: (3, 9)}
    assert group_offsets("daily", {A: 7, B: None}, bounds) == {A: 7, B: 3}
    assert group_offsets("daily", {A: 0, B: None}, bounds) == {A: 0, B: 3}, (
        "a position at the beginning is one"
    )
    assert group_offsets("daily", {}, {}) == {}
    with pytest.raises(
        GroupNotFound, match="'dayli' has no position in orders: see `rmq-ray group list`"
    ) as caught:
        group_offsets("dayli", {A: None, B: None}, bounds)
    assert caught.value.args[1] == "dayli"
    with pytest.raises(ClientError, match="group"):
        group_offsets("not a name!", {A: None}, bounds)
