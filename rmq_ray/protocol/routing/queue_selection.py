"""Which queue a message goes to (protocol-behaviour 7.1, 7.3; latency fault tolerance is
``fault_latency``).

Decides the position in a list of queues. Does not make the list (``publish_info``). Pure: the turn
is a counter that the caller owns, chance and hash codes are passed in.

Invariants: a retry leaves the broker that failed, if the list has another; the same hash code on
the same list is the same queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmq_ray.errors import ClientError
from rmq_ray.model.hashing import java_hash
from rmq_ray.model.ids import MessageQueue

NextIndex = Callable[[], int]
"""Gives the next turn: rises by one each call from a random start
(``itertools.count(start).__next__``).
"""


def position(index: int, size: int) -> int:
    """``abs(index) mod size`` of a 32-bit counter as Java has it: the one value whose abs is
    negative gives 0.

    >>> position(7, 4), position(-7, 4), position(-(1 << 31), 4), position(1 << 32, 4)
    (3, 3, 0, 0)
    """
    if 0 <= index < 1 << 31:
        return index % size
    wrapped = (index + (1 << 31)) % (1 << 32) - (1 << 31)
    return 0 if wrapped == -(1 << 31) else abs(wrapped) % size


def select_queue(
    queues: Sequence[MessageQueue], next_index: NextIndex, last_broker: str | None = None
) -> MessageQueue:
    """Round robin. After a failure on ``last_broker``: the next queue of any other broker, and
    plainly the next when there is no other.
    """
    size = len(queues)
    if last_broker is not None:
        for _ in range(size):
            queue = queues[position(next_index(), size)]
            if queue.broker_name != last_broker:
                return queue
    return queues[position(next_index(), size)]


def select_by_hash(queues: Sequence[MessageQueue], hash_code: int) -> MessageQueue:
    """RocketMQ's SelectMessageQueueByHash: ``abs(hash % n)`` with the remainder's sign as in Java,
    ``hash_code`` 32-bit signed.

    >>> queues = [MessageQueue("T", "b", n) for n in range(4)]
    >>> select_by_hash(queues, -7).queue_id
    3
    """
    return queues[abs(hash_code) % len(queues)]


def select_by_group(queues: Sequence[MessageQueue], message_group: str) -> MessageQueue:
    """The queue of a message group: by the hash of its name, so that every producer of the topic
    agrees.
    """
    return select_by_hash(queues, java_hash(message_group))


def select_by_random(queues: Sequence[MessageQueue], chance: int) -> MessageQueue:
    """RocketMQ's SelectMessageQueueByRandom; ``chance`` is any number."""
    return queues[chance % len(queues)]


def checked_choice(chosen: object, topic: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """What a user's selector returned, if it is one of the queues that it was given; else
    ``ClientError`` (a selector is never asked twice).
    """
    if isinstance(chosen, MessageQueue) and chosen in queues:
        return chosen
    raise ClientError(
        f"the selector returned {chosen!r} for topic {topic!r}; it must return one of the "
        f"{len(queues)} queues that it was given",
        topic,
    )
