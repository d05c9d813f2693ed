"""Times that users give to calls: delivery times and time-outs, from the usual ones to the ends of
the calendar.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rmq_ray.client.outgoing.send_request import NO_LABELS, checked_request, timeout_in_ms, when
from rmq_ray.errors import ClientError
from rmq_ray.model.message import Message


@pytest.mark.parametrize(
    ("delay", "ms"),
    [
        (timedelta(0), 0),
        (timedelta(microseconds=1), 1),
        (timedelta(milliseconds=7), 7),
        (timedelta(milliseconds=7, microseconds=1), 8),
    ],
)
def test_a_delay_is_rounded_up_to_whole_milliseconds(delay: timedelta, ms: int) -> None:
    assert when(0, delay, None) == f"TIMER_DELAY_MS\x01{ms}\x02"


def test_the_longest_delay_is_the_brokers_matter() -> None:
    assert when(0, timedelta.max, None) == f"TIMER_DELAY_MS\x01{(10**9) * 86_400_000}\x02"


@pytest.mark.parametrize(
    ("delay", "said"),
    [
        (2, r"delay=timedelta\(seconds=2\) for 2 s, or delay_level=2 for level 2 of 18"),
        (19, r"negative: delay=timedelta\(seconds=19\) for 19 s$"),
        (0.5, r"negative: delay=timedelta\(seconds=0.5\) for 0.5 s$"),
        (0, "negative$"),
        (-2, "negative$"),
        (True, "negative$"),
        (float("nan"), "negative$"),
        ("2", "negative$"),
        (timedelta(seconds=-1), "negative$"),
    ],
)
def test_a_delay_without_unit_is_refused_with_what_to_write(delay: object, said: str) -> None:
    with pytest.raises(ClientError, match=said):
        when(0, delay, None)
    with pytest.raises(ClientError, match=said):
        checked_request(Message("orders", b"x", delay=delay), None, NO_LABELS, 0, 10)  # type: ignore[arg-type]


def test_a_local_time_that_is_no_point_in_time_is_a_typed_error() -> None:
    with pytest.raises(ClientError, match="deliver_at"):
        when(0, None, datetime.min)
    assert when(0, None, datetime.min.replace(tzinfo=UTC)) == "TIMER_DELIVER_MS\x011\x02"


class Level(int, Enum):
    THREE = 3


@pytest.mark.parametrize("level", [3, Level.THREE, np.int64(3), np.uint8(3)])
def test_a_delay_level_is_a_plain_number_on_the_wire(level: Any) -> None:
    found = when(level, None, None)
    assert type(found) is int
    assert (
        checked_request(Message("orders", b"x", delay_level=level), None, NO_LABELS, 0, 10).text
        == checked_request("orders", b"x", NO_LABELS, found, 10).text
        == "DELAY\x013\x02"
    )


@pytest.mark.parametrize(
    "wrong", [True, False, np.bool_(True), "3", 3.0, None, pd.NA, np.array([3, 4])]
)
def test_what_is_no_number_is_no_delay_level(wrong: Any) -> None:
    with pytest.raises(ClientError, match="delay_level is"):
        when(wrong, None, None)
    with pytest.raises(ClientError, match="delay_level is"):
        when(wrong, timedelta(1), None)


@pytest.mark.parametrize(
    ("timeout", "ms"),
    [(1, 1_000.0), (1.5, 1_500.0), (Decimal("1.5"), 1_500.0), (np.float32(0.5), 500.0)],
)
def test_a_time_out_is_any_positive_number(timeout: Any, ms: float) -> None:
    assert timeout_in_ms(timeout) == ms and type(timeout_in_ms(timeout)) is float


@pytest.mark.parametrize(
    "wrong",
    [0, -1, float("nan"), float("inf"), "3", None, [1], np.array([1, 2]), 1 + 2j, timedelta(1)],
)
def test_anything_else_is_no_time_out(wrong: Any) -> None:
    with pytest.raises(ClientError, match="timeout is"):
        timeout_in_ms(wrong)
