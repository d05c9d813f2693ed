"""How long a broker is away after kill -9, and what a GB of log costs when nothing but the log can be trusted."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import rmq_ray as rmq
from benchmarks.produce import batched_rate
from benchmarks.report import Figure
from benchmarks.scene import Scene
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import StoreConfig
from rmq_ray.store.message_store import MessageStore


def run(scene: Scene) -> None:
    """Restart with the short checkpoint, then recovery without it."""
    messages = scene.count(1_000_000)
    with scene.cluster() as mq:
        batched_rate(mq, "recover", messages, 1_024, 400)
        for number in range(3):
            scene.report.tell(f"kill -9 until the next send is acknowledged, {messages * 1.3 / 1e6:.1f} GB of log, try {number + 1}", outage_s(mq), "s")
        path = scene.directory / mq.name / "broker-a"
        copy = scene.directory / "recovered"
        shutil.copytree(path, copy)  # nothing is sent any more: what a power loss would leave, but for the order of syncs
    full_recovery(scene, copy)
    shutil.rmtree(copy)


def outage_s(mq: rmq.Cluster) -> float:
    """Seconds from the kill to the next acknowledgement."""
    with rmq.Producer("outage", cluster=mq.name, send_timeout_ms=30_000) as producer:
        producer.send("outage", b"x")
        pid = int(mq.status()["broker-a/0"]["pid"])
        begin = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        producer.send("outage", b"y")
        return time.perf_counter() - begin


def full_recovery(scene: Scene, copy: Path) -> None:
    """Everything but the log removed: consume queues and index are built again."""
    for name in ("consumequeue", "index"):
        shutil.rmtree(copy / name, ignore_errors=True)
    (copy / "rmq_ray" / "checkpoint").unlink(missing_ok=True)
    log_bytes = 0
    begin = time.perf_counter()
    for file in sorted((copy / "commitlog").iterdir()):
        with file.open("rb", buffering=0) as handle:
            while piece := handle.read(1 << 20):
                log_bytes += len(piece)
    read_s = time.perf_counter() - begin
    store = MessageStore(StoreConfig(str(copy)), SYSTEM_CLOCK, broker_name="broker-a", store_host=("127.0.0.1", 10911))
    store.open(create=False)
    begin = time.perf_counter()
    store.recover()
    seconds = time.perf_counter() - begin
    store.shutdown()
    gb = log_bytes / 1e9
    scene.report.tell("recovery from the log alone, seconds per GB", seconds / gb, "s/GB")
    scene.report.add(Figure("recovery from the log alone", gb / seconds, "GB/s", "reading the files", gb / read_s))
