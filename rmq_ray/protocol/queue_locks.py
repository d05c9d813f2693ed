"""Which client may consume a queue in order: the broker's lock table (protocol-behaviour 13, end).

    free ─lock─> held by A, epoch 7 ──refresh of epoch 7──> the same, 60 s more
                      │ unlock of A: free                    │ 60 s without refresh: whoever asks
                                                             gets it, with a new epoch
                      │ A's last connection was closed by A's machine, and A is not heard of
                      │ for 5 s: the same as those 60 s
                      └ A asks for a lock anew (another life of the same client id): a new epoch

The epoch is the fence: it is new each time the queue changes hands, and a commit that names an
epoch counts only while that one is in force (``admits``). A refresh names its epoch, too, and gets
nothing once that is over: a late one cannot take back a queue that was given away. RocketMQ's own
clients know no epochs; they are told apart by their client ids alone, and every request of theirs
is both.

A process that was killed closes its connections at once, one behind a partition does not: so only
what the other end has closed counts as leaving, and only for clients that know epochs. These stop
by themselves before the 5 s are over when they lose a connection
(``client.consumer.assigned_queue``); RocketMQ's own go on for 30 s.

Decides: who holds a queue. Does not decide: what an orderly consumer does without it. Callers: the
broker's group handlers and its offset rule (a commit for a locked queue is taken from the holder
only).

Invariants: a queue of a group has at most one holder; a holder that was silent for 60 s may be
replaced, and one that left 5 s after it did; no epoch is given twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rmq_ray.model.groups import LockHolder
from rmq_ray.model.ids import MessageQueue

LOCK_LIFE_MS = 60_000  # rocketmq.broker.rebalance.lockMaxLiveTime
LEFT_GRACE_MS = 5_000  # for a client that lost its connection and makes another one
FORGET_AFTER_LIVES = (
    10  # a holder that was silent for that long has to begin anew even if nobody came meanwhile
)
LOCKS_MAX = 100_000  # of all groups; beyond it only refreshes are granted
NAME_LENGTH_MAX = 512  # of client id, group, topic: what clients make up must not fill the table


@dataclass(frozen=True, slots=True)
class Grant:
    """A queue that the asking client holds now. ``changed``: the epoch is a new one."""

    queue: MessageQueue
    epoch: int
    changed: bool


@dataclass(frozen=True, slots=True)
class HeldLock:
    """One entry of the table, as it is kept over a restart."""

    group: str
    queue: MessageQueue
    client_id: str
    epoch: int


@dataclass(slots=True)
class _Lock:
    client_id: str
    refreshed_ms: float
    epoch: int
    knows_epochs: bool


class QueueLocks:
    """Locks by (group, queue). ``now_ms`` is monotonic."""

    def __init__(self, life_ms: int = LOCK_LIFE_MS) -> None:
        self._life_ms = life_ms
        self._locks: dict[tuple[str, MessageQueue], _Lock] = {}
        self._left_ms: dict[str, float] = {}
        self._last_epoch = 0

    def load(self, held: Iterable[HeldLock], epoch_floor: int, now_ms: float) -> None:
        """After a restart: everybody keeps what he held for another 60 s. New epochs are greater
        than ``epoch_floor`` and all of ``held``.
        """
        self._locks = {
            (lock.group, lock.queue): _Lock(lock.client_id, now_ms, lock.epoch, False)
            for lock in held
        }
        self._last_epoch = max(
            [epoch_floor, self._last_epoch, *(lock.epoch for lock in self._locks.values())]
        )

    def left(self, client_id: str, now_ms: float) -> None:
        """The other end has closed the last connection of this client: unless it is heard of within
        ``LEFT_GRACE_MS``, its locks end then.
        """
        if self._locks:
            self._left_ms[client_id] = now_ms

    def returned(self, client_id: str) -> None:
        """The client is connected: what nobody else has taken meanwhile is its own again."""
        self._left_ms.pop(client_id, None)

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        now_ms: float,
        epochs: Mapping[MessageQueue, int] | None = None,
    ) -> list[Grant]:
        """The granted subset: free, expired, or already this client's (then refreshed).

        ``epochs``: of each queue the epoch to be refreshed, 0 or missing = a lock is asked for;
        None = a client that knows no epochs.
        """
        if not 0 < len(group) <= NAME_LENGTH_MAX or not 0 < len(client_id) <= NAME_LENGTH_MAX:
            return []
        self.returned(client_id)
        granted = []
        for queue in queues:
            grant = self._lock_one(
                (group, queue), client_id, now_ms, None if epochs is None else epochs.get(queue, 0)
            )
            if grant is not None:
                granted.append(grant)
        return granted

    def _lock_one(
        self, key: tuple[str, MessageQueue], client_id: str, now_ms: float, epoch: int | None
    ) -> Grant | None:
        held, queue = self._locks.get(key), key[1]
        if (
            held is not None
            and held.client_id == client_id
            and (epoch is None or epoch == held.epoch)
        ):
            held.refreshed_ms, held.knows_epochs = now_ms, epoch is not None
            return Grant(queue, held.epoch, False)
        if epoch:
            return None
        if held is None and (
            len(self._locks) >= LOCKS_MAX
            or len(queue.topic) > NAME_LENGTH_MAX
            or len(queue.broker_name) > NAME_LENGTH_MAX
        ):
            return None
        if held is not None and held.client_id != client_id and now_ms <= self._ends_ms(held):
            return None
        self._last_epoch += 1
        self._locks[key] = _Lock(client_id, now_ms, self._last_epoch, epoch is not None)
        return Grant(queue, self._last_epoch, True)

    def unlock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        epochs: Mapping[MessageQueue, int] | None = None,
    ) -> list[MessageQueue]:
        """Gives up the locks that this client holds (with ``epochs``: under these); others stay.
        Those that were given up.
        """
        freed = []
        for queue in queues:
            held = self._locks.get((group, queue))
            if (
                held is not None
                and held.client_id == client_id
                and (epochs is None or epochs.get(queue) == held.epoch)
            ):
                del self._locks[group, queue]
                freed.append(queue)
        return freed

    def holder(self, group: str, queue: MessageQueue, now_ms: float) -> str | None:
        """Client id of the holder, ``None`` when free or expired."""
        held = self._locks.get((group, queue))
        return held.client_id if held is not None and now_ms <= self._ends_ms(held) else None

    def holding(self, group: str, queue: MessageQueue, now_ms: float) -> LockHolder | None:
        """Who holds the queue and for how long if nothing is heard of him; ``None`` when free or
        expired.
        """
        held = self._locks.get((group, queue))
        if held is None or now_ms > (ends_ms := self._ends_ms(held)):
            return None
        return LockHolder(held.client_id, round(ends_ms - now_ms), held.client_id in self._left_ms)

    def of_group(self, group: str, now_ms: float) -> dict[MessageQueue, LockHolder]:
        """The same of all queues that are held in a group."""
        return {
            queue: holder
            for name, queue in sorted(key for key in self._locks if key[0] == group)
            if (holder := self.holding(name, queue, now_ms)) is not None
        }

    def admits(self, group: str, queue: MessageQueue, epoch: int) -> bool:
        """Whether what was done under ``epoch`` counts: nobody else has had the queue since. A lock
        that ran out unnoticed still does.
        """
        held = self._locks.get((group, queue))
        return held is not None and held.epoch == epoch

    def expire(self, now_ms: float) -> list[HeldLock]:
        """Forgets locks whose holders were silent for ten lives; those forgotten."""
        self._left_ms = {
            client_id: left_ms
            for client_id, left_ms in self._left_ms.items()
            if now_ms - left_ms <= self._life_ms  # all its locks are over by then anyway
        }
        gone = [
            key
            for key, held in self._locks.items()
            if now_ms - held.refreshed_ms > FORGET_AFTER_LIVES * self._life_ms
        ]
        return [
            HeldLock(*key, (held := self._locks.pop(key)).client_id, held.epoch) for key in gone
        ]

    def _ends_ms(self, held: _Lock) -> float:
        ends_ms = held.refreshed_ms + self._life_ms
        left_ms = self._left_ms.get(held.client_id) if held.knows_epochs else None
        return ends_ms if left_ms is None else min(ends_ms, left_ms + LEFT_GRACE_MS)

    def held(self) -> list[HeldLock]:
        """The whole table."""
        return [
            HeldLock(group, queue, held.client_id, held.epoch)
            for (group, queue), held in self._locks.items()
        ]

    def __len__(self) -> int:
        return len(self._locks)
