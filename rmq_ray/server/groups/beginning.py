"""Where a group begins in a queue in which it has no position: the one rule for all who ask a
broker (14 of push and pull consumers, pops).

    the group has a position in the topic,   everything that lies in the queue   ──> its first
    here or at another broker                was stored since then                   message
    else, a queue that is young              RocketMQ's rule                     ──> its first
                                                                                     message
    else                                     the group is new in it              ──> None: what
                                                                                     start_from says

Decides: that a group which was away while its topic grew skips nothing of the new queues. A queue
that was there when the group began, and which no member has asked for yet, is no new queue: members
that start together begin in the same way. How long the group is in the topic is known since the
broker began; what it finds in its file then is as old as can be. Clients tell what other brokers
of the topic know (``known_ms``), since each knows its own queues only.
"""

from __future__ import annotations

from rmq_ray.clock import Clock
from rmq_ray.server.tables.offset_table import OffsetTable
from rmq_ray.store.front.message_store import MessageStore


def first_offset(
    store: MessageStore,
    offsets: OffsetTable,
    clock: Clock,
    topic: str,
    group: str,
    queue_id: int,
    elsewhere_ms: int | None = None,
) -> int | None:
    """See the module. ``elsewhere_ms``: for how long the group has had a position in the topic at
    another broker.
    """
    low, high = store.bounds(topic, queue_id)
    here_ms = offsets.known_ms(topic, group)
    known = [age_ms for age_ms in (here_ms, elsewhere_ms) if age_ms is not None]
    if known and (low >= high or _is_younger(store, topic, queue_id, clock.now_ms() - max(known))):
        return low
    return low if store.is_young(topic, queue_id) else None


def _is_younger(store: MessageStore, topic: str, queue_id: int, since_ms: int) -> bool:
    """Whether the first message was stored since then; one that cannot be read skips nothing."""
    stored_ms = store.earliest_store_ms(topic, queue_id) if since_ms > 0 else -1
    return stored_ms < 0 or stored_ms > since_ms
