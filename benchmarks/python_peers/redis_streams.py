"""Redis Streams' ways to do each row, with redis-py and hiredis.

A server as it comes keeps a snapshot a minute and loses what came since: nothing of it counts where
a row wants the promise of the others, that a message survives the server's death. That is the
append-only file, written before the answer and synced once a second.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from time import perf_counter
from typing import Any

import redis
import redis.asyncio

from benchmarks.python_peers.way import (
    BATCH,
    PAGE,
    PAGES,
    PATIENCE_S,
    SENDERS,
    TICK_MS,
    TICKS,
    Arrivals,
    Way,
    bodies,
    highest,
    of_threads,
    one_by_one,
    paced,
    rate,
    ticks,
    times,
    whole,
)
from benchmarks.scene import Crew

Page = tuple[list[bytes], list[bytes]]
"""Identifiers, bodies."""
BACKLOG = 50_000
GROUP = "bench"
SNAPSHOTS, FILE, ALWAYS = "defaults (snapshots)", "appendonly=yes", "appendfsync=always"


def versions() -> str:
    """As the page says it."""
    return f"redis-py {version('redis')} with hiredis {version('hiredis')}"


@contextmanager
def connected(where: dict[str, Any]) -> Iterator[list[Way]]:
    """``where``: URLs, {"snapshots": as it comes, "file": with its append-only file, "always":
    synced before each answer}.
    """
    usual, kept, synced = (
        Redis(where[name], how)
        for name, how in (("snapshots", SNAPSHOTS), ("file", FILE), ("always", ALWAYS))
    )
    usual.add("backlog", 100, False, BACKLOG)
    yield [
        *usual.added(("produce", "each"), 100),
        *usual.added(("produce_1k",), 1_024),
        *(
            Way(("one",), f"xadd, {server.how}", 1_000, one_by_one(server.one), server is kept)
            for server in (usual, kept)
        ),
        *(
            Way(
                ("steady",),
                f"xadd, a pipeline each ms, transaction=False, {server.how}",
                TICKS,
                highest(server.offered),
                server is kept,
            )
            for server in (usual, kept)
        ),
        Way(
            ("batches",),
            f"xreadgroup(count={PAGE}), xack, {usual.how}",
            BACKLOG,
            rate(partial(usual.read, PAGE)),
            multiple=PAGES,
        ),
        Way(
            ("single",),
            f"xreadgroup(count=1), xack, {usual.how}",
            BACKLOG // 10,
            rate(partial(usual.read, 1)),
        ),
        *(
            Way(
                ("idle",),
                f"xadd, xreadgroup(block=...), {server.how}",
                200,
                times(server.end_to_end),
                server is kept,
            )
            for server in (usual, kept)
        ),
        Way(("fsync",), f"xadd, {synced.how}", 300, one_by_one(synced.one)),
        Way(
            ("fsync_64",),
            f"xadd, {SENDERS} threads, {synced.how}",
            SENDERS * 20,
            of_threads(synced.one),
            multiple=SENDERS,
        ),
        Way(
            ("fsync_64",),
            f"xadd, {SENDERS} tasks, {synced.how}",
            SENDERS * 20,
            whole(lambda n: asyncio.run(of_tasks(where["always"], n))),
            multiple=SENDERS,
        ),
    ]


class Redis:
    """One server."""

    def __init__(self, url: str, how: str) -> None:
        self.how = how
        self._handle = redis.Redis.from_url(url, socket_timeout=PATIENCE_S)
        self._numbers = itertools.count()

    def added(self, rows: tuple[str, ...], size: int) -> list[Way]:
        """Pipelines, as they come (a transaction) and as the documentation says."""
        return [
            Way(
                rows,
                f"xadd, pipelines of {BATCH}, transaction={transaction}, {self.how}",
                50_000,
                whole(partial(self.add, rows[0], size, transaction)),
                multiple=BATCH,
            )
            for transaction in (True, False)
        ]

    def add(self, stream: str, size: int, transaction: bool, count: int) -> None:
        """``execute`` raises for the first that failed. What earlier rounds added goes first."""
        if stream != "backlog":
            self._handle.delete(stream)
        values = bodies(size)
        for _ in range(max(1, count // BATCH)):
            with self._handle.pipeline(transaction=transaction) as pipeline:
                for value in values:
                    pipeline.xadd(stream, {"body": value})
                pipeline.execute()

    def offered(self, count: int, each: int) -> list[float]:
        """See ``highest``."""
        self._handle.delete("steady")
        values, found = bodies(100), list[float]()
        for due in ticks(count, TICK_MS):
            with self._handle.pipeline(transaction=False) as pipeline:
                for number in range(each):
                    pipeline.xadd("steady", {"body": values[number % BATCH]})
                pipeline.execute()
            found += [(perf_counter() - due) * 1e3] * each
        return found

    def one(self, body: bytes) -> None:
        """One message, one round trip."""
        self._handle.xadd("one", {"body": body})

    def group(self, stream: str) -> str:
        """A new one, from the first message on."""
        name = f"{GROUP}-{next(self._numbers)}"
        self._handle.xgroup_create(stream, name, id="0", mkstream=True)
        return name

    def read(self, page: int, count: int) -> float:
        """Messages a second, from the first page to the last, each acknowledged before the next."""
        group = self.group("backlog")
        began, first, got, size = 0.0, 0, 0, 0
        while got < count:
            for identifiers, found in self._page(group, "backlog", page):
                size += sum(len(body) for body in found)
                self._handle.xack("backlog", group, *identifiers)
                got += len(identifiers)
            if not began:
                began, first = perf_counter(), got
        elapsed = perf_counter() - began
        self._handle.xgroup_destroy("backlog", group)
        return (got - first) / elapsed

    def _page(self, group: str, stream: str, page: int) -> Iterator[Page]:
        found: Any = self._handle.xreadgroup(
            group, "me", {stream: ">"}, count=page, block=int(PATIENCE_S * 250)
        )
        if not found:
            raise RuntimeError("no message came")
        streams = found.items() if isinstance(found, dict) else found
        for _name, entries in streams:
            yield [each for each, _ in entries], [fields[b"body"] for _, fields in entries]

    def end_to_end(self, count: int) -> list[float]:
        """Milliseconds; a stream for each round."""
        stream, arrivals = f"idle-{next(self._numbers)}", Arrivals(count)
        group = self.group(stream)
        listener = Crew(1, lambda _: self._listen(group, stream, arrivals))
        paced(arrivals, count, lambda body: self._handle.xadd(stream, {"body": body}))
        listener.join()
        return arrivals.taken()

    def _listen(self, group: str, stream: str, arrivals: Arrivals) -> None:
        last = False
        while not last:
            for identifiers, found in self._page(group, stream, PAGE):
                last = any([arrivals.came(body) for body in found])
                self._handle.xack(stream, group, *identifiers)


async def of_tasks(url: str, count: int) -> None:
    """Each task waits for the outcome of its message before it sends the next."""
    body = b"x" * 100
    handle = redis.asyncio.Redis.from_url(url)

    async def work() -> None:
        for _ in range(count // SENDERS):
            await handle.xadd("one", {"body": body})

    await asyncio.gather(*(work() for _ in range(SENDERS)))
    await handle.aclose()
