"""A name server and brokers of ours in one process without Ray, open to Apache RocketMQ's own
clients: ``python -m tests.support.brokers.open_cluster``.

Arguments: directory, flush mode (``async``/``sync``), seconds to live at most, settings of the
brokers as JSON (or none), how many masters (or one); with two, all ports take TLS, too. Prints the
name server's address when all serve.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import (
    BrokerConfig,
    FlushMode,
    ForeignClients,
    NameServerConfig,
    StoreConfig,
    TlsMode,
    TlsSettings,
)
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.server.broker.broker import Broker
from rmq_ray.server.namesrv.name_server_runner import NameServerRunner
from tests.support.certificates import Certificates

ROOT = Path(__file__).resolve().parents[3]
SECRET = b"interop"
CLUSTER = "interop"
SEGMENT_BYTES = 64 << 20
"""A log of the default size takes 2 GiB of disk; many of these clusters live beside one another."""


@contextmanager
def opened(
    directory: Path, lives_s: int, masters: int = 1, **settings: object
) -> Iterator[tuple[str, int]]:
    """This module in a process of its own; yields the name server's address and the process id.
    ``settings``: of the brokers.
    """
    arguments = (directory, "async", lives_s, json.dumps(settings), masters)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.brokers.open_cluster", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.kill()
        process.communicate(timeout=30)


async def serve(
    directory: str, flush: FlushMode, seconds: float, settings: dict[str, Any], masters: int
) -> None:
    """All parties on one loop, until the time is over."""
    tls = TlsSettings()
    if masters > 1:
        tls = Certificates(Path(directory) / "pem").settings(TlsMode.PERMISSIVE)
    runner = NameServerRunner(
        NameServerConfig(
            cluster_name=CLUSTER, directory=f"{directory}/ns", foreign=ForeignClients.OPEN, tls=tls
        ),
        SECRET,
        SYSTEM_CLOCK,
    )
    running = asyncio.create_task(runner.run())
    while runner.address is None and not running.done():
        await asyncio.sleep(0.01)
    assert runner.address is not None, runner.error
    brokers = []  # kept: nothing else refers to them
    for name in ("broker-a", "broker-b")[:masters]:
        folder = "store" if masters == 1 else name
        config = BrokerConfig(
            StoreConfig(f"{directory}/{folder}", flush=flush, segment_bytes=SEGMENT_BYTES),
            cluster_name=CLUSTER,
            broker_name=name,
            foreign=ForeignClients.OPEN,
            name_servers=(str(runner.address),),
            tls=tls,
        ).but(**settings)
        broker = Broker(config, SYSTEM_CLOCK, Credentials(CLUSTER, "broker", SECRET))
        await broker.start(create=True)
        brokers.append(broker)
    for broker in brokers:
        await broker.registered(20)
    print(runner.address, flush=True)
    await asyncio.sleep(seconds)


if __name__ == "__main__":
    asyncio.run(
        serve(
            sys.argv[1],
            FlushMode(sys.argv[2]),
            float(sys.argv[3]),
            json.loads(sys.argv[4]) if len(sys.argv) > 4 else {},
            int(sys.argv[5]) if len(sys.argv) > 5 else 1,
        )
    )
