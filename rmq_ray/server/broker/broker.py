"""A running broker: its port, its threads for slow work, its registration at name servers, its
coroutine that makes time pass.

Decides: the order of start and stop. Everything about requests is in ``server.core``. Made by the
actor shell, by tests and by tools, in a running event loop.

    start: port (kept from the last run) -> requests are answered STILL_RECOVERING
           -> store recovered beside the loop -> registered, serving
    stop:  sends refused, waiting sends answered -> unregistered -> held pulls answered
           -> log flushed, tables written -> what still waits acknowledged -> port closed
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from rmq_ray.clock import Clock
from rmq_ray.config import BrokerConfig, ForeignClients
from rmq_ray.errors import RmqError, StoreNotReady
from rmq_ray.files import FileSystem
from rmq_ray.model.ids import Address
from rmq_ray.model.metrics import Family
from rmq_ray.model.replica_roles import Assignment, ReplicaReport
from rmq_ray.model.topics import DataVersion, TopicConfig
from rmq_ray.ports import Peer
from rmq_ray.protocol import live_settings
from rmq_ray.protocol.access.accounts import EVERY, ResourceKind
from rmq_ray.protocol.access.rules import AccessRules
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.listener import Listener, PortOptions
from rmq_ray.remoting.tls import of_member
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.base.listen_port import keep, listen
from rmq_ray.server.base.offload import ThreadOffload
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.base.store_keeper import KeeperState
from rmq_ray.server.broker.registration import BrokerRegistration, NameServers
from rmq_ray.server.broker.role_transition import BrokerRoleTransition, close_core
from rmq_ray.server.core.broker_core import TICK_MS, BrokerCore, answer_wait_ms
from rmq_ray.server.core.drain import wind_down
from rmq_ray.server.replication.leadership import NO_ID, Leadership
from rmq_ray.server.security.access_copy import AccessCopy
from rmq_ray.server.security.access_guard import AccessGuard, asked_as
from rmq_ray.server.security.audit_log import AUDIT_FILE, Asking, AuditLog
from rmq_ray.server.security.broker_security import BrokerSecurity
from rmq_ray.server.slave.replica import Replica

log = logging.getLogger("rmq_ray.server")
READ_THREADS = 2
EVERYTHING = 1 << 62  # a log offset behind every log
ANSWERS_FIRST_S = 0.5  # before a connection whose account may less is closed


def _raise(reason: object) -> None:
    log.critical(
        "the broker met the unexpected: %s",
        reason,
        exc_info=reason if isinstance(reason, BaseException) else None,
    )


class Broker:
    """One broker. ``on_fatal(reason)``: told of what should be impossible; the actor shell ends the
    process then. ``leadership``: under a controller, which says who is master; the role, the broker
    id and the core change then, the port stays.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        credentials: Credentials,
        on_fatal: Callable[[object], None] = _raise,
        identity: str | None = None,
        leadership: Leadership | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._credentials = credentials
        self._on_fatal = on_fatal
        self._expected_identity = identity
        self._files = FileSystem()
        self._who = Identity(
            config.broker_name, config.broker_id, config.cluster_name, boot_ms=clock.now_ms()
        )
        self._core: BrokerCore | None = None
        self.handle: Callable[[Command, Peer], Command | None] = self._not_served
        """Serve one request: the core's, see ``Dispatch.handle``."""
        self._offload: ThreadOffload | None = None
        self._reads: ThreadOffload | None = None
        self._registration: BrokerRegistration | None = None
        self._replica: Replica | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._resting = asyncio.Lock()
        self._leadership = leadership
        self._host = ("", 0)
        if leadership is not None:
            self._who.broker_id = NO_ID
        self._party = party = f"broker {config.broker_name}"
        self.audit = AuditLog(f"{config.store.path}/rmq_ray/{AUDIT_FILE}", clock, config.audit)
        """Refusals and changes, written to the store's directory."""
        self.access = AccessCopy(config.cluster_name, f"{config.store.path}/rmq_ray", self._files)
        """The cluster's accounts, where connections need one."""
        self.access.on_narrowed = self._disconnect_accounts
        acl = config.foreign is ForeignClients.ACL
        self._guard = (
            AccessGuard(
                self.access, party, self.audit, self._is_there, config.limits.account_names_max
            )
            if acl
            else None
        )
        self._listener = Listener(
            self,
            credentials,
            config.foreign,
            config.limits,
            clock,
            party,
            PortOptions(
                busy_poll_us=config.busy_poll_us,
                tls=config.tls,
                account_key=self.access.key_of if acl else None,
                on_refused=lambda peer, reason: self.audit.refused(party, peer, None, (), reason),
            ),
        )
        self.address: Address | None = None
        """Where clients reach it; None before it listens."""

    # --- the listener's handler ---

    def _not_served(self, command: Command, peer: Peer) -> Command | None:
        """What ``handle`` is while there is no core."""
        if peer.trusted:
            return command.answer(
                ResponseCode.STILL_RECOVERING,
                remark="the broker is starting, or changes its role; send again",
            )
        raise StoreNotReady("the broker is starting, or changes its role; send again")

    def answered(self, request: int, response: int, taken_ms: float, held: bool) -> None:
        """For the latencies."""
        if self._core is not None:
            self._core.counters.rpc.add(request, response, taken_ms, held)

    def handle_sends(
        self, commands: Sequence[Command], peer: Peer
    ) -> Sequence[Command | bytes | None]:
        """See ``Dispatch.handle_sends``."""
        if self._core is None:
            return [self.handle(command, peer) for command in commands]
        return self._core.dispatch.handle_sends(commands, peer)

    def closed(self, peer: Peer) -> None:
        """See ``BrokerCore.closed``."""
        if self._core is not None:
            self._core.closed(peer)

    # --- life ---

    async def start(self, create: bool, identity: str | None = None) -> None:
        """Listen at once, then open and recover; returns when the broker serves and name servers
        are being told.

        ``create``: an empty directory may become a new store. ``identity``: the store that must be
        there, None = any of this broker. Raises ``ConfigError`` when it cannot listen, and the
        store's error when it never will serve; it then still answers, with that error, until
        ``stop``. ``StoreNotReady`` when it is stopped meanwhile.
        """
        config = self._config
        self._expected_identity = identity or self._expected_identity
        self.access.load()
        port_file = f"{config.store.path}/rmq_ray/port"
        bound = await listen(
            self._listener,
            config.host,
            config.port,
            None if config.port else self._kept_port(port_file),
            self._files,
        )
        if self.stopped:
            await self._listener.close()
            raise _stopped_meanwhile()
        self.audit.begin()
        self.address = Address(config.advertise or bound.host, bound.port)
        self._who.address = str(self.address)
        self._offload = ThreadOffload(config.broker_name, self._on_fatal)
        self._reads = ThreadOffload(f"{config.broker_name}-reads", self._on_fatal, READ_THREADS)
        self._host = (_ip(self.address.host, bound.host), bound.port)
        core = self._make_core(None)
        self._ticking = asyncio.get_running_loop().create_task(self._tick(), name="broker ticks")
        self._ticking.add_done_callback(self._ended)
        await self._recover(core, create)
        if not config.port and not self.stopped:
            await self._offload.run(lambda: keep(port_file, bound.port, self._files))
        if self.stopped:
            raise _stopped_meanwhile()
        if self._leadership is not None:
            self._leadership.begin(
                BrokerRoleTransition(self, self._leadership), self._clock, self._on_fatal
            )
        elif self._who.is_slave:
            self._follow(core)
        self._register()

    def configure(self, settings: Mapping[str, str], author: Asking | None = None) -> None:
        """The topology file says otherwise now of settings that change at run time: in effect on
        return, but where ``broker set`` has changed one. ``author``: told in the audit log; None
        where it was told before. ``ConfigError``: nothing is changed.
        """
        before = self._config
        self._config = live_settings.effective(before, settings, live=True)
        if self._core is not None:
            self._core.settings.rebase(self._config)
        if author is not None:
            old, new = (
                {name: live_settings.told(live_settings.configured(one, name)) for name in settings}
                for one in (before, self._config)
            )
            self.audit.changed(self._party, author, None, (("configuration", "file"),), old, new)

    # --- under a controller ---

    async def attend(self, assignment: Assignment) -> ReplicaReport:
        """Take what the controller decided; what follows from it runs by itself. Any order, repeats
        are harmless. Raises ``RmqError`` without a controller.
        """
        return self._led_by_controller().attend(assignment)

    async def fence(self, master_epoch: int) -> ReplicaReport:
        """Follow nobody of a lower epoch and be master under none from now on; polls have stopped
        on return.
        """
        return await self._led_by_controller().fence(master_epoch)

    async def hold_sends(self, master_epoch: int, for_ms: int) -> ReplicaReport:
        """A master of that epoch appends nothing for ``for_ms``, or until another assignment: the
        report's ``end`` stays, slaves go on copying.
        """
        return self._led_by_controller().hold_sends(master_epoch, for_ms)

    def report(self) -> ReplicaReport:
        """What this replica says of itself."""
        return self._led_by_controller().report()

    def _led_by_controller(self) -> Leadership:
        if self._leadership is None:
            raise RmqError(
                f"broker {self._config.broker_name} was started without a controller; give "
                f"it a reign"
            )
        return self._leadership

    @property
    def core(self) -> BrokerCore | None:
        """The core of the role that it has now; None between two."""
        return self._core

    def take_core(self) -> tuple[BrokerCore | None, ThreadOffload | None]:
        """The core leaves: from now on requests are answered STILL_RECOVERING."""
        core, self._core = self._core, None
        self.handle = self._not_served
        return core, self._offload

    async def begin_core(self, broker_id: int, epoch: int | None) -> None:
        """Another core: of a follower, or of the master of ``epoch``. Returns when it serves; name
        servers are being told then.
        """
        self._who.broker_id = broker_id
        await self._recover(self._make_core(epoch), False)
        if self._registration is not None:
            self._registration.changed()

    def disconnect(self, reason: str) -> None:
        """Close every connection: clients ask the name servers where to go on."""
        for peer in list(self._listener.peers):
            peer.close(reason)

    def _disconnect_accounts(self, access_keys: Set[str]) -> None:
        """Pulls that are parked and groups that are joined by what an account was end with its
        connections; who still may is back at once. What they have asked for before is answered
        first: the change itself may have come by one of them.
        """
        reason = "an account that it was used by is gone, or may less than before"
        ending = [peer for peer in self._listener.peers if asked_as(peer, access_keys)]
        for peer in ending:
            asyncio.get_running_loop().call_later(ANSWERS_FIRST_S, peer.close, reason)

    def follow_master(self, broker_id: int, address: str, epoch: int) -> None:
        """Begin to follow the master of ``epoch``; nobody is followed now."""
        self._who.broker_id = broker_id
        if self._core is not None:
            self._follow(self._core, address, epoch)
        if self._registration is not None:
            self._registration.changed()

    async def stop_following(self) -> None:
        """On return nothing is asked of any master, and the log stays as it is."""
        async with self._resting:  # whoever asks second waits for the first
            replica = self._replica
            if replica is not None:
                await replica.stop()  # who is cancelled here leaves the rest to the next one
                self._replica = None

    # --- the end ---

    async def registered(self, timeout_s: float) -> bool:
        """Whether every name server knows this broker; waits for it, ``timeout_s`` at most. True
        without name servers.
        """
        return (
            self._registration is None
            or not self._config.name_servers
            or await self._registration.everywhere(timeout_s)
        )

    async def set_access_rules(self, rules: AccessRules) -> None:
        """The cluster's accounts, from now on; also while it recovers."""
        await self.access.take(rules)

    @property
    def stopped(self) -> bool:
        """Whether ``stop`` was called: it ends, or has ended."""
        return self._stopping is not None

    async def stop(self) -> None:
        """See the drawing above. Raises the store's error when the log could not be flushed.
        Whoever asks again waits for the same end, which comes although a caller is cancelled.
        """
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(
                self._stop(), name="broker stop"
            )
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        if self._core is not None and not self._who.is_slave:
            await wind_down(
                self._who, self._core.acks.__len__, self._clock, answer_wait_ms(self._config)
            )
        if self._leadership is not None:
            await self._leadership.end()
        if self._registration is not None:
            await self._registration.stop()
        core, offload = self._core, self._offload
        try:
            await self.stop_following()
            if self._ticking is not None:
                self._ticking.cancel()
            if core is not None and offload is not None:
                await end_core(core, offload, alone=self._leadership is None)
        finally:
            if core is not None and self._leadership is not None:
                core.acks.abandon()  # whose connections end without an answer ask the next master
            elif core is not None:
                core.acks.fail_all()
            await self._listener.close()
            for threads in (self._reads, offload):
                if threads is not None:
                    threads.close()
            await asyncio.to_thread(self.audit.close)

    def _is_there(self, kind: ResourceKind, name: str) -> bool:
        core = self._core
        if core is None or name == EVERY:
            return True
        if kind is ResourceKind.GROUP:
            return name in core.tables.groups
        return name in core.tables.topics

    def status(self) -> dict[str, Any]:
        """States and counts; plain values."""
        found: dict[str, Any] = (
            {"state": "starting", "address": self._who.address}
            if self._core is None
            else self._core.status()
        )
        found["connections"] = self._listener.connections
        found["refused_connections"] = self._listener.refused
        found["audit"] = self.audit.status()
        if self._guard is not None:
            found["access"] = {**self.access.status(), **self._guard.status()}
        if self._listener.tls is not None:
            found["tls"] = self._listener.tls.status()
        if self._registration is not None:
            found["name_servers"] = self._registration.status()
        return found

    async def metrics(self) -> list[Family]:
        """Every family of ``server.core.broker_metrics``; none while there is no core. What needs
        the store is read beside the loop.
        """
        if self._core is None:
            return []
        return await asyncio.to_thread(self._core.metrics.snapshot(self.status()))

    # --- parts ---

    def _kept_port(self, path: str) -> str | None:
        """The file of the last run's port; ``None`` in a directory that is not a store yet (nothing
        is created there before the store is).
        """
        return path if self._files.exists(path) else None

    async def _recover(self, core: BrokerCore, create: bool) -> None:
        served: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def started(error: RmqError | None) -> None:
            if served.done():
                return
            if error is None:
                served.set_result(None)
            else:
                served.set_exception(error)

        core.open(create, self._expected_identity, started)
        await served

    def _make_core(self, epoch: int | None) -> BrokerCore:
        """A core for the role that this broker has now; ``epoch``: which it begins as an elected
        master.
        """
        offload, reads = self._offload, self._reads
        assert offload is not None and reads is not None
        runtime = BrokerRuntime(
            self._config, self._who, self._host, self._clock, offload, reads, self._files
        )
        self._core = core = BrokerCore(
            runtime,
            security=BrokerSecurity(
                self.audit, self._guard, self.access if self._guard is not None else None
            ),
            leadership=self._leadership,
            epoch=epoch,
        )
        core.pulls.parked.start()
        self._announce_topics(core)
        self.handle = core.handle
        return core

    def _register(self) -> None:
        config, credentials = self._config, self._credentials
        to_name_servers = (
            Credentials(credentials.cluster, "name_server", credentials.secret)
            if credentials.secret
            else None
        )
        self._registration = BrokerRegistration(
            self._who,
            NameServers(
                config.name_servers,
                to_name_servers,
                config.limits,
                config.register_interval_ms,
                of_member(config.tls),
            ),
            self._clock,
            self._announced,
            lambda ordered: self._served().tables.take_order(ordered),
            self._on_fatal,
            lambda address: self._replica.master_at(address) if self._replica is not None else None,
            epoch=(lambda: None) if self._leadership is None else self._leadership.known_epoch,
        )
        self._announce_topics(self._served())
        self._registration.start()

    def _announce_topics(self, core: BrokerCore) -> None:
        if self._registration is not None:
            core.tables.on_topics = self._registration.changed
            core.tables.when_known = self._registration.when_registered

    def _follow(
        self, core: BrokerCore, master: str | None = None, epoch: int | None = None
    ) -> None:
        """A slave: follow the master from now on; under a controller the one of ``epoch`` at
        ``master``.
        """
        config, credentials = self._config, self._credentials
        to_master = (
            Credentials(credentials.cluster, "broker", credentials.secret)
            if credentials.secret
            else None
        )
        self._replica = Replica(
            config.but(master=master) if master else config,
            core.follower_parts(),
            to_master,
            self._clock,
            self._look_up_master,
            self._on_fatal,
            self._leadership,
            epoch,
        )
        core.show_replica(self._replica.status)
        self._replica.start()

    def _announced(self) -> tuple[dict[str, TopicConfig], DataVersion]:
        core = self._served()
        if not core.tables.loaded:
            raise StoreNotReady("the broker still reads its tables; ask again")
        return core.drain.snapshot()

    def _served(self) -> BrokerCore:
        if self._core is None:
            raise StoreNotReady("the broker changes its role; ask again")
        return self._core

    def _look_up_master(self) -> None:
        if self._registration is not None:
            self._registration.changed()

    async def _tick(self) -> None:
        while True:
            if self._core is not None:
                self._core.tick()
            await asyncio.sleep(TICK_MS / 1000)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_fatal(error)


async def end_core(core: BrokerCore, offload: ThreadOffload, *, alone: bool) -> None:
    """The stop of a broker: close, and acknowledge what is on disk, where nobody else must have it.
    Raises the store's error.
    """
    failed = (
        core.keeper.error if core.keeper.state is KeeperState.FAILED else None
    )  # while those who waited were waited for
    await close_core(core, offload)
    if failed is not None:
        raise failed
    if alone and not core.replication.sync:
        core.acks.durable(EVERYTHING)


def _stopped_meanwhile() -> StoreNotReady:
    return StoreNotReady("the broker was stopped while it started; make a new one")


def _ip(advertised: str, bound: str) -> str:
    """The address that records carry: the advertised one if it is an IP address, else the bound
    one.
    """
    try:
        return str(ipaddress.ip_address(advertised))
    except ValueError:
        return bound
