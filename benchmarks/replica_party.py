"""A name server, a master or a slave in a process of its own, without Ray: ``python -m
benchmarks.replica_party DIRECTORY ROLE MODE``.

Also the two ends of a plain copy: ROLE ``copy-to`` listens, prints its port and writes what comes
to DIRECTORY/copy; the sender is the caller. And what a caller asks them and sends them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack

from rmq_ray.client.producer.producer import Producer
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import BrokerConfig, NameServerConfig, ReplicationMode, StoreConfig
from rmq_ray.model.ids import Address
from rmq_ray.model.message import SendStatus
from rmq_ray.ports import ClusterAddress
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.broker.broker import Broker
from rmq_ray.server.namesrv.name_server_runner import NameServerRunner

CLUSTER, SECRET = "bench", b"b" * 32
LIFE_S = 1_800
COPY_BYTES = 4 << 20
PATIENCE_S = 120.0
AT_ONCE = 200_000  # futures in memory


@contextmanager
def party(directory: Path, role: str, mode: str = "async") -> Iterator[str]:
    """Start it; yields what it prints first, its address. Killed at the end."""
    command = [sys.executable, "-m", "benchmarks.replica_party", str(directory), role, mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            assert address, f"{role} did not start"
            yield address
        finally:
            process.kill()


class Lookup:
    """A ``Discovery`` of one name server."""

    def __init__(self, address: str) -> None:
        self._address = address

    def lookup(self) -> ClusterAddress:
        """See ``Discovery``."""
        return ClusterAddress(CLUSTER, (self._address,), SECRET)


def send_all(producer: Producer, messages: int, body_bytes: int) -> None:
    """Batched; every one is acknowledged."""
    body = b"x" * body_bytes
    for left in range(messages, 0, -AT_ONCE):
        futures = [producer.send_async("bench", body) for _ in range(min(left, AT_ONCE))]
        refused = sum(future.result(60).status is not SendStatus.SEND_OK for future in futures)
        assert not refused, f"{refused} of {messages} were not acknowledged"


def status(producer: Producer, address: str) -> dict[str, Any]:
    """What a broker tells of itself."""
    core = producer._core
    assert core is not None, "the producer has started"
    answer = core.instance.invoke(Address.parse(address), Command(RequestCode.BROKER_STATUS), 5_000)
    found: dict[str, Any] = msgpack.unpackb(answer.body, strict_map_key=False)
    return found


def cpu_ms(pid: int) -> float:
    """CPU time of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1e3 / os.sysconf("SC_CLK_TCK")


def until(check: Callable[[], Any], every_s: float = 0.05, patience_s: float = PATIENCE_S) -> None:
    """Wait for it."""
    deadline = time.perf_counter() + patience_s
    while not check():
        assert time.perf_counter() < deadline, "waited too long"
        time.sleep(every_s)


async def _serve(directory: Path, role: str, mode: str) -> None:
    known = directory / "ns.address"
    if role == "ns":
        runner = NameServerRunner(
            NameServerConfig(cluster_name=CLUSTER, directory=str(directory / "ns")),
            SECRET,
            SYSTEM_CLOCK,
        )
        running = asyncio.create_task(runner.run())
        while runner.address is None and not running.done():
            await asyncio.sleep(0.01)
        known.write_text(str(runner.address))
        print(runner.address, flush=True)
    else:
        broker_id = 0 if role == "master" else int(role)
        config = BrokerConfig(
            StoreConfig(str(directory / f"broker-a-{broker_id}")),
            broker_name="broker-a",
            broker_id=broker_id,
            cluster_name=CLUSTER,
        )
        config = config.but(name_servers=(known.read_text(),), replication=ReplicationMode(mode))
        broker = Broker(config, SYSTEM_CLOCK, Credentials(CLUSTER, "broker", SECRET))
        await broker.start(create=True)
        await broker.registered(10.0)
        print(broker.address, flush=True)
    await asyncio.sleep(LIFE_S)


def _copy(directory: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        (directory / "copy").open("wb", buffering=0) as file,
    ):
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        buffer = bytearray(COPY_BYTES)
        with connection:
            while count := connection.recv_into(buffer):
                file.write(memoryview(buffer)[:count])
            connection.sendall(b"!")


if __name__ == "__main__":
    if sys.argv[2] == "copy-to":
        _copy(Path(sys.argv[1]))
    else:
        asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
