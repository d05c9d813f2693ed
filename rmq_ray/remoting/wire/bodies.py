"""JSON bodies of clients' requests and of name servers (remoting 2, 3, 6): values in, bytes out,
and back.

Member names are RocketMQ's. Reading is lenient as its own is (missing members take defaults,
unknown ones are ignored); what has the wrong shape altogether is ``BodyInvalid``. Bodies of
administration live in ``bodies_admin``.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from rmq_ray.model import fastjson
from rmq_ray.model.groups import (
    SUBSCRIBE_ALL,
    TAG,
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    Heartbeat,
    LockHolder,
    MessageModel,
    Subscription,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import (
    BrokerData,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicRoute,
    adopted_of,
    bound_of,
    retention_of,
    topic_attributes,
)
from rmq_ray.remoting.wire.body_json import (
    BodyInvalid,
    enum_of,
    objects_of,
    parse,
    shaped,
    text_of,
    write,
)
from rmq_ray.remoting.wire.frame import Buffer

COUNT = struct.Struct(">i")
REGISTRATION_BYTES_MAX = 64 << 20
_DEPRECATED_FROM_WHERE = frozenset(
    (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
    )
)
"""Old clients still send them; RocketMQ has treated them as the last offset since 3.x."""


# --- heartbeats (remoting 3.3) --------------------------------------------------------------------

NO_CHECKER = "rmqNoChecker"
"""Ours, of a producer group: true where nobody can answer for its transactions."""


def encode_subscription(subscription: Subscription) -> dict[str, Any]:
    """The JSON object of one topic's filter."""
    return {
        "classFilterMode": False,
        "codeSet": sorted(subscription.codes),
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": sorted(subscription.tags),
        "topic": subscription.topic,
    }


@shaped
def decode_subscription(found: Mapping[str, Any]) -> Subscription:
    """Missing members take RocketMQ's defaults."""
    return Subscription(
        topic=text_of(found, "topic"),
        expression=str(found.get("subString") or SUBSCRIBE_ALL),
        tags=frozenset(map(str, found.get("tagsSet") or ())),
        codes=frozenset(int(code) for code in found.get("codeSet") or ()),
        version=int(found.get("subVersion") or 0),
        expression_type=str(found.get("expressionType") or TAG),
    )


def encode_client_check(client_id: str, group: str, subscription: Subscription) -> bytes:
    """CHECK_CLIENT_CONFIG 46."""
    return write(
        {
            "clientId": client_id,
            "group": group,
            "subscriptionData": encode_subscription(subscription),
        }
    )


@shaped
def decode_client_check(body: Buffer) -> tuple[str, Subscription | None]:
    """(group, what is to be checked; None when the body has nothing)."""
    found = parse(body)
    given = found.get("subscriptionData")
    return str(found.get("group") or ""), decode_subscription(given) if given else None


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    """HEART_BEAT 34. Apache RocketMQ's brokers pass over the member that is ours."""
    without = heartbeat.without_checker
    return write(
        {
            "clientID": heartbeat.client_id,
            "consumerDataSet": [_consumer(consumer) for consumer in heartbeat.consumers],
            "producerDataSet": [
                {"groupName": group} | ({NO_CHECKER: True} if group in without else {})
                for group in heartbeat.producer_groups
            ],
        }
    )


def _consumer(consumer: ConsumerData) -> dict[str, Any]:
    return {
        "consumeFromWhere": consumer.from_where.name,
        "consumeType": consumer.consume_type.name,
        "groupName": consumer.group,
        "messageModel": consumer.model.name,
        "subscriptionDataSet": [encode_subscription(s) for s in consumer.subscriptions],
        "unitMode": consumer.unit_mode,
    }


@shaped
def decode_heartbeat(body: Buffer) -> Heartbeat:
    """Misspelt enum names raise ``BodyInvalid`` (RocketMQ takes them as null and breaks later)."""
    found = parse(body)
    consumers = tuple(_decode_consumer(item) for item in objects_of(found, "consumerDataSet"))
    producers = objects_of(found, "producerDataSet")
    return Heartbeat(
        text_of(found, "clientID"),
        tuple(text_of(item, "groupName") for item in producers),
        consumers,
        frozenset(text_of(item, "groupName") for item in producers if item.get(NO_CHECKER) is True),
    )


def _decode_consumer(found: Mapping[str, Any]) -> ConsumerData:
    return ConsumerData(
        group=text_of(found, "groupName"),
        consume_type=enum_of(ConsumeType, found.get("consumeType"), ConsumeType.CONSUME_PASSIVELY),
        model=enum_of(MessageModel, found.get("messageModel"), MessageModel.CLUSTERING),
        from_where=_from_where(found.get("consumeFromWhere")),
        subscriptions=tuple(
            decode_subscription(item) for item in objects_of(found, "subscriptionDataSet")
        ),
        unit_mode=bool(found.get("unitMode")),
    )


def _from_where(name: Any) -> ConsumeFromWhere:
    last = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    return last if name in _DEPRECATED_FROM_WHERE else enum_of(ConsumeFromWhere, name, last)


def encode_consumer_ids(ids: Iterable[str]) -> bytes:
    """Answer to GET_CONSUMER_LIST_BY_GROUP 38."""
    return write({"consumerIdList": list(ids)})


@shaped
def decode_consumer_ids(body: Buffer) -> list[str]:
    """Client ids of a group."""
    return [str(item) for item in parse(body).get("consumerIdList") or ()]


# --- locks (3) ------------------------------------------------------------------------------------


def encode_queue(queue: MessageQueue) -> dict[str, Any]:
    """A MessageQueue as a JSON object."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


@shaped
def decode_queue(found: Any) -> MessageQueue:
    """From an object, or from an object key (pairs)."""
    values = dict(found)
    return MessageQueue(
        text_of(values, "topic"), text_of(values, "brokerName"), int(values.get("queueId") or 0)
    )


def encode_lock(
    group: str, client_id: str, queues: Iterable[MessageQueue], epochs: Iterable[int] | None = None
) -> bytes:
    """LOCK_BATCH_MQ 41 and UNLOCK_BATCH_MQ 42. ``epochs`` (ours): of each queue the lock epoch that
    the client holds, 0 = none.
    """
    found: dict[str, Any] = {
        "clientId": client_id,
        "consumerGroup": group,
        "mqSet": [encode_queue(queue) for queue in queues],
    }
    return write(found if epochs is None else found | {"rmqEpochs": list(epochs)})


@shaped
def decode_lock(body: Buffer) -> tuple[str, str, list[MessageQueue]]:
    """(group, client id, queues)."""
    found = parse(body)
    return (
        text_of(found, "consumerGroup"),
        text_of(found, "clientId"),
        [decode_queue(item) for item in objects_of(found, "mqSet")],
    )


@shaped
def decode_lock_epochs(body: Buffer) -> list[int] | None:
    """What a client of ours says of its epochs, in the order of the queues; None from RocketMQ's
    own clients.
    """
    found = parse(body).get("rmqEpochs")
    return None if found is None else [int(epoch) for epoch in found]


def encode_locked(
    queues: Iterable[MessageQueue],
    epochs: Iterable[int] | None = None,
    holders: Mapping[MessageQueue, LockHolder] | None = None,
) -> bytes:
    """Answer to 41: the granted subset, to clients of ours with the epochs of these locks, and with
    those who hold the others.
    """
    found: dict[str, Any] = {"lockOKMQSet": [encode_queue(queue) for queue in queues]}
    if holders:
        found["rmqHolders"] = encode_lock_holders(holders)
    return write(found if epochs is None else found | {"rmqEpochs": list(epochs)})


def encode_lock_holders(holders: Mapping[MessageQueue, LockHolder]) -> list[dict[str, Any]]:
    """Who holds which queue, as JSON objects (ours)."""
    return [
        encode_queue(queue) | {"clientId": h.client_id, "endsInMs": h.ends_in_ms, "left": h.left}
        for queue, h in holders.items()
    ]


@shaped
def decode_lock_holders(body: Buffer) -> dict[MessageQueue, LockHolder]:
    """Who holds which queue, from 41 and 203; nothing from brokers that do not tell."""
    return {
        decode_queue(item): LockHolder(
            text_of(item, "clientId"), int(item["endsInMs"]), bool(item.get("left"))
        )
        for item in objects_of(parse(body), "rmqHolders")
    }


@shaped
def decode_locked(body: Buffer) -> list[MessageQueue]:
    """The granted subset."""
    return [decode_queue(item) for item in objects_of(parse(body), "lockOKMQSet")]


@shaped
def decode_locked_epochs(body: Buffer) -> dict[MessageQueue, int]:
    """The granted subset with its epochs; 0 where the broker knows none."""
    queues, epochs = decode_locked(body), decode_lock_epochs(body) or []
    return {queue: epochs[at] if at < len(epochs) else 0 for at, queue in enumerate(queues)}


# --- routes (6) -----------------------------------------------------------------------------------


def encode_route(route: TopicRoute, *, standard: bool = True) -> bytes:
    """Answer to 105. ``standard``: quoted keys, for callers of version 401 and later; else the
    dialect.
    """
    value: dict[str, Any] = {
        "brokerDatas": [
            {
                "brokerAddrs": {
                    str(i) if standard else i: a for i, a in sorted(data.addresses.items())
                },
                "brokerName": data.broker_name,
                "cluster": data.cluster,
            }
            for data in route.brokers
        ],
        "filterServerTable": {},
    }
    if route.order_conf is not None:
        value["orderTopicConf"] = route.order_conf
    value["queueDatas"] = [
        {
            "brokerName": q.broker_name,
            "perm": q.permission,
            "readQueueNums": q.read_queues,
            "topicSysFlag": q.sys_flag,
            "writeQueueNums": q.write_queues,
        }
        for q in route.queues
    ]
    return json.dumps(value, separators=(",", ":")).encode() if standard else write(value)


@shaped
def decode_route(body: Buffer) -> TopicRoute:
    """Both forms of keys; ``topicSynFlag`` is the older name of topicSysFlag."""
    found = parse(body)
    queues = tuple(
        QueueData(
            text_of(item, "brokerName"),
            int(item.get("readQueueNums") or 0),
            int(item.get("writeQueueNums") or 0),
            int(item.get("perm") or 0),
            int(item.get("topicSysFlag") or item.get("topicSynFlag") or 0),
        )
        for item in objects_of(found, "queueDatas")
    )
    brokers = tuple(
        BrokerData(
            str(item.get("cluster") or ""),
            text_of(item, "brokerName"),
            {int(i): str(a) for i, a in (item.get("brokerAddrs") or {}).items()},
        )
        for item in objects_of(found, "brokerDatas")
    )
    order = found.get("orderTopicConf")
    return TopicRoute(queues, brokers, str(order) if order else None)


def encode_cluster_info(brokers: Iterable[BrokerData]) -> bytes:
    """Answer to 106."""
    table: dict[str, Any] = {}
    clusters: dict[str, list[str]] = {}
    for data in sorted(brokers, key=lambda data: data.broker_name):
        table[data.broker_name] = {
            "brokerAddrs": dict(data.addresses),
            "brokerName": data.broker_name,
            "cluster": data.cluster,
        }
        clusters.setdefault(data.cluster, []).append(data.broker_name)
    return write({"brokerAddrTable": table, "clusterAddrTable": clusters})


@shaped
def decode_cluster_info(body: Buffer) -> list[BrokerData]:
    """Brokers by name."""
    table = parse(body).get("brokerAddrTable") or {}
    return [
        BrokerData(
            str(v.get("cluster") or ""),
            str(name),
            {int(i): str(a) for i, a in (v.get("brokerAddrs") or {}).items()},
        )
        for name, v in sorted(table.items())
    ]


# --- registration (remoting 6.1) ------------------------------------------------------------------


def encode_version(version: DataVersion) -> dict[str, int]:
    """A DataVersion as a JSON object."""
    return {"counter": version.counter, "timestamp": version.timestamp_ms}


@shaped
def decode_version(found: Any) -> DataVersion:
    """Missing = the first version."""
    found = found if isinstance(found, dict) else {}
    return DataVersion(int(found.get("counter") or 0), int(found.get("timestamp") or 0))


def encode_topic(topic: TopicConfig) -> dict[str, Any]:
    """A TopicConfig as a JSON object."""
    return {
        "order": topic.order,
        "perm": topic.permission,
        "readQueueNums": topic.read_queues,
        "topicFilterType": topic.filter_type,
        "topicName": topic.name,
        "topicSysFlag": topic.sys_flag,
        "writeQueueNums": topic.write_queues,
        **topic_attributes(topic),
    }


@shaped
def decode_topic(found: Mapping[str, Any]) -> TopicConfig:
    """Missing members take the defaults of RocketMQ's class."""
    return TopicConfig(
        name=text_of(found, "topicName"),
        read_queues=int(found.get("readQueueNums", 16)),
        write_queues=int(found.get("writeQueueNums", 16)),
        permission=int(found.get("perm", 6)),
        filter_type=str(found.get("topicFilterType") or "SINGLE_TAG"),
        sys_flag=int(found.get("topicSysFlag") or 0),
        order=bool(found.get("order")),
        retention_hours=retention_of(found.get("attributes")),
        bound=bound_of(found.get("attributes")),
        adopted=adopted_of(found.get("attributes")),
    )


def encode_topic_configs(
    topics: Mapping[str, TopicConfig], version: DataVersion, more: Mapping[str, Any] | None = None
) -> bytes:
    """Answer to GET_ALL_TOPIC_CONFIG 21. ``more``: members of ours, for slaves; others' clients
    leave them out.
    """
    return write({**_wrapper(topics, version), **(more or {})})


@shaped
def decode_topic_configs(body: Buffer) -> tuple[dict[str, TopicConfig], DataVersion]:
    """(topics by name, their version)."""
    return _unwrap(parse(body))


def encode_registration(
    topics: Mapping[str, TopicConfig], version: DataVersion, filter_servers: Iterable[str] = ()
) -> bytes:
    """Plain body of REGISTER_BROKER 103."""
    return write(
        {
            "filterServerList": list(filter_servers),
            "topicConfigSerializeWrapper": _wrapper(topics, version),
        }
    )


@shaped
def decode_registration(
    body: Buffer, *, compressed: bool = False
) -> tuple[dict[str, TopicConfig], DataVersion]:
    """(topics, version) of either form; an empty body is no topics."""
    if compressed:
        return _decode_compressed(bytes(body))
    return _unwrap(parse(body).get("topicConfigSerializeWrapper") or {})


def body_crc(body: Buffer) -> int:
    """CRC-32 of a body as sent, without the sign bit."""
    return zlib.crc32(body) & 0x7FFFFFFF


def _wrapper(topics: Mapping[str, TopicConfig], version: DataVersion) -> dict[str, Any]:
    return {
        "dataVersion": encode_version(version),
        "topicConfigTable": {name: encode_topic(topic) for name, topic in topics.items()},
    }


def _unwrap(found: Mapping[str, Any]) -> tuple[dict[str, TopicConfig], DataVersion]:
    table = found.get("topicConfigTable") or {}
    return {
        str(name): decode_topic({"topicName": name, **topic}) for name, topic in table.items()
    }, decode_version(found.get("dataVersion"))


def encode_registration_compressed(
    topics: Mapping[str, TopicConfig], version: DataVersion
) -> bytes:
    """The compressed form: zlib over counted JSON and text pieces."""
    pieces = [write(encode_version(version))]
    body = _counted(pieces[0]) + COUNT.pack(len(topics))
    for topic in topics.values():
        body += _counted(
            (
                f"{topic.name} {topic.read_queues} {topic.write_queues} {topic.permission} "
                f"{topic.filter_type}"
            ).encode()
        )
    return zlib.compress(body + _counted(b"[]"))


def _decode_compressed(body: bytes) -> tuple[dict[str, TopicConfig], DataVersion]:
    try:
        text = zlib.decompressobj().decompress(body, REGISTRATION_BYTES_MAX)
        version, at = _piece(text, 0)
        (count,) = COUNT.unpack_from(text, at)
        at += COUNT.size
        topics: dict[str, TopicConfig] = {}
        for _ in range(max(0, count)):
            line, at = _piece(text, at)
            name, read, write_queues, permission, filter_type = line.decode().split(" ")
            topics[name] = TopicConfig(
                name, int(read), int(write_queues), int(permission), filter_type
            )
        return topics, decode_version(fastjson.loads(version))
    except (zlib.error, struct.error, ValueError) as error:
        raise BodyInvalid(f"the compressed registration cannot be read: {error}") from None


def _counted(piece: bytes) -> bytes:
    return COUNT.pack(len(piece)) + piece


def _piece(text: bytes, at: int) -> tuple[bytes, int]:
    (length,) = COUNT.unpack_from(text, at)
    if length < 0 or at + COUNT.size + length > len(text):
        raise ValueError(f"a piece of {length} bytes runs over the end")
    return text[at + COUNT.size : at + COUNT.size + length], at + COUNT.size + length


# --- lists and tables -----------------------------------------------------------------------------


def encode_topic_list(topics: Iterable[str], broker_address: str | None = None) -> bytes:
    """Answer to 206, 224, 304, 305, 311-313."""
    return write({"brokerAddr": broker_address, "topicList": list(topics)})


@shaped
def decode_topic_list(body: Buffer) -> list[str]:
    """Topic names."""
    return [str(item) for item in parse(body).get("topicList") or ()]


def encode_table(table: Mapping[str, str]) -> bytes:
    """KVTable: answer to 28, 219 and to a registration."""
    return write({"table": dict(table)})


@shaped
def decode_table(body: Buffer) -> dict[str, str]:
    """Names and texts."""
    return {str(name): str(value) for name, value in (parse(body).get("table") or {}).items()}
