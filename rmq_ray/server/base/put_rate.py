"""Messages a second over the last 10 s, 1 min and 10 min, as RocketMQ's tools print them: ``"12.5
10.0 9.1"``.
"""

from __future__ import annotations

from collections import deque

from rmq_ray.server.base.counters import Counters

SAMPLE_MS = 1_000
WINDOWS_S = (10, 60, 600)


class PutRate:
    """Samples the counters each second."""

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
