"""Requests of many threads in one frame: who goes alone, who joins, and what each gets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from rmq_ray.client.bundling import Bundler
from rmq_ray.errors import ConnectionLost, MalformedFrame, RemotingError, TooManyRequests
from rmq_ray.model.ids import Address
from rmq_ray.remoting.codes import RequestCode
from rmq_ray.remoting.frame import Command
from tests.support.waiting import eventually

BROKER = Address("10.0.0.1", 10911)


class Instance:
    """Holds single requests until ``go``; bundles until the test answers them."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.alone: list[Command] = []
        self.bundles: list[tuple[list[Any], Callable[[Any], None]]] = []

    def invoke(self, _address: Address, command: Command, _timeout_ms: float) -> Command:
        self.alone.append(command)
        assert self.go.wait(10)
        return Command(0, remark="alone")

    def invoke_async(self, _address: Address, command: Command, _timeout_ms: float, callback: Callable[[Any], None]) -> None:
        assert command.code == RequestCode.BUNDLE
        self.bundles.append((msgpack.unpackb(command.body_bytes()), callback))


class Worker:
    def after(self, _delay_ms: float, call: Callable[[], None]) -> None:
        call()


class Run:
    """Five threads ask at once: two go alone, three share a frame."""

    def __init__(self, timeout_ms: float = 5_000.0) -> None:
        self.instance = Instance()
        self.bundler = Bundler(self.instance, Worker())  # type: ignore[arg-type]
        self.got: dict[int, Any] = {}
        self.threads = [threading.Thread(target=self._ask, args=(number, timeout_ms), daemon=True) for number in range(5)]
        for number, thread in enumerate(self.threads):
            thread.start()
            eventually(lambda number=number: len(self.instance.alone) + len(self.bundler._open.get(BROKER, [])) == number + 1)

    def _ask(self, number: int, timeout_ms: float) -> None:
        try:
            self.got[number] = self.bundler.invoke(BROKER, Command(37, fields={"n": str(number)}), timeout_ms).remark
        except RemotingError as error:
            self.got[number] = type(error)

    def answer(self, outcome: Any) -> None:
        self.instance.go.set()
        eventually(lambda: self.instance.bundles)
        self.instance.bundles[0][1](outcome)
        for thread in self.threads:
            thread.join(10)


def test_two_go_alone_and_the_others_share_the_next_frame() -> None:
    run = Run()
    run.answer(Command(0, body=msgpack.packb([[0, None, "a"], [1, {}, "b"], [0, {"x": "y"}, "c"]])))
    assert run.got == {0: "alone", 1: "alone", 2: "a", 3: "b", 4: "c"}
    assert [part[1]["n"] for part in run.instance.bundles[0][0]] == ["2", "3", "4"]
    assert not run.bundler._out and not run.bundler._open


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (ConnectionLost("gone", "x"), ConnectionLost),
        (Command(0, body=b"\xc1"), MalformedFrame),
        (Command(0, body=msgpack.packb([[0, None, "a"]])), MalformedFrame),
        (Command(20002, remark="recovering"), "recovering"),
    ],
    ids=["lost", "unreadable", "too few", "refused"],
)
def test_what_a_bundle_meets_each_of_its_threads_meets(outcome: Any, expected: Any) -> None:
    run = Run()
    run.answer(outcome)
    assert [run.got[number] for number in (2, 3, 4)] == [expected] * 3


def test_who_waits_too_long_for_a_place_has_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_ray.client.bundling.SLACK_MS", 0.0)
    run = Run(timeout_ms=50.0)
    eventually(lambda: len(run.got) == 3)
    assert set(run.got.values()) == {TooManyRequests} and not run.instance.bundles
    run.instance.go.set()
    for thread in run.threads:
        thread.join(10)
    assert not run.bundler._out
