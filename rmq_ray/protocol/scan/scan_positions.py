"""Where a bulk read may begin and end, in all the forms that users know; and the offsets that the
plain forms mean.

    "earliest" | "latest"                  words, for every queue
    {MessageQueue: offset}                 offsets; -2 = earliest, -1 = latest; queues not named:
                                           the side's default
    datetime | ms since the epoch          the first message stored then or later, in every queue
    LikeGroup(name)                        where a consumer group is; queues it has no position in:
                                           their beginning; GroupNotFound where it has none at all
    '{"orders": {"broker-a": {"0": 23}}}'  offsets as JSON text or as such a mapping (topic, broker,
                                           queue id), as rocketmq-spark writes them

Decides: which form a value is, and that wrong ones are refused with what would be right. Does not
look anything up: ``client.scan.scan_plan`` asks the brokers for times and groups and hands offsets
to ``scan_splits.resolve``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rmq_ray.errors import ClientError, GroupNotFound
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.moments import moment_ms, unless_seconds
from rmq_ray.protocol.validators import check_group

EARLIEST, LATEST = "earliest", "latest"
EARLIEST_OFFSET, LATEST_OFFSET = -2, -1
_FORMS = (
    "must be 'earliest', 'latest', a mapping of MessageQueue to offset, such offsets as JSON, a "
    "time (datetime or ms since the epoch), or LikeGroup(name)"
)


@dataclass(frozen=True, slots=True)
class LikeGroup:
    """Where another group is."""

    group: str


Where = str | int | datetime | LikeGroup | Mapping[Any, Any]
"""See the module."""


def normal(position: object) -> str | int | LikeGroup | dict[MessageQueue, int]:
    """One of: a word, ms since the epoch, ``LikeGroup``, offsets by queue. ``ClientError`` for
    everything else.

    >>> normal('{"t": {"b": {"0": 5}}}')
    {MessageQueue(topic='t', broker_name='b', queue_id=0): 5}
    """
    if isinstance(position, str):
        text = position.strip()
        return _offsets(_json(text)) if text.startswith("{") else _word(position)
    if isinstance(position, datetime):
        return moment_ms(position)
    if isinstance(position, Mapping):
        return _offsets(position)
    if isinstance(position, LikeGroup):
        return position
    if isinstance(position, int) and not isinstance(position, bool) and position >= 0:
        return unless_seconds(position)
    raise ClientError(f"position {position!r:.80} {_FORMS}", repr(position)[:80])


def of_queues(
    position: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, tuple[int, int]]
) -> dict[MessageQueue, int]:
    """Offsets with -2 and -1 replaced by the queue's own bounds; queues that are not there stay as
    they are and are refused later.
    """
    found = {}
    for queue, offset in position.items():
        low, high = bounds.get(queue, (0, 0))
        found[queue] = (
            low if offset == EARLIEST_OFFSET else high if offset == LATEST_OFFSET else offset
        )
    return found


def group_offsets(
    group: str,
    committed: Mapping[MessageQueue, int | None],
    bounds: Mapping[MessageQueue, tuple[int, int]],
) -> dict[MessageQueue, int]:
    """What ``LikeGroup`` means: ``committed`` as the brokers tell it, None for queues without a
    position, which begin at their beginning.

    ``GroupNotFound`` for a group without any: a name that is misspelt would read everything,
    silently.

    >>> a, b = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)
    >>> sorted(group_offsets("daily", {a: 7, b: None}, {a: (0, 9), b: (2, 9)}).values())
    [2, 7]
    """
    check_group(group)
    if committed and all(offset is None for offset in committed.values()):
        topics = ", ".join(sorted({queue.topic for queue in committed}))
        raise GroupNotFound(
            f"group {group!r} has no position in {topics}: see `rmq-ray group list` for the "
            f"names, or begin at 'earliest' or 'latest'",
            group,
        )
    return {
        queue: bounds[queue][0] if offset is None else offset for queue, offset in committed.items()
    }


def nested(offsets: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """Offsets as the mapping that ``normal`` reads: topic, broker, queue id.

    >>> nested({MessageQueue("t", "b", 0): 5})
    {'t': {'b': {'0': 5}}}
    """
    found: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        found.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = (
            int(offsets[queue])
        )
    return found


def offsets_json(offsets: Mapping[MessageQueue, int]) -> str:
    """The same as text."""
    return json.dumps(nested(offsets), separators=(",", ":"))


def _word(word: str) -> str:
    if word not in (EARLIEST, LATEST):
        raise ClientError(f"position {word!r} {_FORMS}", word)
    return word


def _json(text: str) -> Mapping[Any, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ClientError(
            f'offsets {text!r:.80} are no JSON ({error}); write {{"topic": {{"broker": '
            f'{{"0": 23}}}}}}',
            text[:80],
        ) from None
    assert isinstance(found, dict)  # it begins with a brace
    return found


def _offsets(given: Mapping[Any, Any]) -> dict[MessageQueue, int]:
    found: dict[MessageQueue, int] = {}
    for key, value in given.items():
        if isinstance(key, MessageQueue):
            found[key] = _offset(key, value)
        elif isinstance(key, str) and isinstance(value, Mapping):
            for broker, queues in value.items():
                if not isinstance(queues, Mapping):
                    raise ClientError(
                        f"offsets of topic {key!r} must be a mapping of brokers to queues, "
                        f"like {{'broker-a': {{'0': 23}}}}, not {queues!r:.80}",
                        key,
                    )
                for queue_id, offset in queues.items():
                    queue = _queue(key, str(broker), queue_id)
                    found[queue] = _offset(queue, offset)
        else:
            raise ClientError(
                f"offsets must be given for MessageQueues, or as {{topic: {{broker: {{queue: "
                f"offset}}}}}}, not for {key!r:.80}",
                repr(key)[:80],
            )
    return found


def _queue(topic: str, broker: str, queue_id: Any) -> MessageQueue:
    if isinstance(queue_id, bool) or not (
        isinstance(queue_id, int) or (isinstance(queue_id, str) and queue_id.isdecimal())
    ):
        raise ClientError(f"{queue_id!r:.80} is no queue id of topic {topic!r}", topic)
    return MessageQueue(topic, broker, int(queue_id))


def _offset(queue: MessageQueue, offset: Any) -> int:
    if isinstance(offset, bool) or not hasattr(offset, "__index__"):
        raise ClientError(
            f"the offset of {queue} must be an integer, not {offset!r:.80}", repr(offset)[:80]
        )
    value = int(offset)
    if value < EARLIEST_OFFSET:
        raise ClientError(
            f"the offset of {queue} must be 0 or more, -1 for latest or -2 for earliest, not "
            f"{value}",
            value,
        )
    return value
