"""How far behind the end of the log each group reads, in bytes (protocol-behaviour 10.3, RocketMQ's
GROUP_GET_FALL_SIZE).

    log:   ... | last record that the group got | ................ | end        distance = end - where that record begins

Says, unlike a count of messages, how much of the disk a group still has to read, other topics'
messages included: a group beyond what memory holds reads from the disk. Recorded at each answer
that went through messages, as RocketMQ does; a group that reads no more keeps its last distance,
while the log goes on. Decides nothing. Called by pulls and pops; told by a broker's status.

Invariant: at most ``ENTRIES_MAX`` pairs of topic and group.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nlargest

from rmq_ray.model.pulling import GetMessageStatus
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.reading.log_reader import GetResult, last_log_offset

ENTRIES_MAX = 200_000
WENT_THROUGH = (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE)


class FallBehind:
    """Of one broker."""

    def __init__(self) -> None:
        self._bytes: dict[tuple[str, str], dict[int, int]] = {}

    def note(
        self, group: str, topic: str, queue_id: int, result: GetResult, store: MessageStore
    ) -> None:
        """``group`` was handed ``result`` of a queue."""
        if result.status not in WENT_THROUGH:
            return
        reached = (
            last_log_offset(result.parts[-1], result.sizes)
            if result.count
            else store.log_offset_of(topic, queue_id, result.next_offset - 1)
        )
        self.reached(group, topic, queue_id, reached, store.visible_offset)

    def reached(self, group: str, topic: str, queue_id: int, log_offset: int, end: int) -> None:
        """The last record that ``group`` was handed begins at ``log_offset`` (-1: nobody knows);
        the log is visible up to ``end``.
        """
        queues = self._bytes.get((topic, group))
        if queues is None:
            if log_offset < 0 or len(self._bytes) >= ENTRIES_MAX:
                return
            queues = self._bytes[topic, group] = {}
        if log_offset >= 0:
            queues[queue_id] = max(0, end - log_offset)

    def of(self, group: str, topic: str) -> dict[int, int]:
        """Queue id -> bytes, of what the group has read since the broker began."""
        return dict(self._bytes.get((topic, group), {}))

    def worst(self, limit: int) -> list[dict[str, object]]:
        """The groups and topics that are furthest behind: ``group, topic, bytes`` (of the worst
        queue), ``queues`` (id -> bytes).
        """
        found = nlargest(
            limit, self._bytes.items(), key=lambda item: max(item[1].values(), default=0)
        )
        return [
            {
                "group": group,
                "topic": topic,
                "bytes": max(queues.values(), default=0),
                "queues": {str(number): queues[number] for number in sorted(queues)},
            }
            for (topic, group), queues in found
        ]

    def forget(self, matches: Callable[[str, str], bool]) -> None:
        """Drop the entries of which ``matches(topic, group)`` is true."""
        for key in [key for key in self._bytes if matches(*key)]:
            del self._bytes[key]
