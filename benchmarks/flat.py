"""Memory while Spark reads many rows: the driver's must stay flat; those of the executors and their
Python workers are shown.

The topic is read once to warm up and then twice; a thread looks at the processes twice a second.
The driver's is this process's private memory and the heap of its JVM after a collection, compared
before and after; the greatest of the others is that of any look.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.dataframe import PIECE, send, sums_by_tag, tree_cpu
from benchmarks.report import Figure
from benchmarks.scene import Scene, rss_anonymous

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLAT_BYTES = 64 << 20
LOOK_S = 0.5
KINDS = {
    "Python worker": "-m\0rmq_ray.spark.workers",
    "executor's JVM": "\0io.ray.runtime.runner.worker.DefaultWorker",
    "driver's JVM": "SparkSubmit",
}
"""What stands in their command lines. RayDP's master is a worker of Ray's as well, and smaller."""


def run(scene: Scene) -> None:
    """20 M x 100 B."""
    from rmq_ray import spark as mqs

    with scene.cluster() as mq, ExitStack() as ends:
        count = scene.count(20_000_000, PIECE) // PIECE * PIECE
        send(mq, "many", 100, count)
        session = mqs.session(executor_cores=2, executor_memory="1GB")
        ends.callback(mqs.stop)
        scene.settle()
        flat(
            scene,
            session,
            lambda: mqs.read_topic(session, "many", columns=["tag", "body"], cluster=mq.name),
            count,
        )


def flat(scene: Scene, session: SparkSession, frame: Callable[[], DataFrame], rows: int) -> None:
    """How much this process and the heap of the driver's JVM grow while many rows are read, against
    a limit of 64 MB together.
    """
    jvm: Any = session.sparkContext._jvm
    sums_by_tag(frame())
    before = rss_anonymous(os.getpid()) + heap_bytes(jvm)
    begin = time.perf_counter()
    with looking() as looks:
        for _ in range(2):
            sums = sums_by_tag(frame())
            assert sums, "no rows"
    taken = (time.perf_counter() - begin) / 2
    grown = max(0, rss_anonymous(os.getpid()) + heap_bytes(jvm) - before)
    scene.report.tell(f"sum of crc32(body) by tag, {rows:,} rows of 100 B", rows / taken, "rows/s")
    scene.report.add(
        Figure(
            f"driver's memory, growth over 2 x {rows:,} rows",
            max(grown, 1) / 1e6,
            "MB",
            "limit",
            FLAT_BYTES / 1e6,
            1.0,
            True,
        )
    )
    for kind in KINDS:
        seen = [look[kind] for look in looks if kind in look]
        if seen:
            half = len(seen) // 2
            scene.report.tell(
                f"{kind}, private memory, greatest of the first half",
                max(seen[: half or 1]) / 1e6,
                "MB",
            )
            scene.report.tell(
                f"{kind}, private memory, greatest of the second half", max(seen[half:]) / 1e6, "MB"
            )


@contextmanager
def looking() -> Iterator[list[dict[str, int]]]:
    """Private memory of the largest process of each kind, look by look, until the block ends."""
    looks: list[dict[str, int]] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_S):  # ends: with the block
            looks.append(memory())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield looks
    finally:
        ended.set()
        thread.join()


def memory() -> dict[str, int]:
    """Bytes by kind, of this process's descendants."""
    found: dict[str, int] = {}
    for pid in tree_cpu(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text()
            size = rss_anonymous(pid)
        except OSError:
            continue  # it ended meanwhile
        for kind, part in KINDS.items():
            if part in command:
                found[kind] = max(size, found.get(kind, 0))
    return found


def heap_bytes(jvm: Any) -> int:
    """What the driver's JVM holds after a collection."""
    runtime = jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    return int(runtime.totalMemory() - runtime.freeMemory())
