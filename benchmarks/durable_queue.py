"""`rmq.Queue`, which is durable, beside `ray.util.queue.Queue`, which is an actor's memory: the
same calls in turns.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from ray.util.queue import Queue as RaysQueue

import rmq_ray as rmq
from benchmarks.scene import ROUNDS, Scene

BATCH, PREFETCH = 1_000, 256


def run(scene: Scene) -> None:
    """Items put and got again by one thread of this process: one at a time, and in batches. What
    durability costs are the ratios: Ray's queue keeps nothing, ours is with the kernel or on the
    disk (``flush="sync"``) when ``put`` returns.
    """
    with (
        scene.cluster() as mq,
        scene.cluster(flush="sync") as synced,
        rmq.Queue("values", cluster=mq.name) as ours,
        rmq.Queue("ahead", cluster=mq.name, prefetch=PREFETCH) as ahead,
        rmq.Queue("flushed", cluster=synced.name) as flushed,
    ):
        rays = RaysQueue(actor_options={"num_cpus": 0})
        scene.settle()
        for what, once, goal in (
            ("put and get of 1 KB, one at a time", _single, 8.0),
            (f"put_nowait_batch and get_nowait_batch of {BATCH} x 1 KB", _batched, 1.5),
        ):
            count = scene.count(1_000 if once is _single else 20_000, least=BATCH)
            queues = {
                "Ray's queue": rays,
                "rmq.Queue": ours,
                f"rmq.Queue, {PREFETCH} taken in advance": ahead,
                'rmq.Queue, flush="sync"': flushed,
            }
            rates: dict[str, list[float]] = {name: [] for name in queues}
            for _ in range(ROUNDS + 1):  # the first one warms up and does not count
                for name, queue in queues.items():
                    rates[name].append(once(queue, count))
            base = statistics.median(rates.pop("Ray's queue")[1:])
            scene.report.tell(f"{what}, Ray's queue", base, "msg/s")
            for name, found in rates.items():
                rate = statistics.median(found[1:])
                aim = None if queues[name] is flushed else goal
                scene.report.rate(f"{what}, {name}", rate, "Ray's queue", base, aim)
        rays.shutdown(force=True)


def _fresh(count: int) -> list[bytes]:
    """Each an object of its own: pickle writes one that is repeated only once."""
    return [b"%08d" % number + bytes(1_016) for number in range(count)]


def _single(queue: Any, count: int) -> float:
    bodies = _fresh(count)
    began = time.perf_counter()
    for body in bodies:
        queue.put(body)
    for _ in range(count):
        queue.get()
    return count / (time.perf_counter() - began)


def _batched(queue: Any, count: int) -> float:
    batches = [_fresh(BATCH) for _ in range(max(1, count // BATCH))]
    began = time.perf_counter()
    for bodies in batches:
        queue.put_nowait_batch(bodies)
        queue.get_nowait_batch(BATCH)
    return len(batches) * BATCH / (time.perf_counter() - began)
