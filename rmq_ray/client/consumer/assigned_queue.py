"""A queue that this consumer works on, and the batches cut from its pages.

    pull answer ─> Page ─> tag check ─> ReadyBatch, ReadyBatch, ... ─> ProcessQueue (what is unfinished)
                                             └─> consuming threads ─> listener

Decides how a page is cut. Keeps the state that the pulling side (``client.consumer.puller``) and
the consuming side (``client.push.consume_concurrently``) share; both change it under ``lock`` only.

Invariant: one object per time that the queue is held. After it was dropped it is never used again:
the next time makes a new one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rmq_ray.client.consumer.queue_lease import QueueLease
from rmq_ray.client.messages.received import MessageExt, Page
from rmq_ray.model.ids import MASTER_ID, MessageQueue
from rmq_ray.protocol.process_queue import Batch, ProcessQueue


class ReadyBatch(Batch):
    """Messages that the listener gets together. They are made when it does: until then they are
    numbers of a page.
    """

    __slots__ = ("indices", "messages", "owner", "page")

    def __init__(
        self, owner: AssignedQueue, page: Page, indices: Sequence[int], body_bytes: int
    ) -> None:
        super().__init__(
            page.offsets[indices[0]], page.offsets[indices[-1]], len(indices), body_bytes
        )
        self.owner = owner
        self.page = page
        self.indices = indices
        self.messages: list[MessageExt] | None = None

    def take(self, now_ms: int) -> list[MessageExt]:
        """A list of the messages that is the caller's own: made anew, or those kept from a failed
        call.
        """
        return (
            self.page.messages(self.indices, now_ms)
            if self.messages is None
            else list(self.messages)
        )


@dataclass(slots=True)
class QueueCounters:
    """Messages since the queue was taken: of pulls, and of the listener's results."""

    pulled: int = 0
    filtered: int = 0
    consumed_ok: int = 0
    consumed_failed: int = 0
    sent_back: int = 0
    dropped: int = 0
    pulls: int = 0


class AssignedQueue:
    """State of one queue while this consumer holds it."""

    __slots__ = (
        "broker_id",
        "counters",
        "empty_in_a_row",
        "epoch",
        "failures",
        "held_back",
        "last_begun",
        "lease",
        "lock",
        "max_offset",
        "min_offset",
        "process",
        "pulling",
        "queue",
        "waiting",
    )

    def __init__(self, queue: MessageQueue, next_offset: int, now_ms: int) -> None:
        self.queue = queue
        self.lock = threading.Lock()
        self.process = ProcessQueue(next_offset, now_ms)
        self.counters = QueueCounters()
        self.pulling = False
        """A pull is under way: there is never a second one."""
        self.waiting = False
        """A call of the pull is due later."""
        self.held_back = False
        """A threshold stopped the last try to pull."""
        self.broker_id = MASTER_ID
        """Where the last answer suggested to pull from."""
        self.epoch = 0
        """The log's epoch as the last answer told it; 0 = not known yet."""
        self.lease: QueueLease | None = None
        """The broker's lock of the queue, of ordered consumption."""
        self.min_offset = self.max_offset = 0
        self.last_begun = -1
        """First offset of the latest batch that a listener got: on stop, earlier ones are still
        worked off.
        """
        self.failures = 0
        """Pulls in a row that brought no page; only some of them are worth a line in the log."""
        self.empty_in_a_row = 0
        """Answers without messages that came at once instead of being held by the broker."""

    @property
    def position(self) -> int:
        """The smallest unfinished offset, read by whoever does not hold the lock."""
        with self.lock:
            return self.process.commit_offset

    @property
    def lag(self) -> int:
        """Messages between the commit offset and the queue's end as the last answer told it."""
        return max(0, self.max_offset - self.process.commit_offset)


def cut(
    owner: AssignedQueue, page: Page, indices: Sequence[int], batch_size: int
) -> list[ReadyBatch]:
    """The records of ``page`` that passed the filter, in batches of at most ``batch_size``, in
    order of their offsets.
    """
    lengths = page.body_bytes
    if isinstance(lengths, list):  # few records
        if len(indices) != len(page):
            lengths = [lengths[i] for i in indices]
    else:
        lengths = lengths if len(indices) == len(page) else lengths[list(indices)]
    if isinstance(lengths, list) and len(indices) <= batch_size:
        return [ReadyBatch(owner, page, indices, sum(lengths))]
    edges = range(0, len(indices), batch_size)
    if batch_size == 1:
        totals = lengths if isinstance(lengths, list) else lengths.tolist()
    elif isinstance(lengths, list):
        totals = [sum(lengths[at : at + batch_size]) for at in edges]
    else:
        totals = np.add.reduceat(lengths, edges).tolist()
    return [
        ReadyBatch(owner, page, indices[at : at + batch_size], total)
        for at, total in zip(edges, totals, strict=True)
    ]
