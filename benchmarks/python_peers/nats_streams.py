"""NATS JetStream's ways to do each row, with nats-py: file storage, one copy, one subject each."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

import nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.python_peers.way import (
    BATCH,
    EVERY_MS,
    PAGE,
    PAGES,
    PATIENCE_S,
    SENDERS,
    TICK_MS,
    TICKS,
    WARM_UP,
    Arrivals,
    Measured,
    Way,
    bodies,
    highest,
    rate,
    times,
    whole,
)

BACKLOG = 30_000
UNACKED = 1_000
"""``max_ack_pending``, as it comes: a larger fetch would wait for acknowledgements."""
Stream = JetStreamContext


def versions() -> str:
    """As the page says it."""
    return f"nats-py {version('nats-py')}"


@contextmanager
def connected(where: dict[str, Any]) -> Iterator[list[Way]]:
    """``where``: {"async": its address, "sync": that of the one that syncs always}."""
    usual, synced = Nats(where["async"]), Nats(where["sync"])
    for server in (usual, synced):
        server.run(create(("produce", "produce_1k", "one", "backlog")))
    usual.run(partial(published, "backlog", 100, BACKLOG))
    yield [
        Way(
            ("produce", "each"),
            "publish_async, each future taken",
            20_000,
            whole(lambda n: usual.run(partial(published, "produce", 100, n))),
        ),
        Way(
            ("produce_1k",),
            "publish_async, each future taken",
            20_000,
            whole(lambda n: usual.run(partial(published, "produce_1k", 1_024, n))),
        ),
        Way(("one",), "publish", 1_000, usual.one_by_one()),
        Way(
            ("steady",),
            "publish_async, each future taken",
            TICKS,
            highest(lambda n, each: usual.run(partial(offered, n, each))),
        ),
        Way(
            ("batches",),
            f"fetch({UNACKED}), ack each",
            BACKLOG // 2,
            rate(lambda n: usual.run(partial(pages, n, UNACKED, ConsumerConfig()))),
            multiple=PAGES,
        ),
        Way(
            ("batches",),
            f"fetch({PAGE}), ack the last, ack_policy=all, max_ack_pending={2 * PAGE}",
            BACKLOG,
            rate(lambda n: usual.run(partial(pages, n, PAGE, ack_all()))),
            multiple=PAGES,
        ),
        Way(
            ("single",),
            "next_msg, ack each",
            BACKLOG // 3,
            rate(lambda n: usual.run(partial(singly, n))),
        ),
        Way(("idle",), "publish, subscribe", 200, times(usual.end_to_end)),
        Way(("fsync",), "publish, sync_interval=always", 300, synced.one_by_one()),
        Way(
            ("fsync_64",),
            f"publish, {SENDERS} tasks, sync_interval=always",
            SENDERS * 20,
            whole(lambda n: synced.run(partial(of_tasks, n))),
            multiple=SENDERS,
        ),
    ]


class Nats:
    """A server's address. Each call has a connection and a loop of its own."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._numbers = itertools.count()

    def run(self, work: Callable[[Stream], Coroutine[Any, Any, Any]]) -> Any:
        """``work(context)``."""

        async def connected() -> Any:
            connection = await nats.connect(self._address)
            try:
                return await work(connection.jetstream(timeout=PATIENCE_S))
            finally:
                await connection.close()

        return asyncio.run(connected())

    def one_by_one(self) -> Callable[[int], Measured]:
        """Milliseconds of each ``publish``."""
        return times(lambda count: self.run(partial(publishes, count)))

    def end_to_end(self, count: int) -> Any:
        """Each round by a stream of its own."""
        return self.run(partial(passed, f"idle-{next(self._numbers)}", count))


def create(names: tuple[str, ...]) -> Callable[[Stream], Coroutine[Any, Any, None]]:
    """A stream for each subject, as they come."""

    async def work(stream: Stream) -> None:
        for name in names:
            await stream.add_stream(name=name, subjects=[name])

    return work


async def published(subject: str, size: int, count: int, stream: Stream) -> None:
    """As many unanswered as the client lets there be (4,000)."""
    values = bodies(size)
    out = [await stream.publish_async(subject, values[n % BATCH]) for n in range(count)]
    await asyncio.gather(*out)


async def offered(count: int, each: int, stream: Stream) -> list[float]:
    """See ``way.highest``, in a loop."""
    values, found, out = bodies(100), list[float](), []
    async for due in ticks(count, TICK_MS):

        def came(_future: Any, due: float = due) -> None:
            found.append((time.perf_counter() - due) * 1e3)

        for number in range(each):
            future = await stream.publish_async("produce", values[number % BATCH])
            future.add_done_callback(came)
            out.append(future)
    await asyncio.gather(*out)
    return found


async def publishes(count: int, stream: Stream) -> list[float]:
    """Milliseconds of each, behind those that warm up."""
    body, found = b"x" * 100, []
    for _ in range(WARM_UP + count):
        begin = time.perf_counter()
        await stream.publish("one", body)
        found.append((time.perf_counter() - begin) * 1e3)
    return found[WARM_UP:]


async def of_tasks(count: int, stream: Stream) -> None:
    """Each task waits for the outcome of its message before it sends the next."""
    body = b"x" * 100

    async def work() -> None:
        for _ in range(count // SENDERS):
            await stream.publish("one", body)

    await asyncio.gather(*(work() for _ in range(SENDERS)))


def ack_all() -> ConsumerConfig:
    """The last acknowledgement is for all before it."""
    return ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=2 * PAGE)


async def pages(count: int, page: int, config: ConsumerConfig, stream: Stream) -> float:
    """Messages a second, from the first page to the last; the server has said that it has the
    page's last acknowledgement before the next one is fetched.
    """
    subscription = await stream.pull_subscribe("backlog", config=config)
    began, first, got, size = 0.0, 0, 0, 0
    while got < count:
        messages = await subscription.fetch(page, timeout=PATIENCE_S / 4)
        size += sum(len(message.data) for message in messages)
        if config.ack_policy is not AckPolicy.ALL:
            for message in messages[:-1]:
                await message.ack()
        await messages[-1].ack_sync(timeout=PATIENCE_S / 4)
        got += len(messages)
        if not began:
            began, first = time.perf_counter(), got
    return (got - first) / (time.perf_counter() - began)


async def singly(count: int, stream: Stream) -> float:
    """Messages a second."""
    subscription = await stream.subscribe("backlog")
    began, size = 0.0, 0
    for _ in range(count):
        message = await subscription.next_msg(timeout=PATIENCE_S / 4)
        size += len(message.data)
        await message.ack()
        began = began or time.perf_counter()
    return (count - 1) / (time.perf_counter() - began)


async def passed(subject: str, count: int, stream: Stream) -> list[float]:
    """Milliseconds from ``publish`` to the listener."""
    await stream.add_stream(name=subject, subjects=[subject])
    arrivals, complete = Arrivals(count), asyncio.Event()

    async def listener(message: Any) -> None:
        if arrivals.came(message.data):
            complete.set()

    await stream.subscribe(subject, cb=listener)
    await paced_tasks(arrivals, count, lambda body: stream.publish(subject, body))
    await asyncio.wait_for(complete.wait(), PATIENCE_S)
    return arrivals.taken()


async def paced_tasks(
    arrivals: Arrivals, count: int, send: Callable[[bytes], Awaitable[object]]
) -> None:
    """``way.paced`` in a loop."""
    async for _ in ticks(WARM_UP + count, EVERY_MS):
        await send(arrivals.stamped())


async def ticks(count: int, every_ms: float) -> AsyncIterator[float]:
    """``way.ticks`` in a loop."""
    due = time.perf_counter()
    for _ in range(count):
        due += every_ms / 1e3
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        yield due
