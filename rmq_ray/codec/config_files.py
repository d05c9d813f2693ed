"""Tables kept as JSON files, most of them Apache RocketMQ's
(docs/file-format.md#tables-and-small-files), and how such a file is kept safe.

    config/topics.json              topics, their version
    config/subscriptionGroup.json   consumer groups, their version
    config/consumerFilter.json      SQL92 filters, kept as they are
    config/consumerOffset.json      {"offsetTable":{"TopicTest@groupA":{0:335,1:335,2:333}}}
                                    topic@group -> queue id -> next offset to consume
    config/delayOffset.json         {"offsetTable":{1:10,3:22}}
                                    delay level (from 1) -> next offset of queue level - 1
    offsets.json                    of a broadcasting client; keys are objects:
                                    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:335}}
    rmq_ray/timer.json              {"cancelFrom":3,"due":1700000000000,"first":17,"offset":41}
                                    ours: how far messages with a delivery time were delivered
    rmq_ray/settings.json           {"dataVersion":{...},"settings":{"store.reserved_hours":"48"}}
                                    ours: what was changed of the settings while the broker ran
    namesrv/kvConfig.json           a name server's values by namespace and key

    each beside  FILE.bak           the content before the last save

Decides: member names, layout, and what happens when a file is broken: the ``.bak`` is read; when
both are unreadable loading fails, for an empty table would delete topics, offsets or groups without
a word. Does not decide when a table is saved, nor which offsets are believed.

Invariant: at every moment of a save, main file or ``.bak`` holds a whole table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rmq_ray.errors import StoreCorrupt
from rmq_ray.files import FileSystem
from rmq_ray.model.fastjson import dumps, loads
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import (
    DataVersion,
    GroupConfig,
    TopicConfig,
    adopted_of,
    bound_of,
    retention_of,
    topic_attributes,
)

logger = logging.getLogger("rmq_ray.store")

T = TypeVar("T")
Topics = tuple[dict[str, TopicConfig], DataVersion]
Groups = tuple[dict[str, GroupConfig], DataVersion]
Changes = tuple[dict[str, str], DataVersion]
"""Settings that were changed while a broker ran, as they are written; their version."""
KvTable = dict[str, dict[str, str]]
"""Namespace -> key -> value."""
_TOPIC_MEMBERS: dict[str, tuple[str, type]] = {
    "order": ("order", bool),
    "perm": ("permission", int),
    "readQueueNums": ("read_queues", int),
    "topicFilterType": ("filter_type", str),
    "topicName": ("name", str),
    "topicSysFlag": ("sys_flag", int),
    "writeQueueNums": ("write_queues", int),
}
"""RocketMQ's member -> our field and its type."""
_GROUP_MEMBERS: dict[str, tuple[str, type]] = {
    "brokerId": ("broker_id", int),
    "consumeBroadcastEnable": ("consume_broadcast_enable", bool),
    "consumeEnable": ("consume_enable", bool),
    "consumeFromMinEnable": ("consume_from_min_enable", bool),
    "groupName": ("name", str),
    "notifyConsumerIdsChangedEnable": ("notify_ids_changed", bool),
    "retryMaxTimes": ("retry_max_times", int),
    "retryQueueNums": ("retry_queues", int),
    "whichBrokerWhenConsumeSlowly": ("broker_when_slow", int),
}
GroupOffsets = dict[tuple[str, str], dict[int, int]]
"""(topic, group) -> queue id -> next offset to consume."""
_SEPARATOR = "@"


class ConfigFile(Generic[T]):
    """One table in one file. ``encode`` makes plain JSON values of it, ``decode`` the reverse; it
    may raise ``LookupError``, ``TypeError``, ``ValueError`` or ``AttributeError`` for values that
    are no such table. One thread at a time.
    """

    def __init__(
        self, files: FileSystem, path: str, encode: Callable[[T], Any], decode: Callable[[Any], T]
    ) -> None:
        self.path = path
        self._files = files
        self._encode = encode
        self._decode = decode
        self._content: bytes | None = None  # of the last save or the last good load

    def load(self) -> T | None:
        """The table; None when neither file exists. ``StoreCorrupt`` when files exist and none can
        be read.
        """
        faults = []
        for path in (self.path, self.path + ".bak"):
            if not self._files.exists(path):
                continue
            try:
                content = self._files.read_whole(path)
                table = self._decode(loads(content))
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                faults.append(f"{path}: {error or type(error).__name__}")
                continue
            if faults or path != self.path:
                logger.warning(
                    "%s was read instead of the main file: %s",
                    path,
                    "; ".join(faults) or "it is missing",
                )
            self._content = content
            return table
        if faults:
            raise StoreCorrupt(
                f"no readable table ({'; '.join(faults)}); restore the file, or remove it "
                f"and its .bak to begin with an empty table",
                self.path,
            )
        return None

    def save(self, table: T) -> None:
        """Replace the file; the content before goes to ``.bak``, at first the same: one of the two
        can be read whatever becomes of the other. Durable on return.
        """
        content = dumps(self._encode(table), pretty=True).encode()
        if self._content is None:
            self._files.make_dirs(self.path.rpartition("/")[0])
        self._files.write_whole(self.path + ".bak", self._content or content)
        self._files.write_whole(self.path, content)
        self._content = content


def topics_file(files: FileSystem, path: str) -> ConfigFile[Topics]:
    """``topics.json``: (topics by name, their version)."""
    return ConfigFile(files, path, lambda table: encode_topics(*table), decode_topics)


def groups_file(files: FileSystem, path: str) -> ConfigFile[Groups]:
    """``subscriptionGroup.json``: (groups by name, their version)."""
    return ConfigFile(files, path, lambda table: encode_groups(*table), decode_groups)


def kv_file(files: FileSystem, path: str) -> ConfigFile[KvTable]:
    """``kvConfig.json`` of a name server."""
    return ConfigFile(files, path, lambda table: {"configTable": table}, _decode_kv)


def filters_file(files: FileSystem, path: str) -> ConfigFile[dict[str, Any]]:
    """``consumerFilter.json``: RocketMQ's SQL92 filters by topic, kept as they are (we compile
    filters anew).
    """
    return ConfigFile(
        files,
        path,
        lambda table: {"filterDataByTopic": table},
        lambda value: dict(value["filterDataByTopic"]),
    )


def encode_version(version: DataVersion) -> dict[str, int]:
    """``dataVersion``."""
    return {"counter": version.counter, "timestamp": version.timestamp_ms}


def decode_version(value: Mapping[str, int] | None) -> DataVersion:
    """A missing one is (0, 0)."""
    return DataVersion(int(value["counter"]), int(value["timestamp"])) if value else DataVersion()


def encode_topics(topics: Mapping[str, TopicConfig], version: DataVersion) -> dict[str, Any]:
    """RocketMQ's TopicConfigSerializeWrapper."""
    return {
        "dataVersion": encode_version(version),
        "topicConfigTable": {
            name: _members(_TOPIC_MEMBERS, topic) | topic_attributes(topic)
            for name, topic in topics.items()
        },
    }


def decode_topics(value: Mapping[str, Any]) -> Topics:
    """Of what RocketMQ 5 adds, the attribute ``reserve.time`` is taken, beside our own, and the
    rest ignored; missing members have their defaults.
    """
    topics = {
        name: TopicConfig(
            **{
                **_arguments(_TOPIC_MEMBERS, members),
                "name": name,
                "retention_hours": retention_of(members.get("attributes")),
                "bound": bound_of(members.get("attributes")),
                "adopted": adopted_of(members.get("attributes")),
            }
        )
        for name, members in value["topicConfigTable"].items()
    }
    return topics, decode_version(value.get("dataVersion"))


def encode_groups(groups: Mapping[str, GroupConfig], version: DataVersion) -> dict[str, Any]:
    """RocketMQ's SubscriptionGroupManager."""
    return {
        "dataVersion": encode_version(version),
        "subscriptionGroupTable": {
            name: _members(_GROUP_MEMBERS, group) for name, group in groups.items()
        },
    }


def decode_groups(value: Mapping[str, Any]) -> Groups:
    """See ``decode_topics``."""
    groups = {
        name: GroupConfig(**{**_arguments(_GROUP_MEMBERS, members), "name": name})
        for name, members in value["subscriptionGroupTable"].items()
    }
    return groups, decode_version(value.get("dataVersion"))


def _members(names: Mapping[str, tuple[str, type]], value: object) -> dict[str, Any]:
    return {member: kind(getattr(value, field)) for member, (field, kind) in names.items()}


def _arguments(names: Mapping[str, tuple[str, type]], members: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for member, (field, kind) in names.items():
        given = members.get(member)
        if given is None:
            continue
        if kind is not str and type(given) is not kind:
            raise TypeError(f"{member} is {given!r}")
        found[field] = kind(given)
    return found


def _decode_kv(value: Mapping[str, Any]) -> KvTable:
    return {
        str(namespace): {str(key): str(item) for key, item in table.items()}
        for namespace, table in value["configTable"].items()
    }


def settings_file(files: FileSystem, path: str) -> ConfigFile[Changes]:
    """``settings.json``: (changed settings by name, their version)."""
    return ConfigFile(
        files,
        path,
        lambda table: {
            "dataVersion": encode_version(table[1]),
            "settings": table[0],
        },
        lambda value: (
            {str(name): str(text) for name, text in value["settings"].items()},
            decode_version(value.get("dataVersion")),
        ),
    )


def configured_file(files: FileSystem, path: str) -> ConfigFile[dict[str, str]]:
    """``configured.json``: settings by name, as the topology file has them since this broker's
    actor was made.
    """
    return ConfigFile(
        files,
        path,
        lambda table: {"settings": table},
        lambda value: {str(name): str(text) for name, text in value["settings"].items()},
    )


def consumer_offsets_file(files: FileSystem, path: str) -> ConfigFile[GroupOffsets]:
    """``consumerOffset.json`` of a broker; offsets of clustering groups."""
    return ConfigFile(files, path, encode_group_offsets, decode_group_offsets)


def delay_offsets_file(files: FileSystem, path: str) -> ConfigFile[dict[int, int]]:
    """``delayOffset.json``: delay level -> next offset."""
    return ConfigFile(
        files,
        path,
        lambda table: {"offsetTable": table},
        lambda value: _queue_offsets(value["offsetTable"]),
    )


def broadcast_offsets_file(files: FileSystem, path: str) -> ConfigFile[dict[MessageQueue, int]]:
    """``offsets.json`` of one client id and group; offsets of a broadcasting consumer."""
    return ConfigFile(files, path, encode_broadcast_offsets, decode_broadcast_offsets)


def encode_group_offsets(offsets: Mapping[tuple[str, str], Mapping[int, int]]) -> dict[str, Any]:
    """Plain values of the file."""
    return {
        "offsetTable": {
            f"{topic}{_SEPARATOR}{group}": dict(queues)
            for (topic, group), queues in offsets.items()
        }
    }


def decode_group_offsets(value: Mapping[str, Any]) -> GroupOffsets:
    """The reverse; ``ValueError`` for a key that is not ``topic@group``. Keys of queues may be
    quoted.
    """
    offsets: GroupOffsets = {}
    for key, queues in value["offsetTable"].items():
        topic, separator, group = key.partition(_SEPARATOR)
        if not separator or not topic or not group or _SEPARATOR in group:
            raise ValueError(f"{key!r} is not topic@group")
        offsets[topic, group] = _queue_offsets(queues)
    return offsets


def encode_broadcast_offsets(offsets: Mapping[MessageQueue, int]) -> dict[str, Any]:
    """Plain values of the file; keys are objects."""
    table = {
        (
            ("brokerName", queue.broker_name),
            ("queueId", queue.queue_id),
            ("topic", queue.topic),
        ): offset
        for queue, offset in offsets.items()
    }
    return {"offsetTable": table}


def decode_broadcast_offsets(value: Mapping[str, Any]) -> dict[MessageQueue, int]:
    """The reverse."""
    keys = [(dict(pairs), offset) for pairs, offset in value["offsetTable"].items()]
    return {
        MessageQueue(str(key["topic"]), str(key["brokerName"]), int(key["queueId"])): int(offset)
        for key, offset in keys
    }


def _queue_offsets(table: Mapping[Any, Any]) -> dict[int, int]:
    return {int(number): int(offset) for number, offset in table.items()}


@dataclass(frozen=True, slots=True)
class TimerProgress:
    """Everything up to (due, offset) was delivered. ``first``: no message before this offset of
    queue 0 waits; ``cancel_from``: nor matters any entry of queue 1 before this one.
    """

    due_ms: int = 0
    offset: int = -1
    first: int = 0
    cancel_from: int = 0


def timer_file(files: FileSystem, path: str) -> ConfigFile[TimerProgress]:
    """The file at ``path``."""
    return ConfigFile(files, path, _encode, _decode)


def _encode(progress: TimerProgress) -> dict[str, Any]:
    return {
        "cancelFrom": progress.cancel_from,
        "due": progress.due_ms,
        "first": progress.first,
        "offset": progress.offset,
    }


def _decode(value: Mapping[str, Any]) -> TimerProgress:
    return TimerProgress(
        int(value["due"]), int(value["offset"]), int(value["first"]), int(value["cancelFrom"])
    )
