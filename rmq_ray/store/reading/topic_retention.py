"""Topics that keep less than the store does: their messages are not handed out any more once they
are older (docs/file-format.md#retention).

    entries of a queue    gone with the log | expired, still in the log | handed out
    offsets               0                 log_min_offset              min_offset        max_offset

Decides where the queues of such a topic begin: at the first message that is younger than the
topic's hours. Only what readers see moves; entries and records stay until their segment goes, so
that Apache RocketMQ finds the store as it knows it. Does not decide what a topic keeps, nor which
segments go (``store.reading.retention``).

Invariant: a beginning is a function of the log, the time and the hours, nothing is written: after a
restart it is found anew, and a topic that keeps more again shows what the log still has. A bulk
read's pin holds a beginning where it is, until the pin's deadline.
"""

from __future__ import annotations

from collections.abc import Mapping

from rmq_ray.store.queue.consume_queue import ConsumeQueue
from rmq_ray.store.queue.queue_table import QueueTable
from rmq_ray.store.reading.log_reader import LogReader
from rmq_ray.store.reading.record_lookup import first_stored_since, store_ms_at

HOUR_MS = 3_600_000


def expire_topics(
    reader: LogReader,
    queues: QueueTable,
    visible: int,
    now_ms: int,
    hours: Mapping[str, int],
    pinned_from: int | None,
) -> int:
    """Bring every queue's beginning to where it belongs; returns how many of them moved. ``hours``:
    of each topic that keeps less than the store; ``pinned_from``: the lowest log offset that a bulk
    read still needs.
    """
    moved = 0
    for topic, _, queue in queues.all():
        if topic in hours:
            since_ms = now_ms - hours[topic] * HOUR_MS
            begin = _begin(reader, queue, visible, since_ms)
            if begin > queue.min_offset and pinned_from is not None:
                begin = max(queue.min_offset, min(begin, queue.first_at(pinned_from)))
            moved += queue.hide_before(begin)
        elif queue.hides:
            moved += queue.hide_before(0)
    return moved


def _begin(reader: LogReader, queue: ConsumeQueue, visible: int, since_ms: int) -> int:
    """The first queue offset stored at ``since_ms`` or later. Nearly always it is where it was: two
    records tell. Where a record cannot be read it stays there.
    """
    low, at, high = queue.log_min_offset, queue.min_offset, queue.max_offset
    before = store_ms_at(reader, queue, visible, at - 1) if at > low else None
    here = store_ms_at(reader, queue, visible, at) if at < high else None
    older_before = at == low or (before is not None and before < since_ms)
    younger_here = at == high or (here is not None and here >= since_ms)
    if older_before and younger_here:
        return at
    found = first_stored_since(reader, queue, visible, since_ms, low, high)
    return at if found is None else found
