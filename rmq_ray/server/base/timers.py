"""Periodic work of one broker, driven by one coroutine: which task is due when.

Decides: due times (first delay, period), and that a task that could not run in time runs once, not
once for each missed period. Does not decide what tasks do. Invariant: tasks run in the loop, one
after the other; ``run_due`` is called with monotonic time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Task = Callable[[], None]


@dataclass(slots=True)
class _Timer:
    due_ms: float
    period_ms: float
    task: Task


class BrokerTimers:
    """Tasks with periods in ms."""

    def __init__(self, now_ms: float) -> None:
        self._timers: list[_Timer] = []
        self._now_ms = now_ms

    def every(self, period_ms: float, task: Task, first_ms: float | None = None) -> None:
        """Run ``task`` after ``first_ms`` (None = one period) and then each ``period_ms``."""
        self._timers.append(
            _Timer(self._now_ms + (period_ms if first_ms is None else first_ms), period_ms, task)
        )

    def run_due(self, now_ms: float) -> None:
        """Run what is due at ``now_ms``."""
        self._now_ms = now_ms
        for timer in self._timers:
            if timer.due_ms <= now_ms:
                next_ms = timer.due_ms + timer.period_ms
                timer.due_ms = next_ms if next_ms > now_ms else now_ms + timer.period_ms
                timer.task()
