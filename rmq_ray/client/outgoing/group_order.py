"""Which queue a message group is on, so that its messages stay in order while routes change
(protocol-behaviour 7.3, seed S3-071 to S3-074).

A group's queue follows from the hash of its name, so that all producers agree. When the topic gets
or loses queues the hash leads elsewhere: the group moves only once everything this producer sent
for it has ended, else a later message could be stored before an earlier one.

Decides the queue of a group. Does not keep the order within a queue: each queue has one ordered
frame out (``client.sending.async_sender``, or a lock of ``client.producer.async_frames``).
Invariant: at most ``GROUPS_MAX`` groups are remembered, and those only while something of them, or
of an older one, is under way; one that is forgotten follows its hash. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.routing.queue_selection import select_by_group

GROUPS_MAX = 10_000

Key = tuple[str, str]
"""Topic and group."""


class Sent(Protocol):
    """Something that ends: a future."""

    def done(self) -> bool:
        """True when it has ended."""
        ...


class GroupOrder:
    """See the module. Of one producer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: OrderedDict[Key, tuple[MessageQueue, Sent]] = OrderedDict()

    def choose(self, topic: str, group: str, queues: Sequence[MessageQueue]) -> MessageQueue:
        """The queue for the group's next message."""
        wanted = select_by_group(queues, group)
        known = self._last.get((topic, group))
        if known is not None and known[0] != wanted and not known[1].done():
            return known[0]
        return wanted

    def sent(self, group: str, queue: MessageQueue, sent: Sent) -> None:
        """A message of the group is on its way to ``queue``; what went before it there ends before
        it.
        """
        key = (queue.topic, group)
        with self._lock:
            self._last[key] = (queue, sent)
            self._last.move_to_end(key)
            if len(self._last) > GROUPS_MAX:
                self._last.popitem(last=False)
            self._forget_ended()

    def _forget_ended(self) -> None:
        """Under the lock: the oldest that have ended say nothing any more. Two a call: more than
        come in.
        """
        for _ in range(2):
            oldest = next(iter(self._last))
            if len(self._last) == 1 or not self._last[oldest][1].done():
                return
            del self._last[oldest]

    def __len__(self) -> int:
        return len(self._last)
