"""A proxy in front of a master that can be shut: nothing passes, nothing breaks, as in a partition.
A name server that leads clients to it.

    slave or consumer ──> valve ──> master

Shut: bytes wait; with ``break_connections`` connections end and new ones get no answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import ForeignClients, RemotingLimits
from rmq_ray.model.ids import Address
from rmq_ray.model.topics import BrokerData, QueueData, TopicRoute
from rmq_ray.ports import ClusterAddress
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.listener import Listener
from tests.support.brokers.accepting import Accepting
from tests.support.brokers.live_cluster import CLUSTER, SECRET
from tests.support.brokers.replicated import ReplicatedCluster
from tests.support.brokers.tiny_cluster import TinyNameServer


class Valve:
    """In front of the first master of ``cluster``."""

    def __init__(self, cluster: ReplicatedCluster) -> None:
        self._cluster = cluster
        self._server = Accepting(self._serve)
        self._flows: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._name_server = TinyNameServer("ns", {})
        self._listener: Listener | None = None
        self.address = ""

    def __enter__(self) -> Valve:
        self._cluster.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.run(self._stop())

    def shut(self, break_connections: bool = False) -> None:
        """From now on nothing passes."""
        self._cluster.run(self._shut(break_connections))

    def open(self) -> None:
        """What waited passes, and everything after it."""
        self._cluster.run(self._open())

    def leading_to(self, cluster: ReplicatedCluster, topic: str, queues: int = 4) -> Valve:
        """As a ``Discovery``: routes of ``topic`` name the valve as the master, and the real
        slaves.
        """
        slaves = {number: str(broker.address) for number, broker in cluster.slaves.items()}
        data = BrokerData(CLUSTER, "broker-a", {0: self.address, **slaves})
        for name in (topic, "%RETRY%g"):
            self._name_server.routes[name] = TopicRoute(
                (
                    QueueData(
                        "broker-a",
                        queues if name == topic else 1,
                        queues if name == topic else 1,
                        6,
                    ),
                ),
                (data,),
            )
        return self

    def lookup(self) -> ClusterAddress:
        """See ``Discovery``."""
        return ClusterAddress(CLUSTER, (str(self._name_server.address),), SECRET)

    async def _start(self) -> None:
        self._flows = asyncio.Event()
        self._flows.set()
        self.address = str(Address("127.0.0.1", await self._server.start()))
        self._listener = Listener(
            self._name_server,
            Credentials(CLUSTER, "name_server", SECRET),
            ForeignClients.CLOSED,
            RemotingLimits(),
            SYSTEM_CLOCK,
            "ns",
        )
        self._name_server.address = await self._listener.start("127.0.0.1", 0)

    async def _stop(self) -> None:
        await self._server.stop()
        if self._listener is not None:
            await self._listener.close()

    async def _shut(self, break_connections: bool) -> None:
        assert self._flows is not None
        self._flows.clear()
        if break_connections:
            for task in list(self._tasks):
                task.cancel()

    async def _open(self) -> None:
        assert self._flows is not None
        self._flows.set()

    async def _serve(
        self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        assert self._flows is not None
        await self._flows.wait()
        address = self._cluster.brokers[0].address
        assert address is not None
        from_master, to_master = await asyncio.open_connection(address.host, address.port)
        pumps = [
            asyncio.create_task(self._pump(from_client, to_master)),
            asyncio.create_task(self._pump(from_master, to_client)),
        ]
        self._tasks.update(pumps)
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for writer in (to_master, to_client):
                writer.transport.abort()
            for pump in pumps:
                pump.cancel()
                self._tasks.discard(pump)
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        assert self._flows is not None
        try:
            while data := await source.read(1 << 16):
                await self._flows.wait()
                target.write(data)
                await target.drain()
        except OSError:
            return
