"""One party of a master and slave in a process of its own, to be killed: ``python -m
tests.support.brokers.replicated_process DIRECTORY ROLE MODE``.

ROLE is ``ns`` (name server), ``master`` or a slave's number; MODE is ``async`` or ``sync``. Prints
its address when it serves. A new one on the same directory has the same port.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import BrokerConfig, NameServerConfig, ReplicationMode, StoreConfig
from rmq_ray.ports import ClusterAddress
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.server.broker.broker import Broker
from rmq_ray.server.namesrv.name_server_runner import NameServerRunner
from tests.support.brokers.live_cluster import CLUSTER, ROOT, SECRET, SMALL, WAIT_S
from tests.support.brokers.live_cluster import _is_free as is_free
from tests.support.waiting import eventually

LIFE_S = 120


class Party:
    """One life of a process. ``kill`` is SIGKILL."""

    def __init__(self, directory: Path, role: str, mode: str = "async") -> None:
        self.path = _path(directory, role)
        if self.path.is_dir() and role != "ns":
            eventually(lambda: is_free(self.path))
        command = [
            sys.executable,
            "-m",
            "tests.support.brokers.replicated_process",
            str(directory),
            role,
            mode,
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, f"{role} did not start"

    def lookup(self) -> ClusterAddress:
        """As a ``Discovery``, of a name server."""
        return ClusterAddress(CLUSTER, (self.address,), SECRET)

    def kill(self) -> None:
        """As a power switch would."""
        self._process.kill()
        self._process.wait(WAIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


def _path(directory: Path, role: str) -> Path:
    return directory / {"ns": "ns", "master": "broker-a"}.get(role, f"broker-a-slave-{role}")


async def _serve(directory: Path, role: str, mode: str) -> None:
    if role == "ns":
        runner = NameServerRunner(
            NameServerConfig(cluster_name=CLUSTER, directory=str(_path(directory, role))),
            SECRET,
            SYSTEM_CLOCK,
        )
        running = asyncio.create_task(runner.run())
        while runner.address is None and not running.done():
            await asyncio.sleep(0.01)
        (directory / "ns.address").write_text(str(runner.address))
        print(runner.address, flush=True)
    else:
        store = StoreConfig(str(_path(directory, role)), **SMALL)
        config = BrokerConfig(
            store,
            broker_name="broker-a",
            broker_id=0 if role == "master" else int(role),
            cluster_name=CLUSTER,
        )
        config = config.but(
            name_servers=((directory / "ns.address").read_text(),),
            replication=ReplicationMode(mode),
            replica_sync_ms=300,
        )
        broker = Broker(config, SYSTEM_CLOCK, Credentials(CLUSTER, "broker", SECRET))
        await broker.start(create=True)
        assert await broker.registered(WAIT_S)
        print(broker.address, flush=True)
    await asyncio.sleep(LIFE_S)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
