"""Drives the rules of succession of one broker name: calls every replica, writes the ledger, has
the rules decide.

    attendants, one a replica: attend | fence every 300 ms ─reports─> rules.step ─> ledger fsynced
        ─> rules.fsynced ─> attendants, at once
                                                                ^
    proposals of the master, promotions by hand ────────────────┘

Decides how calls and disks fail, nothing about who is master (``protocol.election.promotion``).
Made by the controller, in whose loop everything runs; the ledger is written beside it.

Invariants: one call to a replica is awaited at a time; one decision at a time; no look-ups: a
handle is kept for as long as the actor lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from rmq_ray.actors import gateway, names
from rmq_ray.actors.control.plan import ClusterPlan
from rmq_ray.actors.shell import exit_hard, spawn
from rmq_ray.clock import SYSTEM_CLOCK, Clock
from rmq_ray.config import ReplicationMode
from rmq_ray.errors import ClusterError, PromotionRefused, RmqError, StoreError, StoreInUse
from rmq_ray.files import FileSystem
from rmq_ray.model.replica_roles import Assignment, ReplicaReport, Role, Standing
from rmq_ray.protocol.election.promotion import Rules
from rmq_ray.protocol.election.succession import Call, Succession, without_removed
from rmq_ray.server.base.offload import ThreadOffload
from rmq_ray.store.tables.ledger import Entry, Ledger

log = logging.getLogger("rmq_ray.controller")
T = TypeVar("T")
ATTEND_S = 0.3
# who ceased to answer, or reads its disk again, is asked so often for a while: Ray starts a killed
# process again within a second or two, and nobody sends meanwhile
HURRY_S, HURRY_MS = 0.05, 5_000
CALL_S = 1.0
NODES_S = 1.0
LEDGER_PAUSE_S = 1.0
LEDGER_WAIT_MS = 10_000
CLOSE_S = 2.0
START_GRACE_MS = 15_000.0
HOLD_MS = 8_000  # sends are refused so long, at most, while the heir fetches the rest
DRAIN_MS = 5_000
PROMOTE_MS = 45_000
POLL_S = 0.02
AskReplica = Callable[[int, str, tuple[Any, ...], float], Awaitable[Any]]
"""(replica, method, arguments, time-out in s) -> its answer; ``RmqError`` where there is none."""
WriteLedger = Callable[[str, Entry], Awaitable[None]]
"""(broker name, what is to be on the disk); raises the ledger's errors."""


class Election:
    """Of one broker name. ``entry``: what the ledger had; ``write``: durable on return; ``ask``:
    calls a replica's actor; ``grace_ms``: see ``Succession``.
    """

    def __init__(
        self,
        rules: Rules,
        entry: Entry,
        write: WriteLedger,
        ask: AskReplica,
        clock: Clock,
        grace_ms: float = 0.0,
    ) -> None:
        self.name = rules.broker_name
        self.stores = dict(entry.stores)
        self.rules = Succession(rules, entry.standing, clock.monotonic_ms(), grace_ms)
        self._write = write
        self._ask = ask
        self._clock = clock
        self._deciding = asyncio.Lock()
        self._news = asyncio.Event()
        self._stirred = [asyncio.Event() for _ in range(rules.replicas)]
        self._nodes: dict[int, str] = {}
        self._settled_ms = [float("-inf")] * rules.replicas
        """When each last said that it is master or slave."""
        self._unwritten = entry.standing is None
        self._tried: Standing | None = (
            None  # the disk may have it: completed before anything else is decided
        )
        self._trouble = ""
        self._promoting = False
        self.over = False
        """Its tasks end; a cancellation may be lost in the moment in which a call is answered."""

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What must run for as long as the controller does."""
        return [
            self._run(),
            *(self._attend(replica) for replica in range(self.rules.rules.replicas)),
        ]

    def stir(self) -> None:
        """Call every replica now."""
        for stirred in self._stirred:
            stirred.set()

    def nodes_died(self, dead: Collection[str]) -> None:
        """Ray says that these nodes are dead (ids)."""
        for replica, node in self._nodes.items():
            if node in dead:
                self.rules.node_died(replica)
                self._news.set()

    # --- what others ask for ---

    async def propose(
        self, replica: int, master_epoch: int, version: int, wanted: Sequence[int]
    ) -> Assignment | None:
        """The master's wish for another sync state set: the assignment once it is on disk, None
        where it is refused.
        """
        async with self._deciding:
            standing = self.rules.standing
            if (
                standing is None
                or standing.assignment.master != replica
                or not self.rules.proposed(master_epoch, version, tuple(wanted))
            ):
                return None
            await self._decide()
            return None if self.rules.standing is None else self.rules.standing.assignment

    async def promote(self, replica: int | None, force: bool) -> dict[str, Any]:
        """By hand: another replica is master when this returns. ``PromotionRefused`` otherwise;
        then the old master goes on, or another is elected.
        """
        if self._promoting:
            raise PromotionRefused(
                f"another promotion of {self.name} is under way: wait for it", self.name
            )
        self._promoting = True
        try:
            heir = self.rules.heir(replica, force=force, now_ms=self._clock.monotonic_ms())
            old = self.rules.standing if self.serving_master is not None and not force else None
            held = old
            try:
                if old is not None:
                    await self._drain(heir, old.assignment)
                self.rules.order(heir, force=force, now_ms=self._clock.monotonic_ms())
                self._news.set()
                found = await self._promoted(heir)
                held = None
                return found
            finally:  # also of who is cancelled
                if held is not None:
                    await self._release(held.assignment)
        finally:
            self._promoting = False

    @property
    def serving_master(self) -> int | None:
        """Who is master and takes sends; None while nobody does."""
        standing = self.rules.standing
        return (
            standing.assignment.master
            if standing is not None and self.rules.serves(self._clock.monotonic_ms())
            else None
        )

    @property
    def is_new(self) -> bool:
        """Whether nobody was ever master."""
        return self.rules.standing is None

    def others_have_everything(self, replica: int) -> bool:
        """Whether this one's copy may be lost: another one is master, and waits for it no more."""
        standing = self.rules.standing
        return (
            self.serving_master not in (None, replica)
            and standing is not None
            and replica not in standing.assignment.sync_state_set
        )

    def in_sync_without(self, replica: int) -> tuple[int, ...] | None:
        """Who else may be elected; None where this one may not be, or nobody takes sends."""
        standing = self.rules.standing
        if (
            standing is None
            or self.serving_master is None
            or replica not in standing.assignment.sync_state_set
        ):
            return None
        return tuple(number for number in standing.assignment.sync_state_set if number != replica)

    def node_of(self, replica: int) -> str | None:
        """Where it answered from last (Ray's id); None = it has not answered yet."""
        return self._nodes.get(replica)

    async def forget_store(self, replica: int) -> None:
        """It may come back with another one."""
        async with self._deciding:
            self.stores.pop(replica, None)
            self._unwritten = True
            await self._decide()

    def status(self) -> dict[str, object]:
        """Plain values; see ``Succession.status``."""
        found = self.rules.status(self._clock.monotonic_ms())
        return found | {"why": self._trouble or found["why"]}

    # --- the three kinds of tasks ---

    async def _run(self) -> None:
        while not self.over:
            async with self._deciding:
                await self._decide()
            await _either(self._news, ATTEND_S)

    async def _attend(self, replica: int) -> None:
        known = False
        while not self.over:
            before_ms = self._settled_ms[replica]
            known = await self._call(replica, known)
            settled_ms = self._settled_ms[replica]
            hurries = (
                settled_ms == before_ms and self._clock.monotonic_ms() - settled_ms <= HURRY_MS
            )
            await _either(self._stirred[replica], HURRY_S if hurries else ATTEND_S)

    async def _call(self, replica: int, known: bool) -> bool:
        """One call; whether it was answered. ``known``: so was the one before, so it still runs on
        the same node.
        """
        call: Call = self.rules.call_for(replica)
        method = "attend" if isinstance(call, Assignment) else "fence"
        try:
            report: ReplicaReport = await self._ask(replica, method, (call,), CALL_S)
            if not known:
                self._nodes[replica] = await self._ask(replica, "node", (), CALL_S)
        except RmqError as error:
            log.debug("replica %d of %s: %s", replica, self.name, error)
            return False
        if self._is_stranger(replica, report):
            return True
        self.rules.answered(replica, call, report, self._clock.monotonic_ms())
        if report.role is not Role.WAITING:
            self._settled_ms[replica] = self._clock.monotonic_ms()
        self._news.set()
        return True

    def _is_stranger(self, replica: int, report: ReplicaReport) -> bool:
        """Whether it has another store than it must: then it counts for nothing."""
        expected = self.stores.get(replica)
        if not report.store or report.store == expected:
            return False
        if expected is None:
            self.stores[replica] = report.store
            self._unwritten = True
            return False
        self._trouble = (
            f"replica {replica} has store {report.store}, expected is {expected}: mount the "
            f"right disk"
        )
        return True

    # --- decisions ---

    async def _decide(self) -> None:
        """Write what the rules demand, until they demand nothing more. The caller holds the
        lock.
        """
        while True:
            found = self._tried = self._tried or self.rules.step(self._clock.monotonic_ms())
            if found is None and not (self._unwritten and self.stores):
                return
            stores, self._unwritten = dict(self.stores), False
            entry = Entry(found or self.rules.standing, stores)
            try:
                await self._write(self.name, entry)
            except StoreError as error:
                self._unwritten = True
                self._trouble = f"the ledger cannot be written: {error}"
                log.error("%s: %s", self.name, self._trouble)
                await asyncio.sleep(LEDGER_PAUSE_S)
                return
            self._trouble = ""
            if found is None:
                continue
            assignment = found.assignment
            log.warning(
                "%s: epoch %d, master %s, in sync %s",
                self.name,
                assignment.master_epoch,
                assignment.master,
                list(assignment.sync_state_set),
            )
            self._tried = None
            self.rules.fsynced(found, self._clock.monotonic_ms())
            self.stir()

    async def _drain(self, heir: int, old: Assignment) -> None:
        """Hold the old master's sends until the heir has its whole log. ``PromotionRefused`` where
        that takes too long.
        """
        held: ReplicaReport = await self._ask(
            _master_of(old), "hold_sends", (old.master_epoch, HOLD_MS), CALL_S
        )
        if held.role is not Role.MASTER:
            return  # it has gone in this moment: there is nothing to hold
        until_ms = self._clock.monotonic_ms() + DRAIN_MS
        behind = held.end
        while self._clock.monotonic_ms() < until_ms:
            report = self.rules.report_of(heir)
            if (
                report is not None
                and report.log_epoch == held.log_epoch
                and (behind := held.end - report.end) <= 0
            ):
                return
            self._stirred[heir].set()
            await asyncio.sleep(POLL_S)
        raise PromotionRefused(
            f"replica {heir} of {self.name} still lacks {behind} bytes after "
            f"{DRAIN_MS / 1000:.0f} s: the old master goes on; try again, or use force",
            self.name,
        )

    async def _release(self, old: Assignment) -> None:
        """At the latest after HOLD_MS sends go on by themselves."""
        with contextlib.suppress(RmqError):
            await self._ask(_master_of(old), "hold_sends", (old.master_epoch, 0), CALL_S)

    async def _promoted(self, heir: int) -> dict[str, Any]:
        until_ms = self._clock.monotonic_ms() + PROMOTE_MS
        while self._clock.monotonic_ms() < until_ms:
            standing = self.rules.standing
            if (
                standing is not None
                and not self.rules.ordered
                and standing.assignment.master is not None
            ):
                found = standing.assignment
                if found.master != heir:
                    raise PromotionRefused(
                        f"replica {found.master} of {self.name} reigns: {heir} lacked "
                        f"messages, or did not answer in time",
                        self.name,
                    )
                if self.serving_master is not None:
                    return {
                        "broker_name": self.name,
                        "master": heir,
                        "master_epoch": found.master_epoch,
                        "sync_state_set": list(found.sync_state_set),
                    }
            await asyncio.sleep(POLL_S)
        raise PromotionRefused(
            f"replica {heir} of {self.name} does not serve after {PROMOTE_MS / 1000:.0f} s: "
            f"{self.status()['why']}",
            self.name,
        )


class Elections:
    """Of all brokers with slaves in a plan, with the ledger that they share. ``ask(broker name,
    replica, method, arguments, time-out in s)``.
    """

    def __init__(
        self,
        plan: ClusterPlan,
        ask: Callable[[str, int, str, tuple[Any, ...], float], Awaitable[Any]],
    ) -> None:
        self._plan = plan
        self._ask = ask
        path = plan.ledger_path
        self._ledger = None if path is None else Ledger(path, plan.cluster, FileSystem())
        self._thread: ThreadOffload | None = None
        self._closed = False
        self._elections: dict[str, Election] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, *, all_start: bool) -> None:
        """Lock and read the ledger; waits while a controller that ends now still has it. What it
        has of brokers without slaves is dropped: they write alone from now on. ``all_start``: the
        replicas' actors are made now, too.

        Raises the ledger's errors, and ``ConfigError`` where all were removed that may be elected;
        then it may be called again. Once it has returned, it does nothing.
        """
        if self._ledger is None or self._elections:
            return
        if self._plan.ledger is None and not await self._beside(self._ledger.is_there):
            return
        until_ms = SYSTEM_CLOCK.monotonic_ms() + LEDGER_WAIT_MS
        while True:
            try:
                await self._beside(self._ledger.open)
                break
            except StoreInUse:
                if SYSTEM_CLOCK.monotonic_ms() > until_ms:
                    raise
                await asyncio.sleep(LEDGER_PAUSE_S / 10)
        for name in {one.broker_name for one in self._plan.brokers} - self._plan.replicas.keys():
            await self._entry(self._ledger, rules_of(self._plan, name))
            await self._beside(partial(self._ledger.drop, name))
        found: dict[str, Election] = {}
        for name in self._plan.replicas:
            rules = rules_of(self._plan, name)
            found[name] = Election(
                rules,
                await self._entry(self._ledger, rules),
                self._write,
                partial(self._ask, name),
                SYSTEM_CLOCK,
                START_GRACE_MS if all_start else 0.0,
            )
        self._elections = found

    def start(self) -> None:
        """Attend every replica from now on; twice does nothing."""
        if self._tasks:
            return
        self._tasks = [
            spawn(work, f"election of {name}")
            for name, election in self._elections.items()
            for work in election.tasks()
        ]
        if self._elections:
            self._tasks.append(spawn(self._watch_nodes(), "nodes"))

    async def close(self) -> None:
        """Decide nothing more, and give the ledger back; twice does nothing."""
        for election in self._elections.values():
            election.over = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_S)
        if self._ledger is not None and not self._closed:
            await self._beside(self._ledger.close)
        self._closed = True
        if self._thread is not None:
            self._thread.close()

    def of(self, broker_name: str) -> Election:
        """``ClusterError`` where that broker has no slaves."""
        found = self._elections.get(broker_name)
        if found is None:
            raise ClusterError(
                f"{broker_name!r} is no broker with slaves of cluster "
                f"{self._plan.cluster!r}: those are {sorted(self._elections)}",
                broker_name,
            )
        return found

    def node_of(self, broker_name: str, replica: int) -> str | None:
        """See ``Election.node_of``; None, too, where that broker has no slaves."""
        election = self._elections.get(broker_name)
        return None if election is None else election.node_of(replica)

    def status(self) -> dict[str, dict[str, object]]:
        """Broker name -> ``Election.status``."""
        return {name: election.status() for name, election in self._elections.items()}

    def masters(self) -> frozenset[str]:
        """Keys of the replicas that are masters."""
        return frozenset(
            names.replica_key(name, master)
            for name, election in self._elections.items()
            if (master := election.serving_master) is not None
        )

    def stores(self) -> dict[str, str]:
        """Key of each replica -> identity of its store, as far as it is known."""
        return {
            names.replica_key(name, replica): store
            for name, election in self._elections.items()
            for replica, store in election.stores.items()
        }

    async def _watch_nodes(self) -> None:
        while True:
            await asyncio.sleep(NODES_S)
            try:
                dead = await gateway.dead_nodes()
            except RmqError as error:
                log.info("whether nodes live is not known now: %s", error)
                continue
            for election in self._elections.values():
                election.nodes_died(dead)

    async def _entry(self, ledger: Ledger, rules: Rules) -> Entry:
        """What the ledger has of the replicas that the plan has."""
        entry = await self._beside(partial(ledger.read, rules.broker_name))
        standing = without_removed(rules, entry.standing)
        if standing != entry.standing:
            entry = replace(entry, standing=standing)
            await self._write(rules.broker_name, entry)
        return entry

    async def _write(self, broker_name: str, entry: Entry) -> None:
        assert self._ledger is not None
        await self._beside(partial(self._ledger.write, broker_name, entry))

    async def _beside(self, work: Callable[[], T]) -> T:
        """The disk has one thread of its own: nothing that hangs elsewhere delays it."""
        if self._thread is None:
            self._thread = ThreadOffload("ledger", exit_hard, threads=1)
        return await self._thread.run(work)


def _master_of(assignment: Assignment) -> int:
    assert assignment.master is not None
    return assignment.master


async def _either(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for the event, so long at most; it is cleared then."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    event.clear()


def rules_of(plan: ClusterPlan, broker_name: str) -> Rules:
    """The settings that elections of this broker go by."""
    copies = plan.copies(broker_name)
    synchronous = copies[0].replication is ReplicationMode.SYNC_MASTER
    return Rules(
        broker_name,
        len(copies),
        synchronous,
        plan.failover.automatic,
        plan.failover.failover_after_ms,
    )
