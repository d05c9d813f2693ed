"""What every benchmark needs: a Ray cluster, message clusters in a scratch directory, and the
report.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

import rmq_ray as rmq
from benchmarks.report import Report

_numbers = itertools.count()


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
    with_peers: bool = False
    ahead: bool = False
    log_gb: float = 0.0
    """Of log that is copied to a slave from the disk, besides the one that is in memory."""

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


def rss_anonymous(pid: int) -> int:
    """Private memory of a process, bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0
