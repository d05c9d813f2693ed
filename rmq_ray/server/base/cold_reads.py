"""Which reads leave the loop: those that lie so far behind the log's end that the page cache may
not have them; and where a group that is new begins.

Decides by distance alone, as RocketMQ does (its 40 % of RAM), with a fixed and smaller bound.
Called by pulls, pops, questions for offsets and send-back.
"""

from __future__ import annotations

from rmq_ray.store.front.message_store import MessageStore

WARM_BYTES = 256 << 20  # the newest part of the log counts as being in memory
TAIL_RECORDS = (
    1_024  # a pull this close to its queue's end is not looked at further: nearly all are
)


def is_cold(store: MessageStore, log_offset: int) -> bool:
    """Whether reading at ``log_offset`` may wait for a disk."""
    return store.end_offset - log_offset > WARM_BYTES


def is_young(store: MessageStore, topic: str, queue_id: int) -> bool:
    """Whether retention has taken nothing of the queue, and its first message lies no further back
    in the log than what RocketMQ takes to be in memory (40 % of RAM): a new group that begins at
    the end begins with that message then.
    """
    return (
        store.bounds(topic, queue_id)[0] <= 0
        and not store.get_messages(topic, queue_id, 0, 1, 1, None).suggest_slave
    )


def is_cold_pull(store: MessageStore, topic: str, queue_id: int, offset: int) -> bool:
    """Whether a pull from queue offset ``offset`` may wait for a disk; cheap for consumers that
    keep up.
    """
    if store.end_offset <= WARM_BYTES or store.bounds(topic, queue_id)[1] - offset <= TAIL_RECORDS:
        return False
    log_offset = store.log_offset_of(topic, queue_id, offset)
    return 0 <= log_offset < store.end_offset - WARM_BYTES
