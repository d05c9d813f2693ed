"""A server's port: accepts connections, limits them, closes those that stay silent, hands requests
to one handler.

Decides who may connect (count, also of one address, handshake, ``ForeignClients``) and for how long
nothing may move. What one connection does is in ``peer``; what a request means is the handler's.
Called by name server, broker and tests. Invariants: everything runs in the loop that called
``start``; the server never speaks first; no connection can stop another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable

from rmq_ray.clock import Clock
from rmq_ray.config import ForeignClients, RemotingLimits, TlsMode, TlsSettings
from rmq_ray.errors import ConfigError
from rmq_ray.model.ids import Address
from rmq_ray.remoting.busy_poll import BusyPoll, of_use
from rmq_ray.remoting.handler import Handler
from rmq_ray.remoting.handshake import AccountKey, Credentials
from rmq_ray.remoting.peer import ServerPeer, Stage
from rmq_ray.remoting.tls import ServerTls
from rmq_ray.value import Value

log = logging.getLogger("rmq_ray.remoting")

SCAN_MS = 1_000
BACKLOG = 1_024
COMPLAINTS_MAX = 20
"""Lines a scan interval: a flood of bad connections must not fill the disk with words about it."""
QUIET_MS = 60_000.0  # of a host that was refused for the same reason before
QUIET_MAX = 256  # such hosts and reasons
RELEASE_MEMORY_MS = 10_000
CLOSE_WAIT_S = 1.0
ACCEPTED = (Stage.TRUSTED, Stage.FOREIGN)
Refused = Callable[[ServerPeer, str], None]
"""(peer, reason): told of who may not come in."""


class PortOptions(Value, frozen=True):
    """What a port may have beyond its handler and its limits.

    ``busy_poll_us``: see ``busy_poll``; 0 = the loop sleeps between frames. ``tls``: None = plain
    only. ``account_key``: which accounts may come in; None = this cluster has none.
    """

    busy_poll_us: int = 0
    tls: TlsSettings | None = None
    account_key: AccountKey | None = None
    on_refused: Refused = lambda _peer, _reason: None


class Listener:
    """One port of one role.

    Raises ``ConfigError`` at construction for settings that cannot hold: ``ForeignClients.ACL``
    without access rules, a closed port without a secret.
    """

    def __init__(
        self,
        handler: Handler,
        credentials: Credentials,
        foreign: ForeignClients,
        limits: RemotingLimits,
        clock: Clock,
        name: str,
        options: PortOptions | None = None,
    ) -> None:
        options = options or PortOptions()
        if foreign is ForeignClients.ACL and options.account_key is None:
            raise ConfigError(
                f"foreign='acl' needs access rules, which this {name} does not have: use "
                f"'closed' or 'open'",
                "acl",
            )
        if foreign is not ForeignClients.OPEN and not credentials.secret:
            raise ConfigError(
                f"a {foreign.value} port needs a secret: give the {name} one, or open it with "
                f"foreign='open'",
                "secret",
            )
        self.handler = handler
        self.credentials = credentials
        self.account_key = options.account_key
        self.foreign: ForeignClients = foreign
        self.limits = limits
        self.name = name
        self.busy_poll: BusyPoll | None = None
        self.tls: ServerTls | None = None
        self._on_refused = options.on_refused
        tls = options.tls
        self._tls = tls if tls is not None and tls.mode is not TlsMode.DISABLED else None
        self._clock = clock
        self._busy_poll_us = options.busy_poll_us
        self._peers: set[ServerPeer] = set()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event | None = None
        self._complaints = 0
        self.refused = 0
        """Connections that were refused or turned away since the start."""
        self._of_host: Counter[str] = Counter()
        self._half_open: Counter[str] = Counter()
        self._quiet_until: dict[tuple[str, str], float] = {}

    @property
    def peers(self) -> Iterable[ServerPeer]:
        """The connections that have sent requests: trusted ones, and foreign ones on an open
        port.
        """
        return [peer for peer in self._peers if peer.stage in ACCEPTED]

    @property
    def connections(self) -> int:
        """All open connections, strangers included."""
        return len(self._peers)

    async def start(self, host: str, port: int) -> Address:
        """Bind and listen; port 0 takes a free one. True on return: connections are accepted.
        Raises ``OSError``, and ``ConfigError`` for certificates that cannot be used.
        """
        self.tls = ServerTls(self._tls, self._clock, self.name) if self._tls is not None else None
        loop = asyncio.get_running_loop()
        self.busy_poll = (
            BusyPoll(loop, self._clock, self._busy_poll_us)
            if self._busy_poll_us and of_use()
            else None
        )
        self._server = await loop.create_server(
            lambda: ServerPeer(self), host, port, backlog=BACKLOG
        )
        self._timer = loop.call_later(SCAN_MS / 1000, self._tick, loop)
        if self.foreign is ForeignClients.OPEN:
            log.warning(
                "%s: foreign='open': whoever reaches this port may read, write and delete",
                self.name,
            )
        bound = self._server.sockets[0].getsockname()
        return Address(str(bound[0]), int(bound[1]))

    async def close(self) -> None:
        """Stop listening and close every connection; what was written has one second to leave."""
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        self._server = self._timer = None
        if not self._peers:
            return
        self._empty = asyncio.Event()
        for peer in list(self._peers):
            peer.close("the server stops")
        try:
            async with asyncio.timeout(CLOSE_WAIT_S):
                await self._empty.wait()
        except TimeoutError:
            for peer in list(self._peers):
                peer.abort("the server stops")
            await asyncio.sleep(0)

    def scan(self, now_ms: float) -> None:
        """Close what has been silent too long; called every second with the monotonic time."""
        if self._complaints > COMPLAINTS_MAX:
            more = self._complaints - COMPLAINTS_MAX
            log.warning("%s: %d more complaints about connections", self.name, more)
        self._complaints = 0
        if self.tls is not None:
            self.tls.look(now_ms)
        for peer in list(self._peers):
            self._look_at(peer, now_ms)

    def _look_at(self, peer: ServerPeer, now_ms: float) -> None:
        if peer.active:
            peer.active = False
            peer.heard_ms = now_ms
        elif peer.closed:
            peer.abort("it did not read the rest")
            return
        silent_ms = now_ms - peer.heard_ms
        if peer.stage not in ACCEPTED and now_ms - peer.opened_ms > self._patience_ms(peer):
            self.complain(peer, f"closed: no handshake within {self._patience_ms(peer)} ms")
            peer.abort("no handshake")
        elif self.account_key is not None and peer.outdated(self.account_key):
            peer.close("the secret key of its account has changed")
        elif silent_ms > self.limits.idle_timeout_ms:
            peer.abort("idle")
        else:
            if silent_ms > RELEASE_MEMORY_MS:
                peer.release_memory()
            peer.expire(now_ms)

    def _patience_ms(self, peer: ServerPeer) -> int:
        """A foreign client may connect long before its first request; one that began a handshake
        may not.
        """
        open_port = self.foreign is not ForeignClients.CLOSED and peer.stage is Stage.FIRST
        return self.limits.idle_timeout_ms if open_port else self.limits.handshake_timeout_ms

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self.scan(self._clock.monotonic_ms())
        finally:
            if self._server is not None:
                self._timer = loop.call_later(SCAN_MS / 1000, self._tick, loop)

    # --- what peers use ---------------------------------------------------------------------------

    def admit(self, peer: ServerPeer) -> bool:
        """Count a new connection in; False above a limit."""
        if self._server is None:
            return False
        limits, host = self.limits, peer.host
        for count, name in (
            (len(self._peers), "connections_max"),
            (self._of_host[host], "connections_per_host_max"),
            (self._half_open[host], "half_open_per_host_max"),
        ):
            if count >= getattr(limits, name):
                self.refuse(peer, f"closed: {getattr(limits, name)} are there ({name})")
                return False
        self._peers.add(peer)
        self._of_host[host] += 1
        self._half_open[host] += 1
        return True

    def accepted(self, peer: ServerPeer) -> None:
        """The peer may send requests: it is no longer half open."""
        _less(self._half_open, peer.host)

    def forget(self, peer: ServerPeer) -> None:
        """A connection has ended."""
        self._peers.discard(peer)
        _less(self._of_host, peer.host)
        if peer.stage not in ACCEPTED:
            _less(self._half_open, peer.host)
        if self._empty is not None and not self._peers:
            self._empty.set()

    def complain(self, peer: ServerPeer, reason: str, fault: BaseException | None = None) -> None:
        """A warning with the peer's address, at most ``COMPLAINTS_MAX`` a second."""
        self._complaints += 1
        if self._complaints <= COMPLAINTS_MAX:
            log.warning("%s: %s %s", self.name, peer, reason, exc_info=fault)

    def refuse(self, peer: ServerPeer, reason: str) -> None:
        """A complaint about somebody who may not come in, once a minute for each host and reason:
        clients that a restart left behind come again and again. ``on_refused`` is told each time.
        """
        self.refused += 1
        now, key = self._clock.monotonic_ms(), (peer.host, reason)
        if now >= self._quiet_until.get(key, 0.0):
            if len(self._quiet_until) >= QUIET_MAX:
                self._quiet_until.clear()
            self._quiet_until[key] = now + QUIET_MS
            self.complain(peer, reason)
        self._on_refused(peer, reason)

    def monotonic_ms(self) -> float:
        """The clock that time-outs are measured with."""
        return self._clock.monotonic_ms()


def _less(counts: Counter[str], host: str) -> None:
    """One less; hosts without any leave no entry."""
    counts[host] -= 1
    if counts[host] <= 0:
        del counts[host]
