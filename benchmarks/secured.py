"""What TLS and accounts cost: the same sends to a cluster that takes TLS only, as an account to one
that asks for accounts, and to a plain one, in turns.

All of them run at once, so that the machine's mood is the same for all; while one is measured the
others are idle.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import ray

import rmq_ray as rmq
from benchmarks.produce import send_batches, timed_sends
from benchmarks.scene import PATIENCE_S, ROUNDS, Scene
from benchmarks.settle import settle
from rmq_ray.cli.tls import make_files, tls_of

SIZE, BATCH = 1_024, 400
GOALS = {"TLS": (0.6, 0.8), "account": (0.95, 0.95)}
"""Of the plain rate: batches, single sends. With TLS batches pay for encrypting each byte on both
sides, single sends for two more calls of OpenSSL on each side.
"""
KEYS = {"access_key": "benchmarks", "secret_key": "a secret of benchmarks"}


def run(scene: Scene) -> None:
    """Batches and single sends, each way against plain ones."""
    pem = scene.directory / "pem"
    make_files(pem, (), 30)
    with ExitStack() as ends:
        guarded = ends.enter_context(scene.cluster(foreign="acl"))
        guarded.admin.acl.create(*KEYS.values(), default_topic="PUB|SUB", default_group="SUB")
        clusters = {
            "plain": ends.enter_context(scene.cluster()),
            "TLS": ends.enter_context(scene.cluster(tls=tls_of(str(pem)))),
            "account": rmq.connect(guarded.name, **KEYS),
        }
        for topic in ("batched", "single"):
            for mq in (clusters["plain"], clusters["TLS"], guarded):
                mq.admin.create_topic(topic, queues=4)
        scene.settle()
        for number, (what, once) in enumerate(
            ((f"send_batch of 1 KB x {BATCH}, new objects", batched), ("send 100 B", single))
        ):
            ways = {name: once(scene, mq, ends) for name, mq in clusters.items()}
            compared(scene, what, ways, {way: goals[number] for way, goals in GOALS.items()})


def compared(
    scene: Scene, what: str, ways: dict[str, Callable[[], float]], goals: dict[str, float]
) -> None:
    """The medians of rounds, each beside the first of ``ways``. Another one begins each round, and
    the disk has written what the one before left: it would slow down the next.
    """
    rates: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for _ in range(ROUNDS + 1):  # the first one warms up and does not count
        for name in names:
            settle()
            rates[name].append(ways[name]())
        names.append(names.pop(0))
    (first, base), *others = ((name, statistics.median(of[1:])) for name, of in rates.items())
    scene.report.tell(f"{what}, {first}", base, "msg/s")
    for name, rate in others:
        scene.report.rate(f"{what}, {name}", rate, first, base, goals[name])


def batched(scene: Scene, mq: rmq.Cluster, ends: ExitStack) -> Callable[[], float]:
    """One producer actor, two threads."""
    producer: Any = rmq.ProducerActor.options(num_cpus=0).remote(
        "batched", cluster=mq.name, send_timeout_ms=30_000
    )
    ends.callback(ray.kill, producer)
    messages = scene.count(300_000, least=BATCH)

    def once() -> float:
        sent = producer.run.remote(send_batches, "batched", messages, SIZE, BATCH)
        return float(ray.get(sent, timeout=PATIENCE_S))

    return once


def single(scene: Scene, mq: rmq.Cluster, ends: ExitStack) -> Callable[[], float]:
    """One thread of this process, each send waits for its answer."""
    producer = ends.enter_context(mq.producer("single"))
    return lambda: 1e6 / statistics.fmean(timed_sends(producer, "single", scene.count(4_000)))
