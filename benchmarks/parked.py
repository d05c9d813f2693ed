"""What 10,000 parked pulls on one broker cost its sends: the same sends without and with them, in
turns.
"""

from __future__ import annotations

import statistics
import time

import rmq_ray as rmq
from benchmarks.report import Figure
from benchmarks.scene import Scene
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits
from rmq_ray.model.ids import Address
from rmq_ray.model.pulling import PullSysFlag
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import BINARY, Command
from rmq_ray.remoting.wire.records import PullRecords, pack_pull

PARKED = 10_000
CONNECTIONS = 10
QUEUES = 100
ROUNDS = 5


def run(scene: Scene) -> None:
    """Single sends and batches; the median of the rounds' ratios."""
    seconds = max(0.4, 1.0 * scene.scale)
    with scene.cluster() as mq, rmq.Producer("parked", cluster=mq.name) as producer:
        mq.admin.create_topic("busy", queues=4)
        mq.admin.create_topic("silent", queues=QUEUES)
        for _ in range(200):
            producer.send("busy", b"x" * 100)
        rates: dict[str, list[tuple[float, float]]] = {"single sends": [], "batches of 1,000": []}
        for _ in range(ROUNDS):
            free = {name: rate(producer, name, seconds) for name in rates}
            connections = park(mq)
            for name, before in free.items():
                rates[name].append((before, rate(producer, name, seconds)))
            for connection in connections:
                connection.close()
        for name, pairs in rates.items():
            before = statistics.median(pair[0] for pair in pairs)
            ratio = statistics.median(after / free for free, after in pairs)
            scene.report.add(
                Figure(
                    f"{name} beside {PARKED:,} parked pulls",
                    before * ratio,
                    "msg/s",
                    "without them",
                    before,
                    0.95,
                )
            )


def rate(producer: rmq.Producer, what: str, seconds: float) -> float:
    """Messages of 100 bytes a second, from one thread."""
    batch = [rmq.Message("busy", b"x" * 100) for _ in range(1_000)]
    begin, sent = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < seconds:
        if what == "single sends":
            producer.send("busy", b"x" * 100)
            sent += 1
        else:
            producer.send_batch(batch)
            sent += len(batch)
    return sent / passed


def park(mq: rmq.Cluster) -> list[Connection]:
    """Hold ``PARKED`` pulls of empty queues; they end with the connections."""
    found = mq.discovery.lookup()
    limits = RemotingLimits()
    address = Address.parse(mq.addresses["broker-a"][0])
    opened = [
        Connection(
            address, Credentials(found.cluster, "broker", found.secret), limits, SYSTEM_CLOCK
        )
        for _ in range(CONNECTIONS)
    ]
    before = int(mq.status()["broker-a/0"]["parked_pulls"])
    flags = int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION)
    for number in range(PARKED):
        asked = PullRecords(
            "parked", "silent", number % QUEUES, 0, 32, 1 << 20, flags, 0, 30_000, 0, "TAG", "*"
        )
        command = Command(RequestCode.PULL_RECORDS, body=pack_pull(asked), serialize=BINARY)
        opened[number % CONNECTIONS].request_async(command, 60_000, lambda _outcome: None)
    deadline = time.monotonic() + 30
    while int(mq.status()["broker-a/0"]["parked_pulls"]) - before < PARKED:
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {mq.status()['broker-a/0']['parked_pulls']} pulls are parked")
        time.sleep(0.05)
    return opened
