"""When calls wait, and when they go on."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_ray.errors import ConfigError
from rmq_ray.protocol.breaker import Breaker, BreakerState


def after(outcomes: str, **settings: Any) -> BreakerState:
    """``x``: a call failed, ``.``: it did not; one each millisecond."""
    state = BreakerState(Breaker(**{"window": 4, "pause": 1.0, **settings}))
    for now_ms, outcome in enumerate(outcomes):
        if outcome == "x":
            state.failed(now_ms)
        else:
            state.succeeded()
    return state


@pytest.mark.parametrize(
    ("outcomes", "opened"),
    [
        ("", False),
        ("xxx", False),
        ("xxxx", True),
        ("..xx", True),
        ("...x...x...x", False),
        ("xx..", False),
        ("xxxx.", False),
        ("xxxx.x", True),
        ("xxxx...x", False),
    ],
)
def test_it_opens_at_a_failure_when_half_of_the_last_calls_failed(
    outcomes: str, opened: bool
) -> None:
    assert after(outcomes).open is opened


def test_a_call_that_opens_or_closes_it_is_told() -> None:
    state = after("xxx")
    assert not state.succeeded()
    assert state.failed(0.0) and not state.failed(1.0)
    assert state.succeeded() and not state.succeeded()


def test_while_it_is_open_there_is_one_call_in_a_pause() -> None:
    state = after("xxxx")
    assert state.wait_ms(3.0) == 1_000 and state.wait_ms(503.0) == 500
    assert state.wait_ms(1_003.0) == 0.0
    assert state.wait_ms(1_004.0) == 999.0, "also behind a call that does not return"
    state.failed(1_500.0)
    assert state.wait_ms(2_003.0) == 497.0
    state.succeeded()
    assert state.wait_ms(2_003.0) == 0.0


def test_a_share_is_rounded_up_to_whole_calls() -> None:
    assert after(93 * "." + 7 * "x", window=100, share=0.07).open
    assert not after(94 * "." + 6 * "x", window=100, share=0.07).open


def test_with_a_share_of_all_a_single_success_keeps_it_closed() -> None:
    assert not after("x.xxx.xxx", share=1.0).open and after("xxxx", share=1.0).open


@pytest.mark.parametrize(
    "value",
    [
        {"share": 0.0},
        {"share": 1.5},
        {"share": "half"},
        {"window": 0},
        {"window": True},
        {"window": 20.0},
        {"pause": 0.0},
        {"pause": float("nan")},
        {"pauses": 1},
        7,
        "yes",
    ],
)
def test_what_is_no_breaker_is_refused_with_what_to_give(value: object) -> None:
    with pytest.raises(ConfigError, match="breaker"):
        Breaker.of(value)


def test_what_may_be_given() -> None:
    assert Breaker.of(True) == Breaker() and Breaker.of(Breaker(pause=1)) == Breaker(pause=1)
    assert Breaker.of({"window": 3}) == Breaker(window=3)
    assert Breaker.of(None) is None and Breaker.of(False) is None
