"""Transactions: half message, commit, each waited for, against plain sends of as many threads in
the same run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import rmq_ray as rmq
from benchmarks.report import Figure
from benchmarks.scene import Scene

SECONDS = 4.0
BODY = b"x" * 100


def run(scene: Scene) -> None:
    """1, 8 and 64 threads of one producer."""
    with (
        scene.cluster() as mq,
        rmq.Producer("bench-transaction", cluster=mq.name, send_timeout_ms=30_000) as producer,
    ):
        mq.admin.create_topic("transaction", queues=4)

        def plain() -> None:
            producer.send("transaction", BODY)

        def transactional() -> None:
            with producer.transaction(_committed) as tx:
                tx.send("transaction", BODY)

        for threads in (1, 8, 64):
            seconds = max(1.0, SECONDS * scene.scale)
            rates = []
            for work in (plain, transactional):
                rate_of(work, threads, seconds / 4)
                rates.append(rate_of(work, threads, seconds))
            scene.report.add(
                Figure(
                    f"transaction of one message, {threads} threads",
                    rates[1],
                    "tx/s",
                    "plain send",
                    rates[0],
                    0.3,
                )
            )


def rate_of(work: Callable[[], None], threads: int, seconds: float) -> float:
    """Calls a second of so many threads."""
    counts = [0] * threads
    end = time.perf_counter() + seconds

    def loop(index: int) -> None:
        while time.perf_counter() < end:
            work()
            counts[index] += 1

    workers = [
        threading.Thread(target=loop, args=(index,), daemon=True) for index in range(threads)
    ]
    begin = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - begin)


def _committed(_message: rmq.MessageExt) -> bool:
    return True
