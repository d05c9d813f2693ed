"""Moments as milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.errors import ClientError
from rmq_ray.model.moments import moment_ms, unless_seconds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(ms=st.integers(0, 1 << 47), microseconds=st.integers(0, 999), hours=st.integers(-12, 14))
def test_a_moment_is_the_millisecond_that_it_lies_in_whatever_its_zone(
    ms: int, microseconds: int, hours: int
) -> None:
    moment = EPOCH + timedelta(milliseconds=ms, microseconds=microseconds)
    assert moment_ms(moment) == ms
    shifted = moment + timedelta(hours=hours)
    local = shifted.replace(tzinfo=None)
    assert moment_ms(local.replace(tzinfo=UTC)) == ms + hours * 3_600_000
    assert moment_ms(moment.astimezone().replace(tzinfo=None)) in {
        ms,
        ms - 3_600_000,
        ms + 3_600_000,
    }


def test_seconds_are_taken_for_seconds_and_nothing_else_is() -> None:
    now_s = 1_795_834_904
    for at in (0, 5, 99_999_999, 100_000_000_000, now_s * 1_000, 1 << 62):
        assert unless_seconds(at) == at
    for at in (100_000_000, now_s, 99_999_999_999):
        with pytest.raises(ClientError, match=r"in 197[0-3].* or a datetime"):
            unless_seconds(at)
