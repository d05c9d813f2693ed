"""JSON bodies of administration (remoting 5), and the body of a RocketMQ batch (store-format
10).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rmq_ray.model import fastjson
from rmq_ray.model.groups import (
    ConsumeFromWhere,
    ConsumeType,
    LockHolder,
    MessageModel,
    Subscription,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import DataVersion, GroupConfig
from rmq_ray.remoting.wire.bodies import (
    decode_queue,
    decode_version,
    encode_lock_holders,
    encode_subscription,
    encode_version,
)
from rmq_ray.remoting.wire.bodies_groups import queue_key
from rmq_ray.remoting.wire.body_json import BodyInvalid, parse, shaped, write
from rmq_ray.remoting.wire.frame import Buffer

RETENTION_FIELD = "retentionHours"
"""Of the answer that has topic statistics; only from our brokers."""
_ELEMENT = struct.Struct(">iiiii")  # total size, magic, crc, flag, body length
_PROPERTIES = struct.Struct(">h")
ELEMENTS_MAX = 65_536


@dataclass(frozen=True, slots=True)
class QueueStats:
    """A queue of a topic (202): offsets, and the store time of its last message in ms, 0 = none."""

    min_offset: int
    max_offset: int
    last_update_ms: int


def encode_topic_stats(stats: Mapping[MessageQueue, QueueStats]) -> bytes:
    """Answer to GET_TOPIC_STATS_INFO 202."""
    table = {
        queue_key(queue): {
            "lastUpdateTimestamp": s.last_update_ms,
            "maxOffset": s.max_offset,
            "minOffset": s.min_offset,
        }
        for queue, s in stats.items()
    }
    return write({"offsetTable": table})


@shaped
def decode_topic_stats(body: Buffer) -> dict[MessageQueue, QueueStats]:
    """Queues and what they hold."""
    return {
        decode_queue(key): QueueStats(
            int(v["minOffset"]), int(v["maxOffset"]), int(v.get("lastUpdateTimestamp") or 0)
        )
        for key, v in _queue_table(body).items()
    }


@dataclass(frozen=True, slots=True)
class Progress:
    """A group on a queue (208): the queue's maximum, the committed offset, store time of the last
    consumed message in ms, and how long ago it was committed (None: not since the broker began, or
    RocketMQ's broker, which does not tell). ``pull_offset`` (RocketMQ 5's): of a group that pops,
    everything below was taken; None: nothing beyond what is committed, or it is not told.
    """

    broker_offset: int
    consumer_offset: int
    last_ms: int
    committed_age_ms: int | None = None
    pull_offset: int | None = None


def encode_consume_stats(
    progress: Mapping[MessageQueue, Progress], consume_tps: float = 0.0
) -> bytes:
    """Answer to GET_CONSUME_STATS 208."""
    return write(_consume_stats(progress, consume_tps))


def encode_broker_consume_stats(
    address: str,
    groups: Mapping[str, Sequence[tuple[Mapping[MessageQueue, Progress], float]]],
) -> bytes:
    """Answer to GET_BROKER_CONSUME_STATS 317: of each group one ``ConsumeStats`` for each of its
    topics, with the messages a second that it was handed out; ``totalDiff``: all lag together.
    """
    total = sum(
        p.broker_offset - p.consumer_offset
        for topics in groups.values()
        for progress, _ in topics
        for p in progress.values()
    )
    stats = [
        {group: [_consume_stats(progress, tps) for progress, tps in topics]}
        for group, topics in sorted(groups.items())
    ]
    return write({"brokerAddr": address, "consumeStatsList": stats, "totalDiff": total})


def _consume_stats(progress: Mapping[MessageQueue, Progress], consume_tps: float) -> dict[str, Any]:
    table = {
        queue_key(queue): {
            "brokerOffset": p.broker_offset,
            "consumerOffset": p.consumer_offset,
            "lastTimestamp": p.last_ms,
            **({} if p.committed_age_ms is None else {"committedAgeMs": p.committed_age_ms}),
            **({} if p.pull_offset is None else {"pullOffset": p.pull_offset}),
        }
        for queue, p in progress.items()
    }
    return {"consumeTps": consume_tps, "offsetTable": table}


@shaped
def decode_consume_stats(body: Buffer) -> dict[MessageQueue, Progress]:
    """Queues and how far the group is."""
    return {
        decode_queue(key): Progress(
            int(v["brokerOffset"]),
            int(v["consumerOffset"]),
            int(v.get("lastTimestamp") or 0),
            None if v.get("committedAgeMs") is None else int(v["committedAgeMs"]),
            None if v.get("pullOffset") is None else int(v["pullOffset"]),
        )
        for key, v in _queue_table(body).items()
    }


def _queue_table(body: Buffer) -> dict[Any, Any]:
    table = parse(body).get("offsetTable") or {}
    if not isinstance(table, dict):
        raise BodyInvalid("offsetTable is no object")
    return {_object_key(key): value for key, value in table.items()}


def _object_key(key: Any) -> Any:
    """A queue as an object key, or as a string that holds the object's JSON."""
    if isinstance(key, str):
        try:
            return tuple(sorted(fastjson.loads(key).items()))
        except (ValueError, AttributeError):
            raise BodyInvalid(f"the key {key!r} is no message queue") from None
    return key


def encode_group(group: GroupConfig) -> dict[str, Any]:
    """A subscription group as a JSON object."""
    return {
        "brokerId": group.broker_id,
        "consumeBroadcastEnable": group.consume_broadcast_enable,
        "consumeEnable": group.consume_enable,
        "consumeFromMinEnable": group.consume_from_min_enable,
        "groupName": group.name,
        "notifyConsumerIdsChangedEnable": group.notify_ids_changed,
        "retryMaxTimes": group.retry_max_times,
        "retryQueueNums": group.retry_queues,
        "whichBrokerWhenConsumeSlowly": group.broker_when_slow,
    }


@shaped
def decode_group(found: Mapping[str, Any]) -> GroupConfig:
    """Missing members take the class defaults."""
    base = GroupConfig(str(found.get("groupName") or ""))
    if not base.name:
        raise BodyInvalid("groupName is missing")
    return GroupConfig(
        name=base.name,
        consume_enable=bool(found.get("consumeEnable", True)),
        consume_from_min_enable=bool(found.get("consumeFromMinEnable", True)),
        consume_broadcast_enable=bool(found.get("consumeBroadcastEnable", True)),
        retry_queues=int(found.get("retryQueueNums", 1)),
        retry_max_times=int(found.get("retryMaxTimes", 16)),
        broker_id=int(found.get("brokerId", 0)),
        broker_when_slow=int(found.get("whichBrokerWhenConsumeSlowly", 1)),
        notify_ids_changed=bool(found.get("notifyConsumerIdsChangedEnable", True)),
    )


def encode_group_configs(groups: Mapping[str, GroupConfig], version: DataVersion) -> bytes:
    """Answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG 201."""
    return write(
        {
            "dataVersion": encode_version(version),
            "subscriptionGroupTable": {name: encode_group(group) for name, group in groups.items()},
        }
    )


@shaped
def decode_group_configs(body: Buffer) -> tuple[dict[str, GroupConfig], DataVersion]:
    """(groups by name, their version)."""
    found = parse(body)
    table = found.get("subscriptionGroupTable") or {}
    return {
        str(name): decode_group({"groupName": name, **group}) for name, group in table.items()
    }, decode_version(found.get("dataVersion"))


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """One client of a group. ``language``: RocketMQ's name of it."""

    client_id: str
    address: str
    language: str = "PYTHON"
    version: int = 0


def _connection(client: ClientConnection) -> dict[str, Any]:
    return {
        "clientAddr": client.address,
        "clientId": client.client_id,
        "language": client.language,
        "version": client.version,
    }


def encode_producer_connections(clients: Iterable[ClientConnection]) -> bytes:
    """Answer to 204."""
    return write({"connectionSet": [_connection(client) for client in clients]})


def encode_consumer_connections(
    clients: Iterable[ClientConnection],
    consume_type: ConsumeType,
    model: MessageModel,
    from_where: ConsumeFromWhere,
    subscriptions: Mapping[str, Subscription],
    conflicts: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    locks: Mapping[MessageQueue, LockHolder] | None = None,
) -> bytes:
    """Answer to 203. ``conflicts``: ours, topic -> expression -> client ids where members disagree;
    left out where they agree. ``locks``: ours, who holds which queue for ordered consumption; left
    out where nobody does.
    """
    told: dict[str, Any] = {"subscriptionConflicts": conflicts} if conflicts else {}
    if locks:
        told["rmqHolders"] = encode_lock_holders(locks)
    return write(
        told
        | {
            "connectionSet": [_connection(client) for client in clients],
            "consumeFromWhere": from_where.name,
            "consumeType": consume_type.name,
            "messageModel": model.name,
            "subscriptionTable": {
                topic: encode_subscription(s) for topic, s in subscriptions.items()
            },
        }
    )


@shaped
def decode_conflicts(body: Buffer) -> dict[str, dict[str, list[str]]]:
    """Topic -> expression -> client ids, from 203."""
    table = parse(body).get("subscriptionConflicts") or {}
    return {
        str(topic): {
            str(text): [str(client) for client in clients] for text, clients in texts.items()
        }
        for topic, texts in table.items()
    }


@shaped
def decode_connections(body: Buffer) -> list[ClientConnection]:
    """Clients of a group, from 203 or 204."""
    items = parse(body).get("connectionSet") or []
    return [
        ClientConnection(
            str(c["clientId"]),
            str(c["clientAddr"]),
            str(c.get("language") or ""),
            int(c.get("version") or 0),
        )
        for c in items
    ]


def encode_group_list(groups: Iterable[str]) -> bytes:
    """Answer to QUERY_TOPIC_CONSUME_BY_WHO 300."""
    return write({"groupList": list(groups)})


@shaped
def decode_group_list(body: Buffer) -> list[str]:
    """Group names."""
    return [str(item) for item in parse(body).get("groupList") or ()]


def encode_offset_table(table: Mapping[str, Mapping[int, int]]) -> bytes:
    """Answer to GET_ALL_CONSUMER_OFFSET 43: ``topic@group`` -> queue id -> offset."""
    return write({"offsetTable": {name: dict(offsets) for name, offsets in table.items()}})


@shaped
def decode_offset_table(body: Buffer) -> dict[str, dict[int, int]]:
    """Quoted and unquoted queue ids."""
    table = parse(body).get("offsetTable") or {}
    return {
        str(name): {int(queue): int(offset) for queue, offset in offsets.items()}
        for name, offsets in table.items()
    }


@shaped
def decode_delay_offsets(body: Buffer) -> dict[int, int]:
    """Answer to GET_ALL_DELAY_OFFSET 45: level -> offset."""
    return {
        int(level): int(offset) for level, offset in (parse(body).get("offsetTable") or {}).items()
    }


def encode_delay_offsets(table: Mapping[int, int]) -> bytes:
    """Answer to GET_ALL_DELAY_OFFSET 45: level -> offset."""
    return write({"offsetTable": dict(table)})


def encode_consume_queue(
    low: int,
    high: int,
    entries: Sequence[tuple[int, int, int, bool]],
    subscription: Subscription | None = None,
) -> bytes:
    """Answer to QUERY_CONSUME_QUEUE 321; an entry is (log offset, size, tags code, whether the
    group's filter lets it through).
    """
    data = [
        {"eval": passes, "physicOffset": offset, "physicSize": size, "tagsCode": code}
        for offset, size, code, passes in entries
    ]
    found: dict[str, Any] = {"maxQueueIndex": high, "minQueueIndex": low, "queueData": data}
    if subscription is not None:
        found["subscriptionData"] = encode_subscription(subscription)
        found["filterData"] = "null"  # of bit maps in the consume queue's extension
    return write(found)


def encode_broker_stats(windows: Mapping[str, tuple[int, float]]) -> bytes:
    """Answer to VIEW_BROKER_STATS_DATA 315: ``statsMinute``, ``statsHour``, ``statsDay`` -> (sum,
    a second).
    """
    return write({name: {"sum": total, "tps": tps} for name, (total, tps) in windows.items()})


# --- batches --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchElement:
    """One message of a RocketMQ batch: its body, properties as text, flag."""

    body: bytes
    properties: str
    flag: int = 0


def join_batch(elements: Iterable[BatchElement]) -> bytes:
    """Body of SEND_BATCH_MESSAGE 320."""
    parts: list[bytes] = []
    for element in elements:
        properties = element.properties.encode()
        size = _ELEMENT.size + len(element.body) + _PROPERTIES.size + len(properties)
        parts += (
            _ELEMENT.pack(size, 0, 0, element.flag, len(element.body)),
            element.body,
            _PROPERTIES.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def split_batch(body: Buffer) -> list[BatchElement]:
    """``BodyInvalid`` for anything whose lengths do not add up."""
    view, at, found = memoryview(body), 0, list[BatchElement]()
    while at < len(view):
        if len(found) >= ELEMENTS_MAX:
            raise BodyInvalid(f"a batch may hold {ELEMENTS_MAX} messages")
        try:
            size, _, _, flag, body_length = _ELEMENT.unpack_from(view, at)
            begin = at + _ELEMENT.size
            (length,) = (
                _PROPERTIES.unpack_from(view, begin + body_length) if body_length >= 0 else (-1,)
            )
            if (
                body_length < 0
                or length < 0
                or size != _ELEMENT.size + body_length + _PROPERTIES.size + length
                or at + size > len(view)
            ):
                raise BodyInvalid(
                    f"message {len(found)} of the batch, at byte {at}, has lengths that do "
                    f"not add up"
                )
            properties = str(view[begin + body_length + _PROPERTIES.size : at + size], "utf-8")
        except (struct.error, UnicodeDecodeError) as error:
            raise BodyInvalid(
                f"message {len(found)} of the batch, at byte {at}, cannot be read: {error}"
            ) from None
        found.append(BatchElement(bytes(view[begin : begin + body_length]), properties, flag))
        at += size
    return found
