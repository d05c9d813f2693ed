"""The controller actor: brings a cluster's members up from the plan, hands out addresses and the secret, and supervises.

It decides nothing about messages. State machine: STARTING -> SERVING | FAILED, and STOPPING at the end. Members that
hang are killed (Ray restarts them), members that are gone are created again, never with a new store.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rmq_ray.actors import gateway, names
from rmq_ray.actors.broker import BrokerShell
from rmq_ray.actors.hold import HoldShell
from rmq_ray.actors.name_server import NameServerShell
from rmq_ray.actors.plan import ClusterPlan
from rmq_ray.actors.shell import be_urgent, is_restart, spawn
from rmq_ray.actors.supervise import Action, Watch
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import ClusterError, RmqError
from rmq_ray.ports import ClusterAddress

log = logging.getLogger("rmq_ray.controller")
PING_INTERVAL_S = 1.0
PING_TIMEOUT_S = 1.0
POLL_S = 0.05
MEMBER_START_S = 120.0


class State(Enum):
    """Where in its life the cluster is."""

    STARTING = "starting"
    SERVING = "serving"
    FAILED = "failed"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Member:
    """One supervised actor: its name, its shell class, and what it is created with."""

    name: str
    shell: type
    arguments: tuple[Any, ...]
    resource: str | None


def members_of(plan: ClusterPlan, *, may_create_stores: bool) -> tuple[list[Member], list[Member]]:
    """(name servers, everything that needs them) of a plan."""
    servers = [
        Member(names.name_server(plan.cluster, i), NameServerShell, (config, plan.secret), plan.resources.get(f"name-server-{i}"))
        for i, config in enumerate(plan.name_servers)
    ]
    others = []
    for config in plan.brokers:
        resource = plan.resources.get(config.broker_name)
        if config.hold_link is not None:
            others.append(Member(names.hold_service(plan.cluster, config.broker_name), HoldShell, (config.hold_link,), resource))
        known = plan.identities.get(config.broker_name)
        arguments = (config, plan.secret, may_create_stores and known is None, known)
        others.append(Member(names.broker(plan.cluster, config.broker_name, config.broker_id), BrokerShell, arguments, resource))
    return servers, others


class ControllerShell:
    """Methods are what drivers may ask; all state belongs to the actor's one loop."""

    def __init__(self, plan: ClusterPlan) -> None:
        be_urgent()
        self._plan = plan
        self._state = State.STARTING
        self._error: RmqError | None = None
        self._addresses: tuple[str, ...] = ()
        self._watches: dict[str, Watch] = {}
        self._members: list[Member] = []
        self._identities: dict[str, str] = dict(plan.identities)
        self._restarted = is_restart()
        spawn(self._run(), "controller")

    async def ping(self) -> str:
        """State in a word; the supervisor calls it every second."""
        return self._state.value

    async def pid(self) -> int:
        """Of this actor's process."""
        return os.getpid()

    async def plan(self) -> ClusterPlan:
        """The plan, with the name servers' addresses once they are known."""
        return self._plan

    async def state(self) -> tuple[str, RmqError | None]:
        """(state, what made it FAILED)."""
        return self._state.value, self._error

    async def connection(self) -> ClusterAddress:
        """What a client needs; ``ClusterError`` until the name servers listen."""
        if not self._addresses:
            raise ClusterError(f"cluster {self._plan.cluster!r} is still starting", self._plan.cluster)
        return ClusterAddress(self._plan.cluster, self._addresses, self._plan.secret)

    async def store_identity(self, broker_name: str) -> str | None:
        """Identity of the store that this broker served from since the controller lives; None before it was learnt."""
        return self._identities.get(broker_name)

    async def members(self) -> dict[str, dict[str, int]]:
        """Actor name -> kills and creations by this controller."""
        return {member.name: {"kills": w.kills, "creations": w.creations} for member in self._members if (w := self._watches.get(member.name))}

    async def stop(self) -> None:
        """Stop every member gracefully, brokers first, and remove the actors. The controller itself is removed by the caller."""
        self._state = State.STOPPING
        servers, others = members_of(self._plan, may_create_stores=False)
        for member in [*reversed(others), *servers]:
            handle = gateway.find(member.name)
            if handle is None:
                continue
            try:
                await gateway.call_async(handle, "stop", timeout_s=60.0)
            except (ClusterError, RmqError) as error:
                log.warning("%s did not stop by itself and is killed: %s", member.name, error)
            gateway.kill(member.name, for_good=True)

    async def _run(self) -> None:
        try:
            await self._bring_up()
        except RmqError as error:
            self._error, self._state = error, State.FAILED
            log.error("cluster %s did not start: %s", self._plan.cluster, error)
            return
        self._state = State.SERVING
        while self._state is State.SERVING:
            await asyncio.sleep(PING_INTERVAL_S)
            await asyncio.gather(*(self._look_after(member) for member in self._members))

    async def _bring_up(self) -> None:
        servers, _ = members_of(self._plan, may_create_stores=False)
        for member in servers:
            self._create(member)
        self._addresses = tuple([str(await self._address(member)) for member in servers])
        self._plan = self._plan.with_name_servers(self._addresses)
        _, others = members_of(self._plan, may_create_stores=not self._restarted)
        for member in others:
            self._create(member)
        for member in others:
            if member.shell is BrokerShell:
                await self._address(member)
                await self._learn_identity(member)
        self._members = [*servers, *members_of(self._plan, may_create_stores=False)[1]]
        self._watches = {member.name: Watch() for member in self._members}

    async def _learn_identity(self, member: Member) -> None:
        status = await gateway.call_async(gateway.find(member.name), "status")
        config = member.arguments[0]
        self._identities[config.broker_name] = str(status["identity"])

    def _create(self, member: Member) -> Any:
        return gateway.create(member.shell, member.name, member.arguments, resource=member.resource)

    async def _address(self, member: Member) -> str:
        """Wait until a member serves; its own typed error where it never will."""
        deadline = SYSTEM_CLOCK.monotonic_ms() + MEMBER_START_S * 1000
        while SYSTEM_CLOCK.monotonic_ms() < deadline:
            handle = gateway.find(member.name)
            if handle is None:
                raise ClusterError(f"actor {member.name} disappeared while it started", member.name)
            try:
                address = await gateway.call_async(handle, "serving", timeout_s=MEMBER_START_S)
            except ClusterError as error:
                log.info("waiting for %s: %s", member.name, error)
                address = None
            if address is not None:
                return str(address)
            await asyncio.sleep(POLL_S)
        raise ClusterError(f"actor {member.name} did not serve within {MEMBER_START_S:.0f} s; see its log with `ray logs`", member.name)

    async def _look_after(self, member: Member) -> None:
        watch = self._watches[member.name]
        action = watch.observe(await gateway.ping(member.name, PING_TIMEOUT_S), SYSTEM_CLOCK.monotonic_ms())
        if self._state is not State.SERVING or action is Action.NONE:
            return
        if action is Action.KILL:
            log.error("%s did not answer three pings: killed, Ray starts it again", member.name)
            gateway.kill(member.name, for_good=False)
        else:
            log.error("%s is gone: created again on its old store", member.name)
            self._create(member)
