"""Topics that were just made and are not on disk yet: sends to them wait for the file, so that no
acknowledged message lies in a topic that a crash forgets.

Decides: who waits, in which order they go on, how many bytes may wait. Callers: the send handlers.
Invariant: requests for one topic go on in the order in which they came. A write that failed changes
nothing: the next send tries it again.
"""

from __future__ import annotations

from collections.abc import Callable

from rmq_ray.errors import BrokerBusy

Resume = Callable[[Exception | None], None]
BYTES_MAX = 64 << 20


class FreshTopics:
    """``save(then)`` writes the topic table (``ConfigSaver.save``)."""

    def __init__(self, save: Callable[[Callable[[Exception | None], None]], None]) -> None:
        self._save = save
        self._waiting: dict[str, list[tuple[int, Resume]]] = {}
        self._unsaved: set[str] = set()
        self._bytes = 0

    def created(self, topic: str) -> None:
        """``topic`` was put into the table: write it."""
        self._waiting.setdefault(topic, [])
        self._save(lambda error: self._saved(topic, error))

    def wait(self, topic: str, size: int, resume: Resume) -> None:
        """``resume(None)`` once the topic is on disk, ``resume(error)`` if it cannot be written.
        Raises ``BrokerBusy`` at the limit.
        """
        if self._bytes + size > BYTES_MAX:
            raise BrokerBusy(
                f"{self._bytes} bytes wait for topics to be created; send again later", topic
            )
        self._bytes += size
        under_way = topic in self._waiting
        self._waiting.setdefault(topic, []).append((size, resume))
        if not under_way:
            self._save(lambda error: self._saved(topic, error))

    def __contains__(self, topic: str) -> bool:
        return topic in self._waiting or topic in self._unsaved

    def __bool__(self) -> bool:
        return bool(self._waiting or self._unsaved)

    def _saved(self, topic: str, error: Exception | None) -> None:
        if error is None:
            self._unsaved.clear()  # the file holds all topics
        elif topic in self._waiting:
            self._unsaved.add(topic)
        for size, resume in self._waiting.pop(topic, ()):
            self._bytes -= size
            resume(error)
