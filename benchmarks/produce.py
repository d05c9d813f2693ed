"""Producing: batches, single sends, many threads, self-batched, columns; against the bare path, a
bare actor call, Ray's queue, Java and Kafka.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import Any

import ray

import rmq_ray as rmq
from benchmarks import columns, floors, waking
from benchmarks.report import Figure, percentiles
from benchmarks.scene import (
    PATIENCE_S,
    ROUNDS,
    Crew,
    Scene,
    median_of_rounds,
    producer_actor,
)
from benchmarks.settle import settle

SENDERS = 64
SECONDS = 6.0


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
    """One producer actor, one broker actor, ASYNC_FLUSH; all ways and the bare path in turns."""
    pwrite = floors.pwrite_mb_s(str(scene.directory))
    for label, size, batch, peer, goals in (
        (
            "100 B x 1,000",
            100,
            1_000,
            "batch_100",
            {"new objects": 1.0, "bodies without objects": 1.3},
        ),
        ("1 KB x 400", 1_024, 400, "batch_1k", {"new objects": 1.8}),
    ):
        kafka = scene.peer("kafka_100" if size == 100 else "kafka_1k", "per_second")
        messages = scene.count(1_500_000 if size == 100 else 500_000)
        rates: dict[str, list[float]] = {way: [] for way in (*WAYS, "bare path")}
        with producer_actor(mq, f"batch-{size}") as producer:
            for _ in range(ROUNDS + 1):
                settle()
                bare = floors.bare_produce_per_s(str(scene.directory), size, batch, messages)
                rates["bare path"].append(bare)
                for way in WAYS:
                    settle()
                    sent = producer.run.remote(
                        send_batches, f"batch-{size}", messages, size, batch, way
                    )
                    rates[way].append(ray.get(sent, timeout=PATIENCE_S))
        # The first round of each way warms up and does not count.
        found = {way: statistics.median(values[1:]) for way, values in rates.items()}
        bare, rate = found["bare path"], found["new objects"]
        java = scene.peer(peer, "per_second")
        tell = scene.report.rate
        for way in WAYS:
            # Goals are those of the code that a user types.
            typed = way == "new objects"
            name = f"send_batch of {label}, {way}"
            tell(name, found[way], "bare path", bare, 0.75 if typed else None)
            if java is not None and way != "reused objects":
                tell(name, found[way], "Java, new objects", java, goals.get(way))
            if way in NOT_WAITED_FOR:
                tell(name, found[way], "Kafka, messages made once", kafka, 1.0)
        name = f"send_batch of {label}, new objects"
        tell(name, rate, "ray.util.queue.Queue", queue_rate, None)
        scene.report.add(
            Figure(f"{name}: bodies", rate * size / 1e6, "MB/s", "bare pwrite", pwrite)
        )


def batched_rate(mq: rmq.Cluster, topic: str, messages: int, size: int, batch: int) -> float:
    """Messages a second of one producer actor; at least so many are in the topic then."""
    with producer_actor(mq, topic) as producer:
        sent = producer.run.remote(send_batches, topic, messages, size, batch)
        return float(ray.get(sent, timeout=PATIENCE_S))


NOT_WAITED_FOR = ("new objects, not waited for", "bodies, not waited for")
WAYS = ("new objects", "reused objects", "bodies without objects", *NOT_WAITED_FOR)
OUT_MAX = 16
"""Futures of batches that a sender keeps before it looks at the oldest."""


def send_batches(
    producer: rmq.Producer,
    topic: str,
    messages: int,
    size: int,
    batch: int,
    way: str = "new objects",
) -> float:
    """Runs in the producer actor: two threads, each sends one batch after another, as the Java
    peer does; one thread where it does not wait. Bodies are made before, objects for each batch
    unless they are reused.
    """
    bodies = [os.urandom(size) for _ in range(batch)]
    made = [rmq.Message(topic, body) for body in bodies]
    out: deque[Future[list[rmq.SendResult]]] = deque()

    def begun(future: Future[list[rmq.SendResult]]) -> None:
        out.append(future)
        if len(out) > OUT_MAX:
            out.popleft().result()

    def objects() -> list[rmq.Message]:
        return [rmq.Message(topic, body) for body in bodies]

    send = {
        "new objects": lambda: producer.send_batch(objects()),
        "reused objects": lambda: producer.send_batch(made),
        "bodies without objects": lambda: producer.send_batch(topic, bodies),
        NOT_WAITED_FOR[0]: lambda: begun(producer.send_batch_async(objects())),
        NOT_WAITED_FOR[1]: lambda: begun(producer.send_batch_async(topic, bodies)),
    }[way]
    batches = -(-messages // batch)
    turns = iter(range(batches))
    lock = threading.Lock()

    def work(_number: int) -> None:
        while True:
            with lock:
                if next(turns, None) is None:
                    return
            send()

    begin = time.perf_counter()
    Crew(1 if way in NOT_WAITED_FOR else 2, work).join()
    for future in out:
        future.result()
    return batches * batch / (time.perf_counter() - begin)


def two_producers(scene: Scene, mq: rmq.Cluster) -> None:
    """Two producer actors at once."""
    messages = scene.count(1_000_000)
    with ExitStack() as ends:
        producers = [ends.enter_context(producer_actor(mq, f"two-{i}")) for i in range(2)]

        def once(_number: int) -> float:
            begin = time.perf_counter()
            sent = [
                producer.run.remote(send_batches, f"two-{i}", messages, 100, 1_000)
                for i, producer in enumerate(producers)
            ]
            ray.get(sent, timeout=PATIENCE_S)
            return 2 * messages / (time.perf_counter() - begin)

        rate = median_of_rounds(once)
    name = "two producers, send_batch of 100 B x 1,000, new objects"
    scene.report.tell(name, rate, "msg/s")


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
    floor = waking.shared_sends_per_s(SENDERS, max(1.0, 2 * scene.scale))
    tell, what = scene.report.rate, f"send 100 B, {SENDERS} threads"
    tell(what, rate, "locks and frames of nothing", floor)
    tell(what, rate, f"Java, {SENDERS} threads", scene.peer("sync_64", "per_second"), 1.2)


def threaded_rate(producer: rmq.Producer, topic: str, count: int, seconds: float) -> float:
    """Sends a second of ``count`` threads, the first second not counted."""
    stop, done = threading.Event(), [0] * count
    body = b"x" * 100

    def work(number: int) -> None:
        while not stop.is_set():
            producer.send(topic, body)
            done[number] += 1

    crew = Crew(count, work)
    time.sleep(1.0)
    before, begin = sum(done), time.perf_counter()
    time.sleep(seconds)
    rate = (sum(done) - before) / (time.perf_counter() - begin)
    stop.set()
    crew.join()
    return rate


LABELS: dict[str, Any] = {
    "tag": "paid",
    "keys": ["o-1"],
    "properties": {"region": "eu", "shop": "7"},
}


def self_batched(scene: Scene, mq: rmq.Cluster) -> None:
    """``send_async`` once per message, from one thread."""
    mq.admin.create_topic("async", queues=4)
    count = scene.count(1_000_000)
    for label, options, peer, goal in (
        ("", {}, "async", 3.5),
        (", tag, key, two properties", LABELS, "async_labels", 4.0),
    ):
        with rmq.Producer("async", cluster=mq.name) as producer:
            rate = median_of_rounds(partial(async_rate, producer, count, options))
        name = f"send_async 100 B{label}, one thread, each result taken"
        java = scene.peer(peer, "per_second")
        scene.report.rate(name, rate, f"Java asynchronous{label}", java, goal)


def async_rate(
    producer: rmq.Producer, messages: int, options: dict[str, Any], _number: int
) -> float:
    """Messages a second until the last one's result was taken."""
    body = b"x" * 100
    begin = time.perf_counter()
    futures = [producer.send_async("async", body, **options) for _ in range(messages)]
    for future in futures:
        future.result(timeout=PATIENCE_S)
    return messages / (time.perf_counter() - begin)
