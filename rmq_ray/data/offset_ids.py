"""One integer for each message, for Ray Data's checkpoints: which of them a job has written is then
a few ranges for each queue, not a list of ids.

    offset_id = 27 bits of a hash of (topic, broker, queue id) << 36 | queue offset

Decides: the number, and that a read whose queues share a hash is refused. Pure. Invariant: the id
of a message is the same in every program and every run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rmq_ray.errors import ClientError
from rmq_ray.model.ids import MessageQueue

OFFSET_ID = "offset_id"
OFFSET_BITS, HASH_BITS = 36, 27


def first_id(queue: MessageQueue) -> int:
    """The id of the queue's offset 0.

    >>> first_id(MessageQueue("t", "b", 0)) % (1 << OFFSET_BITS)
    0
    """
    text = f"{queue.topic}\x00{queue.broker_name}\x00{queue.queue_id}".encode()
    number = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> (64 - HASH_BITS)
    return number << OFFSET_BITS


def check_apart(queues: Iterable[MessageQueue]) -> None:
    """``ClientError`` where two queues have the same ids: one in 10,000 reads of 100 queues."""
    known: dict[int, MessageQueue] = {}
    for queue in queues:
        other = known.setdefault(first_id(queue), queue)
        if other != queue:
            raise ClientError(
                f"{queue} and {other} have the same ids; read them in two datasets", str(queue)
            )


def with_ids(table: Any, queue: MessageQueue, columns: Sequence[str]) -> Any:
    """``columns`` of a table of one queue that has ``queue_offset``, with the ids among them."""
    import pyarrow as pa

    ids = table["queue_offset"].to_numpy() + first_id(queue)
    whole = table.append_column(OFFSET_ID, pa.array(ids, pa.int64()))
    return whole.select(list(columns))


def ranges_of(ids: Any, known: Any = None) -> Any:
    """Ids (and ranges that are known) as sorted ranges [start, end) that do not touch: an array of
    two columns.

    >>> ranges_of(np.array([7, 3, 4, 9]), np.array([[5, 7]])).tolist()
    [[3, 8], [9, 10]]
    """
    single = np.unique(np.asarray(ids, np.int64))
    found = np.stack([single, single + 1], axis=1)
    if known is not None and len(known):
        found = np.concatenate([np.asarray(known, np.int64), found])
    if not len(found):
        return np.empty((0, 2), np.int64)
    found = found[np.argsort(found[:, 0], kind="stable")]
    ends = np.maximum.accumulate(found[:, 1])
    begins = np.flatnonzero(np.concatenate([[True], found[1:, 0] > ends[:-1]]))
    lasts = np.append(begins[1:], len(found)) - 1
    return np.stack([found[begins, 0], ends[lasts]], axis=1)


def inside(ids: Any, ranges: Any) -> Any:
    """Which ids lie in sorted ranges.

    >>> inside(np.array([2, 3, 7, 8]), np.array([[3, 8]])).tolist()
    [False, True, True, False]
    """
    if not len(ranges):
        return np.zeros(len(ids), bool)
    at = np.searchsorted(ranges[:, 0], ids, "right") - 1
    return (at >= 0) & (ids < ranges[np.maximum(at, 0), 1])


def behind(ranges: Any, queue: MessageQueue, low: int) -> int:
    """The first offset from ``low`` on that lies in no range.

    >>> q = MessageQueue("t", "b", 0)
    >>> behind(np.array([[first_id(q) + 3, first_id(q) + 9]]), q, 5), behind(np.empty((0, 2)), q, 5)
    (9, 5)
    """
    base = first_id(queue)
    if not inside(np.array([base + low]), ranges)[0]:
        return low
    at = int(np.searchsorted(ranges[:, 0], base + low, "right")) - 1
    return int(ranges[at, 1]) - base
