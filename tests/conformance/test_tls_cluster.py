"""A cluster that takes TLS only, as clients see it: producers of threads and of loops, a consumer,
a scan of a plan that travelled, and one without certificates.
"""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import pytest

from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.scan.scan_plan import plan_scan
from rmq_ray.client.scan.stream_split_reader import StreamSplitReader
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import ClientAuth
from rmq_ray.errors import RmqError
from rmq_ray.ports import ClusterAddress
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.certificates import Certificates

pytestmark = pytest.mark.timeout(120)


class _Plain:
    """A discovery that knows everything but the certificates."""

    def __init__(self, where: ClusterAddress) -> None:
        self._where = where

    def lookup(self) -> ClusterAddress:
        return ClusterAddress(self._where.cluster, self._where.name_servers, self._where.secret)


@pytest.mark.parametrize("asked", [ClientAuth.NONE, ClientAuth.REQUIRE])
def test_everything_that_connects_speaks_tls(tmp_path: Path, asked: ClientAuth) -> None:
    files = Certificates(tmp_path / "pem")
    certificate, key = files.client_pair
    tls = files.settings(client_auth=asked).but(client_certificate=certificate, client_key=key)

    async def send() -> None:
        async with AsyncProducer("async", discovery=cluster, send_timeout_ms=20_000) as producer:
            await producer.send("orders", b"of a loop")

    with LiveCluster(tmp_path, tls=tls) as cluster:
        assert cluster.brokers[0].status()["tls"]["mode"] == "enforcing"
        with Producer("sync", discovery=cluster, send_timeout_ms=20_000) as producer:
            producer.send("orders", b"of a thread")
        asyncio.run(send())
        with plan_scan(cluster, "orders", "earliest", "latest", 1) as planned:
            plan = pickle.loads(pickle.dumps(planned))
            reader = StreamSplitReader(plan.credentials, SYSTEM_CLOCK, tls=plan.tls)
            found = sum(
                len(sizes) for split in plan.splits for _, sizes in reader.read(split, 1 << 16)
            )
            reader.close()
        assert found == 2
        with (
            pytest.raises(RmqError, match="TLS"),
            Producer("plain", discovery=_Plain(cluster.lookup())) as producer,
        ):
            producer.send("orders", b"in the clear")
