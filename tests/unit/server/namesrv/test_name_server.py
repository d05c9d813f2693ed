"""NameServer: requests in, answers out, without a socket."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.config import NameServerConfig
from rmq_ray.errors import AdminError, RmqError, StoreCorrupt, StoreFull
from rmq_ray.files import FileSystem
from rmq_ray.model.topics import BrokerData, DataVersion, QueueData, TopicConfig
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.header import HeaderInvalid
from rmq_ray.server.namesrv.name_server import NameServer
from tests.support.faults.fake_peer import FakePeer

V1, V2 = DataVersion(1, 100), DataVersion(2, 200)
TOPICS = {"orders": TopicConfig("orders", 4, 4)}


class World:
    """A name server, its clock, one connection per broker."""

    def __init__(self, directory: str = "", **settings) -> None:
        self.clock = ManualClock()
        self.server = NameServer(NameServerConfig(directory=directory, **settings), self.clock)
        self.client = FakePeer()

    def ask(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        peer: FakePeer | None = None,
        version: int = 407,
    ) -> Command:
        answer = self.server.handle(
            Command(code, 7, 0, fields, body, version=version), peer or self.client
        )
        assert answer is not None
        assert answer.opaque == 7 and answer.is_response
        return answer

    def register(
        self,
        name="broker-a",
        broker_id=0,
        address="10.0.0.1:10911",
        topics=TOPICS,
        version=V1,
        peer=None,
        cluster="C",
        **fields,
    ) -> Command:
        body = bodies.encode_registration(topics, version)
        header = {
            "brokerName": name,
            "brokerAddr": address,
            "clusterName": cluster,
            "haServerAddr": "10.0.0.1:10912",
            "brokerId": str(broker_id),
            **fields,
        }
        return self.ask(
            RequestCode.REGISTER_BROKER,
            header,
            fields.get("body", body) if isinstance(fields.get("body"), bytes) else body,
            peer,
        )

    def route(self, topic: str = "orders", **more) -> Command:
        return self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, **more)


def text(answer: Command) -> str:
    return answer.body_bytes().decode()


@pytest.mark.seed("S0-009", "S0-017", "S0-025", "S0-033", "S0-034")
def test_a_registered_broker_is_found_by_the_topics_it_brought() -> None:
    world = World()
    assert world.register().code == ResponseCode.SUCCESS
    route = bodies.decode_route(world.route().body_bytes())
    assert route.queues == (QueueData("broker-a", 4, 4, 6),)
    assert route.brokers == (BrokerData("C", "broker-a", {0: "10.0.0.1:10911"}),)
    assert route.order_conf is None


def test_a_route_has_the_form_that_the_callers_version_reads() -> None:
    world = World()
    world.register()
    new, old = world.route(version=401), world.route(version=400)
    assert set(json.loads(text(new))) == {"brokerDatas", "filterServerTable", "queueDatas"}
    assert '"brokerAddrs":{"0":"10.0.0.1:10911"}' in text(new)
    assert '"brokerAddrs":{0:"10.0.0.1:10911"}' in text(old)
    asked = world.ask(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        {"topic": "orders", "acceptStandardJsonOnly": "true"},
        version=0,
    )
    assert text(asked) == text(new)


def test_an_unknown_topic_has_no_route_and_the_remark_names_it_and_the_remedy() -> None:
    answer = World().route("nowhere")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    first, second = (answer.remark or "").split("\n")
    assert first == "No topic route info in name server for the topic: nowhere"
    assert "Create it" in second


@pytest.mark.seed("S0-010")
def test_two_name_servers_exchange_nothing() -> None:
    first, second = World(), World()
    first.register()
    assert second.route().code == ResponseCode.TOPIC_NOT_EXIST
    second.register(address="10.0.0.2:10911")
    assert bodies.decode_route(first.route().body_bytes()).brokers[0].addresses == {
        0: "10.0.0.1:10911"
    }


def test_only_slaves_are_told_their_master() -> None:
    world = World()
    assert world.register().fields == {}
    answer = world.register(broker_id=1, address="10.0.0.2:10911")
    assert answer.fields == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}


def test_the_compressed_form_of_a_registration_is_read_too() -> None:
    world = World()
    body = bodies.encode_registration_compressed({"orders": TopicConfig("orders", 3, 2, 4)}, V1)
    header = {
        "brokerName": "b",
        "brokerAddr": "h:1",
        "clusterName": "C",
        "haServerAddr": "h:2",
        "brokerId": "0",
        "compressed": "true",
    }
    world.ask(RequestCode.REGISTER_BROKER, header, body)
    assert bodies.decode_route(world.route().body_bytes()).queues == (QueueData("b", 3, 2, 4),)


def test_a_registration_with_a_wrong_checksum_changes_nothing_and_others_are_taken() -> None:
    world = World()
    right = crc(bodies.encode_registration(TOPICS, V1))
    wrong = world.register(bodyCrc32=str(right ^ 1))
    assert (wrong.code, wrong.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
    assert world.route().code == ResponseCode.TOPIC_NOT_EXIST
    assert world.register(bodyCrc32=str(right)).code == ResponseCode.SUCCESS
    assert world.register(bodyCrc32="0").code == ResponseCode.SUCCESS


def test_a_registration_without_a_body_brings_an_address_and_no_topics() -> None:
    world = World()
    header = {
        "brokerName": "b",
        "brokerAddr": "h:1",
        "clusterName": "C",
        "haServerAddr": "h:2",
        "brokerId": "0",
    }
    assert world.ask(RequestCode.REGISTER_BROKER, header).code == ResponseCode.SUCCESS
    assert world.server.status()["brokers"] == {"b": {0: "h:1"}}
    assert world.server.status()["topics"] == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"brokerAddr": "nonsense"},
        {"brokerAddr": "h:0"},
        {"brokerName": ""},
        {"clusterName": " C"},
        {"brokerId": "-1"},
        {"brokerName": "x" * 256},
    ],
    ids=str,
)
def test_what_would_poison_routes_is_refused_before_the_table_is_touched(
    changed: dict[str, str],
) -> None:
    world = World()
    with pytest.raises(AdminError):
        world.register(**changed)
    assert world.server.status()["brokers"] == {}
    assert world.server.status()["clusters"] == {}


def test_a_missing_field_is_named() -> None:
    with pytest.raises(HeaderInvalid, match="brokerName"):
        World().ask(RequestCode.REGISTER_BROKER, {"brokerAddr": "h:1"})
    with pytest.raises(HeaderInvalid, match="topic"):
        World().ask(RequestCode.GET_ROUTEINFO_BY_TOPIC)


def signed(world: World, topics=TOPICS, version=V1, **more) -> Command:
    """A registration with its checksum, as brokers send it."""
    body = bodies.encode_registration(topics, version)
    return world.register(topics=topics, version=version, bodyCrc32=str(crc(body)), **more)


def crc(body: bytes) -> int:
    return zlib.crc32(body) & 0x7FFFFFFF


def test_a_table_that_comes_again_byte_by_byte_is_not_read_again_until_it_has_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    decode = bodies.decode_registration
    monkeypatch.setattr(
        bodies,
        "decode_registration",
        lambda body, **form: (read.append(len(body)), decode(body, **form))[1],
    )
    world, peer = World(), FakePeer()

    def reads(**more) -> int:
        before = len(read)
        assert signed(world, peer=peer, **more).code == ResponseCode.SUCCESS
        return len(read) - before

    assert [reads(), reads(), reads()] == [1, 0, 0]
    assert "orders" in world.server._routes.topics()
    assert reads(topics={**TOPICS, "more": TopicConfig("more", 1, 1)}, version=V2) == 1
    assert world.route("more").code == ResponseCode.SUCCESS
    assert reads(broker_id=1) == 1, "the same table in another role"
    assert reads(broker_id=1) == 0
    assert reads() == 1, "promoted"
    world.server.closed(peer)
    assert world.route().code == ResponseCode.TOPIC_NOT_EXIST
    assert reads() == 1, "the broker was forgotten meanwhile"
    assert world.route().code == ResponseCode.SUCCESS
    before = len(read)
    world.register()
    world.register()
    assert len(read) - before == 2, "without a checksum nobody knows"


def test_a_table_that_comes_again_counts_as_a_sign_of_life() -> None:
    world = World()
    signed(world)
    for _ in range(200):
        world.clock.advance_ms(1_000)
        if world.clock.monotonic_ms() % 30_000 == 0:
            signed(world)
        world.server.tick(world.clock.now_ms())
    assert world.route().code == ResponseCode.SUCCESS


def test_asking_for_the_data_version_tells_whether_a_registration_is_needed() -> None:
    world = World()
    header = {
        "brokerName": "broker-a",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "C",
        "brokerId": "0",
    }
    unknown = world.ask(RequestCode.QUERY_DATA_VERSION, header, b'{"counter":1,"timestamp":100}')
    assert (unknown.fields, unknown.body_bytes()) == ({"changed": "true"}, b"")
    world.register()
    same = world.ask(RequestCode.QUERY_DATA_VERSION, header, b'{"counter":1,"timestamp":100}')
    assert (same.fields, text(same)) == ({"changed": "false"}, '{"counter":1,"timestamp":100}')
    newer = world.ask(RequestCode.QUERY_DATA_VERSION, header, b'{"counter":2,"timestamp":100}')
    assert newer.fields == {"changed": "true"}


@pytest.mark.seed("S3-134")
def test_a_closed_connection_takes_its_broker_along_and_silence_closes_it() -> None:
    world, first, second = World(), FakePeer(), FakePeer()
    world.register("broker-a", address="10.0.0.1:1", peer=first)
    world.register("broker-b", address="10.0.0.2:1", peer=second)
    world.server.closed(first)
    assert list(world.server.status()["brokers"]) == ["broker-b"]
    for _ in range(130):
        world.server.tick(world.clock.now_ms())
        assert not second.closed
        world.clock.advance_ms(1_000)
        if world.clock.monotonic_ms() == 60_000:
            world.register("broker-b", address="10.0.0.2:1", peer=second)
    for _ in range(61):
        world.server.tick(world.clock.now_ms())
        world.clock.advance_ms(1_000)
    assert second.closed and "did not register" in second.close_reason
    assert world.server.status()["brokers"] == {}
    world.server.closed(second)
    assert world.server.status()["expired_brokers"] == world.server.status()["lost_brokers"] == 1


def test_dead_brokers_are_looked_for_5_seconds_after_the_start_and_then_every_10() -> None:
    world, peer = World(broker_expiry_ms=1_000), FakePeer()
    start = world.clock.now_ms()
    world.server.tick(start)
    world.register(peer=peer)
    world.server.tick(start + 4_999)
    assert not peer.closed
    world.server.tick(start + 5_000)
    assert peer.closed
    later = FakePeer()
    world.clock.advance_ms(5_000)
    world.register(peer=later)
    world.server.tick(start + 14_999)
    assert not later.closed
    world.server.tick(start + 15_000)
    assert later.closed


def test_unregistering_ends_a_brokers_routes() -> None:
    world = World()
    world.register()
    header = {
        "brokerName": "broker-a",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "C",
        "brokerId": "0",
    }
    assert world.ask(RequestCode.UNREGISTER_BROKER, header).code == ResponseCode.SUCCESS
    assert world.route().code == ResponseCode.TOPIC_NOT_EXIST


def test_cluster_info_writes_ids_without_quotes() -> None:
    world = World()
    world.register("broker-a")
    world.register("broker-a", 1, "10.0.0.2:10911")
    expected = (
        '{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911",'
        '1:"10.0.0.2:10911"},"brokerName":"broker-a","cluster":"C"}},'
        '"clusterAddrTable":{"C":["broker-a"]}}'
    )
    assert text(world.ask(RequestCode.GET_BROKER_CLUSTER_INFO)) == expected


def test_topic_lists_of_the_whole_server_of_a_cluster_of_the_system_and_of_units() -> None:
    world = World()
    units = {
        name: TopicConfig(name, sys_flag=flag)
        for name, flag in (("unit", 1), ("sub", 2), ("both", 3))
    }
    world.register("broker-a", topics={**TOPICS, **units})
    world.register(
        "broker-b", address="10.0.0.2:1", topics={"refunds": TopicConfig("refunds")}, cluster="D"
    )

    def topics(code: int, fields: dict[str, str] | None = None) -> list[str]:
        return bodies.decode_topic_list(world.ask(code, fields).body_bytes())

    assert topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == [
        "both",
        "orders",
        "refunds",
        "sub",
        "unit",
    ]
    assert topics(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "D"}) == ["refunds"]
    assert {"C", "D", "broker-a", "broker-b", "TBW102"} <= set(
        topics(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    )
    assert '"brokerAddr":"10.0.0.1:10911"' in text(
        world.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    )
    assert topics(RequestCode.GET_UNIT_TOPIC_LIST) == ["both", "unit"]
    assert topics(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == ["both", "sub"]
    assert topics(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == ["sub"]
    with pytest.raises(AdminError, match="cluster"):
        world.ask(RequestCode.GET_TOPICS_BY_CLUSTER)


def test_write_permission_is_wiped_and_added_with_the_number_of_topics_as_answer() -> None:
    world = World()
    world.register()
    assert world.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}).fields == {
        "wipeTopicCount": "1"
    }
    assert bodies.decode_route(world.route().body_bytes()).queues[0].permission == 4
    assert world.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}).fields == {
        "addTopicCount": "1"
    }
    assert bodies.decode_route(world.route().body_bytes()).queues[0].permission == 6
    assert world.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "nobody"}).fields == {
        "wipeTopicCount": "0"
    }


def test_a_topic_is_deleted_by_name_or_for_one_cluster() -> None:
    world = World()
    world.register()
    world.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders", "clusterName": "other"})
    assert world.route().code == ResponseCode.SUCCESS
    world.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
    assert world.route().code == ResponseCode.TOPIC_NOT_EXIST


def put(world: World, namespace: str, key: str, value: str) -> Command:
    return world.ask(
        RequestCode.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value}
    )


def test_the_key_value_table_survives_a_restart_in_rocketmqs_file(tmp_path: Path) -> None:
    world = World(str(tmp_path))
    assert put(world, "ORDER_TOPIC_CONFIG", "orders", "broker-a:4").code == ResponseCode.SUCCESS
    assert json.loads((tmp_path / "kvConfig.json").read_text()) == {
        "configTable": {"ORDER_TOPIC_CONFIG": {"orders": "broker-a:4"}}
    }
    again = World(str(tmp_path))
    again.server.load()
    asked = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}
    assert again.ask(RequestCode.GET_KV_CONFIG, asked).fields == {"value": "broker-a:4"}
    assert (
        text(again.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, asked))
        == '{"table":{"orders":"broker-a:4"}}'
    )
    again.ask(RequestCode.DELETE_KV_CONFIG, asked)
    assert (
        World(str(tmp_path)).ask(RequestCode.GET_KV_CONFIG, asked).code
        == ResponseCode.QUERY_NOT_FOUND
    )
    assert (
        again.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "never"}).code
        == ResponseCode.QUERY_NOT_FOUND
    )


def test_a_broken_key_value_file_is_never_replaced_by_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").write_text('{"configTable":{"n":{"k"')
    world = World(str(tmp_path))
    with pytest.raises(StoreCorrupt):
        world.server.load()
    with pytest.raises(StoreCorrupt):
        put(world, "n", "k", "v")
    assert (tmp_path / "kvConfig.json").read_text() == '{"configTable":{"n":{"k"'


def test_a_key_value_table_that_cannot_be_written_says_so() -> None:
    class Full(FileSystem):
        def write_whole(self, path: str, data: object) -> None:
            raise StoreFull("no room", path)

        def make_dirs(self, path: str) -> None:
            return None

    server = NameServer(NameServerConfig(directory="/nowhere"), ManualClock(), files=Full())
    answer = server.handle(
        Command(RequestCode.PUT_KV_CONFIG, fields={"namespace": "n", "key": "k", "value": "v"}),
        FakePeer(),
    )
    assert answer is not None and answer.code == StoreFull.code
    assert "in memory" in (answer.remark or "")


def test_a_change_written_by_a_thread_is_answered_when_it_is_on_disk() -> None:
    class Later:
        def __init__(self) -> None:
            self.work: list[Callable[[], None]] = []

        def submit(self, work, done) -> None:
            self.work.append(lambda: done(work()))

        def post(self, call: Callable[[], None]) -> None:
            call()

    later, peer = Later(), FakePeer()
    server = NameServer(NameServerConfig(), ManualClock(), later)
    command = Command(
        RequestCode.PUT_KV_CONFIG, 9, fields={"namespace": "n", "key": "k", "value": "v"}
    )
    assert server.handle(command, peer) is None
    assert peer.sent == []
    later.work.pop(0)()
    assert [(answer.opaque, answer.code) for answer in peer.take()] == [(9, 0)]


def test_the_key_value_table_has_limits() -> None:
    world = World()
    with pytest.raises(AdminError, match="limit"):
        put(world, "n", "k", "v" * 70_000)
    for n in range(10_000):
        put(world, "n", str(n), "v")
    with pytest.raises(AdminError, match="10000"):
        put(world, "n", "one more", "v")
    assert put(world, "n", "0", "changed").code == ResponseCode.SUCCESS
    with pytest.raises(AdminError, match="value"):
        world.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k"})


def test_the_order_configuration_goes_to_brokers_always_and_into_routes_only_when_enabled() -> None:
    world = World()
    assert world.register().body_bytes() == b""
    put(world, "ORDER_TOPIC_CONFIG", "orders", "broker-a:4")
    assert text(world.register()) == '{"table":{"orders":"broker-a:4"}}'
    assert bodies.decode_route(world.route().body_bytes()).order_conf is None
    assert (
        world.ask(
            RequestCode.UPDATE_NAMESRV_CONFIG, body=b"# order\norderMessageEnable=true\n"
        ).code
        == ResponseCode.SUCCESS
    )
    assert bodies.decode_route(world.route().body_bytes()).order_conf == "broker-a:4"
    assert "orderMessageEnable=true\n" in text(world.ask(RequestCode.GET_NAMESRV_CONFIG))
    enabled = World(order_messages=True)
    put(enabled, "ORDER_TOPIC_CONFIG", "orders", "broker-a:4")
    enabled.register()
    assert bodies.decode_route(enabled.route().body_bytes()).order_conf == "broker-a:4"


@pytest.mark.parametrize(
    "body",
    [
        b"kvConfigPath=/etc/passwd",
        b"rocketmqHome=/",
        b"listenPort=1",
        b"orderMessageEnable=perhaps",
        b"nonsense",
    ],
    ids=str,
)
def test_no_request_sets_a_path_a_port_or_nonsense(body: bytes) -> None:
    world = World()
    with pytest.raises(AdminError):
        world.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
    assert "orderMessageEnable=false\n" in text(world.ask(RequestCode.GET_NAMESRV_CONFIG))


def test_unknown_codes_are_refused_to_our_own_and_not_answered_to_strangers() -> None:
    world = World()
    answer = world.ask(9_999)
    assert (answer.code, answer.remark) == (
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        " request type 9999 not supported",
    )
    assert world.server.handle(Command(9_999), FakePeer(trusted=False)) is None
    assert (
        world.server.handle(Command(int(RequestCode.SEND_MESSAGE)), FakePeer(trusted=False)) is None
    )
    assert world.server.status()["unknown_requests"] == 3


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":3}}}',
        b'{"topicConfigSerializeWrapper":7}',
    ],
    ids=str,
)
def test_a_registration_that_cannot_be_read_changes_nothing(body: bytes) -> None:
    world = World()
    header = {
        "brokerName": "b",
        "brokerAddr": "h:1",
        "clusterName": "C",
        "haServerAddr": "h:2",
        "brokerId": "0",
    }
    with pytest.raises((RmqError, TypeError, ValueError, AttributeError)):
        world.ask(RequestCode.REGISTER_BROKER, header, body)
    assert world.server.status()["brokers"] == {}
