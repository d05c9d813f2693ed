"""Finding messages and reading progress: 12, 33, 202, 203, 204, 208, 321 (remoting 3, 5;
protocol-behaviour 23).

Decides: how many records a query returns. Key queries and statistics read the disk: they run beside
the loop, and their answer comes later.
"""

from __future__ import annotations

from rmq_ray.codec.record import decode_record
from rmq_ray.model.groups import TAG
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import Peer
from rmq_ray.protocol.access.decision import Action
from rmq_ray.protocol.pop import Key
from rmq_ray.remoting.wire import bodies_admin
from rmq_ray.remoting.wire.bodies_admin import ClientConnection, Progress, QueueStats
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command, language
from rmq_ray.remoting.wire.headers import (
    ConsumeQueueHeader,
    ConsumerGroupHeader,
    ConsumeStatsHeader,
    ProducerGroupHeader,
    QueryMessageHeader,
    TopicHeader,
    ViewMessageHeader,
)
from rmq_ray.server.admin.clients import Clients
from rmq_ray.server.base.responses import Refused, Responder
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.groups.consume_stats import store_ms_at
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.reading.record_lookup import shown

QUERY_RECORDS_MAX = 64
QUEUE_ENTRIES_MAX = 1_000


class QueryHandlers:
    """See the module."""

    def __init__(
        self, runtime: BrokerRuntime, storage: BrokerStorage, clients: Clients, responder: Responder
    ) -> None:
        self._clock, self._identity = runtime.clock, runtime.identity
        self._keeper = storage.keeper
        self._topics, self._offsets = storage.tables.topics, storage.tables.offsets
        self._members, self._statistics = clients.members, clients.statistics
        self._popped = clients.pops.ledger.table
        self._later, self._check_topic = responder.answer_from, responder.check_topic

    def by_key(self, command: Command, peer: Peer) -> None:
        """12: records of a topic with a key, newest first; 22 without any."""
        header = QueryMessageHeader.from_fields(command.fields)
        store = self._store()
        count = max(1, min(header.max_count, QUERY_RECORDS_MAX))

        def answer(records: list[bytes]) -> Command:
            if not records:
                return command.answer(
                    ResponseCode.QUERY_NOT_FOUND,
                    {},
                    remark="can not find message, maybe time range not correct",
                )
            fields = {
                "indexLastUpdateTimestamp": str(self._clock.now_ms()),
                "indexLastUpdatePhyoffset": str(store.visible_offset),
            }
            return command.answer(fields=fields, body=tuple(records))

        self._later(
            command,
            peer,
            lambda: store.query(header.topic, header.key, count, header.begin_ms, header.end_ms),
            answer,
        )

    def by_id(self, command: Command, peer: Peer) -> None:
        """33: the record at a physical offset."""
        offset = ViewMessageHeader.from_fields(command.fields).offset
        store = self._store()

        def answer(record: bytes | None) -> Command:
            if record is None:
                return command.answer(
                    ResponseCode.SYSTEM_ERROR,
                    {},
                    remark=f"can not find message by the offset, {offset}",
                )
            self._check_topic(peer, Action.SUB, decode_record(record).topic)
            return command.answer(fields={}, body=record)

        self._later(command, peer, lambda: shown(store.lives, store.record_at(offset)), answer)

    def topic_stats(self, command: Command, peer: Peer) -> None:
        """202: offsets and last store time of each queue; a field tells how long the topic keeps
        its messages, where that is its own time.
        """
        topic = TopicHeader.from_fields(command.fields).topic
        config = self._topics.get(topic)
        if config is None:
            raise Refused(f"topic[{topic}] not exist", ResponseCode.TOPIC_NOT_EXIST)
        store, broker = self._store(), self._identity.name
        queues = range(max(config.read_queues, config.write_queues))
        hours = config.retention_hours
        kept = {bodies_admin.RETENTION_FIELD: str(hours)} if hours else {}

        def read() -> dict[MessageQueue, QueueStats]:
            found = {}
            for queue_id in queues:
                low, high = store.bounds(topic, queue_id)
                found[MessageQueue(topic, broker, queue_id)] = QueueStats(
                    low,
                    high,
                    max(0, store_ms_at(store, topic, queue_id, high - 1)) if high > low else 0,
                )
            return found

        self._later(
            command,
            peer,
            read,
            lambda found: command.answer(fields=kept, body=bodies_admin.encode_topic_stats(found)),
        )

    def consume_queue(self, command: Command, peer: Peer) -> Command:
        """321: entries of a consume queue from an index on, at most ``QUEUE_ENTRIES_MAX``; with a
        group that is there, which of them its tags let through, as the broker knows it.
        """
        header = ConsumeQueueHeader.from_fields(command.fields)
        store = self._store()
        low, high = store.bounds(header.topic, header.queue_id)
        if low == high and self._topics.get(header.topic) is None:
            raise Refused(f"topic[{header.topic}] not exist", ResponseCode.TOPIC_NOT_EXIST)
        group = self._members.consumers.find(header.consumer_group or "")
        subscription = None if group is None else group.subscriptions.get(header.topic)
        by_tags = subscription is not None and subscription.expression_type == TAG
        codes = subscription.codes if subscription is not None else frozenset()
        begin = min(max(low, header.index), high)
        found = store.entries(
            header.topic, header.queue_id, begin, max(0, min(header.count, QUEUE_ENTRIES_MAX))
        )
        entries = [
            (
                int(at),
                int(size),
                int(code),
                by_tags and (not codes or code in codes),
            )
            for at, size, code in found.tolist()
        ]
        body = bodies_admin.encode_consume_queue(low, high, entries, subscription)
        return command.answer(fields={}, body=body)

    def _reached(self, store: MessageStore, topic: str, group: str, queue_id: int) -> int:
        """The group's position; without one, where the queue of the topic began."""
        offset = self._offsets.query(topic, group, queue_id)
        return store.lives.begin(topic, queue_id) if offset is None else offset

    def _taken(self, key: Key) -> int | None:
        """Below which offset simple consumers have taken everything; None where nothing is out, or
        somebody moved the group since.
        """
        queue = self._popped.queues.get(key)
        if queue is None or self._offsets.query(key[1], key[0], key[2]) != queue.committed:
            return None
        return queue.next_offset

    def consume_stats(self, command: Command, peer: Peer) -> None:
        """208: how far a group is, per queue; without a topic all that it consumes."""
        header = ConsumeStatsHeader.from_fields(command.fields)
        store, broker = self._store(), self._identity.name
        topics = [header.topic] if header.topic else self._topics_of(header.consumer_group)
        plan = []
        for topic in topics:
            config = self._topics.get(topic)
            for queue_id in range(config.read_queues if config else 0):
                key = header.consumer_group, topic, queue_id
                plan.append(
                    (
                        topic,
                        queue_id,
                        self._reached(store, topic, header.consumer_group, queue_id),
                        self._offsets.committed_age_ms(topic, header.consumer_group, queue_id),
                        self._taken(key),
                    )
                )

        def read() -> dict[MessageQueue, Progress]:
            found = {}
            for topic, queue_id, offset, age_ms, taken in plan:
                last_ms = store_ms_at(store, topic, queue_id, offset - 1) if offset > 0 else 0
                found[MessageQueue(topic, broker, queue_id)] = Progress(
                    store.bounds(topic, queue_id)[1], offset, max(0, last_ms), age_ms, taken
                )
            return found

        tps = sum(
            self._statistics.group_tps(topic, header.consumer_group, self._clock.now_ms())
            for topic in topics
        )
        self._later(
            command,
            peer,
            read,
            lambda found: command.answer(body=bodies_admin.encode_consume_stats(found, tps)),
        )

    def consumers(self, command: Command, peer: Peer) -> Command:
        """203: connections of a consumer group; 206 when nobody is there."""
        name = ConsumerGroupHeader.from_fields(command.fields).consumer_group
        group = self._members.consumers.find(name)
        if group is None:
            return command.answer(
                ResponseCode.CONSUMER_NOT_ONLINE,
                {},
                remark=f"the consumer group[{name}] not online",
            )
        clients = [_connection(peer, client) for peer, client in group.channels.items()]
        told = bodies_admin.encode_consumer_connections(
            clients,
            group.consume_type,
            group.model,
            group.from_where,
            group.subscriptions,
            group.conflicts(),
            self._members.locks.of_group(name, self._clock.monotonic_ms()),
        )
        return command.answer(body=told)

    def producers(self, command: Command, peer: Peer) -> Command:
        """204: connections of a producer group; 1 without any."""
        name = ProducerGroupHeader.from_fields(command.fields).producer_group
        clients = [
            _connection(peer, client)
            for peer, client in self._members.producers.channels(name).items()
        ]
        if not clients:
            return command.answer(
                ResponseCode.SYSTEM_ERROR, {}, remark=f"the producer group[{name}] not exist"
            )
        return command.answer(body=bodies_admin.encode_producer_connections(clients))

    def _topics_of(self, group: str) -> list[str]:
        found = self._members.consumers.find(group)
        subscribed = list(found.subscriptions) if found is not None else []
        return list(dict.fromkeys((*self._offsets.of_group(group), *subscribed)))

    def _store(self) -> MessageStore:
        store = self._keeper.store
        if store is None:
            raise self._keeper.refusal()
        return store


def _connection(peer: object, client: object) -> ClientConnection:
    number = getattr(client, "language", 0)
    return ClientConnection(
        str(getattr(client, "client_id", "")),
        f"{getattr(peer, 'host', '?')}:{getattr(peer, 'port', 0)}",
        language(number),
        getattr(client, "version", 0),
    )
