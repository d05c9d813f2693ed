"""Who stops waiting for a message takes none: every way to wait for a time, given up in every way.

A pop waits at the broker. ``WAYS`` are all calls that wait so; each is given up while it does, and
the next message must come to somebody else at once, for the first time.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rmq_ray.actors import durable_queue
from rmq_ray.actors.durable_queue import Queue
from rmq_ray.client.pop import simple_consumer
from rmq_ray.client.pop.ack_sender import AckSender
from rmq_ray.client.pop.patience import Patience
from rmq_ray.client.pop.receipts import SettleTask
from rmq_ray.client.pop.simple_consumer import SimpleConsumer
from rmq_ray.client.producer.bounded_producer import BoundedProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import ConnectFailed, ConsumeError, ReceiptStale, RequestTimeout
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.source_rules import package_modules
from tests.support.waiting import eventually, eventually_async

NAMES = iter(range(1_000_000))
HELD_S = 110
"""Longer than a test waits for the broker's line to be empty: only a withdrawal empties it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path_factory.mktemp("live")) as live:
        yield live


def waiting(cluster: LiveCluster) -> int:
    core = cluster.brokers[0].core
    assert core is not None
    return int(core.pops.status()["waiting"])


def queue_of(cluster: LiveCluster, name: str) -> Queue:
    at = cluster.lookup()
    return Queue(name, cluster=at.cluster, name_servers=at.name_servers, secret=at.secret)


def interrupted(cluster: LiveCluster, call: Callable[[], object]) -> None:
    """Ctrl-C, which is how ``ray.cancel`` comes, too."""

    def strike() -> None:
        eventually(lambda: waiting(cluster))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=strike)
    # a shell starts what it puts into the background without it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            call()
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


def cancelled(cluster: LiveCluster, call: Callable[[], Any]) -> None:
    async def run() -> None:
        task = asyncio.ensure_future(call())
        await eventually_async(lambda: waiting(cluster))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def get(cluster: LiveCluster, queue: Queue, consumer: SimpleConsumer) -> None:
    interrupted(cluster, queue.get)


def get_async(cluster: LiveCluster, queue: Queue, consumer: SimpleConsumer) -> None:
    cancelled(cluster, queue.get_async)


def receive(cluster: LiveCluster, queue: Queue, consumer: SimpleConsumer) -> None:
    interrupted(cluster, lambda: consumer.receive(invisible=3_600, wait=HELD_S))


def receive_async(cluster: LiveCluster, queue: Queue, consumer: SimpleConsumer) -> None:
    cancelled(cluster, lambda: consumer.receive_async(invisible=3_600, wait=HELD_S))


def patience(cluster: LiveCluster, queue: Queue, consumer: SimpleConsumer) -> None:
    mine, got = Patience(), []
    thread = threading.Thread(
        target=lambda: got.append(consumer.receive(invisible=3_600, wait=HELD_S, patience=mine))
    )
    thread.start()
    eventually(lambda: waiting(cluster))
    assert mine.give_up()
    thread.join(20)
    assert got == [[]]


def close(cluster: LiveCluster, queue: Queue, consumer: SimpleConsumer) -> None:
    """Of a consumer whose connections others go on with. Serve's workers end so."""
    got: list[Any] = []
    with SimpleConsumer(
        consumer.topic, f"{consumer.topic}-b", discovery=cluster, client_id="shared"
    ):
        thread = threading.Thread(
            target=lambda: got.append(consumer.receive(invisible=3_600, wait=HELD_S))
        )
        thread.start()
        eventually(lambda: waiting(cluster))
        consumer.close()
        eventually(lambda: not waiting(cluster))
        thread.join(20)
    assert got == [[]]


WAYS = (get, get_async, receive, receive_async, patience, close)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_wait_that_is_given_up_takes_nothing(
    cluster: LiveCluster, way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simple_consumer, "HOLD_MS", 1_000 * HELD_S)
    monkeypatch.setattr(durable_queue, "WAIT_S", HELD_S)
    name = f"waits-{next(NAMES)}"
    with queue_of(cluster, name) as queue, Producer("p", discovery=cluster) as producer:
        assert queue.empty()
        consumer = SimpleConsumer(name, name, discovery=cluster, client_id="shared")
        with consumer:
            way(cluster, queue, consumer)
            eventually(lambda: not waiting(cluster))
            producer.send(name, b"item")
            with SimpleConsumer(name, name, discovery=cluster) as other:
                (message,) = other.receive(1, wait=20)
    assert (message.body, message.reconsume_times) == (b"item", 0)


def test_what_came_before_the_interruption_is_given_back_at_once(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"waits-{next(NAMES)}"
    with queue_of(cluster, name) as queue:
        queue.put("item")
        monkeypatch.setattr(queue, "_value", interrupt)
        with pytest.raises(KeyboardInterrupt):
            queue.get()
        monkeypatch.undo()
        assert queue.get(timeout=20) == "item"


def interrupt(_message: object) -> None:
    raise KeyboardInterrupt


def test_an_item_that_was_taken_as_its_getter_was_cancelled_is_the_next_one_here(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"waits-{next(NAMES)}"
    taken, cancel = threading.Event(), threading.Event()
    with queue_of(cluster, name) as queue:
        settle = queue._taken

        def late(found: Any) -> Any:
            values = settle(found)
            taken.set()
            assert cancel.wait(20)
            return values

        monkeypatch.setattr(queue, "_taken", late)
        queue.put("first")
        queue.put("second")

        async def run() -> None:
            task = asyncio.ensure_future(queue.get_async())
            await eventually_async(taken.is_set)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            cancel.set()

        asyncio.run(run())
        assert [queue.get(timeout=20) for _ in range(2)] == ["first", "second"]


@pytest.mark.parametrize("early", ["taken in advance", "of a cancelled getter"])
def test_a_get_that_is_cancelled_before_it_began_takes_nothing(
    cluster: LiveCluster, early: str
) -> None:
    name = f"waits-{next(NAMES)}"
    busy, go_on = threading.Event(), threading.Event()

    def work() -> None:
        busy.set()
        assert go_on.wait(20)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        working = loop.run_in_executor(None, work)
        await eventually_async(busy.is_set)
        task = asyncio.ensure_future(queue.get_async())
        await asyncio.sleep(0)  # it has begun to wait for a thread
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await working
        await loop.shutdown_default_executor()

    with queue_of(cluster, name) as queue:
        queue.prefetch = 8
        queue.put_nowait_batch(["first", "second", "third"])
        assert queue.get(timeout=20) == "first"
        if early == "of a cancelled getter":
            queue._undelivered.append(queue.get(timeout=20))
        asyncio.run(run())
        assert {queue.get(timeout=20) for _ in range(2)} == {"second", "third"}


def test_an_item_of_a_getter_that_was_cancelled_is_put_again_when_its_handle_is_shut_down(
    cluster: LiveCluster,
) -> None:
    name = f"waits-{next(NAMES)}"
    with queue_of(cluster, name) as queue:
        queue.put("item")
        queue._undelivered.append(queue.get(timeout=20))
    with queue_of(cluster, name) as other:
        assert other.get(timeout=20) == "item"


def test_an_item_that_could_not_be_put_again_stays_with_its_handle(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_of(cluster, f"q{next(NAMES)}")
    queue.put(b"first")
    queue._undelivered.append(b"taken")
    with monkeypatch.context() as patched:
        patched.setattr(BoundedProducer, "send_batch", raising(RequestTimeout("no answer")))
        with pytest.raises(RequestTimeout):
            queue.shutdown()
    assert queue.get_nowait_batch(2) == [b"taken", b"first"]
    queue.shutdown()


# --- items of which it is not known whether they are taken ----------------------------------------


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_arguments: Any, **_named: Any) -> Any:
        raise error

    return call


@pytest.mark.parametrize(
    ("errors", "kept"),
    [
        ([RequestTimeout("no answer"), ConsumeError("no master")], True),
        ([ConnectFailed("nothing was sent"), ConsumeError("no master")], False),
    ],
    ids=["may be taken", "is not taken"],
)
def test_an_item_that_may_be_taken_is_what_this_handle_gets_next(
    errors: list[Exception], kept: bool, cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given back it would be nobody's where the broker did write down that it is taken."""
    queue = queue_of(cluster, f"q{next(NAMES)}")
    queue.put(b"one")
    ask, left = AckSender._ask, list(errors)

    def failing(*arguments: Any) -> Any:
        if left:
            raise left.pop(0)
        return ask(*arguments)

    monkeypatch.setattr(AckSender, "_ask", failing)
    with pytest.raises(type(errors[0 if kept else 1])):
        queue.get(timeout=10)
    assert list(queue._undelivered) == [b"one"] * kept
    assert queue.get(timeout=10) == b"one"
    queue.shutdown()


def test_items_that_were_taken_stay_with_the_handle_where_the_time_of_others_was_over(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_of(cluster, f"q{next(NAMES)}")
    queue.put_nowait_batch([b"a", b"b"])

    def half(_sender: AckSender, tasks: Sequence[SettleTask]) -> None:
        tasks[0].lease.done |= 1
        raise ReceiptStale("one was over", 1)

    with monkeypatch.context() as patched:
        patched.setattr(AckSender, "settle", half)
        with pytest.raises(ReceiptStale):
            queue.get_nowait_batch(2)
    assert queue.get_nowait() == b"a"
    assert queue.get(timeout=10) == b"b", "which was given back"
    queue.shutdown()


def test_a_handle_that_nobody_has_any_more_puts_again_what_it_took_and_closes_its_connections(
    cluster: LiveCluster,
) -> None:
    before = set(threading.enumerate())
    queue = queue_of(cluster, name := f"q{next(NAMES)}")
    queue.put(b"x")
    queue._keep(b"taken")
    own = set(threading.enumerate()) - before - {durable_queue._closer}
    assert own
    del queue
    eventually(lambda: not any(thread.is_alive() for thread in own))
    with queue_of(cluster, name) as again:
        assert again.get_nowait_batch(2) == [b"x", b"taken"]


def test_every_wait_with_a_lease_walks_through_one_place() -> None:
    texts = {module.name: module.text for module in package_modules()}
    asks = {name for name, text in texts.items() if "RequestCode.POP_RECORDS" in text}
    assert {name for name in asks if name.startswith("client/")} == {"client/pop/pop_client.py"}
    pops = {name for name, text in texts.items() if re.search(r"\bpops\.pop\(", text)}
    assert pops == {"client/pop/simple_consumer.py"}
    receives = {name for name, text in texts.items() if re.search(r"onsumer\.receive\w*\(", text)}
    assert receives == {
        "actors/durable_queue.py",  # get, get_async
        "client/pop/simple_consumer.py",  # an example
        "serve/task_worker.py",  # in a thread of its own, which ends with close
    }
