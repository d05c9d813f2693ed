"""One replica under a controller: what it was told, what it promised, and the one task that makes
the broker follow suit.

    start ─> SLAVE of nobody ─assignment: another is master─> SLAVE, follows ─this one─> MASTER
                   ^                                                                        │
                   └── deposed: fenced, another assignment, or its store failed <───────────┘

Decides: which assignment counts, when a role changes, what is reported. Does not decide who leads
(the controller) or how a store becomes a master's (``RoleTransition``, which is the broker). Made
by the actor shell, given to ``Broker``; everything runs in its loop.

Invariants: nobody becomes master but by an assignment of an epoch that is not older than any seen
here, and that this log has not been written under before; one role change at a time; from the
moment on in which this replica learns of a later epoch it acknowledges nothing as master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from rmq_ray.clock import Clock
from rmq_ray.errors import RmqError
from rmq_ray.model.replica_roles import Assignment, ReplicaReport, Role, slave_id
from rmq_ray.protocol.election.replication import LEASE_MS
from rmq_ray.server.base.waits import wait_at_most

log = logging.getLogger("rmq_ray.server.replication.leadership")
RETRY_S = 1.0
NO_ID = -1
"""Broker id of a replica that does not know yet whose slave it is; it is not registered."""
Propose = Callable[[int, tuple[int, ...]], None]


class RoleTransition(Protocol):
    """The broker, as it changes its role."""

    def facts(self) -> ReplicaReport | None:
        """What its store says; None while there is none to serve from."""
        ...

    def fault(self) -> str:
        """Why there is no store, empty while it is read."""
        ...

    def depose(self) -> None:
        """At once: answer nothing more as master; connections of clients are closed."""
        ...

    async def reopen(self, broker_id: int, epoch: int | None) -> None:
        """Close the store and open it anew: as a follower, or (``epoch``) as the master whose log
        begins that epoch. Raises the store's errors.
        """
        ...

    async def follow(self, broker_id: int, address: str, epoch: int) -> None:
        """Follow the master of ``epoch`` there; whom it followed before is left."""
        ...

    async def rest(self) -> None:
        """Follow nobody; on return nothing changes the log any more."""
        ...

    def approve(self, members: tuple[int, ...]) -> None:
        """Of a master: the replicas that may be elected, as the controller keeps them."""
        ...


class Leadership:
    """``propose(master epoch, replicas)``: tells the controller whom this master wants in the sync
    state set; called in the loop, returns at once.
    """

    def __init__(self, replica: int, propose: Propose) -> None:
        self.replica = replica
        self.propose = propose
        self.assignment: Assignment | None = None
        self.fenced = 0
        """The highest epoch heard of."""
        self.master_epoch = 0
        """Under which this replica is master now; 0 = it is not."""
        self.role_changes = 0
        self._transition: RoleTransition | None = None
        self._clock: Clock | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._changing = True
        self._deposed = False
        self._followed = (0, "", 0)
        self._promised_until_ms = self._held_until_ms = 0.0
        self._polled = False
        self._fault = ""

    # --- the broker's -----------------------------------------------------------------------------

    def begin(
        self, transition: RoleTransition, clock: Clock, on_fatal: Callable[[object], None]
    ) -> None:
        """The broker has opened as a follower. A log with something in it may belong to a process
        that polled a moment ago: its promise holds.
        """
        self._transition, self._clock, self._changing = transition, clock, False
        facts = transition.facts()
        if facts is not None and (facts.end or facts.newest_epoch):
            self.promise()
            self._polled = False

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                on_fatal(error)

        self._task = asyncio.get_running_loop().create_task(
            self._steer(), name=f"leadership of replica {self.replica}"
        )
        self._task.add_done_callback(ended)
        self._wake.set()

    async def end(self) -> None:
        """No further role changes."""
        self._deposed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def promise(self) -> None:
        """A poll leaves: the master counts on it that this replica is not promoted for ``LEASE_MS``
        from now on.
        """
        self._polled = True
        if self._clock is not None:
            self._promised_until_ms = self._clock.monotonic_ms() + LEASE_MS

    def leads(self, epoch: int) -> bool:
        """Whether a master of ``epoch`` may still go on, as far as is known here."""
        return epoch == self.master_epoch >= self.fenced and not self._deposed

    def known_epoch(self) -> int | None:
        """Under which name servers are told the master; None = a slave."""
        return self.master_epoch or None

    @property
    def members(self) -> tuple[int, ...]:
        """The sync state set as it was told last."""
        return self.assignment.sync_state_set if self.assignment is not None else (self.replica,)

    def store_lost(self) -> None:
        """The master's store failed: it is deposed, not opened again as a master's."""
        self._depose()

    # --- the controller's -------------------------------------------------------------------------

    def attend(self, assignment: Assignment) -> ReplicaReport:
        """Take what is not older than what is known; what follows from it runs by itself. Repeats
        are harmless.
        """
        known = self.assignment
        if (
            assignment.master_epoch >= self.fenced
            and assignment != known
            and (known is None or not known.newer_than(assignment))
        ):
            self.assignment, self.fenced = assignment, assignment.master_epoch
            if (
                self.master_epoch
                and self.leads(assignment.master_epoch)
                and self._transition is not None
            ):
                if known is None or assignment.newer_than(known):
                    self._transition.approve(assignment.sync_state_set)
            elif self.master_epoch:
                self._depose()
            self._wake.set()
        return self.report()

    def hold_sends(self, master_epoch: int, for_ms: int) -> ReplicaReport:
        """A master of that epoch writes nothing to its log for so long, or until it is told
        otherwise; what waits is still copied and acknowledged.
        """
        if self._clock is not None and self.leads(master_epoch):
            self._held_until_ms = self._clock.monotonic_ms() + max(0, for_ms)
        return self.report()

    @property
    def holds(self) -> bool:
        """Whether nothing is to be written just now."""
        return (
            self._held_until_ms > 0
            and self._clock is not None
            and self._clock.monotonic_ms() < self._held_until_ms
        )

    async def fence(self, master_epoch: int) -> ReplicaReport:
        """Nobody of a lower epoch is followed from now on; polls have stopped on return. A master
        of a lower epoch is deposed.
        """
        self.fenced = max(self.fenced, master_epoch)
        if self.master_epoch and self.master_epoch < self.fenced:
            self._depose()
        if self._transition is not None and self._followed[2] < self.fenced:
            self._followed = (0, "", 0)
            await self._transition.rest()  # also behind a fence that still waits for it
        self._polled = (
            False  # whoever elects after this was told how long the promise holds, and waits
        )
        self._wake.set()
        return self.report()

    def report(self) -> ReplicaReport:
        """What this replica says of itself now."""
        facts = self._transition.facts() if self._transition is not None else None
        now_ms = self._clock.monotonic_ms() if self._clock is not None else 0.0
        promise_ms = max(0, int(self._promised_until_ms - now_ms))
        if facts is None or self._changing or self._deposed:
            fault = self._fault or (
                self._transition.fault() if self._transition is not None else ""
            )
            known = facts or ReplicaReport(self.replica, Role.WAITING, "", "", 0, 0, 0, False, 0)
            return replace(known, role=Role.WAITING, promise_ms=promise_ms, error=fault)
        role = Role.MASTER if self.master_epoch else Role.SLAVE
        return replace(
            facts,
            role=role,
            promise_ms=promise_ms,
            master_epoch=self.master_epoch,
            error=self._fault,
        )

    # --- inside -----------------------------------------------------------------------------------

    def _depose(self) -> None:
        if self.master_epoch and not self._deposed and self._transition is not None:
            log.warning(
                "replica %d is not master of epoch %d any more", self.replica, self.master_epoch
            )
            self._deposed = True
            self._transition.depose()
            self._wake.set()

    async def _steer(self) -> None:
        """One change after the other, until nothing is to be changed; what fails is tried again."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._step()
                self._fault = ""
            except RmqError as error:
                log.error("replica %d: %s", self.replica, error)
                self._fault = f"{type(error).__name__}: {error}"
                await wait_at_most(self._wake, RETRY_S)
                self._wake.set()
            finally:
                self._changing = False

    async def _step(self) -> None:
        transition = self._transition
        assert transition is not None
        told = self.assignment
        if self._deposed:
            await self._to_follower(transition)
        elif told is None or told.master_epoch < self.fenced or told.master is None:
            return
        elif told.master != self.replica:
            await self._to_slave(transition, told.master, told.master_address, told.master_epoch)
        elif not self.master_epoch:
            await self._to_master(transition, told)

    async def _to_follower(self, transition: RoleTransition) -> None:
        self._changing, self._followed = True, (0, "", 0)
        self.role_changes += 1
        await transition.reopen(NO_ID, None)
        self.master_epoch, self._deposed = 0, False
        self._wake.set()

    async def _to_slave(
        self, transition: RoleTransition, master: int, address: str | None, epoch: int
    ) -> None:
        wanted = (slave_id(self.replica, master), address or "", epoch)
        if not address or wanted == self._followed:
            return
        self._followed = wanted
        await transition.follow(*wanted)

    async def _to_master(self, transition: RoleTransition, told: Assignment) -> None:
        facts = transition.facts()
        epoch = told.master_epoch
        if facts is None or facts.newest_epoch >= epoch:
            return  # an election of a life before this one: the controller holds another
        self._changing, self._followed = True, (0, "", 0)
        self.role_changes += 1
        await transition.rest()
        while (
            self._polled
            and self._clock is not None
            and (left_ms := self._promised_until_ms - self._clock.monotonic_ms()) > 0
        ):  # the controller waits, too
            await asyncio.sleep(left_ms / 1000)
        if epoch < self.fenced:
            return
        self.master_epoch, self._held_until_ms = epoch, 0.0
        try:
            await transition.reopen(0, epoch)
        except RmqError:
            self._deposed = True
            raise
        if self.fenced > epoch:
            self._depose()
        latest = self.assignment
        if self.leads(epoch) and latest is not None:
            log.info(
                "replica %d is master of %s in epoch %d", self.replica, told.broker_name, epoch
            )
            if latest != told:
                transition.approve(latest.sync_state_set)
