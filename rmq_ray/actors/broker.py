"""A broker as a Ray actor: a thin shell around ``server.broker.broker.Broker``; recovery runs
behind a constructor that returns at once. A replica of a broker with slaves is the same, under the
controller's decisions.

Whoever creates the actor imports this module, too: the broker itself is imported where one is made.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rmq_ray.actors import names
from rmq_ray.actors.gateway import call_async, controller, expected_identity, my_node, node_address
from rmq_ray.actors.log_output import log_to_file, log_to_stderr
from rmq_ray.actors.shell import be_urgent, exit_hard, is_restart, spawn, start_over
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.config_files import ConfigFile, configured_file
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import ClusterError, RmqError, StoreError, StoreNotReady
from rmq_ray.files import FileSystem
from rmq_ray.model.metrics import FamilyText, text_of
from rmq_ray.model.replica_roles import Assignment, ReplicaReport
from rmq_ray.protocol.access.changes import AccountChange, ChangeAuthor
from rmq_ray.protocol.access.rules import AccessRules
from rmq_ray.protocol.live_settings import effective
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.server.replication.leadership import Leadership
from rmq_ray.server.security.audit_log import AuditQuestion

log = logging.getLogger("rmq_ray.replica")
REGISTRATION_WAIT_S = 2.0
"""What is asked of name servers right behind the start includes this broker."""
PROPOSAL_TIMEOUT_S = 2.0
CHANGE_TIMEOUT_S = 4.0
"""Of a change of accounts; mqadmin waits five seconds."""


class BrokerShell:
    """``may_create``: whether an empty directory may become a new store; never true for a restarted
    actor. ``identity``: the store that must be there.
    """

    def __init__(
        self,
        config: BrokerConfig,
        secret: bytes,
        may_create: bool,
        identity: str | None = None,
        leadership: Leadership | None = None,
    ) -> None:
        from rmq_ray.server.broker.broker import Broker

        be_urgent()
        self._made, self._configured = config, dict[str, str]()
        config = replace(config, host=config.host or node_address())
        self._config = config
        self._actor = names.replica_key(config.broker_name, config.broker_id)
        log_to_stderr(self._actor, config.log_format)
        self._error: RmqError | None = None
        self._started = False
        self._cluster, self._key, self._identity = (
            config.cluster_name,
            names.replica_key(config.broker_name, config.broker_id),
            identity,
        )
        self._broker = Broker(
            config,
            SYSTEM_CLOCK,
            Credentials(config.cluster_name, "broker", secret),
            on_fatal=exit_hard,
            leadership=leadership,
        )
        self._broker.access.change_rules = self._change_accounts
        spawn(self._start(may_create and not is_restart()), "broker start")

    async def _start(self, create: bool) -> None:
        try:
            learnt = (
                await expected_identity(self._cluster, self._key)
                if is_restart() and self._identity is None
                else None
            )
            await self._broker.start(create, self._identity or learnt)
            await asyncio.to_thread(self._read_configured)
            self._broker.configure(self._configured)
            self._keep_log()
            await self._opened()
            self._started = True
        except RmqError as error:
            self._error = error
            if not create:
                await start_over(error)

    def _keep_log(self) -> None:
        """Once the store is there: before, nothing is written to a disk that may be another's."""
        config = self._config
        path = f"{config.store.path}/rmq_ray/logs/broker.log"
        try:
            log_to_file(
                path,
                self._actor,
                config.log_format,
                config.log_file_bytes_max,
                config.log_files_max,
            )
        except OSError as error:
            log.warning("no log is kept in %s: %s", path, error)

    async def configured(self) -> BrokerConfig:
        """What it goes by, but for what ``broker set`` changed: as it was made, and what
        ``configure`` said since.
        """
        made: BrokerConfig = effective(self._made, self._configured, live=True)
        return made

    async def configure(self, settings: Mapping[str, str], author: ChangeAuthor) -> None:
        """Settings that change at run time, as the topology file has them now: in effect and on
        disk on return, until this actor is made anew. ``ConfigError``: nothing is changed.
        """
        self._broker.configure(settings, author)
        self._configured |= settings
        await asyncio.to_thread(self._configured_file().save, self._configured)

    def _configured_file(self) -> ConfigFile[dict[str, str]]:
        return configured_file(FileSystem(), f"{self._config.store.path}/rmq_ray/configured.json")

    def _read_configured(self) -> None:
        """What was said to the actor before Ray started it again; of another actor it is over."""
        file = self._configured_file()
        found = file.load() or {}
        if is_restart():
            self._configured = found
        elif found:
            try:
                file.save({})
            except StoreError as error:
                log.warning("what the actor before was told stays on the disk: %s", error)

    async def _change_accounts(self, change: AccountChange, author: ChangeAuthor) -> object:
        return await call_async(
            controller(self._cluster),
            "change_accounts",
            change,
            author,
            timeout_s=CHANGE_TIMEOUT_S,
        )

    async def _opened(self) -> None:
        """It serves from its disk now."""
        await self._broker.registered(REGISTRATION_WAIT_S)

    async def ping(self) -> str:
        """State in a word; the supervisor calls it every second."""
        return "failed" if self._error else "serving" if self._started else "starting"

    async def serving(self) -> str | None:
        """``host:port`` once sends are taken, None while it recovers; raises what keeps it from
        starting, and ``StoreNotReady`` once it was stopped.
        """
        if self._error is not None:
            raise self._error
        if self._broker.stopped:
            raise StoreNotReady(f"{self._actor} was stopped and serves no more: make a new actor")
        return str(self._broker.address) if self._started else None

    async def node(self) -> str:
        """Ray's id of the node that this process runs on."""
        return my_node()

    async def status(self) -> dict[str, object]:
        """Counters and states, for people and tests."""
        found = {"pid": os.getpid(), **self._broker.status()}
        if self._error is not None:
            found |= {"state": "broken", "error": f"{type(self._error).__name__}: {self._error}"}
        return found

    async def metrics(self) -> list[FamilyText]:
        """See ``Broker.metrics``; as text, which is made beside the loop: what Ray makes of an
        answer it makes in the loop.
        """
        return await asyncio.to_thread(text_of, await self._broker.metrics())

    async def audit(self, question: AuditQuestion) -> list[dict[str, Any]]:
        """The newest lines of its audit log; see ``AuditLog.newest``."""
        return await asyncio.to_thread(self._broker.audit.newest, question)

    async def access_version(self) -> int:
        """Of the accounts that it has on disk; -1 = none."""
        return self._broker.access.version

    async def access_rules(self) -> AccessRules | None:
        """The accounts that it has; the controller asks where they are newer than its own."""
        return self._broker.access.rules

    async def set_access_rules(self, rules: AccessRules) -> None:
        """See ``Broker.set_access_rules``."""
        await self._broker.set_access_rules(rules)

    async def stop(self) -> None:
        """Flush everything, close the store cleanly and unregister."""
        await self._broker.stop()


class ReplicaShell(BrokerShell):
    """A copy of a broker with slaves: does what the controller has decided, and decides nothing.

    ``config.broker_id`` is the replica's number: the same store for ever, whoever is master. The
    controller calls ``attend`` and ``fence`` every 300 ms and hands its own handle over with each
    call, so that this actor needs no look-up to propose another sync state set.

    Invariants: one proposal is under way at a time, the newest; it carries the version of the
    assignment that the broker has taken, not of one that it was told and ignores, and the
    controller takes none of an older version.
    """

    def __init__(
        self, config: BrokerConfig, secret: bytes, may_create: bool, identity: str | None = None
    ) -> None:
        self._broker_name, self._replica = config.broker_name, config.broker_id
        self._controller: Any = None
        self._leadership = Leadership(config.broker_id, self._propose)
        self._wanted: tuple[int, int, tuple[int, ...]] | None = None
        self._asked = asyncio.Event()
        super().__init__(config, secret, may_create, identity, self._leadership)
        spawn(self._tell_proposals(), "proposals")

    async def _opened(self) -> None:
        """It has no role yet, and no name server is told of it."""

    async def attend(self, assignment: Assignment, controller: Any) -> ReplicaReport:
        """What the controller has decided; see ``Broker.attend``."""
        self._controller = controller
        return await self._take(assignment)

    async def fence(self, master_epoch: int, controller: Any) -> ReplicaReport:
        """An election of this epoch runs; see ``Broker.fence``."""
        self._controller = controller
        return self._with_fault(await self._broker.fence(master_epoch))

    async def hold_sends(self, master_epoch: int, for_ms: int) -> ReplicaReport:
        """A hand-over is prepared; see ``Broker.hold_sends``."""
        return self._with_fault(await self._broker.hold_sends(master_epoch, for_ms))

    async def registered(self, timeout_s: float) -> bool:
        """Whether every name server knows this replica in its role."""
        return await self._broker.registered(timeout_s)

    async def _take(self, assignment: Assignment) -> ReplicaReport:
        return self._with_fault(await self._broker.attend(assignment))

    def _with_fault(self, report: ReplicaReport) -> ReplicaReport:
        """A disk that cannot be opened at all is a fault of the shell's start."""
        return (
            replace(report, error=f"{type(self._error).__name__}: {self._error}")
            if self._error is not None and not report.error
            else report
        )

    def _propose(self, master_epoch: int, wanted: tuple[int, ...]) -> None:
        known = self._leadership.assignment
        if known is not None and known.master_epoch == master_epoch:
            self._wanted = (master_epoch, known.version, wanted)
            self._asked.set()

    async def _tell_proposals(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            wanted, controller = self._wanted, self._controller
            if wanted is None or controller is None:
                continue
            try:
                told = await call_async(
                    controller,
                    "propose",
                    self._broker_name,
                    self._replica,
                    *wanted,
                    timeout_s=PROPOSAL_TIMEOUT_S,
                )
                if isinstance(told, Assignment):
                    await self._take(told)
            except (ClusterError, RmqError) as error:
                log.info(
                    "the controller did not take a proposal of %s, the next one follows: %s",
                    self._broker_name,
                    error,
                )
