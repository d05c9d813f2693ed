"""Who asks a name server right behind a broker's start is told of it, or behind the first send to
a topic; and a name server that is away does not keep a broker from starting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.scan.scan_plan import plan_scan
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import BrokerConfig, StoreConfig
from rmq_ray.model.ids import MessageQueue
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.server.broker.broker import Broker
from tests.support.brokers.live_cluster import CLUSTER, SECRET, LiveCluster


def test_right_behind_the_start_a_topic_is_made_on_every_broker(tmp_path: Path) -> None:
    for number in range(3):
        with LiveCluster(tmp_path / str(number), brokers=3) as cluster:
            admin = Admin(cluster)
            admin.create_topic("everywhere", queues=1)
            assert [row["broker"] for row in admin.describe_topic("everywhere")] == [
                "broker-a",
                "broker-b",
                "broker-c",
            ]
            admin.close()


def test_a_broker_without_its_name_server_serves_and_says_so(tmp_path: Path) -> None:
    async def run(name_servers: tuple[str, ...]) -> bool:
        store = StoreConfig(str(tmp_path / "store"), segment_bytes=1 << 18, preallocate=False)
        config = BrokerConfig(store, cluster_name=CLUSTER, name_servers=name_servers)
        broker = Broker(config, SYSTEM_CLOCK, Credentials(CLUSTER, "broker", SECRET))
        await broker.start(create=True)
        try:
            return await broker.registered(0.3)
        finally:
            await broker.stop()

    assert asyncio.run(run(("127.0.0.1:1",))) is False
    assert asyncio.run(run(())) is True


def test_a_topic_that_a_send_made_is_read_from_every_broker_as_soon_as_they_acknowledged(
    tmp_path: Path,
) -> None:
    """Also where the name server hears of it only when it is on disk."""
    with LiveCluster(tmp_path, brokers=2) as cluster:
        for broker in cluster.brokers:
            hear_late(broker)
        queues = [MessageQueue("just-made", f"broker-{letter}", 0) for letter in "ab"]
        with Producer("p", discovery=cluster) as producer:
            for queue in queues:
                producer.send("just-made", b"x", queue=queue)
                found = plan_scan(cluster, "just-made", "earliest", "latest", 4)
                assert [split.queue for split in found.splits] == queues[: 1 + queues.index(queue)]


def hear_late(broker: Any) -> None:
    """Registrations wait until the broker asks whether the name server knows a topic."""
    asked = asyncio.Event()
    tables, told = broker._core.tables, broker._registration
    register, when_known = told._register, tables.when_known

    async def registers(server: object, body: bytes) -> None:
        await asked.wait()
        await register(server, body)

    def asks(then: Callable[[], None]) -> None:
        when_known(then)
        asked.set()

    told._register, tables.when_known = registers, asks
