"""The network between simulated processes: connections with an order of their own, latencies,
losses, partitions.

    client thread ──request──> SimConnection ──later──> SimServer.handle(command, peer)
    reader thread <──answer── inbox <──later── SimPeer.send
    There is one reader for each connection.

A connection keeps the order of its frames in each direction. Faults: a connection breaks before a
request arrives, or after it was served and before its answer left (the answer is lost); an answer
is late; a partition holds every frame back until it ends.

``SimPool`` is what ``remoting.pool.ConnectionPool`` is for real clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from rmq_ray.errors import ConnectFailed, ConnectionLost, RemotingError, RequestTimeout
from rmq_ray.model.ids import Address
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, Command
from tests.support.simulation.scheduler import Killed, Process, Scheduler
from tests.support.simulation.threads import Waiters

Answer = Callable[[Command | RemotingError], None]
CONNECT_TIMEOUT_MS = 3_000


class SimServer(Protocol):
    """A listening party. ``life`` changes when it is started again: connections belong to one
    life.
    """

    process: Process
    life: int

    def handle(self, command: Command, peer: SimPeer) -> Command | None: ...

    def closed(self, peer: SimPeer) -> None: ...


@dataclass
class Faults:
    """Chances of each request, and who cannot reach whom until when."""

    break_before: float = 0.0
    break_after: float = 0.0
    late: float = 0.0
    held_until_ms: dict[tuple[str, Address], float] = field(default_factory=dict)


class Network:
    """Addresses, faults, latencies."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.servers: dict[Address, SimServer] = {}
        self.faults = Faults()
        self.faulted = 0

    def latency_ms(self) -> float:
        chance = self.scheduler.chance
        return chance.uniform(0.1, 1.0) if chance.random() < 0.97 else chance.uniform(5.0, 120.0)

    def held_ms(self, process: Process, address: Address) -> float:
        """How long a partition still holds frames back."""
        until = self.faults.held_until_ms.get((process.name, address))
        return 0.0 if until is None else max(0.0, until - self.scheduler.now_ms)

    def fate(self) -> str:
        """What becomes of one request."""
        faults = self.faults
        if not (faults.break_before or faults.break_after or faults.late):
            return "well"
        point = self.scheduler.chance.random()
        for name, share in (
            ("break before", faults.break_before),
            ("break after", faults.break_after),
            ("late", faults.late),
        ):
            if point < share:
                self.faulted += 1
                return name
            point -= share
        return "well"

    def kill(self, process: Process) -> None:
        """kill -9; the kernel closes its connections, unless a partition keeps that from being
        seen.
        """
        self.scheduler.kill(process)
        for connection in list(process.connections):
            connection.vanish()


class SimPeer:
    """The server's end. See ``ports.Peer``."""

    def __init__(self, connection: SimConnection, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.trusted = self.member = True
        self.account = ""
        self.hung_up = False
        self.closed = False
        self.attributes: dict[str, Any] = {}
        self._connection = connection

    def send(self, command: Command) -> None:
        if not self.closed:
            self._connection.to_client(command)

    def close(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            self._connection.break_soon(reason)


class SimConnection:
    """One connection of one client process to one life of one server."""

    def __init__(self, pool: SimPool, address: Address, server: SimServer) -> None:
        self.address = address
        self.pool = pool
        self.alive = True
        self._network = pool.network
        self._scheduler = pool.network.scheduler
        self._server = server
        self._life = server.life
        self._waiting: dict[int, Answer] = {}
        self._opaque = 0
        self._sent_until = self._received_until = 0.0
        self._inbox: deque[Command | RemotingError | Callable[[], None]] = deque()
        self._readers = Waiters(self._scheduler)
        self.peer = SimPeer(
            self,
            pool.process.name.split("@")[0],
            40_000 + pool.network.scheduler.chance.randrange(20_000),
        )
        pool.process.connections[self] = None
        self._scheduler.spawn(pool.process, self._read)

    # --- the client's side ------------------------------------------------------------------------

    def send(self, command: Command, answered: Answer | None) -> int:
        """Write a frame; the number by which its answer is known."""
        if self.pool.process.dead:
            raise Killed
        if not self.alive:
            raise ConnectFailed(
                f"no connection to {self.address}: it broke; nothing was sent", str(self.address)
            )
        self._opaque += 1
        body = bytearray(command.body_bytes())
        sent = Command(
            command.code,
            self._opaque,
            command.flag,
            None if command.fields is None else dict(command.fields),
            body,
            serialize=command.serialize,
        )
        if answered is not None:
            self._waiting[self._opaque] = answered
        now = self._scheduler.now_ms
        self._sent_until = max(
            self._sent_until,
            now
            + self._network.latency_ms()
            + self._network.held_ms(self.pool.process, self.address),
        )
        self._scheduler.after(
            self._sent_until - now, partial(self._arrived, sent), self._server.process
        )
        return self._opaque

    def forget(self, opaque: int) -> bool:
        """Nobody waits any longer; False when the answer is there already."""
        return self._waiting.pop(opaque, None) is not None

    def give_up(self, opaque: int) -> None:
        """The time of an asynchronous request is over."""
        if opaque in self._waiting:
            self._inbox.append(partial(self._timed_out, opaque))
            self._readers.wake()

    def close(self) -> None:
        """By the client."""
        self._break("the client closed it")

    def vanish(self) -> None:
        """The client's process is dead: the server sees the end of the stream."""
        self.alive = False
        self._scheduler.after(
            self._network.latency_ms() + self._network.held_ms(self.pool.process, self.address),
            self._tell_server,
            self._server.process,
        )

    def _read(self) -> None:
        """The reader thread."""
        while self.alive or self._inbox:
            if not self._inbox:
                self._readers.wait(None)
                continue
            item = self._inbox.popleft()
            if isinstance(item, Command):
                self._take(item)
            elif isinstance(item, RemotingError):
                waiting, self._waiting = self._waiting, {}
                for answered in waiting.values():
                    answered(
                        ConnectionLost(
                            f"connection to {self.address} lost: {item.message}", str(self.address)
                        )
                    )
                self.pool.lost(self, item)
            else:
                item()

    def _take(self, command: Command) -> None:
        if command.is_response:
            answered = self._waiting.pop(command.opaque, None)
            if answered is not None:
                answered(command)
            return
        self.pool.on_request(
            command, self
        )  # brokers of these histories ask consumers nothing that they wait for

    def _timed_out(self, opaque: int) -> None:
        answered = self._waiting.pop(opaque, None)
        if answered is not None:
            answered(RequestTimeout(f"no answer of {self.address} in time", str(self.address)))

    # --- the server's side ------------------------------------------------------------------------

    def _arrived(self, command: Command) -> None:
        if not self.alive or self.peer.closed or self._server.life != self._life:
            return
        fate = self._network.fate()
        if fate == "break before":
            self._break("cut by the test")
            return
        answer = self._server.handle(command, self.peer)
        if fate == "break after":
            self._break("cut by the test")
        elif answer is not None and not self.peer.closed:
            self.to_client(
                answer, self._scheduler.chance.uniform(500, 8_000) if fate == "late" else 0.0
            )

    def to_client(self, command: Command, extra_ms: float = 0.0) -> None:
        """A frame leaves the server."""
        arriving = Command(
            command.code,
            command.opaque,
            command.flag,
            command.fields,
            command.body_bytes(),
            command.remark,
            serialize=command.serialize,
        )
        now = self._scheduler.now_ms
        at = (
            now
            + self._network.latency_ms()
            + extra_ms
            + self._network.held_ms(self.pool.process, self.address)
        )
        self._received_until = max(self._received_until, at)
        self._scheduler.after(
            self._received_until - now, partial(self._deliver, arriving), self.pool.process
        )

    def break_soon(self, reason: str) -> None:
        """The server closes it: what it sent before still arrives."""
        delay_ms = max(self._received_until - self._scheduler.now_ms, 0) + self._network.held_ms(
            self.pool.process, self.address
        )
        self._scheduler.after(delay_ms, partial(self._break, reason, False), self.pool.process)

    def _deliver(self, command: Command) -> None:
        if self.alive:
            self._inbox.append(command)
            self._readers.wake()

    def _break(self, reason: str, tell_server: bool = True) -> None:
        if not self.alive:
            return
        self.alive = False
        self.pool.process.connections.pop(self, None)
        self._inbox.append(ConnectionLost(reason, str(self.address)))
        self._readers.wake()
        if tell_server:
            self._scheduler.after(
                self._network.latency_ms(), self._tell_server, self._server.process
            )

    def _tell_server(self) -> None:
        if self._server.life == self._life and not self.peer.closed:
            self.peer.closed = True
            self._server.closed(self.peer)


class SimPool:
    """See the module. Belongs to the process whose thread makes it."""

    def __init__(self, network: Network, on_request: Any, on_lost: Any) -> None:
        assert network.scheduler.current is not None
        self.network = network
        self.process = network.scheduler.current.process
        self.on_request = on_request
        self.lost = on_lost
        self._connections: dict[Address, SimConnection] = {}
        self._closed = False

    def request(self, address: Address, command: Command, timeout_ms: float) -> Command:
        connection = self._connection(address)
        waiters, found = Waiters(self.network.scheduler), []

        def answered(outcome: Command | RemotingError) -> None:
            found.append(outcome)
            waiters.wake()

        opaque = connection.send(command, answered)
        if not waiters.wait(timeout_ms / 1000) and connection.forget(opaque):
            raise RequestTimeout(f"no answer of {address} in {timeout_ms} ms", str(address))
        if isinstance(found[0], RemotingError):
            raise found[0]
        return found[0]

    def request_async(
        self, address: Address, command: Command, timeout_ms: float, callback: Answer
    ) -> None:
        connection = self._connection(address)
        opaque = connection.send(command, callback)
        self.network.scheduler.after(timeout_ms, partial(connection.give_up, opaque), self.process)

    def oneway(self, address: Address, command: Command) -> None:
        command.flag |= FLAG_ONEWAY
        self._connection(address).send(command, None)

    def drop(self, address: Address) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        self._closed = True
        for address in list(self._connections):
            self.drop(address)

    def _connection(self, address: Address) -> SimConnection:
        if self.process.dead:
            raise Killed
        known = self._connections.get(address)
        if known is not None and known.alive:
            return known
        scheduler, server = self.network.scheduler, self.network.servers.get(address)
        held_ms = self.network.held_ms(self.process, address)
        scheduler.sleep(min(held_ms, CONNECT_TIMEOUT_MS) or self.network.latency_ms())
        if self._closed or server is None or server.life == 0 or held_ms >= CONNECT_TIMEOUT_MS:
            raise ConnectFailed(
                f"no connection to {address}: nobody listens; nothing was sent", str(address)
            )
        known = self._connections.get(address)  # another thread may have connected meanwhile
        if known is None or not known.alive:
            known = self._connections[address] = SimConnection(self, address, server)
        return known
