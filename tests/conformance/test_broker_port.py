"""A whole broker on a real port, with real threads, disk, name server and hold service; spoken to
over connections.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.config import (
    BrokerConfig,
    FlushMode,
    ForeignClients,
    NameServerConfig,
    RemotingLimits,
    StoreConfig,
)
from rmq_ray.errors import RemotingError, StoreFailed, StoreMissing
from rmq_ray.files import File
from rmq_ray.model.ids import Address, FrameId
from rmq_ray.remoting.async_connection import AsyncConnection
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.listener import Listener
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import CreateTopicHeader, RouteHeader
from rmq_ray.remoting.wire.records import (
    PullAnswer,
    PullRecords,
    pack_pull,
    pack_send,
    unpack_pull_answer,
    unpack_send_answer,
)
from rmq_ray.server.broker.broker import Broker
from rmq_ray.server.namesrv.name_server import NameServer
from rmq_ray.server.pull.hold_service import HoldService
from tests.support.faults.stopwatch import Stopwatch
from tests.support.waiting import eventually_async

SECRET = b"s" * 32
LIMITS = RemotingLimits()
BROKER, NAMES = (Credentials("default", role, SECRET) for role in ("broker", "name_server"))
TIMEOUT_S = 20.0


def settings(
    directory: Path, flush: FlushMode = FlushMode.ASYNC_FLUSH, **changes: Any
) -> BrokerConfig:
    store = StoreConfig(
        str(directory / "store"),
        flush=flush,
        segment_bytes=1 << 22,
        consume_queue_entries=1_000,
        index_slots=997,
        index_items=4_000,
    )
    # a busy machine is no slow disk: nothing is refused because it waited
    return BrokerConfig(store, stale_send_ms=0, disk_busy_ms=0).but(**changes)


@asynccontextmanager
async def running(config: BrokerConfig, create: bool = True) -> AsyncIterator[Broker]:
    fatal: list[object] = []
    broker = Broker(config, SYSTEM_CLOCK, BROKER, fatal.append)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await broker.start(create)
        yield broker
    finally:
        await broker.stop()
        assert fatal == []


@asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[AsyncConnection]:
    assert broker.address is not None
    connection = await AsyncConnection.open(broker.address, BROKER, LIMITS, SYSTEM_CLOCK)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def name_server() -> AsyncIterator[tuple[NameServer, Address]]:
    server = NameServer(NameServerConfig(), SYSTEM_CLOCK)
    listener = Listener(server, NAMES, ForeignClients.CLOSED, LIMITS, SYSTEM_CLOCK, "name server")
    try:
        yield server, await listener.start("127.0.0.1", 0)
    finally:
        await listener.close()


def send_command(
    body: bytes, sequence: int, topic: str = "orders", queue_id: int = 0, count: int = 1
) -> Command:
    unique = [f"UNIQ_KEY\x01{sequence:016X}{n:016X}" for n in range(count)]
    records, sizes = encode_frame(
        topic, queue_id, [body] * count, unique, SYSTEM_CLOCK.now_ms(), FrameId(b"p" * 16, sequence)
    )
    return Command(Code.SEND_RECORDS, body=pack_send(records, np.asarray(sizes)), serialize=1)


def pull_command(
    offset: int, suspend_ms: int = 0, topic: str = "orders", queue_id: int = 0
) -> Command:
    return Command(
        Code.PULL_RECORDS,
        body=pack_pull(
            PullRecords(
                "billing", topic, queue_id, offset, 100, 1 << 20, 6, 0, suspend_ms, 0, "TAG", "*", 0
            )
        ),
        serialize=1,
    )


async def send(
    connection: AsyncConnection, sequence: int, body: bytes = b"hello", count: int = 1
) -> int:
    answer = await connection.request(send_command(body, sequence, count=count), 10_000)
    assert answer.code == 0, answer.remark
    return unpack_send_answer(answer.body).base_queue_offset


async def pull(
    connection: AsyncConnection, offset: int, suspend_ms: int = 0
) -> tuple[int, PullAnswer]:
    answer = await connection.request(pull_command(offset, suspend_ms), suspend_ms + 10_000)
    return answer.code, unpack_pull_answer(answer.body)


async def route(address: Address, topic: str) -> Command:
    connection = await AsyncConnection.open(address, NAMES, LIMITS, SYSTEM_CLOCK)
    try:
        return await connection.request(
            Command(Code.GET_ROUTEINFO_BY_TOPIC, fields=RouteHeader(topic).to_fields()), 5_000
        )
    finally:
        await connection.close()


@pytest.mark.seed("S0-007", "S0-018")
@pytest.mark.parametrize("flush", list(FlushMode))
def test_frames_sent_over_a_connection_are_pulled_over_another(
    tmp_path: Path, flush: FlushMode
) -> None:
    async def run() -> None:
        async with (
            running(settings(tmp_path, flush)) as broker,
            connected(broker) as producer,
            connected(broker) as consumer,
        ):
            offsets = await asyncio.gather(*(send(producer, n, b"x" * 100, 50) for n in range(20)))
            assert sorted(offsets) == offsets == [50 * n for n in range(20)], (
                "the order of the connection"
            )
            code, page = await pull(consumer, 0)
            assert code == 0 and len(page.sizes) == 100 and page.max_offset == 1_000
            assert broker.status()["put_messages"] == 1_000

    asyncio.run(run())


@pytest.mark.parametrize("with_service", [False, True], ids=["hold in the broker", "hold service"])
def test_a_held_pull_wakes_when_a_message_arrives(tmp_path: Path, with_service: bool) -> None:
    async def run() -> None:
        link = str(tmp_path / "hold.sock")
        service = HoldService(SYSTEM_CLOCK)
        serving = asyncio.create_task(service.serve(link)) if with_service else None
        async with (
            running(settings(tmp_path, hold_link=link if with_service else None)) as broker,
            connected(broker) as producer,
            connected(broker) as consumer,
        ):
            await eventually_async(lambda: bool(broker.status()["hold_alive"]))
            await send(producer, 0)
            for n in range(1, 30):
                waiting = asyncio.create_task(pull(consumer, n, 15_000))
                await eventually_async(lambda: broker.status()["parked_pulls"] == 1)
                watch = Stopwatch()
                await send(producer, n)
                code, page = await waiting
                assert code == 0 and page.next_offset == n + 1
                assert watch.lived_s < 2.0
            assert (await pull(consumer, 30, 300))[0] == 19, "its time ends it"
            assert broker.status()["late_pulls"] == 0 and broker.status()["parked_pulls"] == 0
        if serving is not None:
            await service.close()
            await serving

    asyncio.run(run())


def test_without_its_hold_service_the_broker_fires_deadlines_itself(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            running(settings(tmp_path, hold_link=str(tmp_path / "nobody.sock"))) as broker,
            connected(broker) as connection,
        ):
            await send(connection, 0)
            watch = Stopwatch()
            assert (await pull(connection, 1, 200))[0] == 19
            assert watch.passed_s >= 0.2 and broker.status()["late_pulls"] == 1

    asyncio.run(run())


def test_a_lost_connections_pulls_are_forgotten(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(settings(tmp_path)) as broker, connected(broker) as producer:
            await send(producer, 0)
            async with connected(broker) as consumer:
                waiting = asyncio.create_task(pull(consumer, 1, 15_000))
                await eventually_async(lambda: broker.status()["parked_pulls"] == 1)
            await asyncio.gather(waiting, return_exceptions=True)
            await eventually_async(lambda: broker.status()["parked_pulls"] == 0)
            assert broker.status()["parked_pulls"] == 0

    asyncio.run(run())


@pytest.mark.parametrize("flush", list(FlushMode))
def test_after_a_restart_it_listens_on_the_same_port_and_has_everything(
    tmp_path: Path, flush: FlushMode
) -> None:
    async def run() -> None:
        config = settings(tmp_path, flush)
        async with running(config) as broker, connected(broker) as connection:
            first = broker.address
            await send(connection, 0, count=10)
            identity = broker.status()["identity"]
        async with running(config, create=False) as again, connected(again) as connection:
            assert again.address == first and again.status()["identity"] == identity
            answer = await connection.request(send_command(b"hello", 0, count=10), 5_000)
            assert (
                unpack_send_answer(answer.body).repeat
                and (await pull(connection, 0))[1].max_offset == 10
            )

    asyncio.run(run())


def test_a_restart_never_makes_a_new_store(tmp_path: Path) -> None:
    async def run() -> None:
        broker = Broker(settings(tmp_path), SYSTEM_CLOCK, BROKER)
        with pytest.raises(StoreMissing):
            await broker.start(create=False)
        assert broker.status()["state"] == "broken"
        async with connected(broker) as connection:
            answer = await connection.request(send_command(b"x", 0), 5_000)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE and answer.remark
            status = msgpack.unpackb(
                (await connection.request(Command(Code.BROKER_STATUS), 5_000)).body
            )
            assert "StoreMissing" in status["error"]
        await broker.stop()
        assert not (tmp_path / "store").exists()

    asyncio.run(run())


def test_a_stop_acknowledges_what_waited_for_the_disk(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            running(settings(tmp_path, FlushMode.SYNC_FLUSH)) as broker,
            connected(broker) as connection,
        ):
            await send(connection, 0)
            requests = [
                asyncio.create_task(connection.request(send_command(b"x", n, count=100), 10_000))
                for n in range(1, 200)
            ]
            await asyncio.sleep(0)
            await eventually_async(lambda: broker.status()["put_frames"] == 200)
            await broker.stop()
            answers = await asyncio.gather(*requests)
            assert {answer.code for answer in answers} == {0}

    asyncio.run(run())


def test_a_stop_whose_last_fdatasync_fails_acknowledges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    async def run() -> None:
        broker = Broker(settings(tmp_path, FlushMode.SYNC_FLUSH), SYSTEM_CLOCK, BROKER)
        await broker.start(create=True)
        async with connected(broker) as connection:
            await send(connection, 0)

            def fails(file: File) -> None:
                release.wait(20)
                raise StoreFailed(f"fdatasync of {file.path}: made to fail", file.path)

            monkeypatch.setattr(File, "datasync", fails)
            requests = [
                asyncio.create_task(connection.request(send_command(b"x", n, count=3), 10_000))
                for n in range(1, 5)
            ]
            await eventually_async(lambda: broker.status()["put_frames"] == 5)
            stopping = asyncio.create_task(broker.stop())
            await asyncio.sleep(0.05)
            release.set()
            with pytest.raises(StoreFailed):
                await stopping
            outcomes = await asyncio.gather(*requests, return_exceptions=True)
        assert all(
            isinstance(outcome, RemotingError) or outcome.code == ResponseCode.FLUSH_DISK_TIMEOUT
            for outcome in outcomes
        ), outcomes

    asyncio.run(run())


# --- name servers ---


@pytest.mark.seed("S0-017", "S0-009")
def test_topics_are_at_the_name_server_as_soon_as_they_exist_and_gone_after_the_stop(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with name_server() as (_, address):
            async with (
                running(settings(tmp_path, name_servers=(str(address),))) as broker,
                connected(broker) as connection,
            ):
                await eventually_async(
                    lambda: any(
                        server["registrations"]
                        for server in broker.status()["name_servers"].values()
                    )
                )
                template = bodies.decode_route((await route(address, "TBW102")).body)
                assert (template.queues[0].permission, template.queues[0].write_queues) == (
                    7,
                    8,
                ) and template.brokers[0].addresses == {0: str(broker.address)}
                fields = CreateTopicHeader("orders", "TBW102", 3, 3, 6).to_fields()
                assert (
                    await connection.request(
                        Command(Code.UPDATE_AND_CREATE_TOPIC, fields=fields), 5_000
                    )
                ).code == 0
                await send(connection, 0, count=1)
                async with asyncio.timeout(5):
                    while (answer := await route(address, "orders")).code != 0:
                        await asyncio.sleep(0.02)
                assert bodies.decode_route(answer.body).queues[0].write_queues == 3
            assert (await route(address, "orders")).code == ResponseCode.TOPIC_NOT_EXIST, (
                "unregistered"
            )

    asyncio.run(run())


@pytest.mark.seed("S0-010")
def test_a_name_server_that_is_down_or_hangs_holds_up_neither_the_broker_nor_the_others(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        writers: list[asyncio.StreamWriter] = []
        hanging = await asyncio.start_server(
            lambda _, writer: writers.append(writer), "127.0.0.1", 0
        )
        port = hanging.sockets[0].getsockname()[1]
        async with name_server() as (_, address):
            names = ("127.0.0.1:1", f"127.0.0.1:{port}", str(address))
            watch = Stopwatch()
            async with running(settings(tmp_path, name_servers=names)) as broker:
                await eventually_async(
                    lambda: broker.status()["name_servers"][str(address)]["registrations"] > 0
                )
                assert watch.lived_s < 2.5
                assert broker.status()["name_servers"]["127.0.0.1:1"]["registrations"] == 0
                watch = Stopwatch()
            assert watch.lived_s < 4.0
        for writer in writers:
            writer.close()
        hanging.close()

    asyncio.run(run())


def test_a_name_server_that_comes_back_is_told_again(tmp_path: Path) -> None:
    async def listening(port: int) -> tuple[Listener, Address]:
        listener = Listener(
            NameServer(NameServerConfig(), SYSTEM_CLOCK),
            NAMES,
            ForeignClients.CLOSED,
            LIMITS,
            SYSTEM_CLOCK,
            "name server",
        )
        return listener, await listener.start("127.0.0.1", port)

    async def run() -> None:
        listener, address = await listening(0)
        async with running(settings(tmp_path, name_servers=(str(address),))) as broker:

            def registrations() -> Any:
                return broker.status()["name_servers"][str(address)]["registrations"]

            await eventually_async(lambda: registrations() == 1)
            await listener.close()
            listener, _ = await listening(address.port)
            await eventually_async(lambda: registrations() >= 2)
            assert (await route(address, "TBW102")).code == 0
        await listener.close()

    asyncio.run(run())


# --- kill -9 ---

CHILD = """
import asyncio, sys
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import BrokerConfig, FlushMode, StoreConfig
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.server.broker.broker import Broker

async def main():
    flush, pool = FlushMode(sys.argv[2].removeprefix("pooled-")), sys.argv[2].startswith("pooled-")
    sizes = dict(consume_queue_entries=1000, index_slots=997, index_items=4000)
    store = StoreConfig(sys.argv[1], flush=flush, segment_bytes=1 << 22, **sizes)
    store = store.but(transient_store_pool=pool, commit_interval_ms=20)
    secret = Credentials("default", "broker", b"s" * 32)
    config = BrokerConfig(store, delay_levels="1s 2s", stale_send_ms=0, disk_busy_ms=0)
    broker = Broker(config, SYSTEM_CLOCK, secret)
    await broker.start(sys.argv[3] == "create")
    print(broker.address, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


class Child:
    """A broker in a process of its own."""

    def __init__(self, directory: Path, flush: str, create: bool) -> None:
        arguments = [
            sys.executable,
            "-c",
            CHILD,
            str(directory / "store"),
            flush,
            "create" if create else "open",
        ]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = Address.parse(self.process.stdout.readline().strip())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize("flush", ["async", "sync", "pooled-async"])
def test_what_was_acknowledged_before_kill_9_is_there_after_it_on_the_same_port(
    tmp_path: Path, flush: str
) -> None:
    async def produce(child: Child) -> int:
        connection = await AsyncConnection.open(child.address, BROKER, LIMITS, SYSTEM_CLOCK)
        acknowledged = 0

        async def one(sequence: int) -> None:
            nonlocal acknowledged
            answer = await connection.request(send_command(b"%d" % sequence, sequence), 60_000)
            acknowledged += answer.code == 0

        tasks = [asyncio.create_task(one(n)) for n in range(500)]
        await eventually_async(lambda: acknowledged >= 200)
        child.kill()
        await asyncio.gather(*tasks, return_exceptions=True)
        return acknowledged

    async def consume(child: Child) -> int:
        connection = await AsyncConnection.open(child.address, BROKER, LIMITS, SYSTEM_CLOCK)
        _, page = await pull(connection, 0)
        await connection.close()
        return page.max_offset

    first = Child(tmp_path, flush, create=True)
    try:
        acknowledged = asyncio.run(produce(first))
    finally:
        first.kill()
    second = Child(tmp_path, flush, create=False)
    try:
        assert second.address == first.address
        assert asyncio.run(consume(second)) >= acknowledged >= 200
    finally:
        second.kill()
