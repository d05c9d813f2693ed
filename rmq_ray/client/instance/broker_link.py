"""How a client instance reaches servers: one connection pool for brokers, one for name servers, and
which name server is asked.

Decides the choice of the name server: one is kept until it fails, then the next in turn
(protocol-behaviour 1). Does not know routes, groups or messages. Invariant: no lock is held while a
request waits.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial

from rmq_ray.clock import Clock, seconds_to
from rmq_ray.config import RemotingLimits, Tls
from rmq_ray.errors import ConnectFailed, NoNameServer, RemotingError, RequestTimeout, RmqError
from rmq_ray.model.ids import Address
from rmq_ray.ports import ClusterAddress, Discovery
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.pool import CONNECT_MS_MIN, ConnectionPool
from rmq_ray.remoting.wire.frame import Command

LOOK_UP_AGAIN_MS = 1_000

log = logging.getLogger("rmq_ray.client")

RequestHandler = Callable[[Command, Address], Command | None]


class BrokerLink:
    """See the module. ``look_up`` once before anything else. ``on_silent(address)``: requests wait
    there and nothing comes; ``on_lost(address)``: a connection broke; any thread.
    """

    def __init__(
        self,
        discovery: Discovery,
        limits: RemotingLimits,
        clock: Clock,
        on_request: RequestHandler,
        on_silent: Callable[[Address], None] = lambda _address: None,
        on_lost: Callable[[Address], None] = lambda _address: None,
    ) -> None:
        self._discovery = discovery
        self._limits = limits
        self._clock = clock
        self._on_request = on_request
        self._on_silent = on_silent
        self._on_lost = on_lost
        self._cluster: ClusterAddress | None = None
        self._brokers: ConnectionPool | None = None
        self._name_servers: ConnectionPool | None = None
        self._servers: tuple[Address, ...] = ()
        self._chosen = 0
        self._lock = threading.Lock()
        self._closed = False
        self._looked_ms = float("-inf")
        self._lost_sight = False

    @property
    def cluster(self) -> ClusterAddress | None:
        """What the discovery said last."""
        return self._cluster

    @property
    def name_server_addresses(self) -> tuple[Address, ...]:
        """The name servers as the discovery told them last."""
        return self._servers

    def credentials(self, role: str) -> Credentials | None:
        """What proves this client to a server of this role; None for a cluster without a secret."""
        cluster = self._cluster
        return (
            Credentials(cluster.cluster, role, cluster.secret, cluster.access_key)
            if cluster is not None and cluster.secret
            else None
        )

    @property
    def tls(self) -> Tls | None:
        """How connections speak TLS; None = plain."""
        return self._cluster.tls if self._cluster is not None else None

    def look_up(self) -> None:
        """Ask the discovery for the name servers; a changed secret, TLS or list takes effect for
        new connections.
        """
        self._looked_ms = self._clock.monotonic_ms()
        found = self._discovery.lookup()
        if not found.name_servers:
            raise NoNameServer(
                'no name server address is known; give name_servers="host:port" or start the '
                "cluster"
            )
        with self._lock:
            if found == self._cluster or self._closed:
                return
            proof_changed = self._cluster is None or (
                (found.secret, found.access_key, found.tls)
                != (self._cluster.secret, self._cluster.access_key, self._cluster.tls)
            )
            old = (self._brokers, self._name_servers)
            self._cluster = found
            self._servers = tuple(Address.parse(text) for text in found.name_servers)
            self._chosen %= len(self._servers)
            if proof_changed:
                self._brokers = self._pool("broker")
                self._name_servers = self._pool("name_server")
        if proof_changed:
            for pool in old:
                if pool is not None:
                    pool.close()

    def invoke(self, address: Address, command: Command, timeout_ms: float) -> Command:
        """Ask a broker and wait for its answer, whatever its code. Raises ``RemotingError``
        (``ConnectFailed``: nothing was sent).
        """
        return self._need(self._brokers).request(address, command, timeout_ms)

    def invoke_async(
        self,
        address: Address,
        command: Command,
        timeout_ms: float,
        callback: Callable[[Command | RemotingError], None],
    ) -> None:
        """Ask a broker; the callback gets the answer or the error, in a reader or timer thread: it
        must be quick.

        Connecting happens in the calling thread; ``ConnectFailed`` and ``TooManyRequests`` are
        raised, not handed to the callback.
        """
        self._need(self._brokers).request_async(address, command, timeout_ms, callback)

    def oneway(self, address: Address, command: Command) -> None:
        """Send without an answer. Raises ``ConnectFailed`` or ``ConnectionLost``."""
        self._need(self._brokers).oneway(address, command)

    def answer(self, address: Address, command: Command) -> None:
        """Answer a request of a broker that was not answered at once."""
        if self._brokers is not None:
            self._brokers.answer(address, command)

    def drop(self, address: Address) -> None:
        """Close the connection to a broker that no route names any more."""
        if self._brokers is not None:
            self._brokers.drop(address)

    def name_server_invoke(
        self, command: Command, timeout_ms: float, until_ms: float = math.inf
    ) -> Command:
        """Ask the chosen name server, then the others in turn; what worked is asked first next
        time.

        ``timeout_ms``: for each. ``until_ms``: for all, monotonic; each has its share of what is
        left. When all failed and the discovery (asked once a second at most) tells others, those
        are asked too.
        """
        asked = self._servers
        try:
            return self.ask_name_servers(command, timeout_ms, until_ms)
        except RemotingError:
            if not self._others_than(asked):
                raise
            return self.ask_name_servers(command, timeout_ms, until_ms)

    def ask_name_servers(self, command: Command, timeout_ms: float, until_ms: float) -> Command:
        """The same of those that are known: the discovery, which may take long, is not asked."""
        pool = self._need(self._name_servers)
        servers, first = self._servers, self._chosen
        last: RemotingError | None = None
        for step in range(len(servers)):
            index = (first + step) % len(servers)
            share_ms = min(
                timeout_ms, (until_ms - self._clock.monotonic_ms()) / (len(servers) - step)
            )
            if share_ms <= 0:
                last = last or RequestTimeout(
                    "no time is left to ask a name server; it was not asked", str(servers[index])
                )
                break
            try:
                answer = self._ask(pool, servers[index], command, share_ms)
            except RemotingError as error:
                last = error
                log.info("name server %s failed, asking the next: %s", servers[index], error)
            else:
                self._chosen = index
                return answer
        raise (
            last
            if last is not None
            else ConnectFailed("no name server address is known; start the client first")
        )

    def _ask(
        self, pool: ConnectionPool, server: Address, command: Command, timeout_ms: float
    ) -> Command:
        """A silent one takes half of the time, for another to be asked; the only one is, again."""
        begun_ms = self._clock.monotonic_ms()
        try:
            return pool.request(server, command.again(), timeout_ms)
        except ConnectFailed:
            spent_ms = self._clock.monotonic_ms() - begun_ms
            left_ms = timeout_ms - spent_ms
            if len(self._servers) > 1 or spent_ms < CONNECT_MS_MIN or left_ms < 2 * CONNECT_MS_MIN:
                raise
            return pool.request(server, command.again(), left_ms)

    def invoke_name_server(self, address: Address, command: Command, timeout_ms: float) -> Command:
        """Ask this one name server. Raises ``RemotingError``."""
        return self._need(self._name_servers).request(address, command, timeout_ms)

    def every_name_server_invoke(self, command: Command, timeout_ms: float) -> list[Command]:
        """Ask each name server (they exchange nothing with one another). Raises the first
        ``RemotingError``.
        """
        pool = self._need(self._name_servers)
        return [pool.request(server, command.again(), timeout_ms) for server in self._servers]

    def tell_all(
        self,
        addresses: Sequence[Address],
        make: Callable[[], Command],
        timeout_ms: float,
        heard: Callable[[Command], None] = lambda _answer: None,
    ) -> None:
        """The same request to each, all at once; waits ``timeout_ms`` at most for the answers.
        Failures are logged. ``heard``: gets each answer, in a reader thread.
        """
        answered = threading.Semaphore(0)

        def done(address: Address, answer: Command | RemotingError) -> None:
            if isinstance(answer, RemotingError):
                log.info("broker %s did not answer: %s", address, answer)
            else:
                heard(answer)
            answered.release()

        waiting = 0
        for address in addresses:
            try:
                self.invoke_async(address, make(), timeout_ms, partial(done, address))
                waiting += 1
            except RemotingError as error:
                log.info("broker %s not reached: %s", address, error)
        deadline = self._clock.monotonic_ms() + timeout_ms
        for _ in range(waiting):
            if not answered.acquire(timeout=seconds_to(self._clock, deadline)):
                return

    def close(self) -> None:
        """Close every connection; waiting requests end with ``ConnectionLost``."""
        with self._lock:
            self._closed = True
            pools = (self._brokers, self._name_servers)
            self._brokers = self._name_servers = None
        for pool in pools:
            if pool is not None:
                pool.close()

    def _others_than(self, asked: tuple[Address, ...]) -> bool:
        """Every name server failed: look for others. True when the list is another one now."""
        now = self._clock.monotonic_ms()
        if now - self._looked_ms >= LOOK_UP_AGAIN_MS:
            try:
                self.look_up()
                self._lost_sight = False
            except RmqError as error:
                level, self._lost_sight = (
                    logging.DEBUG if self._lost_sight else logging.WARNING,
                    True,
                )  # once an outage: it is asked every second
                log.log(
                    level, "no name server answers, and the discovery knows no others: %s", error
                )
        return self._servers != asked

    def _pool(self, role: str) -> ConnectionPool:
        return ConnectionPool(
            self.credentials(role),
            self._limits,
            self._clock,
            self._handle,
            self._lost,
            lambda connection: self._on_silent(connection.address),
            self.tls,
        )

    def _handle(self, command: Command, connection: Connection) -> Command | None:
        return self._on_request(command, connection.address)

    def _lost(self, connection: Connection, error: RemotingError) -> None:
        log.info("%s", error)  # it names the connection
        self._on_lost(connection.address)

    def _need(self, pool: ConnectionPool | None) -> ConnectionPool:
        if pool is None:
            raise ConnectFailed("the client is closed or was never started; nothing was sent")
        return pool
