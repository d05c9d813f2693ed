"""Requests and replies, and what compression and interceptors cost a producer that has them
switched off. ``python -m benchmarks ways``.

Requests: one thread asks, a listener in an actor answers; against twice a plain send, because a
request is two messages. Switched off: CPU of this process for each ``send``, real producer against
one whose ``send`` knows of no hooks, checks, compression, trace or namespaces; turn and turn about,
best of several rounds, since the machine's mood changes more than the difference is.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import rmq_ray as rmq
from benchmarks.report import Figure, percentiles
from benchmarks.scene import Scene
from rmq_ray.client.outgoing.send_request import checked_request

BODY = b"x" * 100
ROUNDS = 7


class Bare(rmq.Producer):
    """``send`` without a thought of what may be around it."""

    def send(self, topic_or_message: Any, body: Any = None, **_options: Any) -> rmq.SendResult:
        """A message without labels."""
        core = self._core or self._ready()
        return core.send(
            checked_request(
                topic_or_message, body, (None, (), None), 0, self._config.body_bytes_max
            ),
            self._timeout_ms,
        )


class Nothing:
    """A hook that does nothing."""

    def before(self, ctx: Any) -> None:
        """See ``SendHook``."""

    def after(self, ctx: Any) -> None:
        """See ``SendHook``."""


def answer(messages: Any, _ctx: Any) -> None:
    """The listener that replies."""
    for message in messages:
        rmq.reply(message, message.body)


def run(scene: Scene) -> None:
    """Both parts."""
    with scene.cluster() as mq:
        mq.admin.create_topic("ways", queues=4)
        mq.admin.create_topic("asked", queues=4)
        _requests(scene, mq)
        _switched_off(scene, mq)


def _requests(scene: Scene, mq: rmq.Cluster) -> None:
    with (
        rmq.Producer("bench-ways", cluster=mq.name) as producer,
        rmq.PushConsumer(
            "bench-answers", listener=answer, subscriptions={"asked": "*"}, cluster=mq.name
        ),
    ):
        producer.request("asked", BODY, timeout=30.0)
        count = scene.count(2_000, 200)
        plain = _median_ms(lambda: producer.send("ways", BODY), count)
        asked = _median_ms(lambda: producer.request("asked", BODY), count)
        scene.report.add(
            Figure(
                "request and reply, p50",
                asked,
                "ms",
                "two plain sends",
                2 * plain,
                less_is_better=True,
            )
        )


def _median_ms(call: Callable[[], object], count: int) -> float:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1e3)
    return float(percentiles(times, 50)[0])


def _switched_off(scene: Scene, mq: rmq.Cluster) -> None:
    makers: dict[str, Callable[[], rmq.Producer]] = {
        "bare": lambda: Bare("bench-bare", cluster=mq.name),
        "off": lambda: rmq.Producer("bench-off", cluster=mq.name),
        "compression of larger bodies": lambda: rmq.Producer(
            "bench-compressing", cluster=mq.name, compression="lz4"
        ),
        "a hook that does nothing": lambda: rmq.Producer(
            "bench-hooked", cluster=mq.name, hooks=[Nothing()]
        ),
    }
    producers = {name: make() for name, make in makers.items()}
    count = scene.count(3_000, 500)
    try:
        best = {
            name: min(_cpu_us(producer, count) for _ in range(2))
            for name, producer in producers.items()
        }
        for _ in range(ROUNDS):
            for name, producer in producers.items():
                best[name] = min(best[name], _cpu_us(producer, count))
    finally:
        for producer in producers.values():
            producer.close()
    scene.report.add(
        Figure(
            "send, all switched off: CPU",
            best["off"],
            "us",
            "bare",
            best["bare"],
            1.05,
            less_is_better=True,
        )
    )
    for name in ("compression of larger bodies", "a hook that does nothing"):
        scene.report.add(
            Figure(
                f"send with {name}: CPU", best[name], "us", "off", best["off"], less_is_better=True
            )
        )


def _cpu_us(producer: rmq.Producer, count: int) -> float:
    """CPU of all threads of this process for one ``send``."""
    gc.collect()
    began = time.process_time()
    for _ in range(count):
        producer.send("ways", BODY)
    return (time.process_time() - began) / count * 1e6
