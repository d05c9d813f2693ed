"""What of a topic's queues nobody has read yet: asked before queues are taken from readers.

Decides what counts as unread: what the slowest group that reads the topic, or has a position in it,
has not committed; without any group all that is there. Asks one broker at a time; what comes
meanwhile is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from rmq_ray.client.admin.admin_link import body_of
from rmq_ray.remoting.wire.bodies_admin import (
    decode_consume_stats,
    decode_group_list,
    decode_topic_stats,
)
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import ConsumeStatsHeader, TopicHeader

Ask = Callable[[Command], Command]


def readers(ask: Ask, topic: str) -> list[str]:
    """Groups that read the topic at a broker, or have a position in it there. A group that is away
    may have all its positions at one broker, and begins the queues of the others where they begin:
    ask all of them.
    """
    fields = TopicHeader(topic=topic).to_fields()
    return decode_group_list(
        body_of(ask(Command(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, fields=fields)))
    )


def unread(ask: Ask, topic: str, queues: Collection[int], groups: Iterable[str]) -> dict[int, int]:
    """Queue id -> messages that are unread by one of ``groups``, of those of ``queues`` that have
    some. ``ask``: one request to the broker and its answer. Raises what it raises.
    """
    fields = TopicHeader(topic=topic).to_fields()
    stats = decode_topic_stats(
        body_of(ask(Command(RequestCode.GET_TOPIC_STATS_INFO, fields=fields)))
    )
    found = {
        queue.queue_id: (bounds.min_offset, bounds.max_offset)
        for queue, bounds in stats.items()
        if queue.queue_id in queues and bounds.min_offset < bounds.max_offset
    }
    slowest: dict[int, int] = {}
    for group in groups:
        asked = ConsumeStatsHeader(consumer_group=group, topic=topic).to_fields()
        answer = ask(Command(RequestCode.GET_CONSUME_STATS, fields=asked))
        for queue, progress in decode_consume_stats(body_of(answer)).items():
            reached = slowest.get(queue.queue_id, progress.consumer_offset)
            slowest[queue.queue_id] = min(reached, progress.consumer_offset)
    waiting = {
        queue_id: high - max(low, slowest.get(queue_id, low))
        for queue_id, (low, high) in found.items()
    }
    return {queue_id: count for queue_id, count in sorted(waiting.items()) if count > 0}
