"""What a scrape of ``/metrics`` takes from a broker with 1,000 topics and 2,300 groups, for each
10,000 series, and how long another request waits for the broker's loop meanwhile.

The size is the same at every scale; ``--scale`` shortens the rounds.
"""

from __future__ import annotations

import statistics
import threading
import time
from urllib.request import urlopen

import rmq_ray as rmq
from benchmarks.console import fill
from benchmarks.report import Figure
from benchmarks.scene import Scene

ROUNDS = 20
GOAL_MS, GOAL_WAIT_MS = 300.0, 50.0
SERIES = 10_000
TOPIC = "topic-7"


def run(scene: Scene) -> None:
    """The median scrape; the longest of the sends that were made meanwhile, median of rounds."""
    rounds = max(5, int(ROUNDS * scene.scale))
    with scene.cluster(brokers=1) as mq:
        fill(mq)
        address = mq.metrics(host="127.0.0.1", port=0)
        series = _scraped(address)
        taken, waited = [], []
        with mq.producer() as producer:
            producer.send(TOPIC, b"x")
            for _ in range(rounds):
                with _Sends(producer) as sends:
                    began = time.perf_counter()
                    _scraped(address)
                    taken.append((time.perf_counter() - began) * 1000)
                waited.append(max(sends.took_ms))
    for name, values, goal in (
        (f"scrape, for {SERIES:,} of {series:,} series", taken, GOAL_MS),
        ("longest send during a scrape", waited, GOAL_WAIT_MS),
    ):
        part = SERIES / series if values is taken else 1.0
        value = statistics.median(values) * part
        scene.report.add(Figure(name, value, "ms", "goal", goal, 1.0, True))


class _Sends:
    """Lone sends of a thread, as long as the block runs."""

    def __init__(self, producer: rmq.Producer) -> None:
        self.took_ms: list[float] = []
        self._producer = producer
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Sends:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while True:  # ends with the block
            began = time.perf_counter()
            self._producer.send(TOPIC, b"x")
            self.took_ms.append((time.perf_counter() - began) * 1000)
            if self._over.wait(0.001):
                return


def _scraped(address: str) -> int:
    """How many series there are."""
    with urlopen(address, timeout=30) as answer:
        return sum(1 for line in answer if not line.startswith(b"#"))
