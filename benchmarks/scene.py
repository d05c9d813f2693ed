"""What every benchmark needs: a Ray cluster, message clusters in a scratch directory, and the
report.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

import rmq_ray as rmq
from benchmarks.report import Report
from benchmarks.settle import settle

_numbers = itertools.count()
ROUNDS = 5
"""Short ones: memory that ``settle`` gave back stays at hand for some two seconds."""
SECONDS = 600.0
PATIENCE_S = 120.0
"""A round that takes longer has stalled, and is a failure."""


def median_of_rounds(once: Callable[[int], float]) -> float:
    """Of ``once(number)``, each behind ``settle``. The first round warms up and does not count, as
    at the peers.
    """
    rates = []
    for number in range(ROUNDS + 1):
        settle()
        rates.append(once(number))
    return statistics.median(rates[1:])


class Crew:
    """Threads that run ``work(number)``; what one of them raises is raised by ``join``."""

    def __init__(self, count: int, work: Callable[[int], object]) -> None:
        self._errors: list[BaseException] = []

        def run(number: int) -> None:
            try:
                work(number)
            except BaseException as error:  # noqa: BLE001 - join raises it
                self._errors.append(error)

        self._threads = [
            threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Until all have ended; raises when one failed or is still busy after the patience."""
        for thread in self._threads:
            thread.join(PATIENCE_S)
            if thread.is_alive():
                raise RuntimeError(f"a thread did not end within {PATIENCE_S:.0f} s")
        if self._errors:
            raise self._errors[0]


@dataclass
class Scene:
    """``scale``: 1.0 = full length; smaller for a quick look. ``peers``: results of Apache
    RocketMQ's Java client and of Kafka's by name.
    """

    directory: Path
    report: Report
    scale: float = 1.0
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    floors: dict[str, float] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    """Of parts whose figures stand apart: the title of their section of a page, and its text."""
    with_peers: bool = False
    ahead: bool = False
    log_gb: float = 0.0
    """Of log that is copied to a slave from the disk, besides the one that is in memory."""
    seconds: float = SECONDS
    """How long a downstream is gone."""

    def settle(self) -> None:
        """Before measuring, when all processes have started: they take precedence over the
        machine's other work, where that was asked for.
        """
        if self.ahead:
            from benchmarks import precedence

            precedence.take()

    def count(self, full: int, least: int = 1_000) -> int:
        """A number of messages at this scale."""
        return max(least, int(full * self.scale))

    def peer(self, name: str, what: str) -> float | None:
        """A figure of a peer, None where it was not run. ``KeyError`` when it ran and did not tell
        that.
        """
        return self.peers[name][what] if name in self.peers else None

    @contextmanager
    def cluster(self, **settings: Any) -> Iterator[rmq.Cluster]:
        """A fresh cluster; its data are removed afterwards."""
        name = f"bench{next(_numbers)}"
        path = self.directory / name
        mq = rmq.start(name, store_path=str(path), **settings)
        try:
            yield mq
        finally:
            mq.stop()
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def scene(scale: float, directory: str | None = None) -> Iterator[Scene]:
    """Start Ray at niceness 0 and make a scratch directory."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
    )
    with tempfile.TemporaryDirectory(prefix="rmq-ray-bench-", dir=directory) as scratch:
        try:
            yield Scene(Path(scratch), Report(), scale)
        finally:
            ray.shutdown()


@contextmanager
def producer_actor(mq: rmq.Cluster, topic: str) -> Iterator[Any]:
    """A producer actor, and a topic of four queues."""
    mq.admin.create_topic(topic, queues=4)
    producer: Any = rmq.ProducerActor.options(num_cpus=0).remote(
        f"bench-{topic}", cluster=mq.name, send_timeout_ms=30_000
    )
    try:
        yield producer
        ray.get(producer.close.remote(), timeout=PATIENCE_S)
    finally:
        ray.kill(producer)


def rss_anonymous(pid: int) -> int:
    """Private memory of a process, bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0
