"""Takes one copy of a broker out of service and brings it back: for an upgrade, another disk, a
host that is switched off.

    stop   master with slaves: another copy is promoted ──> refuse sends, flush, close, unregister
           ─> actor removed ─> its hold service removed
    start  hold service and broker are created again, on the same store, or not at all
    restart  both, at once: with the settings that this controller's plan has for it
    leave_node  a stop of every copy on one node, which goes; each starts again where another node
                offers its disk, once Ray has seen the old one go

Decides in which order, and what must not be stopped without ``force``. Does not elect
(``elections``) or make actors (``supervisor``). Which copies are stopped is not kept: a controller
that starts again creates them.

Invariants: one copy of a broker at a time is stopped or created, and one that does not serve yet is
not counted; what is stopped is neither killed nor created by the supervisor; on return of ``stop``
its process is gone and its lock free; what is restarted, or has left its node, counts as away, not
as stopped: clients wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rmq_ray.actors import gateway, names, placement
from rmq_ray.actors.broker import ReplicaShell
from rmq_ray.actors.control.elections import Election, Elections
from rmq_ray.actors.control.plan import ClusterPlan
from rmq_ray.actors.control.supervisor import ActorSpec, Supervisor
from rmq_ray.clock import SYSTEM_CLOCK, seconds_to
from rmq_ray.config import BrokerConfig, ReplicationMode
from rmq_ray.errors import ClusterError, PromotionRefused, RmqError

log = logging.getLogger("rmq_ray.controller")
STOP_S = 60.0
START_MS = 120_000
POLL_S = 0.05
NODE_S = 2.0


class ReplicaMaintenance:
    """``known()``: key of each copy -> identity of its store, as far as it was learnt."""

    def __init__(
        self,
        plan: ClusterPlan,
        supervisor: Supervisor,
        elections: Elections,
        known: Callable[[], Mapping[str, str]],
    ) -> None:
        self._cluster = plan.cluster
        self._brokers = [plan.copies(broker.broker_name) for broker in plan.brokers]
        self._supervisor = supervisor
        self._elections = elections
        self._known = known
        self._working = asyncio.Lock()
        self._starting: set[str] = set()
        self._leaving: dict[str, asyncio.Task[dict[str, Any]]] = {}
        """Stops of copies whose node goes: they come to their end, also behind the call that began
        them, and whatever else is asked for waits for it.
        """

    async def stop(self, broker_name: str, replica: int, force: bool) -> dict[str, Any]:
        """Returns ``was`` ("running", "stopped") and ``master``: the replica that is master now,
        where there are slaves.

        Raises ``PromotionRefused`` where there is no master now, or where that would leave the
        broker without a master or, under SYNC_MASTER, without ``copies_min`` copies in sync, unless
        ``force``; ``ClusterError`` for an unknown copy, and where Ray does not let the actor go.
        """
        async with self._working:
            await self._have_left()
            name = names.broker(self._cluster, broker_name, replica)
            self._supervisor.left.pop(name, None)
            found = await self._stop(name, force)
            log.warning("%s is stopped until it is started again", name)
            return found

    async def start(self, broker_name: str, replica: int) -> dict[str, Any]:
        """Returns ``was`` ("failed", too) and ``address`` once it serves; harmless for a copy that
        runs. Raises what keeps it from serving.
        """
        async with self._working:
            await self._have_left()
            name = names.broker(self._cluster, broker_name, replica)
            was = "running" if self._supervisor.stopped(name) is None else "stopped"
            if was == "running" and await self._failed(name):
                await self._end(self._member(name))
                was = "failed"
            await self._create(name)
        return {"was": was, "address": await self._serving(name)}

    async def restart(self, broker_name: str, replica: int, force: bool) -> dict[str, Any]:
        """Stop this copy and start it with the settings of the plan; ``was`` and ``address``, once
        it serves. One that is stopped stays so: ``address`` None.

        Raises as ``stop`` and ``start`` do; a copy that does not come back is stopped then.
        """
        async with self._working:
            await self._have_left()
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
                await self._create(name)
            finally:
                self._supervisor.restarting.discard(name)
        return {"was": "running", "address": await self._serving(name)}

    async def remove(self, broker_name: str) -> None:
        """Stop a broker without slaves, for a controller that takes over and makes it anew."""
        async with self._working:
            await self._have_left()
            name = names.broker(self._cluster, broker_name, 0)
            broker = self._supervisor.stopped(name) or self._member(name)
            self._supervisor.restarting.add(name)
            for member in (broker, self._hold(broker)):
                if member is not None:
                    await self._end(member)

    async def leave_node(self, node: str, until_ms: float) -> list[dict[str, Any]]:
        """Stop every copy on this node of Ray (its id) before it goes: the brokers at once, of each
        its master first, which hands over where another copy can. Nothing is refused, as the node
        goes anyway. Until then (monotonic clock) at most.

        A row for each: ``copy``, ``was`` and ``master`` as of ``stop``, ``error`` of one that
        did not stop in good order (None), or of which nobody knew in half of the time where it
        runs. Who was stopped by an earlier call is among them. Where another call has copies in
        work until then, nothing is done, now or later: one row says so.
        """
        try:
            async with asyncio.timeout(seconds_to(SYSTEM_CLOCK, until_ms)):
                await self._working.acquire()
        except TimeoutError:
            return [_row("brokers", "others are being stopped or started: nothing was done; again")]
        try:
            found = await asyncio.gather(
                *(self._leave_node(copies, node, until_ms) for copies in self._brokers)
            )
        finally:
            self._working.release()
        return [row for rows in found for row in rows]

    async def bring_back(self) -> None:
        """Start those that have left their node, as soon as that is gone and another one offers
        their disk; does not wait until they serve. ``ClusterError`` while Ray cannot.
        """
        if not self._supervisor.left:
            return
        nodes = await gateway.nodes_beside()
        async with self._working:
            for name, left in list(self._supervisor.left.items()):
                if (
                    name not in self._leaving
                    and left not in {node.id for node in nodes}
                    and self._has_place(name, nodes)
                ):
                    log.warning("%s starts again on another node", name)
                    await self._create(name)

    async def start_all(self) -> list[str]:
        """Every copy that is stopped, all at once, but those that have left their node and have no
        other one yet; the names of their actors. One that does not serve keeps no other one: its
        error comes at the end.
        """
        nodes = await gateway.nodes_beside() if self._supervisor.left else []
        async with self._working:
            await self._have_left()
            stopped = [
                member.name
                for member in self._supervisor.all_stopped()
                if member.key is not None
                and (
                    member.name not in self._supervisor.left or self._has_place(member.name, nodes)
                )
            ]
            failed = await _failures(stopped, self._create)
            created = [name for name in stopped if name not in failed]
            self._starting.update(created)
        failed |= await _failures(created, self._serving)
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

    async def _stop(
        self, name: str, force: bool, hand_over_s: float | None = None
    ) -> dict[str, Any]:
        stopped = self._supervisor.stopped(name)
        broker = stopped or self._member(name)
        if stopped is None and broker.shell is ReplicaShell:
            await self._leave(broker.arguments[0], force, hand_over_s)
        for member in (broker, self._hold(broker)):
            if member is not None:
                await self._end(member)
        return {
            "was": "running" if stopped is None else "stopped",
            "master": self._master(broker),
        }

    async def _leave_node(
        self, configs: Sequence[BrokerConfig], node: str, until_ms: float
    ) -> list[dict[str, Any]]:
        """Of one broker. A stop that did not come to its end goes on, and the next call waits for
        it.
        """
        find_s = seconds_to(SYSTEM_CLOCK, until_ms) / 2
        known = await asyncio.gather(*(self._find(config, node, find_s) for config in configs))
        found = [_row(*unknown) for unknown in known if isinstance(unknown, tuple)]
        copies = [copy for copy in known if isinstance(copy, ActorSpec)]
        master = self._master(copies[0]) if copies else None
        for copy in sorted(copies, key=lambda copy: copy.arguments[0].broker_id != master):
            row = _row(str(copy.key), None)
            if seconds_to(SYSTEM_CLOCK, until_ms) == 0.0:
                found.append(row | {"error": "no time was left to stop it; again"})
                continue
            stop = self._begin_to_leave(copy.name, node, seconds_to(SYSTEM_CLOCK, until_ms) / 2)
            await asyncio.wait((stop,), timeout=seconds_to(SYSTEM_CLOCK, until_ms))
            try:
                row |= await stop if stop.done() else {"error": "did not stop in time"}
            except RmqError as error:
                row["error"] = str(error)
            log.warning("%s leaves its node: %s", copy.name, row["error"] or "stopped")
            found.append(row)
        return found

    def _begin_to_leave(
        self, name: str, node: str, hand_over_s: float
    ) -> asyncio.Task[dict[str, Any]]:
        """The stop of this copy that runs, or another one."""
        stop = self._leaving.get(name)
        if stop is None:
            self._supervisor.left[name] = node
            stop = self._leaving[name] = asyncio.create_task(
                self._stop(name, True, hand_over_s), name=name
            )
            stop.add_done_callback(partial(self._has_left, name))
        return stop

    def _has_left(self, name: str, stop: asyncio.Task[dict[str, Any]]) -> None:
        del self._leaving[name]
        if self._supervisor.stopped(name) is None:
            self._supervisor.left.pop(name, None)
        if not stop.cancelled() and (error := stop.exception()) is not None:
            log.warning("%s did not leave its node: %s", name, error)

    async def _have_left(self) -> None:
        if self._leaving:
            await asyncio.wait(self._leaving.values())

    async def _find(
        self, config: BrokerConfig, node: str, within_s: float
    ) -> ActorSpec | tuple[str, str] | None:
        """The copy if it runs on this node, or has left it; None where it runs on another one or is
        stopped. One that does not say is where the elections have seen it last; of one that they
        have not seen, either, the key and why. A controller that starts again knows its copies
        within a moment.
        """
        until_ms = SYSTEM_CLOCK.monotonic_ms() + within_s * 1000
        name = names.broker(self._cluster, config.broker_name, config.broker_id)
        while True:  # ends: it is known, or at the deadline
            if (stopped := self._supervisor.stopped(name)) is not None:
                return stopped if self._supervisor.left.get(name) == node else None
            try:
                its = await gateway.call_async(
                    self._supervisor.handle(name),
                    "node",
                    timeout_s=min(NODE_S, seconds_to(SYSTEM_CLOCK, until_ms)),
                )
            except ClusterError as error:
                its = self._elections.node_of(config.broker_name, config.broker_id)
                if its is None and SYSTEM_CLOCK.monotonic_ms() >= until_ms:
                    key = names.replica_key(config.broker_name, config.broker_id)
                    return key, f"where it runs is not known: {error}"
            if its is not None:
                return self._member(name) if its == node else None
            await asyncio.sleep(POLL_S)

    def _has_place(self, name: str, nodes: Collection[placement.Node]) -> bool:
        """Whether a node offers the disk of this copy, which is stopped."""
        member = self._supervisor.stopped(name)
        return member is not None and any(node.offers(member.resource) for node in nodes)

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

    async def _create(self, name: str) -> None:
        """Of a copy that is stopped; nothing of one that runs."""
        stopped = self._supervisor.stopped(name)
        if stopped is None:
            self._member(name)
        else:
            for member in (self._hold(stopped), stopped):
                if member is not None:
                    await self._supervisor.create(self._with_identity(member))

    async def _leave(
        self, config: BrokerConfig, force: bool, hand_over_s: float | None = None
    ) -> None:
        """Hand over, if it is master, in so long (None: as long as a promotion takes); see what the
        others are without it. With ``force`` nothing keeps it, and yet it hands over where another
        one can.
        """
        election = self._elections.of(config.broker_name)
        try:
            self._check_others(config, election)
        except PromotionRefused as error:
            self._refuse(config, error, force)
        if election.serving_master == config.broker_id:
            try:
                async with asyncio.timeout(hand_over_s):
                    await election.promote(None, False)
            except TimeoutError:
                log.warning("nobody took %s over in %.0f s", config.broker_name, hand_over_s)
            except ClusterError as error:
                self._refuse(config, error, force)

    def _refuse(self, config: BrokerConfig, error: ClusterError, force: bool) -> None:
        if not force:
            raise PromotionRefused(
                f"{error.args[0]}; or stop it with force", config.broker_name
            ) from None
        log.warning(
            "%s/%d is stopped all the same: %s", config.broker_name, config.broker_id, error
        )

    def _check_others(self, config: BrokerConfig, election: Election) -> None:
        """``PromotionRefused`` where its broker cannot do without it."""
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

    def _awake(self, broker_name: str, replicas: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Without those that are stopped or do not serve yet: they stay in the sync state set until
        the master has another one approved.
        """
        if replicas is None:
            return None
        copies = {number: names.broker(self._cluster, broker_name, number) for number in replicas}
        return tuple(
            number
            for number, name in copies.items()
            if self._supervisor.stopped(name) is None and name not in self._starting
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
        """Wait until this copy serves, without the lock: a node that goes does not wait for it."""
        self._starting.add(name)
        try:
            deadline = SYSTEM_CLOCK.monotonic_ms() + START_MS
            why: object = "it still reads its disk"
            while SYSTEM_CLOCK.monotonic_ms() < deadline and self._supervisor.stopped(name) is None:
                try:
                    address = await gateway.call_async(self._supervisor.handle(name), "serving")
                    if address is not None:
                        return str(address)
                except ClusterError as error:
                    why = error
                await asyncio.sleep(POLL_S)
        finally:
            self._starting.discard(name)
        if self._supervisor.stopped(name) is not None:
            raise ClusterError(f"{name} was stopped while it started", name)
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


def _row(key: str, error: str | None) -> dict[str, Any]:
    return {"copy": key, "was": None, "master": None, "error": error}


async def _failures(
    each: Sequence[str], work: Callable[[str], Awaitable[object]]
) -> dict[str, BaseException]:
    """Of this work for all of them at once."""
    ended = await asyncio.gather(*map(work, each), return_exceptions=True)
    return {
        name: error
        for name, error in zip(each, ended, strict=True)
        if isinstance(error, BaseException)
    }
