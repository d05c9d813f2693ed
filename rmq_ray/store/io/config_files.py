"""The broker's and name server's tables as RocketMQ's JSON files (store-format 12), and how such a
file is kept safe.

    config/topics.json  config/subscriptionGroup.json  config/consumerFilter.json
    namesrv/kvConfig.json each beside  FILE.bak  (the content before the last save)

Decides: member names, layout, what happens when a file is broken: the ``.bak`` is read; when both
are unreadable loading fails, for an empty table would delete topics, offsets or groups without a
word. Does not decide when a table is saved. Called by: the broker's and the name server's tables,
from a thread. Offsets are in ``offset_file``.

Invariant: at every moment of a save, main file or ``.bak`` holds a whole table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from rmq_ray.errors import StoreCorrupt
from rmq_ray.files import FileSystem
from rmq_ray.model.fastjson import dumps, loads
from rmq_ray.model.topics import DataVersion, GroupConfig, TopicConfig

logger = logging.getLogger("rmq_ray.store")

T = TypeVar("T")
Topics = tuple[dict[str, TopicConfig], DataVersion]
Groups = tuple[dict[str, GroupConfig], DataVersion]
KvTable = dict[str, dict[str, str]]
"""Namespace -> key -> value."""


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
        """Replace the file; the content before goes to ``.bak``. Durable on return."""
        content = dumps(self._encode(table), pretty=True).encode()
        if self._content is None:
            self._files.make_dirs(self.path.rpartition("/")[0])
        else:
            self._files.write_whole(self.path + ".bak", self._content)
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
            name: _members(_TOPIC_MEMBERS, topic) for name, topic in topics.items()
        },
    }


def decode_topics(value: Mapping[str, Any]) -> Topics:
    """Members that RocketMQ 5 adds are ignored, missing ones have their defaults."""
    topics = {
        name: TopicConfig(**{**_arguments(_TOPIC_MEMBERS, members), "name": name})
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
