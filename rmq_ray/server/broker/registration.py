"""Tells every name server what this broker has (protocol-behaviour 4.2, 5; remoting 6.1).

Decides: when: at start, after 10 s, then every 30 s, at once when a topic changed, soon again after
a failure; that name servers never wait for one another: each has its own task and connection; and
how long the first send to a topic waits for them. Does not decide what a name server does with it.

Invariants: a name server that is down costs the broker nothing but its own task, one that hangs the
first send to a new topic ``REGISTERED_WAIT_S``; what it missed it gets with the next registration,
which always carries the whole table.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rmq_ray.clock import Clock
from rmq_ray.config import RemotingLimits, Tls
from rmq_ray.errors import RemotingError, StoreNotReady
from rmq_ray.model.ids import MASTER_ID, Address
from rmq_ray.model.topics import DataVersion, TopicConfig
from rmq_ray.remoting.async_connection import AsyncConnection
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import BrokerHeader, RegisterBrokerAnswer, RegisterBrokerHeader
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.base.waits import wait_at_most

log = logging.getLogger("rmq_ray.server")
SECOND_REGISTRATION_S = 10.0
FAILURE_PAUSE_S = 0.25
TIMEOUT_MS = 6_000
UNREGISTER_TIMEOUT_MS = 1_000
REGISTERED_WAIT_S = 1.0

Snapshot = Callable[[], tuple[dict[str, TopicConfig], DataVersion]]
"""Raises ``StoreNotReady`` while there is nothing to tell."""


@dataclass(slots=True)
class _Server:
    address: Address
    due: asyncio.Event = field(default_factory=asyncio.Event)
    connection: AsyncConnection | None = None
    registrations: int = 0
    failures: int = 0
    known_as: int | None = None
    """The broker id under which it has this broker."""
    asked_as: int | None = None
    """Under which it was asked to have it last, answered or not."""
    version: int = -1
    """Of the broker's changes that it knows."""


@dataclass(frozen=True, slots=True)
class NameServers:
    """Which ones are told, how connections to them are made, and how often they are told at least:
    every ``period_ms``, kept between 10 and 60 s.
    """

    addresses: tuple[str, ...]
    credentials: Credentials | None
    limits: RemotingLimits
    period_ms: int
    tls: Tls | None = None


class RegistrationBody:
    """What is told of the topics: made once for each version of the table, for all name servers."""

    def __init__(self) -> None:
        self._version: DataVersion | None = None
        self._body = b""

    def of(self, topics: Mapping[str, TopicConfig], version: DataVersion) -> bytes:
        """The body of a registration."""
        if version != self._version:
            self._body = bodies.encode_registration(topics, version)
            self._version = version
        return self._body


class BrokerRegistration:
    """``on_order``: takes the ORDER_TOPIC_CONFIG table of an answer. ``on_fatal``: told of an
    unexpected exception. ``on_master``: of a slave, told the master's address. ``epoch()``: of a
    master's election; None = there was none. An identity with a negative broker id is registered
    nowhere.
    """

    def __init__(
        self,
        identity: Identity,
        name_servers: NameServers,
        clock: Clock,
        snapshot: Snapshot,
        on_order: Callable[[Mapping[str, str]], None],
        on_fatal: Callable[[object], None],
        on_master: Callable[[str], None] = lambda _address: None,
        epoch: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._identity = identity
        self._servers = [_Server(Address.parse(text)) for text in name_servers.addresses]
        self._name_servers = name_servers
        self._clock = clock
        self._period_s = min(max(name_servers.period_ms, 10_000), 60_000) / 1000
        self._snapshot = snapshot
        self._on_order = on_order
        self._on_fatal = on_fatal
        self._on_master = on_master
        self._epoch = epoch
        self._body = RegistrationBody()
        self._tasks: list[asyncio.Task[None]] = []
        self._version = 0
        self._waiting: set[asyncio.Task[None]] = set()
        self._moved = asyncio.Event()

    def start(self) -> None:
        """Begin; returns at once."""
        for server in self._servers:
            task = asyncio.get_running_loop().create_task(
                self._keep(server), name=f"registration at {server.address}"
            )
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    async def everywhere(self, timeout_s: float) -> bool:
        """Wait until every name server knows this broker under the id that it has now; False when
        one did not after ``timeout_s``.
        """
        return await self._until(lambda: self._known, timeout_s)

    def changed(self) -> None:
        """A topic changed: register at once."""
        self._version += 1
        for server in self._servers:
            server.due.set()

    def when_registered(self, then: Callable[[], None]) -> None:
        """``then()`` once every name server that is connected knows what changed until now, so that
        whoever asks one finds the topic; ``REGISTERED_WAIT_S`` later at most. Loop only.
        """
        version = self._version

        def known() -> bool:
            there = [server for server in self._servers if server.connection is not None]
            return all(server.version >= version for server in there)

        async def wait() -> None:
            await self._until(known, REGISTERED_WAIT_S)
            then()

        task = asyncio.get_running_loop().create_task(wait(), name="wait for name servers")
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Unregister everywhere; waits a second at most for each, all at the same time."""
        for task in (*self._tasks, *self._waiting):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._unregister(server) for server in self._servers))

    def status(self) -> dict[str, dict[str, object]]:
        """Per name server: connected, registrations that it took, failures."""
        return {
            str(server.address): {
                "connected": server.connection is not None,
                "registrations": server.registrations,
                "failures": server.failures,
            }
            for server in self._servers
        }

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_fatal(error)

    async def _keep(self, server: _Server) -> None:
        wait_s = SECOND_REGISTRATION_S
        while True:
            server.due.clear()
            try:
                pause_s = FAILURE_PAUSE_S
                if await self._told(server):
                    pause_s = wait_s
                    wait_s = self._period_s
            except (
                RemotingError,
                StoreNotReady,
            ) as error:
                # not ready: its role changes while the answer comes, and nobody takes the order
                # table
                server.failures += 1
                pause_s = FAILURE_PAUSE_S
                log.log(
                    logging.WARNING if server.failures % 30 == 1 else logging.DEBUG,
                    "name server %s does not take the registration: %s",
                    server.address,
                    error,
                )
                await self._drop(server)
            await wait_at_most(server.due, pause_s)

    async def _told(self, server: _Server) -> bool:
        """Register, or where this broker has no role now unregister. False: nothing can be told
        yet.
        """
        if self._identity.broker_id < 0:
            await self._unregister(server)
            self._moved.set()
            return True
        version = self._version
        try:
            body = self._body.of(*self._snapshot())
        except StoreNotReady:
            return False
        await self._register(server, body)
        server.registrations += 1
        server.version = version
        self._moved.set()
        return True

    async def _until(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until name servers took so much; False when they did not after ``timeout_s``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not reached():
                    self._moved.clear()
                    await self._moved.wait()
        return reached()

    @property
    def _known(self) -> bool:
        wanted = self._identity.broker_id if self._identity.broker_id >= 0 else None
        return all(server.known_as == wanted for server in self._servers)

    async def _register(self, server: _Server, body: bytes) -> None:
        connection = server.connection
        if connection is None:
            connection = server.connection = await AsyncConnection.open(
                server.address,
                self._name_servers.credentials,
                self._name_servers.limits,
                self._clock,
                lambda command, _: None,
                lambda lost, _: self._lost(server, lost),
                self._name_servers.tls,
            )
        identity = self._identity
        broker_id, crc = identity.broker_id, bodies.body_crc(body)
        epoch = self._epoch() if broker_id == MASTER_ID else None
        header = RegisterBrokerHeader(
            identity.name,
            identity.address,
            identity.cluster,
            identity.address,
            broker_id,
            False,
            crc,
            epoch,
        )
        server.asked_as = broker_id
        answer = await connection.request(
            Command(RequestCode.REGISTER_BROKER, fields=header.to_fields(), body=body), TIMEOUT_MS
        )
        if answer.code != 0:
            raise RemotingError(
                f"registration refused with code {answer.code}: {answer.remark}",
                str(server.address),
            )
        server.known_as = broker_id
        if (master := RegisterBrokerAnswer.from_fields(answer.fields).master_address) is not None:
            self._on_master(master)
        if len(answer.body):
            self._on_order(bodies.decode_table(answer.body_bytes()))

    async def _unregister(self, server: _Server) -> None:
        identity, connection = self._identity, server.connection
        known = {
            server.known_as,
            server.asked_as,
        }  # a stop may come while the answer to a registration is on its way
        server.known_as = server.asked_as = None
        if connection is None:
            return
        try:
            for broker_id in sorted(number for number in known if number is not None):
                header = BrokerHeader(identity.name, identity.address, identity.cluster, broker_id)
                await connection.request(
                    Command(RequestCode.UNREGISTER_BROKER, fields=header.to_fields()),
                    UNREGISTER_TIMEOUT_MS,
                )
        except RemotingError as error:
            log.info(
                "name server %s was not told that this broker stops: %s", server.address, error
            )
        await self._drop(server)

    async def _drop(self, server: _Server) -> None:
        connection = server.connection
        server.connection = server.known_as = server.asked_as = None
        self._moved.set()
        if connection is not None:
            await connection.close()

    def _lost(self, server: _Server, lost: object) -> None:
        """The name server closed or died: it forgot this broker, so it is told again as soon as it
        is back.
        """
        if server.connection is lost:
            server.connection = server.known_as = server.asked_as = None
            server.due.set()
            self._moved.set()
