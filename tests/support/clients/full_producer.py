"""A process whose producer is full: prints by how many bytes it grew. ``python -m
tests.support.clients.full_producer name-server cluster secret-hex body-bytes``.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import BrokerBusy
from rmq_ray.ports import ClusterAddress
from tests.support.brokers.tiny_cluster import FixedDiscovery


def resident_bytes() -> int:
    """What the process holds now."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )
    return int(line.split()[1]) * 1024


def fill(producer: Producer, body_bytes: int) -> int:
    """Send until the producer refuses; the number of messages taken."""
    futures: list[Future[Any]] = []
    try:
        for number in range(1_000_000):
            futures.append(
                producer.send_async(
                    "orders", number.to_bytes(4, "big") * (body_bytes // 4), timeout=30
                )
            )
    except BrokerBusy:
        return len(futures)
    raise AssertionError("a million messages and never full")


if __name__ == "__main__":
    server, cluster, secret, size = sys.argv[1:]
    discovery = FixedDiscovery(ClusterAddress(cluster, (server,), bytes.fromhex(secret)))
    full = Producer(
        "web",
        discovery=discovery,
        on_full="raise",
        frames_in_flight_max=256,
        send_timeout_ms=30_000,
    )
    full.send_oneway("orders", b"x")
    before = resident_bytes()
    taken = fill(full, int(size))
    print(taken, resident_bytes() - before, flush=True)
    os._exit(0)  # the broker answers nothing: an exit would wait for it until the time-out
