"""Readers from before a cut of the log: their offsets may now stand for other messages (design
contract 11).

Decides: whether a reader whose offset belongs to an older epoch went beyond the point where a later
epoch began, and where it has to go on then: at the first message of that queue that it cannot have
seen. Called by pulls and scans; costs nothing when the epochs agree.
"""

from __future__ import annotations

from rmq_ray.store.front.message_store import MessageStore


def cut_offset(
    store: MessageStore, topic: str, queue_id: int, offset: int, epoch: int
) -> int | None:
    """Where a reader of ``epoch`` at queue offset ``offset`` must go back to; ``None`` when it may
    go on. ``epoch`` 0 = not known.
    """
    if epoch <= 0 or epoch >= store.epoch:
        return None
    cut = next((start for number, start in store.epochs if number > epoch), None)
    if cut is None:
        return None
    low, high = store.bounds(topic, queue_id)
    first = _first_behind(store, topic, queue_id, low, min(offset, high), cut)
    return first if first < offset else None


def _first_behind(
    store: MessageStore, topic: str, queue_id: int, low: int, high: int, cut: int
) -> int:
    """The first queue offset in [low, high] whose message lies at or behind log offset ``cut``;
    ``high`` when none does.
    """
    while low < high:  # ends: the range halves
        middle = (low + high) // 2
        if store.log_offset_of(topic, queue_id, middle) < cut:
            low = middle + 1
        else:
            high = middle
    return low
