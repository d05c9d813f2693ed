"""Ten million messages pile up (50 with ``--scale 5``): the broker's private memory stays flat, and
it stores as fast at the end as at the beginning. Nothing is taken away meanwhile, so the disk needs
room for all of them; ``--directory`` says which.
"""

from __future__ import annotations

import shutil
import sys

import ray

import rmq_ray as rmq
from benchmarks.produce import send_batches
from benchmarks.report import Figure
from benchmarks.scene import PATIENCE_S, Scene, rss_anonymous

STEPS, STEP = 10, 1_000_000
BYTES_EACH = 300
"""Of log, queue and index for a message of 100 B, generously."""


def run(scene: Scene) -> None:
    """Ten steps of a million messages of 100 B each; the best of the first two is compared with the
    best of the last two.
    """
    step = scene.count(STEP)
    needed = STEPS * step * BYTES_EACH + (6 << 30)
    free = shutil.disk_usage(scene.directory).free
    if free < needed:
        sys.exit(
            f"growth needs {needed >> 30} GiB in {scene.directory}, {free >> 30} are free: give "
            f"--directory, or a smaller --scale"
        )
    held = f"{STEPS * step / 1e6:g} M"
    with scene.cluster() as mq:
        mq.admin.create_topic("pile", queues=4)
        pid = int(mq.status()["broker-a/0"]["pid"])
        producer = rmq.ProducerActor.options(num_cpus=0).remote(
            "pile", cluster=mq.name, send_timeout_ms=30_000
        )
        ray.get(producer.run.remote(send_batches, "pile", 300_000, 100, 1_000), timeout=PATIENCE_S)
        memory, rates = [rss_anonymous(pid)], []
        for _ in range(STEPS):
            sent = producer.run.remote(send_batches, "pile", step, 100, 1_000)
            rates.append(ray.get(sent, timeout=PATIENCE_S))
            memory.append(rss_anonymous(pid))
        ray.kill(producer)
    first, last = max(rates[:2]), max(rates[-2:])
    scene.report.add(
        Figure(f"produce at {held} messages", last, "msg/s", "produce at 0", first, 0.9)
    )
    grown = (max(memory[1:]) - memory[1]) / (1 << 20)
    scene.report.add(
        Figure(
            f"broker's private memory, growth over {held} messages",
            max(grown, 0.001),
            "MB",
            "100 MB",
            100.0,
            1.0,
            True,
        )
    )
