"""How many replicas a lag asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rmq_ray.errors import ConfigError
from rmq_ray.serve import LagPolicy


class Measured(LagPolicy):
    """One that has measured."""

    def __init__(self, lag: int | None) -> None:
        super().__init__("images", name_servers="127.0.0.1:9876")
        self._lag = lag

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
    assert Measured(lag)(context(now, requests)) == (wanted, {"lag": lag})


@pytest.mark.parametrize("interval", [0, -1, True, float("inf")])
def test_an_interval_that_cannot_be_is_refused(interval: float) -> None:
    with pytest.raises(ConfigError, match="poll_interval_s"):
        LagPolicy("images", poll_interval_s=interval, name_servers="127.0.0.1:9876")


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="broker_url"):
        LagPolicy("images", broker_url="redis://")
