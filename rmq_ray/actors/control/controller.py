"""The controller actor: brings a cluster's members up from the plan, hands out addresses and the
secret, supervises, and decides who is master.

It decides nothing about messages. State machine: STARTING -> SERVING | FAILED, and STOPPING at the
end. Members that hang are killed (Ray restarts them), members that are gone are created again,
never with a new store (``supervisor``). With slaves it keeps a ledger of who is master and runs
elections (``elections``); a controller that starts again reads it and goes on: it is never FAILED,
elects and supervises whoever runs at once, and tries again what did not come up. Where connections
need an account it keeps the one store of them (``account_store``), beside everything else.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rmq_ray.actors import gateway, names
from rmq_ray.actors.broker import ReplicaShell
from rmq_ray.actors.control.account_store import AccountStore
from rmq_ray.actors.control.cluster_state import ClusterState
from rmq_ray.actors.control.elections import Elections
from rmq_ray.actors.control.maintenance import ReplicaMaintenance
from rmq_ray.actors.control.plan import ClusterPlan
from rmq_ray.actors.control.supervisor import ActorSpec, Supervisor, name_servers_of, others_of
from rmq_ray.actors.hold import HoldShell
from rmq_ray.actors.shell import be_urgent, is_restart, spawn
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import ClusterError, ConfigError, PromotionRefused, RmqError, StoreNotReady
from rmq_ray.files import FileSystem
from rmq_ray.model.replica_roles import Assignment
from rmq_ray.ports import ClusterAddress
from rmq_ray.protocol.access.accounts import ResourceKind
from rmq_ray.protocol.access.changes import AccountChange, ChangeAuthor
from rmq_ray.protocol.access.decision import Action
from rmq_ray.remoting.tls import told_to_clients
from rmq_ray.server.security.audit_log import AUDIT_FILE, AuditLog, AuditQuestion

log = logging.getLogger("rmq_ray.controller")
PING_INTERVAL_S = 1.0
AGAIN_S = 1.0
POLL_S = 0.05
MEMBER_START_S = 120.0
REGISTERED_S = 2.0
STOP_S = 60.0


class ControllerShell:
    """Methods are what drivers may ask; all state belongs to the actor's one loop. ``added``: this
    controller takes over a cluster that runs, and these copies are new in it
    (``names.replica_key``): they may make stores.
    """

    def __init__(self, plan: ClusterPlan, added: tuple[str, ...] | None = None) -> None:
        be_urgent()
        self._plan = plan
        self._state = ClusterState.STARTING
        self._error: RmqError | None = None
        self._addresses: tuple[str, ...] = ()
        self._supervisor = Supervisor()
        self._elections = Elections(plan, self._ask_replica)
        self._identities: dict[str, str] = dict(plan.identities)
        self._maintenance = ReplicaMaintenance(plan, self._supervisor, self._elections, self._known)
        self._audit = AuditLog(
            f"{plan.home}/{AUDIT_FILE}" if plan.has_accounts and plan.home else None, SYSTEM_CLOCK
        )
        self._accounts = self._make_accounts() if plan.has_accounts else None
        self._restarted = added is not None or is_restart()
        self._added = frozenset(() if added is None or is_restart() else added)
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
        """(state, what made it FAILED, or after a restart keeps it STARTING)."""
        return self._state.value, self._error

    async def connection(self) -> ClusterAddress:
        """What a client needs; ``ClusterError`` until the name servers listen."""
        if not self._addresses:
            raise ClusterError(
                f"cluster {self._plan.cluster!r} is still starting", self._plan.cluster
            )
        return ClusterAddress(
            self._plan.cluster, self._addresses, self._plan.secret, told_to_clients(self._plan.tls)
        )

    async def store_identity(self, key: str) -> str | None:
        """Identity of the store that this broker or replica (``names.replica_key``) serves from;
        None before it was learnt.
        """
        return self._known().get(key)

    async def members(self) -> dict[str, dict[str, int]]:
        """Actor name -> kills and creations by this controller, and whether it is stopped."""
        return self._supervisor.histories()

    async def adopt(self, name: str) -> None:
        """Look after an actor that somebody else has made: it is killed when it hangs, and Ray
        starts it again.
        """
        await self._supervisor.attach(ActorSpec(name, object, (), None))

    async def disown(self, name: str) -> None:
        """The end of ``adopt``."""
        self._supervisor.forget(name)

    # --- accounts ---

    async def accounts(self, _author: ChangeAuthor) -> dict[str, Any]:
        """All accounts without secrets; see ``AccountStore.view``."""
        return self._store_of_accounts().view()

    async def change_accounts(self, change: AccountChange, author: ChangeAuthor) -> dict[str, Any]:
        """Change them in the whole cluster; see ``AccountStore.change``."""
        return await self._store_of_accounts().change(change, author)

    async def export_accounts(self, author: ChangeAuthor) -> dict[str, Any]:
        """All accounts with their secrets."""
        return self._store_of_accounts().export(author)

    async def test_account(
        self, access_key: str, action: Action, kind: ResourceKind, name: str, _author: ChangeAuthor
    ) -> tuple[bool, str]:
        """(whether this account may, why not)."""
        return self._store_of_accounts().test(access_key, action, [(kind, name)])

    async def accounts_status(self) -> dict[str, Any] | None:
        """See ``AccountStore.status``; None in a cluster without accounts."""
        return None if self._accounts is None else self._accounts.status()

    async def audit(self, question: AuditQuestion) -> list[dict[str, Any]]:
        """The newest lines of the controller's own audit log; see ``AuditLog.newest``."""
        return await asyncio.to_thread(self._audit.newest, question)

    # --- single copies ---

    async def stop_copy(self, broker_name: str, replica: int, force: bool) -> dict[str, Any]:
        """Stop one copy of a broker until ``start_copy``; see ``ReplicaMaintenance.stop``."""
        return await self._maintenance.stop(broker_name, replica, force)

    async def start_copy(self, broker_name: str, replica: int) -> dict[str, Any]:
        """The end of ``stop_copy``; see ``ReplicaMaintenance.start``."""
        return await self._maintenance.start(broker_name, replica)

    async def restart_copy(self, broker_name: str, replica: int, force: bool) -> dict[str, Any]:
        """Stop and start one copy for its settings; see ``ReplicaMaintenance.restart``."""
        return await self._maintenance.restart(broker_name, replica, force)

    async def leave_node(self, node: str, within_ms: float) -> list[dict[str, Any]]:
        """Stop the copies on a node that goes; see ``ReplicaMaintenance.leave_node``."""
        until_ms = SYSTEM_CLOCK.monotonic_ms() + within_ms
        return await self._maintenance.leave_node(node, until_ms)

    async def remove_copy(self, broker_name: str) -> None:
        """A broker without slaves, before a take-over; see ``ReplicaMaintenance.remove``."""
        await self._maintenance.remove(broker_name)

    async def start_copies(self) -> list[str]:
        """Start every copy that is stopped; their actors."""
        return await self._maintenance.start_all()

    # --- who is master ---

    async def elections(self) -> dict[str, dict[str, object]]:
        """Broker name -> epoch, master, sync state set, what each replica said last, and why nobody
        is master. Only brokers with slaves.
        """
        return self._elections.status()

    async def propose(
        self, broker_name: str, replica: int, master_epoch: int, version: int, wanted: Sequence[int]
    ) -> Assignment | None:
        """A master's wish for another sync state set; the assignment once it is on the ledger's
        disk, None = refused.
        """
        return await self._elections.of(broker_name).propose(replica, master_epoch, version, wanted)

    async def promote(self, broker_name: str, replica: int | None, force: bool) -> dict[str, Any]:
        """Make another replica master by hand; ``PromotionRefused`` says why not. ``replica`` None:
        the best one in sync.
        """
        return await self._elections.of(broker_name).promote(replica, force)

    async def renew_store(self, key: str) -> None:
        """The store of this replica is lost for good: create its actor anew, on an empty directory.
        ``PromotionRefused`` where no other has the data.
        """
        member = next(
            (
                member
                for member in self._supervisor.all()
                if member.key == key and member.shell is ReplicaShell
            ),
            None,
        )
        if member is None:
            raise ClusterError(
                f"there is no replica {key!r} in cluster {self._plan.cluster!r}", key
            )
        config = member.arguments[0]
        election = self._elections.of(config.broker_name)
        if not election.others_have_everything(config.broker_id):
            raise PromotionRefused(
                f"no other replica of {config.broker_name} serves and has let {key} go: it "
                f"is not emptied; try again",
                config.broker_name,
            )
        self._identities.pop(key, None)
        await election.forget_store(config.broker_id)
        await self._supervisor.renew(
            replace(member, arguments=(config, self._plan.secret, True, None))
        )

    # --- life ---

    async def stop(self) -> None:
        """Stop every member gracefully, brokers first, and remove the actors. The controller itself
        is removed by the caller.
        """
        self._state = ClusterState.STOPPING
        try:
            await self._supervisor.close()
        except ClusterError as error:
            log.warning("the cluster is stopped all the same: %s", error)
        masters = self._elections.masters()
        await self._elections.close()
        others = others_of(self._plan, {}, may_create_stores=False)
        others.sort(
            key=lambda member: member.key not in masters
        )  # masters first: their slaves get the rest
        brokers, holds = (
            [member for member in others if member.key],
            [member for member in others if not member.key],
        )
        for member in [*brokers, *holds, *name_servers_of(self._plan)]:
            handle = gateway.find(member.name)
            if handle is None:
                continue
            try:
                await gateway.call_async(handle, "stop", timeout_s=STOP_S)
            except (ClusterError, RmqError) as error:
                log.warning("%s did not stop by itself and is killed: %s", member.name, error)
            gateway.kill(member.name, for_good=True)
        await asyncio.to_thread(self._audit.close)

    async def _run(self) -> None:
        if self._accounts is not None:
            self._audit.begin()
            spawn(self._accounts.run(), "accounts")
        spawn(self._bring_back(), "copies that left their nodes")
        if self._restarted:
            spawn(self._supervise(), "supervision")
        while self._state is ClusterState.STARTING:
            try:
                await self._bring_up()
                if self._state is ClusterState.STARTING:
                    self._error, self._state = None, ClusterState.SERVING
            except RmqError as error:
                if str(error) != str(self._error):
                    log.error("cluster %s did not start: %s", self._plan.cluster, error)
                if self._state is ClusterState.STARTING:
                    self._error = error
                    self._state = ClusterState.STARTING if self._restarted else ClusterState.FAILED
                    await asyncio.sleep(AGAIN_S)
        if not self._restarted:
            await self._supervise()

    async def _supervise(self) -> None:
        if self._restarted:
            spawn(self._adopt_tables(), "archivists of tables")
        while self._state in (ClusterState.STARTING, ClusterState.SERVING):
            await asyncio.sleep(PING_INTERVAL_S)
            await asyncio.gather(
                *(self._look_after(member) for member in self._supervisor.supervised())
            )

    async def _bring_back(self) -> None:
        while self._state in (ClusterState.STARTING, ClusterState.SERVING):
            await asyncio.sleep(PING_INTERVAL_S)
            try:
                await self._maintenance.bring_back()
            except RmqError as error:
                log.info("copies that left their nodes wait on: %s", error)

    async def _adopt_tables(self) -> None:
        while self._state in (ClusterState.STARTING, ClusterState.SERVING):
            try:
                for name in await gateway.archivists_beside(self._plan.cluster):
                    await self.adopt(name)
            except ClusterError as error:
                log.warning("archivists of tables are not looked after yet: %s", error)
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def _look_after(self, member: ActorSpec) -> None:
        if self._state in (ClusterState.STARTING, ClusterState.SERVING):
            await self._supervisor.look_after(member)

    async def _bring_up(self) -> None:
        await self._elections.open(all_start=not self._restarted)
        if self._restarted:
            for member in others_of(self._plan, self._known(), may_create_stores=False):
                await self._supervisor.attach(member)
            self._elections.start()  # name servers may be away for long
        servers = name_servers_of(self._plan)
        for member in servers:
            await self._supervisor.create(member)
        self._addresses = tuple([str(await self._address(member)) for member in servers])
        self._plan = self._plan.with_name_servers(self._addresses)
        others = others_of(
            self._plan,
            self._known(),
            may_create_stores=not self._restarted,
            may_create=self._added,
        )
        for member in others:
            if self._supervisor.stopped(member.name) is None:
                await self._supervisor.create(member)
        self._elections.start()
        for member in others:
            if (
                member.shell is HoldShell
                or member.shell is ReplicaShell
                or self._supervisor.stopped(member.name)
            ):
                continue
            await self._address(member)
            status = await gateway.call_async(self._supervisor.handle(member.name), "status")
            self._identities[str(member.key)] = str(status["identity"])
        for broker_name in self._plan.replicas:
            await self._master(broker_name)

    async def _address(self, member: ActorSpec) -> str:
        """Wait until a member serves; its own typed error where it never will."""
        deadline = SYSTEM_CLOCK.monotonic_ms() + MEMBER_START_S * 1000
        while SYSTEM_CLOCK.monotonic_ms() < deadline:
            try:
                address = await gateway.call_async(
                    self._supervisor.handle(member.name), "serving", timeout_s=MEMBER_START_S
                )
            except ClusterError as error:
                log.info("waiting for %s: %s", member.name, error)
                address = None
            except StoreNotReady as error:  # the controller before stopped it and died
                log.warning("it is made anew: %s", error)
                await self._supervisor.renew(member)
                address = None
            if address is not None:
                return str(address)
            await asyncio.sleep(POLL_S)
        raise ClusterError(
            f"actor {member.name} did not serve within {MEMBER_START_S:.0f} s; see its log "
            f"with `ray logs`",
            member.name,
        )

    async def _master(self, broker_name: str) -> None:
        """Wait until one replica is master and name servers know it. On the very first start a
        replica's error is the cluster's: all of them are needed.
        """
        election = self._elections.of(broker_name)
        deadline = SYSTEM_CLOCK.monotonic_ms() + MEMBER_START_S * 1000
        while SYSTEM_CLOCK.monotonic_ms() < deadline and self._state is ClusterState.STARTING:
            if (master := election.serving_master) is not None:
                await self._ask_replica(
                    broker_name, master, "registered", (REGISTERED_S,), 2 * REGISTERED_S
                )
                return
            if election.is_new:
                for config in self._plan.copies(broker_name):
                    await self._ask_replica(
                        broker_name, config.broker_id, "serving", (), MEMBER_START_S
                    )
            await asyncio.sleep(POLL_S)
        raise ClusterError(
            f"{broker_name} has no master after {MEMBER_START_S:.0f} s: {election.status()['why']}",
            broker_name,
        )

    async def _ask_replica(
        self,
        broker_name: str,
        replica: int,
        method: str,
        arguments: tuple[Any, ...],
        timeout_s: float,
    ) -> Any:
        handle = self._supervisor.handle(names.broker(self._plan.cluster, broker_name, replica))
        if method in ("attend", "fence"):
            arguments = (*arguments, gateway.my_handle())
        return await gateway.call_async(handle, method, *arguments, timeout_s=timeout_s)

    def _make_accounts(self) -> AccountStore:
        async def ask(actor: str, method: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
            handle = self._supervisor.handle(actor)
            return await gateway.call_async(handle, method, *arguments, timeout_s=timeout_s)

        plan = self._plan
        return AccountStore(
            plan.home,
            lambda: [name for name in plan.listeners() if self._supervisor.stopped(name) is None],
            ask,
            self._audit,
            FileSystem(),
            plan.accounts,
        )

    def _store_of_accounts(self) -> AccountStore:
        if self._accounts is None:
            raise ConfigError(
                f"cluster {self._plan.cluster!r} has no accounts: it runs with foreign="
                f"{self._plan.name_servers[0].foreign.value!r}; start it with foreign='acl' "
                f"(rmq-ray up --foreign acl)",
                self._plan.cluster,
            )
        return self._accounts

    def _known(self) -> dict[str, str]:
        """Identity of the store of every broker and replica, as far as it is known."""
        return {**self._elections.stores(), **self._identities}
