"""Runs a name server: binds its port, feeds it time, closes it. No decisions of its own.

Called by the actor shell and by tests. ``address`` is None until it listens; ``error`` says why it
never will.
"""

from __future__ import annotations

import asyncio
import logging

from rmq_ray.clock import Clock
from rmq_ray.config import ForeignClients, NameServerConfig
from rmq_ray.errors import ConfigError, RmqError, StoreInUse
from rmq_ray.files import DirectoryLock, FileSystem
from rmq_ray.model.ids import Address
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.listener import Listener, PortOptions
from rmq_ray.server.base.listen_port import listen, port_file
from rmq_ray.server.base.waits import wait_at_most
from rmq_ray.server.namesrv.name_server import NameServer
from rmq_ray.server.security.audit_log import AUDIT_FILE, AuditLog

log = logging.getLogger("rmq_ray.server")
TICK_S = 1.0
LOCK_TRIES, LOCK_PAUSE_S = 20, 0.25
"""A process that was just killed may still hold its directory."""


class NameServerRunner:
    """One name server with its listener. ``restarted``: others know where it was, so that it
    listens there again or not at all.
    """

    def __init__(
        self, config: NameServerConfig, secret: bytes, clock: Clock, *, restarted: bool = False
    ) -> None:
        self._config = config
        self._restarted = restarted
        self._clock = clock
        self._files = FileSystem()
        self._stopping = asyncio.Event()
        path = f"{config.directory}/{AUDIT_FILE}" if config.directory else None
        self.audit = AuditLog(path, clock, config.audit)
        """Refusals and changes, in the name server's directory."""
        self.server = NameServer(config, clock, audit=self.audit)
        self._listener = Listener(
            self.server,
            Credentials(config.cluster_name, "name_server", secret),
            config.foreign,
            config.limits,
            clock,
            "name server",
            PortOptions(
                tls=config.tls,
                account_key=(
                    self.server.access.key_of if config.foreign is ForeignClients.ACL else None
                ),
                on_refused=self.server.refused,
            ),
        )
        self.address: Address | None = None
        self.error: RmqError | None = None
        self._lock: DirectoryLock | None = None

    async def run(self) -> None:
        """Listen until ``stop``; every second brokers that stayed silent are expired."""
        try:
            if self._config.directory:
                await self._hold(self._config.directory)
            self.server.load()
            self.address = await self._listen()
        except RmqError as error:
            self.error = error
            self._release()
            return
        self.audit.begin()
        while not self._stopping.is_set():
            self.server.tick(self._clock.now_ms())
            await wait_at_most(self._stopping, TICK_S)
        await self._listener.close()
        await asyncio.to_thread(self.audit.close)
        self._release()

    async def stop(self) -> None:
        """End ``run`` and close the port."""
        self._stopping.set()
        await self._listener.close()

    async def _listen(self) -> Address:
        kept_in = port_file(self._config.directory)
        while True:  # ends: the port is free, or ``stop``
            try:
                return await listen(
                    self._listener,
                    self._config.host,
                    self._config.port,
                    kept_in,
                    self._files,
                    must_keep=self._restarted,
                )
            except ConfigError as error:
                if not self._restarted or self._stopping.is_set():
                    raise
                log.warning(
                    "the name server waits for its port, its brokers look nowhere else: %s", error
                )
                await asyncio.sleep(TICK_S)

    async def _hold(self, directory: str) -> None:
        """One name server writes there: another one's port in its place, and it would come back
        where none of its brokers looks for it.
        """
        self._files.make_dirs(directory)
        tries = 0
        while (
            self._restarted and not self._stopping.is_set()
        ) or tries < LOCK_TRIES:  # a restarted one waits on: nobody starts it once more
            try:
                self._lock = self._files.lock_directory(directory)
                return
            except StoreInUse:
                tries += 1
                await asyncio.sleep(LOCK_PAUSE_S)
        raise StoreInUse(
            f"another name server runs on {directory}: stop its cluster first, or give this "
            f"one another store path",
            directory,
        )

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()
