"""Reading beside the log without Spark: bytes of log a second of CPU, and what a reader at full
speed does to the sends of a busy producer.

The log is in the page cache: it has just been written. CPU is this process's own (one thread), so
that other work on the machine counts little.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import ray

import rmq_ray as rmq
from benchmarks.produce import batched_rate
from benchmarks.report import Figure, percentiles
from benchmarks.scene import Scene
from rmq_ray.client.scan.scan_plan import ScanPlan, open_reader, plan_scan
from rmq_ray.codec.arrow.arrow_rows import Rows, to_rows

SIZE, BATCH = 1_024, 100
CHUNK_BYTES = 4 << 20
MIB_LIMIT = 400.0
SHARE = 0.2
ROUNDS = 3
COLUMNS: tuple[tuple[str, tuple[str, ...], float | None], ...] = (
    ("records only", (), 1.0),
    ("bodies as Arrow", ("body",), 1.0),
    ("tag and body as Arrow", ("tag", "body"), None),
)


def run(scene: Scene) -> None:
    """1 KB rows in four queues."""
    with scene.cluster() as mq:
        most = batched_rate(mq, "scanned", scene.count(400_000, 20_000), SIZE, 400)
        plan = plan_scan(mq.discovery, "scanned", "earliest", "latest", 1)
        for name, columns, target in COLUMNS:
            speed = max(megabytes_per_cpu_s(plan, columns) for _ in range(ROUNDS))
            scene.report.add(
                Figure(
                    f"scan beside the log, 1 KB rows, {name}",
                    speed,
                    "MB/s",
                    "limit",
                    MIB_LIMIT if target else None,
                    target,
                )
            )
        scene.settle()
        beside_sends(scene, mq, plan, most * SHARE)
        plan.release()


def megabytes_per_cpu_s(plan: ScanPlan, columns: tuple[str, ...]) -> float:
    """Bytes of log for each second of this process's CPU time."""
    reader, done = open_reader(plan), 0
    begin = time.process_time()
    for split in plan.splits:
        for records, sizes in reader.read(split, CHUNK_BYTES):
            done += len(records)
            if columns:
                to_rows(split.queue.topic, split.queue.broker_name, records, sizes, Rows(columns))
    used = time.process_time() - begin
    reader.close()
    return done / used / 1e6


def beside_sends(scene: Scene, mq: rmq.Cluster, plan: ScanPlan, rate: float) -> None:
    """p99 of paced batches with and without a reader, in turns; medians of the rounds."""
    mq.admin.create_topic("paced", queues=4)
    producer: Any = rmq.ProducerActor.options(num_cpus=0).remote(
        "paced", cluster=mq.name, send_timeout_ms=30_000
    )
    seconds = max(1.0, 5.0 * scene.scale)
    ray.get(producer.run.remote(paced, rate, 0.5))
    ways = {"a reader of the files": plan, "a reader through the broker": elsewhere(plan)}
    alone: list[float] = []
    beside: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        alone.append(ray.get(producer.run.remote(paced, rate, seconds)))
        for name, way in ways.items():
            reading = scan_for.remote(way, seconds + 0.8)
            time.sleep(0.6)  # a worker is started for it
            beside[name].append(ray.get(producer.run.remote(paced, rate, seconds)))
            scene.report.tell(f"{name} beside the sends", ray.get(reading), "MB/s")
    ray.get(producer.close.remote())
    ray.kill(producer)
    for name, found in beside.items():
        what = f"send of {BATCH} x 1 KB at {SHARE:.0%} of the maximum beside {name}, p99"
        scene.report.add(
            Figure(
                what,
                sorted(found)[ROUNDS // 2],
                "ms",
                "without it",
                sorted(alone)[ROUNDS // 2],
                2.0,
                True,
            )
        )


def elsewhere(plan: ScanPlan) -> ScanPlan:
    """The plan as a reader on another host sees it: nothing lies beside it."""
    return replace(
        plan, splits=tuple(replace(split, host_id="another host") for split in plan.splits)
    )


def paced(producer: rmq.Producer, rate: float, seconds: float) -> float:
    """Runs in the producer actor: one batch after another at ``rate`` messages a second; p99 of a
    batch in ms.
    """
    made = [rmq.Message("paced", os.urandom(SIZE)) for _ in range(BATCH)]
    times = []
    begin = time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds:
        producer.send_batch(made)
        done = time.perf_counter()
        times.append((done - now) * 1e3)
        time.sleep(max(0.0, begin + len(times) * BATCH / rate - done))
    return percentiles(times, 99)[0]


@ray.remote(num_cpus=0)
def scan_for(plan: ScanPlan, seconds: float) -> float:
    """Reads the plan again and again; MB of log a second."""
    reader, done, begin = open_reader(plan), 0, time.perf_counter()
    while True:
        for split in plan.splits:
            for records, sizes in reader.read(split, CHUNK_BYTES):
                to_rows(split.queue.topic, split.queue.broker_name, records, sizes, Rows(("body",)))
                done += len(records)
                if (took := time.perf_counter() - begin) >= seconds:
                    reader.close()
                    return done / took / 1e6
