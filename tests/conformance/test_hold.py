"""Parked pulls with a hold service behind its Unix socket, and without one.

Then what only the service has: restarts of either end, a service that hangs, foreign bytes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgpack
import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import BrokerConfig, StoreConfig
from rmq_ray.errors import ConfigError, TooManyRequests
from rmq_ray.server.base.offload import ThreadOffload
from rmq_ray.server.core.broker_core import TICK_MS
from rmq_ray.server.pull.hold_service import HoldService
from rmq_ray.server.pull.parked_pulls import ParkedPulls
from tests.support.faults.fake_peer import FakePeer
from tests.support.faults.stopwatch import Stopwatch

PAID, REFUND = 2598919, 77


class Broker:
    """What a broker knows: the queues' greatest offsets, the pulls that woke, by number."""

    def __init__(self) -> None:
        self.maxima: dict[tuple[str, int], int] = {}
        self.woken: list[int] = []

    def rerun(self, number: int, _peer: object) -> None:
        self.woken.append(number)

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self.maxima.get((topic, queue_id), 0)


async def expect_soon(condition: Callable[[], bool], limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.002)


def frame(*events: object) -> bytes:
    payload = msgpack.packb(events)
    return struct.pack(">I", len(payload)) + payload


@asynccontextmanager
async def service(path: str) -> AsyncIterator[HoldService]:
    running = HoldService(SYSTEM_CLOCK)
    task = asyncio.create_task(running.serve(path))
    await expect_soon(lambda: os.path.exists(path) or task.done())
    try:
        yield running
    finally:
        await running.close()
        await task


class Held:
    """The parked pulls of a broker; each has a number and a connection of its own."""

    def __init__(self, broker: Broker, path: str | None, few: int, **settings) -> None:
        self.offload = ThreadOffload("hold", pytest.fail)
        config = BrokerConfig(StoreConfig("unused"), "broker-a", hold_link=path).but(**settings)
        self.pulls: ParkedPulls[int] = ParkedPulls(
            broker.rerun, broker.max_offset, SYSTEM_CLOCK, self.offload, config, few
        )
        self._peers: dict[int, FakePeer] = {}

    @property
    def alive(self) -> bool:
        return self.pulls.alive

    def park(self, number, topic, queue_id, from_offset, deadline_ms, codes) -> None:
        self.forget(number)
        peer = self._peers[number] = FakePeer()
        self.pulls.park(number, peer, (topic, queue_id), from_offset, deadline_ms, codes)

    def forget(self, number: int) -> None:
        """Its connection is closed."""
        if (peer := self._peers.pop(number, None)) is not None:
            self.pulls.closed(peer)

    def arrived(self, topic, queue_id, max_offset, codes) -> None:
        self.pulls.arrived(topic, queue_id, max_offset, codes)

    async def tick(self) -> None:
        while True:  # until it is cancelled
            self.pulls.tick()
            await asyncio.sleep(TICK_MS / 1000)


@asynccontextmanager
async def link(path: str | None, broker: Broker, few: int = 0, **settings) -> AsyncIterator[Held]:
    """Arrivals go to the service where more than ``few`` pulls are parked."""
    made = Held(broker, path, few, **settings)
    made.pulls.start()
    ticking = asyncio.create_task(made.tick())
    try:
        yield made
    finally:
        ticking.cancel()
        await made.pulls.close()
        made.offload.close()


@asynccontextmanager
async def hold(kind: str, directory: Path, broker: Broker, **settings) -> AsyncIterator[Held]:
    if kind == "local":
        async with link(None, broker, **settings) as made:
            yield made
        return
    path = str(directory / "hold.sock")
    few = 1_000 if kind == "few" else 0
    async with service(path), link(path, broker, few, **settings) as made:
        await expect_soon(lambda: made.alive)
        yield made


def soon(ms: float = 15_000) -> float:
    return SYSTEM_CLOCK.now_ms() + ms


both = pytest.mark.parametrize("kind", ["service", "few", "local"])


def run(scenario) -> None:
    asyncio.run(asyncio.wait_for(scenario, 30))


@both
@pytest.mark.seed("S4-136")
def test_an_arrival_wakes_the_pulls_of_its_queue_and_no_others(kind: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = Broker()
        async with hold(kind, tmp_path, broker) as held:
            held.park(1, "orders", 0, 0, soon(), None)
            held.park(2, "orders", 1, 0, soon(), None)
            held.arrived("orders", 0, 1, [0])
            await expect_soon(lambda: broker.woken == [1])
            held.arrived("orders", 1, 1, [0])
            await expect_soon(lambda: broker.woken == [1, 2])

    run(scenario())


@both
def test_an_arrival_in_the_same_turn_as_the_park_is_not_lost(kind: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = Broker()
        async with hold(kind, tmp_path, broker) as held:
            for token in range(500):
                held.park(token, "orders", 0, token, soon(), None)
                broker.maxima["orders", 0] = token + 1
                held.arrived("orders", 0, token + 1, [0])
                # awaited in the loop's own round
                await expect_soon(lambda: len(broker.woken) > token)  # noqa: B023
            assert broker.woken == list(range(500))

    run(scenario())


@both
@pytest.mark.seed("S4-141")
def test_tag_codes_decide_who_wakes(kind: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = Broker()
        async with hold(kind, tmp_path, broker) as held:
            held.park(1, "orders", 0, 0, soon(), frozenset({PAID}))
            held.park(2, "orders", 0, 0, soon(), frozenset({REFUND}))
            held.park(3, "orders", 0, 0, soon(), None)
            held.arrived("orders", 0, 2, [5, PAID])
            await expect_soon(lambda: sorted(broker.woken) == [1, 3])
            held.arrived("orders", 0, 3, None)
            await expect_soon(lambda: 2 in broker.woken)

    run(scenario())


@both
@pytest.mark.seed("S4-131", "S4-143")
def test_a_deadline_wakes_a_pull_on_time(kind: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = Broker()
        async with hold(kind, tmp_path, broker) as held:
            watch = Stopwatch()
            held.park(1, "orders", 0, 0, soon(), None)
            held.park(2, "orders", 1, 0, soon(150), None)
            held.park(3, "orders", 2, 0, soon(80), None)
            await expect_soon(lambda: len(broker.woken) == 2)
            assert broker.woken == [3, 2]
            assert watch.passed_s >= 0.145 and watch.lived_s < 2.0

    run(scenario())


@both
def test_a_forgotten_pull_is_woken_by_nothing(kind: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = Broker()
        async with hold(kind, tmp_path, broker) as held:
            held.park(1, "orders", 0, 0, soon(50), None)
            held.park(2, "orders", 0, 0, soon(), None)
            held.forget(1)
            held.forget(77)
            held.arrived("orders", 0, 1, None)
            held.park(3, "orders", 1, 0, soon(100), None)
            await expect_soon(lambda: 3 in broker.woken)
            assert broker.woken == [2, 3]

    run(scenario())


@both
def test_beyond_the_limit_parking_is_refused_with_busy(kind: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = Broker()
        async with hold(kind, tmp_path, broker, parked_pulls_max=2) as held:
            held.park(1, "orders", 0, 0, soon(), None)
            held.park(2, "orders", 0, 0, soon(), None)
            with pytest.raises(TooManyRequests):
                held.park(3, "orders", 0, 0, soon(), None)
            held.park(2, "orders", 1, 0, soon(), None)
            held.arrived("orders", 0, 1, None)
            await expect_soon(lambda: broker.woken == [1])

    run(scenario())


@both
def test_a_pull_that_is_behind_wakes_although_no_arrival_is_told_any_more(
    kind: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        broker = Broker()
        broker.maxima["orders", 0] = 8
        async with hold(kind, tmp_path, broker) as held:
            held.park(1, "orders", 0, 7, soon(), None)
            await expect_soon(lambda: broker.woken == [1])

    run(scenario())


@both
@pytest.mark.seed("S4-130", "S4-139", "S4-140", "S4-136")
def test_the_periodic_scan_finds_a_pull_whose_arrival_was_never_told(
    kind: str, tmp_path: Path
) -> None:
    usual = BrokerConfig(StoreConfig("unused"))
    assert (usual.hold_check_ms, usual.short_polling_ms) == (5_000, 1_000)

    async def scenario() -> None:
        broker = Broker()
        async with hold(kind, tmp_path, broker, hold_check_ms=100) as held:
            held.park(1, "orders", 0, 0, soon(), frozenset({PAID}))
            held.park(2, "orders", 1, 0, soon(), None)
            await asyncio.sleep(0.02)
            broker.maxima["orders", 0] = 1
            await expect_soon(lambda: broker.woken == [1])

    run(scenario())


def test_after_a_restart_of_the_service_everything_is_parked_anew_and_what_arrived_meanwhile_wakes(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        broker = Broker()
        path = str(tmp_path / "hold.sock")
        async with link(path, broker) as held:
            async with service(path) as first:
                await expect_soon(lambda: held.alive)
                for token in range(1_200):
                    held.park(token, "orders", token, 0, soon(), None)
                await expect_soon(lambda: first.status()["parked"] == 1_200)
            await expect_soon(lambda: not held.alive)
            broker.maxima["orders", 7] = 1
            async with service(path) as second:
                await expect_soon(lambda: held.alive and broker.woken == [7])
                await expect_soon(lambda: second.status()["parked"] == 1_199)
                held.arrived("orders", 8, 1, None)
                await expect_soon(lambda: broker.woken == [7, 8])

    run(scenario())


def test_while_the_service_is_dead_arrivals_wake_from_the_brokers_own_knowledge(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        broker = Broker()
        async with link(str(tmp_path / "nobody.sock"), broker) as held:
            held.park(1, "orders", 0, 5, soon(), frozenset({PAID}))
            held.park(2, "orders", 1, 5, soon(), None)
            held.arrived("orders", 0, 5, [PAID])
            held.arrived("orders", 0, 6, [PAID])
            assert broker.woken == []
            await expect_soon(lambda: broker.woken == [1])
            assert len(held.pulls) == 1

    run(scenario())


def test_a_dead_service_leaves_deadlines_to_the_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = Broker()
        async with link(str(tmp_path / "nobody.sock"), broker) as held:
            held.park(1, "orders", 0, 5, soon(30), None)
            held.park(2, "orders", 1, 5, soon(), None)
            await expect_soon(lambda: broker.woken == [1])
            assert len(held.pulls) == 1 and held.pulls.late == 1

    run(scenario())


def test_a_broker_that_comes_back_finds_nothing_of_its_old_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = Broker()
        path = str(tmp_path / "hold.sock")
        async with service(path) as running:
            reader, old = await asyncio.open_unix_connection(path)
            old.write(frame([1, 1, "broker-a"], [2, 1, "orders", 0, 0, 15_000, 0, None]))
            await expect_soon(lambda: running.status()["parked"] == 1)
            async with link(path, broker) as held:
                await expect_soon(lambda: held.alive)
                assert running.status() == {
                    "connected": True,
                    "broker": "broker-a",
                    "parked": 0,
                    "queues": 0,
                    "connections": 2,
                    "wakes": 0,
                }
                async with asyncio.timeout(5):
                    assert len(await reader.read()) > 0  # the welcome, then the end
                held.park(1, "orders", 1, 0, soon(), None)
                held.arrived("orders", 0, 1, None)
                held.arrived("orders", 1, 1, None)
                await expect_soon(lambda: broker.woken == [1])
            await expect_soon(lambda: running.status()["connected"] is False)
            old.close()

    run(scenario())


def test_a_stopped_service_is_noticed_within_seconds_and_used_again_when_it_goes_on(
    tmp_path: Path,
) -> None:
    imports = (
        "import asyncio, sys\nfrom rmq_ray.clock import SYSTEM_CLOCK\nfrom "
        "rmq_ray.server.pull.hold_service import HoldService\n"
    )
    code = imports + "asyncio.run(HoldService(SYSTEM_CLOCK).serve(sys.argv[1]))"
    path = str(tmp_path / "hold.sock")
    process = subprocess.Popen([sys.executable, "-c", code, path])

    async def scenario() -> None:
        broker = Broker()
        async with link(path, broker) as held:
            await expect_soon(lambda: held.alive, 20)
            held.park(1, "orders", 0, 0, soon(), None)
            process.send_signal(signal.SIGSTOP)
            await expect_soon(lambda: not held.alive, 8)
            held.arrived("orders", 0, 1, None)
            await expect_soon(lambda: broker.woken == [1])
            process.send_signal(signal.SIGCONT)
            await expect_soon(lambda: held.alive, 8)
            held.park(2, "orders", 0, 1, soon(), None)
            held.arrived("orders", 0, 2, None)
            await expect_soon(lambda: broker.woken == [1, 2])

    try:
        run(scenario())
    finally:
        process.kill()
        process.wait(10)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frame([2, 1, "orders", 0, 0, 0, 0, None]),
        frame([1, 99, "broker-a"]),
        frame([1, 1, "broker-a"], [99]),
        frame([1, 1, "broker-a"], [2, 1]),
        frame([1, 1, "broker-a"], [2, [], "orders", 0, 0, 0, 0, None]),
        struct.pack(">I", 5) + b"\xc1\xc1\xc1\xc1\xc1",
        frame(1, 2),
    ],
    ids=[
        "http",
        "no hello",
        "other version",
        "unknown kind",
        "too short",
        "wrong types",
        "no msgpack",
        "no lists",
    ],
)
def test_bytes_that_break_the_protocol_end_that_connection_and_no_other(
    sent: bytes, tmp_path: Path
) -> None:
    async def scenario() -> None:
        broker = Broker()
        path = str(tmp_path / "hold.sock")
        async with service(path):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(sent)
            try:
                async with asyncio.timeout(5):
                    await reader.read()
            except ConnectionResetError:
                pass
            writer.close()
            async with link(path, broker) as held:
                await expect_soon(lambda: held.alive)
                held.park(1, "orders", 0, 0, soon(20), None)
                await expect_soon(lambda: broker.woken == [1])

    run(scenario())


def test_the_socket_must_lie_in_a_private_directory_and_never_replaces_a_file(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        shared = tmp_path / "shared"
        shared.mkdir()
        shared.chmod(0o777)
        with pytest.raises(ConfigError, match="not be writable by others"):
            await HoldService(SYSTEM_CLOCK).serve(str(shared / "hold.sock"))
        (tmp_path / "file").write_text("mine")
        with pytest.raises(ConfigError, match="not a socket"):
            await HoldService(SYSTEM_CLOCK).serve(str(tmp_path / "file"))
        with pytest.raises(ConfigError, match="longer than"):
            await HoldService(SYSTEM_CLOCK).serve(str(tmp_path / ("x" * 120)))
        leftover = socket.socket(socket.AF_UNIX)
        leftover.bind(str(tmp_path / "hold.sock"))
        leftover.close()
        async with service(str(tmp_path / "hold.sock")) as running:
            assert running.status()["connected"] is False
        assert not (tmp_path / "hold.sock").exists()

    run(scenario())
