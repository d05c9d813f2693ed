"""Round trips and calls a second of one connection to an echo listener in another process, beside a
bare socket echo.

    python -m benchmarks.bench_remoting [--seconds 2]

Rows: 1, 8 and 64 threads that each wait for their answer, callbacks with 256 in flight, one asyncio
connection with 64 in flight, and 1 MiB bodies. Floors are measured in the same run: a blocking
socket that sends the same number of bytes to an asyncio echo without frames and reads them back,
one at a time and 64 at a time. Targets: 1 thread p50 <= 70 us, 64 threads >= 35,000 calls/s. Both
processes share the machine's cores; with other work on them the figures mean little.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.report import Figure, Report, percentiles
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import ForeignClients, RemotingLimits
from rmq_ray.model.ids import Address
from rmq_ray.remoting.async_connection import AsyncConnection
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.listener import Listener
from rmq_ray.remoting.wire.frame import BINARY, Command

CREDENTIALS = Credentials("bench", "broker", b"secret of the benchmark")
BODY = b"x" * 200
FRAME_BYTES = 4 + 4 + 21 + len(BODY)
MIB = 1 << 20
IN_FLIGHT = 64
TARGET_P50_US, TARGET_CALLS = 70.0, 35_000.0


@dataclass
class Row:
    """Calls a second, and what each took in seconds (empty = not taken)."""

    name: str
    rate: float
    times: list[float]


class EchoHandler:
    """Answers with what came."""

    def handle(self, command: Command, peer: Any) -> Command | None:
        """The same body."""
        return command.answer(body=command.body)

    def closed(self, peer: Any) -> None:
        """Nothing is kept."""


class BareEcho(asyncio.Protocol):
    """Bytes back as they come: what the loop and the kernel cost without us."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Write it back."""
        self._transport.write(data)  # type: ignore[attr-defined]


async def _serve() -> None:
    listener = Listener(
        EchoHandler(), CREDENTIALS, ForeignClients.CLOSED, RemotingLimits(), SYSTEM_CLOCK, "echo"
    )
    address = await listener.start("127.0.0.1", 0)
    bare = await asyncio.get_running_loop().create_server(BareEcho, "127.0.0.1", 0)
    print(address.port, bare.sockets[0].getsockname()[1], flush=True)
    await asyncio.sleep(3_600)


@contextmanager
def server() -> Iterator[tuple[Address, Address]]:
    """The echo process: (framed, bare)."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bench_remoting", "--serve"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        framed, bare = process.stdout.readline().split()
        yield Address("127.0.0.1", int(framed)), Address("127.0.0.1", int(bare))
    finally:
        process.kill()
        process.wait(10)


def measure(
    name: str, threads: int, call: Callable[[], object], seconds: float, share: int = 1
) -> Row:
    """Every thread calls until time is up; ``share``: requests a call stands for."""
    taken: list[list[float]] = [[] for _ in range(threads)]
    stop = threading.Event()

    def work(mine: list[float]) -> None:
        while not stop.is_set():
            started = time.perf_counter()
            call()
            mine.append(time.perf_counter() - started)

    workers = [threading.Thread(target=work, args=(mine,), daemon=True) for mine in taken]
    call()
    for worker in workers:
        worker.start()
    started = time.perf_counter()
    time.sleep(seconds)
    stop.set()
    for worker in workers:
        worker.join(30)
    elapsed = time.perf_counter() - started
    times = [value for mine in taken for value in mine]
    return Row(name, len(times) * share / elapsed, times)


def floors(bare: Address, seconds: float) -> tuple[Row, Row, Row]:
    """(1 in flight, 64 in flight, 1 MiB)."""
    sock = socket.create_connection((bare.host, bare.port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    scratch = memoryview(bytearray(MIB))

    def trip(data: bytes) -> None:
        sender = (
            threading.Thread(target=sock.sendall, args=(data,), daemon=True)
            if len(data) >= MIB
            else None
        )
        if sender is None:
            sock.sendall(data)
        else:
            sender.start()
        left = len(data)
        while left:
            left -= sock.recv_into(scratch[:left])
        if sender is not None:
            sender.join(10)

    one, window, big = b"f" * FRAME_BYTES, b"f" * FRAME_BYTES * IN_FLIGHT, b"f" * MIB
    rows = (
        measure("bare socket, 1 in flight", 1, lambda: trip(one), seconds),
        measure(
            f"bare socket, {IN_FLIGHT} frames a trip", 1, lambda: trip(window), seconds, IN_FLIGHT
        ),
        measure("bare socket, 1 MiB", 1, lambda: trip(big), seconds),
    )
    sock.close()
    return rows


def callbacks(connection: Connection, seconds: float) -> Row:
    """One thread that never waits, 256 requests in flight."""
    slots = threading.Semaphore(256)
    deadline = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < deadline:
        slots.acquire(timeout=5)
        connection.request_async(
            Command(10, body=BODY, serialize=BINARY), 5_000, lambda _: slots.release()
        )
        count += 1
    for _ in range(256):
        slots.acquire(timeout=5)
    return Row("callbacks, 256 in flight", count / (time.perf_counter() - deadline + seconds), [])


async def in_loop(address: Address, seconds: float) -> Row:
    """64 tasks on one asyncio connection."""
    connection = await AsyncConnection.open(address, CREDENTIALS, RemotingLimits(), SYSTEM_CLOCK)
    times: list[float] = []
    deadline = time.perf_counter() + seconds

    async def work() -> None:
        while (started := time.perf_counter()) < deadline:
            await connection.request(Command(10, body=BODY, serialize=BINARY), 5_000)
            times.append(time.perf_counter() - started)

    await asyncio.gather(*[work() for _ in range(IN_FLIGHT)])
    await connection.close()
    return Row("asyncio, 64 in flight", len(times) / seconds, times)


def measure_all(report: Report, seconds: float) -> None:
    """All figures into the report."""
    command, long = (
        Command(10, body=BODY, serialize=BINARY),
        Command(10, body=b"m" * MIB, serialize=BINARY),
    )
    with server() as (framed, bare):
        one, many, big = floors(bare, seconds)
        for floor in (one, many, big):
            tell(report, floor, None)
        connection = Connection(framed, CREDENTIALS, RemotingLimits(), SYSTEM_CLOCK)
        alone = measure("1 thread", 1, lambda: connection.request(command, 5_000), seconds)
        tell(report, alone, one)
        report.add(
            Figure(
                "1 thread: p50",
                percentiles(alone.times, 50)[0] * 1e6,
                "us",
                "the target",
                TARGET_P50_US,
                1.0,
                less_is_better=True,
            )
        )
        tell(
            report,
            measure("8 threads", 8, lambda: connection.request(command, 5_000), seconds),
            one,
        )
        crowd = measure("64 threads", 64, lambda: connection.request(command, 5_000), seconds)
        tell(report, crowd, one)
        report.add(Figure("64 threads", crowd.rate, "1/s", "the target", TARGET_CALLS, 1.0))
        tell(report, callbacks(connection, seconds), many)
        tell(report, asyncio.run(in_loop(framed, seconds)), many)
        tell(
            report,
            measure(
                "4 threads, 1 MiB there and back",
                4,
                lambda: connection.request(long, 20_000),
                seconds,
            ),
            big,
        )
        connection.close()


def tell(report: Report, row: Row, floor: Row | None) -> None:
    """Rate with its ratio to the floor, then p50 and p99."""
    report.add(
        Figure(
            row.name, row.rate, "1/s", floor.name if floor else "", floor.rate if floor else None
        )
    )
    if row.times:
        for share, value in zip((50, 99), percentiles(row.times, 50, 99), strict=True):
            report.tell(f"{row.name}: p{share}", value * 1e6, "us")


def main() -> None:
    """Command line; exits with 1 when a target is missed."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--seconds", type=float, default=2.0, help="for each row")
    arguments.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.serve:
        asyncio.run(_serve())
        return
    report = Report()
    measure_all(report, chosen.seconds)
    sys.exit(1 if report.missed else 0)


if __name__ == "__main__":
    main()
