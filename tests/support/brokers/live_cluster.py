"""Our name server and brokers on real ports and disks, in one thread, without Ray. Also a program,
to be killed.

    with LiveCluster(tmp_path, brokers=2) as cluster:       # a Discovery, too
        with Producer("p", discovery=cluster) as p: ...

``LiveProcess`` is the same in a process of its own with one broker; a new one on the same directory
has the same ports.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import (
    BrokerConfig,
    ForeignClients,
    NameServerConfig,
    StoreConfig,
    TlsSettings,
)
from rmq_ray.ports import ClusterAddress
from rmq_ray.protocol.access.rules import AccessRules
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.tls import told_to_clients
from rmq_ray.server.broker.broker import Broker
from rmq_ray.server.namesrv.name_server_runner import NameServerRunner
from rmq_ray.store.front.message_store import MessageStore
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[3]
SECRET = b"s" * 32
CLUSTER = "live"
SMALL = {
    "segment_bytes": 1 << 18,
    "consume_queue_entries": 200,
    "index_slots": 9_973,
    "index_items": 100_000,
    "preallocate": False,
    "disk_free_bytes_min": 64 << 20,  # how full the machine's disk is shall not matter
}
WAIT_S = 20.0


class LiveCluster:
    """See the module."""

    def __init__(
        self,
        directory: Path,
        brokers: int = 1,
        queue_lock_ms: int = 60_000,
        broker: Mapping[str, Any] | None = None,
        tls: TlsSettings | None = None,
        rules: AccessRules | None = None,
        **store: Any,
    ) -> None:
        self._directory = directory
        self._settings = SMALL | store
        self._broker_settings = {"queue_lock_ms": queue_lock_ms, **(broker or {})}
        self._count = brokers
        self._tls = tls or TlsSettings()
        self._rules = rules
        self._foreign = ForeignClients.CLOSED if rules is None else ForeignClients.ACL
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="live-cluster", daemon=True
        )
        self.name_server: NameServerRunner | None = None
        self.brokers: list[Broker] = []

    def __enter__(self) -> LiveCluster:
        self._thread.start()
        try:
            self.run(self._start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run in the cluster's loop and wait."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def lookup(self) -> ClusterAddress:
        """As a ``Discovery``."""
        assert self.name_server is not None
        return ClusterAddress(
            CLUSTER, (str(self.name_server.address),), SECRET, told_to_clients(self._tls)
        )

    def store(self, number: int = 0) -> MessageStore:
        """A broker's store; touch it with ``run`` or while nothing else happens."""
        core = self.brokers[number]._core
        assert core is not None and core.keeper.store is not None
        return core.keeper.store

    def store_path(self, number: int = 0) -> Path:
        """Its directory."""
        return self._directory / f"broker-{chr(ord('a') + number)}"

    async def _start(self) -> None:
        self.name_server = runner = NameServerRunner(
            NameServerConfig(
                cluster_name=CLUSTER,
                directory=str(self._directory / "ns"),
                tls=self._tls,
                foreign=self._foreign,
            ),
            SECRET,
            SYSTEM_CLOCK,
        )
        self._running = asyncio.create_task(runner.run())
        while runner.address is None and not self._running.done():
            await asyncio.sleep(0.01)
        assert runner.address is not None, runner.error
        for number in range(self._count):
            path = self.store_path(number)
            config = BrokerConfig(
                StoreConfig(str(path), **self._settings),
                broker_name=path.name,
                cluster_name=CLUSTER,
                name_servers=(str(runner.address),),
                tls=self._tls,
                foreign=self._foreign,
            )
            config = config.but(**self._broker_settings)
            broker = Broker(config, SYSTEM_CLOCK, Credentials(CLUSTER, "broker", SECRET))
            self.brokers.append(broker)
            await broker.start(create=True)
            assert await broker.registered(WAIT_S)
        if self._rules is not None:
            await self._tell(self._rules)

    def set_access_rules(self, rules: AccessRules) -> None:
        """As the controller tells every server."""
        self.run(self._tell(rules))

    async def _tell(self, rules: AccessRules) -> None:
        assert self.name_server is not None
        for server in (self.name_server.server, *self.brokers):
            await server.set_access_rules(rules)

    async def _stop(self) -> None:
        for broker in self.brokers:
            await broker.stop()
        if self.name_server is not None:
            await self.name_server.stop()
            await self._running


class LiveProcess:
    """One life of a process with a name server and a broker. ``kill`` is SIGKILL."""

    def __init__(
        self,
        directory: Path,
        argument: object = 60_000,
        module: str = "tests.support.brokers.live_cluster",
    ) -> None:
        """``argument``: of the program; the lock time in ms."""
        eventually(lambda: all(map(_is_free, directory.glob("broker-*"))))
        command = [sys.executable, "-m", module, str(directory), str(argument)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._process.stdout is not None
        self._address = self._process.stdout.readline().strip()
        assert self._address, "the cluster did not start"

    def lookup(self) -> ClusterAddress:
        """As a ``Discovery``."""
        return ClusterAddress(CLUSTER, (self._address,), SECRET)

    def kill(self) -> None:
        """End it as a power switch would."""
        self._process.kill()
        self.wait()

    def wait(self) -> None:
        """Until it has ended, by whatever hand."""
        self._process.wait(WAIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


def _is_free(store: Path) -> bool:
    """Whether nobody has the store. The kernel closes the files of a killed process a little after
    it says that it has ended.
    """
    descriptor = os.open(store, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


if __name__ == "__main__":
    with LiveCluster(Path(sys.argv[1]), queue_lock_ms=int(sys.argv[2])) as living:
        print(living.lookup().name_servers[0], flush=True)
        threading.Event().wait(120)
