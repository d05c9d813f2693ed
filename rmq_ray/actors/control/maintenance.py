"""Takes one copy of a broker out of service and brings it back: for an upgrade, another disk, a
host that is switched off.

    stop   master with slaves: another copy is promoted ──> refuse sends, flush, close, unregister
           ─> actor removed ─> its hold service removed
    start  hold service and broker are created again, on the same store, or not at all
    restart  both, at once: with the settings that this controller's plan has for it

Decides in which order, and what must not be stopped without ``force``. Does not elect
(``elections``) or make actors (``supervisor``). Which copies are stopped is not kept: a controller
that starts again creates them.

Invariants: one copy at a time; what is stopped is neither killed nor created by the supervisor; on
return of ``stop`` its process is gone and its lock free; what is restarted counts as away, not as
stopped: clients wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rmq_ray.actors import gateway, names
from rmq_ray.actors.broker import ReplicaShell
from rmq_ray.actors.control.elections import Elections
from rmq_ray.actors.control.supervisor import ActorSpec, Supervisor
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import BrokerConfig, ReplicationMode
from rmq_ray.errors import ClusterError, PromotionRefused, RmqError

log = logging.getLogger("rmq_ray.controller")
STOP_S = 60.0
START_MS = 120_000
POLL_S = 0.05


class ReplicaMaintenance:
    """``known()``: key of each copy -> identity of its store, as far as it was learnt."""

    def __init__(
        self,
        cluster: str,
        supervisor: Supervisor,
        elections: Elections,
        known: Callable[[], Mapping[str, str]],
    ) -> None:
        self._cluster = cluster
        self._supervisor = supervisor
        self._elections = elections
        self._known = known
        self._working = asyncio.Lock()

    async def stop(self, broker_name: str, replica: int, force: bool) -> dict[str, Any]:
        """Returns ``was`` ("running", "stopped") and ``master``: the replica that is master now,
        where there are slaves.

        Raises ``PromotionRefused`` where there is no master now, or where that would leave the
        broker without a master or, under SYNC_MASTER, without ``copies_min`` copies in sync, unless
        ``force``; ``ClusterError`` for an unknown copy, and where Ray does not let the actor go.
        """
        async with self._working:
            name = names.broker(self._cluster, broker_name, replica)
            stopped = self._supervisor.stopped(name)
            broker = stopped or self._member(name)
            if stopped is None and broker.shell is ReplicaShell:
                await self._leave(broker.arguments[0], force)
            for member in (broker, self._hold(broker)):
                if member is not None:
                    await self._end(member)
            log.warning("%s is stopped until it is started again", name)
            return {
                "was": "running" if stopped is None else "stopped",
                "master": self._master(broker),
            }

    async def start(self, broker_name: str, replica: int) -> dict[str, Any]:
        """Returns ``was`` ("failed", too) and ``address`` once it serves; harmless for a copy that
        runs. Raises what keeps it from serving.
        """
        async with self._working:
            name = names.broker(self._cluster, broker_name, replica)
            was = "running" if self._supervisor.stopped(name) is None else "stopped"
            if was == "running" and await self._failed(name):
                await self._end(self._member(name))
                was = "failed"
            return {"was": was, "address": await self._start(name)}

    async def restart(self, broker_name: str, replica: int, force: bool) -> dict[str, Any]:
        """Stop this copy and start it with the settings of the plan; ``was`` and ``address``, once
        it serves. One that is stopped stays so: ``address`` None.

        Raises as ``stop`` and ``start`` do; a copy that does not come back is stopped then.
        """
        async with self._working:
            name = names.broker(self._cluster, broker_name, replica)
            if self._supervisor.stopped(name) is not None:
                return {"was": "stopped", "address": None}
            broker = self._member(name)
            if broker.shell is ReplicaShell:
                await self._leave(broker.arguments[0], force)
            log.warning("%s is restarted for its settings", name)
            self._supervisor.restarting.add(name)
            try:
                for member in (broker, self._hold(broker)):
                    if member is not None:
                        await self._end(member)
                return {"was": "running", "address": await self._start(name)}
            finally:
                self._supervisor.restarting.discard(name)

    async def remove(self, broker_name: str) -> None:
        """Stop a broker without slaves, for a controller that takes over and makes it anew."""
        async with self._working:
            name = names.broker(self._cluster, broker_name, 0)
            broker = self._supervisor.stopped(name) or self._member(name)
            self._supervisor.restarting.add(name)
            for member in (broker, self._hold(broker)):
                if member is not None:
                    await self._end(member)

    async def start_all(self) -> list[str]:
        """Every copy that is stopped, all at once; the names of their actors. One that does not
        serve keeps no other one: its error comes at the end.
        """
        async with self._working:
            stopped = [
                member.name for member in self._supervisor.all_stopped() if member.key is not None
            ]
            ended = await asyncio.gather(
                *(self._start(name) for name in stopped), return_exceptions=True
            )
        failed = {
            name: error
            for name, error in zip(stopped, ended, strict=True)
            if isinstance(error, BaseException)
        }
        if len(failed) == 1:
            raise next(iter(failed.values()))
        if failed:
            said = "; ".join(f"{name}: {error}" for name, error in failed.items())
            raise ClusterError(
                f"{len(failed)} of {len(stopped)} stopped copies do not start: {said}",
                sorted(failed),
            )
        return stopped

    # --- inside ---

    async def _failed(self, name: str) -> bool:
        """Whether it will never serve as it runs now: it looks at its disk once, when it begins."""
        self._member(name)
        try:
            await gateway.call_async(self._supervisor.handle(name), "serving")
        except ClusterError:
            return False
        except RmqError:
            return True
        return False

    async def _start(self, name: str) -> str:
        stopped = self._supervisor.stopped(name)
        if stopped is None:
            self._member(name)
        else:
            for member in (self._hold(stopped), stopped):
                if member is not None:
                    await self._supervisor.create(self._with_identity(member))
        return await self._serving(name)

    async def _leave(self, config: BrokerConfig, force: bool) -> None:
        """Hand over, if it is master; see what the others are without it."""
        try:
            election = self._elections.of(config.broker_name)
            if election.serving_master is None:
                said = (
                    f"nobody takes sends of {config.broker_name} now, and replica "
                    f"{config.broker_id} may be the one to be elected"
                )
                raise PromotionRefused(
                    f"{said}: wait until `rmq-ray broker list` shows a master", config.broker_name
                )
            others = self._awake(config.broker_name, election.in_sync_without(config.broker_id))
            if (
                others is not None
                and config.replication is ReplicationMode.SYNC_MASTER
                and len(others) < config.copies_min
            ):
                said = (
                    f"without replica {config.broker_id}, {len(others)} copies of "
                    f"{config.broker_name} are in sync, {config.copies_min} are needed"
                )
                raise PromotionRefused(
                    f"{said}: its sends would not be acknowledged; start the others first",
                    config.broker_name,
                )
            if election.serving_master == config.broker_id:
                await election.promote(None, False)
        except PromotionRefused as error:
            if not force:
                raise PromotionRefused(
                    f"{error.args[0]}; or stop it with force", config.broker_name
                ) from None
            log.warning(
                "%s/%d is stopped all the same: %s", config.broker_name, config.broker_id, error
            )

    def _awake(self, broker_name: str, replicas: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Without those that are stopped: they stay in the sync state set until the master has
        another one approved.
        """
        if replicas is None:
            return None
        return tuple(
            number
            for number in replicas
            if self._supervisor.stopped(names.broker(self._cluster, broker_name, number)) is None
        )

    async def _end(self, member: ActorSpec) -> None:
        """Also of one whose stop did not come to its end: whether it is gone is seen again, every
        time.
        """
        if self._supervisor.stopped(member.name) is None:
            handle = self._supervisor.handle(member.name)
            self._supervisor.mark_stopped(member)
        elif (handle := await gateway.find_again(member.name)) is None:
            return
        try:
            await gateway.call_async(handle, "stop", timeout_s=STOP_S)
        except RmqError as error:
            log.warning("%s did not stop by itself and is killed: %s", member.name, error)
        await self._supervisor.remove(member.name)

    async def _serving(self, name: str) -> str:
        deadline = SYSTEM_CLOCK.monotonic_ms() + START_MS
        why: object = "it still reads its disk"
        while SYSTEM_CLOCK.monotonic_ms() < deadline:
            try:
                address = await gateway.call_async(self._supervisor.handle(name), "serving")
                if address is not None:
                    return str(address)
            except ClusterError as error:
                why = error
            await asyncio.sleep(POLL_S)
        raise ClusterError(
            f"actor {name} does not serve after {START_MS // 1000} s ({why}): does its node "
            f"live? see its log with `ray logs`",
            name,
        )

    def _member(self, name: str) -> ActorSpec:
        brokers = {
            member.name: member
            for member in self._supervisor.supervised()
            if member.key is not None
        }
        if name not in brokers:
            raise ClusterError(
                f"there is no {name!r} in cluster {self._cluster!r}: there are "
                f"{', '.join(sorted(brokers))}",
                name,
            )
        return brokers[name]

    def _hold(self, broker: ActorSpec) -> ActorSpec | None:
        name = names.hold_service(self._cluster, str(broker.key))
        return self._supervisor.stopped(name) or next(
            (member for member in self._supervisor.supervised() if member.name == name), None
        )

    def _with_identity(self, member: ActorSpec) -> ActorSpec:
        """It may find the store that it had, and no other one."""
        if member.key is None:
            return member
        config, secret, _, identity = member.arguments
        return replace(
            member, arguments=(config, secret, False, self._known().get(member.key, identity))
        )

    def _master(self, broker: ActorSpec) -> int | None:
        return (
            self._elections.of(broker.arguments[0].broker_name).serving_master
            if broker.shell is ReplicaShell
            else None
        )
