"""A proxy in front of a broker that forwards every request and loses some answers to sends; and a
name server that leads clients to it.

    client ──requests──> proxy ──> broker (real)
           <──answers──  lost: swallowed, or the connection is closed instead

Frames are looked at to tell answers to sends from handshakes, heartbeats and routes; they are
forwarded as they came.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import ForeignClients, RemotingLimits
from rmq_ray.errors import RmqError
from rmq_ray.model.ids import Address
from rmq_ray.model.topics import BrokerData, QueueData, TopicRoute
from rmq_ray.ports import ClusterAddress
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.listener import Listener
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command, decode
from tests.support.brokers.accepting import Accepting
from tests.support.brokers.live_cluster import CLUSTER, SECRET, LiveCluster
from tests.support.brokers.tiny_cluster import TinyNameServer

SENDS = {
    RequestCode.SEND_RECORDS,
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_HALVES,
    RequestCode.END_TRANSACTIONS,
}
FRAME_MAX = 32 << 20


class LossyProxy:
    """In front of the first broker of ``cluster``, for ``topics`` (name -> queues). ``share`` of
    the answers to sends is lost. A ``Discovery``.
    """

    def __init__(
        self, cluster: LiveCluster, topics: dict[str, int], share: float, seed: int = 7
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._share = share
        self._chance = random.Random(seed)
        self._name_server = TinyNameServer("ns", {})
        self._listener: Listener | None = None
        self._server = Accepting(self._serve)
        self.lost: Counter[str] = Counter()

    def __enter__(self) -> LossyProxy:
        self._cluster.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.run(self._stop())

    def lookup(self) -> ClusterAddress:
        """See ``Discovery``."""
        return ClusterAddress(CLUSTER, (str(self._name_server.address),), SECRET)

    async def _start(self) -> None:
        port = await self._server.start()
        name = self._cluster.brokers[0]._config.broker_name
        for topic, queues in self._topics.items():
            data = BrokerData(CLUSTER, name, {0: str(Address("127.0.0.1", port))})
            self._name_server.routes[topic] = TopicRoute(
                (QueueData(name, queues, queues, 6),), (data,)
            )
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

    async def _serve(
        self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        address = self._cluster.brokers[0].address
        assert address is not None
        from_broker, to_broker = await asyncio.open_connection(address.host, address.port)
        codes: dict[int, int] = {}

        def note(command: Command) -> bool:
            codes[command.opaque] = command.code
            return True

        def lose(command: Command) -> bool:
            if (
                not command.is_response
                or codes.pop(command.opaque, 0) not in SENDS
                or self._chance.random() >= self._share
            ):
                return True
            how = self._chance.choice(("swallowed", "closed"))
            self.lost[how] += 1
            if how == "closed":
                to_client.transport.abort()
            return False

        pumps = [
            asyncio.create_task(_pump(from_client, to_broker, note)),
            asyncio.create_task(_pump(from_broker, to_client, lose)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            to_broker.close()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, forward: Callable[[Command], bool]
) -> None:
    """Whole frames from ``source`` to ``target``, those that ``forward`` lets through; ends with
    either connection.
    """
    try:
        while True:
            head = await source.readexactly(4)
            frame = await source.readexactly(min(int.from_bytes(head, "big"), FRAME_MAX))
            try:
                passes = forward(decode(memoryview(frame)))
            except RmqError:
                passes = True  # part of a handshake
            if passes:
                target.write(head + frame)
                await target.drain()
    except (asyncio.IncompleteReadError, OSError):
        return
