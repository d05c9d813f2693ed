"""Waiting in tests: until something holds, or nothing moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.support.waiting import eventually, eventually_async, witnesses

BRIEF_S = 0.05


@pytest.fixture
def witness() -> Iterator[None]:
    witnesses["broker-a"] = lambda: {"state": "recovering"}
    yield
    del witnesses["broker-a"]


def third_time() -> Callable[[], str]:
    calls = count()
    return lambda: "ready" if next(calls) == 2 else ""


def test_the_first_true_value_is_returned() -> None:
    assert eventually(third_time(), every_s=0.001) == "ready"
    assert asyncio.run(eventually_async(third_time(), every_s=0.001)) == "ready"


@pytest.mark.usefixtures("witness")
def test_a_standstill_fails_with_the_threads_and_what_witnesses_say() -> None:
    with pytest.raises(AssertionError, match=r"nothing moved for 0\.05 s: 0") as failed:
        eventually(lambda: 0, BRIEF_S)
    assert "thread MainThread:" in str(failed.value)
    assert "broker-a: {'state': 'recovering'}" in str(failed.value)


def test_what_moves_is_waited_for_longer() -> None:
    steps = count()
    assert eventually(lambda: next(steps) >= 20, BRIEF_S, every_s=0.01, moved=lambda: next(steps))
    with pytest.raises(AssertionError, match="nothing moved"):
        asyncio.run(eventually_async(lambda: False, BRIEF_S, moved=lambda: "the same"))
