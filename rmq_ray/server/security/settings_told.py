"""What a broker's settings are before and after an audited change: the old and new values of its
line in the audit log.

Decides which table a request changes. Called by ``Dispatch`` in the broker's loop. Invariant: only
reads; what it returns is a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from rmq_ray.errors import ConfigError
from rmq_ray.remoting.wire.bodies import encode_topic
from rmq_ray.remoting.wire.bodies_admin import encode_group
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.server.tables.broker_tables import BrokerTables

OF_TOPICS = (Code.UPDATE_AND_CREATE_TOPIC, Code.DELETE_TOPIC_IN_BROKER)
OF_GROUPS = (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Code.DELETE_SUBSCRIPTIONGROUP)
OF_OFFSETS = (Code.INVOKE_BROKER_TO_RESET_OFFSET, Code.CLONE_GROUP_OFFSET)


def settings(code: int, fields: Mapping[str, str], tables: BrokerTables) -> dict[str, str] | None:
    """What the tables say now of what this request is about; None = nothing, or no such request."""
    if code in OF_TOPICS:
        topic = tables.topics.snapshot()[0].get(fields.get("topic", ""))
        return None if topic is None else _texts(encode_topic(topic), "topicName")
    if code in OF_GROUPS:
        group = tables.groups.snapshot()[0].get(fields.get("groupName", ""))
        return None if group is None else _texts(encode_group(group), "groupName")
    if code == Code.UPDATE_BROKER_CONFIG:
        return _changed(fields, tables)
    if code in OF_OFFSETS:
        return _offsets(fields, tables)
    return None


def _changed(fields: Mapping[str, str], tables: BrokerTables) -> dict[str, str] | None:
    """The settings that are asked for, as they are; one that there is not is left out."""
    found = {}
    for name in fields:
        with suppress(ConfigError):
            found[name] = tables.settings.value(name)
    return found or None


def _offsets(fields: Mapping[str, str], tables: BrokerTables) -> dict[str, str] | None:
    """``topic:queue`` -> what the group has consumed; of all its topics where none is named."""
    wanted = fields.get("topic") or None
    found = {
        f"{topic}:{queue}": str(offset)
        for topic, queues in tables.offsets.of_group(
            fields.get("group") or fields.get("destGroup", "")
        ).items()
        for queue, offset in queues.items()
        if wanted in (None, topic)
    }
    return found or None


def _texts(found: Mapping[str, object], name: str) -> dict[str, str]:
    """Values as ext fields have them, without the name, which the line's resources tell."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in found.items()
        if key != name
    }
