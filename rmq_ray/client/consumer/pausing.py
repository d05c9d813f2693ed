"""Which topics and queues of a consumer are paused: not pulled until they are resumed.

Decides what an argument of ``pause`` and ``resume`` means. Does not stop pulls:
``client.consumer.puller`` asks before each one. Called by push and pull consumers.

Invariant: reading takes no lock; both sets are replaced as a whole.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from rmq_ray.errors import ClientError
from rmq_ray.model.ids import MessageQueue

Pausable = str | MessageQueue
"""A topic (all its queues, also those that come later) or one queue."""


class PauseTable:
    """Paused topics and queues of one consumer. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paused: frozenset[Pausable] = frozenset()

    def covers(self, queue: MessageQueue) -> bool:
        """True when the queue or its topic is paused."""
        paused = self._paused
        return bool(paused) and (queue in paused or queue.topic in paused)

    def add(self, what: Iterable[Pausable]) -> None:
        """Pause these. ``ClientError`` for what is neither a topic nor a queue."""
        wanted = _checked(what)
        with self._lock:
            self._paused |= wanted

    def remove(self, what: Iterable[Pausable]) -> None:
        """Resume these; a topic resumes its queues too, also those that were paused one by one."""
        wanted = _checked(what)
        with self._lock:
            self._paused = frozenset(
                item
                for item in self._paused - wanted
                if not (isinstance(item, MessageQueue) and item.topic in wanted)
            )

    def clear(self) -> None:
        """Resume everything."""
        with self._lock:
            self._paused = frozenset()

    def all(self) -> list[Pausable]:
        """What is paused, in the order of names."""
        return sorted(self._paused, key=str)


def _checked(what: Iterable[Pausable]) -> frozenset[Pausable]:
    found = [what] if isinstance(what, str | MessageQueue) else list(what)
    for item in found:
        if not isinstance(item, str | MessageQueue):
            raise ClientError(
                f"{item!r:.80} cannot be paused; give topics (str) or queues (MessageQueue)",
                repr(item)[:80],
            )
    return frozenset(found)
