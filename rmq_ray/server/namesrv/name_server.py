"""The name server: which broker serves which topic (protocol-behaviour 4; remoting 6).

Decides: which handler serves a request, when silent brokers are looked for, what strangers are not
told. Does not decide: routes (``protocol.routing.route_table``), bytes (``remoting``), where it
listens (``server.namesrv.name_server_runner``). Called by the listener: ``handle`` for each
request, ``closed`` for each connection; by the runner: ``load`` once, ``tick`` each second.

Invariants: name servers exchange nothing; routes are never written to disk; a request that cannot
be served changes nothing. Unknown codes: Apache RocketMQ's name server gives no answer, so foreign
clients get none; our own get code 3.
"""

from __future__ import annotations

from typing import cast

from rmq_ray.clock import Clock
from rmq_ray.config import NameServerConfig
from rmq_ray.files import FileSystem
from rmq_ray.ports import Peer
from rmq_ray.protocol.routing.route_table import RouteTable
from rmq_ray.remoting.request_table import Party, bind
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.base.offload import Offload
from rmq_ray.server.namesrv.kv_config import KvConfig, WriteAtOnce
from rmq_ray.server.namesrv.name_server_admin import SettingsHandlers
from rmq_ray.server.namesrv.name_server_handlers import RouteHandlers

FIRST_SCAN_MS = 5_000


class NameServer:
    """One name server. ``offload``: where files are written; None = in the calling thread, before
    the answer.
    """

    def __init__(
        self,
        config: NameServerConfig,
        clock: Clock,
        offload: Offload | None = None,
        files: FileSystem | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._routes = RouteTable()
        self._kv = KvConfig(config.directory, files or FileSystem(), offload or WriteAtOnce())
        settings = SettingsHandlers(config, self._kv)
        routes = RouteHandlers(self._routes, self._kv, clock, settings.order_messages)
        self._requests = bind(Party.NAME_SERVER, routes, settings)
        self._next_scan_ms: int | None = None
        self._loaded = False
        self._counts = {
            "requests": 0,
            "unknown_requests": 0,
            "expired_brokers": 0,
            "lost_brokers": 0,
        }

    def load(self) -> None:
        """Read what is kept on disk. Raises ``StoreCorrupt``; the first request does it where
        nobody called.
        """
        if not self._loaded:
            self._kv.load()
            self._loaded = True

    def handle(self, command: Command, peer: Peer) -> Command | None:
        """Serve one request; None = nothing is to be answered, or the answer comes later through
        ``peer.send``.
        """
        self.load()
        self._counts["requests"] += 1
        served = self._requests.get(command.code)
        if served is None:
            self._counts["unknown_requests"] += 1
            if not peer.trusted:
                return None
            return command.answer(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f" request type {command.code} not supported",
            )
        _row, handler = served
        return handler(command, peer)

    def closed(self, peer: Peer) -> None:
        """A connection is gone: brokers that registered by it leave the routes at once."""
        self._counts["lost_brokers"] += len(self._routes.connection_closed(peer))

    def tick(self, now_ms: int) -> None:
        """Look for silent brokers when it is time: 5 s after the first tick, then every
        ``scan_interval_ms``.
        """
        if self._next_scan_ms is None:
            self._next_scan_ms = now_ms + min(FIRST_SCAN_MS, self._config.scan_interval_ms)
        if now_ms < self._next_scan_ms:
            return
        self._next_scan_ms = now_ms + self._config.scan_interval_ms
        for removed in self._routes.expire(now_ms, self._config.broker_expiry_ms):
            self._counts["expired_brokers"] += 1
            cast(Peer, removed.connection).close(
                f"broker {removed.address} did not register for {self._config.broker_expiry_ms} ms"
            )

    def status(self) -> dict[str, object]:
        """For ``status`` and tests."""
        return {
            "state": "serving",
            "brokers": {
                name: dict(broker.addresses) for name, broker in self._routes.brokers().items()
            },
            "clusters": {name: list(brokers) for name, brokers in self._routes.clusters().items()},
            "topics": len(self._routes.topics()),
            "kv_entries": self._kv.entries,
            **self._counts,
        }
