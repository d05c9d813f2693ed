"""CPU a message of the hot paths: all threads of the client and of a broker in a process of its
own, without Ray. Run by ``benchmarks.check`` once a turn, with the code of one of two commits.

    python -P benchmarks/cpu_paths.py TREE     prints {path: calls to make, one to warm up};
                                               for each path that comes in, microseconds a message
                                               of one call

``TREE``: the checkout whose code is measured; this file is always the newer one's, so that both do
the same work. It uses only what both have: the public clients and ``LiveCluster`` of the tests.
The broker does not poll, as what polling costs depends on time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BODY = b"x" * 100
BATCH = 1_000
BATCHES = 100
CALLS = 4
SENDS = 13
"""Of ``send``, which the machine's mood changes most: more and shorter calls."""
PATIENCE_S = 120.0
PUSHED: dict[str, dict[str, Any]] = {
    "push, default settings": {},
    "push, batch_size=32": {"batch_size": 32},
    'push, batch="arrow"': {"batch": "arrow"},
}


class Server:
    """A name server and a broker; ends with the block."""

    def __init__(self, directory: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, "serve", directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Server:
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        if not self.address:
            raise RuntimeError("the broker did not start; see what it wrote above")
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.communicate(timeout=PATIENCE_S)  # it ends with its input

    def lookup(self) -> Any:
        """As a ``Discovery``."""
        from rmq_ray.ports import ClusterAddress
        from tests.support.brokers import live_cluster

        return ClusterAddress(live_cluster.CLUSTER, (self.address,), live_cluster.SECRET)

    def cpu_s(self) -> float:
        """Of all its threads so far, exactly: Linux has a clock of each process."""
        return time.clock_gettime((~self._process.pid << 3) | 2)


def serve(directory: str) -> None:
    """The server's process: until its input ends."""
    from tests.support.brokers.live_cluster import LiveCluster

    store = {"segment_bytes": 256 << 20, "consume_queue_entries": 300_000}
    with LiveCluster(Path(directory), broker={"busy_poll_us": 0}, **store) as cluster:
        print(cluster.lookup().name_servers[0], flush=True)
        sys.stdin.read()


def measure() -> None:
    """Measure what is asked for, until the input ends."""
    from rmq_ray.client.producer.producer import Producer

    with (
        tempfile.TemporaryDirectory(prefix="rmq-ray-cpu-") as directory,
        Server(directory) as server,
        Producer("paths", discovery=server, send_timeout_ms=30_000) as producer,
    ):
        ways = sends(producer) | pushes(server)
        print(json.dumps({path: SENDS if path == "send" else CALLS for path in ways}), flush=True)
        for line in sys.stdin:
            print(cpu_us(server, ways[line.rstrip("\n")]), flush=True)


def cpu_us(server: Server, way: Callable[[], int]) -> float:
    """Microseconds of both processes for each message of one call."""
    began = time.process_time() + server.cpu_s()
    messages = way()
    return (time.process_time() + server.cpu_s() - began) / messages * 1e6


def sends(producer: Any) -> dict[str, Callable[[], int]]:
    """Calls that send, and say how many messages; the first one fills what ``pushes`` read."""
    import pyarrow as pa

    from rmq_ray.model.message import Message

    table = pa.table({"body": [BODY] * BATCH * 10, "id": [f"o-{n}" for n in range(BATCH * 10)]})

    def batched() -> int:
        for _ in range(BATCHES):
            producer.send_batch([Message("filled", BODY) for _ in range(BATCH)])
        return BATCHES * BATCH

    def columns() -> int:
        for _ in range(BATCHES // 2):
            producer.send_arrow("columns", table, body="body", key="id")
        return BATCHES // 2 * table.num_rows

    def single() -> int:
        for _ in range(BATCH):
            producer.send("single", BODY)
        return BATCH

    def futures() -> int:
        for future in [producer.send_async("async", BODY) for _ in range(BATCHES * BATCH)]:
            future.result(timeout=PATIENCE_S)
        return BATCHES * BATCH

    return {
        "send_batch of 1,000 new objects": batched,
        "send": single,
        "send_async, each result taken": futures,
        "send_arrow, body and key": columns,
    }


def pushes(server: Server) -> dict[str, Callable[[], int]]:
    """Calls that consume all that ``send_batch`` has sent, each with a group of its own."""
    return {
        name: lambda settings=settings, number=number: pushed(  # type: ignore[misc]
            server, f"group-{number}-{time.monotonic_ns()}", settings
        )
        for number, (name, settings) in enumerate(PUSHED.items())
    }


def pushed(server: Server, group: str, settings: dict[str, Any]) -> int:
    """Consume what all calls of ``send_batch`` stored."""
    from rmq_ray.client.push.push_consumer import PushConsumer

    wanted, came = CALLS * BATCHES * BATCH, threading.Event()
    lock, count = threading.Lock(), 0

    def listener(batch: Any, _ctx: Any) -> None:
        nonlocal count
        with lock:
            count += batch.num_rows if hasattr(batch, "num_rows") else len(batch)
            if count >= wanted:
                came.set()

    with PushConsumer(
        group,
        listener=listener,
        subscriptions={"filled": "*"},
        start_from="first",
        discovery=server,
        **settings,
    ):
        if not came.wait(PATIENCE_S):
            raise RuntimeError(f"only {count} of {wanted} messages came")
    return wanted


def main() -> None:
    """See the module."""
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
        return
    import rmq_ray

    used, tree = Path(rmq_ray.__file__).resolve().parent.parent, Path(sys.argv[1]).resolve()
    if used != tree:
        sys.exit(f"rmq_ray is that of {used}, not of {tree}: set PYTHONPATH to the tree")
    measure()


if __name__ == "__main__":
    main()
