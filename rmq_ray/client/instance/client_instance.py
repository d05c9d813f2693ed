"""One client of a cluster: its connections, routes, timers and heartbeats, shared by the producers
and consumers of one client id.

    producers, consumers ─register─> ClientInstance ──> RouteCache   routes, every 30 s
                                          │        ──> ClientTimers       one daemon thread
                                          └────────> BrokerLink     connection pools, name server
                                                                    choice

Decides who belongs to the instance, what the heartbeat says and when it goes out
(protocol-behaviour 3, 6, 27). Does not send messages or pull: producers and consumers ask ``link``
for that.

Invariants: one instance per client id and process; a group name is used by at most one producer and
one consumer of it; no lock is held while a request waits for its answer; an instance inherited
through a fork is never found again in the child.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from rmq_ray.client.instance.at_exit import when_program_is_over
from rmq_ray.client.instance.broker_link import BrokerLink
from rmq_ray.client.instance.managed import ManagedConsumer, ManagedProducer, ServiceState
from rmq_ray.client.instance.route_cache import RouteCache, RouteWatch
from rmq_ray.client.instance.settling import HandOver, settle
from rmq_ray.client.instance.stopped_brokers import StoppedBrokers
from rmq_ray.client.instance.timers import ClientTimers
from rmq_ray.clock import SYSTEM_CLOCK, Clock
from rmq_ray.config import RemotingLimits
from rmq_ray.errors import ClientError, RemotingError, ResponseError, RouteNotAuthorized
from rmq_ray.model.groups import Heartbeat
from rmq_ray.model.ids import MASTER_ID, Address
from rmq_ray.model.topics import TopicRoute
from rmq_ray.ports import Discovery
from rmq_ray.protocol.filters.subscription_conflicts import CONFLICT_FIELD
from rmq_ray.protocol.routing.similar_topics import similar_topics
from rmq_ray.remoting.sockets import LOOPBACK, local_ip, process_id
from rmq_ray.remoting.wire.bodies import decode_route, decode_topic_list, encode_heartbeat
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command

ROUTE_FIRST_MS = 10
ROUTE_REFRESH_MS = 30_000  # pollNameServerInterval
REFUSALS = (ResponseCode.GROUP_IN_OTHER_USE, ResponseCode.NOT_AUTHORIZED)
HEARTBEAT_MS = 30_000  # heartbeatBrokerInterval; offline brokers are dropped in the same turn
HEARTBEAT_FIRST_MS = 1_000
PERSIST_MS = 5_000  # persistConsumerOffsetInterval
PERSIST_FIRST_MS = 10_000
NAME_SERVERS_MS = 120_000
CALL_TIMEOUT_MS = 3_000
UNREGISTER_TIMEOUT_MS = (
    1_000  # a hanging broker must not hold up close; it forgets the client when the connection goes
)

Member = TypeVar("Member")

log = logging.getLogger("rmq_ray.client")


class ClientInstance:
    """See the module. Use ``get_or_create``, then register, then ``start``; ``release`` when
    done.
    """

    def __init__(
        self, discovery: Discovery, client_id: str, limits: RemotingLimits, clock: Clock
    ) -> None:
        self.client_id = client_id
        self.access_key: str = getattr(discovery, "access_key", "")
        """The account that it is; "" = none."""
        self.clock = clock
        self.link = BrokerLink(discovery, limits, clock, self._on_request, self._silent, self._lost)
        self.routes = RouteCache(
            self._fetch_route, self._route_changed, self.link.drop, clock, self.similar_topics
        )
        self.stopped = StoppedBrokers(discovery, clock, client_id)
        self.timers = ClientTimers(clock, f"rmq-client-{client_id}")
        self._watch = RouteWatch(self.timers, clock, lambda topic: self.routes.refresh_all({topic}))
        self._state = ServiceState.CREATE_JUST
        self._lock = (
            threading.RLock()
        )  # a signal handler that closes one of them may have interrupted the start of another
        self._heartbeat_lock = threading.Lock()
        self._losses: tuple[Callable[[Address], None], ...] = ()
        self._conflict = ""
        self.refused = ""
        """Why a broker took the last heartbeat not; "" = it did."""
        self._producers: dict[str, ManagedProducer] = {}
        self._consumers: dict[str, ManagedConsumer] = {}

    @classmethod
    def get_or_create(
        cls,
        discovery: Discovery,
        client_id: str | None = None,
        *,
        limits: RemotingLimits | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> ClientInstance:
        """The instance of this client id in this process; None = a new one, ``ip@pid#nanotime``.

        Raises ``ClusterError`` when the discovery finds no cluster (only for a new id: the address
        is part of it), ``ClientError`` when the one of this id is of another account.
        """
        if client_id is None:
            client_id = _registry.new_id(discovery, clock)
        with _registry.lock:
            found = _registry.instances.get(client_id)
            if found is None:
                found = _registry.instances[client_id] = cls(
                    discovery, client_id, limits or RemotingLimits(), clock
                )
            elif found.access_key != getattr(discovery, "access_key", ""):
                raise ClientError(
                    f"client {client_id} is account {found.access_key or 'none'!r} in this "
                    f"process: give another client_id to who shall be another account",
                    client_id,
                )
            return found

    @staticmethod
    def running() -> list[ClientInstance]:
        """The instances of this process that are running."""
        return _registry.running()

    @property
    def state(self) -> ServiceState:
        """Where in its life the instance is."""
        return self._state

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Look the name servers up and start the timers; no effect when running.

        Raises ``ClientError`` in any other state but the first, and what the discovery raises.
        """
        with self._lock:
            if self._state is ServiceState.RUNNING:
                return
            if self._state is not ServiceState.CREATE_JUST:
                raise ClientError(
                    f"client {self.client_id} cannot start: {self._state.value}; make a new "
                    f"producer or consumer",
                    self.client_id,
                )
            self._state = ServiceState.START_FAILED
            self.link.look_up()
            self.timers.every("name servers", NAME_SERVERS_MS, self.link.look_up)
            self.timers.every(
                "routes", ROUTE_REFRESH_MS, self._refresh_routes, first_ms=ROUTE_FIRST_MS
            )
            self.timers.every(
                "heartbeat", HEARTBEAT_MS, self._clean_and_beat, first_ms=HEARTBEAT_FIRST_MS
            )
            self.timers.every("offsets", PERSIST_MS, self._persist, first_ms=PERSIST_FIRST_MS)
            self.timers.start()
            self._state = ServiceState.RUNNING
        _registry.watch_exit()

    def producers(self) -> list[ManagedProducer]:
        """Those that belong to it now."""
        return list(self._producers.values())

    def halts(self) -> list[Callable[[], HandOver]]:
        """What stops its consumers, see ``ManagedConsumer``. Its timer hands no offsets over from
        now on.
        """
        self.timers.cancel("offsets")
        return [consumer.halt for consumer in list(self._consumers.values())]

    def release(self) -> None:
        """Stop timers and connections if no producer and no consumer is left; else nothing. Safe to
        call twice.
        """
        with _registry.lock, self._lock:
            if self._producers or self._consumers or self._state is ServiceState.SHUTDOWN_ALREADY:
                return
            self._state = ServiceState.SHUTDOWN_ALREADY
            if _registry.instances.get(self.client_id) is self:
                del _registry.instances[self.client_id]
        self.timers.close()
        self.link.close()

    def register_producer(self, producer: ManagedProducer) -> None:
        """Take a producer in. ``ClientError`` when its group is taken or the instance is closed."""
        self._register(self._producers, producer.group, producer, "producer")

    def register_consumer(self, consumer: ManagedConsumer) -> None:
        """Take a consumer in. ``ClientError`` when its group is taken or the instance is closed."""
        self._register(self._consumers, consumer.group, consumer, "consumer")

    def unregister_producer(self, group: str) -> None:
        """Let go of it and tell every broker (35), waiting 1 s at most."""
        self._unregister(self._producers, group, "producerGroup")

    def unregister_consumer(self, group: str) -> None:
        """Let go of it and tell every broker (35), waiting 1 s at most."""
        self._unregister(self._consumers, group, "consumerGroup")

    def consumer(self, group: str) -> ManagedConsumer | None:
        """The consumer of this group, if it belongs to the instance."""
        return self._consumers.get(group)

    # --- requests ---------------------------------------------------------------------------------

    def invoke(
        self, address: Address, command: Command, timeout_ms: float = CALL_TIMEOUT_MS
    ) -> Command:
        """Ask a broker and wait for its answer, whatever its code. Raises ``RemotingError``
        (``ConnectFailed``: nothing was sent).
        """
        return self.link.invoke(address, command, timeout_ms)

    def name_server_invoke(self, command: Command, timeout_ms: float = CALL_TIMEOUT_MS) -> Command:
        """Ask the chosen name server; when it fails, the others in turn. Raises the last
        ``RemotingError``.
        """
        return self.link.name_server_invoke(command, timeout_ms)

    def broker_address(self, broker_name: str, broker_id: int = MASTER_ID) -> Address | None:
        """The address of exactly this broker as routes tell it, None when they do not."""
        return self.routes.broker_address(broker_name, broker_id)

    def reading_address(self, broker_name: str) -> Address | None:
        """The master's, or a slave's while the master is away, as routes tell it."""
        found = self.routes.subscribe_address(broker_name)
        return None if found is None else found[1]

    def broker_for_topic(self, topic: str) -> Address | None:
        """A broker of the topic for questions about groups: the first one's master, else any
        address; None without a route.
        """
        if self.routes.route(topic) is None:
            self.routes.refresh(topic)
        route = self.routes.route(topic)
        names = sorted(data.broker_name for data in route.brokers) if route is not None else []
        found = [self.routes.subscribe_address(name) for name in names]
        return next((pair[1] for pair in found if pair is not None), None)

    def similar_topics(self, topic: str) -> list[str]:
        """Topics that somebody may have meant who wrote this unknown one; none where no name server
        tells. Blocks for one request.
        """
        command = Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        try:
            answer = self.link.name_server_invoke(command, CALL_TIMEOUT_MS)
        except RemotingError:
            return []
        if answer.code != ResponseCode.SUCCESS:
            return []
        cluster = self.link.cluster
        servers = {"" if cluster is None else cluster.cluster, *self.routes.broker_names()}
        return similar_topics(topic, decode_topic_list(answer.body_bytes()), servers)

    def refresh_route_soon(self, topic: str) -> None:
        """Have the timer thread fetch the topic's route; returns at once. Asking again while it
        waits does nothing.
        """
        self.timers.soon(f"route of {topic}", lambda: self.routes.refresh_all({topic}))

    def watch_route(self, topic: str) -> None:
        """A send to the topic failed: have its route fetched now, and again every 50 ms while sends
        fail; returns at once.
        """
        self._watch.look(topic)

    def heartbeat(self, wait_s: float = 0.0, timeout_ms: float = CALL_TIMEOUT_MS) -> None:
        """Tell every broker (masters only, without consumers) who lives here; skipped when another
        thread is at it for longer than ``wait_s``.

        Waits ``timeout_ms`` at most for the answers. A broker that does not answer is logged: the
        next turn tells it again.
        """
        if not self._heartbeat_lock.acquire(timeout=wait_s):
            return
        try:
            body = encode_heartbeat(self._heartbeat_value())
            self.link.tell_all(
                self._heartbeat_targets(),
                lambda: Command(RequestCode.HEART_BEAT, body=body),
                timeout_ms,
                self._heard,
            )
        finally:
            self._heartbeat_lock.release()

    # --- inside -----------------------------------------------------------------------------------

    def _register(self, table: dict[str, Member], group: str, member: Member, kind: str) -> None:
        with self._lock:
            if self._state is ServiceState.SHUTDOWN_ALREADY:
                raise ClientError(
                    f"client {self.client_id} is closed; make a new {kind}", self.client_id
                )
            if group in table:
                raise ClientError(
                    f"the {kind} group {group!r} has been created before in client "
                    f"{self.client_id}; use another group or another client id",
                    group,
                )
            table[group] = member

    def _unregister(self, table: dict[str, Member], group: str, field: str) -> None:
        with self._lock:
            if table.pop(group, None) is None or self._state is not ServiceState.RUNNING:
                return
        fields = {"clientID": self.client_id, field: group}
        self.link.tell_all(
            self.routes.all_addresses(masters_only=False),
            lambda: Command(RequestCode.UNREGISTER_CLIENT, fields=dict(fields)),
            UNREGISTER_TIMEOUT_MS,
        )

    def _heartbeat_value(self) -> Heartbeat:
        consumers = tuple(consumer.consumer_data() for consumer in list(self._consumers.values()))
        producers = sorted(self._producers.copy().items())
        without = frozenset(group for group, producer in producers if not producer.has_checker)
        return Heartbeat(self.client_id, tuple(group for group, _ in producers), consumers, without)

    def _heard(self, answer: Command) -> None:
        """A broker's answer to a heartbeat: it may say that others of a group subscribe
        differently or consume in another way, or that this account may not. Told once for each
        text.
        """
        self.refused = (answer.remark or "") if answer.code in REFUSALS else ""
        conflict = (answer.fields or {}).get(CONFLICT_FIELD, "") or self.refused
        if conflict and conflict != self._conflict:
            log.warning("%s", conflict)
        self._conflict = conflict or self._conflict

    def _heartbeat_targets(self) -> list[Address]:
        if not self._producers and not self._consumers:
            return []
        return self.routes.all_addresses(masters_only=not self._consumers)

    def _fetch_route(self, topic: str, until_ms: float) -> TopicRoute | None:
        answer = self.link.name_server_invoke(
            Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic}),
            CALL_TIMEOUT_MS,
            until_ms,
        )
        if answer.code == ResponseCode.SUCCESS:
            return decode_route(answer.body_bytes())
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        refused = answer.code == ResponseCode.NOT_AUTHORIZED
        raise (RouteNotAuthorized if refused else ResponseError)(
            f"a name server refused the route of {topic!r}: {answer.remark or 'no reason given'}",
            answer.code,
        )

    def _route_changed(self, topic: str) -> None:
        for consumer in list(self._consumers.values()):
            if topic in consumer.subscribed_topics():
                consumer.route_changed(topic)

    def _silent(self, address: Address) -> None:
        """Requests wait there and nothing comes, as from an idle broker or from one that hangs:
        another copy may be master meanwhile. A reader's thread.
        """
        topic = self.routes.topic_of_copies(address)
        if topic is not None:
            self.timers.soon(f"silence of {address}", lambda: self.routes.refresh_all({topic}))

    def watch_losses(self, lost: Callable[[Address], None]) -> None:
        """``lost(address)`` whenever a connection to a server breaks; in its reader's thread."""
        self._losses = (*self._losses, lost)

    def unwatch_losses(self, lost: Callable[[Address], None]) -> None:
        """No more of that."""
        self._losses = tuple(known for known in self._losses if known != lost)

    def _lost(self, address: Address) -> None:
        for lost in self._losses:
            lost(address)

    def _refresh_routes(self) -> None:
        topics: set[str] = set()
        for producer in list(self._producers.values()):
            topics.update(producer.published_topics())
        for consumer in list(self._consumers.values()):
            topics.update(consumer.subscribed_topics())
        self.routes.refresh_all(topics)

    def _clean_and_beat(self) -> None:
        for address in self.routes.drop_offline():
            self.link.drop(address)
        self.heartbeat()

    def _persist(self) -> None:
        for consumer in list(self._consumers.values()):
            try:
                consumer.persist_offsets()
            except RemotingError as error:
                log.warning(
                    "offsets of group %s not handed over, next time again: %s",
                    consumer.group,
                    error,
                )

    def _on_request(self, command: Command, address: Address) -> Command | None:
        """A broker's request (remoting 4), in a reader thread."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            for consumer in list(self._consumers.values()):
                consumer.rebalance_now()
            return None
        fields = command.fields or {}
        member = self._consumers.get(fields.get("consumerGroup") or fields.get("group") or "")
        if member is not None:
            return member.handle_request(command, address)
        for producer in list(self._producers.values()):
            answer = producer.handle_request(command, address)
            if answer is not None:
                return answer
        return (
            None
            if command.is_oneway
            else command.answer(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f"request code {command.code} is not for this client",
            )
        )


class _Registry:
    """The instances of this process, and the last part of a new client id."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # as the lock of an instance
        self.instances: dict[str, ClientInstance] = {}
        self._last_nano = 0
        self._watches_exit = False

    def watch_exit(self) -> None:
        """Settle what the instances owe when the program is over."""
        with self.lock:
            if not self._watches_exit:
                when_program_is_over(self._settle)
                self._watches_exit = True

    def running(self) -> list[ClientInstance]:
        """Those that run."""
        with self.lock:
            found = list(self.instances.values())
        return [each for each in found if each.state is ServiceState.RUNNING]

    def _settle(self) -> None:
        settle(
            lambda: [producer for found in self.running() for producer in found.producers()],
            [halt for found in self.running() for halt in found.halts()],
            SYSTEM_CLOCK,
        )

    def new_id(self, discovery: Discovery, clock: Clock) -> str:
        """``ip@pid#nanotime``, the nanotime rising so that two ids made at once differ."""
        servers = discovery.lookup().name_servers
        host = local_ip(Address.parse(servers[0])) if servers else LOOPBACK
        with self.lock:
            self._last_nano = max(self._last_nano + 1, int(clock.monotonic_ms() * 1e6))
            return f"{host}@{process_id()}#{self._last_nano}"


_registry = _Registry()


def _forget_after_fork() -> None:
    """In a forked child: connections and threads of the parent do not work here, so neither do its
    instances.
    """
    global _registry
    _registry = _Registry()


os.register_at_fork(after_in_child=_forget_after_fork)
