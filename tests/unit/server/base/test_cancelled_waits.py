"""What waits for an event and a time is cancelled at any turn of the loop: the cancellation
arrives, also together with the event or with an error.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits
from rmq_ray.errors import StoreFailed, StoreNotReady
from rmq_ray.model.topics import DataVersion, TopicConfig
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.replicas import LogPiece, pack_piece
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.broker.registration import BrokerRegistration, NameServers
from rmq_ray.server.slave.replica_stream import ReplicaStream, StreamEvents, Threads
from tests.support.waiting import loop_turns

TURNS = range(6)


def no_tables() -> tuple[dict[str, TopicConfig], DataVersion]:
    raise StoreNotReady("the broker still reads its tables")


@pytest.mark.parametrize("count", TURNS)
def test_a_registration_stops_also_while_it_is_told_of_a_change(count: int) -> None:
    async def story() -> bool:
        fatal: list[object] = []
        told = BrokerRegistration(
            Identity("broker-a", 0, "c", boot_ms=0),
            NameServers(("127.0.0.1:9",), None, RemotingLimits(), 30_000),
            SYSTEM_CLOCK,
            no_tables,
            lambda _: None,
            fatal.append,
        )
        told.start()
        await loop_turns(20)
        told.changed()
        await loop_turns(count)
        stopping = asyncio.create_task(told.stop())
        await asyncio.wait([stopping], timeout=2)
        return stopping.done() and not fatal

    assert asyncio.run(story())


class FailingDisk:
    """The master answers the first poll with a part of its log, and the second one never; nothing
    can be written.
    """

    def __init__(self) -> None:
        self.fails = asyncio.Event()
        self.polls = 0
        self.address = "127.0.0.1:9"

    async def request(self, command: Command, _timeout_ms: float) -> Command:
        self.polls += 1
        if self.polls > 1:
            await asyncio.Event().wait()
        return command.answer(body=pack_piece(LogPiece(0, 1_000, 0, 1, [], memoryview(b"x" * 100))))

    async def run(self, _work: object) -> int:
        await self.fails.wait()
        raise StoreFailed("no space left")


@pytest.mark.parametrize("count", TURNS)
def test_a_stream_that_is_cancelled_while_its_disk_fails_is_cancelled(count: int) -> None:
    """Else its replica would begin another session, and whoever stops it would wait for ever."""

    async def story() -> tuple[bool, bool]:
        disk: Any = FailingDisk()
        store: Any = SimpleNamespace(epoch=1, end_offset=0, flushed_offset=0, opened_end=0)
        keeper: Any = SimpleNamespace(store=store)
        stream = ReplicaStream(
            keeper,
            disk,
            store,
            Threads(disk, disk),
            1 << 20,
            StreamEvents(lambda: None, lambda _end, _opened: None, lambda _end: None),
            False,
        )
        task = asyncio.create_task(stream.run())
        await loop_turns(20)
        assert disk.polls == 2
        disk.fails.set()
        await loop_turns(count)
        was_asked = task.cancel()
        await asyncio.wait([task], timeout=2)
        return was_asked, task.cancelled()

    was_asked, cancelled = asyncio.run(story())
    assert cancelled == was_asked
