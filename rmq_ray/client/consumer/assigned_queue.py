"""The queues that this consumer works on, the batches cut from their pages, and how much may lie
unfinished.

    pull answer ─> PulledPage ─> tag check ─> ReadyBatch, ... ─> ProcessQueue (unfinished)
                                             └─> consuming threads ─> listener

Decides how a page is cut, and whether a message of a locked queue may be handed out now. Keeps the
state that the pulling side (``client.consumer.puller``) and the consuming side
(``client.push.consume_concurrently``) share; both change it under ``lock`` only. Asks nobody.

Invariant: one object per time that the queue is held. After it was dropped it is never used again:
the next time makes a new one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import inf

import numpy as np

from rmq_ray.client.messages.received import MessageExt, PulledPage
from rmq_ray.model.ids import MASTER_ID, MessageQueue
from rmq_ray.protocol.process_queue import Batch, ProcessQueue

LOST_TRUSTED_MS = 3_000  # well below the broker's grace (``protocol.queue_locks.LEFT_GRACE_MS``)


class ReadyBatch(Batch):
    """Messages that the listener gets together. They are made when it does: until then they are
    numbers of a page.
    """

    __slots__ = ("indices", "messages", "owner", "page")

    def __init__(
        self, owner: AssignedQueue, page: PulledPage, indices: Sequence[int], body_bytes: int
    ) -> None:
        # as ``Batch`` does it, without the call: there is one for each message by default
        offsets = page.offsets
        self.first = self.unfinished = offsets[indices[0]]
        self.last = offsets[indices[-1]]
        self.count = len(indices)
        self.body_bytes = body_bytes
        self.started_ms = 0
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

    def part_messages(self, now_ms: int, start: int, stop: int) -> list[MessageExt]:
        """Messages ``start`` to ``stop`` of them."""
        if self.messages is not None:
            return self.messages[start:stop]
        page, indices = self.page, self.indices
        if stop - start == 1:
            return [MessageExt(page, indices[start], now_ms)]
        return page.messages(indices[start:stop], now_ms)

    def part(self, start: int, stop: int) -> ReadyBatch:
        """Messages ``start`` to ``stop`` as a batch of their own."""
        page, indices = self.page, self.indices[start:stop]
        size = sum(page.body_end[i] - page.body_at[i] for i in indices)
        return ReadyBatch(self.owner, page, indices, size)


class QueueLease:
    """One queue's lock as its holder sees it, and what ordered consumption keeps of the queue
    (protocol-behaviour 16, 27). All times are monotonic ms.

        held ──30 s without a granted refresh──> not trusted: nothing is handed out,
          │                                      refreshed again, then it goes on
          ├ leaving: the queue is given away; the running listener ends first
          └ refused: the epoch is over; the queue is dropped and locked anew

    A broker gives the lock of a client whose connections the other end has closed to the next one
    5 s later. The client sees that end, too, and trusts a lock for 3 s from there, unless it is
    granted again.

    The age of a lock counts from the moment in which it was asked for, so that the broker's 60 s
    always end later than our 30.
    """

    __slots__ = (
        "_asked_ms",
        "_lost_ms",
        "_trusted_ms",
        "busy",
        "epoch",
        "gate",
        "in_work",
        "leaving",
        "put_back",
    )

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
        self.put_back: Batch | None = None
        """Failed while a breaker was open, which may have closed since."""
        self._asked_ms = asked_ms
        self._trusted_ms = trusted_ms
        self._lost_ms = -inf

    @property
    def asked_ms(self) -> float:
        """When the lock was asked for that was granted last."""
        return self._asked_ms

    def refreshed(self, asked_ms: float) -> None:
        """The broker granted it again; ``asked_ms``: when it was asked."""
        self._asked_ms = max(self._asked_ms, asked_ms)

    def connection_lost(self, now_ms: float) -> None:
        """Its broker's connection has closed."""
        self._lost_ms = now_ms

    def is_held(self, now_ms: float) -> bool:
        """Whether nobody else can have the queue now."""
        return now_ms <= self._ends_ms

    def status(self, now_ms: float) -> dict[str, int]:
        """``lock_epoch``; ``lock_trusted_ms``: for how long it is held without another refresh, 0 =
        it is not.
        """
        return {"lock_epoch": self.epoch, "lock_trusted_ms": max(0, round(self._ends_ms - now_ms))}

    @property
    def _ends_ms(self) -> float:
        ends_ms = self._asked_ms + self._trusted_ms
        if self._asked_ms <= self._lost_ms:
            ends_ms = min(ends_ms, self._lost_ms + LOST_TRUSTED_MS)
        return ends_ms

    def may_work(self, now_ms: float) -> bool:
        """Whether messages may be pulled and handed out."""
        return not self.leaving and self.is_held(now_ms)


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


class AssignedQueues:
    """The queues that a consumer holds. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: dict[MessageQueue, AssignedQueue] = {}
        self._left: Counter[str] = Counter()

    def put(self, work: AssignedQueue) -> bool:
        """Take a queue in; False when it is held already."""
        with self._lock:
            return self._table.setdefault(work.queue, work) is work

    def remove(self, work: AssignedQueue) -> None:
        """Let go of it, unless the queue was taken anew meanwhile. Its counters stay in
        ``total``.
        """
        with self._lock:
            if self._table.get(work.queue) is work:
                del self._table[work.queue]
                self._left.update(asdict(work.counters))

    def get(self, queue: MessageQueue) -> AssignedQueue | None:
        """The work on a held queue."""
        return self._table.get(queue)

    def log_epoch(self, queue: MessageQueue) -> int:
        """Of the log that the queue's offset was read from; 0 = not known, or not held."""
        work = self._table.get(queue)
        return 0 if work is None else work.epoch

    def snapshot(self) -> Mapping[MessageQueue, AssignedQueue]:
        """A copy of the table."""
        with self._lock:
            return dict(self._table)

    def total(self) -> dict[str, int]:
        """Counters of all queues, those that were given up included; results that came after that
        are not counted.
        """
        with self._lock:
            found = Counter({field.name: 0 for field in fields(QueueCounters)}) + self._left
            for work in self._table.values():
                found.update(asdict(work.counters))
            return {field.name: found[field.name] for field in fields(QueueCounters)}

    def of_broker(self, broker_name: str) -> list[AssignedQueue]:
        """The held queues of one broker name."""
        return [work for queue, work in self.snapshot().items() if queue.broker_name == broker_name]


def cut(
    owner: AssignedQueue, page: PulledPage, indices: Sequence[int], batch_size: int
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
