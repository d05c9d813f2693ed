"""Ways to be called: Arrow batches, coroutine functions, hooks, the ack index, pausing and limits
while the consumer runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rmq_ray.client.interceptors.consume_hooks import ConsumeHook, ConsumeHookContext, ConsumeStatus
from rmq_ray.client.messages.listener import RECONSUME_LATER, Reject
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import ClientError, ConfigError
from rmq_ray.model.arrow import SCHEMA
from rmq_ray.model.ids import MessageQueue
from tests.support.brokers.pull_broker import PullCluster
from tests.support.waiting import eventually

QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(4)]


@pytest.fixture
def cluster() -> Iterator[PullCluster]:
    with PullCluster(topics={"orders": 4}) as running:
        yield running


def consumer(cluster: PullCluster, listener: Callable[..., Any], **options: Any) -> PushConsumer:
    options = {"subscriptions": {"orders": "*"}, "start_from": "first"} | options
    return PushConsumer("billing", listener=listener, discovery=cluster, **options)


def bodies(queue_id: int, count: int, start: int = 0) -> list[bytes]:
    return [b"%d-%d" % (queue_id, i) for i in range(start, start + count)]


class Batches:
    """A listener of Arrow batches; ``answer`` decides."""

    def __init__(self, answer: Callable[[Any, Any], Any] = lambda _batch, _ctx: None) -> None:
        self.answer = answer
        self.batches: list[Any] = []
        self._lock = threading.Lock()

    def __call__(self, batch: Any, ctx: Any) -> Any:
        with self._lock:
            self.batches.append(batch)
        return self.answer(batch, ctx)

    @property
    def bodies(self) -> Counter[bytes]:
        with self._lock:
            return Counter(
                body for batch in self.batches for body in batch.column("body").to_pylist()
            )


# --- columns --------------------------------------------------------------------------------------


def test_a_columnar_listener_gets_batches_of_one_queue_with_all_columns(
    cluster: PullCluster,
) -> None:
    for queue_id in range(4):
        cluster.put("orders", queue_id, bodies(queue_id, 300), "KEYS\x01k\x02TAGS\x01paid")
    seen = Batches()
    with consumer(cluster, seen, batch="arrow", batch_size=100) as running:
        eventually(lambda: sum(seen.bodies.values()) == 1_200)
        eventually(lambda: running.stats()["consumed_ok"] == 1_200)
    assert seen.bodies == Counter(body for queue_id in range(4) for body in bodies(queue_id, 300))
    assert {batch.num_rows for batch in seen.batches} == {100} and all(
        batch.schema == SCHEMA for batch in seen.batches
    )
    assert all(len(set(batch.column("queue_id").to_pylist())) == 1 for batch in seen.batches)
    assert cluster.pull_brokers[0].offsets["billing", ("orders", 0)] == 300


def test_columns_may_be_chosen_and_a_page_is_a_batch_unless_its_size_is_given(
    cluster: PullCluster,
) -> None:
    cluster.put("orders", 0, bodies(0, 700))
    seen = Batches()
    with consumer(cluster, seen, batch="arrow", columns=["body", "queue_offset"]):
        eventually(lambda: sum(seen.bodies.values()) == 700)
    assert [batch.num_rows for batch in seen.batches] == [700] and seen.batches[0].schema.names == [
        "body",
        "queue_offset",
    ]


def test_filtered_rows_are_left_out_of_columns(cluster: PullCluster) -> None:
    for tag in ("Aa", "lost", "BB", "Aa"):
        cluster.put("orders", 0, [tag.encode()] * 30, f"TAGS\x01{tag}")
    seen = Batches()
    with consumer(cluster, seen, batch="arrow", subscriptions={"orders": "Aa"}) as running:
        eventually(lambda: running.stats()["consumed_ok"] == 60)
    assert seen.bodies == {b"Aa": 60} and {
        tag for batch in seen.batches for tag in batch.column("tag").to_pylist()
    } == {"Aa"}


def test_what_a_columnar_listener_refuses_comes_again_row_by_row_under_its_own_topic(
    cluster: PullCluster,
) -> None:
    cluster.put("orders", 0, bodies(0, 10))

    def answer(batch: Any, _ctx: Any) -> Any:
        return RECONSUME_LATER if batch.column("reconsume_times")[0].as_py() == 0 else None

    seen = Batches(answer)
    with consumer(cluster, seen, batch="arrow") as running:
        eventually(lambda: running.stats()["consumed_ok"] == 10)
        # counted behind the answers, when the first of them may be consumed again already
        eventually(lambda: running.stats()["sent_back"] == 10)
        assert len(cluster.pull_brokers[0].sent_back) == 10
    again = [row for batch in seen.batches[1:] for row in batch.to_pylist()]
    assert {(row["topic"], row["reconsume_times"]) for row in again} == {("orders", 1)}
    assert Counter(row["body"] for row in again) == Counter(bodies(0, 10))


def test_rows_behind_the_ack_index_are_sent_back_and_rejected_ones_are_dead_letters(
    cluster: PullCluster,
) -> None:
    cluster.put("orders", 0, bodies(0, 10))

    def answer(batch: Any, ctx: Any) -> Any:
        if (
            batch.column("topic")[0].as_py() == "orders"
            and batch.column("reconsume_times")[0].as_py() == 0
        ):
            ctx.ack_index = 6
            return None
        return Reject

    with consumer(cluster, Batches(answer), batch="arrow") as running:
        eventually(lambda: sorted(cluster.bodies("%DLQ%billing")) == bodies(0, 3, 7))
        eventually(lambda: running.stats()["consumed_ok"] == 7)


def test_rows_that_no_broker_takes_back_are_kept_and_tell_that_they_failed_here(
    cluster: PullCluster,
) -> None:
    cluster.put("orders", 0, bodies(0, 4))
    cluster.pull_brokers[0].refuse_send_back = 4
    cluster.pull_brokers[0].fault = lambda _arrival, _number: 1
    tries: list[list[int]] = []

    def answer(batch: Any, _ctx: Any) -> Any:
        tries.append(batch.column("reconsume_times").to_pylist())
        return RECONSUME_LATER if len(tries) == 1 else None

    config = ConsumerConfig("billing", batch_size=64, send_back_retry_ms=50)
    with consumer(cluster, answer, batch="arrow", config=config) as running:
        eventually(lambda: running.stats()["consumed_ok"] == 4)
        assert running.stats()["sent_back"] == 0
    assert tries == [[0] * 4, [1] * 4]


# --- coroutine functions --------------------------------------------------------------------------


def test_a_coroutine_function_runs_in_one_loop_as_often_at_once_as_concurrency_says(
    cluster: PullCluster,
) -> None:
    for queue_id in range(4):
        cluster.put("orders", queue_id, bodies(queue_id, 10))
    running_now, most, threads, seen = 0, 0, set(), Counter[bytes]()
    full = asyncio.Event()

    async def handle(messages: list[Any], _ctx: Any) -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        threads.add(threading.current_thread().name)
        if running_now == 8:
            full.set()
        await full.wait()
        await asyncio.sleep(0.02)
        seen.update(message.body for message in messages)
        running_now -= 1

    with consumer(cluster, handle, concurrency=8) as running:
        eventually(lambda: running.stats()["consumed_ok"] == 40)
    assert most == 8 and threads == {"rmq-listener-billing"} and set(seen.values()) == {1}


def test_what_a_coroutine_raises_or_returns_counts_as_for_any_listener(
    cluster: PullCluster,
) -> None:
    cluster.put("orders", 0, [b"raise", b"later", b"reject", b"fine"])

    class Handler:
        async def __call__(self, messages: list[Any], ctx: Any) -> Any:
            if messages[0].body == b"raise" and not messages[0].reconsume_times:
                raise ValueError("as the test wants it")
            if messages[0].body == b"later" and not messages[0].reconsume_times:
                return RECONSUME_LATER
            return Reject() if messages[0].body == b"reject" else None

    with consumer(cluster, Handler()) as running:
        eventually(
            lambda: (
                running.stats()["consumed_ok"] == 3
                and cluster.bodies("%DLQ%billing") == [b"reject"]
            )
        )
        # counted behind the answer of the broker, which has the dead letter by then
        eventually(lambda: running.stats()["sent_back"] == 3)
        assert running.stats()["listener_faults"] == 1


def test_stop_waits_for_coroutines_cancels_those_that_take_too_long_and_is_refused_inside_of_one(
    cluster: PullCluster,
) -> None:
    cluster.put("orders", 0, [b"quick", b"slow"])
    begun, refused, cancelled = threading.Event(), [], threading.Event()

    async def handle(messages: list[Any], _ctx: Any) -> None:
        if messages[0].body == b"slow":
            try:
                running.stop()
            except ClientError as error:
                refused.append(error)
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                cancelled.set()

    running = consumer(cluster, handle)
    running.start()
    assert begun.wait(10)
    assert running.stop(timeout_ms=100) is False
    assert cancelled.wait(10) and len(refused) == 1


# --- hooks ----------------------------------------------------------------------------------------


class Watching(ConsumeHook):
    """Keeps the contexts; fails on demand."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.before_calls: list[ConsumeHookContext] = []
        self.after_calls: list[ConsumeHookContext] = []

    def before(self, context: ConsumeHookContext) -> None:
        self.before_calls.append(context)
        context.props["seen"] = context.status
        if self.fails:
            raise RuntimeError("a hook that fails before")

    def after(self, context: ConsumeHookContext) -> None:
        self.after_calls.append(context)
        if self.fails:
            raise RuntimeError("a hook that fails after")


def test_hooks_see_each_call_before_and_after_with_its_status_and_hurt_nothing(
    cluster: PullCluster,
) -> None:
    cluster.put("orders", 0, [b"fine", b"later", b"raise"])

    def handle(messages: list[Any], _ctx: Any) -> Any:
        if messages[0].reconsume_times:
            return None
        if messages[0].body == b"raise":
            raise ValueError("as the test wants it")
        return RECONSUME_LATER if messages[0].body == b"later" else None

    failing, watching = Watching(fails=True), Watching()
    with consumer(cluster, handle, hooks=[failing, watching]) as running:
        eventually(lambda: running.stats()["consumed_ok"] == 3)
        eventually(lambda: len(watching.after_calls) == 5)
    first = {
        context.messages[0].body: context
        for context in watching.after_calls
        if not context.messages[0].reconsume_times
    }
    assert {body: context.status for body, context in first.items()} == {
        b"fine": ConsumeStatus.SUCCESS,
        b"later": ConsumeStatus.FAILED,
        b"raise": ConsumeStatus.EXCEPTION,
    }
    assert (
        isinstance(first[b"raise"].error, ValueError)
        and first[b"later"].answer is RECONSUME_LATER
        and first[b"fine"].success
    )
    assert (
        first[b"fine"].group == "billing"
        and first[b"fine"].queue == QUEUES[0]
        and first[b"fine"].props == {"seen": None}
    )
    assert len(failing.before_calls) == len(failing.after_calls) == len(watching.before_calls) == 5


# --- while it runs --------------------------------------------------------------------------------


def test_a_paused_queue_is_not_pulled_until_it_is_resumed_while_the_others_are(
    cluster: PullCluster,
) -> None:
    seen: Counter[bytes] = Counter()
    with consumer(
        cluster, lambda messages, _ctx: seen.update(message.body for message in messages)
    ) as running:
        eventually(lambda: running.balanced)
        running.pause(QUEUES[1], "%RETRY%billing")
        for queue_id in range(4):  # held pulls of before bring these yet
            cluster.put("orders", queue_id, [b"first-%d" % queue_id])
        eventually(lambda: len(seen) == 4)
        for queue_id in range(4):
            cluster.put("orders", queue_id, [b"second-%d" % queue_id])
        eventually(lambda: len(seen) == 7)
        assert seen[b"second-1"] == 0
        running.resume("orders")
        eventually(lambda: seen[b"second-1"] == 1)
        with pytest.raises(ClientError, match="cannot be paused"):
            running.pause(7)  # type: ignore[arg-type]


def test_limits_change_while_the_consumer_runs(cluster: PullCluster) -> None:
    cluster.put("orders", 0, bodies(0, 900))
    go = threading.Event()
    threads: set[str] = set()

    def handle(_messages: list[Any], _ctx: Any) -> None:
        threads.add(threading.current_thread().name)
        go.wait(20)

    config = ConsumerConfig("billing", pull_records=100, threshold_messages=100, concurrency=1)
    with consumer(cluster, handle, config=config) as running:
        eventually(
            lambda: running.stats()["in_flight"] == 200
        )  # at most one answer beyond the limit
        running.adjust(threshold_messages=400)
        eventually(lambda: running.stats()["in_flight"] == 500)
        running.adjust(threshold_messages_group=1_000, concurrency=5)
        eventually(lambda: len(threads) == 5)
        with pytest.raises(ConfigError, match="pull_records.*cannot be changed"):
            running.adjust(pull_records=1)
        with pytest.raises(ConfigError, match="threshold_messages must be"):
            running.adjust(threshold_messages=0)
        running.adjust(concurrency=2)
        go.set()
        eventually(lambda: running.stats()["consumed_ok"] == 900)
    with pytest.raises(ClientError):
        consumer(cluster, handle).adjust(concurrency=3)
