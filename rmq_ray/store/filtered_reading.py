"""Reading the records of a queue that a condition on their properties lets pass (protocol-behaviour 10.3, 21.1).

Decides: how much one read goes through: pages of at most ``PAGE_BYTES``, ``UNITS`` records in all, so that a filter which nothing passes
costs a bounded time and hands back how far it came. Does not decide what passes: ``matches(property string)`` does. Any thread.

Called by: message store. Soundness of records, statuses and bounds are ``LogReader``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rmq_ray.model.message import SysFlag
from rmq_ray.model.pulling import GetMessageStatus
from rmq_ray.store.extended_queue import Hit
from rmq_ray.store.reading import FOREIGN_CAPS, FOREIGN_UNITS, GetResult, LogReader
from rmq_ray.store.record import HEADER_BYTES
from rmq_ray.store.record_batch import Array

UNITS = 1_024
PAGE_RECORDS = 256
PAGE_BYTES = 256 << 10
SCANNED_BYTES_MAX = 1 << 20
_V6_EXTRA = 12
_RUNS_MAX = 16  # more pieces than this are joined: a page with holes is sent as one buffer

Matches = Callable[[bytes], bool]


def get_matching(  # noqa: PLR0913 - LogReader.get_messages and the condition
    reader: LogReader, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, matches: Matches, foreign: bool = False,
    hit: Hit | None = None,
) -> GetResult:  # fmt: skip
    """As ``LogReader.get_messages``; ``hit`` spares records that a bit map rules out. NO_MATCHED_MESSAGE when none of the records that were
    gone through passes: go on at ``next_offset``.
    """
    if foreign:
        max_count, max_bytes = min(max_count, FOREIGN_CAPS[0]), min(max_bytes, FOREIGN_CAPS[1])
    found = _Found(max_count, max_bytes)
    units, scanned_bytes, at = FOREIGN_UNITS if foreign else UNITS, 0, offset
    while True:  # ends: ``units`` falls by at least 1 each round
        page = reader.get_messages(topic, queue_id, at, min(PAGE_RECORDS, units), PAGE_BYTES, None, hit=hit)
        if page.status is not GetMessageStatus.FOUND:
            passed = page.next_offset - at if page.status is GetMessageStatus.NO_MATCHED_MESSAGE else 0  # bit maps ruled all of them out
            units, at = units - passed, at + passed
            if passed <= 0 or units <= 0 or at >= page.max_offset:
                break
            continue
        full_at = found.take(page, matches)
        at = page.next_offset if full_at is None else full_at
        units -= page.count
        scanned_bytes += int(page.sizes.sum())
        if full_at is not None or units <= 0 or scanned_bytes >= SCANNED_BYTES_MAX or at >= page.max_offset:
            break
    if at == offset:
        return page
    status = GetMessageStatus.FOUND if found.sizes else GetMessageStatus.NO_MATCHED_MESSAGE
    return GetResult(status, at, page.min_offset, page.max_offset, np.array(found.sizes, np.int32), found.parts, page.suggest_slave)


class _Found:
    """The records that passed so far."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._count = max_count
        self._bytes = max_bytes
        self.sizes: list[int] = []
        self.parts: list[Any] = []

    def take(self, page: GetResult, matches: Matches) -> int | None:
        """Keep what passes; the queue offset of the first record there was no room for, None when the page was gone through."""
        data = page.parts[0] if len(page.parts) == 1 and isinstance(page.parts[0], bytes) else b"".join(page.parts)
        starts, begins, ends = property_spans(data, page.sizes)
        runs: list[tuple[int, int]] = []
        full_at = None
        for start, begin, end in zip(starts, begins, ends, strict=True):
            if not matches(data[begin:end]):
                continue
            if self.sizes and (self._count < 1 or end - start > self._bytes):
                full_at = int.from_bytes(data[start + 20 : start + 28], "big")
                break
            self._count -= 1
            self._bytes -= end - start
            self.sizes.append(end - start)
            if runs and runs[-1][1] == start:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((start, end))
        self._keep(data, runs)
        return full_at

    def _keep(self, data: Any, runs: list[tuple[int, int]]) -> None:
        if runs == [(0, len(data))]:
            self.parts.append(data)
            return
        view = memoryview(data)
        pieces = [view[begin:end] for begin, end in runs]
        if len(pieces) > _RUNS_MAX:
            self.parts.append(b"".join(pieces))
        else:
            self.parts += pieces


def property_spans(data: bytes | bytearray | memoryview, sizes: Array) -> tuple[list[int], list[int], list[int]]:
    """(starts, first bytes of the property strings, ends) of sound records that lie back to back: the string ends where its record ends."""
    ends = np.cumsum(sizes, dtype=np.int64)
    starts = ends - sizes
    octets: Array = np.frombuffer(data, np.uint8)
    flags = _int32_at(data, starts + 36)
    shift = _V6_EXTRA * (((flags & SysFlag.BORN_HOST_V6) != 0).astype(np.int64) + ((flags & SysFlag.STORE_HOST_V6) != 0))
    body_ends = starts + shift + HEADER_BYTES + _int32_at(data, starts + shift + HEADER_BYTES - 4)
    begins = body_ends + 3 + octets[body_ends]
    return starts.tolist(), begins.tolist(), ends.tolist()


def _int32_at(data: bytes | bytearray | memoryview, at: Array) -> Array:
    every: Array = np.ndarray((len(data) - 3,), ">i4", data, 0, (1,))
    found: Array = every[at].astype(np.int64)
    return found
