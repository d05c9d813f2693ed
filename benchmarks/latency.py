"""From send to listener: idle, and beside a producer that sends batches at half of its speed."""

from __future__ import annotations

import struct
import threading
import time
from typing import Any

import rmq_ray as rmq
from benchmarks import floors, waking
from benchmarks.report import Figure, percentiles
from benchmarks.scene import PATIENCE_S, Crew, Scene
from rmq_ray.actors.cluster_clients import ClusterClients

STAMP = struct.Struct(">q")
WARM_UP_MESSAGES = 300
EVERY_MS = (10, 5, 1)


def run(scene: Scene) -> None:
    """Idle first, then loaded."""
    relay = waking.relay_ms(scene.count(1_000, 100), 0.01)
    scene.report.tell(
        "floor: socket to another process, back, and to another thread, every 10 ms, p50",
        relay,
        "ms",
    )
    queued = floors.queue_relay_ms(scene.count(500, 100), 0.01)
    count = scene.count(1_500)
    with scene.cluster() as mq:
        for every_ms in EVERY_MS:
            times = end_to_end_ms(mq, f"idle-{every_ms}", count, every_ms)
            p50, p99 = percentiles(times, 50, 99)
            what = f"end to end, idle, a message each {every_ms} ms"
            for label, value in (("p50", p50), ("p99", p99)):
                java = scene.peer("latency", f"{label}_ms") if every_ms == 10 else None
                goal = None if java is None else 0.5
                scene.report.add(
                    Figure(f"{what}, {label}", value, "ms", "Java", java, goal, less_is_better=True)
                )
            if every_ms == 1:
                scene.report.add(
                    Figure(f"{what}, p50", p50, "ms", "limit", 0.3, 1.0, less_is_better=True)
                )
            if every_ms == 10:
                for peer, floor in (("floor", relay), ("ray.util.queue.Queue", queued)):
                    scene.report.add(Figure(f"{what}, p50", p50, "ms", peer, floor))
        mq.admin.create_topic("load", queues=4)
        stop = threading.Event()
        load = Crew(1, lambda _: make_load(mq, stop))
        times = end_to_end_ms(mq, "loaded", count, 10)
        stop.set()
        load.join()
    what = "end to end beside 20 batches of 1,000 a second, a message each 10 ms"
    for label, value in zip(("p50", "p99"), percentiles(times, 50, 99), strict=True):
        scene.report.tell(f"{what}, {label}", value, "ms")


def end_to_end_ms(
    mq: ClusterClients, topic: str, count: int, every_ms: int, warm_up: int = WARM_UP_MESSAGES
) -> list[float]:
    """Milliseconds from the call of ``send`` to the listener, behind messages that warm up."""
    mq.admin.create_topic(topic, queues=4)
    times: list[float] = []
    complete = threading.Event()

    def listener(messages: list[Any], ctx: Any) -> None:
        now = time.perf_counter_ns()
        times.extend((now - STAMP.unpack(message.body)[0]) / 1e6 for message in messages)
        if len(times) >= warm_up + count:
            complete.set()

    with (
        mq.push_consumer(
            f"{topic}-group",
            listener=listener,
            subscriptions={topic: "*"},
            start_from="first",
        ),
        mq.producer(topic) as producer,
    ):
        due = time.perf_counter()
        for _ in range(warm_up + count):
            producer.send(topic, STAMP.pack(time.perf_counter_ns()))
            due += every_ms / 1e3
            time.sleep(max(0.0, due - time.perf_counter()))
        if not complete.wait(PATIENCE_S):
            raise RuntimeError(f"only {len(times)} of {warm_up + count} messages came")
    return times[warm_up:]


def make_load(mq: rmq.Cluster, stop: threading.Event) -> None:
    """20 batches a second."""
    bodies = [b"x" * 100] * 1_000
    with rmq.Producer("load", cluster=mq.name) as producer:
        while not stop.wait(0.05):
            producer.send_batch("load", bodies)
