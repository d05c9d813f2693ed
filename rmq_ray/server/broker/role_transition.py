"""How a broker changes its role under a controller: the port stays, everything behind it is made
anew.

    depose   now: connections of clients and slaves are closed, who waits is told nothing
    reopen   core closed (store flushed, tables written) -> another core -> store opened and
             recovered as the role demands -> name servers told

Decides the order of these, not when (``leadership``). Invariants: between two cores requests are
answered STILL_RECOVERING; a store is opened only after it was closed; what a follower knows of
locks and popped messages is dropped before it follows: another master has given them out since.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from rmq_ray.errors import RmqError
from rmq_ray.model.replica_roles import ReplicaReport, Role
from rmq_ray.server.base.offload import ThreadOffload
from rmq_ray.server.core.broker_core import BrokerCore
from rmq_ray.server.replication.leadership import Leadership
from rmq_ray.store.front.message_store import StoreState

if TYPE_CHECKING:
    from rmq_ray.server.broker.broker import Broker

role_log = logging.getLogger("rmq_ray.server.replication.leadership")


class BrokerRoleTransition:
    """Of one broker. See ``leadership.RoleTransition``."""

    def __init__(self, broker: Broker, leadership: Leadership) -> None:
        self._broker = broker
        self._leadership = leadership
        self._forgotten = False

    def facts(self) -> ReplicaReport | None:
        """See ``RoleTransition.facts``."""
        core = self._broker.core
        store = core.keeper.store if core is not None else None
        if core is None or store is None or store.state is not StoreState.READY:
            return None
        end = store.end_offset
        within = max((epoch for epoch, start in store.epochs if start <= end), default=0)
        return ReplicaReport(
            self._leadership.replica,
            Role.SLAVE,
            core.identity.address,
            store.identity,
            within,
            end,
            store.flushed_offset,
            store.report.sound,
            0,
            newest_epoch=store.epoch,
            broken=store.opened.quarantine.count,
        )

    def fault(self) -> str:
        """See ``RoleTransition.fault``."""
        core = self._broker.core
        error = core.keeper.error if core is not None else None
        return "" if error is None else f"{type(error).__name__}: {error}"

    def depose(self) -> None:
        """See ``RoleTransition.depose``."""
        core = self._broker.core
        if core is not None:
            core.acks.abandon()
        self._broker.disconnect("the broker is not master any more")

    async def reopen(self, broker_id: int, epoch: int | None) -> None:
        """See ``RoleTransition.reopen``."""
        await self.rest()
        await self._close()
        self._broker.disconnect("the broker changes its role")
        self._forgotten = False
        await self._broker.begin_core(broker_id, epoch)

    async def follow(self, broker_id: int, address: str, epoch: int) -> None:
        """See ``RoleTransition.follow``."""
        await self.rest()
        core = self._broker.core
        if core is None or self._leadership.fenced > epoch:
            return
        if not self._forgotten:
            self._forgotten = True
            core.forget_handed_out()
        self._broker.follow_master(broker_id, address, epoch)

    async def rest(self) -> None:
        """See ``RoleTransition.rest``."""
        await self._broker.stop_following()

    def approve(self, members: tuple[int, ...]) -> None:
        """See ``RoleTransition.approve``."""
        core = self._broker.core
        if core is not None:
            core.replication.approve(members)

    async def _close(self) -> None:
        core, offload = self._broker.take_core()
        if core is None or offload is None:
            return
        core.acks.abandon()
        closing = asyncio.get_running_loop().create_task(
            close_core(core, offload), name="close of a role's core"
        )
        try:
            await asyncio.shield(closing)
        except (
            asyncio.CancelledError
        ):  # the broker stops, and knows this core no more: on return its store is closed
            await asyncio.wait((closing,))
            if (error := closing.exception()) is not None:
                _not_closed(error)
            raise
        except RmqError as error:
            _not_closed(error)


async def close_core(core: BrokerCore, offload: ThreadOffload) -> None:
    """Wake and answer held pulls, flush and close the store, write the tables. Raises the store's
    error when the log could not be flushed.
    """
    core.pulls.parked.wake_all()
    await core.pulls.parked.close()
    await offload.run(core.close())


def _not_closed(error: BaseException) -> None:
    role_log.error("the store was not closed cleanly, it is read anew: %s", error)
