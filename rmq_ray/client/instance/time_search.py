"""The question for the first message of a queue that was stored at a time or later: the one form in
which clients of ours ask it (29 SEARCH_OFFSET_BY_TIMESTAMP).

    time of the messages   10   20   20   30
    asked for               5 -> 0    20 -> 1    21 -> 3    31 -> 4, the queue's end

RocketMQ's own answer is the message nearest to the time, which may be the one before, and the last
one where all are older; its clients go on getting that. The field ``rmqExact`` asks for ours.
"""

from __future__ import annotations

from rmq_ray.model.ids import MessageQueue
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import SearchOffsetHeader


def first_since(queue: MessageQueue, store_ms: int) -> Command:
    """A request for that offset; the answer is an ``OffsetAnswer``."""
    header = SearchOffsetHeader(queue.topic, queue.queue_id, store_ms, exact=True)
    return Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields=header.to_fields())
