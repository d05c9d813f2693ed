"""What a pop reads from a queue, and the answer that is made of it.

Decides nothing about who gets what: ``pop_handlers`` does, which is the only caller. Pure but for
the reads; those may run in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rmq_ray.codec.record import headers
from rmq_ray.protocol.pop import Key
from rmq_ray.remoting.wire.pops import LeaseHead, pack_popped
from rmq_ray.server.pull.pull_filters import Wanted
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.reading.log_reader import GetResult


class PopPage:
    """What one pop has taken so far; ``count`` and ``size``: how much more it may take."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self.heads: list[LeaseHead] = []
        self.sizes: list[Any] = []
        self.parts: list[Any] = []

    def add(self, head: LeaseHead, result: GetResult) -> None:
        """One lease and its records."""
        self.heads.append(head)
        self.sizes.append(result.sizes)
        self.parts += result.parts
        self.count -= head.records
        self.size -= head.size

    @property
    def complete(self) -> bool:
        """Nothing more fits in."""
        return self.count <= 0 or self.size <= 0

    def body(self) -> Any:
        """The answer's body."""
        return pack_popped(self.heads, self.sizes, self.parts)


def read_queue(
    store: MessageStore, key: Key, offset: int, count: int, size: int, wanted: Wanted
) -> GetResult:  # noqa: PLR0913 - a read and its filter
    """Records from queue offset ``offset`` on that the group wants; at most ``count``, and ``size``
    bytes but for the first.
    """
    if wanted.matches is not None:
        return store.get_matching(key[1], key[2], offset, count, size, wanted.matches)
    return store.get_messages(key[1], key[2], offset, count, size, wanted.codes)


def lease_head(key: Key, lease_id: int, deadline_ms: int, result: GetResult) -> LeaseHead:
    """How the answer tells a lease."""
    size = int(result.sizes.sum(dtype=np.int64))
    return LeaseHead(
        key[1],
        key[2],
        lease_id,
        deadline_ms,
        result.min_offset,
        result.max_offset,
        result.count,
        size,
    )


def offsets_of(result: GetResult, first: int) -> Sequence[int]:
    """Queue offsets of the records; a range where none was left out."""
    if result.next_offset - first == result.count:
        return range(first, result.next_offset)
    raw = result.parts[0] if len(result.parts) == 1 else b"".join(result.parts)
    starts = np.cumsum(result.sizes, dtype=np.int64) - result.sizes
    found: list[int] = headers(raw)[starts]["queue_offset"].tolist()
    return range(found[0], found[-1] + 1) if found[-1] - found[0] + 1 == len(found) else found
