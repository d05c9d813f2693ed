"""JSON bodies: the bytes RocketMQ writes are read, ours are its shapes, and other shapes are one
typed error.
"""

from __future__ import annotations

import inspect
import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.model import fastjson
from rmq_ray.model.groups import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    Heartbeat,
    MessageModel,
    Subscription,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import (
    BrokerData,
    DataVersion,
    GroupConfig,
    QueueData,
    TopicConfig,
    TopicRoute,
)
from rmq_ray.remoting.wire import bodies, bodies_admin
from rmq_ray.remoting.wire.bodies_admin import BatchElement, ClientConnection, Progress, QueueStats
from rmq_ray.remoting.wire.body_json import BodyInvalid
from tests.support.stores.golden_frames import GOLDEN

QUEUE = MessageQueue("T", "broker-a", 1)
QUEUE_TEXT = '{"brokerName":"broker-a","queueId":1,"topic":"T"}'
VERSION = DataVersion(23, 1_795_274_479_747)
VERSION_TEXT = '{"counter":23,"timestamp":1795274479747}'
TOPIC = TopicConfig("T", 4, 4, 6)
KEPT_A_DAY = TopicConfig("T", 4, 4, 6, retention_hours=24)
TOPIC_TEXT = (
    '{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T",'
    '"topicSysFlag":0,"writeQueueNums":4}'
)
GROUP_TEXT = (
    '{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
    '"consumeFromMinEnable":true,"groupName":"g","notifyConsumerIdsChangedEnable":true,'
    '"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
)
HEARTBEAT = Heartbeat(
    "10.0.0.2@13668#2695334368724",
    ("gp", "CLIENT_INNER_PRODUCER"),
    (
        ConsumerData(
            "cgA",
            ConsumeType.CONSUME_PASSIVELY,
            MessageModel.CLUSTERING,
            ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            (
                Subscription("%RETRY%cgA", version=1_795_274_178_613),
                Subscription(
                    "LabA", "TagA", frozenset({"TagA"}), frozenset({2_598_919}), 1_795_274_178_600
                ),
            ),
        ),
    ),
)
HEARTBEAT_TEXT = (
    '{"clientID":"10.0.0.2@13668#2695334368724",'
    '"consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
    '"consumeType":"CONSUME_PASSIVELY",'
    '"groupName":"cgA","messageModel":"CLUSTERING",'
    '"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[],"expressionType":"TAG",'
    '"subString":"*",'
    '"subVersion":1795274178613,"tagsSet":[],"topic":"%RETRY%cgA"},{"classFilterMode":false,'
    '"codeSet":[2598919],"expressionType":"TAG","subString":"TagA",'
    '"subVersion":1795274178600,"tagsSet":["TagA"],"topic":"LabA"}],"unitMode":false}],'
    '"producerDataSet":[{"groupName":"gp"},{"groupName":"CLIENT_INNER_PRODUCER"}]}'
)
ROUTE = TopicRoute(
    (QueueData("broker-a", 4, 4, 6),),
    (BrokerData("DefaultCluster", "broker-a", {0: "127.0.0.1:10911"}),),
)
ROUTE_STANDARD = (
    '{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a",'
    '"cluster":"DefaultCluster"}],"filterServerTable":{},'
    '"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,'
    '"writeQueueNums":4}]}'
)
BROKEN_REGISTRATIONS = [
    b"",
    b"x",
    *[
        zlib.compress(text)
        for text in (b"", struct.pack(">i", -1), struct.pack(">iii", 0, 0, 0), bytes(1 << 20))
    ],
]
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
BODY_DECODERS = [
    decode
    for module in (bodies, bodies_admin)
    for name, decode in inspect.getmembers(module, inspect.isfunction)
    if name.startswith("decode_") and next(iter(inspect.signature(decode).parameters)) == "body"
]
MEMBERS = [
    "clientID",
    "consumerDataSet",
    "producerDataSet",
    "groupName",
    "subscriptionDataSet",
    "consumerIdList",
    "mqSet",
    "lockOKMQSet",
    "consumerGroup",
    "clientId",
    "brokerDatas",
    "queueDatas",
    "brokerAddrs",
    "brokerAddrTable",
    "dataVersion",
    "topicConfigSerializeWrapper",
    "topicConfigTable",
    "topicList",
    "table",
    "offsetTable",
    "subscriptionGroupTable",
    "connectionSet",
    "groupList",
    "consumeType",
    "codeSet",
    "subVersion",
    "orderTopicConf",
]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (bodies.encode_heartbeat(HEARTBEAT), HEARTBEAT_TEXT),
        (bodies.encode_route(ROUTE, standard=True), ROUTE_STANDARD),
        (bodies.encode_route(ROUTE, standard=False), ROUTE_STANDARD.replace('"0":', "0:")),
        (
            bodies.encode_cluster_info(ROUTE.brokers),
            '{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:10911"},'
            '"brokerName":"broker-a","cluster":"DefaultCluster"}},'
            '"clusterAddrTable":{"DefaultCluster":["broker-a"]}}',
        ),
        (
            bodies.encode_registration({"T": TOPIC}, VERSION),
            '{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":'
            + VERSION_TEXT
            + ',"topicConfigTable":{"T":'
            + TOPIC_TEXT
            + "}}}",
        ),
        (
            bodies.encode_topic_configs({"T": TOPIC}, VERSION),
            '{"dataVersion":' + VERSION_TEXT + ',"topicConfigTable":{"T":' + TOPIC_TEXT + "}}",
        ),
        (
            bodies.encode_consumer_ids(["10.0.0.2@123#456"]),
            '{"consumerIdList":["10.0.0.2@123#456"]}',
        ),
        (
            bodies.encode_lock("g", "c", [QUEUE]),
            '{"clientId":"c","consumerGroup":"g","mqSet":[' + QUEUE_TEXT + "]}",
        ),
        (bodies.encode_locked([]), '{"lockOKMQSet":[]}'),
        (bodies.encode_topic_list(["T"]), '{"topicList":["T"]}'),
        (bodies.encode_topic_list([], "h:1"), '{"brokerAddr":"h:1","topicList":[]}'),
        (bodies.encode_table({"k": "v"}), '{"table":{"k":"v"}}'),
        (
            bodies_admin.encode_topic_stats({QUEUE: QueueStats(0, 2, 5)}),
            '{"offsetTable":{'
            + QUEUE_TEXT
            + ':{"lastUpdateTimestamp":5,"maxOffset":2,"minOffset":0}}}',
        ),
        (
            bodies_admin.encode_consume_stats({QUEUE: Progress(2, 1, 0)}),
            '{"consumeTps":0.0,"offsetTable":{'
            + QUEUE_TEXT
            + ':{"brokerOffset":2,"consumerOffset":1,"lastTimestamp":0}}}',
        ),
        (
            bodies_admin.encode_group_configs({"g": GroupConfig("g")}, VERSION),
            '{"dataVersion":'
            + VERSION_TEXT
            + ',"subscriptionGroupTable":{"g":'
            + GROUP_TEXT
            + "}}",
        ),
        (
            bodies_admin.encode_offset_table({"T@g": {1: 5, 0: 3}}),
            '{"offsetTable":{"T@g":{0:3,1:5}}}',
        ),
        (bodies_admin.encode_delay_offsets({3: 1, 1: 2}), '{"offsetTable":{1:2,3:1}}'),
        (bodies_admin.encode_group_list(["g"]), '{"groupList":["g"]}'),
        (
            bodies_admin.encode_producer_connections(
                [ClientConnection("10.0.0.2@14205#27568", "10.0.0.2:43096", "JAVA", 407)]
            ),
            '{"connectionSet":[{"clientAddr":"10.0.0.2:43096",'
            '"clientId":"10.0.0.2@14205#27568","language":"JAVA","version":407}]}',
        ),
        (
            bodies_admin.encode_consume_queue(0, 2, [(1, 217, 2_598_920, False)]),
            '{"maxQueueIndex":2,"minQueueIndex":0,"queueData":[{"eval":false,'
            '"physicOffset":1,"physicSize":217,"tagsCode":2598920}]}',
        ),
    ],
)
def test_bodies_have_rocketmqs_shapes(written: bytes, text: str) -> None:
    assert written.decode() == text


@pytest.mark.seed("S1-005")
def test_heartbeats_carry_client_groups_and_subscriptions() -> None:
    assert bodies.decode_heartbeat(HEARTBEAT_TEXT.encode()) == HEARTBEAT
    captured = next(golden for golden in GOLDEN if golden.code == 34).body
    assert bodies.decode_heartbeat(captured) == Heartbeat(
        "192.0.2.2@13455#2621800578743", ("gp", "CLIENT_INNER_PRODUCER")
    )
    assert bodies.encode_heartbeat(bodies.decode_heartbeat(captured)) == captured


def test_a_producer_group_says_when_it_has_no_checker_and_others_say_nothing() -> None:
    told = Heartbeat("c", ("shop", "web"), (), frozenset(("web",)))
    body = bodies.encode_heartbeat(told)
    assert b'"producerDataSet":[{"groupName":"shop"},{"groupName":"web","rmqNoChecker":true}]' in (
        body
    )
    assert bodies.decode_heartbeat(body) == told
    strange = body.replace(b'"rmqNoChecker":true', b'"rmqNoChecker":"no"')
    assert bodies.decode_heartbeat(strange).without_checker == frozenset(), "true is true only"


def test_a_heartbeat_may_lack_its_sets_and_name_deprecated_starts() -> None:
    assert bodies.decode_heartbeat(b'{"clientID":"c"}') == Heartbeat("c")
    old = HEARTBEAT_TEXT.replace("CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_MAX_OFFSET").encode()
    assert (
        bodies.decode_heartbeat(old).consumers[0].from_where
        is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    )
    with pytest.raises(BodyInvalid, match="PUSH"):
        bodies.decode_heartbeat(HEARTBEAT_TEXT.replace("CONSUME_PASSIVELY", "PUSH").encode())


def test_routes_are_read_in_both_styles_with_what_old_servers_leave_out() -> None:
    for standard in (True, False):
        assert bodies.decode_route(bodies.encode_route(ROUTE, standard=standard)) == ROUTE
    least = (
        b'{"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":2,"writeQueueNums":3}],'
        b'"brokerDatas":[{"brokerName":"b","brokerAddrs":{0:"h:1"}}],"more":1}'
    )
    assert bodies.decode_route(least) == TopicRoute(
        (QueueData("b", 2, 3, 6),), (BrokerData("", "b", {0: "h:1"}),)
    )
    older = ROUTE_STANDARD.replace('"topicSysFlag":0', '"topicSynFlag":2').encode()
    assert bodies.decode_route(older).queues[0].sys_flag == 2


def test_an_ordered_topics_route_names_its_order_and_standard_json_is_ascii() -> None:
    route = TopicRoute(ROUTE.queues, (BrokerData("Clüster", "broker-a", {0: "h:1"}),), "broker-a:4")
    written = bodies.encode_route(route, standard=True)
    assert written.isascii() and json.loads(written)["orderTopicConf"] == "broker-a:4"
    assert (
        bodies.decode_route(written)
        == bodies.decode_route(bodies.encode_route(route, standard=False))
        == route
    )


def test_registrations_are_read_in_both_forms() -> None:
    topics = {name: TopicConfig(name, 2, 3, 4) for name in ("T", "%RETRY%g")}
    assert bodies.decode_registration(bodies.encode_registration(topics, VERSION)) == (
        topics,
        VERSION,
    )
    packed = bodies.encode_registration_compressed(topics, VERSION)
    assert bodies.decode_registration(packed, compressed=True) == (topics, VERSION)
    version = b'{"counter":23,"timestamp":1795274479747}'
    plain = (
        struct.pack(">i", len(version))
        + version
        + struct.pack(">i", 1)
        + struct.pack(">i", 20)
        + b"TopicTest 8 7 6 MULT"
        + struct.pack(">i", 2)
        + b"[]"
    )
    assert bodies.decode_registration(zlib.compress(plain), compressed=True) == (
        {"TopicTest": TopicConfig("TopicTest", 8, 7, 6, "MULT")},
        VERSION,
    )
    assert bodies.decode_registration(b"") == ({}, DataVersion())


@pytest.mark.parametrize("body", BROKEN_REGISTRATIONS)
def test_a_broken_compressed_registration_is_a_typed_error(body: bytes) -> None:
    with pytest.raises(BodyInvalid):
        bodies.decode_registration(body, compressed=True)


def test_crc_has_31_bits() -> None:
    body = next(bytes((value,)) for value in range(256) if zlib.crc32(bytes((value,))) >> 31)
    assert bodies.body_crc(body) == zlib.crc32(body) - (1 << 31)


def test_tables_keyed_by_queues_are_read_with_object_keys_and_with_escaped_text_keys() -> None:
    stats = {QUEUE: QueueStats(0, 2, 5)}
    written = bodies_admin.encode_topic_stats(stats)
    assert bodies_admin.decode_topic_stats(written) == stats
    quoted = json.dumps(
        {"offsetTable": {QUEUE_TEXT: {"minOffset": 0, "maxOffset": 2, "lastUpdateTimestamp": 5}}}
    ).encode()
    assert bodies_admin.decode_topic_stats(quoted) == stats
    assert bodies_admin.decode_consume_stats(
        bodies_admin.encode_consume_stats({QUEUE: Progress(2, 1, 7)})
    ) == {QUEUE: Progress(2, 1, 7)}
    assert bodies_admin.decode_consume_stats(
        bodies_admin.encode_consume_stats({QUEUE: Progress(2, 1, 7, 0)})
    ) == {QUEUE: Progress(2, 1, 7, 0)}


def test_other_tables_and_lists_are_read_back() -> None:
    assert bodies_admin.decode_offset_table(b'{"offsetTable":{"T@g":{"0":3,1:5}}}') == {
        "T@g": {0: 3, 1: 5}
    }
    assert bodies_admin.decode_group_configs(
        bodies_admin.encode_group_configs({"g": GroupConfig("g", retry_max_times=3)}, VERSION)
    ) == (
        {"g": GroupConfig("g", retry_max_times=3)},
        VERSION,
    )
    clients = [ClientConnection("c", "h:1", "GO", 401)]
    consumers = bodies_admin.encode_consumer_connections(
        clients,
        ConsumeType.CONSUME_PASSIVELY,
        MessageModel.CLUSTERING,
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        {"T": Subscription("T")},
    )
    assert bodies_admin.decode_connections(consumers) == clients
    assert json.loads(consumers)["subscriptionTable"]["T"]["subString"] == "*"
    assert bodies.decode_lock(bodies.encode_lock("g", "c", [QUEUE])) == ("g", "c", [QUEUE])
    assert bodies.decode_locked(bodies.encode_locked([QUEUE])) == [QUEUE]
    assert bodies.decode_cluster_info(bodies.encode_cluster_info(ROUTE.brokers)) == list(
        ROUTE.brokers
    )
    assert bodies.decode_consumer_ids(b'{"consumerIdList":["a"]}') == ["a"]
    for topics in ({"T": TOPIC}, {"T": KEPT_A_DAY}):
        told = bodies.encode_topic_configs(topics, VERSION)
        assert bodies.decode_topic_configs(told) == (topics, VERSION)


def test_lock_epochs_travel_beside_the_queues_and_may_be_missing() -> None:
    asked = bodies.encode_lock("g", "c", [QUEUE], [7])
    assert bodies.decode_lock(asked) == ("g", "c", [QUEUE]) and bodies.decode_lock_epochs(
        asked
    ) == [7]
    assert bodies.decode_lock_epochs(bodies.encode_lock("g", "c", [QUEUE])) is None
    assert bodies.decode_locked_epochs(bodies.encode_locked([QUEUE], [9])) == {QUEUE: 9}
    assert bodies.decode_locked_epochs(bodies.encode_locked([QUEUE])) == {QUEUE: 0}
    for wrong in (b'{"rmqEpochs":5}', b'{"rmqEpochs":["x"]}'):
        with pytest.raises(BodyInvalid):
            bodies.decode_lock_epochs(wrong)


@pytest.mark.parametrize("body", [b"[]", b"5", b'"x"', b"{", b"\xff", b"null"])
@pytest.mark.parametrize("decode", BODY_DECODERS)
def test_what_is_no_json_object_is_a_typed_error(
    decode: Callable[[bytes], Any], body: bytes
) -> None:
    with pytest.raises(BodyInvalid) as caught:
        decode(body)
    assert caught.value.code == 1


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(BODY_DECODERS),
    st.dictionaries(st.sampled_from(MEMBERS), JSON_VALUES, max_size=4),
)
def test_no_json_makes_a_decoder_fail_otherwise(
    decode: Callable[[bytes], Any], value: dict[str, Any]
) -> None:
    try:
        found = decode(json.dumps(value).encode("utf-8", "replace"))
    except BodyInvalid:
        return
    assert decode(json.dumps(value).encode("utf-8", "replace")) == found


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            BatchElement,
            st.binary(max_size=30),
            st.text(st.characters(codec="utf-8"), max_size=10),
            st.integers(-5, 1 << 30),
        ),
        max_size=6,
    )
)
def test_batches_are_split_as_they_were_joined(elements: list[BatchElement]) -> None:
    body = bodies_admin.join_batch(elements)
    assert bodies_admin.split_batch(body) == elements
    for cut in range(1, min(len(body), 22)):
        with pytest.raises(BodyInvalid):
            bodies_admin.split_batch(body[:-cut])


def test_a_batch_element_is_laid_out_as_rocketmq_does() -> None:
    assert (
        bodies_admin.join_batch([BatchElement(b"hello", "a\x01b", 7)])
        == struct.pack(">iiiii", 30, 0, 0, 7, 5) + b"hello" + struct.pack(">h", 3) + b"a\x01b"
    )


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_no_bytes_make_the_batch_splitter_fail_otherwise(body: bytes) -> None:
    try:
        found = bodies_admin.split_batch(body)
    except BodyInvalid:
        return
    assert sum(20 + 2 + len(one.body) + len(one.properties.encode()) for one in found) == len(body)


def test_bodies_of_ours_are_read_by_the_dialects_reader() -> None:
    assert fastjson.loads(bodies.encode_cluster_info(ROUTE.brokers))["brokerAddrTable"]["broker-a"][
        "brokerAddrs"
    ] == {0: "127.0.0.1:10911"}
