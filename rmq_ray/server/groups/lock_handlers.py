"""Locks of queues for ordered consumption: LOCK_BATCH_MQ 41, UNLOCK_BATCH_MQ 42 (protocol-behaviour
13 end, 16; remoting 3).

Decides: that no lock is granted which a restarted broker would not know. Does not decide who gets
one (``protocol.queue_locks``) nor what a commit without a lock is worth
(``server.groups.offset_handlers``). Called by the broker core, in its loop.

Invariants: a change of hands lies in the journal before its answer leaves; no lock of one master
has the epoch of another's, so that what a holder does who does not know yet that his broker was
replaced counts for nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rmq_ray.clock import Clock
from rmq_ray.errors import StoreError, StoreNotReady
from rmq_ray.model.groups import LockHolder
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import Peer
from rmq_ray.protocol.queue_locks import HeldLock, QueueLocks
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.store.tables.lock_journal import LockJournal, LockLine

log = logging.getLogger("rmq_ray.server.locks")
EPOCH_BITS = 44  # times in ms need 41: epochs of locks that no election preceded begin with one


class LockHandlers:
    """See the module."""

    def __init__(self, locks: QueueLocks, journal: LockJournal, clock: Clock) -> None:
        self._locks = locks
        self._journal = journal
        self._clock = clock
        self._closed = False

    def load(self, found: tuple[list[LockLine], int], epoch: int = 0) -> None:
        """What the journal said. Epochs go on from there, and from the clock where the journal was
        lost; those of an elected master's ``epoch`` are greater than all of the
        epochs before, whoever gave them.
        """
        lines, highest = found
        highest = max(highest, epoch << EPOCH_BITS)
        held = [
            HeldLock(line.group, line.queue, line.client_id, line.epoch)
            for line in lines
            if line.client_id is not None
        ]
        self._locks.load(held, max(highest, self._clock.now_ms()), self._clock.monotonic_ms())

    def lock(self, command: Command, peer: Peer) -> Command:
        """41. A client of ours says which epochs it holds and is told those that it gets."""
        if self._closed:
            raise StoreNotReady("the broker is stopping; lock again")
        group, client_id, queues, epochs = _asked(command)
        granted = self._locks.lock(group, client_id, queues, self._clock.monotonic_ms(), epochs)
        changed = [grant for grant in granted if grant.changed]
        if changed and not self._written(
            [LockLine(grant.epoch, client_id, group, grant.queue) for grant in changed]
        ):
            self._locks.unlock(group, client_id, [grant.queue for grant in changed])
            granted = [grant for grant in granted if not grant.changed]
        return command.answer(
            body=bodies.encode_locked(
                [grant.queue for grant in granted],
                None if epochs is None else [grant.epoch for grant in granted],
                {} if epochs is None else self._holders(group, queues, client_id),
            )
        )

    def _holders(
        self, group: str, queues: Iterable[MessageQueue], client_id: str
    ) -> dict[MessageQueue, LockHolder]:
        """Whom those wait for who were not granted a queue."""
        now_ms = self._clock.monotonic_ms()
        found = {queue: self._locks.holding(group, queue, now_ms) for queue in queues}
        return {
            queue: holder
            for queue, holder in found.items()
            if holder is not None and holder.client_id != client_id
        }

    def unlock(self, command: Command, peer: Peer) -> Command:
        """42. A lock whose end could not be written is free all the same: after a restart it runs
        out by itself.
        """
        group, client_id, queues, epochs = _asked(command)
        self._written(
            [
                LockLine(0, None, group, queue)
                for queue in self._locks.unlock(group, client_id, queues, epochs)
            ]
        )
        return command.answer()

    def housekeeping(self) -> None:
        """Forget locks of clients that are gone for good; shorten the journal."""
        self._written(
            [
                LockLine(0, None, lock.group, lock.queue)
                for lock in self._locks.expire(self._clock.monotonic_ms())
            ]
        )
        if self._journal.is_long(len(self._locks)):
            try:
                self._journal.rewrite(
                    [
                        LockLine(lock.epoch, lock.client_id, lock.group, lock.queue)
                        for lock in self._locks.held()
                    ]
                )
            except StoreError as error:
                log.warning("the journal of queue locks was not shortened: %s", error)

    def close(self) -> None:
        """Grant and write nothing more: the store's own lock goes now."""
        self._closed = True
        self._journal.close()

    def _written(self, lines: list[LockLine]) -> bool:
        if self._closed:
            return False
        try:
            self._journal.append(lines)
        except StoreError as error:
            log.error(
                "changes of %d queue locks could not be written, none of them is granted: %s",
                len(lines),
                error,
            )
            return False
        return True


def _asked(command: Command) -> tuple[str, str, list[MessageQueue], dict[MessageQueue, int] | None]:
    """(group, client id, queues, their epochs or None from RocketMQ's own clients)."""
    body = command.body_bytes()
    group, client_id, queues = bodies.decode_lock(body)
    told = bodies.decode_lock_epochs(body)
    return group, client_id, queues, None if told is None else dict(zip(queues, told, strict=False))
