"""A listener that keeps what it got, for asserting on it."""

from __future__ import annotations

import threading
from typing import Any

from rmq_ray.client.messages.listener import RECONSUME_LATER
from tests.support.waiting import eventually


def fails_for_hours(_messages: Any, context: Any) -> Any:
    """A listener whose messages come again after the longest delay."""
    context.delay_level_when_next_consume = 18
    return RECONSUME_LATER


class Collector:
    """Thread-safe; ``bodies`` in order of arrival, ``places`` as (broker, queue, offset)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.messages: list[Any] = []

    def __call__(self, messages: list[Any], ctx: Any) -> None:
        with self._lock:
            self.messages += messages

    @property
    def bodies(self) -> list[bytes]:
        with self._lock:
            return [bytes(message.body) for message in self.messages]

    @property
    def places(self) -> list[tuple[str, int, int]]:
        with self._lock:
            return [(m.queue.broker_name, m.queue.queue_id, m.queue_offset) for m in self.messages]

    def wait_for(self, count: int, timeout_s: float = 30.0) -> list[bytes]:
        """Bodies, once there are at least ``count``."""
        eventually(lambda: len(self.messages) >= count, timeout_s, moved=lambda: len(self.messages))
        return self.bodies
