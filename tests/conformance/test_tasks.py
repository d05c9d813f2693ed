"""Tasks of Ray Serve's adapter on real brokers, without Ray: what every end of a handler becomes,
who gets a task whose worker is gone, and what callers are told.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from ray.serve.schema import TaskProcessorConfig, TaskResult
from ray.serve.task_consumer import instantiate_adapter_from_config

from rmq_ray.client.admin.dead_letters import DeadLetters
from rmq_ray.client.pop.simple_consumer import SimpleConsumer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.clock import SystemClock
from rmq_ray.errors import (
    ClientError,
    MessageIllegal,
    MessageTooLarge,
    ResultExpired,
    SendUnknown,
    TaskNotEncodable,
)
from rmq_ray.serve.task_codec import Status
from tests.support.brokers.live_cluster import CLUSTER, SECRET, LiveCluster, LiveProcess
from tests.support.outcomes import judging
from tests.support.waiting import eventually

_numbers = itertools.count()
FAST = {"retry_backoff_s": 0.05, "lease_s": 10.0}
FORGETFUL = {"lease_s": 0.6}  # for tasks whose worker is gone


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path_factory.mktemp("live")) as live:
        yield live


class Ahead(SystemClock):
    """A host whose time of day is ahead by so many ms."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms


class Bench:
    """One queue of tasks: adapters that call, and adapters that work."""

    def __init__(self, cluster: Any, **settings: Any) -> None:
        adapter = {
            "name_servers": cluster.lookup().name_servers,
            "secret": SECRET,
            "cluster": CLUSTER,
            **FAST,
            **settings.pop("adapter", {}),
        }
        self.name = f"tasks{next(_numbers)}"
        self.config = TaskProcessorConfig(
            queue_name=self.name,
            adapter="rmq_ray.serve.RmqTaskProcessorAdapter",
            adapter_config=adapter,
            failed_task_queue_name=f"{self.name}_failed",
            unprocessable_task_queue_name=f"{self.name}_odd",
            **settings,
        )
        self.cluster = cluster
        self.adapters: list[Any] = []
        self.caller = self.adapter()

    def adapter(self) -> Any:
        made = instantiate_adapter_from_config(self.config)
        self.adapters.append(made)
        return made

    def work(self, concurrency: int = 4, **handlers: Callable[..., Any]) -> Any:
        worker = self.adapter()
        worker.initialize(concurrency)
        for name, handler in handlers.items():
            worker.register_task_handle(handler, name)
        worker.start_consumer()
        return worker

    def call(self, name: str, *args: Any, **kwargs: Any) -> str:
        found = self.caller.enqueue_task_sync(name, args=args, kwargs=kwargs)
        assert found.status == "PENDING" and found.created_at
        return str(found.id)

    def until(self, task_id: str, *statuses: str) -> TaskResult:
        return eventually(
            lambda: (
                found
                if (found := self.caller.get_task_status_sync(task_id)).status in statuses
                else None
            )
        )

    def dead(self, group: str) -> list[Any]:
        with_dead = DeadLetters(self.cluster)
        try:
            rows = {row["group"]: row["messages"] for row in with_dead.dead_letter_groups()}
            return list(with_dead.dead_letters(group)) if group in rows else []
        finally:
            with_dead.close()

    def close(self) -> None:
        for adapter in self.adapters:
            adapter.stop_consumer(0.5)


@pytest.fixture
def bench(cluster: LiveCluster) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**settings: Any) -> Bench:
        made.append(Bench(cluster, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


async def doubled(value: Any) -> Any:
    await asyncio.sleep(0)
    return value * 2


def test_functions_and_coroutines_return_what_callers_find_by_id(
    bench: Callable[..., Bench],
) -> None:
    tasks = bench()
    table = pa.table({"a": [1, 2]})
    first = tasks.call("add", 1, b=2)  # before anybody works
    worker = tasks.work(add=lambda a, b: a + b, doubled=doubled, same=lambda value: value)
    calls = {
        first: 3,
        tasks.call("doubled", "ab"): "abab",
        tasks.call("same", (1, {"x": (b"2", None)})): (1, {"x": (b"2", None)}),
    }
    for task_id, result in calls.items():
        assert tasks.until(task_id, "SUCCESS").result == result
    assert tasks.until(tasks.call("same", table), "SUCCESS").result == table
    assert (tasks.until(tasks.call("doubled", np.arange(3)), "SUCCESS").result == [0, 2, 4]).all()
    eventually(lambda: (found := worker.get_metrics_sync())["waiting"] == found["running"] == 0)
    metrics = worker.get_metrics_sync()
    assert metrics["succeeded"] == 5 and metrics["failed"] == 0
    assert worker.health_check_sync() == [{"queue": tasks.name, "ok": True, "reason": ""}]


def test_the_calls_of_an_event_loop_do_the_same(bench: Callable[..., Bench]) -> None:
    tasks = bench()
    worker = tasks.work(doubled=doubled)

    async def program() -> Any:
        made = await tasks.caller.enqueue_task_async("doubled", args=[21])
        late = await tasks.caller.enqueue_task_async("doubled", args=[1], delay=60)
        await tasks.caller.cancel_task_async(late.id)
        while (await tasks.caller.get_task_status_async(made.id)).status != "SUCCESS":
            await asyncio.sleep(0.02)
        assert (await worker.health_check_async())[0]["ok"]
        assert (await tasks.caller.get_metrics_async())["queue"] == tasks.name
        assert (await tasks.caller.get_task_status_async(late.id)).status == "REVOKED"
        return (await tasks.caller.get_task_status_async(made.id)).result

    assert asyncio.run(program()) == 42


def test_what_fails_is_tried_again_and_then_is_a_dead_letter_with_its_reason(
    bench: Callable[..., Bench],
) -> None:
    tasks, times = bench(max_retries=2), list[float]()

    def fails() -> None:
        times.append(time.monotonic())
        raise ValueError("no such picture \ud800")

    def second() -> str:
        if not times:
            raise AssertionError
        return "done"

    tasks.work(fails=fails, second=second)
    failed = tasks.until(task_id := tasks.call("fails"), "FAILURE")
    assert failed.result == "ValueError: no such picture \\ud800"
    assert len(times) == 3 and times[1] - times[0] >= 0.05 and times[2] - times[1] >= 0.1
    (dead,) = eventually(lambda: tasks.dead(f"{tasks.name}_failed"))
    assert dead.keys == [task_id] and dead.failed_with == failed.result
    assert tasks.dead(f"{tasks.name}_odd") == tasks.dead(tasks.name) == []


@pytest.mark.parametrize("group", [None, "in order"])
def test_an_outage_of_what_tasks_need_costs_no_dead_letter_and_ends_by_itself(
    bench: Callable[..., Bench], group: str | None
) -> None:
    window, count = 5, 40
    breaker = {"window": window, "pause": 0.05}
    adapter = {"breaker": breaker, "retry_backoff_s": 0.01, "lease_s": 10.0}
    tasks = bench(adapter=adapter, max_retries=2)
    gone, calls, done = threading.Event(), list[int](), list[int]()
    gone.set()

    def needs(number: int) -> None:
        if gone.is_set():
            calls.append(number)
            raise ConnectionError("the database is gone")
        done.append(number)

    worker = tasks.work(2, needs=needs)
    options = {} if group is None else {"message_group": group}
    ids = [
        tasks.caller.enqueue_task_sync("needs", args=[number], **options).id
        for number in range(count)
    ]
    eventually(lambda: worker.get_metrics_sync()["pauses"])
    opened = len(calls)
    eventually(lambda: len(calls) >= opened + 5)
    gone.clear()
    for task_id in ids:
        tasks.until(task_id, "SUCCESS", "FAILURE")
    assert not worker.get_metrics_sync()["pauses"]
    dead = tasks.dead(f"{tasks.name}_failed")
    with judging():
        assert len(done) == len(set(done)) == count - len(dead)
        # one queue waits with the first of its tasks, so that three tries of it come before
        assert len(dead) <= (window - 1) // 3
        assert group is None or done == sorted(done)


@pytest.mark.parametrize("group", [None, "in order"])
def test_a_dead_letter_that_is_sent_again_is_the_same_task(
    bench: Callable[..., Bench], group: str | None
) -> None:
    tasks, broken = bench(max_retries=0), threading.Event()
    options = {} if group is None else {"message_group": group}

    def mended() -> str:
        if not broken.is_set():
            raise ValueError("not yet")
        return "mended"

    tasks.work(mended=mended)
    task_id = tasks.caller.enqueue_task_sync("mended", **options).id
    tasks.until(task_id, "FAILURE")
    broken.set()
    with_dead = DeadLetters(tasks.cluster)
    sent = eventually(
        lambda: (
            tasks.dead(f"{tasks.name}_failed")
            and with_dead.resend_dead_letters(f"{tasks.name}_failed", execute=True)
        )
    )
    with_dead.close()
    assert sent == {tasks.name if group is None else f"rmq_ordered_{tasks.name}": 1}
    assert tasks.until(task_id, "SUCCESS").result == "mended"


def test_unknown_names_and_unreadable_bodies_are_told_and_stop_nothing(
    bench: Callable[..., Bench],
) -> None:
    tasks = bench()
    tasks.work(known=lambda: 1)
    unknown = tasks.until(tasks.call("unknown"), "FAILURE")
    assert unknown.result == (
        "TaskUnprocessable: there is no handler 'unknown'; registered are known"
    )
    with Producer("other", discovery=tasks.cluster) as other:
        other.send(tasks.name, b"\xc1 no task")
    assert tasks.until(tasks.call("known"), "SUCCESS").result == 1
    dead = eventually(lambda: found if len(found := tasks.dead(f"{tasks.name}_odd")) == 2 else None)
    assert {str(one.failed_with).partition(":")[0] for one in dead} == {
        "TaskUnprocessable",
        "BodyUnreadable",
    }


def test_wrong_arguments_fail_like_any_exception(bench: Callable[..., Bench]) -> None:
    tasks = bench(max_retries=0)
    tasks.work(one=lambda value: value)
    assert "TypeError" in tasks.until(tasks.call("one", 1, 2), "FAILURE").result


def test_values_without_a_form_are_refused_before_anything_is_sent(
    bench: Callable[..., Bench],
) -> None:
    tasks = bench()
    for args in ([object()], [{1, 2}], [1 << 70], [threading.Lock()]):
        with pytest.raises(TaskNotEncodable, match="arguments of task 'one'"):
            tasks.caller.enqueue_task_sync("one", args=args)
    with pytest.raises(TaskNotEncodable, match="must be a list or tuple"):
        tasks.caller.enqueue_task_sync("one", args="text")
    with pytest.raises(MessageTooLarge):
        tasks.call("one", bytes(5 << 20))
    for wrong in ({"priority": 1}, {"delay": -1}, {"delay": 1, "eta": 2}, {"message_group": 7}):
        with pytest.raises(ClientError, match=r"option|delay|message_group"):
            tasks.caller.enqueue_task_sync("one", **wrong)
    for wrong in ({"properties": 7}, {"properties": {"tenant": 7}}):
        with pytest.raises(MessageIllegal, match="properties must be"):
            tasks.caller.enqueue_task_sync("one", **wrong)
    assert tasks.caller.get_metrics_sync()["waiting"] == 0


def test_pickle_only_where_both_sides_say_so(bench: Callable[..., Bench]) -> None:
    tasks = bench(adapter={"pickle": True})
    tasks.work(size=len, same=lambda value: value)
    assert tasks.until(tasks.call("size", {1, 2}), "SUCCESS").result == 2
    assert tasks.until(tasks.call("same", {1, 2}), "SUCCESS").result == {1, 2}
    strict = Bench(tasks.cluster)
    try:
        strict.work(size=len)
        with Producer("other", discovery=tasks.cluster) as other:
            from rmq_ray.serve.task_codec import Task, encode_task, new_id

            task_id = new_id(int(time.time() * 1_000), bytes(10))
            body = encode_task(Task(task_id, "size", [{1}], {}, 0), True)
            other.send(strict.name, body, keys=[task_id])
        assert "unpickles nothing" in strict.until(task_id, "FAILURE").result
    finally:
        strict.close()


def test_results_that_cannot_be_stored_are_failures_and_not_tried_again(
    bench: Callable[..., Bench],
) -> None:
    tasks, calls = bench(), list[str]()

    def odd(what: str) -> Any:
        calls.append(what)
        return object() if what == "object" else bytes(5 << 20)

    tasks.work(odd=odd)
    assert "TaskNotEncodable" in tasks.until(tasks.call("odd", "object"), "FAILURE").result
    assert "MessageTooLarge" in tasks.until(tasks.call("odd", "large"), "FAILURE").result
    assert calls == ["object", "large"]
    eventually(lambda: len(tasks.dead(f"{tasks.name}_failed")) == 2)


def test_a_handler_that_hangs_is_given_up_and_its_thread_replaced(
    bench: Callable[..., Bench],
) -> None:
    tasks = bench(adapter={"task_timeout_s": 1.5}, max_retries=0)
    go_on = threading.Event()

    async def sleeps() -> None:
        await asyncio.sleep(60)

    async def blocks() -> None:
        go_on.wait(30)

    worker = tasks.work(
        1, hangs=lambda: go_on.wait(30), sleeps=sleeps, blocks=blocks, doubled=doubled
    )
    for name in ("hangs", "sleeps", "blocks"):
        assert "TaskTimedOut" in tasks.until(tasks.call(name), "FAILURE").result
        assert tasks.until(tasks.call("doubled", 1), "SUCCESS").result == 2
    assert worker.get_metrics_sync()["hung"] == 1
    go_on.set()
    eventually(lambda: worker.get_metrics_sync()["hung"] == 0)
    assert tasks.until(tasks.call("doubled", 2), "SUCCESS").result == 4


def test_a_task_that_succeeded_while_its_worker_stopped_is_acknowledged(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result is told of late, by the time the worker waits for what was sent."""
    tasks, held = bench(), list[Callable[[None], None]]()
    worker = tasks.work(1, doubled=doubled)
    results, producer = worker._parts.results, worker._parts.producer
    write = results.write

    def late(task: Any, status: Status, tries: int, result: Any = None, told: Any = None) -> None:
        if status is Status.SUCCESS:
            held.append(told)
            told = None
        write(task, status, tries, result, told)

    monkeypatch.setattr(results, "write", late)
    monkeypatch.setattr(producer, "flush", lambda: held.pop()(None))
    task_id = tasks.call("doubled", 1)
    tasks.until(task_id, "SUCCESS")
    worker.stop_consumer(0.0)
    assert not held
    eventually(lambda: tasks.caller.get_metrics_sync()["waiting"] == 0)


def test_a_handler_that_exits_ends_nothing(bench: Callable[..., Bench]) -> None:
    tasks = bench(max_retries=0)

    async def leaves() -> None:
        sys.exit(3)

    tasks.work(1, exits=lambda: sys.exit(3), leaves=leaves, doubled=doubled)
    for name in ("exits", "leaves"):
        assert "TaskAborted" in tasks.until(tasks.call(name), "FAILURE").result
    assert tasks.until(tasks.call("doubled", 2), "SUCCESS").result == 4


def test_a_long_task_keeps_its_lease_and_says_that_it_began(bench: Callable[..., Bench]) -> None:
    tasks, begun = bench(adapter={"lease_s": 2.0}), list[int]()

    def long() -> str:
        begun.append(1)
        time.sleep(5)  # two leases and a half
        return "done"

    tasks.work(1, long=long)
    tasks.work(1, long=long)
    task_id = tasks.call("long")
    assert tasks.until(task_id, "STARTED").result is None
    assert tasks.until(task_id, "SUCCESS").result == "done"
    assert begun == [1]


def test_tasks_of_a_worker_that_is_gone_come_to_another(bench: Callable[..., Bench]) -> None:
    tasks, forever = bench(adapter=FORGETFUL), threading.Event()
    gone = tasks.work(2, one=lambda value: forever.wait(60))
    ids = [tasks.call("one", number) for number in range(6)]
    eventually(lambda: gone.get_metrics_sync()["running"] == 2)
    gone._workers.tasks._ended.set()  # its keeper extends nothing any more: as after SIGKILL
    gone._workers.tasks._stop.set()
    tasks.work(2, one=lambda value: value)
    for number, task_id in enumerate(ids):
        assert tasks.until(task_id, "SUCCESS").result == number
    forever.set()


def test_a_task_whose_only_worker_is_gone_is_never_counted_as_ended(
    bench: Callable[..., Bench],
) -> None:
    tasks, forever = bench(adapter=FORGETFUL), threading.Event()
    gone = tasks.work(1, one=lambda: forever.wait(60))
    task_id = tasks.call("one")
    eventually(lambda: gone.get_metrics_sync()["running"] == 1)
    gone._workers.tasks._ended.set()  # as after SIGKILL
    gone._workers.tasks._stop.set()

    def moved() -> bool:
        assert tasks.caller.get_metrics_sync()["waiting"] >= 1
        rows = tasks.caller._parts.admin.group_lag(tasks.name)
        return sum(row["committed"] for row in rows if row["topic"] == tasks.name) == 1

    eventually(moved)
    assert tasks.caller.get_metrics_sync()["waiting"] == 1
    tasks.work(1, one=lambda: "done")
    assert tasks.until(task_id, "SUCCESS").result == "done"
    eventually(lambda: tasks.caller.get_metrics_sync()["waiting"] == 0)
    forever.set()


def test_a_task_that_ends_its_workers_is_a_dead_letter_at_last(
    bench: Callable[..., Bench],
) -> None:
    tasks = bench(max_retries=0)
    task_id = tasks.call("one")
    group = {"start_from": "first", "max_reconsume_times": 100}
    with SimpleConsumer(tasks.name, tasks.name, discovery=tasks.cluster, **group) as dying:
        for _ in range(4):  # 1 try and 3 losses
            assert dying.receive(1, invisible=0.05, wait=20)
    tasks.work(one=lambda: "never")
    assert "workers died" in tasks.until(task_id, "FAILURE", "SUCCESS").result


def test_stopping_ends_what_runs_and_gives_back_the_rest(bench: Callable[..., Bench]) -> None:
    tasks, go_on = bench(), threading.Event()
    first = tasks.work(1, one=lambda value: go_on.wait(10) and value)
    held = tasks.call("one", 1)
    eventually(lambda: first.get_metrics_sync()["running"] == 1)
    threading.Timer(0.2, go_on.set).start()
    first.stop_consumer(10)
    assert tasks.until(held, "SUCCESS").result == 1
    later = tasks.call("one", 2)
    tasks.work(1, one=lambda value: value)
    assert tasks.until(later, "SUCCESS").result == 2


def test_delayed_tasks_begin_at_their_time(bench: Callable[..., Bench]) -> None:
    tasks = bench()
    tasks.work(now=lambda: time.time())
    began = time.time()
    made = tasks.caller.enqueue_task_sync("now", options={"delay": 1.0})
    assert made.status == "PENDING"
    assert 1.0 <= tasks.until(made.id, "SUCCESS").result - began < 10


def test_tasks_of_one_group_run_one_after_the_other_in_their_order(
    bench: Callable[..., Bench],
) -> None:
    tasks, log, lock = bench(max_retries=1), list[tuple[str, int]](), threading.Lock()
    running: dict[str, int] = {}
    overlaps = []

    def step(key: str, number: int) -> None:
        with lock:
            running[key] = running.get(key, 0) + 1
            overlaps.append(running[key])
            again = (key, number) in log
            log.append((key, number))
        time.sleep(0.002)
        with lock:
            running[key] -= 1
        if number == 3 and not again:
            raise ValueError("once")
        if number == 5:
            raise ValueError("always")

    tasks.work(4, step=step)
    tasks.work(4, step=step)
    ids = {
        (key, number): tasks.caller.enqueue_task_sync(
            "step", args=[key, number], message_group=key
        ).id
        for number in range(10)
        for key in "abc"
    }
    for (_, number), task_id in ids.items():
        tasks.until(task_id, "FAILURE" if number == 5 else "SUCCESS")
    assert set(overlaps) == {1}
    for key in "abc":
        wanted = [0, 1, 2, 3, 3, 4, 5, 5, 6, 7, 8, 9]
        assert [number for of, number in log if of == key] == wanted
    eventually(lambda: len(tasks.dead(f"{tasks.name}_failed")) == 3)


def test_a_busy_key_holds_up_no_other_one_and_what_waits_for_it_keeps_its_lease(
    bench: Callable[..., Bench],
) -> None:
    limits = {"concurrency": 2, "by": "tenant"}
    tasks = bench(adapter={"key_limits": limits, "lease_s": 2.0}, max_retries=0)
    go_on, lock = threading.Event(), threading.Lock()
    running, most, done = Counter[str](), Counter[str](), list[tuple[str, int]]()

    def sync(tenant: str, number: int) -> None:
        with lock:
            running[tenant] += 1
            most[tenant] = max(most[tenant], running[tenant])
        if tenant == "busy":
            go_on.wait(60)
        with lock:
            running[tenant] -= 1
            done.append((tenant, number))

    worker = tasks.work(6, sync=sync)
    calls = [(tenant, number) for number in range(20) for tenant in ("busy", "a", "b")]
    ids = [
        tasks.caller.enqueue_task_sync("sync", args=call, properties={"tenant": call[0]}).id
        for call in calls
    ]
    # longer than two leases
    later = tasks.caller.enqueue_task_sync("sync", args=("late", 0), delay=5.0)
    tasks.until(later.id, "SUCCESS")
    eventually(lambda: len(done) == 41)
    eventually(lambda: worker.get_metrics_sync()["waiting_for_keys"] == 18)
    go_on.set()
    for task_id in ids:
        tasks.until(task_id, "SUCCESS", "FAILURE")
    assert worker.get_metrics_sync()["waiting_for_keys"] == 0
    with judging():
        assert set(done) == {*calls, ("late", 0)} and max(most.values()) <= 2


def test_a_cancelled_task_does_not_begin_and_a_coroutine_ends(bench: Callable[..., Bench]) -> None:
    tasks, begun = bench(), list[str]()
    ended = threading.Event()

    async def sleeps() -> None:
        begun.append("sleeps")
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    waits = tasks.call("never")
    tasks.caller.cancel_task_sync(waits)
    assert tasks.until(waits, "REVOKED").result is None
    worker = tasks.work(1, never=lambda: begun.append("never"), sleeps=sleeps, doubled=doubled)
    runs = tasks.call("sleeps")
    eventually(lambda: begun)
    tasks.caller.cancel_task_sync(runs)
    assert ended.wait(20)
    done = tasks.call("doubled", 1)
    tasks.until(done, "SUCCESS")
    tasks.caller.cancel_task_sync(done)
    assert tasks.until(done, "SUCCESS").result == 2, "it had ended"
    assert tasks.until(runs, "REVOKED") and begun == ["sleeps"]
    eventually(lambda: worker.get_metrics_sync()["revoked"] == 2)


def test_results_are_kept_for_their_time_only(bench: Callable[..., Bench]) -> None:
    tasks = bench(adapter={"result_ttl_s": 60.0})
    later = tasks.adapter()
    later._connected().results._clock = Ahead(61_000)
    waiting = tasks.call("one")
    assert later.get_task_status_sync(waiting).status == "PENDING", "nobody took it yet"
    tasks.work(one=lambda: 1)
    tasks.until(waiting, "SUCCESS")
    with pytest.raises(ResultExpired, match="result_ttl_s"):
        later.get_task_status_sync(waiting)
    with pytest.raises(ClientError, match="no id of a task"):
        tasks.caller.get_task_status_sync("7")
    unkept = bench(adapter={"result_ttl_s": 0})
    unkept.work(one=lambda: 1)
    task_id = unkept.call("one")
    eventually(lambda: unkept.caller.get_metrics_sync()["waiting"] == 0)
    with pytest.raises(ResultExpired):
        unkept.caller.get_task_status_sync(task_id)


@pytest.mark.slow
def test_no_task_is_lost_when_the_broker_is_killed_while_tasks_run(tmp_path: Path) -> None:
    process = LiveProcess(tmp_path)
    tasks = Bench(process, adapter=FORGETFUL)
    done: set[int] = set()
    try:
        tasks.work(4, one=lambda number: done.add(number) or time.sleep(0.001))
        wanted = set()
        for number in range(600):
            if number in (150, 400):
                process.kill()
                process = LiveProcess(tmp_path)
            try:
                tasks.call("one", number)
            except SendUnknown:
                continue  # may be there
            wanted.add(number)
        assert len(wanted) > 590
        eventually(lambda: wanted <= done, 60)
    finally:
        tasks.close()
        process.kill()
