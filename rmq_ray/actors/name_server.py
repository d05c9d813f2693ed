"""A name server as a Ray actor. Routes live in memory: they come back with the brokers' next
registration. The server itself is imported where one is made, not where the actor is created.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Any

from rmq_ray.actors.gateway import node_address
from rmq_ray.actors.shell import be_urgent, is_restart, spawn, start_over
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import NameServerConfig
from rmq_ray.model.metrics import Family
from rmq_ray.protocol.access.rules import AccessRules
from rmq_ray.server.security.audit_log import AuditQuestion


class NameServerShell:
    """Listens as soon as it can; ``serving`` tells where. ``again``: it was created before."""

    def __init__(self, config: NameServerConfig, secret: bytes, again: bool = False) -> None:
        from rmq_ray.server.namesrv.name_server_runner import NameServerRunner

        be_urgent()
        config = replace(config, host=config.host or node_address())
        self._again = again or is_restart()
        self._runner = NameServerRunner(config, secret, SYSTEM_CLOCK, restarted=self._again)
        spawn(self._run(), "name server")

    async def _run(self) -> None:
        await self._runner.run()
        if self._again:
            await start_over(self._runner.error)

    async def ping(self) -> str:
        """State in a word; the supervisor calls it every second."""
        return "serving" if self._runner.address else "starting"

    async def serving(self) -> str | None:
        """``host:port``, or None before it listens; raises what keeps it from listening."""
        if self._runner.error is not None:
            raise self._runner.error
        return str(self._runner.address) if self._runner.address else None

    async def status(self) -> dict[str, object]:
        """Counters and states, for people and tests."""
        return {"pid": os.getpid(), **self._runner.server.status()}

    async def metrics(self) -> list[Family]:
        """See ``NameServer.metrics``."""
        return self._runner.server.metrics()

    async def audit(self, question: AuditQuestion) -> list[dict[str, Any]]:
        """The newest lines of its audit log; see ``AuditLog.newest``."""
        return await asyncio.to_thread(self._runner.audit.newest, question)

    async def access_version(self) -> int:
        """Of the accounts that it has on disk; -1 = none."""
        return self._runner.server.access.version

    async def access_rules(self) -> AccessRules | None:
        """The accounts that it has; the controller asks where they are newer than its own."""
        return self._runner.server.access.rules

    async def set_access_rules(self, rules: AccessRules) -> None:
        """See ``NameServer.set_access_rules``."""
        await self._runner.server.set_access_rules(rules)

    async def stop(self) -> None:
        """Close the port and every connection."""
        await self._runner.stop()
