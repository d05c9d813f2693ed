"""Reading the records of a queue that a condition on their properties lets pass
(docs/file-format.md#reading).

Decides: how much one read goes through: pages of at most ``PAGE_BYTES``, ``UNITS`` records in all,
so that a filter which nothing passes costs a bounded time and hands back how far it came. Does not
decide what passes: a ``Condition`` does. Any thread. Soundness of records, statuses
and bounds are ``LogReader``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.codec.record_layout import RecordLayout
from rmq_ray.errors import RecordAwaited
from rmq_ray.model.pulling import GetMessageStatus
from rmq_ray.store.queue.consume_queue_ext import Hit
from rmq_ray.store.reading.log_reader import FOREIGN_CAPS, FOREIGN_UNITS, GetResult, LogReader

UNITS = 1_024
PAGE_RECORDS, PAGE_RECORDS_MIN = 256, 32
PAGE_BYTES = 256 << 10
SCANNED_BYTES_MAX = 1 << 20
_RUNS_MAX = 16  # more pieces than this are joined: a page with holes is sent as one buffer

Matches = Callable[[bytes], bool]


class Condition(NamedTuple):
    """What passes: ``matches(property string)``, in UTF-8. ``hit`` spares records that a bit map
    rules out.
    """

    matches: Matches
    hit: Hit | None = None


def get_matching(
    reader: LogReader,
    topic: str,
    queue_id: int,
    offset: int,
    max_count: int,
    max_bytes: int,
    condition: Condition,
    foreign: bool = False,
) -> GetResult:
    """As ``LogReader.get_messages``, of records that pass ``condition``. NO_MATCHED_MESSAGE when
    none of the records that were gone through passes: go on at ``next_offset``.
    """
    if foreign:
        max_count, max_bytes = min(max_count, FOREIGN_CAPS[0]), min(max_bytes, FOREIGN_CAPS[1])
    found = _Found(max_count, max_bytes)
    units, scanned_bytes, at = FOREIGN_UNITS if foreign else UNITS, 0, offset
    page_records = min(
        PAGE_RECORDS, max(PAGE_RECORDS_MIN, max_count)
    )  # what is behind a full page was looked at in vain
    while True:  # ends: ``units`` falls by at least 1 each round
        try:
            page = reader.get_messages(
                topic, queue_id, at, min(page_records, units), PAGE_BYTES, None, hit=condition.hit
            )
        except RecordAwaited:
            if at == offset:
                raise
            break
        page_records = min(PAGE_RECORDS, 2 * page_records)
        if page.status is not GetMessageStatus.FOUND:
            passed = (
                page.next_offset - at if page.status is GetMessageStatus.NO_MATCHED_MESSAGE else 0
            )  # bit maps ruled all of them out
            units, at = units - passed, at + passed
            if passed <= 0 or units <= 0 or at >= page.max_offset:
                break
            continue
        full_at = found.take(page, condition.matches)
        units -= page.next_offset - at
        at = page.next_offset if full_at is None else full_at
        scanned_bytes += int(page.sizes.sum())
        if (
            full_at is not None
            or found.is_full
            or units <= 0
            or scanned_bytes >= SCANNED_BYTES_MAX
            or at >= page.max_offset
        ):
            break
    if at == offset:
        return page
    status = GetMessageStatus.FOUND if found.sizes else GetMessageStatus.NO_MATCHED_MESSAGE
    sizes = np.concatenate(found.sizes) if found.sizes else np.empty(0, np.int32)
    return GetResult(
        status, at, page.min_offset, page.max_offset, sizes, found.parts, page.suggest_slave
    )


class _Found:
    """The records that passed so far."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._count = max_count
        self._bytes = max_bytes
        self.sizes: list[Array] = []
        self.parts: list[Any] = []

    @property
    def is_full(self) -> bool:
        """Whether no further record can be kept."""
        return self._count <= 0 or self._bytes <= 0

    def take(self, page: GetResult, matches: Matches) -> int | None:
        """Keep what passes; the queue offset of the first record there was no room for, None when
        the page was gone through.
        """
        data = (
            page.parts[0]
            if len(page.parts) == 1 and isinstance(page.parts[0], bytes)
            else b"".join(page.parts)
        )
        layout = RecordLayout(data, page.sizes.astype(np.int64))
        starts, begins, ends = (
            values.tolist() for values in (layout.starts, layout.text_begins, layout.ends)
        )
        verdicts = [matches(data[begin:end]) for begin, end in zip(begins, ends, strict=True)]
        rows: Array = np.flatnonzero(np.array(verdicts, np.bool_))
        sizes = page.sizes[rows]
        room = min(
            self._count,
            int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), self._bytes, "right")),
        )
        fit = max(room, 0 if self.sizes else 1)  # the first record always
        full_at = None
        if fit < len(rows):
            start = starts[int(rows[fit])]
            full_at = int.from_bytes(data[start + 20 : start + 28], "big")
            rows, sizes = rows[:fit], sizes[:fit]
        if len(rows):
            self._count -= len(rows)
            self._bytes -= int(sizes.sum())
            self.sizes.append(sizes)
            self._keep(data, rows, starts, ends)
        return full_at

    def _keep(self, data: bytes, rows: Array, starts: list[int], ends: list[int]) -> None:
        if len(rows) == len(starts):
            self.parts.append(data)
            return
        breaks = (np.flatnonzero(np.diff(rows) != 1) + 1).tolist()
        firsts, lasts = (
            rows[[0, *breaks]].tolist(),
            rows[[*[at - 1 for at in breaks], len(rows) - 1]].tolist(),
        )
        view = memoryview(data)
        pieces = [
            view[starts[first] : ends[last]] for first, last in zip(firsts, lasts, strict=True)
        ]
        if len(pieces) > _RUNS_MAX:
            self.parts.append(b"".join(pieces))
        else:
            self.parts += pieces
