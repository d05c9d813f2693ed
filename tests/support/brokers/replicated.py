"""A master and its slaves on real ports and disks, in one thread: ``LiveCluster`` with slaves that
can be stopped, started and pointed elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import BrokerConfig, StoreConfig, TlsSettings
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.server.broker.broker import Broker
from rmq_ray.store.front.message_store import MessageStore
from tests.support.brokers.live_cluster import CLUSTER, SECRET, WAIT_S, LiveCluster
from tests.support.waiting import eventually


class ReplicatedCluster(LiveCluster):
    """``slaves`` of broker-a, ids from 1 on, each on a directory of its own. ``master``: settings
    of the master alone.
    """

    def __init__(
        self,
        directory: Path,
        slaves: int = 1,
        broker: Mapping[str, Any] | None = None,
        tls: TlsSettings | None = None,
        **store: Any,
    ) -> None:
        broker = {"replica_sync_ms": 300, **(broker or {})}
        super().__init__(directory, broker=broker, tls=tls, **store)
        self._slave_count = slaves
        self.slaves: dict[int, Broker] = {}

    async def _start(self) -> None:
        await super()._start()
        for number in range(1, self._slave_count + 1):
            await self._start_slave(number)

    async def _stop(self) -> None:
        for broker in self.slaves.values():
            await broker.stop()
        await super()._stop()

    def slave_path(self, number: int = 1) -> Path:
        return self._directory / f"broker-a-slave-{number}"

    def start_slave(self, number: int = 1, **changes: Any) -> None:
        """Start it (again)."""
        self.run(self._start_slave(number, **changes))

    def stop_slave(self, number: int = 1) -> None:
        self.run(self.slaves.pop(number).stop())

    def stop_master(self) -> None:
        self.run(self.brokers.pop(0).stop())

    def start_master(self, **changes: Any) -> None:
        """Start broker-a again on its directory."""
        self.run(self._start_master(**changes))

    def slave_store(self, number: int = 1) -> MessageStore:
        core = self.slaves[number]._core
        assert core is not None and core.keeper.store is not None
        return core.keeper.store

    def replica(self, number: int = 1) -> dict[str, Any]:
        """What the slave says of its following."""
        found: dict[str, Any] = self.slaves[number].status()["replica"]
        return found

    def replication(self) -> dict[str, Any]:
        """What the master says of its slaves."""
        found: dict[str, Any] = self.brokers[0].status()["replication"]
        return found

    def in_sync(self, count: int | None = None) -> None:
        """Wait until every slave (``count`` of them) is in the set and has everything."""

        def settled() -> bool:
            slaves = self.replication()["slaves"].values()
            synced = sum(slave["in_sync"] and not slave["lag_bytes"] for slave in slaves)
            return synced == (self._slave_count if count is None else count)

        eventually(settled)

    def caught_up(self, number: int = 1) -> None:
        """Wait until the slave has, and shows, what the master shows; and knows its tables."""
        end = self.store().visible_offset
        eventually(lambda: self.slave_store(number).visible_offset >= end)

    def tables_synced(self, number: int = 1) -> None:
        """Wait until the slave fetched the tables once more."""
        before = self.replica(number)["tables_synced"]
        eventually(lambda: self.replica(number)["tables_synced"] >= before + 2)

    async def _start_slave(self, number: int, **changes: Any) -> None:
        assert self.name_server is not None
        path = self.slave_path(number)
        store = StoreConfig(str(path), **self._settings)
        config = BrokerConfig(
            store,
            broker_name="broker-a",
            broker_id=number,
            cluster_name=CLUSTER,
            name_servers=(str(self.name_server.address),),
            tls=self._tls,
        )
        config = config.but(**self._broker_settings).but(**changes)
        broker = self.slaves[number] = Broker(
            config, SYSTEM_CLOCK, Credentials(CLUSTER, "broker", SECRET)
        )
        await broker.start(create=True)
        assert await broker.registered(WAIT_S)

    async def _start_master(self, **changes: Any) -> None:
        assert self.name_server is not None
        store = StoreConfig(str(self.store_path()), **self._settings)
        config = BrokerConfig(
            store,
            broker_name="broker-a",
            cluster_name=CLUSTER,
            name_servers=(str(self.name_server.address),),
            tls=self._tls,
        )
        broker = Broker(
            config.but(**self._broker_settings).but(**changes),
            SYSTEM_CLOCK,
            Credentials(CLUSTER, "broker", SECRET),
        )
        self.brokers.insert(0, broker)
        await broker.start(create=False)
        assert await broker.registered(WAIT_S)
