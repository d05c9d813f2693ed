"""Producing: batches, single sends, many threads, self-batched, columns; against the bare path, a
bare actor call, Ray's queue, Java and Kafka.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from typing import Any

import ray

import rmq_ray as rmq
from benchmarks import columns, floors, waking
from benchmarks.report import Figure, percentiles
from benchmarks.scene import Scene

SENDERS = 64
SECONDS = 6.0
ROUNDS = 3


def run(scene: Scene) -> None:
    """All of them, on one cluster."""
    scene.floors["actor call us"] = floors.actor_call_us()
    scene.floors["socket us"] = floors.socket_round_trip_us()
    scene.report.tell("floor: bare actor call p50", scene.floors["actor call us"], "us")
    scene.report.tell("floor: bare socket round trip p50", scene.floors["socket us"], "us")
    queue_rate = floors.queue_put_per_s()
    scene.report.tell("floor: ray.util.queue.Queue.put, one at a time", queue_rate, "msg/s")
    with scene.cluster() as mq:
        batches(scene, mq, queue_rate)
        two_producers(scene, mq)
        single(scene, mq, queue_rate)
        threads(scene, mq)
        self_batched(scene, mq)
        columns.run(scene, mq)


def batches(scene: Scene, mq: rmq.Cluster, queue_rate: float) -> None:
    """One producer actor, one broker actor, ASYNC_FLUSH; the bare path right before each run,
    medians of the rounds.
    """
    pwrite = floors.pwrite_mb_s(str(scene.directory))
    for label, size, batch, peer in (
        ("100 B x 1,000", 100, 1_000, "batch_100"),
        ("1 KB x 400", 1_024, 400, "batch_1k"),
    ):
        messages = scene.count(1_000_000 if size == 100 else 300_000)
        pairs = []
        for _ in range(ROUNDS):
            bare = floors.bare_produce_per_s(str(scene.directory), size, batch, messages)
            pairs.append((batched_rate(mq, f"batch-{size}", messages, size, batch), bare))
        rate, bare = (statistics.median(values) for values in zip(*pairs, strict=True))
        scene.floors[f"bare {size}"] = bare
        scene.report.add(
            Figure(f"produce, batches of {label}", rate, "msg/s", "bare path", bare, 0.75)
        )
        scene.report.add(
            Figure(
                f"produce, batches of {label}, bodies",
                rate * size / 1e6,
                "MB/s",
                "bare pwrite",
                pwrite,
            )
        )
        scene.report.add(
            Figure(
                f"produce, batches of {label}", rate, "msg/s", "ray.util.queue.Queue", queue_rate
            )
        )
        if (java := scene.peer(peer, "per_second")) is not None:
            scene.report.add(
                Figure(f"produce, batches of {label}", rate, "msg/s", "Java batch", java, 1.5)
            )


def batched_rate(mq: rmq.Cluster, topic: str, messages: int, size: int, batch: int) -> float:
    """Messages a second of one producer actor."""
    mq.admin.create_topic(topic, queues=4)
    producer = rmq.ProducerActor.options(num_cpus=0).remote(
        f"bench-{topic}", cluster=mq.name, send_timeout_ms=30_000
    )
    ray.get(producer.run.remote(send_batches, topic, messages // 10, size, batch))
    rate = ray.get(producer.run.remote(send_batches, topic, messages, size, batch))
    ray.get(producer.close.remote())
    ray.kill(producer)
    return float(rate)


def send_batches(
    producer: rmq.Producer, topic: str, messages: int, size: int, batch: int, depth: int = 2
) -> float:
    """Runs in the producer actor: ``depth`` threads, each sends one batch after another, as the
    Java client does.
    """
    made = [rmq.Message(topic, os.urandom(size)) for _ in range(batch)]
    turns = iter(range(messages // batch))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if next(turns, None) is None:
                    return
            producer.send_batch(made)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(depth)]
    begin = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return messages / (time.perf_counter() - begin)


def two_producers(scene: Scene, mq: rmq.Cluster) -> None:
    """Two producer actors at once."""
    messages = scene.count(1_000_000)
    mq.admin.create_topic("two", queues=4)
    producers: list[Any] = [
        rmq.ProducerActor.options(num_cpus=0).remote(
            f"two-{i}", cluster=mq.name, send_timeout_ms=30_000
        )
        for i in range(2)
    ]
    ray.get([p.run.remote(send_batches, "two", messages // 10, 100, 1_000) for p in producers])
    begin = time.perf_counter()
    ray.get([p.run.remote(send_batches, "two", messages, 100, 1_000) for p in producers])
    scene.report.tell(
        "produce, two producers, batches of 100 B x 1,000",
        2 * messages / (time.perf_counter() - begin),
        "msg/s",
    )
    for producer in producers:
        ray.kill(producer)


def single(scene: Scene, mq: rmq.Cluster, queue_rate: float) -> None:
    """One thread, each send waits for its answer."""
    mq.admin.create_topic("single", queues=4)
    with rmq.Producer("single", cluster=mq.name) as producer:
        times = timed_sends(producer, "single", scene.count(10_000))
    p50, p99 = percentiles(times, 50, 99)
    rate = 1e6 / statistics.fmean(times)
    scene.report.add(
        Figure(
            "send 100 B, p50",
            p50,
            "us",
            "bare actor call",
            scene.floors["actor call us"],
            0.2,
            True,
        )
    )
    scene.report.tell("send 100 B, p99", p99, "us")
    scene.report.add(
        Figure("send 100 B, one at a time", rate, "msg/s", "ray.util.queue.Queue", queue_rate)
    )
    if (java := scene.peer("sync_1", "p50_ms")) is not None:
        scene.report.add(Figure("send 100 B, p50", p50 / 1_000, "ms", "Java send", java, 1.0, True))


def timed_sends(producer: rmq.Producer, topic: str, count: int) -> list[float]:
    """Microseconds of each send."""
    body = b"x" * 100
    for _ in range(500):
        producer.send(topic, body)
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        producer.send(topic, body)
        times.append((time.perf_counter() - begin) * 1e6)
    return times


def threads(scene: Scene, mq: rmq.Cluster) -> None:
    """64 threads, each waits for its own answers."""
    mq.admin.create_topic("threads", queues=4)
    with rmq.Producer("threads", cluster=mq.name) as producer:
        rate = threaded_rate(producer, "threads", SENDERS, max(1.0, SECONDS * scene.scale))
    java = scene.peer("sync_64", "per_second")
    floor = waking.shared_sends_per_s(SENDERS, max(1.0, 2 * scene.scale))
    scene.report.add(
        Figure(
            f"send 100 B, {SENDERS} threads", rate, "msg/s", "locks and frames of nothing", floor
        )
    )
    scene.report.add(
        Figure(
            f"send 100 B, {SENDERS} threads",
            rate,
            "msg/s",
            "Java, 64 threads",
            java,
            None if java is None else 1.2,
        )
    )


def threaded_rate(producer: rmq.Producer, topic: str, count: int, seconds: float) -> float:
    """Sends a second of ``count`` threads, the first second not counted."""
    stop, done = threading.Event(), [0] * count
    body = b"x" * 100

    def work(i: int) -> None:
        while not stop.is_set():
            producer.send(topic, body)
            done[i] += 1

    workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(count)]
    for worker in workers:
        worker.start()
    time.sleep(1.0)
    before, begin = sum(done), time.perf_counter()
    time.sleep(seconds)
    rate = (sum(done) - before) / (time.perf_counter() - begin)
    stop.set()
    for worker in workers:
        worker.join()
    return rate


def self_batched(scene: Scene, mq: rmq.Cluster) -> None:
    """``send_async`` once per message, from one thread."""
    mq.admin.create_topic("async", queues=4)
    with rmq.Producer("async", cluster=mq.name) as producer:
        plain = async_rate(producer, scene.count(1_000_000), {})
        rich = async_rate(
            producer,
            scene.count(500_000),
            {"tag": "paid", "keys": ["o-1"], "properties": {"region": "eu", "shop": "7"}},
        )
    java = scene.peer("async", "per_second")
    scene.report.add(
        Figure(
            "send_async 100 B, one thread",
            plain,
            "msg/s",
            "Java asynchronous",
            java,
            None if java is None else 3.0,
        )
    )
    scene.report.add(
        Figure(
            "send_async 100 B, tag, key, two properties",
            rich,
            "msg/s",
            "Java asynchronous",
            java,
            None if java is None else 4.0,
        )
    )


def async_rate(producer: rmq.Producer, messages: int, options: dict[str, Any]) -> float:
    """Messages a second, every future's result taken."""
    body = b"x" * 100
    for future in [producer.send_async("async", body, **options) for _ in range(20_000)]:
        future.result(timeout=30)
    begin = time.perf_counter()
    futures = [producer.send_async("async", body, **options) for _ in range(messages)]
    producer.flush(30)
    rate = messages / (time.perf_counter() - begin)
    assert all(future.exception() is None for future in futures[:: max(1, messages // 1_000)])
    return rate
