"""Which client may consume a queue in order: the broker's lock table (protocol-behaviour 13, end).

Decides: who holds a queue. Does not decide: what an orderly consumer does without it. Callers: the broker's group handlers and
its offset rule (a commit for a locked queue is taken from the holder only).

Invariant: a queue of a group has at most one holder; a holder that was silent for 60 s may be replaced. Memory only, per broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rmq_ray.model.ids import MessageQueue

LOCK_LIFE_MS = 60_000  # rocketmq.broker.rebalance.lockMaxLiveTime
LOCKS_MAX = 100_000  # of all groups; beyond it only refreshes are granted


@dataclass(slots=True)
class _Lock:
    client_id: str
    refreshed_ms: float


class QueueLocks:
    """Locks by (group, queue). ``now_ms`` is monotonic."""

    def __init__(self, life_ms: int = LOCK_LIFE_MS) -> None:
        self._life_ms = life_ms
        self._locks: dict[tuple[str, MessageQueue], _Lock] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: float) -> list[MessageQueue]:
        """The granted subset: free, expired, or already this client's (then refreshed)."""
        granted = []
        for queue in queues:
            held = self._locks.get((group, queue))
            if held is None:
                if len(self._locks) >= LOCKS_MAX:
                    continue
                self._locks[group, queue] = _Lock(client_id, now_ms)
            elif held.client_id == client_id or now_ms - held.refreshed_ms > self._life_ms:
                held.client_id, held.refreshed_ms = client_id, now_ms
            else:
                continue
            granted.append(queue)
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Gives up the locks that this client holds; others stay."""
        for queue in queues:
            held = self._locks.get((group, queue))
            if held is not None and held.client_id == client_id:
                del self._locks[group, queue]

    def holder(self, group: str, queue: MessageQueue, now_ms: float) -> str | None:
        """Client id of the holder, ``None`` when free or expired."""
        held = self._locks.get((group, queue))
        return held.client_id if held is not None and now_ms - held.refreshed_ms <= self._life_ms else None

    def expire(self, now_ms: float) -> None:
        """Forgets locks that anyone may take."""
        for key in [key for key, held in self._locks.items() if now_ms - held.refreshed_ms > self._life_ms]:
            del self._locks[key]

    def __len__(self) -> int:
        return len(self._locks)
