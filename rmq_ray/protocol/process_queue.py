"""The consumer's snapshot of one queue: what was pulled and is not finished yet (protocol-behaviour
10.1, 15, 27).

Messages are kept as batches, each a range of queue offsets that is handed to the listener as a
whole:

    committed          first unfinished                       end
    ────────┤ finished │ [batch 40..71] 72..103 done [104..135] │ not pulled
                         ^ commit offset                          ^ commit offset once nothing is
                                                                  unfinished

Decides: the commit offset, what counts against flow control, what is overdue. Does not decide when
to pull or what a failed message becomes; keeps no message. Callers: ``client.consumer.puller`` and
``client.push.consume_concurrently``, under the queue's lock.

Invariants: the commit offset never passes an unfinished message and never goes back; ``count`` and
``body_bytes`` are those of unfinished messages. Once dropped, results are ignored: another consumer
may own the queue already.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

EXPIRED_MESSAGES_MAX = 16
"""Overdue messages that one cleaning takes from one queue."""


class Batch:
    """Offsets ``first`` to ``last`` (both included; filtered ones between them do not count),
    ``count`` messages.

    ``unfinished``: the smallest offset still to be finished. ``started_ms``: when the listener got
    it, 0 = not yet.
    """

    __slots__ = ("body_bytes", "count", "first", "last", "started_ms", "unfinished")

    def __init__(self, first: int, last: int, count: int, body_bytes: int) -> None:
        self.first = self.unfinished = first
        self.last = last
        self.count = count
        self.body_bytes = body_bytes
        self.started_ms = 0


class ProcessQueue:
    """Unfinished batches of one queue, oldest first. All times are ms as the caller passes them."""

    __slots__ = (
        "_batches",
        "_end",
        "_last",
        "body_bytes",
        "count",
        "dropped",
        "last_consume_ms",
        "last_pull_ms",
        "next_offset",
    )

    def __init__(self, next_offset: int, now_ms: int) -> None:
        self._batches: OrderedDict[int, Batch] = (
            OrderedDict()
        )  # a plain dict slows down as its head is deleted
        self._end = next_offset
        self._last = next_offset - 1
        self.next_offset = next_offset
        """Where the next pull begins."""
        self.count = 0
        self.body_bytes = 0
        self.dropped = False
        self.last_pull_ms = now_ms
        self.last_consume_ms = now_ms

    # --- pulling ----------------------------------------------------------------------------------

    def put(self, batch: Batch) -> None:
        """A batch was pulled. Batches come in rising order; ``ValueError`` for one that overlaps
        what came before.
        """
        if batch.first < self._end or batch.last < batch.first:
            raise ValueError(
                f"batch {batch.first}..{batch.last} does not follow offset {self._end - 1}"
            )
        self._batches[batch.first] = batch
        self._last = batch.last
        self._end = batch.last + 1
        self.count += batch.count
        self.body_bytes += batch.body_bytes

    def advance(self, next_offset: int) -> None:
        """Everything below ``next_offset`` was pulled or filtered; the next pull begins there."""
        self.next_offset = next_offset
        if next_offset > self._end:
            self._end = next_offset

    def resume_at(self, offset: int) -> int:
        """Where a queue goes on that is told that its next offset is not in the log, ``offset`` is:
        there, where messages expired; where the log was cut, not behind what is unfinished here.
        """
        return min(offset, self.commit_offset) if offset < self.next_offset else offset

    @property
    def span(self) -> int:
        """Last pulled offset minus the smallest unfinished one: how far a slow message holds the
        commit offset back.
        """
        return self._last - self.commit_offset if self._batches else 0

    # --- consuming --------------------------------------------------------------------------------

    def begin(self, batch: Batch, now_ms: int) -> bool:
        """The listener gets the batch now. False = do not call it: the queue is dropped or the
        batch was given up.
        """
        if self.dropped or self._batches.get(batch.first) is not batch:
            return False
        batch.started_ms = self.last_consume_ms = now_ms
        return True

    def head(self, skip: int) -> Batch | None:
        """The oldest unfinished batch behind the first ``skip``: what ordered consumption hands out
        next.
        """
        return next(islice(self._batches.values(), skip, None), None)

    def holds(self, batch: Batch) -> bool:
        """False once the batch is finished, given up as overdue, or forgotten."""
        return self._batches.get(batch.first) is batch

    def finish(self, batch: Batch) -> int:
        """Every message of the batch is done with; returns the commit offset. A batch given up
        before changes nothing.
        """
        if self._batches.get(batch.first) is batch:
            del self._batches[batch.first]
            self.count -= batch.count
            self.body_bytes -= batch.body_bytes
        return self.commit_offset

    def keep(self, batch: Batch, unfinished: int, count: int, body_bytes: int) -> int:
        """Only ``count`` messages of the batch remain, the first at offset ``unfinished``: they are
        tried again here.

        The batch keeps its place. Returns the commit offset.
        """
        if self._batches.get(batch.first) is batch and batch.unfinished <= unfinished <= batch.last:
            self.count += count - batch.count
            self.body_bytes += body_bytes - batch.body_bytes
            batch.unfinished, batch.count, batch.body_bytes, batch.started_ms = (
                unfinished,
                count,
                body_bytes,
                0,
            )
        return self.commit_offset

    def replace(self, batch: Batch, parts: Sequence[Batch]) -> None:
        """``parts``, in their order, take the place of a batch: what they lack of it is finished.
        Each is finished by itself from now on.
        """
        if not self.holds(batch):
            return
        before, self._batches = self._batches, OrderedDict()
        for held in before.values():
            for one in parts if held is batch else (held,):
                self._batches[one.first] = one
        self.count += sum(part.count for part in parts) - batch.count
        self.body_bytes += sum(part.body_bytes for part in parts) - batch.body_bytes

    @property
    def commit_offset(self) -> int:
        """The smallest unfinished offset, or one past everything pulled."""
        return next(iter(self._batches.values())).unfinished if self._batches else self._end

    def overdue(self, now_ms: int, timeout_ms: int) -> list[Batch]:
        """The oldest batches as long as the listener has had them for more than ``timeout_ms``, at
        most 16 messages.

        A greater batch comes alone. They stay until ``finish``.
        """
        found: list[Batch] = []
        messages = 0
        for batch in self._batches.values():
            if (
                not batch.started_ms
                or now_ms - batch.started_ms <= timeout_ms
                or (found and messages + batch.count > EXPIRED_MESSAGES_MAX)
            ):
                break
            found.append(batch)
            messages += batch.count
        return found

    # --- the end ----------------------------------------------------------------------------------

    def pull_expired(self, now_ms: int, idle_ms: int) -> bool:
        """No pull for longer than ``idle_ms``: something broke; the queue is dropped and taken
        anew.
        """
        return now_ms - self.last_pull_ms > idle_ms

    def drop(self) -> None:
        """No message of this queue is handed out from now on, and results that still come are
        ignored.
        """
        self.dropped = True

    def clear(self) -> None:
        """Forget every batch; for a dropped queue, whose messages nobody waits for."""
        self._batches.clear()
        self.count = self.body_bytes = 0
