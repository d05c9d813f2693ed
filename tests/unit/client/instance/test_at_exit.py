"""When a program is over: whom it is waited for, and that what is owed is paid in any case."""

from __future__ import annotations

import importlib.util
import threading
from typing import Any

import pytest

from rmq_ray.client.instance import at_exit


def others(monkeypatch: pytest.MonkeyPatch, *threads: threading.Thread) -> None:
    """These, and those that wait for the end, are all that the program has."""
    real = threading.enumerate
    monkeypatch.setattr(
        threading,
        "enumerate",
        lambda: [each for each in real() if each in threads or each.name == at_exit.NAME],
    )


class Own(threading.Thread):
    """A user's class, whose methods are none of ours."""

    def join(self, timeout: float | None = None) -> None:
        raise AssertionError("called by somebody else")

    def is_alive(self) -> bool:
        return True


def test_a_thread_with_a_join_of_its_own_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    go, over, ends = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        go.wait(10)
        ends.append("thread")

    def action() -> None:
        ends.append("action")
        over.set()

    thread = Own(target=work)
    others(monkeypatch, thread)
    thread.start()
    at_exit.when_program_is_over(action)
    go.set()
    assert over.wait(10) and ends == ["thread", "action"]


def test_copies_of_the_module_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec(at_exit.__name__)
    assert spec is not None and spec.loader is not None
    copy: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    go, done = threading.Event(), threading.Semaphore(0)
    thread = threading.Thread(target=go.wait, args=(10,))
    others(monkeypatch, thread)
    thread.start()
    for module in (at_exit, copy):
        module.when_program_is_over(done.release)
    go.set()
    assert done.acquire(timeout=10) and done.acquire(timeout=10)


def test_what_is_owed_is_paid_although_the_wait_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> list[threading.Thread]:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(threading, "enumerate", fails)
    paid: list[int] = []
    with pytest.raises(RuntimeError, match="on purpose"):
        at_exit._await_others(lambda: paid.append(1))
    assert paid == [1]
