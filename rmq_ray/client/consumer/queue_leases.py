"""Locks of the queues that a consumer works on in order: asked for, refreshed, given back
(protocol-behaviour 13, 16).

    rebalance: lock (41) ──> QueueLease
        every 20 s, all of a broker in one request (41) ──> trusted 30 s more
        connection lost ──> trusted 3 s more, refreshed at once on a new one
        leave: wait for the listener ──> offset handed over ──> unlock (42) ──> another consumer's
        refused: its epoch is over ──> ``lost``

Decides when brokers are asked and what their answers mean. Does not decide who holds a queue (the
broker) or what may be done without a lock (``client.consumer.assigned_queue``). Its thread does
nothing but refresh: no listener and no rebalance holds a refresh up.

Invariants: a queue is unlocked only when no listener has messages of it and its offset was told;
only masters are asked.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from weakref import WeakValueDictionary

from rmq_ray.client.consumer.assigned_queue import AssignedQueue, QueueLease
from rmq_ray.client.consumer.consumer_parts import ConsumerParts
from rmq_ray.client.instance.timers import ClientTimers
from rmq_ray.clock import seconds_to
from rmq_ray.errors import RemotingError, RmqError
from rmq_ray.model.groups import LockHolder
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.remoting.wire.bodies import (
    decode_lock_holders,
    decode_locked_epochs,
    encode_lock,
)
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command

REFRESH_FIRST_MS = 1_000
TIMEOUT_MS = 1_000
# of all queues that a rebalance gives away: then they are asked again by the next one
LEAVE_WAIT_MS = 1_000

log = logging.getLogger("rmq_ray.client.locks")

Answer = tuple[dict[MessageQueue, int], dict[MessageQueue, LockHolder]]
"""Queue -> epoch of what was granted, queue -> holder of what was not."""


class QueueLeases:
    """Of one consumer. ``lost(work)``: somebody else has had the queue; called by the refreshing
    thread.
    """

    def __init__(self, parts: ConsumerParts, lost: Callable[[AssignedQueue], None]) -> None:
        self._parts = parts
        self._lost = lost
        self._timers = ClientTimers(parts.clock, f"rmq-locks-{parts.group}")
        self._gates: WeakValueDictionary[MessageQueue, threading.Lock] = WeakValueDictionary()
        self._waiting: dict[MessageQueue, LockHolder] = {}
        """Queues that somebody else holds, as last told."""

    def start(self) -> None:
        """Refresh from now on."""
        self._parts.client.watch_losses(self._connection_lost)
        self._timers.every(
            "refresh",
            self._parts.config.lock_refresh_ms,
            self.refresh,
            first_ms=min(REFRESH_FIRST_MS, self._parts.config.lock_refresh_ms),
        )
        self._timers.start()

    def stop(self) -> None:
        """No refresh begins after this."""
        self._parts.client.unwatch_losses(self._connection_lost)
        self._timers.close()

    # --- taking and leaving (rebalance thread) ----------------------------------------------------

    def lock(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, QueueLease]:
        """Ask for queues; those that were granted. The others belong to somebody else, or their
        broker could not be asked.
        """
        leases = {}
        held: dict[MessageQueue, LockHolder] = {}
        asked_ms = self._parts.clock.monotonic_ms()
        for broker_name, mine in _by_broker(queues).items():
            granted, holders = self._ask(broker_name, dict.fromkeys(mine, 0)) or ({}, {})
            held.update(holders)
            for queue in mine:
                if queue in granted:
                    leases[queue] = QueueLease(
                        granted[queue],
                        asked_ms,
                        self._parts.config.lock_trusted_ms,
                        self._gate(queue),
                    )
        self._note_waiting(queues, leases.keys(), held)
        return leases

    def waiting(self) -> dict[MessageQueue, LockHolder]:
        """Queues that this consumer waits for, and who holds them. Any thread."""
        return dict(self._waiting)

    def give_up(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Of this topic only ``queues`` are waited for any more."""
        gone = [q for q in self._waiting if q.topic == topic and q not in queues]
        if gone:
            self._waiting = {q: h for q, h in self._waiting.items() if q not in gone}

    def _note_waiting(
        self,
        queues: Collection[MessageQueue],
        granted: Collection[MessageQueue],
        held: Mapping[MessageQueue, LockHolder],
    ) -> None:
        """One line when a wait begins, or is for somebody else, and one when it ends."""
        before, now = self._waiting, dict(self._waiting)
        for queue in queues:
            known = before.get(queue)
            if queue in granted:
                if now.pop(queue, None) is not None:
                    log.info("the lock of %s came from %s", queue, known and known.client_id)
            elif (holder := held.get(queue)) is not None:
                now[queue] = holder
                if known is None or known.client_id != holder.client_id:
                    log.info(
                        "%s waits for the lock of consumer %s%s: %.0f s unless it is refreshed or "
                        "given back",
                        queue,
                        holder.client_id,
                        ", whose connection has closed" if holder.left else "",
                        holder.ends_in_ms / 1000,
                    )
        self._waiting = now

    def leave(
        self, works: Collection[AssignedQueue], let_go: Callable[[AssignedQueue], None]
    ) -> int:
        """Give queues away: ``let_go(work)`` hands the offset over, then the lock goes. How many
        were given away.

        A queue whose listener still runs after 1 s stays, still locked; nothing more of it is
        handed out. Ask again then.
        """
        for work in works:
            if work.lease is not None:
                work.lease.leaving = True
        deadline_ms = self._parts.clock.monotonic_ms() + LEAVE_WAIT_MS
        left = 0
        for work in works:
            lease = work.lease
            if lease is None:
                let_go(work)
            elif lease.gate.acquire(timeout=seconds_to(self._parts.clock, deadline_ms)):
                try:
                    let_go(work)
                    self.unlock({work.queue: lease.epoch})
                finally:
                    lease.gate.release()
            else:
                log.info("queue %s is given away when its listener has ended", work.queue)
                continue
            left += 1
        return left

    def stay(self, work: AssignedQueue) -> bool:
        """The queue is kept after all; True when it was about to be given away."""
        lease = work.lease
        if lease is None or not lease.leaving:
            return False
        lease.leaving = False
        return True

    def unlock(self, epochs: Mapping[MessageQueue, int]) -> None:
        """Give locks back (42), each only if it is still the one of this epoch. What could not be
        told runs out after 60 s.
        """
        for broker_name, mine in _by_broker(epochs).items():
            address = self._parts.client.broker_address(broker_name)
            if address is None:
                continue
            body = encode_lock(
                self._parts.group,
                self._parts.client.client_id,
                mine,
                [epochs[queue] for queue in mine],
            )
            try:
                self._parts.client.invoke(
                    address, Command(RequestCode.UNLOCK_BATCH_MQ, body=body), TIMEOUT_MS
                )
            except RemotingError as error:
                log.info(
                    "locks of %d queues of %s were not given back, they run out: %s",
                    len(mine),
                    broker_name,
                    error,
                )

    def unlock_all(self) -> None:
        """At the end: every queue that no listener has messages of. The others stay locked until
        they run out.
        """
        free = {}
        for queue, work in self._parts.assigned.snapshot().items():
            if work.lease is not None and work.lease.gate.acquire(blocking=False):
                free[queue] = work.lease.epoch
                work.lease.gate.release()
        self.unlock(free)

    # --- keeping (thread of its own) --------------------------------------------------------------

    def refresh(self) -> None:
        """Every held queue, one request for each broker."""
        works = self._parts.assigned.snapshot()
        for mine in _by_broker(works).values():
            self._refresh([works[queue] for queue in mine])

    def refresh_soon(self) -> None:
        """Now, in the refreshing thread: a broker answers again."""
        self._timers.after(0, self.refresh)

    def _connection_lost(self, address: Address) -> None:
        """The broker gives the locks away some seconds after it saw the same. A reader thread."""
        now_ms = self._parts.clock.monotonic_ms()
        lost = [
            work.lease
            for queue, work in self._parts.assigned.snapshot().items()
            if work.lease is not None
            and self._parts.client.broker_address(queue.broker_name) == address
        ]
        for lease in lost:
            lease.connection_lost(now_ms)
        if lost:
            self.refresh_soon()

    def relock(self, work: AssignedQueue, delay_ms: float, then: Callable[[bool], None]) -> None:
        """Refresh one queue in ``delay_ms``; ``then(granted)``, in the refreshing thread."""
        self._timers.after(delay_ms, partial(self._relock, work, then))

    def _relock(self, work: AssignedQueue, then: Callable[[bool], None]) -> None:
        then(self._refresh([work]))

    def _refresh(self, works: list[AssignedQueue]) -> bool:
        """Queues of one broker; True when all were granted."""
        asked_ms = self._parts.clock.monotonic_ms()
        epochs = {work.queue: work.lease.epoch for work in works if work.lease is not None}
        answer = self._ask(works[0].queue.broker_name, epochs)
        if answer is None:
            return False
        granted = answer[0]
        for work in works:
            if work.lease is None:
                continue
            if granted.get(work.queue) == work.lease.epoch:
                work.lease.refreshed(asked_ms)
            elif self._parts.assigned.get(work.queue) is work and not work.process.dropped:
                log.warning(
                    "lock %d of %s is over: another consumer may have had it; it is taken anew",
                    work.lease.epoch,
                    work.queue,
                )
                self._lost(work)
        return granted == epochs

    # --- asking -----------------------------------------------------------------------------------

    def _ask(self, broker_name: str, epochs: Mapping[MessageQueue, int]) -> Answer | None:
        """LOCK_BATCH_MQ: what was granted and who holds the rest, None when the master could not be
        asked.
        """
        client = self._parts.client
        address = client.broker_address(broker_name)
        if not epochs or address is None:
            return None
        asked = encode_lock(self._parts.group, client.client_id, epochs.keys(), epochs.values())
        try:
            answer = client.invoke(
                address, Command(RequestCode.LOCK_BATCH_MQ, body=asked), TIMEOUT_MS
            )
            if answer.code != ResponseCode.SUCCESS:
                log.info(
                    "locks of %d queues refused by %s: code %d %s",
                    len(epochs),
                    broker_name,
                    answer.code,
                    answer.remark or "",
                )
                return None
            body = answer.body_bytes()
            return decode_locked_epochs(body), decode_lock_holders(body)
        except RmqError as error:
            log.info("locks of %d queues not asked for at %s: %s", len(epochs), broker_name, error)
            return None

    def _gate(self, queue: MessageQueue) -> threading.Lock:
        gate = self._gates.get(queue)
        if gate is None:
            gate = self._gates[queue] = threading.Lock()
        return gate


class OwnQueues(QueueLeases):
    """Of a broadcasting consumer: it has every queue for itself, no broker is asked
    (protocol-behaviour 16: locks are for clustering).
    """

    def unlock(self, epochs: Mapping[MessageQueue, int]) -> None:
        """There is nothing to give back."""

    def _ask(self, broker_name: str, epochs: Mapping[MessageQueue, int]) -> Answer:
        return dict(epochs), {}


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in sorted(queues):
        found[queue.broker_name].append(queue)
    return found
