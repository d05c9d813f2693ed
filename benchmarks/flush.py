"""SYNC_FLUSH: 1, 16 and 64 threads of single sends, against the same under ASYNC_FLUSH and a bare
fdatasync.
"""

from __future__ import annotations

import rmq_ray as rmq
from benchmarks import floors
from benchmarks.produce import threaded_rate
from benchmarks.report import Figure
from benchmarks.scene import Scene


def run(scene: Scene) -> None:
    """Both modes in one run."""
    p50, p99 = floors.fdatasync_ms(str(scene.directory))
    scene.report.tell("floor: pwrite of 1 KiB and fdatasync, p50", p50, "ms")
    scene.report.tell("floor: pwrite of 1 KiB and fdatasync, p99", p99, "ms")
    queue_rate = floors.queue_put_per_s()
    seconds = max(1.0, 4.0 * scene.scale)
    rates: dict[tuple[str, int], float] = {}
    for mode in ("async", "sync"):
        with scene.cluster(flush=mode) as mq:
            mq.admin.create_topic("flush", queues=4)
            for threads in (1, 16, 64):
                with rmq.Producer(f"flush-{threads}", cluster=mq.name) as producer:
                    rates[mode, threads] = threaded_rate(producer, "flush", threads, seconds)
    for threads, target in ((1, None), (16, None), (64, 0.9)):
        scene.report.add(
            Figure(
                f"SYNC_FLUSH, {threads} threads of send",
                rates["sync", threads],
                "msg/s",
                "ASYNC_FLUSH",
                rates["async", threads],
                target,
            )
        )
    scene.report.add(
        Figure(
            "SYNC_FLUSH, 64 threads of send",
            rates["sync", 64],
            "msg/s",
            "fdatasync each",
            1_000 / p50,
        )
    )
    scene.report.add(
        Figure(
            "SYNC_FLUSH, 64 threads of send",
            rates["sync", 64],
            "msg/s",
            "ray.util.queue.Queue",
            queue_rate,
        )
    )
    if (java := scene.peer("sync_flush_64", "per_second")) is not None:
        scene.report.add(
            Figure(
                "SYNC_FLUSH, 64 threads of send",
                rates["sync", 64],
                "msg/s",
                "Java SYNC_FLUSH",
                java,
            )
        )
