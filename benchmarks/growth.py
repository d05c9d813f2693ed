"""Ten million messages pile up: the broker's private memory stays flat, and it stores as fast at
the end as at the beginning.
"""

from __future__ import annotations

import ray

import rmq_ray as rmq
from benchmarks.produce import send_batches
from benchmarks.report import Figure
from benchmarks.scene import PATIENCE_S, Scene, rss_anonymous

STEP = 1_000_000


def run(scene: Scene) -> None:
    """Ten steps of a million messages of 100 B."""
    steps = max(2, int(10 * scene.scale))
    with scene.cluster() as mq:
        mq.admin.create_topic("pile", queues=4)
        pid = int(mq.status()["broker-a/0"]["pid"])
        producer = rmq.ProducerActor.options(num_cpus=0).remote(
            "pile", cluster=mq.name, send_timeout_ms=30_000
        )
        ray.get(producer.run.remote(send_batches, "pile", 300_000, 100, 1_000), timeout=PATIENCE_S)
        memory, rates = [rss_anonymous(pid)], []
        for _ in range(steps):
            sent = producer.run.remote(send_batches, "pile", STEP, 100, 1_000)
            rates.append(ray.get(sent, timeout=PATIENCE_S))
            memory.append(rss_anonymous(pid))
        ray.kill(producer)
    first, last = max(rates[:2]), max(rates[-2:])
    scene.report.add(
        Figure(f"produce at {steps} M messages", last, "msg/s", "produce at 0", first, 0.9)
    )
    grown = (max(memory[1:]) - memory[1]) / (1 << 20)
    scene.report.add(
        Figure(
            f"broker's private memory, growth over {steps} M messages",
            max(grown, 0.001),
            "MB",
            "100 MB",
            100.0,
            1.0,
            True,
        )
    )
