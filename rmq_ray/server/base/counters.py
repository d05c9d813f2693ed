"""Counts of one broker since its start: what status, runtime info, metrics and tests read. Plain
integers, one attribute each; what is told by topic and group is counted once a frame or page.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field, fields

from rmq_ray.model.metrics import Histogram
from rmq_ray.server.base.histograms import (
    DELAY_S,
    FINISH_S,
    SIZE_BYTES,
    RpcLatencies,
)

WINDOWS_S = (10, 60, 600)


@dataclass(slots=True)
class Traffic:
    """Messages and their bytes."""

    messages: int = 0
    bytes: int = 0


@dataclass(slots=True)
class StoredTraffic(Traffic):
    """What came into a topic. ``sizes``: messages by their size; of a batch by its mean."""

    sizes: Histogram = field(default_factory=lambda: Histogram(SIZE_BYTES))
    finished: Histogram | None = None
    """Seconds from halves to their commits."""
    delays: Histogram | None = None
    """Seconds that messages shall wait."""


@dataclass(slots=True)
class Counters:
    """Messages and bytes count records, frames count requests."""

    put_messages: int = 0
    put_bytes: int = 0
    put_frames: int = 0
    put_repeats: int = 0
    got_messages: int = 0
    got_bytes: int = 0
    pulls: int = 0
    pulls_parked: int = 0
    pulls_missed: int = 0
    offset_moved: int = 0
    sent_back: int = 0
    dead_letters: int = 0
    delayed_delivered: int = 0
    delayed_dropped: int = 0
    dropped_deleted: int = 0
    timed_delivered: int = 0
    timed_dropped: int = 0
    timed_rolled: int = 0
    timed_recalled: int = 0
    half_committed: int = 0
    half_rolled_back: int = 0
    half_unknown: int = 0
    half_checks: int = 0
    half_discarded: int = 0
    replies: int = 0
    replies_failed: int = 0
    refused_busy: int = 0
    scans: int = 0
    notices: int = 0
    subscription_conflicts: int = 0
    topics_refused: int = 0
    stored: dict[str, StoredTraffic] = field(default_factory=dict)
    """By topic."""
    rpc: RpcLatencies = field(default_factory=RpcLatencies)
    handed_out: dict[tuple[str, str], Traffic] = field(default_factory=dict)
    """By (topic, group)."""
    returned: dict[tuple[str, str], Traffic] = field(default_factory=dict)
    """Sent back for a retry, by (topic, group)."""

    def put(self, topic: str, messages: int, size: int) -> None:
        """So many were stored in a topic."""
        self.put_messages += messages
        self.put_bytes += size
        found = self._stored(topic)
        found.messages += messages
        found.bytes += size
        if messages:
            found.sizes.add(size // messages, messages)

    def got(self, topic: str, group: str, messages: int, size: int) -> None:
        """So many went to a group."""
        self.got_messages += messages
        self.got_bytes += size
        _count(self.handed_out, (topic, group), messages, size)

    def finished(self, topic: str, waited_ms: int) -> None:
        """A half was committed into a topic."""
        found = self._stored(topic)
        if found.finished is None:
            found.finished = Histogram(FINISH_S)
        found.finished.add(max(0, waited_ms) / 1000)

    def delayed(self, topic: str, wait_ms: int) -> None:
        """A message for a topic shall wait."""
        found = self._stored(topic)
        if found.delays is None:
            found.delays = Histogram(DELAY_S)
        found.delays.add(max(0, wait_ms) / 1000)

    def sent_back_by(self, topic: str, group: str, size: int) -> None:
        """A group sent a message of a topic back."""
        self.sent_back += 1
        _count(self.returned, (topic, group), 1, size)

    def keep(self, topics: Container[str]) -> None:
        """Forget what was counted of topics that are no more."""
        for topic in [topic for topic in self.stored if topic not in topics]:
            del self.stored[topic]
        for table in (self.handed_out, self.returned):
            for key in [key for key in table if key[0] not in topics]:
                del table[key]

    def _stored(self, topic: str) -> StoredTraffic:
        found = self.stored.get(topic)
        if found is None:
            found = self.stored[topic] = StoredTraffic()
        return found

    def as_dict(self) -> dict[str, int]:
        """Name -> count."""
        values = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: value for name, value in values if isinstance(value, int)}


def _count(
    table: dict[tuple[str, str], Traffic], key: tuple[str, str], messages: int, size: int
) -> None:
    found = table.get(key)
    if found is None:
        found = table[key] = Traffic()
    found.messages += messages
    found.bytes += size


class PutRate:
    """Messages a second over the last 10 s, 1 min and 10 min, as RocketMQ's tools print them:
    ``"12.5 10.0 9.1"``. Samples the counters each second.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=WINDOWS_S[-1] + 1)

    def sample(self) -> None:
        """Called each second."""
        counters = self._counters
        self._samples.append((counters.put_messages, counters.got_messages, counters.pulls_missed))

    def put_tps(self) -> str:
        """Stored messages."""
        return self._rates(0)

    def get_tps(self) -> str:
        """Messages handed out."""
        return self._rates(1)

    def miss_tps(self) -> str:
        """Pulls that found nothing."""
        return self._rates(2)

    def _rates(self, column: int) -> str:
        samples = self._samples
        found = []
        for seconds in WINDOWS_S:
            span = min(seconds, len(samples) - 1)
            found.append(
                (samples[-1][column] - samples[-1 - span][column]) / span if span > 0 else 0.0
            )
        return " ".join(f"{rate:.1f}" for rate in found)
