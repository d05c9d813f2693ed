"""A broker is stopped while it starts, changes its role, registers or ceases to follow: on return
nothing of it runs, and nobody waits for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import BrokerConfig, ForeignClients, RemotingLimits, StoreConfig
from rmq_ray.errors import RmqError, StoreFailed, StoreNotReady
from rmq_ray.files import FileSystem
from rmq_ray.model.topics import DataVersion
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.listener import Listener
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.broker.broker import Broker
from rmq_ray.server.broker.registration import BrokerRegistration, NameServers
from rmq_ray.server.broker.role_transition import BrokerRoleTransition
from rmq_ray.server.replication.leadership import Leadership
from tests.support.brokers.live_cluster import CLUSTER, SECRET, SMALL
from tests.support.waiting import eventually_async, loop_turns

WAIT_S = 30.0


def broker_of(path: Path) -> Broker:
    config = BrokerConfig(StoreConfig(str(path), **SMALL), cluster_name=CLUSTER)  # type: ignore[arg-type]
    return Broker(config, SYSTEM_CLOCK, Credentials(CLUSTER, "broker", SECRET))


async def ends(work: Awaitable[object]) -> asyncio.Future[object]:
    """It has ended, one way or another."""
    task = asyncio.ensure_future(work)
    await asyncio.wait([task], timeout=WAIT_S)
    assert task.done()
    return task


# --- while it starts ------------------------------------------------------------------------------


def opens(broker: Broker) -> bool:
    return broker.core is not None


def writes_its_port(broker: Broker) -> bool:
    return broker.core is not None and broker.core.tables.loaded


@pytest.mark.parametrize("when", [opens, writes_its_port])
def test_a_start_that_is_stopped_says_so_and_leaves_nothing_behind(
    tmp_path: Path, when: Callable[[Broker], bool]
) -> None:
    async def story() -> None:
        broker = broker_of(tmp_path / "store")
        starting = asyncio.create_task(broker.start(create=True))
        while not when(broker):
            await asyncio.sleep(0)
        await broker.stop()
        with pytest.raises(StoreNotReady, match="stop"):
            (await ends(starting)).result()
        address = broker.address
        assert address is not None
        with pytest.raises(OSError):
            await asyncio.open_connection(address.host, address.port)
        await eventually_async(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    asyncio.run(story())


def test_a_disk_that_refuses_the_port_keeps_no_broker_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole = FileSystem.write_whole
    refused: list[str] = []

    def fails(files: FileSystem, path: str, data: bytes) -> None:
        if path.endswith("/rmq_ray/port"):
            refused.append(path)
            raise StoreFailed(f"fdatasync of {path}: Input/output error", path)
        write_whole(files, path, data)

    monkeypatch.setattr(FileSystem, "write_whole", fails)

    async def story() -> None:
        broker = broker_of(tmp_path / "store")
        await broker.start(create=True)
        assert broker.core is not None
        assert broker.core.keeper.store is not None
        await broker.stop()

    asyncio.run(story())
    assert len(refused) == 1


# --- while it ceases to follow --------------------------------------------------------------------


class BusyReplica:
    """Its thread is in the store until ``over``."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.asked = self.stopped = 0

    async def stop(self) -> None:
        self.asked += 1
        await self.over.wait()
        self.stopped += 1


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_stop_waits_for_the_end_of_following_that_another_one_began(
    tmp_path: Path, cancelled: bool
) -> None:
    """``cancelled``: the other one was a change of role, which the stop itself has ended."""

    async def story() -> None:
        broker, replica = broker_of(tmp_path / "store"), BusyReplica()
        busy: Any = replica
        broker._replica = busy
        resting = asyncio.create_task(broker.stop_following())
        await loop_turns(3)
        if cancelled:
            resting.cancel()
        stopping = asyncio.create_task(broker.stop())
        await loop_turns(10)
        assert replica.asked and not stopping.done()
        replica.over.set()
        (await ends(stopping)).result()
        assert replica.stopped and broker._replica is None

    asyncio.run(story())


def test_who_stops_a_broker_again_waits_for_the_same_end_and_who_gives_up_cuts_nothing_off(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        broker, replica = broker_of(tmp_path / "store"), BusyReplica()
        busy: Any = replica
        broker._replica = busy
        first = asyncio.create_task(broker.stop())
        await loop_turns(5)
        first.cancel()
        again = [asyncio.create_task(broker.stop()) for _ in range(2)]
        await loop_turns(10)
        assert first.cancelled() and not any(stop.done() for stop in again)
        replica.over.set()
        for stop in again:
            (await ends(stop)).result()
        assert (replica.asked, replica.stopped) == (1, 1)

    asyncio.run(story())


# --- while it changes its role --------------------------------------------------------------------


class ClosingCore:
    """A core whose store takes a while to close."""

    def __init__(self) -> None:
        self.hold_closes, self.store_closes = asyncio.Event(), asyncio.Event()
        self.closed = False
        self.acks = SimpleNamespace(abandon=lambda: None)
        self.pulls = SimpleNamespace(
            parked=SimpleNamespace(wake_all=lambda: None, close=self.hold_closes.wait)
        )

    def close(self) -> Any:
        return self

    async def run(self, _work: Any) -> None:
        """As the offload."""
        await self.store_closes.wait()
        self.closed = True


@pytest.mark.parametrize("at_the_hold", [True, False])
def test_a_change_of_role_that_is_cancelled_has_closed_its_store(at_the_hold: bool) -> None:
    """The broker does not know the old core any more: nobody else would close it."""

    async def story() -> None:
        core = ClosingCore()
        broker: Any = SimpleNamespace(
            take_core=lambda: (core, core), stop_following=lambda: asyncio.sleep(0)
        )
        changing = asyncio.create_task(
            BrokerRoleTransition(broker, Leadership(0, lambda _epoch, _wanted: None)).reopen(
                1, None
            )
        )
        if not at_the_hold:
            core.hold_closes.set()
        await loop_turns(5)
        changing.cancel()
        await loop_turns(5)
        core.hold_closes.set()
        core.store_closes.set()
        await ends(changing)
        assert changing.cancelled() and core.closed

    asyncio.run(story())


# --- while it registers ---------------------------------------------------------------------------


class SlowNameServer:
    """Takes a registration and does not answer it."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.gone = 0

    def handle(self, command: Command, _peer: Any) -> Command | None:
        self.codes.append(command.code)
        return command.answer() if command.code == RequestCode.UNREGISTER_BROKER else None

    def closed(self, _peer: Any) -> None:
        self.gone += 1


def test_a_registration_that_was_not_answered_yet_is_taken_back() -> None:
    async def story() -> None:
        server = SlowNameServer()
        listener = Listener(
            server,
            Credentials("c", "name_server", b""),
            ForeignClients.OPEN,
            RemotingLimits(),
            SYSTEM_CLOCK,
            "name server",
        )
        address = await listener.start("127.0.0.1", 0)
        told = BrokerRegistration(
            Identity("broker-a", 0, "c", boot_ms=0),
            NameServers((str(address),), None, RemotingLimits(), 30_000),
            SYSTEM_CLOCK,
            lambda: ({}, DataVersion()),
            lambda _: None,
            pytest.fail,
        )
        told.start()
        await eventually_async(lambda: bool(server.codes))
        await told.stop()
        assert server.codes == [RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER]
        await eventually_async(lambda: server.gone == 1)
        await listener.close()

    asyncio.run(story())


def test_files_are_there_for_the_next_start_whenever_a_broker_was_stopped(tmp_path: Path) -> None:
    """The store of a start that was stopped is free again, and opens."""

    async def story(count: int) -> None:
        broker = broker_of(tmp_path / "store")
        starting = asyncio.create_task(broker.start(create=True))
        await loop_turns(count)
        await broker.stop()
        outcome = (await ends(starting)).exception()
        assert outcome is None or isinstance(outcome, RmqError)
        await eventually_async(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        successor = broker_of(tmp_path / "store")
        await successor.start(create=True)
        assert FileSystem().exists(f"{tmp_path}/store/rmq_ray/port")
        await successor.stop()

    for count in (0, 1, 2, 3, 5, 8, 13, 40, 200):
        asyncio.run(story(count))
