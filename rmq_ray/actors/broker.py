"""A broker as a Ray actor: a thin shell around ``server.broker.broker.Broker``; recovery runs
behind a constructor that returns at once.
"""

from __future__ import annotations

import os
from dataclasses import replace

from rmq_ray.actors import names
from rmq_ray.actors.gateway import expected_identity, node_address
from rmq_ray.actors.shell import be_urgent, exit_hard, is_restart, spawn
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import RmqError
from rmq_ray.remoting import loopback
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.server.broker.broker import Broker
from rmq_ray.server.replication.leadership import Leadership

REGISTRATION_WAIT_S = (
    2.0  # what is asked of name servers right behind the start includes this broker
)


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
        be_urgent()
        config = replace(config, host=config.host or node_address())
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
        spawn(self._start(may_create and not is_restart()), "broker start")

    async def _start(self, create: bool) -> None:
        try:
            learnt = (
                await expected_identity(self._cluster, self._key)
                if is_restart() and self._identity is None
                else None
            )
            await self._broker.start(create, self._identity or learnt)
            await self._opened()
            self._started = True
        except RmqError as error:
            self._error = error

    async def _opened(self) -> None:
        """It serves from its disk now."""
        await self._broker.registered(REGISTRATION_WAIT_S)

    async def ping(self) -> str:
        """State in a word; the supervisor calls it every second."""
        return "failed" if self._error else "serving" if self._started else "starting"

    async def serving(self) -> str | None:
        """``host:port`` once sends are taken, None while it recovers; raises what keeps it from
        starting.
        """
        if self._error is not None:
            raise self._error
        return str(self._broker.address) if self._started else None

    async def call(self, frame: bytes) -> bytes:
        """Serve one remoting frame that came by actor call; a pull is answered at once, never
        held.
        """
        return await loopback.call(self._broker, frame)

    async def status(self) -> dict[str, object]:
        """Counters and states, for people and tests."""
        return {"pid": os.getpid(), **self._broker.status()}

    async def stop(self) -> None:
        """Flush everything, close the store cleanly and unregister."""
        await self._broker.stop()
