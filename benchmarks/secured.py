"""What TLS costs: the same sends to a cluster that takes TLS only and to a plain one, in turns.

Both clusters run at once, so that the machine's mood is the same for both; while one is measured
the other is idle.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack

import ray

import rmq_ray as rmq
from benchmarks.produce import send_batches, timed_sends
from benchmarks.scene import PATIENCE_S, ROUNDS, Scene, producer_actor
from rmq_ray.cli.tls import make_files, tls_of

SIZE, BATCH = 1_024, 400
BATCHED_MIN, SINGLE_MIN = 0.6, 0.8
"""Of the plain rate. Batches pay for encrypting each byte twice, on both sides; single sends mostly
for their round trip.
"""


def run(scene: Scene) -> None:
    """Batches and single sends over TLS against plain ones."""
    pem = scene.directory / "pem"
    make_files(pem, (), 30)
    with ExitStack() as ends:
        plain = ends.enter_context(scene.cluster())
        secured = ends.enter_context(scene.cluster(tls=tls_of(str(pem))))
        clusters = {"plain": plain, "TLS": secured}
        scene.settle()
        compared(
            scene,
            f"send_batch of 1 KB x {BATCH}, new objects",
            {name: batched(scene, mq, ends) for name, mq in clusters.items()},
            BATCHED_MIN,
        )
        compared(
            scene,
            "send 100 B, one at a time",
            {name: single(scene, mq, ends) for name, mq in clusters.items()},
            SINGLE_MIN,
        )


def compared(scene: Scene, what: str, ways: dict[str, Callable[[], float]], least: float) -> None:
    """The medians of rounds that take turns; the second of ``ways`` is judged by the first."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS + 1):  # the first one warms up and does not count
        for name, once in ways.items():
            rates[name].append(once())
    (before, base), (name, rate) = (
        (name, statistics.median(found[1:])) for name, found in rates.items()
    )
    scene.report.tell(f"{what}, {before}", base, "msg/s")
    scene.report.rate(f"{what}, {name}", rate, before, base, least)


def batched(scene: Scene, mq: rmq.Cluster, ends: ExitStack) -> Callable[[], float]:
    """One producer actor, two threads."""
    producer = ends.enter_context(producer_actor(mq, "batched"))
    messages = scene.count(300_000, least=BATCH)

    def once() -> float:
        sent = producer.run.remote(send_batches, "batched", messages, SIZE, BATCH)
        return float(ray.get(sent, timeout=PATIENCE_S))

    return once


def single(scene: Scene, mq: rmq.Cluster, ends: ExitStack) -> Callable[[], float]:
    """One thread of this process, each send waits for its answer."""
    mq.admin.create_topic("single", queues=4)
    producer = ends.enter_context(rmq.Producer("single", cluster=mq.name))
    return lambda: 1e6 / statistics.fmean(timed_sends(producer, "single", scene.count(4_000)))
