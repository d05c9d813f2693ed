"""A thread wakes on the core of those who run, with its own affinity; nothing is changed where that does not pay."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from rmq_ray.client import home_core
from rmq_ray.client.home_core import KEEP_MS, TRIAL_MS, Trials, home, on_core

pytestmark = pytest.mark.skipif(home() is None, reason="one core, or threads cannot be placed")
ALL = os.sched_getaffinity(0)


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """Every mask that a thread of this process gives itself, in order."""
    masks: list[set[int]] = []
    place = os.sched_setaffinity

    def seen(pid: int, mask: Iterable[int]) -> None:
        masks.append(set(mask))
        place(pid, mask)

    monkeypatch.setattr(os, "sched_setaffinity", seen)
    return masks


def in_a_thread(work: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(5)
    return results[0]


def mask() -> set[int]:
    return os.sched_getaffinity(0)


def test_a_thread_works_on_the_core_and_has_its_own_mask_afterwards() -> None:
    assert in_a_thread(lambda: (on_core(min(ALL), mask), mask())) == ({min(ALL)}, ALL)


def test_an_exception_gives_the_mask_back() -> None:
    def interrupted() -> None:
        assert mask() == {min(ALL)}
        raise KeyboardInterrupt

    def work() -> set[int]:
        with pytest.raises(KeyboardInterrupt):
            on_core(min(ALL), interrupted)
        return mask()

    assert in_a_thread(work) == ALL


def test_a_mask_that_the_thread_was_given_is_kept(placed: list[set[int]]) -> None:
    def work() -> tuple[set[int], set[int]]:
        os.sched_setaffinity(0, {max(ALL)})
        return on_core(min(ALL), mask), mask()  # it may not run there

    assert in_a_thread(work) == ({max(ALL)}, {max(ALL)})
    assert {min(ALL)} not in placed


def test_a_core_that_was_taken_from_the_process_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, mask: Iterable[int]) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert in_a_thread(lambda: on_core(min(ALL), mask)) == ALL


def test_the_main_thread_is_never_narrowed(placed: list[set[int]]) -> None:
    assert on_core(min(ALL), mask) == ALL
    assert placed == []


def ways(trials: Trials, rates: dict[bool, float], turns: int, now_ms: float = 1_000.0) -> list[bool]:
    """What was decided over some turns, one message stream whose rate (messages a ms) depends on the way."""
    decided = []
    for _ in range(int(turns * (KEEP_MS + 2 * TRIAL_MS))):
        decided.append(trials.narrows(now_ms))
        trials.count(int(rates[decided[-1]]))
        now_ms += 1.0
    return decided


def test_threads_are_narrowed_while_that_is_faster() -> None:
    trials = Trials()
    assert not any(ways(trials, {False: 20, True: 30}, 1)[: int(TRIAL_MS)])
    assert sum(ways(trials, {False: 20, True: 30}, 2, 4_000.0)) > 1.8 * KEEP_MS
    back = ways(trials, {False: 40, True: 30}, 3, 9_000.0)
    assert sum(back[-int(KEEP_MS) :]) <= TRIAL_MS


def test_equal_rates_leave_threads_alone_but_for_the_trials() -> None:
    assert sum(ways(Trials(), {False: 21, True: 22}, 10)) == 10 * TRIAL_MS


def test_few_slow_frames_decide_nothing() -> None:
    trials, now_ms = Trials(), 1_000.0
    for turn in range(1_000):
        assert not trials.narrows(now_ms)
        trials.count(64 if turn % 2 else 1)
        now_ms += 60.0


def test_a_rate_with_a_pause_in_it_decides_nothing() -> None:
    trials = Trials()
    assert not trials.narrows(1_000.0)
    trials.count(1_000)
    assert trials.narrows(1_000.0 + TRIAL_MS)
    trials.count(1_000_000)
    assert not trials.narrows(1_000.0 + 4 * TRIAL_MS)


def test_home_is_a_core_of_the_thread_and_nothing_with_one_core() -> None:
    def work() -> int | None:
        os.sched_setaffinity(0, {max(ALL)})
        return home()

    assert home() in ALL
    assert in_a_thread(work) is None


@pytest.mark.parametrize("lacking", ["sched_setaffinity", "sched_getcpu"])
def test_without_the_calls_there_is_no_home(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if lacking == "sched_getcpu":
        monkeypatch.setattr(home_core.ctypes, "PyDLL", lambda _: object())
    else:
        monkeypatch.delattr(os, lacking)
    read = home_core._cpu_reader()
    assert read is None
    monkeypatch.setattr(home_core, "_current_cpu", read)
    assert home() is None


def test_a_sandbox_that_refuses_the_calls_has_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, mask: Iterable[int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert home_core._cpu_reader() is None
