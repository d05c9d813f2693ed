"""Users' code that raises, or exits, in a thread of ours: every place where we call some, walked.

``DOORS`` names each parameter and setting of the public interface that takes code. A new one is red
until it has a row: the places that call it, or why no thread of ours does. Each place is entered
with code that raises every kind of exception, and must go on with the next call.
"""

from __future__ import annotations

import ast
import concurrent.futures as futures
import inspect
import logging
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any, is_typeddict

import pytest

from rmq_ray import guard
from rmq_ray.client.consumer.consumer_options import ConsumerSettings
from rmq_ray.client.instance.timers import ClientTimers, DelayedCalls
from rmq_ray.client.interceptors.consume_hooks import ConsumeHook
from rmq_ray.client.outgoing.callbacks import Callbacks, OwnFuture
from rmq_ray.client.outgoing.send_future import BatchOutcome, SendFuture
from rmq_ray.client.outgoing.send_payload import StoredAt
from rmq_ray.client.outgoing.send_request import SendRequest
from rmq_ray.client.push.listener_invoker import ListenerInvoker
from rmq_ray.client.sending.async_sender import AsyncSend, AsyncSender, InFlightWindow
from rmq_ray.client.sending.send_engine import InFlightSend
from rmq_ray.client.sending.send_steps import SendSteps
from rmq_ray.client.transaction.transaction_checks import TransactionChecks
from rmq_ray.clock import SYSTEM_CLOCK, ManualClock
from rmq_ray.config import ConsumerConfig, ProducerConfig
from rmq_ray.errors import ClientError, SendError, TaskAborted
from rmq_ray.model.groups import ConsumeFromWhere
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import SendStatus
from rmq_ray.protocol.allocation.strategies import Averagely
from rmq_ray.protocol.transaction import LocalTransactionState
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import SendHeader
from rmq_ray.serve.adapter import RmqTaskProcessorAdapter
from rmq_ray.serve.handlers import TaskHandlers
from rmq_ray.serve.task_codec import Task
from rmq_ray.server.send.send_hooks import hooked
from rmq_ray.spark.write import _Progress
from tests.support.clients.consumer_rig import ConsumerRig
from tests.support.clients.orderly_rig import OrderlyRig
from tests.support.clients.scripted_client import ScriptedClient, record
from tests.support.source_rules import package_modules
from tests.support.waiting import eventually
from tools.reference import public


class Odd(BaseException):
    """Of no kind that anybody expects, and without a text."""

    def __str__(self) -> str:
        raise SystemExit("even this")


FAULTS = [ValueError("bad"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Odd()]
QUEUE = MessageQueue("orders", "broker-a", 0)
log = logging.getLogger("rmq_ray.client")


class Faulty:
    """Users' code that raises each time; ``calls`` counts. As a callable, a hook, a strategy."""

    name = "faulty"

    def __init__(self, fault: BaseException) -> None:
        self.fault = fault
        self.calls = 0

    def __call__(self, *_arguments: Any, **_more: Any) -> Any:
        self.calls += 1
        raise self.fault

    before = after = allocate = __call__


# --- the places: ``fault`` is raised by users' code twice, and the second time shows that all
# --- goes on


def done_callback(fault: BaseException) -> None:
    worker = ClientTimers(SYSTEM_CLOCK, "worker")
    worker.start()
    faulty, outcomes = Faulty(fault), [BatchOutcome(QUEUE, Callbacks(worker)) for _ in range(2)]
    try:
        for outcome in outcomes:
            SendFuture(outcome, 0).add_done_callback(faulty)
            outcome.finish(SendError("refused"))
        eventually(lambda: faulty.calls == 2)
    finally:
        worker.close()


def done_callback_of_a_reply(fault: BaseException) -> None:
    worker = ClientTimers(SYSTEM_CLOCK, "worker")
    worker.start()
    faulty, callbacks = Faulty(fault), Callbacks(worker)
    try:
        for number in range(2):
            reply: OwnFuture[int] = OwnFuture(callbacks)
            reply.add_done_callback(faulty)
            reply.set_result(number)
        eventually(lambda: faulty.calls == 2)
    finally:
        worker.close()


def hooks_of_a_future(fault: BaseException) -> None:
    faulty, seen = Faulty(fault), Seen()
    steps = steps_of(SimpleNamespace(before=lambda ctx: None, after=faulty), seen)
    for _ in range(2):
        outcome = BatchOutcome(QUEUE)
        with steps.around(SendRequest("orders", b"x", ""), "async") as ctx:
            steps.deferred(ctx, SendFuture(outcome, 0))
        outcome.finish(SendError("refused"))
    assert (faulty.calls, seen.afters) == (2, 2)


def listener(fault: BaseException) -> None:
    faulty = Faulty(fault)
    rig = ConsumerRig(listener=faulty, batch_size=1)
    work = rig.take()
    rig.pull(work)
    rig.consume(*rig.found(work, [0, 1]))
    assert (faulty.calls, rig.offset(work.queue)) == (2, 2), "sent back, and settled"


def listener_of_many(fault: BaseException) -> None:
    faulty = Faulty(fault)
    rig = ConsumerRig(listener=faulty, batch_size=1, cut_messages=2)
    work = rig.take()
    rig.pull(work)
    for batch in rig.found(work, [0, 1]):
        rig.consumption._handle(batch)
    while not rig.consumption._ready.empty():
        batch_left = rig.consumption._ready.get_nowait()
        assert batch_left is not None
        rig.consumption._handle(batch_left)
    assert (faulty.calls, rig.offset(work.queue)) == (2, 2)


def listener_in_order(fault: BaseException) -> None:
    faulty = Faulty(fault)
    rig = OrderlyRig(faulty)
    work = rig.take_locked()
    rig.pulled(work, 0)
    rig.work_off()
    rig.later(rig.parts.config.suspend_queue_ms)
    rig.work_off()
    assert faulty.calls == 2


def listener_coroutine(fault: BaseException) -> None:
    faulty = Faulty(fault)

    async def listen(messages: Any, ctx: Any) -> None:
        faulty(messages, ctx)

    config = ConsumerConfig("g")
    settings = ConsumerSettings(config, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, Averagely())
    invoker = ListenerInvoker("g", listen, settings, SYSTEM_CLOCK)
    try:
        for _ in range(2):
            with pytest.raises(type(fault)):
                invoker.call([], None)
    finally:
        invoker.close()
    assert faulty.calls == 2


def consume_hook(fault: BaseException) -> None:
    faulty, seen = Faulty(fault), []

    class Raising(ConsumeHook):
        before = after = lambda _self, context: faulty(context)

    class Watching(ConsumeHook):
        def after(self, context: Any) -> None:
            seen.append(context.status)

    call = consuming(lambda _messages, _ctx: "answer", hooks=(Raising(), Watching()))
    assert [call([], SimpleNamespace(group="g", queue=QUEUE)) for _ in range(2)] == ["answer"] * 2
    assert (faulty.calls, len(seen)) == (4, 2)


def filter_of_messages(fault: BaseException) -> None:
    faulty, got = Faulty(fault), []
    call = consuming(lambda messages, _ctx: got.extend(messages), filters=(faulty,))
    call(["one", "two"], SimpleNamespace())
    assert (faulty.calls, got) == (2, ["one", "two"])


def strategy(fault: BaseException) -> None:
    faulty: Any = Faulty(fault)
    rig = ConsumerRig(strategy=faulty)
    rig.client.add_topic("orders")
    rig.client.answer(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        lambda command, _address: command.answer(body=b'{"consumerIdList":["10.0.0.9@1#1"]}'),
    )
    rig.rebalancer.start()
    try:
        eventually(lambda: faulty.calls >= 1)
        rig.rebalancer.wake()
        eventually(lambda: faulty.calls >= 2)
    finally:
        rig.rebalancer.stop()


def checker(fault: BaseException) -> None:
    client, faulty = ScriptedClient(), Faulty(fault)
    checks = TransactionChecks(client, "g", lambda _key: None)
    checks.checker = faulty
    body = record(QUEUE, 0, b"half", "PGROUP\x01g\x02UNIQ_KEY\x01K\x02")
    fields = {"tranStateTableOffset": "1", "commitLogOffset": "2", "transactionId": "K"}
    asked = Command(RequestCode.CHECK_TRANSACTION_STATE, fields=fields, body=body)
    try:
        for count in (1, 2):
            checks.asked(asked, Address("10.0.0.1", 10911))
            eventually(
                lambda count=count: len(client.requests(RequestCode.END_TRANSACTION)) == count
            )  # type: ignore[misc]
    finally:
        checks.close()
    told = client.requests(RequestCode.END_TRANSACTION)[1]
    assert (told.fields or {})["commitOrRollback"] == str(LocalTransactionState.UNKNOWN.value)
    assert told.remark is not None and "the checker failed" in told.remark


def broker_hook(fault: BaseException) -> None:
    faulty, row = Faulty(fault), SimpleNamespace(hooked=True)
    command = Command(
        RequestCode.SEND_MESSAGE,
        fields=SendHeader(
            producer_group="web", topic="orders", queue_id=0, sys_flag=0, born_ms=1, flag=0
        ).to_fields(),
        body=b"x",
    )
    served: Any = hooked({command.code: (row, lambda asked, _peer: asked.answer())}, (faulty,))  # type: ignore[dict-item]
    for _ in range(2):
        assert served[command.code][1](command, SimpleNamespace(host="h")).code == 0
    assert faulty.calls == 4


def progress(fault: BaseException) -> None:
    """Rows go on; the function is called no more, and nobody waits for its thread."""
    faulty = Faulty(fault)
    running = _Progress(SimpleNamespace(value=1), faulty)
    running.end()
    assert faulty.calls == 1


def handler(fault: BaseException) -> None:
    """``TaskWorker`` and ``OrderedWorker`` judge whatever comes out of here."""
    faulty, handlers = Faulty(fault), TaskHandlers(1.0)

    async def coroutine() -> None:
        faulty()

    handlers.register(faulty, "plain")
    handlers.register(coroutine, "coroutine")
    try:
        for name in ("plain", "coroutine", "plain", "coroutine"):
            with pytest.raises((TaskAborted, type(fault))):
                handlers.run(Task("id", name, (), {}, 0), lambda _cancel: None)
    finally:
        handlers.close()
    assert faulty.calls == 4


def timers(fault: BaseException) -> None:
    """Whatever else runs in them."""
    for made in (ClientTimers(SYSTEM_CLOCK, "t"), DelayedCalls(SYSTEM_CLOCK, "t")):
        faulty = Faulty(fault)
        made.start()
        try:
            made.after(0, faulty)
            made.after(0, faulty)
            eventually(lambda faulty=faulty: faulty.calls == 2)  # type: ignore[misc]
        finally:
            made.close()


PLACES: tuple[Callable[[BaseException], None], ...] = (
    done_callback,
    done_callback_of_a_reply,
    hooks_of_a_future,
    listener,
    listener_of_many,
    listener_in_order,
    listener_coroutine,
    consume_hook,
    filter_of_messages,
    strategy,
    checker,
    broker_hook,
    progress,
    handler,
    timers,
)
IN_CALLER = "in the thread or loop of who calls, to whom it passes"
OURS = "no code of users: a port that we implement"
CALLED_BY_OTHERS = "by Ray Data or Ray, in tasks and actors of theirs"
ENDS = "in the query's own thread, which ends with it and tells it: test_micro_batches.py"
LISTENS = (listener, listener_of_many, listener_in_order, listener_coroutine)
DOORS: dict[str, str | tuple[Callable[[BaseException], None], ...]] = {
    # consumers
    "PushConsumer.listener": LISTENS,
    "ConsumerShell.listener": LISTENS,
    "ConsumerApp.handler": LISTENS,
    "PushOptions.hooks": (consume_hook,),
    "PushOptions.filters": (filter_of_messages,),
    "PushOptions.allocate": (strategy,),
    "PullOptions.allocate": (strategy,),
    "ByConfig.otherwise": (strategy,),
    "MachineRoomNearby.inner": (strategy,),
    "MachineRoomNearby.rooms": (strategy,),
    "OnlyHosts.inner": (strategy,),
    # producers
    "SendFuture.add_done_callback.fn": (done_callback,),
    "OwnFuture.add_done_callback.fn": (done_callback_of_a_reply,),
    "ProducerBase.hooks": (hooks_of_a_future,),
    "ProducerBase.checks": IN_CALLER,
    "ProducerBase.checker": (checker,),
    "Producer.transaction.checker": (checker,),
    "AsyncProducer.transaction.checker": (checker,),
    "TransactionProducer.listener": (checker,),
    "AsyncProducer.send_in_transaction.listener": (checker,),
    **dict.fromkeys(
        (
            *(f"Producer.{call}.selector" for call in ("send", "send_async", "send_oneway")),
            *(f"AsyncProducer.{call}.selector" for call in ("send", "send_oneway")),
            "Transaction.send.selector",
            "Producer.send_arrow.place",
            "StreamBatch.write.writer",
            "TopicStream.dataset",
        ),
        IN_CALLER,
    ),
    # brokers, tasks, Spark
    "BrokerConfig.send_hooks": (broker_hook,),
    "RmqTaskProcessorAdapter.register_task_handle.func": (handler,),
    "TopicStream.foreach_batch.fn": ENDS,
    "BatchQuery.fn": ENDS,
    "write_topic.progress": (progress,),
    "ProducerShell.run.work": CALLED_BY_OTHERS,
    # ports
    **dict.fromkeys(
        (
            *("AdminLink.discovery", "GroupConsumer.discovery", "ProducerBase.discovery"),
            *("PullConsumer.discovery", "PushConsumer.discovery", "SimpleConsumer.discovery"),
            *("TransactionProducer.discovery", "TrainSource.discovery"),
            *("BatchQuery.clock", "ConsumeTrace.clock", "GroupConsumer.clock"),
            *("ProducerBase.clock", "PullConsumer.clock", "PushConsumer.clock"),
            "SimpleConsumer.clock",
        ),
        OURS,
    ),
}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_thread_of_ours_goes_on_whatever_users_code_raises(
    place: Callable[[BaseException], None],
    fault: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    died: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    place(fault)
    assert died == []
    traces = [line for line in caplog.records if line.exc_info and line.exc_info[1] is fault]
    assert len(traces) <= 2, "one line a failure, and one traceback of a kind"


def test_every_door_of_the_public_interface_has_its_row() -> None:
    assert sorted({*doors()} ^ {*DOORS}) == []
    walked = {place for row in DOORS.values() if isinstance(row, tuple) for place in row}
    assert walked | {timers} == {*PLACES}


def test_users_code_is_called_by_the_guard_or_named_here() -> None:
    """Who takes an exit in hand outside the guard: threads of ours with a rule of their own for
    what users' code raises. Others clean up and raise it again.
    """
    caught = {
        module.name
        for module in package_modules()
        if re.search(r"except BaseException as \w+:  # noqa: BLE001", module.text)
    }
    assert caught == {
        "guard.py",
        "client/consumer/operator_requests.py",
        "client/consumer/rebalancer.py",
        "client/push/consume_concurrently.py",
        "client/push/consume_orderly.py",
        "serve/ordered_worker.py",
        "serve/task_worker.py",
        "spark/micro_batches.py",
    }


# --- who waits for himself ---


WAITS: dict[str, Callable[[Any], object]] = {
    "result": lambda future: future.result(),
    "result with a time-out": lambda future: future.result(60),
    "exception": lambda future: future.exception(),
    "wait": lambda future: futures.wait([future]),
    "as_completed": lambda future: list(futures.as_completed([future])),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
@pytest.mark.parametrize("kind", ["send", "reply"])
@pytest.mark.parametrize("closed", [False, True])
def test_a_callback_that_waits_for_its_own_producer_is_told_so_at_once(
    wait: Callable[[Any], object], kind: str, closed: bool
) -> None:
    worker = ClientTimers(SYSTEM_CLOCK, "worker")
    worker.start()
    callbacks, told = Callbacks(worker), []
    later: Any = (
        SendFuture(BatchOutcome(QUEUE, callbacks), 0) if kind == "send" else OwnFuture(callbacks)
    )

    def waits(_future: Any) -> None:
        try:
            wait(later)
        except ClientError as error:
            told.append(error)

    first = BatchOutcome(QUEUE, callbacks)
    SendFuture(first, 0).add_done_callback(waits)
    if closed:
        worker.close()
    first.finish(SendError("refused"))
    try:
        eventually(lambda: told)
    finally:
        worker.close()
    assert "wait in a thread of your own" in str(told[0])


def test_what_has_ended_is_no_wait_and_other_threads_may_wait() -> None:
    worker = ClientTimers(SYSTEM_CLOCK, "worker")
    callbacks, got = Callbacks(worker), []
    ended = BatchOutcome(QUEUE, callbacks)
    ended.stored = StoredAt(SendStatus.SEND_OK, QUEUE, Address("127.0.0.1", 1), 4, 0)
    ended.message_ids, ended.sizes = ("A",), (1,)
    SendFuture(ended, 0).add_done_callback(lambda future: got.append(future.result().queue_offset))
    ended.finish()
    worker.run_due()
    assert got == [4]
    with pytest.raises(TimeoutError):
        SendFuture(BatchOutcome(QUEUE, callbacks), 0).result(0)


# --- in the caller's own thread ---


def test_an_exit_of_a_hook_in_the_callers_thread_is_his_and_every_hook_ends() -> None:
    first, last = Seen(), Seen()
    exits = SimpleNamespace(before=Faulty(KeyboardInterrupt()), after=Faulty(SystemExit()))
    with (
        pytest.raises(KeyboardInterrupt),
        steps_of(first, exits, last).around(SendRequest("orders", b"x", ""), "sync"),
    ):
        raise AssertionError("nothing is sent")
    assert (first.befores, first.afters, last.befores) == (1, 1, 0)
    late = SimpleNamespace(before=lambda ctx: None, after=Faulty(SystemExit()))
    with (
        pytest.raises(SystemExit),
        steps_of(first, late, last).around(SendRequest("orders", b"x", ""), "sync"),
    ):
        pass
    assert (first.afters, last.afters) == (2, 1)


def test_a_callback_that_is_added_late_runs_at_once_and_its_exit_is_the_callers() -> None:
    outcome = BatchOutcome(QUEUE)
    outcome.finish(SendError("refused"))
    SendFuture(outcome, 0).add_done_callback(Faulty(ValueError("bad")))
    with pytest.raises(SystemExit):
        SendFuture(outcome, 0).add_done_callback(Faulty(SystemExit()))


def test_sends_behind_a_callback_that_exits_end_at_their_time_out() -> None:
    clock = ManualClock()
    worker = ClientTimers(clock, "worker")
    sender = AsyncSender(clock, InFlightWindow(4, 1 << 20), worker, lambda _frame_id: None)
    callbacks = Callbacks(worker)
    outcomes = [BatchOutcome(QUEUE, callbacks) for _ in range(2)]
    SendFuture(outcomes[0], 0).add_done_callback(Faulty(SystemExit()))
    for outcome in outcomes:
        sender.submit(AsyncSend(outcome, refused, None, None, clock.monotonic_ms() + 1_000))
        worker.run_due()
    assert all(outcome.error is not None for outcome in outcomes)


def test_the_line_says_what_failed_and_its_traceback_comes_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faulty = Faulty(ValueError("no\namount"))
    for _ in range(3):
        assert guard.guarded(log, "a part", faulty, then="it goes on", otherwise=7) == 7
    assert [line.getMessage() for line in caplog.records] == [
        "a part failed with ValueError: no amount; it goes on"
    ] * 3
    assert [bool(line.exc_info) for line in caplog.records][1:] == [False, False]


class Seen:
    def __init__(self) -> None:
        self.befores = self.afters = 0

    def before(self, _ctx: Any) -> None:
        self.befores += 1

    def after(self, _ctx: Any) -> None:
        self.afters += 1


def steps_of(*hooks: Any) -> SendSteps:
    made = SendSteps.of(ProducerConfig(group="web"), hooks, (), ManualClock())
    assert made is not None
    return made


def consuming(call: Callable[[Any, Any], Any], **settings: Any) -> Callable[[Any, Any], Any]:
    config = ConsumerConfig("g")
    made = ConsumerSettings(
        config, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, Averagely(), **settings
    )
    return ListenerInvoker("g", call, made, ManualClock()).call


def refused(_wait: bool) -> InFlightSend:
    raise SendError("no room")


# --- the public interface ---


def doors() -> Iterator[str]:
    """Each parameter and setting that takes code, as ``Class.call.name`` (``Class.name`` of the
    constructor).
    """
    code = code_names()
    values = [getattr(value, "shell", value) for _, _, value in public()]
    for value in [*values, RmqTaskProcessorAdapter, SendFuture, OwnFuture]:
        if is_typeddict(value) or is_dataclass(value):
            notes = inspect.get_annotations(value)
            yield from (
                f"{value.__name__}.{name}" for name in notes if is_code(code, name, notes[name])
            )
        for call, function in calls_of(value):
            yield from (
                f"{call}.{parameter.name}"
                for parameter in inspect.signature(function).parameters.values()
                if is_code(code, parameter.name, parameter.annotation)
            )


def calls_of(value: Any) -> Iterator[tuple[str, Any]]:
    if inspect.isfunction(value):
        yield value.__name__, value
    for kind in value.__mro__ if inspect.isclass(value) else ():
        for name, found in vars(kind).items() if kind.__module__.startswith("rmq_ray") else ():
            function = getattr(found, "__func__", found)
            if inspect.isfunction(function) and not name.startswith("_"):
                yield f"{kind.__name__}.{name}", function
            if name == "__init__":
                yield kind.__name__, function


def is_code(code: frozenset[str], name: str, annotation: object) -> bool:
    named = re.search(r"hook|listener$|filters|callback|handler", name)
    return bool(named) or not code.isdisjoint(re.findall(r"\w+", str(annotation)))


def code_names() -> frozenset[str]:
    """``Callable``, what stands for one in the package, and the classes that users derive."""
    found = {"Callable"}
    for module in package_modules():
        for node in module.tree.body:
            if isinstance(node, ast.Assign) and "Callable[" in ast.unparse(node.value):
                found.update(name.id for name in node.targets if isinstance(name, ast.Name))
            elif isinstance(node, ast.ClassDef) and (
                {"Protocol", "ABC"} & {*map(ast.unparse, node.bases)} or node.name.endswith("Hook")
            ):
                found.add(node.name)
    return frozenset(found)
