"""What a request touches: which topics and groups an account needs a right on, for every row of the
request table whose right is held there.

    ext fields          of RocketMQ's requests
    bodies              of heartbeats, locks and ours

A retry topic and a dead letter topic are their group. Requests that name a record by its place only
(the end of a transaction, a message by its id, one sent back) touch what the record says: their
handlers ask, once they have read it.

Decides nothing about rights. Called by: ``access_guard``. Invariant, a test: every such row has a
reader here, and one that cannot be read is refused as malformed. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgpack

from rmq_ray.errors import MalformedFrame
from rmq_ray.model.topics import DLQ_PREFIX, REPLY_SUFFIX, RETRY_PREFIX, SYSTEM_TOPICS
from rmq_ray.protocol.access.accounts import EVERY, ResourceKind
from rmq_ray.protocol.access.decision import Action
from rmq_ray.remoting.request_table import REQUESTS, Party, Resource, Row
from rmq_ray.remoting.wire import bodies, halves, pops, records
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.frame import Command

Touched = Iterable[tuple[ResourceKind, str]]
Reader = Callable[[Command], Touched]
_GROUP = ResourceKind.GROUP


def topic(name: str) -> tuple[ResourceKind, str]:
    """
    >>> topic("orders")[1], topic("%RETRY%billing")[1], topic("%RETRY%billing")[0].value
    ('orders', 'billing', 'group')
    """
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return _GROUP, name.removeprefix(prefix)
    return ResourceKind.TOPIC, name


def touched(row: Row, command: Command) -> Touched:
    """Raises ``MalformedFrame`` for what cannot be read, and what the wire's readers raise."""
    if row.action in (Action.NONE, Action.ADMIN):
        return ()
    return READERS[row.code](command) if row.code in READERS else ()


def needs_reader(row: Row) -> bool:
    """Whether rights of this row are held on topics or groups."""
    return (
        row.served_by in (Party.BROKER, Party.NAME_SERVER)
        and row.action not in (Action.NONE, Action.ADMIN)
        and bool(row.resource & (Resource.TOPIC | Resource.GROUP))
    )


def _fields(topic_field: str = "", group_field: str = "", *optional: str) -> Reader:
    """Of these ext fields; ``optional`` ones may be missing."""

    def read(command: Command) -> Touched:
        found, fields = [], command.fields or {}
        for name, is_group in ((topic_field, False), (group_field, True)):
            if not name:
                continue
            value = fields.get(name)
            if value is None:
                if name in optional:
                    continue
                raise MalformedFrame(f"the field {name!r} is missing in request {command.code}")
            found.append((_GROUP, value) if is_group else topic(value))
        return found

    return read


def _reply(field: str) -> Reader:
    """A reply goes to who asked, and is kept in the cluster's reply topic, which is free; in any
    other topic it is a message as any.
    """

    def read(command: Command) -> Touched:
        (found,) = _fields(field)(command)
        return () if found[1].endswith(REPLY_SUFFIX) else (found,)

    return read


def _nothing(_command: Command) -> Touched:
    """What it touches is known when the record is read, or it is open to every account."""
    return ()


def _records(command: Command) -> Touched:
    sent, _ = records.unpack_send(command.body)
    return (topic(records.first_record(sent)[0]),)


def _halves(command: Command) -> Touched:
    return (topic(halves.unpack_halves_header(command.fields).topic),)


def _pull(command: Command) -> Touched:
    pull = records.unpack_pull(command.body)
    return topic(pull.topic), (_GROUP, pull.group)


def _scan(command: Command) -> Touched:
    return (topic(records.unpack_scan(command.body).topic),)


def _pop(command: Command) -> Touched:
    pop = pops.unpack_pop(command.body)
    return topic(pop.topic), (_GROUP, pop.group)


def _settle(command: Command) -> Touched:
    group, rows = pops.unpack_settle(command.body)
    return [(_GROUP, group), *(topic(row.topic) for row in rows)]


def _pin(command: Command) -> Touched:
    asked = _unpacked(command)
    if not asked or not isinstance(asked[0], str):
        raise MalformedFrame("body of PIN_SEGMENTS must begin with a topic")
    return (topic(asked[0]),)


def _bounds(command: Command) -> Touched:
    asked = _unpacked(command)
    names = [name for name in asked if isinstance(name, str)]
    if len(names) != len(asked):
        raise MalformedFrame("body of QUEUE_BOUNDS must be a list of topics")
    return [topic(name) for name in names] or [(ResourceKind.TOPIC, EVERY)]


def _heartbeat(command: Command) -> Touched:
    heartbeat = bodies.decode_heartbeat(command.body_bytes())
    found = []
    for consumer in heartbeat.consumers:
        found.append((_GROUP, consumer.group))
        found += [topic(one.topic) for one in consumer.subscriptions]
    return found


def _client_check(command: Command) -> Touched:
    group, subscription = bodies.decode_client_check(command.body_bytes())
    return [(_GROUP, group), *([topic(subscription.topic)] if subscription else [])]


def _lock(command: Command) -> Touched:
    group, _, queues = bodies.decode_lock(command.body_bytes())
    return [(_GROUP, group), *{topic(queue.topic) for queue in queues}]


def _route(command: Command) -> Touched:
    """Everybody may know where RocketMQ's own topics are: producers ask for TBW102."""
    (found,) = _fields("topic")(command)
    return () if found[1] in SYSTEM_TOPICS else (found,)


def _unpacked(command: Command) -> list[object]:
    try:
        asked = msgpack.unpackb(command.body, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise MalformedFrame(f"the body of {command.code} is no msgpack: {error}") from None
    if not isinstance(asked, list):
        raise MalformedFrame(f"the body of {command.code} must be a list")
    return asked


READERS: dict[Code, Reader] = {
    Code.SEND_MESSAGE: _fields("topic"),
    Code.SEND_MESSAGE_V2: _fields("b"),
    Code.SEND_BATCH_MESSAGE: _fields("b"),
    Code.SEND_RECORDS: _records,
    Code.SEND_HALVES: _halves,
    Code.SEND_REPLY_MESSAGE: _reply("topic"),
    Code.SEND_REPLY_MESSAGE_V2: _reply("b"),
    Code.END_TRANSACTION: _nothing,
    Code.END_TRANSACTIONS: _nothing,
    Code.RECALL_MESSAGE: _fields("topic"),
    Code.CONSUMER_SEND_MSG_BACK: _fields("", "group"),
    Code.PULL_MESSAGE: _fields("topic", "consumerGroup"),
    Code.PULL_RECORDS: _pull,
    Code.SCAN_RECORDS: _scan,
    Code.POP_RECORDS: _pop,
    Code.SETTLE_POPPED: _settle,
    Code.QUERY_MESSAGE: _fields("topic"),
    Code.BROWSE_MESSAGES: _fields("topic", "committedOf", "committedOf"),
    Code.VIEW_MESSAGE_BY_ID: _nothing,
    Code.PIN_SEGMENTS: _pin,
    Code.UNPIN_SEGMENTS: _nothing,
    Code.HEART_BEAT: _heartbeat,
    Code.UNREGISTER_CLIENT: _fields("", "consumerGroup", "consumerGroup"),
    Code.GET_CONSUMER_LIST_BY_GROUP: _fields("", "consumerGroup"),
    Code.CHECK_CLIENT_CONFIG: _client_check,
    Code.LOCK_BATCH_MQ: _lock,
    Code.UNLOCK_BATCH_MQ: _lock,
    Code.QUERY_CONSUMER_OFFSET: _fields("topic", "consumerGroup"),
    Code.UPDATE_CONSUMER_OFFSET: _fields("topic", "consumerGroup"),
    Code.GET_MAX_OFFSET: _fields("topic"),
    Code.GET_MIN_OFFSET: _fields("topic"),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _fields("topic"),
    Code.GET_EARLIEST_MSG_STORETIME: _fields("topic"),
    Code.QUEUE_BOUNDS: _bounds,
    Code.GET_CONSUME_STATS: _fields("topic", "consumerGroup", "topic"),
    Code.QUERY_CONSUME_QUEUE: _fields("topic", "consumerGroup", "consumerGroup"),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _fields("topic", "group"),
    Code.GET_CONSUMER_RUNNING_INFO: _fields("", "consumerGroup"),
    Code.GET_CONSUMER_CONNECTION_LIST: _fields("", "consumerGroup"),
    Code.GET_TOPIC_CONFIG: _fields("topic"),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _fields("topic"),
    Code.GET_TOPIC_STATS_INFO: _fields("topic"),
    Code.GET_ROUTEINFO_BY_TOPIC: _route,
}
assert {row.code for row in REQUESTS if needs_reader(row)} <= READERS.keys()
