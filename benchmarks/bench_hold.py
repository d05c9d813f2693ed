"""How long a held pull takes to wake: from the send that brings a message to the answer at the
consumer.

    python -m benchmarks.bench_hold [--cycles 5000] [--parked 10000]

Three processes: this one is producer and consumer (one blocking TCP connection each), a broker that
only parks and wakes, the hold service. Floors beside it: a bare round trip over a Unix socket
between two event loops, and a bare round trip through the broker. The same cycles with the hold
inside the broker show what the service's own process costs.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, cast

from benchmarks.report import Figure, Report, percentiles
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import BrokerConfig, StoreConfig
from rmq_ray.ports import Peer
from rmq_ray.server.base.offload import ThreadOffload
from rmq_ray.server.pull.hold_service import HoldService
from rmq_ray.server.pull.parked_pulls import PARKED_PER_PEER_MAX, ParkedPulls

FRAME = struct.Struct(">cI")  # what, queue id
PULL, SEND, ECHO = b"p", b"s", b"e"
TARGET_P50_MS, TARGET_P99_MS = 0.2, 1.2


# --- the other processes --------------------------------------------------------------------------


def run_service(path: str) -> None:
    """The hold service."""
    asyncio.run(HoldService(SYSTEM_CLOCK).serve(path))


class Broker(asyncio.Protocol):
    """PULL parks, SEND appends one message and tells the hold, ECHO answers."""

    maxima: dict[int, int] = {}
    hold: ParkedPulls[Any]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A producer or consumer."""
        self.transport: Any = transport
        self.attributes: dict[str, Any] = {}  # of ``ports.Peer``
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Requests of five bytes."""
        for what, queue_id in FRAME.iter_unpack(data):
            if what == PULL:
                self.park(("t", queue_id), self.max_offset("t", queue_id), 60_000)
            elif what == SEND:
                self.maxima[queue_id] = self.maxima.get(queue_id, 0) + 1
                self.hold.arrived("t", queue_id, self.maxima[queue_id], [0])
                self.transport.write(b"k")
            else:
                self.transport.write(b"k")

    @classmethod
    def max_offset(cls, _topic: str, queue_id: int) -> int:
        """Messages in the queue."""
        return cls.maxima.get(queue_id, 0)

    def park(self, queue: tuple[str, int], from_offset: int, wait_ms: int) -> None:
        """Hold a pull of this connection."""
        deadline_ms = SYSTEM_CLOCK.now_ms() + wait_ms
        self.hold.park(None, cast(Peer, self), queue, from_offset, deadline_ms, None)

    @staticmethod
    def wake(_request: None, peer: Any) -> None:
        """Answer a parked pull."""
        peer.transport.write(b"m")


def run_broker(path: str | None, parked: int, ready: Connection) -> None:
    """``path`` None = the hold inside the broker."""

    async def main() -> None:
        config = BrokerConfig(
            StoreConfig("unused"), hold_link=path, parked_pulls_max=parked + 1_000
        )
        offload = ThreadOffload("hold", print)
        Broker.hold = ParkedPulls(Broker.wake, Broker.max_offset, SYSTEM_CLOCK, offload, config)
        Broker.hold.start()
        server = await asyncio.get_running_loop().create_server(Broker, "127.0.0.1", 0)
        while not Broker.hold.alive:
            await asyncio.sleep(0.01)
        for n in range(parked):
            if n % PARKED_PER_PEER_MAX == 0:
                idle = Broker()
                idle.attributes = {}
            idle.park(("other", n), 0, 600_000)
        await asyncio.sleep(0.5)
        ready.send(server.sockets[0].getsockname()[1])
        await asyncio.sleep(600)

    asyncio.run(main())


def run_echo(path: str) -> None:
    """The other end of the floor."""

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport: Any = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

    async def main() -> None:
        await asyncio.get_running_loop().create_unix_server(Echo, path)
        await asyncio.sleep(600)

    asyncio.run(main())


# --- measuring ------------------------------------------------------------------------------------


def unix_floor(path: str, cycles: int) -> list[float]:
    """Event loop to event loop and back, 20 bytes."""

    async def main() -> list[float]:
        spent: list[float] = []
        done = asyncio.get_running_loop().create_future()

        class Asker(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self.transport: Any = transport
                self.ask()

            def ask(self) -> None:
                self.begin = time.perf_counter()
                self.transport.write(b"x" * 20)

            def data_received(self, data: bytes) -> None:
                spent.append(time.perf_counter() - self.begin)
                if len(spent) < cycles:
                    self.ask()
                else:
                    done.set_result(None)

        transport, _protocol = await asyncio.get_running_loop().create_unix_connection(Asker, path)
        await done
        transport.close()
        return spent

    return asyncio.run(main())


def connect(port: int) -> socket.socket:
    """A blocking connection without delays."""
    made = socket.create_connection(("127.0.0.1", port), timeout=30)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def echo_floor(port: int, cycles: int) -> list[float]:
    """Client to broker and back."""
    asker, spent = connect(port), []
    for _ in range(cycles):
        begin = time.perf_counter()
        asker.sendall(FRAME.pack(ECHO, 0))
        asker.recv(1)
        spent.append(time.perf_counter() - begin)
    return spent


def wakes(port: int, cycles: int) -> tuple[list[float], float]:
    """Seconds from the send to the consumer's answer; whole cycles (pull, send, answer of both) a
    second.
    """
    consumer, producer, spent = connect(port), connect(port), []
    start = time.perf_counter()
    for _ in range(cycles):
        consumer.sendall(FRAME.pack(PULL, 1))
        consumer.sendall(FRAME.pack(ECHO, 1))  # its answer says that the pull before it is parked
        consumer.recv(1)
        begin = time.perf_counter()
        producer.sendall(FRAME.pack(SEND, 1))
        assert consumer.recv(1) == b"m"
        spent.append(time.perf_counter() - begin)
        producer.recv(1)
    return spent, cycles / (time.perf_counter() - start)


def with_broker(path: str | None, parked: int, measure: Callable[[int], Any]) -> Any:
    """``measure(port)`` while a broker runs."""
    ours, theirs = multiprocessing.Pipe()
    broker = multiprocessing.Process(target=run_broker, args=(path, parked, theirs), daemon=True)
    broker.start()
    try:
        assert ours.poll(60), "the broker did not come up"
        return measure(ours.recv())
    finally:
        broker.kill()
        broker.join(10)


def measure(report: Report, cycles: int, parked: int) -> None:
    """All figures into the report."""
    with tempfile.TemporaryDirectory() as directory:
        path, echo_path = os.path.join(directory, "hold.sock"), os.path.join(directory, "echo.sock")
        helpers = [
            multiprocessing.Process(target=target, args=(at,), daemon=True)
            for target, at in ((run_service, path), (run_echo, echo_path))
        ]
        for helper in helpers:
            helper.start()
        while not (os.path.exists(path) and os.path.exists(echo_path)):
            time.sleep(0.05)
        tell(report, "floor: Unix socket round trip", unix_floor(echo_path, cycles))
        tell(
            report,
            "floor: broker round trip",
            with_broker(None, 0, lambda port: echo_floor(port, cycles)),
        )
        for name, link, others in (
            ("hold service", path, 0),
            (f"hold service, {parked} parked on other queues", path, parked),
            ("hold inside the broker", None, 0),
        ):
            spent, rate = with_broker(link, others, lambda port: wakes(port, cycles))
            tell(report, name, spent, targets=link is not None)
            report.tell(f"{name}: cycles", rate, "1/s")
        for helper in helpers:
            helper.kill()


def tell(report: Report, name: str, seconds: list[float], targets: bool = False) -> None:
    """Two lines; with targets a ratio to them, which must not exceed 1."""
    for share, value, target in zip(
        (50, 99), percentiles(seconds, 50, 99), (TARGET_P50_MS, TARGET_P99_MS), strict=True
    ):
        if targets:
            report.add(
                Figure(
                    f"{name}: p{share}",
                    value * 1e3,
                    "ms",
                    "the target",
                    target,
                    1.0,
                    less_is_better=True,
                )
            )
        else:
            report.tell(f"{name}: p{share}", value * 1e3, "ms")


def main() -> None:
    """Command line; exits with 1 when a target is missed."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--cycles", type=int, default=5_000)
    arguments.add_argument("--parked", type=int, default=10_000)
    settings = arguments.parse_args()
    multiprocessing.set_start_method("spawn")
    report = Report()
    measure(report, settings.cycles, settings.parked)
    sys.exit(1 if report.missed else 0)


if __name__ == "__main__":
    main()
