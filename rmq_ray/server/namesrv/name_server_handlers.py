"""What brokers and clients ask a name server: registration, routes, lists, permissions (remoting
6).

Decides: how a request becomes a call of the route table and its result an answer. Does not decide:
the rules of routes. Called by ``server.namesrv.name_server``.

Invariant: everything of a request is parsed and checked before the table is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rmq_ray.clock import Clock
from rmq_ray.errors import AdminError
from rmq_ray.model.ids import Address
from rmq_ray.model.topics import DataVersion
from rmq_ray.ports import Peer
from rmq_ray.protocol.routing.route_table import UNIT, UNIT_SUB, Registration, RouteTable
from rmq_ray.remoting.wire import bodies
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
from rmq_ray.server.namesrv.kv_config import ORDER_TOPIC_CONFIG, KvConfig

ADDRESSES_MAX = 10_000
TOPICS_MAX = 1_000_000
NAME_CHARS_MAX = 255

Handler = Callable[[Command, Peer], Command | None]


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
        topics, version = (
            bodies.decode_registration(body, compressed=header.compressed)
            if body
            else (None, DataVersion())
        )
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
        asked = bodies.decode_version(bodies.parse(command.body_bytes()))
        changed = self._routes.refresh(header.broker_address, asked, self._clock.now_ms())
        known = self._routes.data_version(header.broker_address)
        return command.answer(
            fields={"changed": "true" if changed else "false"},
            body=b"" if known is None else bodies.write(bodies.encode_version(known)),
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
