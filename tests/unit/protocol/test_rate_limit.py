"""Token buckets of topics, groups and accounts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.protocol.rate_limit import DEBT_S, Limit, RateLimiter, TokenBucket, limits_of, number


@given(
    rate=st.integers(1, 10_000),
    comes=st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 2_000)), max_size=60),
)
def test_what_goes_through_is_the_rate_and_a_second_and_one_frame(
    rate: int, comes: list[tuple[int, int]]
) -> None:
    bucket, now_ms, through, largest = TokenBucket(rate), 0.0, 0, 0
    for pause_ms, size in comes:
        now_ms += pause_ms
        size = min(size, DEBT_S * rate)  # a larger one pays for ten seconds only
        if not bucket.wait_ms(now_ms):
            bucket.take(size, now_ms)
            through, largest = through + size, max(largest, size)
    assert through <= rate * (now_ms / 1_000 + 1) + largest + 1


def test_a_frame_larger_than_the_rate_passes_and_the_next_waits() -> None:
    bucket = TokenBucket(1_000)
    assert bucket.wait_ms(0) == 0
    bucket.take(3_000, 0)
    assert bucket.wait_ms(0) == 2_000
    assert bucket.wait_ms(1_999) == 1.0
    assert bucket.wait_ms(2_001) == 0
    bucket.take(1 << 30, 2_001)
    assert bucket.wait_ms(2_001) == pytest.approx(DEBT_S * 1_000)


def test_a_send_is_held_to_its_topic_and_its_account() -> None:
    limiter = RateLimiter()
    assert not limiter.active
    limiter.set({("topic", "a"): Limit(1_000, 0), ("account", "bob"): Limit(0, 2)}, 0)
    assert limiter.active
    assert limiter.send("a", "", 1_500, 1, 0) == (0, "")
    assert limiter.send("a", "", 1, 1, 0) == (500, "topic a")
    assert limiter.send("b", "bob", 1 << 20, 3, 0) == (0, "")
    assert limiter.send("b", "bob", 1, 1, 0)[1] == "account bob"
    assert limiter.send("b", "", 1 << 20, 1, 0) == (0, ""), "whoever has no limit"
    assert limiter.refused_sends == 2


def test_what_is_handed_out_counts_beside_what_is_sent() -> None:
    limiter = RateLimiter()
    limiter.set({("account", "bob"): Limit(0, 10), ("group", "g"): Limit(500, 0)}, 0)
    limiter.send("b", "bob", 1, 20, 0)
    assert limiter.hand_out_wait_ms("other", "bob", 0) == 0
    assert limiter.page("g", "bob", 256, 1 << 20) == (10, 500)
    limiter.handed_out("g", "bob", 1_000, 5, 0)
    assert limiter.hand_out_wait_ms("g", "", 0) == 1_000
    assert limiter.delayed_pulls == 1


def test_a_limit_that_stays_keeps_its_debt_when_another_changes() -> None:
    limiter = RateLimiter()
    first = {("topic", "a"): Limit(100, 0), ("topic", "b"): Limit(100, 0)}
    limiter.set(first, 0)
    limiter.send("a", "", 300, 1, 0)
    limiter.send("b", "", 300, 1, 0)
    limiter.set({**first, ("topic", "b"): Limit(1_000, 0)}, 0)
    assert limiter.send("a", "", 1, 1, 0)[0] == 2_000
    assert limiter.send("b", "", 1, 1, 0)[0] == 0
    limiter.set({}, 0)
    assert not limiter.active and limiter.send("a", "", 1, 1, 0)[0] == 0


def test_limits_are_read_from_changed_settings() -> None:
    changes = {
        "pull_bytes_max": "5",
        "limit.topic.a.bytes_per_s": "1 MiB",
        "limit.topic.a.messages_per_s": "7",
        "limit.account.x.y.messages_per_s": "1",
        "limit.group.g.messages_per_s": "0",
    }
    assert limits_of(changes) == {
        ("topic", "a"): Limit(1 << 20, 7),
        ("account", "x.y"): Limit(0, 1),
    }
    assert (number("10MiB"), number("5")) == (10 << 20, 5)
