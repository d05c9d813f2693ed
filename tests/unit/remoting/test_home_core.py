"""A thread wakes on the core of those who run, with its own affinity; nothing is changed where that
does not pay.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from rmq_ray.remoting import home_core
from rmq_ray.remoting.home_core import (
    FOLLOW_MS,
    FREE_ENOUGH,
    NARROW_MAX,
    STAY_MS,
    HomeCore,
    Sleeper,
    on_core,
)

pytestmark = pytest.mark.skipif(
    HomeCore().of_crowd(0.0) is None, reason="one core, or threads cannot be placed"
)
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


def narrow() -> Sleeper:
    """Of a thread that woke elsewhere before."""
    sleeper = Sleeper()
    sleeper._narrow_left = 1
    return sleeper


def test_a_thread_works_on_the_core_and_has_its_own_mask_afterwards() -> None:
    assert in_a_thread(lambda: (on_core(min(ALL), narrow(), mask), mask())) == ({min(ALL)}, ALL)


def test_an_exception_gives_the_mask_back() -> None:
    def interrupted() -> None:
        assert mask() == {min(ALL)}
        raise KeyboardInterrupt

    def work() -> set[int]:
        with pytest.raises(KeyboardInterrupt):
            on_core(min(ALL), narrow(), interrupted)
        return mask()

    assert in_a_thread(work) == ALL


def test_a_mask_that_the_thread_was_given_is_kept(placed: list[set[int]]) -> None:
    def work() -> tuple[set[int], set[int]]:
        os.sched_setaffinity(0, {max(ALL)})
        return on_core(min(ALL), narrow(), mask), mask()  # it may not run there

    assert in_a_thread(work) == ({max(ALL)}, {max(ALL)})
    assert {min(ALL)} not in placed


def test_a_core_that_was_taken_from_the_process_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(pid: int, mask: Iterable[int]) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert in_a_thread(lambda: on_core(min(ALL), narrow(), mask)) == ALL


def test_the_main_thread_is_never_narrowed(placed: list[set[int]]) -> None:
    assert on_core(min(ALL), narrow(), mask) == ALL
    assert placed == []


def test_home_is_a_core_of_the_thread_and_nothing_with_one_core() -> None:
    def work() -> int | None:
        os.sched_setaffinity(0, {max(ALL)})
        return HomeCore().of_crowd(0.0)

    assert HomeCore().of_crowd(0.0) in ALL
    assert in_a_thread(work) is None


def test_a_crowd_stays_a_second_and_goes_where_it_was_moved_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = [min(ALL)]
    monkeypatch.setattr(home_core, "_current_cpu", lambda: here[0])
    home = HomeCore()
    assert home.of_crowd(0.0) == min(ALL)
    here[0] = max(ALL)
    assert home.of_crowd(STAY_MS) == min(ALL)
    assert home.of_crowd(STAY_MS + 1) == max(ALL)


def test_a_crowd_moves_round_the_cores_of_the_process_and_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(home_core, "_current_cpu", lambda: 3)
    monkeypatch.setattr(home_core.os, "sched_getaffinity", lambda pid: {3, 5, 9})
    home = HomeCore()
    assert home.of_crowd(0.0) == 3
    assert home.move(STAY_MS) == 3
    assert home.of_crowd(STAY_MS + 1) == 5
    home.move_back(3, STAY_MS + 2)
    assert home.of_crowd(STAY_MS + 3) == 3
    seen = []
    for _ in range(3):
        home.move(STAY_MS + 4)
        seen.append(home.of_crowd(STAY_MS + 5))
    assert seen == [5, 9, 3]


def test_a_crowd_without_a_home_or_with_one_core_moves_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = HomeCore()
    home.move(0.0)
    assert home.of_reader(0.0) is None
    home.of_crowd(0.0)
    monkeypatch.setattr(home_core.os, "sched_getaffinity", lambda pid: {3})
    before = home.of_reader(0.0)
    home.move(1.0)
    assert home.of_reader(1.0) == before


def test_readers_follow_a_crowd_as_long_as_there_is_one() -> None:
    home = HomeCore()
    assert home.of_reader(1_000.0) is None
    core = home.of_crowd(1_000.0)
    assert home.of_reader(1_000.0 + FOLLOW_MS - 1) == core
    assert home.of_reader(1_000.0 + FOLLOW_MS) is None


def sleeps(sleeper: Sleeper, wakes: list[int], monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Which sleeps were narrow, when the thread stood on these cores before each."""
    at = iter(wakes)
    monkeypatch.setattr(home_core, "_current_cpu", lambda: next(at))
    return [sleeper.narrows(0) for _ in wakes]


def test_a_thread_that_wakes_at_home_keeps_its_own_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(sleeps(Sleeper(), [0] * 100, monkeypatch))


def test_a_thread_that_woke_elsewhere_sleeps_narrow_once_and_then_longer_and_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleeper = Sleeper()
    for expected in (1, 1, 2, 4, 8):  # the first time it had not slept yet
        assert sleeps(sleeper, [1] + [0] * (expected - 1), monkeypatch) == [True] * expected
        assert sleeps(sleeper, [0], monkeypatch) == [False]
    for _ in range(20):
        sleeps(sleeper, [1] + [0] * sleeper._narrow_next, monkeypatch)
    assert sleeper._narrow_next == NARROW_MAX


def test_many_sleeps_that_end_at_home_are_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = Sleeper()
    sleeper._narrow_next = 8
    sleeps(sleeper, [0] * 2 * FREE_ENOUGH, monkeypatch)
    assert sleeps(sleeper, [1] + [0] * 3, monkeypatch) == [True, True, False, False]


def test_a_thread_at_home_is_not_placed(
    placed: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_core, "_current_cpu", lambda: min(ALL))
    assert in_a_thread(lambda: on_core(min(ALL), Sleeper(), mask)) == ALL
    assert placed == []


@pytest.mark.parametrize("lacking", ["sched_setaffinity", "sched_getcpu"])
def test_without_the_calls_there_is_no_home(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if lacking == "sched_getcpu":
        monkeypatch.setattr(home_core.ctypes, "PyDLL", lambda _: object())
    else:
        monkeypatch.delattr(os, lacking)
    read = home_core._cpu_reader()
    assert read is None
    monkeypatch.setattr(home_core, "_current_cpu", read)
    assert HomeCore().of_crowd(0.0) is None


def test_a_sandbox_that_refuses_the_calls_has_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, mask: Iterable[int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert home_core._cpu_reader() is None
