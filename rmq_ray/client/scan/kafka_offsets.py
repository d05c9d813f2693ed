"""Offsets as ``ray.data.read_kafka`` spells them, as the positions of a bulk read.

    5                          that offset, in every partition
    datetime                   the first message stored then or later; without a zone it is UTC
    "earliest" | "latest"      words
    {"orders": {0: 5}}         of each partition: an offset, a datetime or a word; partitions that
                               are not named: their beginning, or their end

Ends are exclusive; one behind the last message means the last message. A partition is a queue; its
number names a queue where only one broker has the topic's queue of that number.

Decides: what such a value means, and that others are refused with what would be right. Does not
decide what becomes of a start that is no longer there (``scan_splits.resolve``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rmq_ray.client.scan.batch_planner import KnowsBrokers, state_of
from rmq_ray.client.scan.topic_state import State, TopicState
from rmq_ray.errors import ClientError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.scan.scan_positions import EARLIEST, LATEST, Where

KafkaOffset = int | datetime | str | Mapping[str, Mapping[int, int | datetime | str]]
_FORMS = (
    "must be an offset, a datetime, 'earliest' (a start), 'latest' (an end), or such values as "
    "{topic: {partition: offset}}"
)


def kafka_range(
    discovery: KnowsBrokers, topics: str | Sequence[str], start: KafkaOffset, end: KafkaOffset
) -> tuple[Where, Where]:
    """(start, end) for ``plan_scan``; asks the brokers where the words do not do. ``ClientError``
    for wrong values, and for a partition that several brokers have; ``TopicNotFound``.
    """
    check_kafka_offset(start, LATEST, "start_offset")
    check_kafka_offset(end, EARLIEST, "end_offset")
    if all(isinstance(given, str | datetime) for given in (start, end)):
        return _aware(start), _aware(end)
    with TopicState(discovery, topics) as asked:
        state = state_of(asked, discovery)
        low, high = (
            {queue: _offset(asked, state, queue, _of(given, queue, word)) for queue in state.bounds}
            for given, word in ((start, EARLIEST), (end, LATEST))
        )
        for given in (start, end):
            _check_partitions(given, state)
    ends = {queue: min(high[queue], last) for queue, (_, last) in state.bounds.items()}
    return low, ends


def check_kafka_offset(given: object, wrong: str, name: str) -> None:
    """``ClientError`` for what is no such value. ``wrong``: the word that makes no sense here."""
    if isinstance(given, Mapping):
        for topic, partitions in given.items():
            if not isinstance(topic, str) or not isinstance(partitions, Mapping):
                raise ClientError(f"{name} {_FORMS}, not {given!r:.80}", repr(given)[:80])
            for partition, offset in partitions.items():
                if type(partition) is not int or isinstance(offset, Mapping):
                    raise ClientError(
                        f"{name}[{topic!r}] must map numbers of partitions to offsets, not "
                        f"{partitions!r:.80}",
                        repr(partitions)[:80],
                    )
                check_kafka_offset(offset, wrong, f"{name}[{topic!r}][{partition}]")
        return
    fits = isinstance(given, datetime) or (type(given) is int and given >= 0)
    if not fits and given not in {EARLIEST, LATEST} - {wrong}:
        raise ClientError(f"{name} {_FORMS}, not {given!r:.80}", repr(given)[:80])


def _aware(given: Any) -> Any:
    """Ray reads a time without a zone as UTC."""
    return (
        given.replace(tzinfo=UTC) if isinstance(given, datetime) and given.tzinfo is None else given
    )


def _of(given: KafkaOffset, queue: MessageQueue, word: str) -> int | datetime | str:
    """What is said of one queue; ``word`` where nothing is."""
    if not isinstance(given, Mapping):
        return given
    return given.get(queue.topic, {}).get(queue.queue_id, word)


def _offset(
    asked: TopicState, state: State, queue: MessageQueue, given: int | datetime | str
) -> int:
    if isinstance(given, int):
        return given
    here = State({queue: state.bounds[queue]}, state.epochs)
    return asked.offsets_of(_aware(given), here)[queue]


def _check_partitions(given: KafkaOffset, state: State) -> None:
    for topic, partitions in given.items() if isinstance(given, Mapping) else ():
        for partition in partitions:
            found = [q for q in state.bounds if (q.topic, q.queue_id) == (topic, partition)]
            if not found:
                raise ClientError(
                    f"topic {topic!r} has no partition {partition} in this read; there are "
                    f"{', '.join(map(str, state.bounds)) or 'none'}",
                    topic,
                    partition,
                )
            if len(found) > 1:
                raise ClientError(
                    f"partition {partition} of {topic!r} is there on several brokers "
                    f"({', '.join(queue.broker_name for queue in found)}): give start= and end= "
                    f"as {{topic: {{broker: {{queue: offset}}}}}}",
                    topic,
                    partition,
                )
