"""What passes by itself is asked again until the patience is over; everything else comes out at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
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


# --- queues of all brokers ------------------------------------------------------------------------

AWAY = ConnectFailed("refused")


def looked_up(
    monkeypatch: pytest.MonkeyPatch, *told: str | RemotingError, brokers: tuple[str, ...] = ("a",)
) -> tuple[str, str, float]:
    """(the queues of topic t, in which order was asked, the time that it took) where looks tell
    these, a letter for each queue, none: no such topic. "w": who is there, "l": a look.
    """
    script, order, clock = iter(told), list[str](), ManualClock()
    monkeypatch.setattr(outage, "_await_registered", lambda *_: order.append("w"))

    def look() -> Any:
        order.append("l")
        found = next(script)
        if isinstance(found, RemotingError):
            raise found
        return {"t": tuple(found)} if found else {}

    instance = cast("Any", SimpleNamespace(clock=clock))
    found = while_registered(instance, brokers, "rows would be missing", look)
    return "".join(found.get("t", ())), "".join(order), clock.monotonic_ms()


@pytest.mark.parametrize(
    ("told", "order"),
    [
        (["xy", "xy"], "wlwl"),
        (["x", "xy"], "wlwl"),
        (["xy", "x", "xy"], "wlwlwl"),
        (["xy", "x", "x"], "wlwlwl"),
        (["xy", "", ""], "wlwlwl"),
        (["", "xy"], "wlwl"),
        ([AWAY, "xy", AWAY, AWAY, "xy"], "wllwlll"),
    ],
)
def test_a_look_counts_that_follows_one_at_who_is_there_and_lacks_nothing_of_the_one_before(
    told: list[str | RemotingError], order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert looked_up(monkeypatch, *told)[:2] == (told[-1], order)


def test_of_no_broker_expected_there_is_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked_up(monkeypatch, "xy", brokers=()) == ("xy", "l", 0)
    with pytest.raises(ConnectFailed):
        looked_up(monkeypatch, AWAY, brokers=())


def test_the_patience_is_one_for_all_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    less_and_less = ["".join(map(chr, range(number))) for number in range(40, 0, -1)]
    monkeypatch.setattr(outage, "PATIENCE_MS", 3_000)
    with pytest.raises(ClusterError, match="came and went for 3 s .*: rows would be missing"):
        looked_up(monkeypatch, *less_and_less)
    with pytest.raises(ConnectFailed):
        looked_up(monkeypatch, *[AWAY] * 40)
    with pytest.raises(HandshakeFailed):
        looked_up(monkeypatch, HandshakeFailed("secret"))
