"""What passes by itself is asked again until the patience is over; everything else comes out at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, cast

import pytest

from rmq_ray.client.instance import outage
from rmq_ray.client.instance.outage import PAUSE_MS, ask_patiently, passes, while_registered
from rmq_ray.clock import ManualClock
from rmq_ray.errors import (
    ClusterError,
    CommitFailed,
    ConnectFailed,
    ConnectionLost,
    ConsumeError,
    HandshakeFailed,
    MalformedFrame,
    RemotingError,
    RequestTimeout,
    ResponseError,
)
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command


def scripted(*outcomes: Command | RemotingError) -> Callable[[int], Command]:
    """An attempt that gives these in turn, the last one for ever, and counts turns."""
    script: Iterator[Command | RemotingError] = iter(outcomes)
    latest: list[Command | RemotingError] = []

    def attempt(turn: int) -> Command:
        assert turn == len(latest)
        latest.append(next(script, outcomes[-1]))
        if isinstance(latest[-1], RemotingError):
            raise latest[-1]
        return latest[-1]

    return attempt


@pytest.mark.parametrize(
    "passing",
    [
        Command(ResponseCode.SYSTEM_BUSY),
        Command(ResponseCode.SERVICE_NOT_AVAILABLE),
        Command(ResponseCode.STILL_RECOVERING),
    ]
    + [error("x") for error in (ConnectFailed, ConnectionLost, RequestTimeout)],
    ids=str,
)
def test_a_broker_that_is_away_or_busy_is_asked_again_after_a_pause(
    passing: Command | RemotingError,
) -> None:
    clock = ManualClock()
    answer = Command(ResponseCode.SUCCESS)
    assert ask_patiently(scripted(passing, passing, answer), clock, 10_000) is answer
    assert clock.monotonic_ms() == 2 * PAUSE_MS


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SUCCESS,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.NO_PERMISSION,
        ResponseCode.SYSTEM_ERROR,
    ],
)
def test_any_other_answer_is_the_callers(code: int) -> None:
    clock = ManualClock()
    answer = Command(code)
    assert ask_patiently(scripted(answer), clock, 10_000) is answer and clock.monotonic_ms() == 0


@pytest.mark.parametrize("error", [HandshakeFailed("secret"), MalformedFrame("junk")], ids=repr)
def test_an_error_that_does_not_pass_is_raised_at_once(error: RemotingError) -> None:
    clock = ManualClock()
    with pytest.raises(type(error)):
        ask_patiently(scripted(error), clock, 10_000)
    assert clock.monotonic_ms() == 0


def test_when_the_patience_is_over_the_last_reason_is_raised() -> None:
    clock = ManualClock()
    with pytest.raises(ConnectFailed, match="refused"):
        ask_patiently(scripted(ConnectionLost("first"), ConnectFailed("refused")), clock, 1_000)
    assert clock.monotonic_ms() == 1_000
    with pytest.raises(ResponseError, match="reads its disk") as caught:
        ask_patiently(
            scripted(Command(ResponseCode.STILL_RECOVERING, remark="reads its disk")), clock, 0
        )
    assert caught.value.response_code == ResponseCode.STILL_RECOVERING


@pytest.mark.parametrize("code", [ResponseCode.STILL_RECOVERING, ResponseCode.SYSTEM_BUSY])
def test_an_error_that_stands_for_such_an_answer_passes_too(code: ResponseCode) -> None:
    assert passes(ResponseError("x", int(code))) and passes(ConsumeError("x", int(code)))


def test_other_errors_pass_if_they_are_retriable() -> None:
    assert passes(ConnectionLost("x")) and passes(CommitFailed("x", "queue"))
    assert not passes(ResponseError("x", int(ResponseCode.NO_PERMISSION)))
    assert not passes(ResponseError("x")) and not passes(HandshakeFailed("x"))


@pytest.mark.parametrize(
    ("told", "looks"),
    [("aa", "faf"), ("abb", "fafaf"), ("abcc", "fafafaf")],
)
def test_routes_count_when_they_are_the_same_before_and_after_a_look_at_the_brokers(
    told: str, looks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, order = iter(told), list[str]()
    monkeypatch.setattr(outage, "wait_for_brokers", lambda *_: order.append("a"))

    def fetch() -> str:
        order.append("f")
        return next(script)

    nobody = cast("Any", None)
    assert while_registered(nobody, ("broker-a",), "why", fetch) == told[-1]
    assert "".join(order) == f"a{looks}" and not list(script)


def test_of_no_broker_expected_nobody_is_asked_who_is_there() -> None:
    numbers = count()
    assert while_registered(cast("Any", None), (), "why", lambda: next(numbers)) == 0


def test_routes_that_change_with_each_look_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count()
    monkeypatch.setattr(outage, "wait_for_brokers", lambda *_: None)
    with pytest.raises(ClusterError, match="brokers come and go: rows would be missing"):
        while_registered(cast("Any", None), ("a",), "rows would be missing", lambda: next(numbers))
