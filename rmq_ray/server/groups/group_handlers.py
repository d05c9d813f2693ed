"""Heartbeats and members of groups (protocol-behaviour 12; remoting 3, 4, 5).

Decides: what a heartbeat creates (group, retry topic), whom a change is told to. Does not decide
how groups merge (``server.groups.membership``). Beyond who is there: SQL92 filters are taken in,
and members that disagree are told, once for each state of the conflict.

Invariant: a CHANGE notice (40) leaves before the answer of the heartbeat that caused it.
"""

from __future__ import annotations

import logging
from typing import cast

from rmq_ray.clock import Clock
from rmq_ray.errors import RmqError
from rmq_ray.model.groups import ConsumerData
from rmq_ray.model.topics import retry_topic
from rmq_ray.ports import Peer
from rmq_ray.protocol.filters.filter_table import FilterTable
from rmq_ray.protocol.filters.subscription_conflicts import CONFLICT_FIELD, describe
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, Command
from rmq_ray.remoting.wire.headers import ConsumerGroupHeader, UnregisterClientHeader
from rmq_ray.server.base.counters import Counters
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.groups.membership import (
    Client,
    ConsumerTable,
    GroupChange,
    GroupMembership,
    divides_queues,
    refusal_to_join,
)
from rmq_ray.server.tables.broker_tables import BrokerTables

log = logging.getLogger("rmq_ray.server")
TOLD_CHARS_MAX = 2_000


class GroupHandlers:
    """34, 35, 38 and the housekeeping of silent connections."""

    def __init__(
        self, runtime: BrokerRuntime, tables: BrokerTables, members: GroupMembership
    ) -> None:
        self._clock, self._counters = runtime.clock, runtime.counters
        self._groups, self._topics = tables.groups, tables.topics
        self._members = members
        self._watch = SubscriptionWatch(
            members.consumers, tables.filters, runtime.counters, runtime.clock
        )
        self._notice = 0

    def heartbeat(self, command: Command, peer: Peer) -> Command:
        """HEART_BEAT 34."""
        beat = bodies.decode_heartbeat(command.body_bytes())
        if reason := self._members.refusal_to_know(beat, peer):
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=reason)
        client = Client(beat.client_id, self._clock.now_ms(), command.language, command.version)
        self._members.introduce(peer, beat.client_id)
        refused, conflicts = [], []
        for data in beat.consumers:
            reason = refusal_to_join(self._members.consumers.find(data.group), data, peer)
            if reason is None:
                conflicts += self._join(data, peer, client)
            else:
                refused.append(reason)
        for group in beat.producer_groups:
            self._members.producers.register(group, peer, client, group in beat.without_checker)
        fields = {CONFLICT_FIELD: "; ".join(conflicts)[:TOLD_CHARS_MAX]} if conflicts else None
        return (
            command.answer(ResponseCode.GROUP_IN_OTHER_USE, fields, remark="; ".join(refused))
            if refused
            else command.answer(fields=fields)
        )

    def unregister(self, command: Command, peer: Peer) -> Command:
        """UNREGISTER_CLIENT 35."""
        header = UnregisterClientHeader.from_fields(command.fields)
        if header.producer_group:
            self._members.producers.unregister(header.producer_group, peer)
        if header.consumer_group:
            self._tell(
                self._members.consumers.unregister(
                    header.consumer_group, peer, self._notifies(header.consumer_group)
                )
            )
        return command.answer(fields={})

    def consumer_list(self, command: Command, peer: Peer) -> Command:
        """GET_CONSUMER_LIST_BY_GROUP 38."""
        group = ConsumerGroupHeader.from_fields(command.fields).consumer_group
        ids = self._members.consumers.client_ids(group)
        if not ids:
            return command.answer(
                ResponseCode.SYSTEM_ERROR, {}, remark="no consumer for this group"
            )
        return command.answer(fields={}, body=bodies.encode_consumer_ids(ids))

    def closed(self, peer: Peer) -> None:
        """The connection is gone: it leaves its groups at once."""
        self._members.forget(peer)
        self._members.producers.closed(peer)
        for change in self._members.consumers.closed(peer):
            self._tell(change)

    def housekeeping(self, expiry_ms: int) -> None:
        """Close connections whose client was silent too long."""
        now_ms = self._clock.now_ms()
        expired = self._members.consumers.expire(now_ms, expiry_ms)
        for change in expired.changes:
            self._tell(change)
        for peer in dict.fromkeys(
            (*expired.connections, *self._members.producers.expire(now_ms, expiry_ms))
        ):
            cast(Peer, peer).close(f"no heartbeat for {expiry_ms} ms")

    def _join(self, data: ConsumerData, peer: Peer, client: Client) -> list[str]:
        """Take the member in; what it is to be told of others' subscriptions."""
        group = self._groups.find(data.group)
        if group is not None and group.retry_queues > 0:
            try:
                self._topics.create_internal(retry_topic(data.group), group.retry_queues)
            except RmqError:
                self._counters.topics_refused += 1
        self._members.introduce(peer, client.client_id, data.group)
        notifies = (group is None or group.notify_ids_changed) and divides_queues(data)
        change = self._members.consumers.register(data, peer, client, notifies)
        told = self._watch.heard(data)  # the filter is known before anybody is told to pull
        self._tell(change)
        return [told] if told else []

    def _notifies(self, group: str) -> bool:
        config = self._groups.find(group)
        return config is None or config.notify_ids_changed

    def _tell(self, change: GroupChange) -> None:
        self._watch.changed(change)
        for peer in change.notify:
            self._notice += 1
            self._counters.notices += 1
            cast(Peer, peer).send(
                Command(
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                    self._notice & 0x7FFFFFFF,
                    FLAG_ONEWAY,
                    {"consumerGroup": change.group},
                )
            )


class SubscriptionWatch:
    """What heartbeats of one broker say about subscriptions: when a filter is registered or dies
    (``FilterTable``), when a conflict is logged and counted. Which subscription counts is not
    decided here.
    """

    def __init__(
        self, consumers: ConsumerTable, filters: FilterTable, counters: Counters, clock: Clock
    ) -> None:
        self._consumers = consumers
        self._filters = filters
        self._counters = counters
        self._clock = clock
        self._told: dict[str, str] = {}

    def heard(self, data: ConsumerData) -> str:
        """A heartbeat was registered. Returns what is to be told to its sender: a conflict of the
        group, or nothing.
        """
        for fault in self._filters.register(data.group, data.subscriptions, self._clock.now_ms()):
            log.warning("%s", fault)
        group = self._consumers.find(data.group)
        if group is None or not group.declared.differ:
            self._told.pop(data.group, None)
            return ""
        text = describe(data.group, group.conflicts())[:TOLD_CHARS_MAX]
        if self._told.get(data.group) != text:
            self._told[data.group] = text
            self._counters.subscription_conflicts += 1
            log.warning("%s", text)
        return text

    def changed(self, change: GroupChange) -> None:
        """A group lost a member, maybe its last one."""
        if change.removed:
            self._told.pop(change.group, None)
            self._filters.unregister(change.group, self._clock.now_ms())
