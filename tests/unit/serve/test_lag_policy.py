"""How many replicas a lag asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.errors import ConfigError
from rmq_ray.serve import LagPolicy, lag_policy


class Measured(LagPolicy):
    """One that has measured."""

    def __init__(self, lag: int | None) -> None:
        super().__init__("images", name_servers="127.0.0.1:9876")
        if lag is not None:
            self._note(lag)

    def _measure(self) -> None:
        """Nothing new."""


def context(replicas: int, requests: float = 0.0) -> Any:
    config = SimpleNamespace(get_target_ongoing_requests=lambda: 10)
    return SimpleNamespace(
        current_num_replicas=replicas, total_num_requests=requests, config=config
    )


@pytest.mark.parametrize(
    ("lag", "now", "requests", "wanted"),
    [
        (0, 3, 0.0, 0.0),
        (0, 0, 0.0, 0.0),
        (1, 0, 0.0, 1.0),
        (1, 3, 0.0, 1.0),
        (95, 0, 0.0, 9.5),
        (95, 3, 5.0, 10.0),
        (0, 1, 5.0, 1.0),
        (None, 3, 0.0, 3),
    ],
)
def test_replicas_are_lag_and_requests_by_what_one_is_to_have(
    lag: int | None, now: int, requests: float, wanted: float
) -> None:
    told = {"lag": None} if lag is None else {"lag": lag, "to_come": 0}
    assert Measured(lag)(context(now, requests)) == (wanted, told)


def test_where_replicas_start_slowly_they_are_asked_for_by_what_will_wait_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(lag_policy, "SYSTEM_CLOCK", clock)
    monkeypatch.setattr(LagPolicy, "_measure", lambda _policy: None)
    policy = LagPolicy("images", startup_s=60, name_servers="127.0.0.1:9876")
    for second in range(0, 200, 10):  # two tasks a second more than are done
        policy._note(2 * second)
        clock.advance_ms(10_000)
    assert len(policy._measured) == 7, "what is older than the start of a replica is forgotten"
    assert policy(context(3)) == (50.0, {"lag": 380, "to_come": 120})
    for lag in range(360, 0, -50):
        policy._note(lag)
        clock.advance_ms(10_000)
    assert policy(context(3)) == (1.0, {"lag": 10, "to_come": 0}), "it falls: nothing is added"


@pytest.mark.parametrize("startup", [-1, True, float("nan"), 3_601, "90"])
def test_a_start_that_cannot_be_is_refused(startup: float) -> None:
    with pytest.raises(ConfigError, match="startup_s"):
        LagPolicy("images", startup_s=startup, name_servers="127.0.0.1:9876")


@pytest.mark.parametrize("interval", [0, -1, True, float("inf"), "2"])
def test_an_interval_that_cannot_be_is_refused(interval: float) -> None:
    with pytest.raises(ConfigError, match="poll_interval_s"):
        LagPolicy("images", poll_interval_s=interval, name_servers="127.0.0.1:9876")


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="broker_url"):
        LagPolicy("images", broker_url="redis://")
