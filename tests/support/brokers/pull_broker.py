"""A tiny cluster whose brokers can be consumed from: queues in memory, held pulls, groups, offsets,
send-back. For tests of consumers.

``PullBroker.refuse(request)`` may return a code to answer a pull with. Redelivery has no delay:
what is sent back lies in the retry topic at once, and in ``%DLQ%`` when it may not be tried again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.record import Record, decode_record, encode_record, tag_of
from rmq_ray.model.groups import Subscription
from rmq_ray.model.hashing import tags_code
from rmq_ray.model.message import decode_properties, encode_properties
from rmq_ray.model.pulling import PullSysFlag
from rmq_ray.model.topics import dlq_topic, retry_topic
from rmq_ray.protocol.filters.filter_tag import tag_subscription
from rmq_ray.remoting.wire.bodies import decode_heartbeat, encode_consumer_ids
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, Command
from rmq_ray.remoting.wire.headers import (
    OffsetAnswer,
    QueryOffsetHeader,
    QueueHeader,
    SendBackHeader,
    UpdateOffsetHeader,
)
from rmq_ray.remoting.wire.records import PullRecords, pack_pull_answer, unpack_pull
from tests.support.brokers.tiny_cluster import TinyBroker, TinyCluster

Place = tuple[str, int]


class PullBroker(TinyBroker):
    """See the module. Everything but ``committed`` and the counters is used in the loop only."""

    def __init__(self, name: str, cluster: PullCluster) -> None:
        super().__init__(name)
        self.cluster = cluster
        self.queues: dict[Place, list[bytes]] = defaultdict(list)
        self.codes: dict[Place, list[int]] = defaultdict(list)
        self.low: dict[Place, int] = defaultdict(int)
        self.by_log_offset: dict[int, Record] = {}
        self.members: dict[str, dict[str, Any]] = defaultdict(dict)
        self.subscriptions: dict[str, dict[str, Subscription]] = defaultdict(dict)
        self.offsets: dict[tuple[str, Place], int] = {}
        self.committed: list[tuple[str, str, int, int]] = []
        """(how, topic, queue id, offset) of every commit: "pull", "oneway" or "request"."""
        self.sent_back: list[SendBackHeader] = []
        self.refuse_send_back = 0
        self.pulls: list[PullRecords] = []
        self.hang_up = False
        """Close the connection instead of answering a pull."""
        self.refuse: Callable[[PullRecords], int | None] = lambda _request: None
        self._parked: dict[Place, list[tuple[Command, Any, PullRecords]]] = defaultdict(list)
        self._end = 0

    # --- the queues -------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        queue_id: int,
        bodies: Iterable[bytes],
        properties: str = "",
        reconsume_times: int = 0,
    ) -> None:
        """In the loop: store messages and wake who waits for them."""
        place = (topic, queue_id)
        now_ms = SYSTEM_CLOCK.now_ms()
        for body in bodies:
            made = Record(
                topic,
                queue_id,
                body,
                properties,
                0,
                self.low[place] + len(self.queues[place]),
                self._end,
                0,
                now_ms,
                ("127.0.0.1", 1),
                now_ms,
                ("127.0.0.1", 2),
                reconsume_times,
            )
            encoded = encode_record(made)
            self.by_log_offset[self._end] = made
            self.queues[place].append(encoded)
            self.codes[place].append(tags_code(tag_of(properties)))
            self._end += len(encoded)
        for command, peer, request in self._parked.pop(place, []):
            peer.send(self._page(command, request))

    def cut(self, topic: str, queue_id: int, low: int) -> None:
        """In the loop: the messages before ``low`` have expired."""
        place = (topic, queue_id)
        gone = low - self.low[place]
        del self.queues[place][:gone], self.codes[place][:gone]
        self.low[place] = low

    # --- requests ---------------------------------------------------------------------------------

    def handle(self, command: Command, peer: Any) -> Command | None:
        found = {
            RequestCode.PULL_RECORDS: self._pull,
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._consumers,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update,
            RequestCode.GET_MAX_OFFSET: self._bound,
            RequestCode.GET_MIN_OFFSET: self._bound,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
        }.get(RequestCode(command.code))
        if found is None:
            return super().handle(command, peer)
        self.requests[command.code] += 1
        answer: Command | None = found(command, peer)
        return None if command.is_oneway else answer

    def closed(self, peer: Any) -> None:
        for parked in self._parked.values():
            parked[:] = [entry for entry in parked if entry[1] is not peer]
        for group in list(self.members):
            for client_id in [
                client_id for client_id, other in self.members[group].items() if other is peer
            ]:
                self._leave(group, client_id)

    def _pull(self, command: Command, peer: Any) -> Command | None:
        request = unpack_pull(command.body)
        self.pulls.append(request)
        if self.hang_up:
            peer.close("told to")
            return None
        code = self.refuse(request)
        told = (
            not request.sys_flag & PullSysFlag.SUBSCRIPTION
        )  # the filter is the heartbeat's, not the pull's own
        if code is None and told and request.topic not in self.subscriptions[request.group]:
            code = int(ResponseCode.SUBSCRIPTION_NOT_EXIST)
        if (
            code is None
            and told
            and request.sub_version > self.subscriptions[request.group][request.topic].version
        ):
            code = int(ResponseCode.SUBSCRIPTION_NOT_LATEST)
        if code is not None:
            return command.answer(code, remark="as the test wants it")
        place = (request.topic, request.queue_id)
        if request.sys_flag & PullSysFlag.COMMIT_OFFSET:
            self._commit("pull", request.group, place, request.commit_offset)
        if (
            request.offset == self.low[place] + len(self.queues[place])
            and request.sys_flag & PullSysFlag.SUSPEND
        ):
            entry = (command, peer, request)
            self._parked[place].append(entry)
            asyncio.get_running_loop().call_later(
                request.suspend_ms / 1000, self._expire, place, entry
            )
            return None
        return self._page(command, request)

    def _page(self, command: Command, request: PullRecords) -> Command:
        place = (request.topic, request.queue_id)
        low, records = self.low[place], self.queues[place]
        high = low + len(records)
        if not low <= request.offset <= high:
            return command.answer(
                ResponseCode.PULL_OFFSET_MOVED,
                body=pack_pull_answer(low if request.offset < low else high, low, high, 1, 0),
            )
        subscription = self.subscriptions[request.group].get(request.topic)
        if request.sys_flag & PullSysFlag.SUBSCRIPTION:
            subscription = tag_subscription(request.topic, request.expression, 0)
        wanted = subscription.codes if subscription is not None else frozenset()
        chosen: list[bytes] = []
        at = request.offset
        while at < high and len(chosen) < request.count_max:
            if not wanted or self.codes[place][at - low] in wanted:
                chosen.append(records[at - low])
            at += 1
        code = (
            ResponseCode.SUCCESS
            if chosen
            else ResponseCode.PULL_NOT_FOUND
            if at == request.offset
            else ResponseCode.PULL_RETRY_IMMEDIATELY
        )
        sizes = np.array([len(record) for record in chosen], ">i4") if chosen else None
        return command.answer(
            code,
            body=pack_pull_answer(
                at, low, high, 1, 0, sizes, (b"".join(chosen),) if chosen else ()
            ),
        )

    def _expire(self, place: Place, entry: tuple[Command, Any, PullRecords]) -> None:
        if entry in self._parked.get(place, []):
            self._parked[place].remove(entry)
            entry[1].send(self._page(entry[0], entry[2]))

    def _heartbeat(self, command: Command, peer: Any) -> Command:
        heartbeat = decode_heartbeat(command.body_bytes())
        self.heartbeats.append(heartbeat)
        self.peers.append(peer)
        for consumer in heartbeat.consumers:
            self.subscriptions[consumer.group] = {
                subscription.topic: subscription for subscription in consumer.subscriptions
            }
            self.cluster.create(retry_topic(consumer.group), 1)
            if self.members[consumer.group].get(heartbeat.client_id) is not peer:
                self.members[consumer.group][heartbeat.client_id] = peer
                self._notify(consumer.group)
        return command.answer()

    def _unregister(self, command: Command, peer: Any) -> Command:
        fields = dict(command.fields or {})
        self.unregistered.append(fields)
        if "consumerGroup" in fields:
            self._leave(fields["consumerGroup"], fields["clientID"])
        return command.answer()

    def _leave(self, group: str, client_id: str) -> None:
        if self.members[group].pop(client_id, None) is not None:
            self._notify(group)

    def _notify(self, group: str) -> None:
        for peer in self.members[group].values():
            peer.send(
                Command(
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                    flag=FLAG_ONEWAY,
                    fields={"consumerGroup": group},
                )
            )

    def _consumers(self, command: Command, peer: Any) -> Command:
        found = sorted(self.members[(command.fields or {})["consumerGroup"]])
        return (
            command.answer(body=encode_consumer_ids(found))
            if found
            else command.answer(ResponseCode.SYSTEM_ERROR, remark="no consumer for this group")
        )

    def _query(self, command: Command, peer: Any) -> Command:
        header = QueryOffsetHeader.from_fields(command.fields)
        found = self.offsets.get((header.consumer_group, (header.topic, header.queue_id)))
        return (
            command.answer(ResponseCode.QUERY_NOT_FOUND)
            if found is None
            else command.answer(fields=OffsetAnswer(found).to_fields())
        )

    def _update(self, command: Command, peer: Any) -> Command:
        header = UpdateOffsetHeader.from_fields(command.fields)
        self._commit(
            "oneway" if command.is_oneway else "request",
            header.consumer_group,
            (header.topic, header.queue_id),
            header.commit_offset,
        )
        return command.answer()

    def _commit(self, how: str, group: str, place: Place, offset: int) -> None:
        self.offsets[group, place] = offset
        self.committed.append((how, *place, offset))

    def _bound(self, command: Command, peer: Any) -> Command:
        header = QueueHeader.from_fields(command.fields)
        place = (header.topic, header.queue_id)
        offset = self.low[place] + (
            len(self.queues[place]) if command.code == RequestCode.GET_MAX_OFFSET else 0
        )
        return command.answer(fields=OffsetAnswer(offset).to_fields())

    def _send_back(self, command: Command, peer: Any) -> Command:
        header = SendBackHeader.from_fields(command.fields)
        if self.refuse_send_back:
            self.refuse_send_back -= 1
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="as the test wants it")
        self.sent_back.append(header)
        failed = self.by_log_offset[header.offset]
        dead = header.delay_level < 0 or failed.reconsume_times >= (
            header.max_reconsume_times or 16
        )
        topic = dlq_topic(header.group) if dead else retry_topic(header.group)
        properties = {
            "RETRY_TOPIC": failed.topic,
            "ORIGIN_MESSAGE_ID": header.origin_message_id or "",
        } | decode_properties(failed.properties)
        self.append(
            topic, 0, [failed.body], encode_properties(properties), failed.reconsume_times + 1
        )
        return command.answer()


class PullCluster(TinyCluster):
    """Brokers are ``PullBroker``; ``put`` stores messages."""

    def __init__(self, brokers: int = 1, topics: dict[str, int] | None = None) -> None:
        super().__init__(brokers=brokers, topics=topics)
        self.pull_brokers = [PullBroker(broker.name, self) for broker in self.brokers]
        self.brokers = list(self.pull_brokers)

    def create(self, topic: str, queues: int) -> None:
        """A topic, unless it is there."""
        if topic not in self.routes:
            self.add_topic(topic, queues)

    def put(
        self,
        topic: str,
        queue_id: int,
        bodies: Iterable[bytes],
        properties: str = "",
        broker: int = 0,
    ) -> None:
        """Store messages, from any thread."""

        async def do() -> None:
            self.pull_brokers[broker].append(topic, queue_id, bodies, properties)

        self.run(do())

    def bodies(self, topic: str, queue_id: int = 0, broker: int = 0) -> list[bytes]:
        """What lies in a queue."""
        return [
            decode_record(record).body
            for record in list(self.pull_brokers[broker].queues[topic, queue_id])
        ]
