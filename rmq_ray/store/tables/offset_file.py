"""Consumption progress as RocketMQ's JSON files (store-format 12): the broker's
``consumerOffset.json`` and ``delayOffset.json``, and a broadcasting client's ``offsets.json``.

    {"offsetTable":{"TopicTest@groupA":{0:335,1:335,2:333}}}            topic@group -> queue id -> next offset to consume
    {"offsetTable":{1:10,3:22}}                                         delay level (from 1) -> next offset of queue level - 1
    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"TopicTest"}:335}}

Decides: the form; safety is ``config_files.ConfigFile``'s. Does not decide when offsets are saved
or which are believed. Called by: the broker's offset and delay tables, clients that consume in
BROADCASTING.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmq_ray.files import FileSystem
from rmq_ray.model.ids import MessageQueue
from rmq_ray.store.io.config_files import ConfigFile

GroupOffsets = dict[tuple[str, str], dict[int, int]]
"""(topic, group) -> queue id -> next offset to consume."""
_SEPARATOR = "@"


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
