"""The rule that scales a group of consumers by its lag."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.errors import ConfigError
from rmq_ray.protocol.autoscale import Autoscale, Scaler

QUICK = Autoscale(actors_min=1, actors_max=8, lag_per_actor=100, up_after_s=2, down_after_s=10)


def test_a_lag_that_lasts_brings_consumers_but_at_most_twice_as_many_at_a_time() -> None:
    scaler = Scaler(QUICK)
    assert scaler.decide(1, 1_000, 16, 0) == 1
    assert scaler.decide(1, 1_000, 16, 1_999) == 1
    assert scaler.decide(1, 1_000, 16, 2_000) == 2
    assert scaler.decide(2, 1_000, 16, 2_100) == 2
    assert scaler.decide(2, 1_000, 16, 4_100) == 4


def test_a_lag_that_does_not_last_changes_nothing() -> None:
    scaler = Scaler(QUICK)
    assert [
        scaler.decide(1, lag, 16, at)
        for at, lag in ((0, 1_000), (1_000, 0), (2_500, 1_000), (4_400, 1_000))
    ] == [1, 1, 1, 1]


def test_an_idle_group_shrinks_one_by_one_after_a_pause_each() -> None:
    scaler, actors, times = Scaler(QUICK), 3, []
    for second in range(60):
        following = scaler.decide(actors, 0, 16, second * 1_000)
        if following != actors:
            times.append((second, following))
        actors = following
    assert times == [(10, 2), (20, 1)]


def test_consumers_without_a_queue_are_not_started() -> None:
    scaler = Scaler(QUICK)
    assert scaler.decide(2, 10_000, 3, 0) == 2
    assert scaler.decide(2, 10_000, 3, 2_000) == 3
    assert scaler.decide(5, 10_000, 3, 2_001) == 3


def test_a_number_outside_the_bounds_is_corrected_at_once() -> None:
    assert Scaler(QUICK).decide(20, 0, 0, 0) == 8
    assert Scaler(Autoscale(actors_min=2, actors_max=4)).decide(1, 0, 0, 0) == 2


@given(
    st.lists(
        st.tuples(st.integers(0, 5_000), st.integers(0, 5_000), st.integers(0, 12)), max_size=60
    )
)
def test_the_number_always_stays_within_its_bounds(history: list[tuple[int, int, int]]) -> None:
    settings = Autoscale(actors_min=2, actors_max=6, lag_per_actor=50, up_after_s=1, down_after_s=3)
    scaler, actors, now_ms = Scaler(settings), 2, 0.0
    for lag, pause_ms, queues in history:
        now_ms += pause_ms
        actors = scaler.decide(actors, lag, queues, now_ms)
        assert 2 <= actors <= (max(2, min(6, queues)) if queues else 6)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"actors_min": 0}, "actors_min"),
        ({"actors_min": 5, "actors_max": 4}, "5 and 4"),
        ({"lag_per_actor": 0}, "lag_per_actor"),
        ({"every_s": 0}, "every_s"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, int], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        Autoscale.of(settings)


def test_unknown_settings_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'max'; known are actors_max"):
        Autoscale.of({"max": 3})
    with pytest.raises(ConfigError, match="mapping"):
        Autoscale.of(3)  # type: ignore[arg-type]
