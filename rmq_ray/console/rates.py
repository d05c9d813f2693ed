"""Messages a second over the last half hour, as this console has seen them: its own samples of what
brokers count since their start.

Decides what a rate is where a broker did not answer, or began anew: unknown, a gap in the line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from rmq_ray.console.source import Answers

SAMPLES_MAX = 360
SAMPLE_MS = 5_000


@dataclass(frozen=True, slots=True)
class _Seen:
    """Messages that went in and out of each broker until then; None = not every broker told."""

    at_ms: int
    counts: Mapping[str, tuple[int, int]] | None


class Rates:
    """A ring of samples; from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: _Seen | None = None
        self._points: deque[tuple[int, float | None, float | None]] = deque(maxlen=SAMPLES_MAX)

    def add(self, now_ms: int, answers: Answers) -> None:
        """What brokers told of their status."""
        counts = {
            broker: (overview["status"]["put_messages"], overview["status"]["got_messages"])
            for broker, overview in answers.found.items()
            if "status" in overview
        }
        seen = _Seen(now_ms, None if answers.missing else counts)
        with self._lock:
            if self._last is not None and now_ms > self._last.at_ms:
                self._points.append((now_ms // 1000, *_rates(self._last, seen)))
            self._last = seen

    def columns(self) -> dict[str, list[Any]]:
        """For the chart: ``at`` in s, ``stored`` and ``handed_out`` in messages a second."""
        with self._lock:
            points = list(self._points)
        return {
            name: [point[number] for point in points]
            for number, name in enumerate(("at", "stored", "handed_out"))
        }


def _rates(before: _Seen, after: _Seen) -> tuple[float | None, float | None]:
    if before.counts is None or after.counts is None or before.counts.keys() != after.counts.keys():
        return None, None
    seconds = (after.at_ms - before.at_ms) / 1000
    found = []
    for number in (0, 1):
        steps = [after.counts[name][number] - before.counts[name][number] for name in after.counts]
        found.append(sum(steps) / seconds if min(steps, default=0) >= 0 else None)
    return found[0], found[1]
