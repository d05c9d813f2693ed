"""A stop that meets a start, in the thread that starts (a signal handler) and in others: nobody
waits for itself, nothing that began goes on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmq_ray.client.consumer.consumer_lifecycle import ConsumerLifecycle
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.managed import ServiceState
from rmq_ray.client.pop import simple_consumer
from rmq_ray.client.pop.simple_consumer import SimpleConsumer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull import pull_consumer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.client.push import push_consumer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import ClientError

WAIT_S = 20.0
LONG_MS = 600_000


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Its outcome, in the future: a thread that waits for itself fails the test, it does not hang
    it.
    """
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - told to the test
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


class Life(ConsumerLifecycle):
    """Notes its steps. ``at[step]``: what happens in the midst of it; ``ends``: what ``end``
    answers, in turn.
    """

    def __init__(
        self, at: dict[str, Callable[[], Any]] | None = None, ends: tuple[bool, ...] = (True,)
    ) -> None:
        super().__init__("consumer", "g", SYSTEM_CLOCK, self.end)
        self.steps: list[str] = []
        self.at = at or {}
        self.ends = list(ends)

    def step(self, name: str) -> None:
        self.steps.append(name)
        self.at.get(name, lambda: None)()

    def end(self, _timeout_ms: int) -> bool:  # type: ignore[override]
        self.step("end")
        return self.ends.pop(0)

    def go(self) -> None:
        self.start(lambda: self.step("connect"), lambda: self.step("begin"))


@pytest.mark.parametrize(
    ("step", "steps"), [("connect", ["connect", "end"]), ("begin", ["connect", "begin", "end"])]
)
def test_a_stop_in_the_thread_that_starts_is_done_by_the_start(step: str, steps: list[str]) -> None:
    answers: list[bool] = []
    life = Life()
    life.at[step] = lambda: answers.append(life.stop(LONG_MS))
    with pytest.raises(ClientError, match="was stopped while it started"):
        in_thread(life.go).result(WAIT_S)
    assert (life.steps, answers, life.state) == (steps, [False], ServiceState.SHUTDOWN_ALREADY)
    assert life.stop(0)


def test_a_signal_handler_that_stops_does_not_wait_for_what_it_interrupted() -> None:
    life = Life()
    life.at["begin"] = lambda: signal.raise_signal(signal.SIGUSR1)
    before = signal.signal(signal.SIGUSR1, lambda *_signal: life.stop(0) and None)
    try:
        with pytest.raises(ClientError, match="was stopped while it started"):
            life.go()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert life.steps == ["connect", "begin", "end"]


def test_a_stop_of_another_thread_waits_for_its_time_only_and_the_start_ends_what_began() -> None:
    begun, go_on = threading.Event(), threading.Event()
    life = Life({"begin": lambda: (begun.set(), go_on.wait(WAIT_S))})
    starting = in_thread(life.go)
    assert begun.wait(WAIT_S)
    assert not in_thread(lambda: life.stop(10)).result(WAIT_S)
    assert life.steps == ["connect", "begin"]
    go_on.set()
    with pytest.raises(ClientError, match="was stopped while it started"):
        starting.result(WAIT_S)
    assert life.steps == ["connect", "begin", "end"]


def test_a_stop_that_waited_for_a_start_returns_when_everything_has_ended() -> None:
    begun, go_on = threading.Event(), threading.Event()
    life = Life({"begin": lambda: (begun.set(), go_on.wait(WAIT_S))})
    starting = in_thread(life.go)
    assert begun.wait(WAIT_S)
    stopping = in_thread(lambda: (life.stop(LONG_MS), list(life.steps)))
    go_on.set()
    assert stopping.result(WAIT_S) == (True, ["connect", "begin", "end"])
    assert starting.exception(WAIT_S) is None or isinstance(starting.exception(WAIT_S), ClientError)


def test_a_stop_in_the_midst_of_a_stop_leaves_it_to_that_one() -> None:
    answers: list[bool] = []
    life = Life()
    life.at["end"] = lambda: answers.append(life.stop(LONG_MS))
    life.go()
    assert in_thread(lambda: life.stop(LONG_MS)).result(WAIT_S)
    assert (answers, life.steps) == ([False], ["connect", "begin", "end"])


def test_stop_says_true_only_when_nothing_runs_any_more() -> None:
    life = Life(ends=(False, True))
    life.go()
    assert [life.stop(0) for _ in range(3)] == [False, True, True]
    assert life.steps == ["connect", "begin", "end", "end"]


def test_a_handler_that_stops_and_exits_leaves_nothing_behind() -> None:
    life = Life()

    def handler() -> None:
        life.stop(LONG_MS)
        raise SystemExit(0)

    life.at["begin"] = handler
    with pytest.raises(SystemExit):
        in_thread(life.go).result(WAIT_S)
    assert life.steps == ["connect", "begin", "end"]


def test_what_began_is_ended_when_the_rest_of_the_start_fails() -> None:
    life = Life({"begin": lambda: 1 / 0})
    with pytest.raises(ZeroDivisionError):
        life.go()
    assert (life.steps, life.state) == (["connect", "begin", "end"], ServiceState.START_FAILED)
    with pytest.raises(ClientError, match="cannot start"):
        life.go()


def test_one_that_was_stopped_before_its_start_does_not_start() -> None:
    life = Life()
    assert life.stop(0)
    with pytest.raises(ClientError, match="cannot start: closed"):
        life.go()
    assert life.steps == []


# --- the consumers and the producer ---------------------------------------------------------------


class Client:
    """A client instance whose start is interrupted by a handler."""

    client_id = "c"

    def __init__(self) -> None:
        self.interrupt: Callable[[], object] = lambda: None
        self.members: list[object] = []

    def register_consumer(self, consumer: object) -> None:
        self.members.append(consumer)

    def unregister_consumer(self, _group: str) -> None:
        self.members.clear()

    def start(self) -> None:
        self.interrupt()

    def release(self) -> None:
        pass


def engine_of(client: Client) -> Any:
    def leave(*_timeout_ms: int) -> bool:
        client.unregister_consumer("g")
        return True

    parts = SimpleNamespace(assigned=SimpleNamespace(snapshot=dict))
    return SimpleNamespace(
        connect=client.start,
        end=leave,
        owns_current_thread=lambda: False,
        ready=SimpleNamespace(close=lambda: None),
        parts=parts,
        client=client,
    )


def push() -> PushConsumer:
    return PushConsumer(
        "g",
        listener=lambda _messages, _ctx: None,
        subscriptions={"orders": "*"},
        discovery=cast(Any, None),
    )


def pull() -> PullConsumer:
    return PullConsumer("g", discovery=cast(Any, None))


def simple() -> SimpleConsumer:
    return SimpleConsumer("orders", "g", discovery=cast(Any, None))


@pytest.mark.parametrize("make", [push, pull, simple])
def test_a_consumer_that_is_closed_in_the_midst_of_its_start_has_left_the_group(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    client, consumer = Client(), make()
    client.interrupt = consumer.close
    monkeypatch.setattr(ClientInstance, "get_or_create", lambda *_arguments, **_options: client)
    monkeypatch.setattr(push_consumer, "PushEngine", lambda *_parts: engine_of(client))
    monkeypatch.setattr(pull_consumer, "PullEngine", lambda *_parts: engine_of(client))
    monkeypatch.setattr(
        simple_consumer, "AckSender", lambda *_parts: SimpleNamespace(close=lambda: None)
    )
    with pytest.raises(ClientError, match="was stopped while it started"):
        in_thread(consumer.start).result(WAIT_S)
    assert (client.members, consumer.state) == ([], ServiceState.SHUTDOWN_ALREADY)


def test_a_poll_that_is_interrupted_by_a_close_returns_what_it_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer, engine = pull(), engine_of(Client())
    consumer._engine, consumer._assigned, consumer._auto_due_ms = (
        engine,
        cast(Any, frozenset({"queue"})),
        LONG_MS * 1e6,
    )
    consumer._life.state, consumer._life._ended = ServiceState.RUNNING, False
    engine.unblock = lambda _works: None
    engine.ready.closed = True

    def take(_count: int, _timeout_ms: float) -> tuple[list[str], list[str]]:
        consumer.close()
        return ["message"], ["queue"]

    engine.ready.take = take
    assert in_thread(consumer.poll).result(WAIT_S) == ["message"]
    assert consumer.state is ServiceState.SHUTDOWN_ALREADY


@pytest.mark.parametrize(
    "first", [Producer.start, lambda producer: producer.send("orders", b"x")], ids=["start", "send"]
)
def test_a_producer_that_is_closed_in_the_midst_of_its_start_is_closed(
    monkeypatch: pytest.MonkeyPatch, first: Callable[[Producer], object]
) -> None:
    producer = Producer("g", discovery=cast(Any, None))
    closed: list[str] = []

    def interrupted(_producer: Producer) -> Any:
        producer.close()
        return SimpleNamespace(close=lambda: closed.append("core"))

    monkeypatch.setattr(Producer, "_make_core", interrupted)
    with pytest.raises(ClientError, match="was closed while it started"):
        in_thread(lambda: first(producer)).result(WAIT_S)
    assert (closed, producer.state) == (["core"], ServiceState.SHUTDOWN_ALREADY)
