"""Moments as milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.model.moments import moment_ms

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
