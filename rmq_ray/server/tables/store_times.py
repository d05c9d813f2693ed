"""Store times of single queue offsets, for statistics. They read the log: call them beside the loop
where there are many.
"""

from __future__ import annotations

from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.reading.record_lookup import store_ms_of


def store_ms_at(store: MessageStore, topic: str, queue_id: int, offset: int) -> int:
    """When the message at a queue offset was stored, ms; -1 when it is not there."""
    log_offset = store.log_offset_of(topic, queue_id, offset) if offset >= 0 else -1
    record = store.record_at(log_offset) if log_offset >= 0 else None
    return -1 if record is None else store_ms_of(record)
