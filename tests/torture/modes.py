"""The modes of a run: how its cluster is started, and which losses of power may cost a suffix
(docs/promises.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mode:
    """How the cluster is started, and which losses of power may cost a suffix."""

    name: str
    flush: str
    replication: str
    brokers: int
    replicas: int
    power_loses: bool = False
    all_hosts_at_once: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """For ``rmq.start``."""
        return {
            "flush": self.flush,
            "replication": self.replication,
            "brokers": self.brokers,
            "replicas": self.replicas,
        }


MODES = {
    mode.name: mode
    for mode in (
        Mode("async", "async", "async", brokers=2, replicas=0, power_loses=True),
        Mode("flush", "sync", "async", brokers=2, replicas=0, all_hosts_at_once=True),
        Mode("copies", "async", "sync", brokers=1, replicas=2),
        Mode("both", "sync", "sync", brokers=1, replicas=2, all_hosts_at_once=True),
    )
}
