"""What an append returns. Decides nothing. Made by the message store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class AppendResult:
    """Where records were stored. ``end_log_offset``: durable when ``durable_offset`` has reached
    it. ``repeat``: stored by an earlier append of the same frame, whose values these are.
    ``log_offsets``: of every record (batches of the single path only).
    """

    topic: str
    queue_id: int
    base_queue_offset: int
    base_log_offset: int
    end_log_offset: int
    store_ms: int
    repeat: bool
    count: int
    log_offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MixedResult:
    """Where the messages of one write were stored: message ``n`` at log offset ``log_offset +
    starts[n]``, queue offset ``offsets[n]``.
    """

    log_offset: int
    end_log_offset: int
    starts: Sequence[int]
    offsets: Sequence[int]
    store_ms: int
