"""A copy of a broker with slaves, as a Ray actor: a broker's shell that does what the controller
has decided.

Decides nothing. The controller calls ``attend`` and ``fence`` every 300 ms and hands its own handle
over with each call, so that this actor needs no look-up to propose another sync state set.

Invariants: one proposal is under way at a time, the newest; it carries the version of the
assignment that the broker has taken, not of one that it was told and ignores, and the controller
takes none of an older version.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

from rmq_ray.actors.broker import BrokerShell
from rmq_ray.actors.gateway import call_async, my_node
from rmq_ray.actors.shell import spawn
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import ClusterError, RmqError
from rmq_ray.model.reigns import Assignment, ReplicaReport
from rmq_ray.server.replication.leadership import Leadership

log = logging.getLogger("rmq_ray.replica")
PROPOSAL_TIMEOUT_S = 2.0


class ReplicaShell(BrokerShell):
    """``config.broker_id`` is the replica's number: the same store for ever, whoever is master."""

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

    async def node(self) -> str:
        """Ray's id of the node that this process runs on."""
        return my_node()

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
