"""How long a broker without slave is away after kill -9, what its memory does as the log grows, and
recovery from nothing but the log against a cold sequential read of it. At scale 1 the log has 1.3
GB; ``--scale 8`` is a log of 10 GB.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import ray

import rmq_ray as rmq
from benchmarks.produce import send_batches
from benchmarks.report import Figure, percentiles
from benchmarks.scene import Scene, rss_anonymous
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import StoreConfig
from rmq_ray.store.front.message_store import MessageStore

KILLS = 9
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
DERIVED = ("consumequeue", "index", "lock", "abort")


def run(scene: Scene) -> None:
    """Restart with the short checkpoint, then recovery without it."""
    messages = scene.count(1_000_000)
    with scene.cluster() as mq:
        grown = fill(mq, messages)
        size = f"{messages * 1.25e-6:.1f} GB of log"
        scene.report.add(
            Figure(
                f"broker's private memory, growth over {size}",
                max(grown, 0.001),
                "MB",
                "100 MB",
                100.0,
                1.0,
                less_is_better=True,
            )
        )
        away = [outage_s(mq) for _ in range(KILLS)]
        half, worst = percentiles(away, 50, 99)
        scene.report.add(
            Figure(
                f"kill -9 until the next send is acknowledged, {size}, p50",
                half,
                "s",
                "limit",
                1.5,
                1.0,
                less_is_better=True,
            )
        )
        scene.report.tell(
            f"kill -9 until the next send is acknowledged, {size}, worst of {KILLS}", worst, "s"
        )
        copy = scene.directory / "recovered"
        link_log(scene.directory / mq.name / "broker-a", copy)
    full_recovery(scene, copy)
    shutil.rmtree(copy)


def fill(mq: rmq.Cluster, messages: int) -> float:
    """Send them; MB of private memory that the broker gained behind the first tenth."""
    mq.admin.create_topic("recover", queues=4)
    pid = int(mq.status()["broker-a/0"]["pid"])
    producer: Any = rmq.ProducerActor.options(num_cpus=0).remote(
        "bench-recover", cluster=mq.name, send_timeout_ms=30_000
    )
    ray.get(producer.run.remote(send_batches, "recover", messages // 10, 1_024, 400))
    before = rss_anonymous(pid)
    ray.get(producer.run.remote(send_batches, "recover", messages - messages // 10, 1_024, 400))
    grown = rss_anonymous(pid) - before
    ray.get(producer.close.remote())
    ray.kill(producer)
    return grown / (1 << 20)


def outage_s(mq: rmq.Cluster) -> float:
    """Seconds from the kill to the next acknowledgement."""
    with rmq.Producer("outage", cluster=mq.name, send_timeout_ms=30_000) as producer:
        producer.send("outage", b"x")
        pid = int(mq.status()["broker-a/0"]["pid"])
        begin = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        producer.send("outage", b"y")
        return time.perf_counter() - begin


def link_log(store: Path, copy: Path) -> None:
    """The store without what is derived from its log, and without checkpoints; nothing is sent any
    more. Segments are hard links: they take no room.
    """
    copy.mkdir()
    for entry in store.iterdir():
        if entry.name in DERIVED or entry.name == "checkpoint":
            continue
        if entry.is_dir():
            shutil.copytree(
                entry,
                copy / entry.name,
                copy_function=os.link if entry.name == "commitlog" else shutil.copy2,
            )
        else:
            shutil.copy2(entry, copy)
    (copy / "rmq_ray" / "checkpoint").unlink(missing_ok=True)


def forget_cached(log: Path) -> None:
    """What the disk holds is not in memory any more, as far as this user may decide that."""
    os.sync()
    try:
        DROP_CACHES.write_text("1")
    except OSError:
        for file in log.iterdir():
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def cold_read_s(log: Path, size: int) -> float:
    """Seconds to read the log's first ``size`` bytes from the disk, 1 MiB at a time."""
    forget_cached(log)
    left, begin = size, time.perf_counter()
    for file in sorted(log.iterdir()):
        with file.open("rb", buffering=0) as handle:
            while left > 0 and (piece := handle.read(min(1 << 20, left))):
                left -= len(piece)
    return time.perf_counter() - begin


def full_recovery(scene: Scene, copy: Path) -> None:
    """Every record is read and checked, consume queues and index are built again."""
    store = MessageStore(
        StoreConfig(str(copy)),
        SYSTEM_CLOCK,
        broker_name="broker-a",
        store_host=("127.0.0.1", 10911),
    )
    store.open(create=False)
    forget_cached(copy / "commitlog")
    cpu, begin = _cpu_s(), time.perf_counter()
    size = store.recover().end
    seconds, cpu = time.perf_counter() - begin, _cpu_s() - cpu
    store.shutdown()
    read_s = min(cold_read_s(copy / "commitlog", size) for _ in range(2))
    mb = size / 1e6
    scene.report.tell("recovery from the log alone, CPU", cpu * 1e3 / mb, "ms/MB")
    scene.report.add(
        Figure(
            "recovery from the log alone, 1 KB records",
            mb / seconds,
            "MB/s",
            "cold sequential read",
            mb / read_s,
            0.3,
        )
    )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
