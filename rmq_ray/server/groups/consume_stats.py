"""GET_BROKER_CONSUME_STATS 317: every group's progress in every topic of this broker, in one answer
(remoting 5; RocketMQ's brokerConsumeStats).

Decides: which groups and topics are listed, as RocketMQ 4.9 does: what has a committed offset here;
not what a running group has ceased to subscribe to. Called by ``group_operations``. Reads last
store times from the disk: run ``read`` beside the loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rmq_ray.model.ids import MessageQueue
from rmq_ray.remoting.wire.bodies_admin import Progress
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.server.base.responses import Refused
from rmq_ray.server.groups.membership import GroupMembership
from rmq_ray.server.tables.offset_table import OffsetTable
from rmq_ray.server.tables.topic_table import TopicTable
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.reading.record_lookup import store_ms_of

QUEUES_MAX = 50_000
"""An answer is one frame of 16 MiB; beyond it ask group by group (208)."""

Found = dict[str, list[dict[MessageQueue, Progress]]]
"""Group -> for each of its topics the progress by queue."""


class Listed(NamedTuple):
    """One queue of the answer, before the store was asked."""

    group: str
    topic: str
    queue_id: int
    committed: int


def listed(
    topics: TopicTable, offsets: OffsetTable, members: GroupMembership, ordered_only: bool
) -> list[Listed]:
    """What is to be told, in the loop. ``Refused`` beyond ``QUEUES_MAX`` queues."""
    found: list[Listed] = []
    for (topic, group), queues in sorted(offsets.tables().items()):
        config, running = topics.get(topic), members.consumers.find(group)
        if config is None or (ordered_only and not config.order):
            continue
        if running is not None and running.subscriptions and topic not in running.subscriptions:
            continue
        found += [
            Listed(group, topic, queue_id, queues.get(queue_id, 0))
            for queue_id in range(max(config.read_queues, config.write_queues))
        ]
        if len(found) > QUEUES_MAX:
            raise Refused(
                f"groups of this broker consume more than {QUEUES_MAX} queues; ask for one "
                f"group after the other (208)",
                ResponseCode.SYSTEM_ERROR,
            )
    return found


def read(store: MessageStore, broker_name: str, wanted: Iterable[Listed]) -> Found:
    """The same with the queues' ends and the store times of what was consumed last."""
    found: dict[str, dict[str, dict[MessageQueue, Progress]]] = {}
    for group, topic, queue_id, committed in wanted:
        last_ms = max(0, store_ms_at(store, topic, queue_id, committed - 1)) if committed else 0
        progress = Progress(store.bounds(topic, queue_id)[1], committed, last_ms)
        found.setdefault(group, {}).setdefault(topic, {})[
            MessageQueue(topic, broker_name, queue_id)
        ] = progress
    return {group: list(by_topic.values()) for group, by_topic in found.items()}


def store_ms_at(store: MessageStore, topic: str, queue_id: int, offset: int) -> int:
    """When the message at a queue offset was stored, ms; -1 when it is not there. It reads the log:
    call it beside the loop where there are many.
    """
    log_offset = store.log_offset_of(topic, queue_id, offset) if offset >= 0 else -1
    record = store.record_at(log_offset) if log_offset >= 0 else None
    return -1 if record is None else store_ms_of(record)
