"""A thread wakes on the core of those who run, with its own affinity; nothing is changed where that does not pay."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from rmq_ray.client import home_core
from rmq_ray.client.home_core import NARROWED_SLEEPS, Bed, acquire_on, home

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


def open_lock() -> threading.Lock:
    return threading.Lock()


def closed_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def test_a_thread_sleeps_on_the_core_and_has_its_own_mask_afterwards(placed: list[set[int]]) -> None:
    assert in_a_thread(lambda: (acquire_on(min(ALL), open_lock(), 1.0), os.sched_getaffinity(0))) == (True, ALL)
    assert placed == [{min(ALL)}, ALL]


def test_a_time_out_gives_the_mask_back() -> None:
    assert in_a_thread(lambda: (acquire_on(max(ALL), closed_lock(), 0.001), os.sched_getaffinity(0))) == (False, ALL)


def test_an_exception_in_the_wait_gives_the_mask_back() -> None:
    class Broken:
        def acquire(self, timeout: float) -> bool:
            assert os.sched_getaffinity(0) == {min(ALL)}
            raise KeyboardInterrupt

    def work() -> set[int]:
        with pytest.raises(KeyboardInterrupt):
            acquire_on(min(ALL), Broken(), 1.0)  # type: ignore[arg-type]
        return os.sched_getaffinity(0)

    assert in_a_thread(work) == ALL


def test_a_mask_that_the_thread_was_given_is_kept(placed: list[set[int]]) -> None:
    def work() -> set[int]:
        os.sched_setaffinity(0, {max(ALL)})
        assert acquire_on(min(ALL), open_lock(), 1.0)  # it may not run there
        return os.sched_getaffinity(0)

    assert in_a_thread(work) == {max(ALL)}
    assert {min(ALL)} not in placed


def test_a_core_that_was_taken_from_the_process_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, mask: Iterable[int]) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert acquire_on(min(ALL), open_lock(), 1.0)


def test_threads_that_wake_where_they_should_are_left_alone(placed: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_core, "_current_cpu", lambda: 7)
    bed = Bed()
    assert in_a_thread(lambda: [bed.wait(open_lock(), 1.0, 7) for _ in range(3)]) == [True] * 3
    assert placed == []


def test_a_thread_that_woke_elsewhere_is_narrowed_for_a_while(placed: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_core, "_current_cpu", lambda: -1)
    bed = Bed()
    in_a_thread(lambda: [bed.wait(open_lock(), 1.0, min(ALL)) for _ in range(NARROWED_SLEEPS + 2)])
    assert placed == [{min(ALL)}, ALL] * NARROWED_SLEEPS


def test_the_main_thread_is_never_narrowed(placed: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_core, "_current_cpu", lambda: -1)
    bed = Bed()
    assert [bed.wait(open_lock(), 1.0, min(ALL)) for _ in range(3)] == [True] * 3
    assert placed == []


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
