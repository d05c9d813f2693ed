"""Runs a name server: binds its port, feeds it time, closes it. No decisions of its own.

Called by the actor shell and by tests. ``address`` is None until it listens; ``error`` says why it never will.
"""

from __future__ import annotations

import asyncio

from rmq_ray.clock import Clock
from rmq_ray.config import NameServerConfig
from rmq_ray.errors import RmqError
from rmq_ray.model.ids import Address
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.listener import Listener
from rmq_ray.server.listen_port import listen, port_file
from rmq_ray.server.name_server import NameServer
from rmq_ray.store.files import FileSystem

TICK_S = 1.0


class NameServerRunner:
    """One name server with its listener."""

    def __init__(self, config: NameServerConfig, secret: bytes, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._files = FileSystem()
        self._stopping = asyncio.Event()
        self.server = NameServer(config, clock)
        self._listener = Listener(self.server, Credentials(config.cluster_name, "name_server", secret), config.foreign, config.limits, clock, "name server")
        self.address: Address | None = None
        self.error: RmqError | None = None

    async def run(self) -> None:
        """Listen until ``stop``; every second brokers that stayed silent are expired."""
        try:
            if self._config.directory:
                self._files.make_dirs(self._config.directory)
            self.server.load()
            self.address = await listen(self._listener, self._config.host, self._config.port, port_file(self._config.directory), self._files)
        except RmqError as error:
            self.error = error
            return
        while not self._stopping.is_set():
            self.server.tick(self._clock.now_ms())
            try:
                await asyncio.wait_for(self._stopping.wait(), TICK_S)
            except TimeoutError:
                continue
        await self._listener.close()

    async def stop(self) -> None:
        """End ``run`` and close the port."""
        self._stopping.set()
        await self._listener.close()
