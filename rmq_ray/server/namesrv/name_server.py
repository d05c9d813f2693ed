"""The name server: which broker serves which topic (protocol-behaviour 4; remoting 6).

Decides: how a request becomes a call of the route table and its result an answer, when silent
brokers are looked for, what strangers are not told. Does not decide: which handler serves which
code (``remoting.request_table``), routes (``protocol.routing.route_table``), the key-value table
and the settings (``kv_config``), where it listens (``name_server_runner``).

Invariants: name servers exchange nothing; routes are never written to disk; everything of a request
is parsed and checked before a table is touched, one that cannot be served changes nothing. Unknown
codes: Apache RocketMQ's name server gives no answer, so foreign clients get none; our own get code
3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from rmq_ray.clock import Clock
from rmq_ray.config import ForeignClients, NameServerConfig
from rmq_ray.errors import AdminError, NotAuthorized, RmqError
from rmq_ray.files import FileSystem
from rmq_ray.model.ids import Address
from rmq_ray.model.metrics import Family, Sample, with_labels
from rmq_ray.model.topics import DataVersion
from rmq_ray.ports import Peer
from rmq_ray.protocol.access.rules import AccessRules
from rmq_ray.protocol.routing.route_table import UNIT, UNIT_SUB, Registration, RouteTable
from rmq_ray.remoting.request_table import Party, bind
from rmq_ray.remoting.wire import bodies, body_json
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import STANDARD_JSON_VERSION, Command
from rmq_ray.remoting.wire.headers import (
    BrokerHeader,
    BrokerNameHeader,
    RegisterBrokerAnswer,
    RegisterBrokerHeader,
    RouteHeader,
    TopicHeader,
)
from rmq_ray.server.base.offload import Offload
from rmq_ray.server.namesrv.kv_config import (
    ORDER_TOPIC_CONFIG,
    KvConfig,
    NameServerSettingsHandlers,
    WriteAtOnce,
)
from rmq_ray.server.security.access_copy import AccessCopy
from rmq_ray.server.security.access_guard import AccessGuard, refused_requests
from rmq_ray.server.security.audit_log import AuditLog
from rmq_ray.server.security.audited import Witness

FIRST_SCAN_MS = 5_000
ADDRESSES_MAX = 10_000
TOPICS_MAX = 1_000_000
NAME_CHARS_MAX = 255


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
        audit: AuditLog | None = None,
    ) -> None:
        self._config = config
        self._audit = audit
        self._clock = clock
        self._routes = RouteTable()
        files = files or FileSystem()
        self._kv = KvConfig(config.directory, files, offload or WriteAtOnce())
        self.access = AccessCopy(config.cluster_name, config.directory, files)
        """The cluster's accounts, where connections need one."""
        self._guard: AccessGuard | None = None
        if config.foreign is ForeignClients.ACL:
            self._guard = AccessGuard(self.access, "name server", audit)
        settings = NameServerSettingsHandlers(config, self._kv)
        routes = RouteHandlers(self._routes, self._kv, clock, settings.order_messages)
        self._requests = bind(Party.NAME_SERVER, routes, settings)
        self._next_scan_ms: int | None = None
        self._loaded = False
        self._counts = {
            "requests": 0,
            "unknown_requests": 0,
            "expired_brokers": 0,
            "lost_brokers": 0,
            "refused_connections": 0,
        }

    def load(self) -> None:
        """Read what is kept on disk. Raises ``StoreCorrupt``; the first request does it where
        nobody called.
        """
        if not self._loaded:
            self._kv.load()
            self.access.load()
            self._loaded = True

    async def set_access_rules(self, rules: AccessRules) -> None:
        """The cluster's accounts, from now on."""
        await self.access.take(rules)

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
        row, handler = served
        if self._guard is not None:
            try:
                self._guard.admit(row, command, peer)
            except NotAuthorized as error:
                return self._guard.refusal(command, peer, error)
        if not row.audited or self._audit is None:
            return handler(command, peer)
        witness = Witness(self._audit, "name server", row, command, peer)
        try:
            answer = handler(command, cast(Peer, witness))
        except RmqError as error:
            witness.ends(error.message)
            raise
        except Exception as error:
            witness.ends(f"{type(error).__name__}: {error}")
            raise
        if answer is not None:
            witness.hears(answer)
        return answer

    def refused(self, peer: Peer, reason: str) -> None:
        """A connection that may not come in: counted and noted."""
        self._counts["refused_connections"] += 1
        if self._audit is not None:
            self._audit.refused("name server", peer, None, (), reason)

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

    def metrics(self) -> list[Family]:
        """Its counts under ``rmq_ray_name_server_``."""
        labels = {"cluster": self._config.cluster_name, "node_type": "name_server"}
        rows = [
            ("topics", "gauge", "Topics with a route.", len(self._routes.topics())),
            ("brokers", "gauge", "Brokers that are registered.", len(self._routes.brokers())),
            ("requests_total", "counter", "Requests served.", self._counts["requests"]),
            (
                "lost_brokers_total",
                "counter",
                "Registrations that ended with their connection or for silence.",
                self._counts["lost_brokers"] + self._counts["expired_brokers"],
            ),
            (
                "refused_connections_total",
                "counter",
                "Connections that were refused or turned away.",
                self._counts["refused_connections"],
            ),
        ]
        families = [
            Family(f"rmq_ray_name_server_{name}", kind, words, (Sample({}, float(value)),))
            for name, kind, words, value in rows
        ]
        if self._guard is not None:
            name = "rmq_ray_name_server_refused_requests_total"
            families.append(refused_requests(name, self._guard.refused))
        return with_labels(families, labels)

    def status(self) -> dict[str, object]:
        """For ``status`` and tests."""
        guard = self._guard
        return {
            "state": "serving",
            **({"access": {**self.access.status(), **guard.status()}} if guard else {}),
            "brokers": {
                name: dict(broker.addresses) for name, broker in self._routes.brokers().items()
            },
            "clusters": {name: list(brokers) for name, brokers in self._routes.clusters().items()},
            "topics": len(self._routes.topics()),
            "kv_entries": self._kv.entries,
            **self._counts,
        }


class RouteHandlers:
    """The requests that read or change routes. ``order_messages()``: whether routes carry the order
    configuration.
    """

    def __init__(
        self, routes: RouteTable, kv: KvConfig, clock: Clock, order_messages: Callable[[], bool]
    ) -> None:
        self._routes = routes
        self._kv = kv
        self._clock = clock
        self._order_messages = order_messages

    def register(self, command: Command, peer: Peer) -> Command:
        """REGISTER_BROKER 103."""
        header = RegisterBrokerHeader.from_fields(command.fields)
        body = command.body_bytes()
        if header.body_crc and header.body_crc != bodies.body_crc(body):
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="crc32 not match")
        _check_broker(
            header.cluster_name, header.broker_name, header.broker_id, header.broker_address
        )
        digest = (header.body_crc, len(body)) if header.body_crc else None
        known = self._routes.version_of(
            header.broker_name, header.broker_id, header.broker_address, digest
        )
        if known is not None:
            topics, version = None, known
        elif body:
            topics, version = bodies.decode_registration(body, compressed=header.compressed)
        else:
            topics, version = None, DataVersion()
        self._check_room(header.broker_address, len(topics or ()))
        answer = self._routes.register(
            Registration(
                cluster=header.cluster_name,
                broker_name=header.broker_name,
                broker_id=header.broker_id,
                address=header.broker_address,
                ha_address=header.ha_address,
                version=version,
                topics=topics,
                epoch=header.master_epoch,
                digest=digest,
            ),
            peer,
            self._clock.now_ms(),
        )
        order = self._kv.namespace(ORDER_TOPIC_CONFIG)
        fields = RegisterBrokerAnswer(answer.master_address, answer.master_ha_address).to_fields()
        return command.answer(
            fields=fields, body=b"" if order is None else bodies.encode_table(order)
        )

    def unregister(self, command: Command, _peer: Peer) -> Command:
        """UNREGISTER_BROKER 104."""
        header = BrokerHeader.from_fields(command.fields)
        self._routes.unregister(header.broker_name, header.broker_id, header.broker_address)
        return command.answer()

    def query_data_version(self, command: Command, _peer: Peer) -> Command:
        """QUERY_DATA_VERSION 322."""
        header = BrokerHeader.from_fields(command.fields)
        asked = bodies.decode_version(body_json.parse(command.body_bytes()))
        changed = self._routes.refresh(header.broker_address, asked, self._clock.now_ms())
        known = self._routes.data_version(header.broker_address)
        return command.answer(
            fields={"changed": "true" if changed else "false"},
            body=b"" if known is None else body_json.write(bodies.encode_version(known)),
        )

    def _check_room(self, address: str, topics: int) -> None:
        if (
            self._routes.data_version(address) is None
            and self._routes.address_count >= ADDRESSES_MAX
        ):
            raise AdminError(
                f"{ADDRESSES_MAX} brokers are registered already; {address} is refused until "
                f"some leave"
            )
        if topics > TOPICS_MAX:
            raise AdminError(
                f"the registration of {address} brings {topics} topics, the limit is "
                f"{TOPICS_MAX}; spread them over several clusters"
            )

    # --- questions ---

    def route(self, command: Command, _peer: Peer) -> Command:
        """GET_ROUTEINFO_BY_TOPIC 105."""
        header = RouteHeader.from_fields(command.fields)
        route = self._routes.route(header.topic)
        if route is None:
            remark = (
                f"No topic route info in name server for the topic: {header.topic}\nCreate it, "
                f"or let the broker create it with the first message."
            )
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, remark=remark)
        if self._order_messages():
            route = replace(route, order_conf=self._kv.get(ORDER_TOPIC_CONFIG, header.topic))
        standard = command.version >= STANDARD_JSON_VERSION or bool(
            header.accept_standard_json_only
        )
        return command.answer(body=bodies.encode_route(route, standard=standard))

    def cluster_info(self, command: Command, _peer: Peer) -> Command:
        """GET_BROKER_CLUSTER_INFO 106."""
        return command.answer(body=bodies.encode_cluster_info(self._routes.brokers().values()))

    def all_topics(self, command: Command, _peer: Peer) -> Command:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER 206."""
        return command.answer(body=bodies.encode_topic_list(self._routes.topics()))

    def topics_of_cluster(self, command: Command, _peer: Peer) -> Command:
        """GET_TOPICS_BY_CLUSTER 224."""
        cluster = (command.fields or {}).get("cluster")
        if cluster is None:
            raise AdminError(
                "the field 'cluster' is missing in a request for the topics of a cluster"
            )
        return command.answer(
            body=bodies.encode_topic_list(self._routes.topics_of_cluster(cluster))
        )

    def system_topics(self, command: Command, _peer: Peer) -> Command:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS 304."""
        return command.answer(
            body=bodies.encode_topic_list(self._routes.system_topics(), self._routes.any_address())
        )

    def unit_topics(self, command: Command, _peer: Peer) -> Command:
        """Topics of units: 311, 312, 313."""
        wanted = {
            RequestCode.GET_UNIT_TOPIC_LIST: (UNIT, 0),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (UNIT_SUB, 0),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (UNIT_SUB, UNIT),
        }[RequestCode(command.code)]
        return command.answer(body=bodies.encode_topic_list(self._routes.unit_topics(*wanted)))

    # --- orders ---

    def wipe_write_permission(self, command: Command, _peer: Peer) -> Command:
        """WIPE_WRITE_PERM_OF_BROKER 205."""
        name = BrokerNameHeader.from_fields(command.fields).broker_name
        return command.answer(
            fields={"wipeTopicCount": str(self._routes.wipe_write_permission(name))}
        )

    def add_write_permission(self, command: Command, _peer: Peer) -> Command:
        """ADD_WRITE_PERM_OF_BROKER 327."""
        name = BrokerNameHeader.from_fields(command.fields).broker_name
        return command.answer(
            fields={"addTopicCount": str(self._routes.add_write_permission(name))}
        )

    def delete_topic(self, command: Command, _peer: Peer) -> Command:
        """DELETE_TOPIC_IN_NAMESRV 216."""
        header = TopicHeader.from_fields(command.fields)
        self._routes.delete_topic(header.topic, header.cluster_name)
        return command.answer()


def _check_broker(cluster: str, name: str, broker_id: int, address: str) -> None:
    """What would poison every client's route is refused."""
    for what, text in (("clusterName", cluster), ("brokerName", name)):
        if not text or text != text.strip() or len(text) > NAME_CHARS_MAX:
            raise AdminError(
                f"{what} is {text!r:.300}; it must have 1 to {NAME_CHARS_MAX} characters "
                f"without blanks around them"
            )
    if broker_id < 0:
        raise AdminError(f"brokerId is {broker_id}; 0 is the master, slaves count from 1")
    try:
        Address.parse(address)
    except ValueError:
        raise AdminError(
            f"brokerAddr is {address!r:.300}; it must be host:port as clients can reach it"
        ) from None
