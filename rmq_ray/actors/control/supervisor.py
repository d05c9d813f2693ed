"""The actors that a cluster consists of, and how the controller keeps them alive.

Decides: what each is created with; that it is killed when it hangs and created again when it is
gone (``PingHistory`` has the rule). Does not decide who is master (``elections``). All of it runs
in the controller's loop.

Invariants: a living actor is called by the handle that was kept, never looked up; nothing is
created or killed because Ray's control plane does not answer; a second creation never makes a new
store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from rmq_ray.actors import gateway, names, placement
from rmq_ray.actors.broker import BrokerShell, ReplicaShell
from rmq_ray.actors.control.plan import ClusterPlan
from rmq_ray.actors.gateway import Ping
from rmq_ray.actors.hold import HoldShell
from rmq_ray.actors.name_server import NameServerShell
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import ClusterError

log = logging.getLogger("rmq_ray.controller")
PING_TIMEOUT_S = 1.0
GONE_MS, GONE_POLL_S = 10_000, 0.05
MISSES_MAX = 3
GRACE_MS = 15_000
STORE_MS = 120_000


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """One supervised actor: its name, its shell class, and what it is created with. ``key``: of a
    broker's store (``names.replica_key``).
    """

    name: str
    shell: type
    arguments: tuple[Any, ...]
    resource: str | None
    key: str | None = None

    @property
    def may_make_store(self) -> bool:
        """Whether an empty directory becomes a new store."""
        return self.key is not None and bool(self.arguments[2])

    @property
    def again(self) -> ActorSpec:
        """As it is created a second time: on its store, or at its port, or not at all."""
        if self.shell is NameServerShell:
            return replace(self, arguments=(*self.arguments[:2], True))
        if self.key is None:
            return self
        config, secret, _, identity = self.arguments
        return replace(self, arguments=(config, secret, False, identity))


def name_servers_of(plan: ClusterPlan) -> list[ActorSpec]:
    """What everything else needs; on the head, which goes last, unless a resource is named."""
    return [
        ActorSpec(
            names.name_server(plan.cluster, i),
            NameServerShell,
            (config, plan.secret),
            plan.resources.get(f"name-server-{i}", placement.HEAD),
        )
        for i, config in enumerate(plan.name_servers)
    ]


def others_of(
    plan: ClusterPlan,
    known: Mapping[str, str],
    *,
    may_create_stores: bool,
    may_create: Collection[str] = (),
) -> list[ActorSpec]:
    """Hold services and brokers. ``known``: key -> identity of the store that must be there; who
    has none may make one, if ``may_create_stores``, or if it is among ``may_create``.
    """
    found = []
    for key, config in plan.all_copies():
        resource = plan.resources.get(key)
        if config.hold_link is not None:
            found.append(
                ActorSpec(
                    names.hold_service(plan.cluster, key), HoldShell, (config.hold_link,), resource
                )
            )
        shell = ReplicaShell if config.broker_name in plan.replicas else BrokerShell
        creates = (may_create_stores or key in may_create) and key not in known
        arguments = (config, plan.secret, creates, known.get(key))
        found.append(
            ActorSpec(
                names.broker(plan.cluster, config.broker_name, config.broker_id),
                shell,
                arguments,
                resource,
                key,
            )
        )
    return found


class SupervisorAction(Enum):
    """What the supervisor does about a member."""

    NONE = "none"
    KILL = "kill"
    CREATE = "create"


@dataclass(slots=True)
class PingHistory:
    """What the pings of one actor said, and when to kill it: Ray restarts processes that die; it
    never notices one that hangs (SIGSTOP, a stuck loop).

    A ping has three outcomes: answered, unavailable (Ray knows that the process is gone and
    restarts it: nothing to do), and silence. Three silences in a row earn a kill; afterwards the
    actor has a grace period to come back.
    """

    misses: int = 0
    grace_until_ms: float = 0.0
    kills: int = 0
    creations: int = 0
    makes_store_until_ms: float = 0.0
    """Until then, or its first answer, it may be making its store: a process that Ray starts again
    makes none, so it is not killed for its silence.
    """

    def observe(self, ping: Ping, now_ms: float) -> SupervisorAction:
        """Take one outcome and say what to do now.

        >>> history = PingHistory()
        >>> [history.observe(Ping.SILENT, second * 1000).value for second in (1, 2, 3, 4)]
        ['none', 'none', 'kill', 'none']
        """
        if ping is Ping.ANSWERED:
            self.makes_store_until_ms = 0.0
        if ping is Ping.ANSWERED or ping is Ping.UNAVAILABLE:
            self.misses = 0
            return SupervisorAction.NONE
        if now_ms < self.grace_until_ms:
            return SupervisorAction.NONE
        if ping is Ping.MISSING:
            self.grace_until_ms = now_ms + GRACE_MS
            self.creations += 1
            return SupervisorAction.CREATE
        if now_ms < self.makes_store_until_ms:
            return SupervisorAction.NONE
        self.misses += 1
        if self.misses < MISSES_MAX:
            return SupervisorAction.NONE
        self.misses = 0
        self.grace_until_ms = now_ms + GRACE_MS
        self.kills += 1
        return SupervisorAction.KILL


class Supervisor:
    """The members that were created, with their handles and histories."""

    def __init__(self) -> None:
        self._members: dict[str, ActorSpec] = {}
        self._attached: dict[str, ActorSpec] = {}
        self._handles: dict[str, Any] = {}
        self._watches: dict[str, PingHistory] = {}
        self._renewed: set[str] = set()
        self._stopped: dict[str, ActorSpec] = {}
        self._stopped_ms: dict[str, int] = {}
        self.restarting: set[str] = set()
        """Of those that are stopped: who is started again without being asked for. Clients wait for
        them as they do over a crash.
        """
        self.left: dict[str, str] = {}
        """Of those that are stopped: whose node goes, and which node that is (its id). They start
        again where their disk comes back, and clients wait for them as well.
        """
        self._making: Counter[str] = Counter()
        self._closed = asyncio.Event()

    async def create(self, member: ActorSpec) -> None:
        """Make this actor, or attach to the one that runs; from now on it belongs here. One that is
        stopped meanwhile is ended again.

        ``ClusterError`` while Ray cannot; what was stopped is stopped still.
        """
        if self._closed.is_set():
            raise ClusterError(f"{member.name} is not created: the cluster is stopped", member.name)
        stopped = self._stopped.get(member.name)
        self._making[member.name] += 1
        try:
            made = await gateway.create_in_thread(
                member.shell, member.name, member.arguments, resource=member.resource
            )
            if self._closed.is_set() or self._stopped.get(member.name) is not stopped:
                log.warning("%s was stopped while it was created: it is ended again", member.name)
                gateway.kill_worker(made)
                return
        finally:
            self._making[member.name] -= 1
        self._stopped.pop(member.name, None)
        self.restarting.discard(member.name)
        self.left.pop(member.name, None)
        self._members[member.name], self._handles[member.name] = member.again, made
        history = self._watches.setdefault(member.name, PingHistory())
        if member.may_make_store:
            history.makes_store_until_ms = SYSTEM_CLOCK.monotonic_ms() + STORE_MS

    async def close(self) -> None:
        """Nobody is looked after or created any more; on return nobody is being created, either: an
        actor that came behind the cluster's end would keep its name and its store.
        """
        self._closed.set()
        deadline = SYSTEM_CLOCK.monotonic_ms() + GONE_MS
        while making := +self._making:
            await self._pause(deadline, f"{min(making)} is being created for {GONE_MS // 1000} s")

    async def attach(self, member: ActorSpec) -> None:
        """Keep the handle of this actor if it runs, before it can be known what it would be created
        with: it is killed when it hangs, not created.

        ``ClusterError`` while Ray cannot say.
        """
        if (
            member.name not in self._handles
            and (found := await gateway.find_again(member.name)) is not None
        ):
            self._attached[member.name], self._handles[member.name] = member, found
            self._watches.setdefault(member.name, PingHistory())

    def forget(self, name: str) -> None:
        """An actor that was attached to is looked after no longer."""
        for kept in (self._attached, self._handles, self._watches):
            kept.pop(name, None)

    async def renew(self, member: ActorSpec) -> None:
        """End this actor for good and make it anew with these arguments. ``ClusterError`` where Ray
        does not let it go in time.
        """
        self._renewed.add(member.name)  # else the supervisor makes it anew, with the old arguments
        try:
            await self.remove(member.name)
            await self.create(member)
        finally:
            self._renewed.discard(member.name)

    async def remove(self, name: str) -> None:
        """End this actor's process for good, also one that is being made now. ``ClusterError``
        where Ray does not let it go in time.
        """
        deadline = SYSTEM_CLOCK.monotonic_ms() + GONE_MS
        while self._making[name]:
            await self._pause(deadline, f"{name} is being created for {GONE_MS // 1000} s")
        gateway.kill(name, for_good=True)
        while await gateway.find_again(name) is not None:
            await self._pause(
                deadline, f"{name} was killed {GONE_MS // 1000} s ago and is still there"
            )

    async def _pause(self, deadline: float, said: str) -> None:
        if SYSTEM_CLOCK.monotonic_ms() > deadline:
            raise ClusterError(f"{said}: try again", said)
        await asyncio.sleep(GONE_POLL_S)

    def mark_stopped(self, member: ActorSpec) -> None:
        """It is about to be stopped: from now on it is not looked after, until it is created
        again.
        """
        self._stopped[member.name] = member
        self._stopped_ms[member.name] = SYSTEM_CLOCK.now_ms()
        for kept in (self._members, self._attached, self._handles):
            kept.pop(member.name, None)

    def stopped(self, name: str) -> ActorSpec | None:
        """A member that was stopped; None for any other."""
        return self._stopped.get(name)

    def all_stopped(self) -> list[ActorSpec]:
        """In the order in which they were stopped."""
        return list(self._stopped.values())

    def handle(self, name: str) -> Any:
        """Of a member. ``ClusterError`` where it was never created, or is stopped."""
        handle = self._handles.get(name)
        if handle is None:
            raise ClusterError(f"actor {name} was not created yet, or is stopped", name)
        return handle

    def all(self) -> Iterable[ActorSpec]:
        """In the order of their creation."""
        return list(self._members.values())

    def supervised(self) -> Iterable[ActorSpec]:
        """The same, and those that were only attached to."""
        return list((self._attached | self._members).values())

    def histories(self) -> dict[str, dict[str, int]]:
        """Actor name -> kills, creations, whether it is stopped (1), restarted for its settings
        (1) or has left its node (1), and since when.
        """
        return {
            name: {
                "kills": watch.kills,
                "creations": watch.creations,
                "stopped": int(
                    name in self._stopped and name not in self.restarting and name not in self.left
                ),
                "restarting": int(name in self.restarting),
                "left": int(name in self._stopped and name in self.left),
                "since_ms": self._stopped_ms[name] if name in self._stopped else 0,
            }
            for name, watch in self._watches.items()
        }

    async def look_after(self, member: ActorSpec) -> None:
        """One ping, and what follows from it."""
        if self._closed.is_set() or member.name in self._renewed or member.name in self._stopped:
            return
        try:
            ping = await gateway.ping_handle(self.handle(member.name), PING_TIMEOUT_S)
            if self._closed.is_set() or member.name in self._stopped:
                return
            if (
                ping is Ping.MISSING
                and (found := await gateway.find_again(member.name)) is not None
                and member.name in self._handles
            ):
                self._handles[member.name] = found
                return
            history = self._watches.get(member.name)
            if history is None:  # it was forgotten meanwhile
                return
            await self._act(member, history.observe(ping, SYSTEM_CLOCK.monotonic_ms()))
        except ClusterError as error:
            log.warning("nothing is done about %s now: %s", member.name, error)

    async def _act(self, member: ActorSpec, action: SupervisorAction) -> None:
        if action is SupervisorAction.KILL:
            log.error("%s did not answer three pings: killed, Ray starts it again", member.name)
            gateway.kill_handle(self.handle(member.name))
        elif (
            action is SupervisorAction.CREATE
            and member.name in self._members
            and member.name not in self._renewed
        ):
            log.error("%s is gone: created again on its old store", member.name)
            await self.create(member)
