"""The broker's book of popped messages: the table of leases, its journal, and the groups' commit
offsets, kept in step.

    change ──> journal (kernel) ──> PopTable ──> OffsetTable, when the commit offset moved

Decides: the order of these (a change that cannot be written is refused and has not happened), when
the journal is written anew, what a restart and a cut of the log leave of it, and that a commit
offset which somebody else moved (an administrator, a push consumer that took the group over) voids
the leases of its queue. Does not decide who gets what (``pop_handlers``) or what expired messages
become (``pop_service``). Everything but ``read`` runs in the broker's loop.

Invariants: what ``ack`` and ``change`` accepted survives the process; nothing is granted or
accepted while the journal cannot be written.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rmq_ray.clock import Clock
from rmq_ray.errors import BrokerBusy, RmqError, StoreError
from rmq_ray.protocol.pop import (
    Event,
    EventKind,
    Expired,
    Key,
    PopQueue,
    PopTable,
    grant_event,
    mask_bytes,
)
from rmq_ray.remoting.wire.pops import PopRecords
from rmq_ray.server.base.offload import Offload
from rmq_ray.server.tables.offset_table import Commit, OffsetTable, cut_offset
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.tables.pop_journal import PopHistory, PopJournal

log = logging.getLogger("rmq_ray.server.pop")
QUEUES_MAX = 200_000
JOURNAL_BYTES_MIN = 4 << 20  # below, the journal is not written anew
IDLE_MS = 300_000  # a queue that nobody pops and of which nothing is out is forgotten
CHECKED_MAX = 2_000  # queues that are looked at in one tick
COMMITTER = "pop"  # stands as the client of every commit made here


@dataclass(slots=True)
class PopCounters:
    """Messages, since the start."""

    popped: int = 0
    acknowledged: int = 0
    stale: int = 0
    redelivered: int = 0
    dead: int = 0


class PopLedger:
    """``freed(group)``: told when a group may get what it could not before: a queue was full, or
    the group was moved.

    ``full``: queues that a pop found full; who finds one adds it.
    """

    def __init__(
        self,
        journal: PopJournal,
        offsets: OffsetTable,
        clock: Clock,
        offload: Offload,
        freed: Callable[[str], None],
    ) -> None:
        self._journal = journal
        self._offsets = offsets
        self._clock = clock
        self._offload = offload
        self._freed = freed
        self._history: PopHistory | None = None
        self._buffer: list[Event] | None = None
        self._rewrite_at = JOURNAL_BYTES_MIN
        self._writable = False
        self._last_id = 0
        self._epoch = 0
        self._to_check: list[Key] = []
        self._loaded = False
        self._closed = False
        self.table = PopTable()
        self.counters = PopCounters()
        self.full: set[Key] = set()

    # --- life -------------------------------------------------------------------------------------

    def read(self) -> None:
        """In a thread, before ``serving``: what the last life of the broker left. Nothing once it
        was read: memory is newer.
        """
        if not self._loaded:
            self._history = self._journal.read()

    def serving(self, store: MessageStore) -> None:
        """The store is recovered: take over what the journal says, void what the log does not have
        any more, write the journal anew.
        """
        history, self._history = self._history, None
        if history is not None and not self._loaded:
            self._replay(history, store)
        for key, queue in self.table.queues.items():
            high = store.bounds(key[1], key[2])[1]
            if queue.next_offset > high:
                queue.cut(high)
        self._loaded, self._epoch = True, store.epoch
        self._rewrite()

    def tick(self) -> None:
        """Once a second: notice commits that others made, forget idle queues, write the journal
        anew where it is large or broken.
        """
        if not self._loaded:
            return
        with contextlib.suppress(BrokerBusy):  # the next turn does it
            self._forget_idle()
        if self._buffer is None and (not self._writable or self._journal.size > self._rewrite_at):
            self._rewrite()

    def close(self) -> None:
        """No further changes."""
        self._writable, self._closed = False, True
        self._journal.close()

    def status(self) -> dict[str, int]:
        """Counts, of now and since the start."""
        queues = self.table.queues.values()
        counters = self.counters
        return {
            "queues": len(queues),
            "in_flight": sum(queue.in_flight for queue in queues),
            "journal_bytes": self._journal.size,
            "popped": counters.popped,
            "acknowledged": counters.acknowledged,
            "stale": counters.stale,
            "redelivered": counters.redelivered,
            "dead": counters.dead,
        }

    # --- changes ----------------------------------------------------------------------------------

    def queue(self, key: Key, first: Callable[[], int]) -> PopQueue:
        """The queue's state; one that nobody popped yet begins at the group's commit offset, else
        at ``first()``. Raises ``BrokerBusy``.
        """
        found = self._checked(key)
        if found is None:
            if len(self.table.queues) >= QUEUES_MAX:
                raise BrokerBusy(
                    f"{QUEUES_MAX} queues are popped on this broker already; use fewer "
                    f"groups or queues"
                )
            stored = self._offsets.query(key[1], key[0], key[2])
            self._record((EventKind.RESET, *key, first() if stored is None else stored))
            found = self.table.queues[key]
            found.committed = found.next_offset
            if stored is None:
                self._commit(key, found.next_offset)
        found.used_ms = self._clock.now_ms()
        return found

    def expect(self, key: Key, first: int) -> None:
        """The group gets a message of this queue, which it may never have asked: from here on the
        queue counts in what it lacks, from ``first`` on where it has no offset.
        """
        group, topic, queue_id = key
        if self._offsets.query(topic, group, queue_id) is None:
            self._offsets.commit(topic, group, queue_id, first, COMMITTER, administrator=True)

    def find(self, key: Key) -> PopQueue | None:
        """The state of a queue that is popped."""
        return self._checked(key)

    def next_offset(self, key: Key) -> int:
        """Where the next pop begins: behind all that was handed out; 0 where nobody began."""
        queue = self._checked(key)
        if queue is not None:
            return queue.next_offset
        return self._offsets.query(key[1], key[0], key[2]) or 0

    def grant(
        self, key: Key, offsets: Sequence[int], next_offset: int, pop: PopRecords
    ) -> tuple[int, int]:
        """(lease id, deadline ms) of a new lease on these messages. Raises ``BrokerBusy`` when it
        cannot be written down.
        """
        now_ms = self._clock.now_ms()
        self._last_id = max(self._last_id + 1, now_ms << 16)
        deadline_ms = now_ms + pop.invisible_ms
        self._record(
            grant_event(
                key, self._last_id, deadline_ms, pop.retries_max, offsets, next_offset, pop.attempt
            )
        )
        self.counters.popped += len(offsets)
        self._progress(key)
        return self._last_id, deadline_ms

    def skip(self, key: Key, queue: PopQueue, next_offset: int) -> None:
        """Nothing for the group lies below ``next_offset``."""
        queue.skip(next_offset)
        self._progress(key)

    def restart_at(self, key: Key, next_offset: int) -> None:
        """The queue does not have the next offset: begin again where it has messages. Receipts are
        void.
        """
        self._record((EventKind.RESET, *key, next_offset))
        self._progress(key)

    def ack(self, key: Key, lease_id: int, mask: int) -> int:
        """These are done; the mask of those whose receipts are stale. Safe to repeat."""
        queue = self._checked(key)
        stale = mask if queue is None else queue.stale(lease_id, mask)
        done = 0 if queue is None else queue.openable(lease_id, mask)
        if done:
            self._record((EventKind.ACK, *key, lease_id, mask_bytes(done)))
            self.counters.acknowledged += done.bit_count()
            self._progress(key)
        self.counters.stale += stale.bit_count()
        return stale

    def change(self, key: Key, lease_id: int, mask: int, delay_ms: int, reject: bool) -> int:
        """These come again in ``delay_ms``, or go to the dead letters; the mask of those whose
        receipts are stale.
        """
        queue = self._checked(key)
        stale = mask if queue is None else queue.stale(lease_id, mask)
        touched = 0 if queue is None else queue.openable(lease_id, mask)
        if touched:
            self._record(
                (
                    EventKind.CHANGE,
                    *key,
                    lease_id,
                    mask_bytes(touched),
                    self._clock.now_ms() + delay_ms,
                    int(reject),
                )
            )
        self.counters.stale += stale.bit_count()
        return stale

    def moved(self, expired: Expired) -> None:
        """The copy of an expired message is durable, or it cannot be had any more."""
        queue = self._checked(expired.key)
        if queue is None or queue.lease(expired.lease_id) is None:
            return  # voided meanwhile
        self._record(
            (EventKind.MOVED, *expired.key, expired.lease_id, mask_bytes(1 << expired.index))
        )
        self._progress(expired.key)

    # --- inside -----------------------------------------------------------------------------------

    def _forget_idle(self) -> None:
        now_ms = self._clock.now_ms()
        if not self._to_check:
            self._to_check = list(self.table.queues)
        some, self._to_check = self._to_check[-CHECKED_MAX:], self._to_check[:-CHECKED_MAX]
        for key in some:
            queue = self._checked(key)
            if queue is not None and queue.idle and now_ms - queue.used_ms > IDLE_MS:
                self._record((EventKind.FORGET, *key))

    def _checked(self, key: Key) -> PopQueue | None:
        """The queue's state; None, and forgotten, where somebody else moved or removed the group's
        offset.
        """
        queue = self.table.queues.get(key)
        if queue is None:
            return None
        stored = self._offsets.query(key[1], key[0], key[2])
        if stored == queue.committed:
            return queue
        if queue.in_flight:
            log.info(
                "offset of group %s in queue %d of %s was set to %s: receipts of what is out "
                "there are void",
                key[0],
                key[2],
                key[1],
                stored,
            )
        self._record((EventKind.FORGET, *key))
        self._freed(key[0])
        return None

    def _record(self, event: Event) -> None:
        if not self._writable:
            raise BrokerBusy("the broker cannot write down what is popped just now; try again")
        try:
            self._journal.append((event,))
        except StoreError as error:
            self._writable = False
            log.error("the journal of popped messages failed, it is written anew: %s", error)
            raise BrokerBusy(
                f"the broker cannot write down what is popped: {error}; try again"
            ) from error
        if self._buffer is not None:
            self._buffer.append(event)
        self.table.apply(event)

    def _progress(self, key: Key) -> None:
        queue = self.table.queues[key]
        commit = queue.commit_offset
        if commit != queue.committed:
            self._commit(key, commit)
        if key in self.full:
            self.full.discard(key)
            self._freed(key[0])

    def _commit(self, key: Key, offset: int) -> None:
        if (
            self._offsets.commit(key[1], key[0], key[2], offset, COMMITTER, administrator=True)
            is Commit.REFUSED
        ):
            raise BrokerBusy(
                "the broker has no room for the offsets of another group; delete groups that "
                "are not used"
            )
        self.table.queues[key].committed = offset

    def _replay(self, history: PopHistory, store: MessageStore) -> None:
        for event in history.events:
            try:
                self.table.apply(tuple(event))
            except ValueError as error:
                log.warning("the journal of popped messages ends early: %s", error)
                break
        for key, queue in list(self.table.queues.items()):
            cut = cut_offset(store, key[1], key[2], queue.next_offset, history.epoch)
            if cut is not None:
                queue.cut(cut)
            stored = self._offsets.query(key[1], key[0], key[2])
            if stored is not None and stored > queue.commit_offset:
                queue.reset(stored)  # the journal lost its end with the host's power
                queue.committed = stored
            else:  # the offsets' file is up to 5 s behind, or was never written
                self._commit(key, queue.commit_offset)
            self._last_id = max(
                [
                    self._last_id,
                    *(lease.id for lease in queue.leases()),
                    *(lease_id for lease_id, _ in queue.finished()),
                ]
            )
        log.info(
            "%d messages are out at workers",
            sum(queue.in_flight for queue in self.table.queues.values()),
        )

    def _rewrite(self) -> None:
        """Write the journal as the table is now; what happens meanwhile goes to the old file and,
        after that, to the new one.
        """
        events, epoch = list(self.table.snapshot()), self._epoch
        self._buffer = []
        try:
            self._offload.submit(lambda: self._journal.write(epoch, events), self._rewritten)
        except RmqError as error:
            self._rewritten(error)

    def _rewritten(self, outcome: int | Exception) -> None:
        missed, self._buffer = self._buffer or [], None
        if self._closed:
            return
        try:
            if isinstance(outcome, Exception):
                raise outcome
            self._journal.reopen(outcome)
            self._journal.append(missed)
        except RmqError as error:
            log.error(
                "the journal of popped messages cannot be written, receives are refused: %s", error
            )
            self._writable = False
            return
        self._writable = True
        self._rewrite_at = max(JOURNAL_BYTES_MIN, 4 * self._journal.size)
