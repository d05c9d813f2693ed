"""What was pulled and not polled yet: batches of all queues in the order in which they came
(protocol-behaviour 24).

    Puller ── batches ──> [a page of queue 0 | a page of queue 2 | ...] ── take(max) ──> PulledBatch
                                                        process queues: these are finished <──┘

Decides what a poll gets: what came first, cut at ``max`` messages; nothing of paused queues;
nothing of queues that were given up or sought elsewhere. Does not pull; whoever takes asks the
puller to go on. ``PrefetchLimits`` is the flow control: the limits of a queue, and those of all
queues together.

Invariants: messages of one queue leave in the order of their offsets, each once. A queue's process
queue holds exactly its batches here, so its commit offset is the queue's position. Locks: this one,
then the queue's.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from rmq_ray.client.consumer.assigned_queue import AssignedQueue, ReadyBatch
from rmq_ray.client.consumer.flow_control import FlowControl, PauseTable, Pressure
from rmq_ray.client.pull.pulled_batch import PageSlice, PulledBatch
from rmq_ray.clock import Clock
from rmq_ray.config import MIB, ConsumerConfig
from rmq_ray.protocol.process_queue import ProcessQueue

WAIT_SLICE_S = 1.0


class PrefetchBuffer:
    """See the module. Any thread puts; polls may come from any thread, one is served after the
    other.
    """

    def __init__(self, pauses: PauseTable, clock: Clock) -> None:
        self._pauses = pauses
        self._clock = clock
        self._ready: deque[ReadyBatch] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.messages = 0
        self.body_bytes = 0

    @property
    def closed(self) -> bool:
        """True after ``close``."""
        return self._closed

    def put(self, batches: Sequence[ReadyBatch]) -> None:
        """Batches of one page, in the order of their offsets."""
        with self._changed:
            self._ready.extend(batches)
            self.messages += sum(batch.count for batch in batches)
            self.body_bytes += sum(batch.body_bytes for batch in batches)
            self._changed.notify()

    def take(self, count: int, timeout_ms: float) -> tuple[PulledBatch, list[AssignedQueue]]:
        """Up to ``count`` messages: what is there, else what comes first within ``timeout_ms``.
        With the queues they came from.
        """
        deadline = self._clock.monotonic_ms() + timeout_ms
        with self._changed:
            while True:
                found = self._take_now(count)
                left_ms = deadline - self._clock.monotonic_ms()
                if found[1] or self._closed or left_ms <= 0:
                    return found
                self._changed.wait(min(left_ms / 1000, WAIT_SLICE_S))

    def look_again(self) -> None:
        """Something was resumed: a waiting poll looks."""
        with self._changed:
            self._changed.notify_all()

    def discard(self, work: AssignedQueue) -> None:
        """Forget what was pulled of this queue, which is dropped."""
        with self._changed:
            for batch in [batch for batch in self._ready if batch.owner is work]:
                self._forget(batch)
            self._ready = deque(batch for batch in self._ready if batch.owner is not work)

    def close(self) -> None:
        """A waiting poll returns; nothing is handed out any more."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self.messages = self.body_bytes = 0
            self._changed.notify_all()

    # --- inside, under the lock -------------------------------------------------------------------

    def _take_now(self, count: int) -> tuple[PulledBatch, list[AssignedQueue]]:
        pieces: list[PageSlice] = []
        owners: dict[AssignedQueue, int] = {}
        aside: list[ReadyBatch] = []
        left = count
        while self._ready and left > 0:
            batch = self._ready.popleft()
            if self._pauses.covers(batch.owner.queue):
                aside.append(batch)
            elif (cut := self._cut(batch, left)) is not None:
                piece, owners[batch.owner] = cut
                pieces.append(piece)
                left -= len(piece.indices)
        self._ready.extendleft(reversed(aside))
        return PulledBatch(pieces, {work.queue: offset for work, offset in owners.items()}), list(
            owners
        )

    def _cut(self, batch: ReadyBatch, count: int) -> tuple[PageSlice, int] | None:
        """The first ``count`` messages of a batch, whose rest stays; and where their queue goes on.
        None when the queue is given up.
        """
        work, page = batch.owner, batch.page
        with work.lock:
            if work.process.dropped:
                self._forget(batch)
                return None
            if batch.count <= count:
                work.process.finish(batch)
                self._forget(batch)
                work.counters.consumed_ok += batch.count
                return PageSlice(page, batch.indices), work.process.commit_offset
            taken, batch.indices = batch.indices[:count], batch.indices[count:]
            size = sum(page.body_end[i] - page.body_at[i] for i in taken)
            goes_on = work.process.keep(
                batch, page.offsets[batch.indices[0]], len(batch.indices), batch.body_bytes - size
            )
            work.counters.consumed_ok += count
        self._ready.appendleft(batch)
        self.messages -= count
        self.body_bytes -= size
        return PageSlice(page, taken), goes_on

    def _forget(self, batch: ReadyBatch) -> None:
        self.messages -= batch.count
        self.body_bytes -= batch.body_bytes


class PrefetchLimits(FlowControl):
    """The limits of each queue, and those of everything that lies in ``ready``. ``starved``: some
    queue was held back by the latter.
    """

    def __init__(
        self, config: ConsumerConfig, ready: PrefetchBuffer, messages: int, mib: int
    ) -> None:
        super().__init__(config)
        self._ready = ready
        self._messages = messages
        self._body_bytes = mib * MIB
        self.starved = False

    def pressure(self, topic: str, process: ProcessQueue) -> Pressure | None:
        """See ``FlowControl``; what other queues hold counts too."""
        if self._ready.messages > self._messages:
            self.starved = True
            return Pressure.MESSAGES
        if self._ready.body_bytes > self._body_bytes:
            self.starved = True
            return Pressure.BYTES
        return super().pressure(topic, process)
