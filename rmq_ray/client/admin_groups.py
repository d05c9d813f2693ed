"""Administration of consumer groups: who they are, how far they are, where they go on (protocol-behaviour 18).

Decides: that a group's position is moved only while nobody consumes with it (a running consumer would commit its own over it).
Called by: ``admin``. Blocking; rows are dicts.
"""

from __future__ import annotations

from typing import Any

from rmq_ray.client.admin_link import AdminLink, body_of
from rmq_ray.errors import AdminError, ClientError, GroupNotFound
from rmq_ray.model.groups import is_system_group
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.validators import check_group, check_topic
from rmq_ray.remoting.bodies_admin import Progress, decode_conflicts, decode_connections, decode_consume_stats, decode_group_configs
from rmq_ray.remoting.codes import RequestCode, ResponseCode
from rmq_ray.remoting.frame import Command
from rmq_ray.remoting.headers import (
    ConsumerGroupHeader,
    ConsumeStatsHeader,
    DeleteGroupHeader,
    OffsetAnswer,
    QueueHeader,
    SearchOffsetHeader,
    UpdateOffsetHeader,
)

FIRST, LAST = "first", "last"
SeekTarget = str | int
"""``"first"``, ``"last"`` or a store time in ms."""


class AdminGroups(AdminLink):
    """The part of ``Admin`` that knows groups."""

    def groups(self, *, system: bool = False) -> list[str]:
        """Names of all consumer groups that a broker knows; with ``system`` also those of RocketMQ's own tools."""
        command = Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        found: set[str] = set()
        for broker, address in self.masters().items():
            found |= set(decode_group_configs(body_of(self._ask(address, command, f"broker {broker} did not tell its groups")))[0])
        return sorted(name for name in found if system or not is_system_group(name))

    def group_lag(self, group: str) -> list[dict[str, Any]]:
        """A row for each queue that the group consumes: topic, broker, queue, max_offset, committed, lag. ``GroupNotFound`` where none does."""
        rows = [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "max_offset": p.broker_offset,
                "committed": p.consumer_offset,
                "lag": max(0, p.broker_offset - p.consumer_offset),
                "last_consumed_ms": p.last_ms,
            }
            for queue, p in sorted(self._progress(group).items())
        ]
        if not rows:
            self._require_group(group)
        return rows

    def group_clients(self, group: str) -> list[dict[str, Any]]:
        """A row for each running consumer of the group and broker that it is connected to: broker, client_id, address, language.

        Empty when nobody consumes; ``GroupNotFound`` where no broker knows the group.
        """
        rows = [
            {"broker": broker, "client_id": client.client_id, "address": client.address, "language": client.language}
            for broker, body in self._connections(group).items()
            for client in sorted(decode_connections(body), key=lambda client: client.client_id)
        ]
        if not rows:
            self._require_group(group)
        return rows

    def group_conflicts(self, group: str) -> list[dict[str, Any]]:
        """A row for each way in which running consumers of one group subscribe to a topic differently: topic, expression, client_ids.

        Empty where they agree. The newest heartbeat counts for all of them, so messages are filtered for some by what others asked.
        """
        found: dict[tuple[str, str], set[str]] = {}
        for body in self._connections(group).values():
            for topic, texts in decode_conflicts(body).items():
                for text, clients in texts.items():
                    found.setdefault((topic, text), set()).update(clients)
        return [{"topic": topic, "expression": text, "client_ids": sorted(clients)} for (topic, text), clients in sorted(found.items())]

    def seek_group(self, group: str, topic: str, to: SeekTarget, *, execute: bool = False) -> list[dict[str, Any]]:
        """Where the group would go on in each queue of a topic, and with ``execute`` moves it there: broker, queue, committed, target, moved_by.

        ``to``: "first" and "last" message that is there, or a store time in ms since the epoch (the first message stored then or later).
        Raises ``AdminError`` while a consumer of the group runs (with ``execute``), ``GroupNotFound``, ``TopicNotFound``.
        """
        check_topic(topic)
        if isinstance(to, str) and to not in (FIRST, LAST):
            raise ClientError(f"position {to!r} must be 'first', 'last' or a time in ms since the epoch", to)
        committed = self._progress(group, topic)
        self._require_group(group)
        if execute and (clients := {row["client_id"] for row in self.group_clients(group)}):
            raise AdminError(f"{len(clients)} consumers of group {group!r} are running and would commit their own positions: stop them first", group)
        targets = {queue: self._target(queue, to) for queue in sorted(committed)}
        if execute:
            for queue, target in targets.items():
                self._commit(group, queue, target)
        return [
            {
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "committed": committed[queue].consumer_offset,
                "target": target,
                "moved_by": target - committed[queue].consumer_offset,
            }
            for queue, target in targets.items()
        ]

    def delete_group(self, group: str) -> None:
        """Forget the group and its positions on every master. ``AdminError`` while a consumer of it runs, ``GroupNotFound``."""
        if clients := {row["client_id"] for row in self.group_clients(group)}:
            raise AdminError(f"{len(clients)} consumers of group {group!r} are running: stop them first", group)
        fields = DeleteGroupHeader(group_name=group, remove_offset=True).to_fields()
        for broker, address in self.masters().items():
            self._ask(address, Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields=fields), f"broker {broker} did not delete group {group!r}")

    def _connections(self, group: str) -> dict[str, bytes]:
        """Broker -> its answer about running consumers, where there are some."""
        check_group(group)
        found = {}
        for broker, address in self.masters().items():
            command = Command(RequestCode.GET_CONSUMER_CONNECTION_LIST, fields=ConsumerGroupHeader(consumer_group=group).to_fields())
            answer = self._ask(address, command, f"broker {broker} did not tell who consumes with {group!r}", (ResponseCode.CONSUMER_NOT_ONLINE,))
            if answer.code == ResponseCode.SUCCESS:
                found[broker] = body_of(answer)
        return found

    def _progress(self, group: str, topic: str | None = None) -> dict[MessageQueue, Progress]:
        check_group(group)
        fields = ConsumeStatsHeader(consumer_group=group, topic=topic).to_fields()
        found: dict[MessageQueue, Progress] = {}
        for broker, address in self.masters().items():
            command = Command(RequestCode.GET_CONSUME_STATS, fields=fields)
            found.update(decode_consume_stats(body_of(self._ask(address, command, f"broker {broker} did not tell the lag of {group!r}"))))
        return found

    def _target(self, queue: MessageQueue, to: SeekTarget) -> int:
        if isinstance(to, str):
            code = RequestCode.GET_MIN_OFFSET if to == FIRST else RequestCode.GET_MAX_OFFSET
            command = Command(code, fields=QueueHeader(topic=queue.topic, queue_id=queue.queue_id).to_fields())
        else:
            fields = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=to).to_fields()
            command = Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields=fields)
        answer = self._ask(self.masters()[queue.broker_name], command, f"broker {queue.broker_name} did not tell the offsets of {queue}")
        return OffsetAnswer.from_fields(answer.fields).offset

    def _commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        header = UpdateOffsetHeader(consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset)
        command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=header.to_fields())
        self._ask(self.masters()[queue.broker_name], command, f"broker {queue.broker_name} did not move {group!r} on {queue}")

    def _require_group(self, group: str) -> None:
        if group not in self.groups(system=True):
            raise GroupNotFound(f"no broker knows the consumer group {group!r}: it never connected, or was deleted", group)
