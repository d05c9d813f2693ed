"""From send to listener: idle, and beside a producer that sends batches at half of its speed."""

from __future__ import annotations

import struct
import threading
import time
from typing import Any

import rmq_ray as rmq
from benchmarks import floors, waking
from benchmarks.report import Figure, percentiles
from benchmarks.scene import Scene

STAMP = struct.Struct(">q")
EVERY_S = 0.01


def run(scene: Scene) -> None:
    """Idle first, then loaded."""
    relay = waking.relay_ms(scene.count(1_000, 100), EVERY_S)
    scene.report.tell(
        "floor: socket to another process, back, and to another thread, every 10 ms, p50",
        relay,
        "ms",
    )
    with scene.cluster() as mq:
        p50, p99, p999 = percentiles(
            end_to_end_ms(mq, "idle", scene.count(1_500, 200)), 50, 99, 99.9
        )
        for label, value, peer in (("p50", p50, "p50_ms"), ("p99", p99, "p99_ms")):
            java = scene.peer("latency", peer)
            scene.report.add(
                Figure(
                    f"idle end to end, {label}",
                    value,
                    "ms",
                    "Java",
                    java,
                    None if java is None else 0.4,
                    True,
                )
            )
        scene.report.add(Figure("idle end to end, p50", p50, "ms", "floor", relay))
        scene.report.add(
            Figure(
                "idle end to end, p50",
                p50,
                "ms",
                "ray.util.queue.Queue",
                floors.queue_relay_ms(scene.count(500, 100), EVERY_S),
            )
        )
        scene.report.tell("idle end to end, p99.9", p999, "ms")
        stop = threading.Event()
        load = threading.Thread(target=make_load, args=(mq, stop), daemon=True)
        load.start()
        p50, p99, p999 = percentiles(
            end_to_end_ms(mq, "loaded", scene.count(1_000, 200)), 50, 99, 99.9
        )
        stop.set()
        load.join()
        for label, value in (("p50", p50), ("p99", p99), ("p99.9", p999)):
            scene.report.tell(
                f"loaded end to end (20 batches of 1,000 a second), {label}", value, "ms"
            )


def end_to_end_ms(mq: rmq.Cluster, topic: str, count: int) -> list[float]:
    """Milliseconds from the call of ``send`` to the listener, one message every 10 ms."""
    mq.admin.create_topic(topic, queues=1)
    times: list[float] = []

    def listener(messages: list[Any], ctx: Any) -> None:
        now = time.perf_counter_ns()
        times.extend((now - STAMP.unpack(message.body)[0]) / 1e6 for message in messages)

    subscriptions = {topic: "*"}
    with (
        rmq.PushConsumer(
            f"{topic}-group",
            listener=listener,
            subscriptions=subscriptions,
            start_from="first",
            cluster=mq.name,
        ),
        rmq.Producer(topic, cluster=mq.name) as p,
    ):
        for i in range(count + 100):
            p.send(topic, STAMP.pack(time.perf_counter_ns()))
            time.sleep(EVERY_S)
            if i == 99:
                times.clear()
        time.sleep(0.5)
    if len(times) < count * 0.99:
        raise RuntimeError(f"only {len(times)} of {count} messages came")
    return times


def make_load(mq: rmq.Cluster, stop: threading.Event) -> None:
    """20 batches a second."""
    batch = [rmq.Message("load", b"x" * 100) for _ in range(1_000)]
    with rmq.Producer("load", cluster=mq.name) as producer:
        while not stop.wait(0.05):
            producer.send_batch(batch)
