"""Two threads of a client meet: a stop and a start, a reply and the end of its time, two first
uses. The order is forced; neither is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmq_ray.client.consumer.consumer_lifecycle import ConsumerLifecycle
from rmq_ray.client.instance.timers import ClientTimers
from rmq_ray.client.producer import request_reply
from rmq_ray.client.producer.request_reply import RequestReply, request_reply_of
from rmq_ray.client.pull import pull_consumer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.client.push import listener_invoker, push_consumer
from rmq_ray.client.push.listener_invoker import LoopListener
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.clock import ManualClock
from rmq_ray.errors import ClientError
from tests.support.waiting import eventually, loop_turns

MOMENT_S = 0.3  # how long the first one leaves the second one, which may have to wait for it
WAIT_S = 20.0


def beside(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


# --- a stop while another thread starts -----------------------------------------------------------


class Engine:
    """Its ``begin`` goes on when a stop was called, and leaves that a moment in which it must not
    end anything; notes what was called in which order.
    """

    def __init__(self, begun: threading.Event) -> None:
        self.calls: list[str] = []
        self.life: ConsumerLifecycle | None = None
        self._begun, self._ended = begun, threading.Event()
        self.ready = SimpleNamespace(close=lambda: None)
        self.parts = SimpleNamespace(assigned=SimpleNamespace(snapshot=dict))

    def connect(self) -> None: ...

    def begin(self) -> None:
        self.calls.append("begin")
        self._begun.set()
        eventually(lambda: self.life is not None and self.life._wanted_ms is not None)
        self._ended.wait(MOMENT_S)
        self.calls.append("begun")

    def end(self, *_timeout_ms: int) -> bool:
        self.calls.append("end")
        self._ended.set()
        return True

    def owns_current_thread(self) -> bool:
        return False


def push(_engine: Engine) -> Any:
    return PushConsumer(
        "g",
        listener=lambda _messages, _ctx: None,
        subscriptions={"orders": "*"},
        discovery=cast(Any, None),
    )


def pull(_engine: Engine) -> Any:
    return PullConsumer("g", discovery=cast(Any, None))


@pytest.mark.parametrize(
    ("module", "name", "make"),
    [(push_consumer, "PushEngine", push), (pull_consumer, "PullEngine", pull)],
)
def test_a_stop_ends_a_consumer_that_another_thread_is_starting(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, make: Callable[..., Any]
) -> None:
    begun = threading.Event()
    engine = Engine(begun)
    client = SimpleNamespace(register_consumer=lambda _consumer: None, start=lambda: None)
    monkeypatch.setattr(module, name, lambda *_parts: engine)
    monkeypatch.setattr(
        module.ClientInstance, "get_or_create", lambda *_arguments, **_options: client
    )
    consumer = make(engine)
    engine.life = consumer._life

    def stop() -> None:
        begun.wait(WAIT_S)
        consumer.close()

    stopping = beside(stop)
    with pytest.raises(ClientError, match="stopped while it started"):
        consumer.start()
    stopping.join(WAIT_S)
    assert engine.calls == ["begin", "begun", "end"]


# --- a reply and the end of its time --------------------------------------------------------------


def core_of(clock: ManualClock) -> Any:
    return SimpleNamespace(
        clock=clock,
        requests={},
        closers=[],
        disowners=[],
        worker=ClientTimers(clock, "worker"),
        request_reply=None,
    )


def test_a_reply_that_is_being_written_down_when_the_time_is_over_is_the_answer() -> None:
    clock = ManualClock()
    requests = RequestReply(core_of(clock))
    pending = requests._pending.add("1", "rpc", 100.0, clock.monotonic_ms())
    clock.advance_ms(100)
    message: Any = object()
    assert requests._pending._take("1") is pending  # the reader's thread has it in hand
    writing = threading.Timer(MOMENT_S, pending.reply.set_result, [message])
    writing.start()
    assert requests.wait("1", pending) is message
    writing.join(WAIT_S)


def test_two_first_requests_wait_in_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    first_is_in, second_is_in = threading.Event(), threading.Event()
    made = request_reply.PendingRequests

    def table(clock: Any) -> Any:
        if first_is_in.is_set():
            second_is_in.set()
        first_is_in.set()
        second_is_in.wait(MOMENT_S)
        return made(clock)

    monkeypatch.setattr(request_reply, "PendingRequests", table)
    core, found = core_of(ManualClock()), []
    threads = [beside(lambda: found.append(request_reply_of(core)))]
    assert first_is_in.wait(WAIT_S)
    threads.append(beside(lambda: found.append(request_reply_of(core))))
    for thread in threads:
        thread.join(WAIT_S)
    assert found[0] is found[1] and len(core.closers) == 1


# --- a listener that is a coroutine function ------------------------------------------------------


async def seven(_messages: Any, _ctx: Any) -> int:
    return 7


class LateFuture(Future[int]):
    """Ends right behind the first slice of the wait for it."""

    def result(self, timeout: float | None = None) -> int:
        if not self.done():
            self.set_result(7)
            raise TimeoutError
        return super().result(timeout)


def test_a_listener_that_ends_at_the_end_of_a_slice_has_not_timed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late(work: Coroutine[Any, Any, int], _loop: object) -> Future[int]:
        work.close()
        return LateFuture()

    monkeypatch.setattr(listener_invoker.asyncio, "run_coroutine_threadsafe", late)
    listener = LoopListener(seven, "loop")
    assert listener([], None) == 7
    listener.close()


def test_a_call_that_a_close_overtakes_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by ``RuntimeError: Event loop is closed``, which would count as the listener's fault, and
    not after a slice.
    """
    listener = LoopListener(seven, "loop")
    closing: list[threading.Thread] = []
    hand_over = asyncio.run_coroutine_threadsafe

    def overtaken(work: Coroutine[Any, Any, int], loop: asyncio.AbstractEventLoop) -> Future[int]:
        closing.append(beside(listener.close))
        closing[0].join(MOMENT_S)
        return hand_over(work, loop)

    monkeypatch.setattr(listener_invoker.asyncio, "run_coroutine_threadsafe", overtaken)
    with contextlib.suppress(CancelledError):
        assert listener([], None) == 7
    closing[0].join(WAIT_S)
    assert not closing[0].is_alive()


def test_a_call_that_ends_in_the_last_turn_of_the_loop_is_answered() -> None:
    closing: list[threading.Thread] = []

    async def closed_meanwhile(_messages: Any, _ctx: Any) -> int:
        closing.append(beside(listener.close))
        eventually(lambda: listener._closed)
        with listener._lock:  # the end is in the loop's line now, and this call's end behind it
            pass
        await loop_turns()
        return 7

    listener = LoopListener(closed_meanwhile, "loop")
    assert listener([], None) == 7
    closing[0].join(WAIT_S)
    assert not closing[0].is_alive()


def test_a_listener_that_is_closed_twice_stays_closed() -> None:
    listener = LoopListener(seven, "loop")
    assert listener([], None) == 7
    listener.close()
    listener.close()
    with pytest.raises(ClientError, match="stopped"):
        listener([], None)


async def exits(_messages: Any, _ctx: Any) -> int:
    raise SystemExit(3)


async def interrupted(_messages: Any, _ctx: Any) -> int:
    raise KeyboardInterrupt


async def exits_in_a_task(_messages: Any, _ctx: Any) -> int:
    (answer,) = await asyncio.gather(exits(_messages, _ctx))
    return answer


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(exits, SystemExit), (exits_in_a_task, SystemExit), (interrupted, KeyboardInterrupt)],
)
def test_a_coroutine_listener_that_exits_ends_its_call_and_not_its_loop(
    fault: Callable[..., Any], kind: type[BaseException]
) -> None:
    """As a plain one: the consuming thread is told, the next call runs."""

    async def listen(messages: Any, ctx: Any) -> Any:
        return await (fault if messages else seven)(messages, ctx)

    listener = LoopListener(listen, "loop")
    told: Future[BaseException] = Future()

    def call() -> None:
        try:
            listener(["m"], None)
        except BaseException as error:  # noqa: BLE001 - it is what is looked for
            told.set_result(error)

    beside(call)
    try:
        assert isinstance(told.result(WAIT_S), kind)
        assert listener([], None) == 7
    finally:
        listener.close()
    assert listener._thread is not None and not listener._thread.is_alive()


def test_a_listener_whose_loop_broke_is_closed_all_the_same() -> None:
    listener = LoopListener(seven, "loop")
    assert listener([], None) == 7
    loop, thread = listener._loop, listener._thread
    assert loop is not None and thread is not None
    loop.call_soon_threadsafe(listener._end, loop)
    thread.join(WAIT_S)
    assert loop.is_closed()
    listener.close()
    with pytest.raises(ClientError, match="stopped"):
        listener([], None)
