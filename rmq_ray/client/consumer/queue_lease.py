"""One queue's lock as its holder sees it, and what ordered consumption keeps of the queue
(protocol-behaviour 16, 27).

    held ──30 s without a granted refresh──> not trusted: nothing is handed out, refreshed again, then it goes on
      │ leaving: the queue is given away; the running listener ends first
      └ refused: the epoch is over; the queue is dropped and locked anew

Decides whether a message of the queue may be handed out now. Asks nobody:
``client.consumer.queue_leases`` does. The fields besides the lock are
``client.push.consume_orderly``'s, changed under the queue's lock.

Invariant: the age of a lock counts from the moment in which it was asked for, so that the broker's
60 s always end later than our 30.
"""

from __future__ import annotations

import threading

from rmq_ray.protocol.process_queue import Batch


class QueueLease:
    """Of one ``AssignedQueue``. All times are monotonic ms."""

    __slots__ = ("_asked_ms", "_trusted_ms", "busy", "epoch", "gate", "in_work", "leaving")

    def __init__(
        self, epoch: int, asked_ms: float, trusted_ms: float, gate: threading.Lock
    ) -> None:
        self.epoch = epoch
        """Of the lock; commits name it."""
        self.gate = gate
        """Held while a listener has messages of this queue: one for each queue, whatever how often
        it was taken and left.
        """
        self.leaving = False
        """The queue is to be given away: nothing more is pulled or handed out."""
        self.busy = False
        """A thread works on the queue, or will: at most one does."""
        self.in_work: list[Batch] = []
        """Handed to the listener and not committed: one, or many when the listener commits by
        itself.
        """
        self._asked_ms = asked_ms
        self._trusted_ms = trusted_ms

    def refreshed(self, asked_ms: float) -> None:
        """The broker granted it again; ``asked_ms``: when it was asked."""
        self._asked_ms = max(self._asked_ms, asked_ms)

    def is_held(self, now_ms: float) -> bool:
        """Whether nobody else can have the queue now."""
        return now_ms - self._asked_ms <= self._trusted_ms

    def may_work(self, now_ms: float) -> bool:
        """Whether messages may be pulled and handed out."""
        return not self.leaving and self.is_held(now_ms)
