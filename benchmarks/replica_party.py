"""A name server, a master or a slave in a process of its own, without Ray: ``python -m benchmarks.replica_party DIRECTORY ROLE MODE``.

Also the two ends of a plain copy: ROLE ``copy-to`` listens, prints its port and writes what comes to DIRECTORY/copy; the sender is the caller.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import BrokerConfig, NameServerConfig, ReplicationMode, StoreConfig
from rmq_ray.ports import ClusterAddress
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.server.broker import Broker
from rmq_ray.server.name_server_runner import NameServerRunner

CLUSTER, SECRET = "bench", b"b" * 32
LIFE_S = 600
COPY_BYTES = 4 << 20


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


async def _serve(directory: Path, role: str, mode: str) -> None:
    known = directory / "ns.address"
    if role == "ns":
        runner = NameServerRunner(NameServerConfig(cluster_name=CLUSTER, directory=str(directory / "ns")), SECRET, SYSTEM_CLOCK)
        running = asyncio.create_task(runner.run())
        while runner.address is None and not running.done():
            await asyncio.sleep(0.01)
        known.write_text(str(runner.address))
        print(runner.address, flush=True)
    else:
        broker_id = 0 if role == "master" else int(role)
        config = BrokerConfig(StoreConfig(str(directory / f"broker-a-{broker_id}")), broker_name="broker-a", broker_id=broker_id, cluster_name=CLUSTER)
        config = config.but(name_servers=(known.read_text(),), replication=ReplicationMode(mode))
        broker = Broker(config, SYSTEM_CLOCK, Credentials(CLUSTER, "broker", SECRET))
        await broker.start(create=True)
        await broker.registered(10.0)
        print(broker.address, flush=True)
    await asyncio.sleep(LIFE_S)


def _copy(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, (directory / "copy").open("wb", buffering=0) as file:
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
