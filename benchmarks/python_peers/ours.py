"""rmq_ray: its ways to do each row, over the network, without Ray in this process."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import rmq_ray as rmq
from benchmarks.columns import table_of
from benchmarks.consume import (
    DEFAULT,
    bodies_of_columns,
    bodies_of_messages,
    pull_rate,
    pushed_rate,
    said,
)
from benchmarks.latency import end_to_end_ms
from benchmarks.produce import NOT_WAITED_FOR, async_rate, send_batches
from benchmarks.python_peers.way import (
    BATCH,
    EVERY_MS,
    PAGES,
    PATIENCE_S,
    SENDERS,
    TICK_MS,
    TICKS,
    WARM_UP,
    Way,
    bodies,
    highest,
    of_threads,
    one_by_one,
    rate,
    ticks,
    times,
    whole,
)

BACKLOG = 500_000
QUEUES = 4
ROWS = 100_000
"""Of a table."""
SENT = {
    "send_batch of bodies": "bodies without objects",
    "send_batch_async of bodies": NOT_WAITED_FOR[1],
    "send_batch of Messages": "new objects",
}


def versions() -> str:
    """As the page says it."""
    return f"rmq_ray {rmq.__version__}"


@contextmanager
def connected(where: dict[str, Any]) -> Iterator[list[Way]]:
    """``where``: {"async" | "sync": [cluster, name servers, secret in hex]}, by how they flush."""
    mq, synced = (
        rmq.connect(name, name_servers=servers, secret=bytes.fromhex(secret))
        for name, servers, secret in (where["async"], where["sync"])
    )
    for cluster in (mq, synced):
        for topic in ("produce", "produce_1k", "async", "one", "backlog"):
            cluster.admin.create_topic(topic, queues=QUEUES)
    patient = {"send_timeout_ms": 30_000}
    with (
        mq.producer("bench", **patient) as producer,
        synced.producer("bench", **patient) as careful,
    ):
        send_batches(producer, "backlog", BACKLOG, 100, BATCH, "bodies without objects")
        yield [
            *produced(producer, "produce", 100, 500_000),
            Way(
                ("each",),
                "send_async, each result taken",
                500_000,
                rate(lambda n: async_rate(producer, n, {}, 0)),
            ),
            *produced(producer, "produce_1k", 1_024, 100_000),
            Way(("one",), "send", 2_000, one_by_one(lambda body: producer.send("one", body))),
            Way(
                ("steady",),
                "send_async, add_done_callback",
                TICKS,
                highest(partial(offered, producer)),
            ),
            *consumed(mq),
            Way(("idle",), "send, push consumer", 200, times(end_to_end(mq))),
            Way(("fsync",), "send", 300, one_by_one(lambda body: careful.send("one", body))),
            Way(
                ("fsync_64",),
                f"send, {SENDERS} threads",
                SENDERS * 50,
                of_threads(lambda body: careful.send("one", body)),
                multiple=SENDERS,
            ),
            Way(
                ("fsync_64",),
                f"AsyncProducer.send, {SENDERS} tasks",
                SENDERS * 50,
                whole(lambda n: asyncio.run(of_tasks(synced, n))),
                multiple=SENDERS,
            ),
        ]


def produced(producer: rmq.Producer, row: str, size: int, messages: int) -> list[Way]:
    """Columns, bodies, objects."""
    table = table_of(ROWS, size).select(["body"])

    def columns(count: int) -> None:
        for first in range(0, count, ROWS):
            producer.send_arrow(row, table.slice(0, min(ROWS, count - first)), body="body")

    return [
        Way((row,), "send_arrow", messages, whole(columns)),
        *(
            Way(
                (row,),
                how,
                messages,
                rate(partial(sent, producer, row, size=size, way=way)),
                multiple=BATCH,
            )
            for how, way in SENT.items()
        ),
    ]


def sent(producer: rmq.Producer, topic: str, count: int, *, size: int, way: str) -> float:
    """Messages a second."""
    return send_batches(producer, topic, count, size, BATCH, way)


def offered(producer: rmq.Producer, count: int, each: int) -> list[float]:
    """See ``highest``."""
    values, found = bodies(100), list[float]()
    told = threading.Event()
    futures = []
    for due in ticks(count, TICK_MS):

        def came(_future: Any, due: float = due) -> None:
            found.append((perf_counter() - due) * 1e3)
            if len(found) == count * each:
                told.set()

        for number in range(each):
            future = producer.send_async("async", values[number % BATCH])
            future.add_done_callback(came)
            futures.append(future)
    for future in futures:
        future.result(timeout=PATIENCE_S)
    told.wait(PATIENCE_S)
    return found


def consumed(mq: Any) -> list[Way]:
    """By pages that are committed, and one by one."""
    numbers = itertools.count(os.getpid() * 1_000)

    def polled(read: Callable[[Any], int], count: int) -> float:
        return pull_rate(mq, "backlog", count, read, next(numbers), {"wait": True})

    def pushed(settings: dict[str, Any], count: int) -> float:
        return pushed_rate(mq, "backlog", count, settings, next(numbers))

    return [
        Way(
            ("batches",),
            "poll(4096), bodies read one by one, commit",
            BACKLOG,
            rate(partial(polled, bodies_of_messages)),
            multiple=PAGES,
        ),
        Way(
            ("batches",),
            "poll(4096), to_arrow, commit",
            BACKLOG,
            rate(partial(polled, bodies_of_columns)),
            counts=False,
            multiple=PAGES,
        ),
        Way(
            ("single",),
            f"push consumer, {DEFAULT}",
            BACKLOG // 2,
            rate(partial(pushed, {})),
        ),
        Way(
            ("single",),
            f"push consumer, {said({'batch_size': 32})}",
            BACKLOG,
            rate(partial(pushed, {"batch_size": 32})),
            counts=False,
        ),
    ]


def end_to_end(mq: Any) -> Callable[[int], list[float]]:
    """Each round by a topic and a group of its own."""
    numbers = itertools.count()
    return lambda count: end_to_end_ms(mq, f"idle-{next(numbers)}", count, EVERY_MS, WARM_UP)


async def of_tasks(mq: Any, count: int) -> None:
    """Each task waits for the outcome of its message before it sends the next."""
    body = b"x" * 100
    async with mq.async_producer("bench-tasks") as producer:

        async def work() -> None:
            for _ in range(count // SENDERS):
                await producer.send("one", body)

        await asyncio.gather(*(work() for _ in range(SENDERS)))
