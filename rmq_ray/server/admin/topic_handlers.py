"""Administration of topics and groups (remoting 5): 17, 21, 200, 201, 207, 215, 300, 305, 351.

Decides: what may be created or deleted. Does not decide how tables are saved: an answer leaves when
the change is on disk (``config_saver``). Called by the broker's table of handlers.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmq_ray.config import BrokerConfig
from rmq_ray.errors import RmqError
from rmq_ray.model.groups import is_system_group
from rmq_ray.model.topics import (
    BOUND_MAX,
    RESERVE_TIME,
    SLOT_BYTES,
    SLOTS,
    SLOTS_GROUP,
    Permission,
    TopicBound,
    TopicConfig,
    bound_number,
    bound_of,
    dlq_topic,
    retention_of,
    retry_topic,
    topic_attributes,
)
from rmq_ray.ports import Peer
from rmq_ray.protocol.validators import check_group, check_topic
from rmq_ray.remoting.wire import bodies, bodies_admin, body_json
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import CreateTopicHeader, DeleteGroupHeader, TopicHeader
from rmq_ray.server.base.responses import Refused, Responder
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.groups.membership import GroupMembership
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.server.tables.topic_table import QUEUES_MAX, TopicTable
from rmq_ray.store.tables.topic_lives import encode_lives

PERMISSIONS = int(Permission.READ_WRITE | Permission.INHERIT | Permission.PRIORITY)


class TopicHandlers:
    """See the module."""

    def __init__(
        self,
        runtime: BrokerRuntime,
        storage: BrokerStorage,
        members: GroupMembership,
        responder: Responder,
    ) -> None:
        tables = storage.tables
        self._keeper = storage.keeper
        self._topics, self._groups, self._offsets = tables.topics, tables.groups, tables.offsets
        self._save_topics, self._save_groups = tables.save_topics, tables.save_groups
        self._forget = tables.settings.forget
        self._members = members
        self._answer = responder.answer
        self._reserved_hours = runtime.config.store.reserved_hours
        """How long the store keeps its log."""

    def configure(self, config: BrokerConfig) -> None:
        """Settings were changed."""
        self._reserved_hours = config.store.reserved_hours

    def create_topic(self, command: Command, peer: Peer) -> None:
        """17: create or replace. The answer leaves when the table is on disk."""
        header = CreateTopicHeader.from_fields(command.fields)
        _check_user_topic(self._topics, header.topic)
        if not (0 <= header.read_queues <= QUEUES_MAX and 0 <= header.write_queues <= QUEUES_MAX):
            raise Refused(
                f"topic {header.topic}: {header.read_queues} read and {header.write_queues} "
                f"write queues; 0 to {QUEUES_MAX} are possible",
                ResponseCode.SYSTEM_ERROR,
            )
        if header.permission & ~PERMISSIONS:
            raise Refused(
                f"topic {header.topic}: permission {header.permission} has unknown bits",
                ResponseCode.SYSTEM_ERROR,
            )
        self._topics.put(
            TopicConfig(
                header.topic,
                header.read_queues,
                header.write_queues,
                header.permission,
                header.filter_type,
                header.sys_flag or 0,
                header.order,
                self._retention(header),
                self._bound(header),
            )
        )
        self._save_topics(lambda error: self._saved(command, peer, error))

    def _retention(self, header: CreateTopicHeader) -> int:
        """The topic's hours after the change; other attributes of RocketMQ 5 change nothing."""
        known = self._topics.get(header.topic)
        hours = 0 if known is None else known.retention_hours
        for change in (header.attributes or "").split(","):
            name, _, value = change.strip().partition("=")
            if name == f"-{RESERVE_TIME}" or (name, value) == (f"+{RESERVE_TIME}", "-1"):
                hours = 0
            elif name == f"+{RESERVE_TIME}":
                hours = retention_of({RESERVE_TIME: value})
                if not 1 <= hours <= self._reserved_hours:
                    raise Refused(
                        f"topic {header.topic}: a retention of {value:.40} hours; 1 to "
                        f"{self._reserved_hours} are possible, for this broker keeps no message "
                        f"longer than reserved_hours of its store, {self._reserved_hours}",
                        ResponseCode.SYSTEM_ERROR,
                    )
        return hours

    def _bound(self, header: CreateTopicHeader) -> TopicBound | None:
        """How much of the topic may wait after the change."""
        known = self._topics.get(header.topic)
        own = {} if known is None else topic_attributes(known).get("attributes", {})
        for change in (header.attributes or "").split(","):
            name, _, value = change.strip().partition("=")
            if name in (f"+{SLOTS}", f"+{SLOT_BYTES}"):
                if not bound_number(value):
                    raise Refused(
                        f"topic {header.topic}: {name[1:]} of {value:.40}; 1 to {BOUND_MAX} are "
                        f"possible",
                        ResponseCode.SYSTEM_ERROR,
                    )
                own[name[1:]] = value
            elif name == f"+{SLOTS_GROUP}":
                check_group(value)
                own[SLOTS_GROUP] = value
            elif name in (f"-{SLOTS}", f"-{SLOT_BYTES}", f"-{SLOTS_GROUP}"):
                own.pop(name[1:], None)
        return bound_of(own)

    def all_topics(self, command: Command, peer: Peer) -> Command:
        """21."""
        store = self._keeper.store
        lives = {} if store is None else encode_lives(store.lives.snapshot())
        return command.answer(body=bodies.encode_topic_configs(*self._topics.snapshot(), lives))

    def topic_config(self, command: Command, peer: Peer) -> Command:
        """351: one topic's settings."""
        topic = TopicHeader.from_fields(command.fields).topic
        config = self._topics.get(topic)
        if config is None:
            raise Refused(f"No topic in this broker. topic={topic}", ResponseCode.TOPIC_NOT_EXIST)
        return command.answer(fields={}, body=body_json.write(bodies.encode_topic(config)))

    def delete_topic(self, command: Command, peer: Peer) -> None:
        """215: the topic, its queues and its groups' offsets; the log keeps its records, which
        nobody finds any more, as long as retention does. Fine when it does not exist. The answer
        says what went: ``messages``, and ``groups`` that had positions.
        """
        topic = TopicHeader.from_fields(command.fields).topic
        check_topic(topic)
        if self._topics.is_system(topic):
            raise Refused(
                f"The topic[{topic}] is conflict with system topic.", ResponseCode.SYSTEM_ERROR
            )
        groups = self._offsets.groups_of(topic)
        gone = self._forget_topics((topic,))
        told = {"messages": str(sum(gone.values())), "groups": ",".join(sorted(groups))}

        def saved(error: Exception | None) -> None:
            self._keeper.free_topics(gone, error)
            self._saved(command, peer, error, told)

        self._save_topics(saved)

    def _forget_topics(self, topics: Sequence[str]) -> dict[str, int]:
        """Nobody finds anything of them any more; which of them there were, and how many messages
        they held.
        """
        store = self._keeper.store
        if store is None:
            raise self._keeper.refusal()
        held: dict[str, int] = {}
        for (topic, _), (low, high) in store.queues().items():
            if topic in topics:
                held[topic] = held.get(topic, 0) + high - low
        gone = {
            topic: held.get(topic, 0) for topic in topics if topic in self._topics or topic in held
        }
        for topic in topics:
            self._offsets.forget_topic(topic)
        for topic in gone:
            store.end_topic(topic)
            self._topics.delete(topic)
            self._forget("topic", topic)
        return gone

    def topic_groups(self, command: Command, peer: Peer) -> Command:
        """300: groups that consume a topic, now or before."""
        topic = TopicHeader.from_fields(command.fields).topic
        groups = {*self._members.consumers.groups_of_topic(topic), *self._offsets.groups_of(topic)}
        return command.answer(body=bodies_admin.encode_group_list(sorted(groups)))

    def system_topics(self, command: Command, peer: Peer) -> Command:
        """305."""
        return command.answer(body=bodies.encode_topic_list(self._topics.system_topics()))

    def create_group(self, command: Command, peer: Peer) -> None:
        """200: create or replace."""
        config = bodies_admin.decode_group(body_json.parse(command.body))
        check_group(config.name)
        self._groups.put(config)
        self._save_groups(lambda error: self._saved(command, peer, error))

    def all_groups(self, command: Command, peer: Peer) -> Command:
        """201."""
        return command.answer(body=bodies_admin.encode_group_configs(*self._groups.snapshot()))

    def delete_group(self, command: Command, peer: Peer) -> None:
        """207: the settings; where asked, all that the group has, too: its offsets, what waits to
        be consumed again, and its dead letters, but for those that are to be kept. The answer says
        which topics went, and with how many messages.
        """
        header = DeleteGroupHeader.from_fields(command.fields)
        if is_system_group(header.group_name):
            raise Refused(
                f"group {header.group_name} belongs to the system and stays",
                ResponseCode.NO_PERMISSION,
            )
        if header.remove_offset and self._keeper.store is None:
            raise self._keeper.refusal()  # before anything of the group has gone
        self._groups.delete(header.group_name)
        self._forget("group", header.group_name)
        gone: dict[str, int] = {}
        if header.remove_offset:
            self._offsets.forget_group(header.group_name)
            own = [retry_topic(header.group_name)]
            if not header.keep_dead_letters:
                own.append(dlq_topic(header.group_name))
            gone = self._forget_topics(own)
        told = {"topics": ",".join(f"{topic}={count}" for topic, count in gone.items())}

        def saved(error: Exception | None) -> None:
            self._saved(command, peer, error, told)

        def topics_saved(error: Exception | None) -> None:
            self._keeper.free_topics(gone, error)
            if error is None:
                self._save_groups(saved)
            else:
                saved(error)

        if gone:
            self._save_topics(topics_saved)
        else:
            self._save_groups(saved)

    def _saved(
        self,
        command: Command,
        peer: Peer,
        error: Exception | None,
        told: dict[str, str] | None = None,
    ) -> None:
        if error is None:
            self._answer(command, peer, lambda: command.answer(fields=told or {}))
        else:
            remark = f"the change is in memory, its file could not be written: {error}"
            self._answer(
                command, peer, lambda: command.answer(ResponseCode.SYSTEM_ERROR, {}, remark=remark)
            )


def _check_user_topic(topics: TopicTable, topic: str) -> None:
    try:
        check_topic(topic)
    except RmqError as error:
        raise Refused(error.message, ResponseCode.SYSTEM_ERROR) from error
    if topics.is_system(topic):
        raise Refused(
            f"The topic[{topic}] is conflict with system topic.", ResponseCode.SYSTEM_ERROR
        )
